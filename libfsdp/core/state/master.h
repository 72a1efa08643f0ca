/* SPDX-License-Identifier: Apache-2.0 */
/* master.h: a flat's fp32 masters, whole or split, or what stands for them. Elements are those of
 * the rank's shard; what is called enqueues on the compute lane, but for visits that name another
 * and the two that say they block. */
#ifndef CORE_MASTER_H
#define CORE_MASTER_H

#include "core/engine.h"

enum { MASTER_PIECE = 1 << 20 };

/* FSDP_EINVAL where masters are to be split, or left out, and no unit's can be. Of flats without
 * masters the tensors become BF16, in which they are stored. */
int master_plan(struct fsdp *f, struct fsdp_err *err);
/* Room for pieces in fp32: 0 where all masters are whole. */
uint64_t master_joined_nbytes(const struct fsdp *f);

/* Calls fn for pieces of the master in fp32 on the device; where fn writes, they go where they came
 * from. Only of whole ones that are there anyway the piece is all. `at` counts from pos. Between
 * steps: state slot 0 is used where masters are offloaded. */
typedef int master_piece_f(void *ctx, float *x, uint64_t at, uint64_t nelem, struct fsdp_err *err);
struct master_visit {
    struct fsdp_lane *lane; /* NULL: the compute lane, as all visits between steps */
    uint64_t pos, nelem;
    bool reads, writes;
    /* Of what is written where there is no master, from pos on; NULL: to the nearest. */
    const struct fsdp_rounding *rounding;
    master_piece_f *fn;
    void *ctx;
};
int master_each(struct fsdp *f, int flat, const struct master_visit *visit, struct fsdp_err *err);
/* The same in a step, of state that is on the device. */
int master_each_at(struct fsdp *f, const struct flat_state *s, const struct master_visit *visit,
                   struct fsdp_err *err);

/* dst: memory that the lane copies to, or offloaded state. */
int master_copy(struct fsdp *f, int flat, uint64_t pos, float *dst, uint64_t nelem,
                struct fsdp_err *err);
/* src: any memory that the lane copies from; it may be changed once the lane was synced. */
int master_set(struct fsdp *f, int flat, uint64_t pos, const float *src, uint64_t nelem,
               struct fsdp_err *err);

/* A master in 16 bits, or twice that: the halves of a split one begin at param and rest; one that
 * is not there, for what is frozen, is param in dtype (BF16 or F16), and rest is NULL. */
struct master_halves {
    const struct engine_offload *offload;
    void *param;
    uint16_t *rest;
    enum fsdp_dtype dtype;
    struct fsdp_lane *lane; /* any that nothing else is under way on */
};
/* Its bytes [pos, pos + nbytes), as if it were fp32: to host memory and from it. Block. */
int master_read_halves(const struct master_halves *m, uint64_t pos, void *dst, size_t nbytes,
                       struct fsdp_err *err);
int master_write_halves(const struct master_halves *m, uint64_t pos, const void *src, size_t nbytes,
                        struct fsdp_err *err);

/* State tensors that begin as the weights (an average), and that no load has written, do so.
 * Enqueues. */
int master_state_begin(struct fsdp *f, struct fsdp_err *err);

#endif
