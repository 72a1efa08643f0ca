/* SPDX-License-Identifier: Apache-2.0 */
/* evaluate.h: the loss on held-out data. */
#ifndef TRAIN_EVALUATE_H
#define TRAIN_EVALUATE_H

#include "rows.h"
#include "words.h"

/* *loss = mean over the tokens of all rows of parts->eval. The rows' memory of both steps is
 * overwritten. Collective, blocks. */
int train_evaluate(const struct train_parts *parts, struct train_rows *rows,
                   struct train_words *words, double *loss, struct fsdp_err *err);

#endif
