/* SPDX-License-Identifier: Apache-2.0 */
/* hooks.h: where the executor calls the user's hooks. */
#ifndef CORE_HOOKS_H
#define CORE_HOOKS_H

#include "core/engine.h"

/* The sum of a flat's gradients that op stands for, through the reduction hook if there is one.
 * Enqueues on op's lane. `sum` gives comm, scatter, recv, send and nelem; the rest follows from op.
 */
int hooks_reduce(struct fsdp *f, const struct sched_op *op, const struct fsdp_reduction *sum,
                 struct fsdp_err *err);
/* The gradient hook on every part of the flat's gradient shard. Enqueues on the compute lane. */
int hooks_grad(struct fsdp *f, int flat, struct fsdp_err *err);
void hooks_destroy(struct fsdp *f);

#endif
