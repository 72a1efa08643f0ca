/* SPDX-License-Identifier: Apache-2.0 */
/* generate.h: choosing the next token, and text as tokens. */
#ifndef GENERATE_H
#define GENERATE_H

#include "fsdp/base.h"

struct generate_opts {
    bool greedy;        /* the most likely token; the rest is then unused */
    double temperature; /* > 0: logits are divided by it */
    int top_k;          /* > 0: only the k most likely tokens */
    double top_p;       /* < 1: only the most likely tokens that together reach this probability */
    uint64_t seed;
};
#define GENERATE_OPTS_INIT                                                                         \
    {                                                                                              \
        .temperature = 1.0, .top_p = 1.0                                                           \
    }

struct generate_sampler;

/* FSDP_EINVAL names an option out of range. */
int generate_sampler_create(struct generate_sampler **out, const struct generate_opts *opts,
                            int vocab, struct fsdp_err *err);
void generate_sampler_destroy(struct generate_sampler *sampler);
/* Next token from logits (vocab). The same options, seed and logits give the same tokens.
 * FSDP_ECORRUPT where logits are not finite. Local. */
int generate_sample(int32_t *token, struct generate_sampler *sampler, const float *logits,
                    struct fsdp_err *err);

/* Text as byte tokens; FSDP_EINVAL where the vocabulary lacks one. *out is freed by the caller. */
int generate_bytes(int32_t **out, int *ntokens, const char *text, int vocab, struct fsdp_err *err);
/* "1,2,3" as tokens. */
int generate_list(int32_t **out, int *ntokens, const char *text, int vocab, struct fsdp_err *err);

#endif
