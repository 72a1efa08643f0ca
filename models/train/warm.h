/* SPDX-License-Identifier: Apache-2.0 */
/* warm.h: what would make the first steps on a GPU slow is done before them. */
#ifndef TRAIN_WARM_H
#define TRAIN_WARM_H

#include "nn/nn.h"
#include "loop.h"

/* One or two micro-steps on made-up rows, which are then abandoned: kernels are loaded and the
 * communicators connected. Of packed documents there is one more for each plan of attention. Then
 * the fastest algorithm of each product is found, or read from the file of an earlier run; rank 0
 * decides for all. Nothing of the training's state changes. Nothing is done on the CPU. After
 * train_loop_open. Collective, blocks. */
int train_warm(struct train_loop *loop, struct fsdp_err *err);

/* ---- the file, for tests ---- */

/* What `tuning->who` says of `path`, into tuning->table; none where there is no such file. A file
 * that is damaged, or another device's, is warned of and left out. Local. */
void train_warm_read(struct nn_tuning *tuning, const char *path);
/* Appears whole, or not at all; that it cannot be written is warned of. Local. */
void train_warm_write(const struct nn_tuning *tuning, const char *path);

#endif
