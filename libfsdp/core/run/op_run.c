/* SPDX-License-Identifier: Apache-2.0 */
/* How each automatic operation runs: a row of one table. What it is, is in sched/op_info.c. */
#include "op_run.h"

#include "core/state/activations.h"
#include "core/state/gather.h"
#include "core/state/offload.h"
#include "hooks.h"

/* ---- gathering ------------------------------------------------------------------------------- */

static int exec_outer_gather(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    void *slot = f->mem.param_slots[f->cursor.program->input.program][op->slot];
    return gather_outer(f, op->flat, slot, f->lanes[SCHED_OUTER_GATHERS], err);
}

static int exec_gather(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    void *slot = f->plan.in_place ? f->flats[op->flat].side_by_side
                                  : f->mem.param_slots[f->cursor.program->input.program][op->slot];
    return gather_flat(f, op->flat, slot, f->lanes[SCHED_GATHERS], err);
}

static int exec_load(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    void *slot = f->mem.param_slots[f->cursor.program->input.program][op->slot];
    return gather_load(f, op->flat, slot, f->lanes[SCHED_UPLOADS], err);
}

static int exec_unpack(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    void *slot = f->mem.param_slots[f->cursor.program->input.program][op->slot];
    return gather_unpack(f, op->flat, slot, f->lanes[SCHED_GATHERS], err);
}

/* Kept parts: rank j of the small group keeps part j of the gathered flat (fsdp_opts). */
static uint64_t part_nbytes(const struct fsdp *f, int flat)
{
    return gather_whole_nbytes(&f->units.flats[flat]) / (uint64_t)f->mesh->regather_size;
}

static int exec_keep_part(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    size_t nbytes = part_nbytes(f, op->flat);
    int part = f->mesh->rank % f->mesh->regather_size;
    char *slot = f->mem.param_slots[FSDP_TRAIN][op->slot];
    return fsdp_copy(f->lanes[SCHED_GATHERS], f->flats[op->flat].part, slot + (size_t)part * nbytes,
                     nbytes, err);
}

static int exec_regather(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[op->flat];
    const enum fsdp_dtype dtype = flat->any_codes ? FSDP_U8 : flat->param_dtype;
    return fsdp_comm_all_gather(
        f->mesh->regather, f->mem.param_slots[FSDP_TRAIN][op->slot], f->flats[op->flat].part,
        part_nbytes(f, op->flat) / fsdp_dtype_nbytes(dtype), dtype, f->lanes[SCHED_GATHERS], err);
}

/* ---- reducing -------------------------------------------------------------------------------- */

/* Every shard is written whole: what is between its chunks is summed, too, and must be zero. */
static int exec_pack(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[op->flat];
    uint64_t elem = fsdp_dtype_nbytes(flat->reduce_dtype), nranks = (uint64_t)flat->cut.nranks;
    struct fsdp_lane *lane = f->lanes[SCHED_REDUCES];
    const char *slot = f->mem.grad_slots[op->slot];

    for (int i = 0; i < flat->ntensors; i++) {
        uint64_t chunk = fsdp_cut_chunk_nelem(&flat->cut, &flat->tensors[i]) * elem;
        uint64_t end = i + 1 < flat->ntensors ? flat->cut.start[i + 1] : flat_full_nelem(flat);
        uint64_t room = (end - flat->cut.start[i]) / nranks * elem;
        const char *from = slot + flat->cut.start[i] * elem;
        char *to = (char *)f->mem.reduce_staging + flat->cut.start[i] / nranks * elem;
        const struct fsdp_pieces pieces = {nranks, flat->cut.shard_nelem * elem, chunk};
        FSDP_TRY(fsdp_copy_pieces(lane, to, from, chunk, &pieces, err));
        for (uint64_t rank = 0; room > chunk && rank < nranks; rank++)
            FSDP_TRY(fsdp_zero(lane, to + rank * pieces.dst_step + chunk, room - chunk, err));
    }
    return FSDP_OK;
}

/* What is reduced: the unsharded gradients, or the ranks' chunks of them. */
static char *scattered(const struct fsdp *f, const struct sched_op *op)
{
    return flat_is_chunked(&f->units.flats[op->flat]) ? f->mem.reduce_staging
                                                      : f->mem.grad_slots[op->slot];
}

/* Sums what the ranks of comm have in send and gives this rank's part of it, in the slot at mine,
 * to the gradient shard. The step's first sum lands there at once, if the types are equal; others
 * are scattered within the slot and added, so that no further buffer is needed. */
static int reduce_to_shard(struct fsdp *f, const struct sched_op *op, struct fsdp_comm *comm,
                           const char *send, char *mine, struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[op->flat];
    uint64_t nelem = flat->cut.shard_nelem;
    struct fsdp_lane *lane = f->lanes[op->lane];
    enum fsdp_dtype dtype = flat->reduce_dtype, grad_dtype = flat_grad_dtype(f, flat);
    void *grad = grad_here(f, op->flat);
    bool first = op->micro == 0 || f->cursor.program->input.reduce_last;

    struct fsdp_reduction sum = {
        .comm = comm, .scatter = true, .recv = mine, .send = send, .nelem = nelem};
    if (f->opts.update_at == FSDP_UPDATE_AT_REDUCE) {
        f->flats[op->flat].grad = mine;
        return hooks_reduce(f, op, &sum, err);
    }
    if (first && dtype == grad_dtype) {
        sum.recv = grad;
        return hooks_reduce(f, op, &sum, err);
    }
    FSDP_TRY(hooks_reduce(f, op, &sum, err));
    if (first)
        return fsdp_cast(lane, grad, grad_dtype, mine, dtype, nelem, err);
    return fsdp_accumulate_to(lane, grad, grad_dtype, mine, dtype, nelem, err);
}

/* On two levels, of the unsharded gradients: those that this rank's place in all nodes gets. */
static uint64_t inner_nelem(const struct fsdp *f, int flat)
{
    return flat_full_nelem(&f->units.flats[flat]) / (uint64_t)f->mesh->inner_size;
}

static char *inner_part(const struct fsdp *f, int flat, void *slot, enum fsdp_dtype dtype)
{
    uint64_t part = (uint64_t)(f->mesh->shard_rank / f->mesh->outer_size);
    return (char *)slot + part * inner_nelem(f, flat) * fsdp_dtype_nbytes(dtype);
}

static char *shard_in_slot(const struct fsdp *f, const struct sched_op *op)
{
    const struct flat *flat = &f->units.flats[op->flat];
    uint64_t pos = (uint64_t)f->mesh->shard_rank * flat->cut.shard_nelem;
    return scattered(f, op) + pos * fsdp_dtype_nbytes(flat->reduce_dtype);
}

static int exec_reduce(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    enum fsdp_dtype dtype = f->units.flats[op->flat].reduce_dtype;
    char *slot = scattered(f, op);

    if (!f->mesh->inner_size)
        return reduce_to_shard(f, op, f->mesh->reduce, slot, shard_in_slot(f, op), err);
    const struct fsdp_reduction sum = {.comm = f->mesh->reduce,
                                       .scatter = true,
                                       .recv = inner_part(f, op->flat, slot, dtype),
                                       .send = slot,
                                       .nelem = inner_nelem(f, op->flat)};
    return hooks_reduce(f, op, &sum, err);
}

static int exec_outer_reduce(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    enum fsdp_dtype dtype = f->units.flats[op->flat].reduce_dtype;
    char *part = inner_part(f, op->flat, scattered(f, op), dtype);
    return reduce_to_shard(f, op, f->mesh->outer_reduce, part, shard_in_slot(f, op), err);
}

/* Replicas sum in reduce_dtype, too; the staging belongs to this lane alone. */
static int exec_all_reduce(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[op->flat];
    uint64_t nelem = flat->cut.shard_nelem;
    struct fsdp_lane *lane = f->lanes[SCHED_REPLICATES];
    enum fsdp_dtype dtype = flat->reduce_dtype, grad_dtype = flat_grad_dtype(f, flat);
    void *grad = grad_here(f, op->flat);
    void *sum = dtype == grad_dtype ? grad : f->mem.replicate_staging;

    if (sum != grad)
        FSDP_TRY(fsdp_cast(lane, sum, dtype, grad, grad_dtype, nelem, err));
    const struct fsdp_reduction all = {
        .comm = f->mesh->replicate, .recv = sum, .send = sum, .nelem = nelem};
    FSDP_TRY(hooks_reduce(f, op, &all, err));
    return sum == grad ? FSDP_OK : fsdp_cast(lane, grad, grad_dtype, sum, dtype, nelem, err);
}

static int exec_fetch_grad(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    return fsdp_copy(f->lanes[op->lane], grad_here(f, op->flat), f->flats[op->flat].grad,
                     flat_grad_nbytes(f, &f->units.flats[op->flat]), err);
}

static int exec_store_grad(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    return fsdp_copy(f->lanes[op->lane], f->flats[op->flat].grad, grad_here(f, op->flat),
                     flat_grad_nbytes(f, &f->units.flats[op->flat]), err);
}

/* ---- the optimizer step ---------------------------------------------------------------------- */

static int exec_store_scalars(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    return offload_store_scalars(f, f->lanes[op->lane], err);
}

static int exec_fetch(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    return offload_fetch(f, op->flat, op->slot, f->lanes[SCHED_UPLOADS], err);
}

static bool is_last_store(const struct fsdp *f, const struct sched_op *op)
{
    const struct sched *s = &f->cursor.program->sched;

    for (const struct sched_op *later = op + 1; later < s->ops + s->nops; later++)
        if (later->kind == SCHED_STORE)
            return false;
    return true;
}

static int exec_store(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    return offload_store(f, op->flat, op->slot, is_last_store(f, op), f->lanes[SCHED_DOWNLOADS],
                         err);
}

static int exec_amax(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    (void)op;
    return gather_amax(f, false, err);
}

static int exec_encode(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    return gather_encode(f, op->flat, err);
}

/* ---- activations ----------------------------------------------------------------------------- */

static int exec_offload(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    return acts_offload(f, op->module, f->lanes[SCHED_DOWNLOADS], err);
}

static int exec_reload(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    return acts_reload(f, op->module, f->lanes[SCHED_UPLOADS], err);
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Nothing runs: the slot is free from here on because of the edges. */
static int exec_free(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    (void)f;
    (void)op;
    (void)err;
    return FSDP_OK;
}

static op_run_f *const runs[SCHED_NKINDS] = {
    [SCHED_LOAD] = exec_load,
    [SCHED_OUTER_GATHER] = exec_outer_gather,
    [SCHED_GATHER] = exec_gather,
    [SCHED_UNPACK] = exec_unpack,
    [SCHED_KEEP_PART] = exec_keep_part,
    [SCHED_REGATHER] = exec_regather,
    [SCHED_FREE] = exec_free,
    [SCHED_PACK] = exec_pack,
    [SCHED_REDUCE] = exec_reduce,
    [SCHED_OUTER_REDUCE] = exec_outer_reduce,
    [SCHED_ALL_REDUCE] = exec_all_reduce,
    [SCHED_NORM] = exec_norm,
    [SCHED_NORM_SUM] = exec_norm_sum,
    [SCHED_STORE_SCALARS] = exec_store_scalars,
    [SCHED_FETCH] = exec_fetch,
    [SCHED_UPDATE] = exec_update,
    [SCHED_STORE] = exec_store,
    [SCHED_AMAX] = exec_amax,
    [SCHED_ENCODE] = exec_encode,
    [SCHED_OFFLOAD] = exec_offload,
    [SCHED_RELOAD] = exec_reload,
    [SCHED_FETCH_GRAD] = exec_fetch_grad,
    [SCHED_STORE_GRAD] = exec_store_grad,
};

op_run_f *op_run_of(enum sched_kind kind)
{
    return runs[kind];
}

int op_run(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    return runs[op->kind](f, op, err);
}
