/* SPDX-License-Identifier: Apache-2.0 */
/* offload.h: state that lives in host memory or a file, and its way to the device and back. */
#ifndef CORE_OFFLOAD_H
#define CORE_OFFLOAD_H

#include "core/engine.h"

/* Is the flat's optimizer state (and its master, unless that is the gathered copy) offloaded;
 * is the gathered copy? */
bool offload_state(const struct fsdp *f, int flat);
bool offload_param(const struct fsdp *f, int flat);
/* And is the state in a file instead? Asked while planning. */
bool offload_in_file(const struct fsdp_opts *opts);
/* Is it updated on the host? Does something of it pass through a state slot for its update? */
bool offload_on_host(const struct fsdp *f, int flat);
bool offload_passes(const struct fsdp *f, int flat);
/* FSDP_EINVAL, FSDP_EUNSUPPORTED for options that cannot be had together. */
int offload_plan(const struct fsdp *f, struct fsdp_err *err);

/* Where a part lives: gathered copies are in host memory even if the rest is in a file. */
enum offload_home { OFFLOAD_HOST, OFFLOAD_FILE, OFFLOAD_DEVICE /* of updates on the host */ };
/* Bytes of a flat's parts there, each at its place. */
uint64_t offload_home_nbytes(const struct fsdp *f, int flat, enum offload_home home);
uint64_t offload_slot_nbytes(const struct fsdp *f); /* the most of a flat's parts together */
/* Of those in the file; or of what updates on the host find in a slot. */
uint64_t offload_staged_nbytes(const struct fsdp *f);
/* Points the parts that live there into it, at base (may be NULL). */
void offload_place(struct fsdp *f, int flat, enum offload_home home, char *base);
/* The flat's state with the device's copies in a slot in place of what is offloaded. */
struct flat_state offload_at(const struct fsdp *f, int flat, int slot);
/* The same for its update on the host; slot -1: nothing passes. */
struct flat_state offload_host_at(const struct fsdp *f, int flat, int slot);
/* What FETCH and STORE copy of a flat between host and device. */
uint64_t offload_copied_nbytes(const struct fsdp *f, int flat);

/* Enqueue, in a step. What an update needs, into the slot; what it wrote, out of it. What goes to a
 * file is written while other flats are updated; the step's last store waits for all of it. */
int offload_fetch(struct fsdp *f, int flat, int slot, struct fsdp_lane *lane, struct fsdp_err *err);
int offload_store(struct fsdp *f, int flat, int slot, bool last, struct fsdp_lane *lane,
                  struct fsdp_err *err);

/* fsdp_copy where dst or src may be offloaded state. The other is memory of the device, and it is
 * between steps; or (_host) of the host. Enqueue. */
int offload_copy(const struct fsdp *f, struct fsdp_lane *lane, void *dst, const void *src,
                 size_t nbytes, struct fsdp_err *err);
int offload_copy_host(const struct engine_offload *offload, struct fsdp_lane *lane, void *dst,
                      const void *src, size_t nbytes, struct fsdp_err *err);

/* For work between steps, on the compute lane: the flat's state on the device, brought there if it
 * is offloaded; and back. Slot 0 is used, by one flat at a time. */
int offload_begin(struct flat_state *out, struct fsdp *f, int flat, struct fsdp_err *err);
int offload_end(struct fsdp *f, int flat, struct fsdp_err *err);

/* Where updates on the host are computed, if there are any. Local. */
int offload_host_open(struct fsdp *f, struct fsdp_err *err);
void offload_host_close(struct fsdp *f); /* no lane uses it any more */
/* Copies what they read of the step's scalars. Enqueues. */
int offload_store_scalars(struct fsdp *f, struct fsdp_lane *lane, struct fsdp_err *err);

#endif
