/* SPDX-License-Identifier: Apache-2.0 */
/* loop.h: tokens one after the other, from a prompt to an end. */
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
    const int32_t *prompt;
    int nprompt, max_tokens;
    uint64_t seed;
};

/* Where tokens are given as they come. */
typedef int generate_put_f(void *ctx, int32_t token, struct fsdp_err *err);

struct generate_loop {
    struct generate_session *session;
    struct generate_opts opts;
    bool ignore_eos;
    const volatile sig_atomic_t *stop; /* NULL: nobody interrupts */
    generate_put_f *put;
    void *ctx;
    /* out: of all sequences so far */
    int64_t nprompt, ngenerated;
    double prompt_seconds, seconds; /* the first token is the prompt's */
};

/* How many tokens the sequence may have in all. FSDP_EINVAL where the prompt is empty or too long
 * for the model. Pure. */
int generate_room(int *out, const struct generate_session *s, const struct generate_sequence *seq,
                  struct fsdp_err *err);
/* session->decoder has room for it. Local, blocks. */
int generate_loop(enum generate_finish *finish, struct generate_loop *loop,
                  const struct generate_sequence *seq, struct fsdp_err *err);

#endif
