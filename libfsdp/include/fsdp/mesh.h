/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mesh.h: the replicate x shard arrangement of ranks, and its communicators.
 *
 * World rank = replica * shard_size + index. Ranks of one shard group are consecutive, so that with
 * block distribution of ranks over nodes a shard group stays inside its node. On one level the rank
 * with an index holds the shard of that number; on two levels fsdp_shard_of_index says which.
 */
#ifndef FSDP_MESH_H
#define FSDP_MESH_H

#include "fsdp/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- pure: which mesh ------------------------------------------------------------------------ */

enum fsdp_strategy {
    FSDP_FULL_SHARD,
    FSDP_SHARD_GRAD_OP,
    FSDP_NO_SHARD,
    FSDP_HYBRID_SHARD,
    FSDP_HYBRID_SHARD_ZERO2,
    FSDP_ZERO1,
    FSDP_NSTRATEGIES
};

/* What a strategy means to mesh and schedule. Names are PyTorch's; ZERO1 is ZeRO's first stage. */
struct fsdp_strategy_info {
    const char *name;
    enum { FSDP_SHARD_OVER_WORLD, FSDP_SHARD_OVER_NODE, FSDP_SHARD_OVER_NOBODY } group;
    bool reshard_after_forward;  /* free gathered parameters between forward and backward */
    bool reshard_after_backward; /* ... and between micro-steps */
    bool reduce_last;            /* keep gradients unsharded until the last micro-step */
};
/* NULL for a number out of range. Static. */
const struct fsdp_strategy_info *fsdp_strategy_info(enum fsdp_strategy strategy);
/* "FULL_SHARD", ...; "?" for a number out of range. Static. */
const char *fsdp_strategy_name(enum fsdp_strategy strategy);
/* Takes upper and lower case. FSDP_EINVAL lists the names. Local. */
int fsdp_strategy_parse(enum fsdp_strategy *out, const char *text, struct fsdp_err *err);

struct fsdp_mesh_shape {
    int shard_size, replicate_size;
    int regather_size; /* ranks of each group that gathers again in backward; 0: no such groups */
    int inner_size;    /* two levels: ranks of the shard group on each node; 0: one level */
    int node_block;    /* every block of so many ranks shares a node; 0: unknown */
};
/* Shape for a strategy on a node map. shard_size 0 means the strategy's own: the world for *_SHARD,
 * 1 for NO_SHARD, the ranks of a node for HYBRID_*. FSDP_EINVAL says what to change: a shard_size
 * that does not divide the world; under HYBRID_* nodes of unequal rank counts, or shard groups that
 * cross nodes without shard_size asking for whole nodes. Local. */
int fsdp_mesh_shape_for(struct fsdp_mesh_shape *out, enum fsdp_strategy strategy, int shard_size,
                        const struct fsdp_node_map *nodes, struct fsdp_err *err);

/* Sets regather_size for reshard_after_forward = k: a divisor of the shard group; 1, and the
 * group's own size, need no further groups. FSDP_EINVAL names the divisors. Local. */
int fsdp_mesh_shape_regather(struct fsdp_mesh_shape *shape, int k, struct fsdp_err *err);

/* Two levels: where the shard group spans nodes, gathers go over the nodes first and then inside
 * each, reductions the other way, so that a unit's bytes enter a node once and not once a rank.
 * Sets inner_size; to 0 where the group stays in a node or has one rank on each. FSDP_EINVAL says
 * what to change for nodes of unequal rank counts, or ranks not in blocks. Local. */
int fsdp_mesh_shape_two_level(struct fsdp_mesh_shape *shape, const struct fsdp_node_map *nodes,
                              struct fsdp_err *err);

/* ---- the mesh -------------------------------------------------------------------------------- */

struct fsdp_mesh {
    int rank, size;             /* world */
    int shard_rank, shard_size; /* which shard of its group this rank holds */
    int replicate_rank, replicate_size;
    struct fsdp_comm *world; /* control word, gradient norm */
    /* The shard group, with two communicators because each serialises its work. On two levels
     * gather and reduce have the group's ranks in this node, the outer two its ranks with the same
     * place in every node. On one level the outer two are NULL. */
    struct fsdp_comm *gather, *reduce;
    struct fsdp_comm *outer_gather, *outer_reduce;
    struct fsdp_comm *replicate; /* same shard, all replicas */
    struct fsdp_comm *regather;  /* regather_size consecutive ranks of the shard group, or NULL */
    int regather_size;           /* 0: no such groups */
    int inner_size, outer_size;  /* 0: one level; else their product is shard_size */
    int node_block;              /* as the shape's */
    struct fsdp_oob *oob;        /* borrowed */
};

/* Makes all communicators of the mesh with this backend (comm.h) and deadline of every wait.
 * nodes is borrowed by this call, oob and device until destroy. Fails on all ranks or on none;
 * errors as of fsdp_comm_create. Collective, blocks. */
int fsdp_mesh_create(struct fsdp_mesh **out, struct fsdp_mesh_shape shape, const char *backend,
                     double timeout_s, const struct fsdp_node_map *nodes, struct fsdp_oob *oob,
                     struct fsdp_device *device, struct fsdp_err *err);
/* The same with all that opts says of a communicator but name, color, key and use, which are the
 * mesh's own. */
int fsdp_mesh_create_with(struct fsdp_mesh **out, struct fsdp_mesh_shape shape,
                          const struct fsdp_comm_opts *opts, struct fsdp_oob *oob,
                          struct fsdp_device *device, struct fsdp_err *err);
void fsdp_mesh_destroy(struct fsdp_mesh *mesh);
/* Local: fsdp_comm_abort of every communicator of the mesh. NULL is allowed, as mesh and as why. */
void fsdp_mesh_abort(struct fsdp_mesh *mesh, const struct fsdp_err *why);

#ifdef __cplusplus
}
#endif
#endif
