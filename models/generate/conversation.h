/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversation.h: a chat turn by turn. The decoder keeps what it has read: of the next rendering
 * only the tokens from the first that differs are read.
 */
#ifndef GENERATE_CONVERSATION_H
#define GENERATE_CONVERSATION_H

#include "chat.h"
#include "loop.h"

struct generate_conversation;

/* One turn. */
struct generate_turn {
    const char *text; /* the user's */
    size_t nbytes;
    /* Shows the answer piece by piece, and at its end once more with 0 bytes. */
    int (*show)(void *ctx, const char *text, size_t nbytes, struct fsdp_err *err);
    void *ctx;
    enum generate_finish finish; /* out */
    bool refused;                /* out, of an error: the conversation is as it was */
};

/* session and chat are borrowed. The session's decoder becomes the conversation's, which makes it
 * anew where it becomes too small. kv_dtype: as generate_session_decoder has it. An answer has up
 * to max_tokens tokens. */
int generate_conversation_create(struct generate_conversation **out, struct generate_session *s,
                                 const struct generate_chat *chat, int max_tokens, int kv_dtype,
                                 struct fsdp_err *err);
void generate_conversation_destroy(struct generate_conversation *c);

/* Asks and answers; the loop's source is set here. Turn n has the loop's seed plus n. An answer
 * that is interrupted before its first character is forgotten, with its question. FSDP_EINVAL with
 * turn->refused: the conversation would become too long for the model, or its template refuses it.
 * After another error it must not be continued. Local, blocks. */
int generate_conversation_turn(struct generate_conversation *c, struct generate_loop *loop,
                               struct generate_turn *turn, struct fsdp_err *err);
/* Messages so far, and the most tokens of an answer. */
int generate_conversation_nmessages(const struct generate_conversation *c);
int generate_conversation_max_tokens(const struct generate_conversation *c);

#endif
