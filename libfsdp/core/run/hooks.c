/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks: reductions done another way, gradients changed before they are used. */
#include "hooks.h"

/* ---- reductions ------------------------------------------------------------------------------ */

static bool reduces(const struct fsdp *f, enum sched_lane lane)
{
    const struct fsdp_mesh *mesh = f->mesh;

    switch (lane) {
    case SCHED_REDUCES: /* of one rank, too, where its gradients go elsewhere or are rounded */
        return mesh->shard_size > 1 || f->opts.update_at == FSDP_UPDATE_AT_REDUCE ||
               f->opts.grad_dtype != FSDP_F32;
    case SCHED_OUTER_REDUCES:
        return mesh->inner_size > 0;
    case SCHED_REPLICATES:
        return mesh->replicate_size > 1;
    default:
        return false;
    }
}

/* Most elements that one reduction sends. */
static uint64_t most_nelem(const struct units *units)
{
    uint64_t most = 0;
    for (int k = 0; k < units->nflats; k++)
        if (units->flats[k].trainable && flat_full_nelem(&units->flats[k]) > most)
            most = flat_full_nelem(&units->flats[k]);
    return most;
}

/* Lanes run side by side, so that each has scratch of its own. */
static int take_scratch(struct fsdp *f, size_t elem_nbytes, struct fsdp_err *err)
{
    for (int lane = 0; elem_nbytes && lane < SCHED_NLANES; lane++) {
        if (!reduces(f, (enum sched_lane)lane))
            continue;
        f->hooks.reduce_scratch[lane] =
            fsdp_device_alloc(f->device, most_nelem(&f->units) * elem_nbytes, "hook scratch", err);
        if (!f->hooks.reduce_scratch[lane])
            return FSDP_ENOMEM;
    }
    return FSDP_OK;
}

void hooks_destroy(struct fsdp *f)
{
    for (int lane = 0; lane < SCHED_NLANES; lane++) {
        fsdp_device_free(f->device, f->hooks.reduce_scratch[lane]);
        f->hooks.reduce_scratch[lane] = NULL;
    }
}

int fsdp_reduce_hook_set(struct fsdp *f, fsdp_reduce_hook_f *fn, void *ctx, size_t elem_nbytes,
                         struct fsdp_err *err)
{
    FSDP_TRY(engine_between_steps(f, "fsdp_reduce_hook_set", err));
    FSDP_TRY(fsdp_sync(f, err));
    hooks_destroy(f);
    f->hooks.reduce = NULL;
    int rc = take_scratch(f, elem_nbytes, err);
    if (rc) {
        hooks_destroy(f);
        return rc;
    }
    f->hooks.reduce = fn;
    f->hooks.reduce_ctx = ctx;
    return FSDP_OK;
}

int fsdp_reduction_run(const struct fsdp_reduction *r, struct fsdp_err *err)
{
    if (r->scatter)
        return fsdp_comm_reduce_scatter(r->comm, r->recv, r->send, r->nelem, r->dtype, r->lane,
                                        err);
    return fsdp_comm_all_reduce(r->comm, r->recv, r->send, r->nelem, r->dtype, r->lane, err);
}

int hooks_reduce(struct fsdp *f, const struct sched_op *op, const struct fsdp_reduction *sum,
                 struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[op->flat];
    struct fsdp_reduction r = *sum;

    r.module = f->units.units[flat->unit].module;
    r.micro = op->micro;
    r.send_nelem = r.scatter ? r.nelem * (uint64_t)fsdp_comm_size(r.comm) : r.nelem;
    r.dtype = flat->reduce_dtype;
    r.lane = f->lanes[op->lane];
    r.scratch = f->hooks.reduce_scratch[op->lane];
    return f->hooks.reduce ? f->hooks.reduce(f->hooks.reduce_ctx, &r, err)
                           : fsdp_reduction_run(&r, err);
}

int fsdp_compress_hook(void *ctx, const struct fsdp_reduction *r, struct fsdp_err *err)
{
    enum fsdp_dtype dtype = *(const enum fsdp_dtype *)ctx;
    struct fsdp_reduction small = *r;
    char *mine = r->scratch;

    if (r->dtype != FSDP_F32)
        return fsdp_reduction_run(r, err);
    if (r->scatter)
        mine += (uint64_t)fsdp_comm_rank(r->comm) * r->nelem * fsdp_dtype_nbytes(dtype);
    FSDP_TRY(fsdp_cast(r->lane, r->scratch, dtype, r->send, r->dtype, r->send_nelem, err));
    small.send = r->scratch;
    small.recv = mine; /* in place */
    small.dtype = dtype;
    FSDP_TRY(fsdp_reduction_run(&small, err));
    return fsdp_cast(r->lane, r->recv, r->dtype, mine, dtype, r->nelem, err);
}

/* ---- gradients ------------------------------------------------------------------------------- */

int fsdp_grad_hook_set(struct fsdp *f, fsdp_grad_hook_f *fn, void *ctx, struct fsdp_err *err)
{
    FSDP_TRY(engine_between_steps(f, "fsdp_grad_hook_set", err));
    if (fn && f->opts.update_at == FSDP_UPDATE_AT_REDUCE)
        return fsdp_err_set(
            err, FSDP_EUNSUPPORTED,
            "fsdp_grad_hook_set: hooks change gradients before their norm is known, "
            "between the last micro-step and fsdp_step: set fsdp.update_at step");
    if (fn && f->opts.offload_gradients)
        return fsdp_err_set(
            err, FSDP_EUNSUPPORTED,
            "fsdp_grad_hook_set: hooks change gradients in fsdp_step, when their norm is known and "
            "they have left the device: set fsdp.offload_gradients false");
    if (fn && f->opts.grad_dtype != FSDP_F32)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "fsdp_grad_hook_set: hooks see gradients in fp32: set fsdp.grad_dtype "
                            "float32");
    f->hooks.grad = fn;
    f->hooks.grad_ctx = ctx;
    return FSDP_OK;
}

int hooks_grad(struct fsdp *f, int flat_index, struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[flat_index];

    for (int i = 0; f->hooks.grad && i < flat->ntensors; i++) {
        const struct fsdp_tensor *tensor = &flat->tensors[i];
        struct fsdp_box box;
        uint64_t pos;
        uint64_t nelem =
            fsdp_cut_box(&box, &pos, &flat->cut, flat->tensors, i, f->mesh->shard_rank);
        struct fsdp_grad_part part = {
            .module = f->units.units[flat->unit].module,
            .param = flat->params[i],
            .tensor = *tensor,
            .first = tensor->ndim ? box.offset[0] * fsdp_tensor_row_nelem(tensor) : 0,
            .nelem = nelem,
            .grad = (float *)f->flats[flat_index].grad + pos,
            .loss_scale = &f->scalars.scale->factor,
            .step = f->optim.step_args->step,
            .lane = f->lanes[SCHED_COMPUTE]};
        part.tensor.dtype = FSDP_F32; /* as grad, whatever the weights are kept in */
        if (nelem)
            FSDP_TRY(f->hooks.grad(f->hooks.grad_ctx, &part, err));
    }
    return FSDP_OK;
}
