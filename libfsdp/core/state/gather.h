/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather.h: how a flat's shards become the whole flat. As they are, in param_dtype; or encoded:
 *
 *   what a rank sends    [ shard_nelem encoded elements | tensors that are not encoded, whole ]
 *   slot                 [ the flat as modules see it | what every rank sent, in their order ]
 *
 * In a group of one nothing is sent: gather_encode decodes at once, into the shard. Modules see the
 * same bits.
 *
 * Modules see the flat in param_dtype, but the codes of those tensors that they take so
 * (FSDP_PARAM_CODES). Ranks send their rows of all tensors one after another, so that a tensor's
 * codes come in pieces, and are copied together.
 *
 * A flat in NF4 is sent as nf4.h says, and a group of one decodes it, too, when it is gathered.
 *
 * The second part of what a rank sends has room for all of such a tensor and holds the rank's own
 * rows, so that all ranks send alike. Decoding fills the first part of the slot from the second.
 */
#ifndef CORE_GATHER_H
#define CORE_GATHER_H

#include "core/engine.h"

/* ---- gather_size.c: pure ---- */

/* What a rank sends; the flat as modules see it; and the slot, with both. */
uint64_t gather_shard_nbytes(const struct flat *flat);
uint64_t gather_whole_nbytes(const struct flat *flat);
uint64_t gather_slot_nbytes(const struct flat *flat);
/* Is tensor i of the flat encoded? Where it lies in what a rank sends if not; i = ntensors: the
 * end. Parts begin at multiples of what `aligned` rounds up to. */
bool gather_is_encoded(const struct flat *flat, int i);
uint64_t gather_raw_start(const struct flat *flat, int i);
/* Lays out the flat as modules see it. */
void gather_see(struct flat *flat);
/* Bytes of an element of tensor i there. */
size_t gather_seen_elem(const struct flat *flat, int i);
uint64_t gather_aligned(uint64_t nbytes);

/* ---- gather.c ---- */

/* Memory for what a group of one encodes and decodes at once; 0 where there is none. Pure. */
uint64_t gather_encoded_nbytes(const struct units *units);

/* Numbers the greatest absolute values that decide the scales of encoded tensors, and says what
 * modules see in codes. Local. */
void gather_plan(struct fsdp *f);
/* Where shards are offloaded this comes first: it brings the rank's to its place. Enqueues. */
int gather_load(struct fsdp *f, int flat, void *slot, struct fsdp_lane *lane, struct fsdp_err *err);
/* Gathers a flat's shards into a slot, on two levels the first of them and then the second.
 * Collective, enqueue. */
int gather_outer(struct fsdp *f, int flat, void *slot, struct fsdp_lane *lane,
                 struct fsdp_err *err);
int gather_flat(struct fsdp *f, int flat, void *slot, struct fsdp_lane *lane, struct fsdp_err *err);
/* Does a gather of the flat leave the ranks' chunks in the staging? Then this copies them into the
 * slot, as whole tensors. Enqueues. */
bool gather_is_unpacked(const struct flat *flat);
int gather_unpack(struct fsdp *f, int flat, void *slot, struct fsdp_lane *lane,
                  struct fsdp_err *err);

/* Where modules see codes: dst = the flat in param_dtype (flat_full_nelem), from a slot with it as
 * they see it. Enqueues. */
int gather_decode_seen(struct fsdp *f, int flat, void *dst, const void *slot,
                       struct fsdp_lane *lane, struct fsdp_err *err);

/* The greatest absolute values of encoded tensors, or of those that share a scale, over all ranks:
 * of the trainable ones, or of all. Enqueues on the compute lane. Collective. */
int gather_amax(struct fsdp *f, bool all, struct fsdp_err *err);
/* What this rank sends, or in a group of one what modules see, from the masters. Enqueues on the
 * compute lane. */
int gather_encode(struct fsdp *f, int flat, struct fsdp_err *err);
/* The same for all flats, after masters were written by others than the optimizer. Collective where
 * something is encoded. */
int gather_refresh(struct fsdp *f, struct fsdp_err *err);
/* Modules see the masters from now on (evaluates), or what they are trained with. Only where the
 * optimizer makes a difference. Enqueues on the compute lane. */
int gather_evaluates(struct fsdp *f, bool evaluates, struct fsdp_err *err);

#endif
