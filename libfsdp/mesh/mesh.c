/* SPDX-License-Identifier: Apache-2.0 */
/* The mesh: which arrangement of ranks a strategy asks for, and its communicators. */
#include <stdio.h>
#include <string.h>

#include "fsdp/mesh.h"

/* ---- which mesh ----------------------------------------------------------------------------- */

static int node_count(const struct fsdp_node_map *nodes, int node)
{
    int count = 0;
    for (int r = 0; r < nodes->nranks; r++)
        count += nodes->node_of[r] == node;
    return count;
}

static const char *host_of(const struct fsdp_node_map *nodes, int rank)
{
    return nodes->host ? nodes->host[rank] : "?";
}

/* How to have another number of ranks, the same number on every node, and ranks in blocks. */
static const struct {
    const char *ranks, *per_node, *blocks;
} advice[] = {
    [FSDP_STARTED_BY_SRUN] = {"srun --ntasks", "srun --ntasks-per-node",
                              "srun --distribution=block"},
    [FSDP_STARTED_BY_MPIRUN] = {"mpirun -n", "mpirun --map-by ppr:N:node",
                                "mpirun --map-by ppr:N:node"},
    [FSDP_STARTED_HERE] = {"fsdp-launch -n", "fsdp-launch -n and --nodes, or --ranks-per-task",
                           "srun --distribution=block"},
};

/* Ranks a node, where that is the same everywhere. what: the option that needs it. */
static int node_size(int *out, const char *what, const struct fsdp_node_map *nodes,
                     struct fsdp_err *err)
{
    int first = node_count(nodes, nodes->node_of[0]);

    for (int r = 1; r < nodes->nranks; r++) {
        int count = node_count(nodes, nodes->node_of[r]);
        if (count != first)
            return fsdp_err_set(
                err, FSDP_EINVAL,
                "%s groups the ranks of a node, but node %s has %d ranks and node %s has %d: "
                "give each node the same number (%s)",
                what, host_of(nodes, 0), first, host_of(nodes, r), count,
                advice[nodes->starter].per_node);
    }
    *out = first;
    return FSDP_OK;
}

/* Ranks are in blocks: every node's ranks are consecutive. */
static int check_blocks(const char *what, const struct fsdp_node_map *nodes, struct fsdp_err *err)
{
    for (int r = 1; r < nodes->nranks; r++) {
        if (nodes->node_of[r] == nodes->node_of[r - 1])
            continue;
        for (int q = 0; q < r; q++)
            if (nodes->node_of[q] == nodes->node_of[r])
                return fsdp_err_set(
                    err, FSDP_EINVAL,
                    "%s groups consecutive ranks inside a node, but ranks %d and "
                    "%d are on node %s and rank %d is not: start the ranks in blocks "
                    "(%s), or number them so with fsdp-launch --reorder",
                    what, q, r, host_of(nodes, r), r - 1, advice[nodes->starter].blocks);
    }
    return FSDP_OK;
}

/* Is every group of consecutive ranks inside one node, or made of whole nodes? */
static bool groups_fit(int shard_size, const struct fsdp_node_map *nodes)
{
    for (int first = 0; first < nodes->nranks; first += shard_size) {
        bool inside = true, whole = true;
        for (int r = first; r < first + shard_size; r++)
            inside &= nodes->node_of[r] == nodes->node_of[first];
        for (int r = first; r < first + shard_size && !inside; r++)
            for (int q = 0; q < nodes->nranks; q++)
                whole &= nodes->node_of[q] != nodes->node_of[r] || q / shard_size == r / shard_size;
        if (!inside && !whole)
            return false;
    }
    return true;
}

static int hybrid_shape(int *shard_size, enum fsdp_strategy strategy,
                        const struct fsdp_node_map *nodes, struct fsdp_err *err)
{
    const char *name = fsdp_strategy_name(strategy);
    int per_node = 0;

    if (*shard_size && groups_fit(*shard_size, nodes))
        return FSDP_OK;
    FSDP_TRY(node_size(&per_node, name, nodes, err));
    FSDP_TRY(check_blocks(name, nodes, err));
    if (*shard_size == 0)
        *shard_size = per_node;
    if (*shard_size == per_node)
        return FSDP_OK;
    return fsdp_err_set(
        err, FSDP_EINVAL,
        "%s with shard_size %d and %d ranks a node: shard groups would cross nodes; "
        "choose a shard_size that divides %d or is a multiple of it, or have %d ranks "
        "a node (%s)",
        name, *shard_size, per_node, per_node, *shard_size, advice[nodes->starter].per_node);
}

static int check_map(const struct fsdp_node_map *nodes, struct fsdp_err *err)
{
    if (!nodes || nodes->nranks < 1 || !nodes->node_of)
        return fsdp_err_set(err, FSDP_EINVAL, "mesh: an empty node map");
    for (int r = 0; r < nodes->nranks; r++)
        if (nodes->node_of[r] < 0 || nodes->node_of[r] >= nodes->nnodes)
            return fsdp_err_set(err, FSDP_EINVAL,
                                "mesh: the node map puts rank %d on node %d of %d", r,
                                nodes->node_of[r], nodes->nnodes);
    return FSDP_OK;
}

/* The size that strategies other than HYBRID_* always have. */
static int fixed_shape(int *shard_size, enum fsdp_strategy strategy, int world,
                       struct fsdp_err *err)
{
    const struct fsdp_strategy_info *info = fsdp_strategy_info(strategy);
    int own = info->group == FSDP_SHARD_OVER_NOBODY ? 1 : world;

    if (*shard_size && *shard_size != own)
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "%s has shard_size %d on %d ranks, not %d: leave shard_size 0, or use %s "
            "for shard groups of %d",
            fsdp_strategy_name(strategy), own, world, *shard_size,
            info->reshard_after_forward || own == 1 ? "HYBRID_SHARD" : "HYBRID_SHARD_ZERO2",
            *shard_size);
    *shard_size = own;
    return FSDP_OK;
}

static bool blocks_share_nodes(int nranks, const struct fsdp_node_map *nodes)
{
    if (nodes->nranks % nranks)
        return false;
    for (int r = 0; r < nodes->nranks; r++)
        if (nodes->node_of[r] != nodes->node_of[r - r % nranks])
            return false;
    return true;
}

/* The largest block. */
static int node_block(const struct fsdp_node_map *nodes)
{
    int nranks = nodes->nranks;
    while (!blocks_share_nodes(nranks, nodes))
        nranks--;
    return nranks;
}

static int shape_for(struct fsdp_mesh_shape *out, enum fsdp_strategy strategy, int shard_size,
                     const struct fsdp_node_map *nodes, struct fsdp_err *err)
{
    if (shard_size < 0)
        return fsdp_err_set(err, FSDP_EINVAL, "shard_size %d is negative", shard_size);
    if (shard_size && nodes->nranks % shard_size)
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "shard_size %d does not divide the world of %d ranks: choose a divisor, or "
            "another number of ranks (%s)",
            shard_size, nodes->nranks, advice[nodes->starter].ranks);
    if (fsdp_strategy_info(strategy)->group == FSDP_SHARD_OVER_NODE)
        FSDP_TRY(hybrid_shape(&shard_size, strategy, nodes, err));
    else
        FSDP_TRY(fixed_shape(&shard_size, strategy, nodes->nranks, err));
    *out = (struct fsdp_mesh_shape){.shard_size = shard_size,
                                    .replicate_size = nodes->nranks / shard_size,
                                    .node_block = node_block(nodes)};
    return FSDP_OK;
}

int fsdp_mesh_shape_for(struct fsdp_mesh_shape *out, enum fsdp_strategy strategy, int shard_size,
                        const struct fsdp_node_map *nodes, struct fsdp_err *err)
{
    FSDP_TRY(check_map(nodes, err));
    if (!fsdp_strategy_info(strategy))
        return fsdp_err_set(err, FSDP_EINVAL, "mesh: unknown strategy %d", (int)strategy);
    return fsdp_err_blame(err, shape_for(out, strategy, shard_size, nodes, err),
                          shard_size ? "shard_size" : "sharding_strategy");
}

int fsdp_mesh_shape_regather(struct fsdp_mesh_shape *shape, int k, struct fsdp_err *err)
{
    char divisors[128] = "";

    if (k < 1 || shape->shard_size % k) {
        for (int d = 2; d <= shape->shard_size; d++) {
            size_t len = strlen(divisors);
            if (shape->shard_size % d == 0)
                snprintf(divisors + len, sizeof divisors - len, ", %d", d);
        }
        return fsdp_err_set_blame(
            err, FSDP_EINVAL, "reshard_after_forward",
            "reshard_after_forward %d does not divide the shard group of %d ranks: "
            "choose true, false%s",
            k, shape->shard_size, divisors);
    }
    shape->regather_size = k > 1 && k < shape->shard_size ? k : 0;
    return FSDP_OK;
}

int fsdp_mesh_shape_two_level(struct fsdp_mesh_shape *shape, const struct fsdp_node_map *nodes,
                              struct fsdp_err *err)
{
    int per_node = 0;

    shape->inner_size = 0;
    FSDP_TRY(check_map(nodes, err));
    if (nodes->nnodes == 1 || shape->shard_size == 1)
        return FSDP_OK;
    int rc = node_size(&per_node, "two_level", nodes, err);
    if (!rc)
        rc = check_blocks("two_level", nodes, err);
    FSDP_TRY(fsdp_err_blame(err, rc, "two_level"));
    if (per_node > 1 && shape->shard_size > per_node)
        shape->inner_size = per_node;
    return FSDP_OK;
}

/* ---- the mesh ------------------------------------------------------------------------------- */

/* All ranks must mean the same mesh, or their groups would not fit together. */
static int shape_agree(struct fsdp_mesh_shape shape, struct fsdp_oob *oob, struct fsdp_err *err)
{
    struct fsdp_err own = FSDP_ERR_INIT;
    int rc = FSDP_OK;
    struct fsdp_mesh_shape *all = fsdp_alloc((size_t)oob->size, sizeof *all, "mesh shapes", err);

    if (!all)
        return FSDP_ENOMEM;
    FSDP_TRY_GOTO(oob->allgather(oob, &shape, sizeof shape, all, &own), out);
    if (shape.shard_size < 1 || shape.replicate_size < 1 || shape.shard_size > oob->size ||
        shape.shard_size * shape.replicate_size != oob->size ||
        (shape.regather_size && shape.shard_size % shape.regather_size) ||
        (shape.inner_size && shape.shard_size % shape.inner_size)) {
        rc = fsdp_err_set(&own, FSDP_EINVAL, "a mesh of %d x %d (replicate x shard) for %d ranks",
                          shape.replicate_size, shape.shard_size, oob->size);
        goto out;
    }
    for (int r = 0; r < oob->size && rc == FSDP_OK; r++)
        if (memcmp(&all[r], &shape, sizeof shape))
            rc = fsdp_err_set(
                &own, FSDP_EMISMATCH,
                "rank %d has a mesh of %d x %d (replicate x shard%s), rank %d of %d x %d%s", r,
                all[r].replicate_size, all[r].shard_size, all[r].inner_size ? ", two levels" : "",
                oob->rank, shape.replicate_size, shape.shard_size,
                shape.inner_size ? ", two levels" : "");
out:
    fsdp_free(all);
    if (rc && err)
        *err = own;
    return rc;
}

int fsdp_mesh_create_with(struct fsdp_mesh **out, struct fsdp_mesh_shape shape,
                          const struct fsdp_comm_opts *template, struct fsdp_oob *oob,
                          struct fsdp_device *device, struct fsdp_err *err)
{
    if (!out || !template || !oob || !device)
        return fsdp_err_set(err, FSDP_EINVAL, "fsdp_mesh_create: a NULL argument");
    FSDP_TRY(shape_agree(shape, oob, err));
    struct fsdp_mesh *mesh = fsdp_alloc(1, sizeof *mesh, "mesh", err);
    if (!mesh)
        return FSDP_ENOMEM;
    const int regather = shape.regather_size, inner = shape.inner_size;
    int index = oob->rank % shape.shard_size, replica = oob->rank / shape.shard_size;
    /* A group of one level is its own inner group. */
    int inner_group = oob->rank / (inner ? inner : shape.shard_size);
    int outer_group = inner ? replica * inner + index % inner : 0;
    *mesh = (struct fsdp_mesh){
        .rank = oob->rank,
        .size = oob->size,
        .shard_rank = fsdp_shard_of_index(index, shape.shard_size, inner),
        .shard_size = shape.shard_size,
        .replicate_rank = replica,
        .replicate_size = shape.replicate_size,
        .regather_size = regather,
        .inner_size = inner,
        .outer_size = inner ? shape.shard_size / inner : 0,
        .node_block = template->nodes ? node_block(template->nodes) : 0,
        .oob = oob,
    };
    const struct {
        const char *name;
        int color;
        struct fsdp_comm **comm;
        enum fsdp_comm_use use;
    } groups[] = {
        {"world", 0, &mesh->world, FSDP_COMM_FOR_ALL},
        {"gather", inner_group, &mesh->gather, FSDP_COMM_FOR_GATHERS},
        {"reduce", inner_group, &mesh->reduce, FSDP_COMM_FOR_SUMS},
        {"replicate", index, &mesh->replicate, FSDP_COMM_FOR_SUMS},
        {"regather", regather ? oob->rank / regather : -1, &mesh->regather, FSDP_COMM_FOR_GATHERS},
        {"outer gather", inner ? outer_group : -1, &mesh->outer_gather, FSDP_COMM_FOR_GATHERS},
        {"outer reduce", inner ? outer_group : -1, &mesh->outer_reduce, FSDP_COMM_FOR_SUMS},
    };
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        if (groups[i].color < 0)
            continue;
        struct fsdp_comm_opts opts = *template;
        opts.name = groups[i].name;
        opts.color = groups[i].color;
        opts.key = oob->rank;
        opts.use = groups[i].use;
        int rc = fsdp_comm_create(groups[i].comm, &opts, oob, device, err);
        if (rc) {
            fsdp_mesh_destroy(mesh);
            return rc;
        }
    }
    *out = mesh;
    return FSDP_OK;
}

int fsdp_mesh_create(struct fsdp_mesh **out, struct fsdp_mesh_shape shape, const char *backend,
                     double timeout_s, const struct fsdp_node_map *nodes, struct fsdp_oob *oob,
                     struct fsdp_device *device, struct fsdp_err *err)
{
    struct fsdp_comm_opts opts = FSDP_COMM_OPTS_INIT;

    opts.backend = backend;
    opts.timeout_s = timeout_s;
    opts.nodes = nodes;
    return fsdp_mesh_create_with(out, shape, &opts, oob, device, err);
}

void fsdp_mesh_destroy(struct fsdp_mesh *mesh)
{
    if (mesh) {
        fsdp_comm_destroy(mesh->outer_reduce);
        fsdp_comm_destroy(mesh->outer_gather);
        fsdp_comm_destroy(mesh->regather);
        fsdp_comm_destroy(mesh->replicate);
        fsdp_comm_destroy(mesh->reduce);
        fsdp_comm_destroy(mesh->gather);
        fsdp_comm_destroy(mesh->world);
        fsdp_free(mesh);
    }
}

void fsdp_mesh_abort(struct fsdp_mesh *mesh, const struct fsdp_err *why)
{
    if (mesh) {
        fsdp_comm_abort(mesh->world, why);
        fsdp_comm_abort(mesh->gather, why);
        fsdp_comm_abort(mesh->reduce, why);
        fsdp_comm_abort(mesh->replicate, why);
        struct fsdp_comm *more[] = {mesh->regather, mesh->outer_gather, mesh->outer_reduce};
        for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
            if (more[i])
                fsdp_comm_abort(more[i], why);
    }
}
