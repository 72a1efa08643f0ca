/* SPDX-License-Identifier: Apache-2.0 */
/* state.h: the slices of a rank, wherever their bytes are read from. */
#ifndef CORE_STATE_H
#define CORE_STATE_H

#include "core/engine.h"

struct state_slice {
    int flat, tensor;
    int part; /* 0: the master; i: slot i - 1 */
    enum fsdp_slice_kind kind;
    struct fsdp_slice slice;
    uint64_t pos, nelem; /* in the part's shard */
};
typedef int state_visit_f(void *ctx, const struct state_slice *at, fsdp_slice_f *fn, void *fn_ctx,
                          struct fsdp_err *err);

/* Calls visit for every slice of this rank, in the order of fsdp_state_each. Local. */
int state_visit(struct fsdp *f, state_visit_f *visit, void *ctx, fsdp_slice_f *fn, void *fn_ctx,
                struct fsdp_err *err);
/* Elements of a part of tensor `tensor` of a flat that are this rank's. */
uint64_t state_slice_nelem(const struct fsdp *f, int flat, int tensor, int part);

/* snapshot.c: before the state of a flat is overwritten. Enqueues; waits on the host where the
 * snapshot reads it live. */
int snapshot_hold(struct fsdp *f, int flat, struct fsdp_lane *lane, struct fsdp_err *err);
/* Before state is changed out of a step: waits on the host until nobody reads a snapshot. */
int snapshot_wait(struct fsdp *f, struct fsdp_err *err);

#endif
