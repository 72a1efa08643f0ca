/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranges.h: the calling thread's work as named ranges, for profilers that the device knows (NVTX):
 * around what is issued, under the names of the trace. Without a profiler nothing happens.
 */
#ifndef CORE_RANGES_H
#define CORE_RANGES_H

#include "core/engine.h"

/* An automatic operation is issued. */
void ranges_op_begin(struct fsdp *f, const struct sched_op *op);
void ranges_op_end(struct fsdp *f, const struct sched_op *op);
/* The model drives an operation; what it releases has been issued. A unit's phase goes from the end
 * of its enter to its leave, micro-steps and the optimizer from begin to end. */
void ranges_drive_begin(struct fsdp *f, const struct sched_op *op);
void ranges_drive_end(struct fsdp *f, const struct sched_op *op);
/* Ends those that a broken step left. */
void ranges_reset(struct fsdp *f);

#endif
