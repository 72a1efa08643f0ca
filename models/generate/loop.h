/* SPDX-License-Identifier: Apache-2.0 */
/* loop.h: tokens one after the other, of several sequences at once, from prompts to ends. */
#ifndef GENERATE_LOOP_H
#define GENERATE_LOOP_H

#include <signal.h>

#include "session.h"

enum generate_finish {
    GENERATE_STOP,        /* the model's end token, which is not part of the text */
    GENERATE_LENGTH,      /* as many tokens as were asked for */
    GENERATE_POSITIONS,   /* the model's positions end */
    GENERATE_INTERRUPTED, /* *stop became true */
};

struct generate_sequence {
    void *ctx; /* the source's own */
    const int32_t *prompt;
    int nprompt, max_tokens;
    /* The first tokens of the prompt that are those of the sequence before it, less than nprompt:
     * what the decoder still has of them is not read again. For a decoder of one sequence. */
    int ncommon;
    uint64_t seed;
};

/* Where prompts come from and tokens go to. */
struct generate_source {
    void *ctx;
    /* Fills *seq, which lives until it is done; *there false: there are no more. */
    int (*next)(void *ctx, struct generate_sequence *seq, bool *there, struct fsdp_err *err);
    int (*put)(void *ctx, const struct generate_sequence *seq, int32_t token, struct fsdp_err *err);
    int (*done)(void *ctx, const struct generate_sequence *seq, enum generate_finish finish,
                struct fsdp_err *err);
};

struct generate_loop {
    struct generate_session *session;
    struct generate_opts opts; /* but for the seed */
    struct generate_source source;
    bool ignore_eos;
    const volatile sig_atomic_t *stop; /* NULL: nobody interrupts */
    /* out, added up: of all sequences */
    int64_t nprompt, ngenerated,
        ntimed; /* ntimed: those that took `seconds`, not a prompt's first */
    double prompt_seconds, seconds;
};

/* How many tokens the sequence may have in all. FSDP_EINVAL where the prompt is empty or too long
 * for the model. Pure. */
int generate_room(int *out, const struct generate_session *s, const struct generate_sequence *seq,
                  struct fsdp_err *err);
/* Until the source has no more. session->decoder has room for each sequence, and as many are
 * generated at once as it has sequences. What a sequence gets depends on its prompt, its seed and
 * the decoder's size alone, not on the others. Local, blocks. */
int generate_loop(struct generate_loop *loop, struct fsdp_err *err);

#endif
