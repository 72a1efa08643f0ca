/* SPDX-License-Identifier: Apache-2.0 */
/* generate_chat.h: a conversation on the terminal, or from a pipe. */
#ifndef TOOLS_GENERATE_CHAT_H
#define TOOLS_GENERATE_CHAT_H

#include "generate/conversation.h"

/* Each line of standard input is a turn of the user, whose answer goes to standard output. Ends
 * where the lines end, or by an interrupt: interrupt_came. At a terminal an interrupt of an answer
 * ends that answer alone, and a turn that is refused can be asked otherwise. `verbose`: the speed
 * of each answer is told. */
int generate_chat_talk(struct generate_conversation *c, struct generate_loop *loop, bool verbose,
                       struct fsdp_err *err);

/* Why an answer ended, on standard error, unless it ended itself. */
void generate_print_finish(const struct generate_session *s, enum generate_finish finish,
                           int max_tokens);

#endif
