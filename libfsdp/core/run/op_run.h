/* SPDX-License-Identifier: Apache-2.0 */
/* op_run.h: what the executor calls for each automatic operation. */
#ifndef CORE_OP_RUN_H
#define CORE_OP_RUN_H

#include "core/engine.h"

/* Enqueues one automatic operation on its lane. */
typedef int op_run_f(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err);

/* NULL for driven operations, and for them alone. */
op_run_f *op_run_of(enum sched_kind kind);
int op_run(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err);

/* norm.c, update.c. */
op_run_f exec_norm, exec_norm_sum, exec_update;

#endif
