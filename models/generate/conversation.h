/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversation.h: a chat, turn by turn. The decoder keeps the keys and values of earlier tokens.
 * For the next turn it computes only from the first token that differs.
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
    /* Shows the answer in pieces; a last call has 0 bytes. */
    int (*show)(void *ctx, const char *text, size_t nbytes, struct fsdp_err *err);
    void *ctx;
    enum generate_finish finish; /* out */
    bool refused;                /* out, after an error: the conversation is unchanged */
};

/* Borrows session and chat. The conversation replaces the session's decoder when it is too small.
 * kv_dtype: as for generate_session_decoder. An answer has up to max_tokens tokens. */
int generate_conversation_create(struct generate_conversation **out, struct generate_session *s,
                                 const struct generate_chat *chat, int max_tokens, int kv_dtype,
                                 struct fsdp_err *err);
void generate_conversation_destroy(struct generate_conversation *c);

/* Runs one turn, and sets the loop's source. Turn n uses the loop's seed plus n. If an answer is
 * interrupted before its first character, it is removed together with its question. FSDP_EINVAL
 * with turn->refused: the conversation would be too long for the model, or the template refuses it.
 * After any other error the conversation must not be continued. Local, blocks. */
int generate_conversation_turn(struct generate_conversation *c, struct generate_loop *loop,
                               struct generate_turn *turn, struct fsdp_err *err);
/* Messages so far, and the most tokens of an answer. */
int generate_conversation_nmessages(const struct generate_conversation *c);
int generate_conversation_max_tokens(const struct generate_conversation *c);

#endif
