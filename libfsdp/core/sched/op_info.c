/* SPDX-License-Identifier: Apache-2.0 */
/* What each operation is: a row of one table. How it runs is in a row of run/op_run.c. */
#include "sched.h"

/* ---- accesses -------------------------------------------------------------------------------- */

struct sched_access_list {
    const struct sched *sched;
    const struct sched_input *in;
    struct sched_access *out;
    int naccesses;
};

static void touch_buffer(struct sched_access_list *l, enum sched_buffer buffer, int index,
                         bool write)
{
    if (index >= 0 && l->naccesses < SCHED_MAX_ACCESSES)
        l->out[l->naccesses++] = (struct sched_access){buffer, index, write};
}

static void reads(struct sched_access_list *l, enum sched_buffer buffer, int index)
{
    touch_buffer(l, buffer, index, false);
}

static void writes(struct sched_access_list *l, enum sched_buffer buffer, int index)
{
    touch_buffer(l, buffer, index, true);
}

int sched_slot_of(const struct sched *sched, int flat, int i)
{
    while (--i >= 0) {
        enum sched_kind kind = sched->ops[i].kind;
        if ((kind == SCHED_GATHER || kind == SCHED_REGATHER) && sched->ops[i].flat == flat)
            return sched->ops[i].slot;
    }
    return -1;
}

/* The gradient shard of a flat, or the place that it has while it is on the device. */
static int grad_shard(const struct sched_access_list *l, int flat)
{
    return l->sched->grad_place ? l->sched->grad_place[flat] : flat;
}

/* It computes in its slot, with the modules inside it, which are bracketed by its own ENTER and
 * LEAVE. */
static void visit_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    const struct sched_input *in = l->in;
    int unit = in->unit_of_module[op->module];

    if (in->acts)
        writes(l, SCHED_ACT_SLOT, in->acts[op->module].slot);
    if (in->units[unit].module != op->module)
        return; /* bracketed by the unit's own ENTER and LEAVE */
    for (int f = 0; f < in->nflats; f++) {
        if (in->flats[f].unit != unit)
            continue;
        if (sched_is_gathered(in, f))
            reads(l, SCHED_PARAM_SLOT, sched_slot_of(l->sched, f, (int)(op - l->sched->ops)));
        else
            reads(l, SCHED_PARAM_SHARD, f);
        if (op->phase != FSDP_BACKWARD || !in->flats[f].trainable)
            continue;
        int slot = l->sched->grad_slot[op->micro * in->nflats + f];
        if (slot >= 0)
            writes(l, SCHED_GRAD_SLOT, slot);
        else
            writes(l, SCHED_GRAD_SHARD, f);
    }
}

/* What a flat's gathers fill: its slot, or the staging that it is unpacked from. */
static void writes_gathered(struct sched_access_list *l, const struct sched_op *op)
{
    if (sched_is_unpacked(l->in, op->flat))
        writes(l, SCHED_GATHER_STAGING, 0);
    else
        writes(l, SCHED_PARAM_SLOT, op->slot);
}

/* What a flat's gradients are scattered in: their slot, or the staging that they are packed into.
 */
static void writes_scattered(struct sched_access_list *l, const struct sched_op *op)
{
    if (l->in->flats[op->flat].chunked)
        writes(l, SCHED_REDUCE_STAGING, 0);
    else
        writes(l, SCHED_GRAD_SLOT, op->slot);
}

/* The gradient shard, or what stands for it: where it was scattered. */
static void touch_grad(struct sched_access_list *l, const struct sched_op *op, bool write)
{
    if (!l->in->update_at_reduce)
        touch_buffer(l, SCHED_GRAD_SHARD, grad_shard(l, op->flat), write);
    else if (l->in->flats[op->flat].chunked)
        touch_buffer(l, SCHED_REDUCE_STAGING, 0, write);
    else
        touch_buffer(l, SCHED_GRAD_SLOT, l->sched->grad_slot[op->micro * l->in->nflats + op->flat],
                     write);
}

static void load_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    reads(l, SCHED_HOST_PARAM, op->flat);
    writes_gathered(l, op);
}

static void outer_gather_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    if (!l->in->offload_params) /* the load has brought it there */
        reads(l, SCHED_PARAM_SHARD, op->flat);
    writes_gathered(l, op);
}

static void gather_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    if (!l->in->two_level && !l->in->offload_params) /* the outer gather, or the load */
        reads(l, SCHED_PARAM_SHARD, op->flat);
    writes_gathered(l, op);
}

static void unpack_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    reads(l, SCHED_GATHER_STAGING, 0);
    writes(l, SCHED_PARAM_SLOT, op->slot);
}

static void keep_part_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    reads(l, SCHED_PARAM_SLOT, op->slot);
    writes(l, SCHED_KEPT_PART, op->flat);
}

static void regather_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    reads(l, SCHED_KEPT_PART, op->flat);
    writes(l, SCHED_PARAM_SLOT, op->slot);
}

static void pack_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    reads(l, SCHED_GRAD_SLOT, op->slot);
    writes(l, SCHED_REDUCE_STAGING, 0);
}

/* Scatters in place, then adds to the shard; of two levels the outer reduction does the second. */
static void reduce_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    writes_scattered(l, op);
    if (!l->in->two_level && !l->in->update_at_reduce)
        writes(l, SCHED_GRAD_SHARD, grad_shard(l, op->flat));
}

static void outer_reduce_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    writes_scattered(l, op);
    if (!l->in->update_at_reduce)
        writes(l, SCHED_GRAD_SHARD, grad_shard(l, op->flat));
}

static void all_reduce_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    touch_grad(l, op, true);
}

/* A gradient hook writes. */
static void norm_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    touch_grad(l, op, true);
    writes(l, SCHED_SCALARS, 0);
}

/* AMAX, too: it reads the masters of encoded flats, which this lane alone writes. */
static void scalars_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    (void)op;
    writes(l, SCHED_SCALARS, 0);
}

static void store_scalars_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    (void)op;
    reads(l, SCHED_SCALARS, 0);
    writes(l, SCHED_HOST_SCALARS, 0);
}

/* The gathered copy is fetched from the host for an update on the device, and from the device for
 * an update on the host. A copy that is at the place of its update already is not moved. */
static void touch_param(struct sched_access_list *l, const struct sched_op *op, bool write)
{
    const bool on_host = l->in->flats[op->flat].on_host;

    if (!on_host)
        touch_buffer(l, SCHED_HOST_PARAM, op->flat, write);
    else if (!l->in->offload_params)
        touch_buffer(l, SCHED_PARAM_SHARD, op->flat, write);
}

static void fetch_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    reads(l, SCHED_HOST_STATE, op->flat);
    touch_param(l, op, false);
    writes(l, SCHED_STATE_SLOT, op->slot);
}

/* What lives in the host's memory is updated in place. */
static void host_update_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    reads(l, SCHED_HOST_SCALARS, 0);
    reads(l, SCHED_HOST_GRAD, op->flat);
    writes(l, SCHED_STATE_SLOT, op->slot);
    writes(l, SCHED_HOST_STATE, op->flat);
    writes(l, SCHED_HOST_PARAM, op->flat);
}

static void update_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    if (l->in->flats[op->flat].on_host) {
        host_update_accesses(l, op);
        return;
    }
    reads(l, SCHED_SCALARS, 0);
    touch_grad(l, op, false);
    writes(l, SCHED_STATE_SLOT, op->slot);
    writes(l, SCHED_PARAM_SHARD, op->flat);
}

static void store_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    reads(l, SCHED_STATE_SLOT, op->slot);
    writes(l, SCHED_HOST_STATE, op->flat);
    touch_param(l, op, true);
}

static void encode_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    reads(l, SCHED_SCALARS, 0);
    writes(l, SCHED_PARAM_SHARD, op->flat);
}

static void offload_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    reads(l, SCHED_ACT_SLOT, op->slot);
    writes(l, SCHED_HOST_ACT, op->module);
}

static void reload_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    reads(l, SCHED_HOST_ACT, op->module);
    writes(l, SCHED_ACT_SLOT, op->slot);
}

static void fetch_grad_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    reads(l, SCHED_HOST_GRAD, op->flat);
    writes(l, SCHED_GRAD_SHARD, op->slot);
}

static void store_grad_accesses(struct sched_access_list *l, const struct sched_op *op)
{
    reads(l, SCHED_GRAD_SHARD, op->slot);
    writes(l, SCHED_HOST_GRAD, op->flat);
}

int sched_accesses(const struct sched *sched, const struct sched_input *in, int i,
                   struct sched_access out[SCHED_MAX_ACCESSES])
{
    struct sched_access_list l = {.sched = sched, .in = in, .out = out};
    const struct sched_op *op = &sched->ops[i];

    if (sched_infos[op->kind].accesses)
        sched_infos[op->kind].accesses(&l, op);
    return l.naccesses;
}

/* ---- communication --------------------------------------------------------------------------- */

/* All of the shard group, or on two levels the ranks of a node. */
static int inner_nranks(const struct sched_sizes *s)
{
    return s->inner_nranks ? s->inner_nranks : s->shard_nranks;
}

static struct sched_collective outer_gather(const struct sched_sizes *s)
{
    return (struct sched_collective){FSDP_ALL_GATHER, s->outer_nranks, s->inner_nranks,
                                     s->sent_nbytes / (uint64_t)s->inner_nranks};
}

static struct sched_collective gather(const struct sched_sizes *s)
{
    return (struct sched_collective){FSDP_ALL_GATHER, inner_nranks(s), 1, s->sent_nbytes};
}

static struct sched_collective regather(const struct sched_sizes *s)
{
    return (struct sched_collective){FSDP_ALL_GATHER, s->regather_nranks, 1, s->param_nbytes};
}

static struct sched_collective reduce(const struct sched_sizes *s)
{
    return (struct sched_collective){FSDP_REDUCE_SCATTER, inner_nranks(s), 1, s->grad_nbytes};
}

static struct sched_collective outer_reduce(const struct sched_sizes *s)
{
    return (struct sched_collective){FSDP_REDUCE_SCATTER, s->outer_nranks, s->inner_nranks,
                                     s->grad_nbytes / (uint64_t)s->inner_nranks};
}

static struct sched_collective all_reduce(const struct sched_sizes *s)
{
    return (struct sched_collective){FSDP_ALL_REDUCE, s->replicate_nranks, s->shard_nranks,
                                     s->grad_nbytes / (uint64_t)s->shard_nranks};
}

static struct sched_collective norm_sum(const struct sched_sizes *s)
{
    return (struct sched_collective){FSDP_ALL_REDUCE, s->world_nranks, 1, s->norm_nbytes};
}

static struct sched_collective amax(const struct sched_sizes *s)
{
    return (struct sched_collective){FSDP_ALL_REDUCE, s->world_nranks, 1, s->amax_nbytes};
}

static uint64_t load_nbytes(const struct sched_sizes *s)
{
    return s->sent_nbytes / (uint64_t)s->shard_nranks;
}

static uint64_t state_nbytes(const struct sched_sizes *s)
{
    return s->state_nbytes;
}

static uint64_t act_nbytes(const struct sched_sizes *s)
{
    return s->act_nbytes;
}

static uint64_t grad_shard_nbytes(const struct sched_sizes *s)
{
    return s->grad_shard_nbytes;
}

/* Of what the group shares, all but its own part reaches each rank; all-reductions scatter, then
 * gather. */
uint64_t sched_received(const struct sched_op_info *info, const struct sched_sizes *sizes)
{
    if (info->copied)
        return info->copied(sizes);
    if (!info->collective)
        return 0;
    const struct sched_collective c = info->collective(sizes);
    const uint64_t others = c.nbytes - c.nbytes / (uint64_t)c.nranks;
    return c.kind == FSDP_ALL_REDUCE ? 2 * others : others;
}

/* ---- bytes of the device's memory that are read and written ---------------------------------- */

static double keep_part_touched(const struct sched_sizes *s)
{
    return 2 * (double)s->param_nbytes / s->regather_nranks;
}

static double unpack_touched(const struct sched_sizes *s)
{
    return 2 * (double)s->param_nbytes;
}

static double pack_touched(const struct sched_sizes *s)
{
    return 2 * (double)s->grad_nbytes;
}

/* Passes over the fp32 shard: the norm reads it; AdamW reads four arrays and writes three. */
static double norm_touched(const struct sched_sizes *s)
{
    return (double)s->shard_nbytes;
}

static double update_touched(const struct sched_sizes *s)
{
    return 7 * (double)s->shard_nbytes;
}

/* ---- the table ------------------------------------------------------------------------------- */

const struct sched_op_info sched_infos[SCHED_NKINDS] = {
    [SCHED_MICRO_BEGIN] = {.name = "micro_begin", .lane = SCHED_COMPUTE, .driven = true},
    [SCHED_ENTER] = {.name = "enter",
                     .lane = SCHED_COMPUTE,
                     .driven = true,
                     .accesses = visit_accesses},
    [SCHED_LEAVE] = {.name = "leave",
                     .lane = SCHED_COMPUTE,
                     .driven = true,
                     .accesses = visit_accesses},
    [SCHED_MICRO_END] = {.name = "micro_end", .lane = SCHED_COMPUTE, .driven = true},
    [SCHED_STEP] = {.name = "step", .lane = SCHED_COMPUTE, .driven = true},
    [SCHED_LOAD] = {.name = "load",
                    .lane = SCHED_UPLOADS,
                    .accesses = load_accesses,
                    .copied = load_nbytes},
    [SCHED_OUTER_GATHER] = {.name = "outer_gather",
                            .lane = SCHED_OUTER_GATHERS,
                            .comm = true,
                            .accesses = outer_gather_accesses,
                            .collective = outer_gather},
    [SCHED_GATHER] = {.name = "gather",
                      .lane = SCHED_GATHERS,
                      .comm = true,
                      .accesses = gather_accesses,
                      .collective = gather},
    [SCHED_UNPACK] = {.name = "unpack",
                      .lane = SCHED_GATHERS,
                      .accesses = unpack_accesses,
                      .touched_nbytes = unpack_touched},
    [SCHED_KEEP_PART] = {.name = "keep_part",
                         .lane = SCHED_GATHERS,
                         .accesses = keep_part_accesses,
                         .touched_nbytes = keep_part_touched},
    [SCHED_REGATHER] = {.name = "regather",
                        .lane = SCHED_GATHERS,
                        .comm = true,
                        .accesses = regather_accesses,
                        .collective = regather},
    [SCHED_FREE] = {.name = "free", .lane = SCHED_GATHERS},
    [SCHED_PACK] = {.name = "pack",
                    .lane = SCHED_REDUCES,
                    .accesses = pack_accesses,
                    .touched_nbytes = pack_touched},
    [SCHED_REDUCE] = {.name = "reduce",
                      .lane = SCHED_REDUCES,
                      .comm = true,
                      .accesses = reduce_accesses,
                      .collective = reduce},
    [SCHED_OUTER_REDUCE] = {.name = "outer_reduce",
                            .lane = SCHED_OUTER_REDUCES,
                            .comm = true,
                            .accesses = outer_reduce_accesses,
                            .collective = outer_reduce},
    [SCHED_ALL_REDUCE] = {.name = "all_reduce",
                          .lane = SCHED_REPLICATES,
                          .comm = true,
                          .accesses = all_reduce_accesses,
                          .collective = all_reduce},
    [SCHED_NORM] = {.name = "norm",
                    .lane = SCHED_COMPUTE,
                    .accesses = norm_accesses,
                    .touched_nbytes = norm_touched,
                    .pass = FSDP_PASS_SQUARES},
    [SCHED_NORM_SUM] = {.name = "norm_sum",
                        .lane = SCHED_COMPUTE,
                        .comm = true,
                        .accesses = scalars_accesses,
                        .collective = norm_sum},
    [SCHED_STORE_SCALARS] = {.name = "store_scalars",
                             .lane = SCHED_DOWNLOADS,
                             .accesses = store_scalars_accesses},
    [SCHED_FETCH] = {.name = "fetch",
                     .lane = SCHED_UPLOADS,
                     .accesses = fetch_accesses,
                     .copied = state_nbytes},
    [SCHED_UPDATE] = {.name = "update",
                      .lane = SCHED_COMPUTE,
                      .accesses = update_accesses,
                      .touched_nbytes = update_touched,
                      .pass = FSDP_PASS_UPDATE},
    [SCHED_STORE] = {.name = "store",
                     .lane = SCHED_DOWNLOADS,
                     .accesses = store_accesses,
                     .copied = state_nbytes},
    [SCHED_AMAX] = {.name = "amax",
                    .lane = SCHED_COMPUTE,
                    .comm = true,
                    .accesses = scalars_accesses,
                    .collective = amax},
    [SCHED_ENCODE] = {.name = "encode", .lane = SCHED_COMPUTE, .accesses = encode_accesses},
    [SCHED_OFFLOAD] = {.name = "offload",
                       .lane = SCHED_DOWNLOADS,
                       .accesses = offload_accesses,
                       .copied = act_nbytes},
    [SCHED_RELOAD] = {.name = "reload",
                      .lane = SCHED_UPLOADS,
                      .accesses = reload_accesses,
                      .copied = act_nbytes},
    [SCHED_FETCH_GRAD] = {.name = "fetch_grad",
                          .lane = SCHED_UPLOADS,
                          .accesses = fetch_grad_accesses,
                          .copied = grad_shard_nbytes},
    [SCHED_STORE_GRAD] = {.name = "store_grad",
                          .lane = SCHED_DOWNLOADS,
                          .accesses = store_grad_accesses,
                          .copied = grad_shard_nbytes},
};

const char *sched_kind_name(enum sched_kind kind)
{
    return sched_infos[kind].name;
}

const char *sched_lane_name(enum sched_lane lane)
{
    static const char *const names[SCHED_NLANES] = {"compute",   "gather",       "reduce",
                                                    "replicate", "outer_gather", "outer_reduce",
                                                    "upload",    "download",     "update"};
    return names[lane];
}
