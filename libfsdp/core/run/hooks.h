/* SPDX-License-Identifier: Apache-2.0 */
/* hooks.h: where the executor calls the user's hooks. */
#ifndef CORE_HOOKS_H
#define CORE_HOOKS_H

#include "core/engine.h"

/* The sum of a flat's gradients that op stands for, through the reduction hook if there is one.
 * Enqueues on op's lane. scatter: as fsdp_comm_reduce_scatter, else as fsdp_comm_all_reduce. */
int hooks_reduce(struct fsdp *f, const struct sched_op *op, struct fsdp_comm *comm, bool scatter,
                 void *recv, const void *send, uint64_t nelem, enum fsdp_dtype dtype,
                 struct fsdp_err *err);
/* The gradient hook on every part of the flat's gradient shard. Enqueues on the compute lane. */
int hooks_grad(struct fsdp *f, int flat, struct fsdp_err *err);
void hooks_destroy(struct fsdp *f);

#endif
