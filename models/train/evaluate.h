/* SPDX-License-Identifier: Apache-2.0 */
/* evaluate.h: the loss on held-out data. */
#ifndef TRAIN_EVALUATE_H
#define TRAIN_EVALUATE_H

#include "dpo.h"
#include "rows.h"
#include "words.h"

/* Means over all rows of parts->eval. Losses are in nats. */
struct train_held_out {
    bool counts;          /* any token at all */
    double loss;          /* per token that counts; 0 without one */
    double nats_per_byte; /* per byte of the text that these tokens are; 0: not known */
};
/* dpo: with parts, the loss is the mean of pairs. The rows' memory of both steps is overwritten.
 * Collective, blocks. */
int train_evaluate(const struct train_parts *parts, struct train_rows *rows,
                   struct train_words *words, struct train_dpo *dpo, struct train_held_out *out,
                   struct fsdp_err *err);

#endif
