/* SPDX-License-Identifier: Apache-2.0 */
#include "ranges.h"

#include "fsdp/sys/device_ops.h"
#include "trace.h"

static void begin_range(struct fsdp *f, const struct sched_op *op)
{
    char label[TRACE_LABEL_NBYTES];

    if (!fsdp_device_is_profiled(f->device))
        return;
    fsdp_range_push(f->device, trace_op_label(label, sizeof label, f, op));
    f->tracing.nranges++;
}

static void end(struct fsdp *f)
{
    if (f->tracing.nranges) {
        f->tracing.nranges--;
        fsdp_range_pop(f->device);
    }
}

void ranges_op_begin(struct fsdp *f, const struct sched_op *op)
{
    if (op->kind != SCHED_FREE)
        begin_range(f, op);
}

void ranges_op_end(struct fsdp *f, const struct sched_op *op)
{
    if (op->kind != SCHED_FREE)
        end(f);
}

void ranges_drive_begin(struct fsdp *f, const struct sched_op *op)
{
    if (op->kind == SCHED_MICRO_BEGIN || op->kind == SCHED_STEP)
        begin_range(f, op);
    else if (op->kind == SCHED_LEAVE)
        end(f);
}

void ranges_drive_end(struct fsdp *f, const struct sched_op *op)
{
    if (op->kind == SCHED_ENTER)
        begin_range(f, op);
    else if (op->kind == SCHED_MICRO_END || op->kind == SCHED_STEP)
        end(f);
}

void ranges_reset(struct fsdp *f)
{
    while (f->tracing.nranges)
        end(f);
}
