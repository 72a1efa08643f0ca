/* SPDX-License-Identifier: Apache-2.0 */
/* Where the cursor is, for other threads: a watchdog must see it while the caller hangs. */
#include <stdio.h>

#include "core/engine.h"
#include "progress.h"
#include "trace.h"

enum { INDEX_BITS = 31 };

/* count | program | index of the operation: one word, so that a reader never sees halves. */
void progress_note(struct engine_cursor *cursor, int i)
{
    uint64_t count = (atomic_load_explicit(&cursor->progress, memory_order_relaxed) >> 32) + 1;
    uint64_t program = cursor->program->input.program == FSDP_EVAL;
    atomic_store_explicit(&cursor->progress, count << 32 | program << INDEX_BITS | (uint64_t)i,
                          memory_order_relaxed);
}

void progress_spent(struct engine_cursor *cursor, const struct sched_op *op, double seconds)
{
    if (sched_is_comm(op->kind))
        atomic_fetch_add_explicit(&cursor->comm_ns, (uint64_t)(seconds * 1e9),
                                  memory_order_relaxed);
}

uint64_t fsdp_progress(const struct fsdp *f, struct fsdp_position *out)
{
    uint64_t word = atomic_load_explicit(&f->cursor.progress, memory_order_relaxed);
    const struct program *p = &f->plan.programs[word >> INDEX_BITS & 1];
    uint64_t index = word & ((UINT64_C(1) << INDEX_BITS) - 1);

    if (!out)
        return word >> 32;
    *out = (struct fsdp_position){
        .eval = p == &f->plan.programs[FSDP_EVAL],
        .comm_seconds =
            (double)atomic_load_explicit(&f->cursor.comm_ns, memory_order_relaxed) * 1e-9};
    if (!(word >> 32) || index >= (uint64_t)p->sched.nops)
        return word >> 32;
    const struct sched_op *op = &p->sched.ops[index];
    char name[96];
    trace_op_name(name, sizeof name, f, op);
    out->comm = sched_is_comm(op->kind);
    if (sched_is_visit(op->kind))
        snprintf(out->text, sizeof out->text, "%s of %s (%s), micro-step %d",
                 sched_kind_name(op->kind), name, fsdp_phase_name(op->phase), op->micro);
    else
        snprintf(out->text, sizeof out->text, "%s%s%s%s", sched_kind_name(op->kind),
                 name[0] ? " of " : "", name, out->comm ? " (waits for other ranks)" : "");
    return word >> 32;
}
