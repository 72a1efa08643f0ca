/* SPDX-License-Identifier: Apache-2.0 */
/* decoder.h: a decoder of which only dimensions are known: its parameters, and its work. Pure. */
#ifndef PLAN_DECODER_H
#define PLAN_DECODER_H

#include "plan/work.h"

struct decoder {
    double dim, layers, heads, kv_heads, ffn, vocab;
    bool gated; /* the MLP has a gate: three matrices */
    bool tied;  /* embedding and head are one matrix */
};

/* How much of forward's work backward does again, 0 to 1 each. */
struct decoder_again {
    double products, attention, bytes;
};

/* One micro-batch on one rank. */
struct decoder_batch {
    double rows, seq; /* sequences; their tokens */
    int tp, cp;       /* ranks that share each matrix, and each sequence; 1: none */
    bool whole_norms; /* tensor parallelism alone: each rank computes all of norms and residuals */
    bool all_scores;  /* attention computes the scores of masked pairs, too */
    enum fsdp_dtype products; /* of the layers' products; the head's are BF16 */
    struct decoder_again again;
};

/* Elements of a layer's matrices, and of embedding and head together. */
double decoder_layer_nelem(const struct decoder *m);
double decoder_ends_nelem(const struct decoder *m);
/* Tokens of a rank's micro-batch. */
double decoder_tokens(const struct decoder_batch *b);
/* Appends the work of one layer, or of the head with its loss; pieces of phase RECOMPUTE are what
 * `again` says. Operands of 8 bits: the kernels that quantize count as pointwise. */
void decoder_layer_work(struct work_list *list, const struct decoder *m,
                        const struct decoder_batch *b);
void decoder_head_work(struct work_list *list, const struct decoder *m,
                       const struct decoder_batch *b);
/* Seconds of a list's pieces in any of these phases. */
double decoder_seconds(const struct work_list *list, unsigned phases,
                       const struct fsdp_device_clock *device);

#endif
