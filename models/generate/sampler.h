/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sampler.h: choosing the next token of one sequence from its logits.
 *
 * What is applied, and in which order, is what transformers does: the repetition penalty, then,
 * unless greedy, temperature, top-k, top-p and min-p, each on what the one before it left.
 */
#ifndef GENERATE_SAMPLER_H
#define GENERATE_SAMPLER_H

#include "fsdp/base.h"

struct generate_opts {
    bool greedy;        /* the most likely token; of the rest the penalty alone is then used */
    double temperature; /* > 0: logits are divided by it */
    int top_k;          /* > 0: only the k most likely tokens, and those as likely as the last */
    double top_p;       /* < 1: only the most likely tokens that together reach this probability */
    double min_p;       /* > 0: only tokens at least this times as likely as the most likely one */
    /* > 0: the logit of a token that the prompt or the text so far holds is divided by it where it
     * is positive, else multiplied with it (Keskar et al., arXiv 1909.05858). 1: no penalty. */
    double repetition_penalty;
    uint64_t seed;
};
#define GENERATE_OPTS_INIT                                                                         \
    {                                                                                              \
        .temperature = 1.0, .top_p = 1.0, .repetition_penalty = 1.0                                \
    }

/* FSDP_EINVAL names an option out of range. Pure. */
int generate_opts_check(const struct generate_opts *opts, struct fsdp_err *err);

struct generate_sampler;

/* A token that the filters left, and its probability among them. */
struct generate_candidate {
    double p;
    int32_t token;
};

/* Errors of options as above. */
int generate_sampler_create(struct generate_sampler **out, const struct generate_opts *opts,
                            int vocab, struct fsdp_err *err);
void generate_sampler_destroy(struct generate_sampler *sampler);
/* A new sequence: its seed, and its prompt, whose tokens are below vocab. Local. */
void generate_sampler_begin(struct generate_sampler *sampler, uint64_t seed, const int32_t *prompt,
                            int nprompt);
/* Next token from logits (vocab), which is from then on one of the text. The same options, seed,
 * prompt and logits give the same tokens. FSDP_ECORRUPT where logits are not finite. Local. */
int generate_sample(int32_t *token, struct generate_sampler *sampler, const float *logits,
                    struct fsdp_err *err);
/* The distribution that generate_sample would draw from: *ncandidates tokens in no particular
 * order, whose probabilities sum to 1; one where greedy. Borrowed until the sampler is used again.
 * Errors as there. */
int generate_distribution(const struct generate_candidate **out, int *ncandidates,
                          struct generate_sampler *sampler, const float *logits,
                          struct fsdp_err *err);

#endif
