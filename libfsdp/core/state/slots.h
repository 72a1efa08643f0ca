/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slots.h: where the slots of parameters (fsdp_slot) lie in a rank's memory. What says how much
 * there is, and which part of it is a tensor's, is here alone: arena, offloading, snapshots, slices
 * and updates ask.
 *
 * A slot that every parameter of a flat has for each element, or for each block, lies as the shard
 * does, padding included, so that neighbouring parameters can be updated in one call. Of another
 * slot each parameter's part follows the one before it, on a boundary of FSDP_CUT_ALIGN elements,
 * and memory is as much as the rank with the most of it needs.
 */
#ifndef CORE_SLOTS_H
#define CORE_SLOTS_H

#include "core/engine.h"

/* Places all slots, once engine_optim says which parameters have which. FSDP_EUNSUPPORTED names a
 * unit that is cut within blocks. Pure. */
int slots_plan(struct fsdp *f, struct fsdp_err *err);

static inline bool slots_has(const struct fsdp *f, int flat, int tensor, int k)
{
    const struct flat *of = &f->units.flats[flat];
    return of->trainable && f->optim.kept[of->params[tensor]] >> k & 1;
}

/* Of a rank's memory for slot k of a flat. */
static inline uint64_t slots_nelem(const struct fsdp *f, int flat, int k)
{
    return f->optim.slot_nelem[(size_t)flat * MAX_SLOTS + (size_t)k];
}

static inline uint64_t slots_nbytes(const struct fsdp *f, int flat, int k)
{
    return slots_nelem(f, flat, k) * fsdp_dtype_nbytes(f->optim.slots[k].dtype);
}

/* Where the part of a tensor begins there. */
static inline uint64_t slots_pos(const struct fsdp *f, int flat, int tensor, int k)
{
    const int param = f->units.flats[flat].params[tensor];
    return f->optim.slot_pos[(size_t)param * MAX_SLOTS + (size_t)k];
}

/* Fills what an optimizer_run has of the slots, from element `at` of the run on: of slots per block
 * a multiple of the block. Pure. */
void slots_of_run(void *out[OPTIMIZER_MAX_STATE], const struct fsdp *f, const struct flat_state *s,
                  const struct update_run *run, uint64_t at);

#endif
