/* SPDX-License-Identifier: Apache-2.0 */
/*
 * average.h: the weighted average of checkpoints that hold the same tensors, in any formats. It is
 * computed as the tensors are read: a sum in fp64, divided by the sum of the weights, and rounded
 * once, to the type that is written.
 */
#ifndef CKPT_AVERAGE_H
#define CKPT_AVERAGE_H

#include "ckpt/ckpt.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ckpt_average;

/* Opens all; each is a path or an address of a checkpoint, or PATH=WEIGHT (default: 1). The first
 * gives names, types and the files next to the weights. Weights are divided by their sum, which
 * must be above 0. Where a path exists that ends so, it is that; where both do, FSDP_EINVAL.
 * config: of the model, as ckpt_open_with takes it for each; may be NULL. Local, blocks. */
int ckpt_average_open(struct ckpt_average **out, const char *const *paths, int npaths,
                      const char *config, struct fsdp_err *err);
/* NULL is allowed. Closes the checkpoints. */
void ckpt_average_close(struct ckpt_average *average);
/* Checkpoint i in the order of the paths; NULL behind the last one. Lives as long as the average.
 * Local. */
struct ckpt *ckpt_average_member(const struct ckpt_average *average, int i);

#ifdef __cplusplus
}
#endif
#endif
