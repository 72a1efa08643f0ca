/* SPDX-License-Identifier: Apache-2.0 */
/* loop.h: the generation loop: several sequences at once, one token of each per step. */
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
    /* How many first tokens the prompt shares with the previous sequence, less than nprompt. The
     * decoder does not read them again if it still has them. For a decoder of one sequence. */
    int ncommon;
    uint64_t seed;
};

/* The source of prompts and the sink of tokens. */
struct generate_source {
    void *ctx;
    /* Fills *seq, which stays valid until `done`. *there false: there are no more prompts. */
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
    /* out: sums over all sequences */
    int64_t nprompt, ngenerated,
        ntimed; /* ntimed: tokens within `seconds`, without the first after a prompt */
    double prompt_seconds, seconds;
};

/* How many tokens the sequence may have in all. FSDP_EINVAL where the prompt is empty or too long
 * for the model. Pure. */
int generate_room(int *out, const struct generate_session *s, const struct generate_sequence *seq,
                  struct fsdp_err *err);
/* Runs until the source has no more prompts. session->decoder must have room for each sequence; its
 * number of sequences are generated at once. The tokens of a sequence depend only on its prompt,
 * its seed and the decoder's size, not on other sequences. Local, blocks. */
int generate_loop(struct generate_loop *loop, struct fsdp_err *err);

#endif
