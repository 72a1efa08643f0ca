/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Access to whole parameters between steps: units gathered by hand, and every tensor in turn in
 * host memory, a piece at a time.
 */
#include "access.h"
#include "core/state/gather.h"
#include "core/state/master.h"
#include "core/state/offload.h"
#include "core/state/state.h"

/* ---- units by hand --------------------------------------------------------------------------- */

/* The flat in param_dtype; behind it the slot that it is gathered into, where modules see codes. */
static uint64_t by_hand_nbytes(const struct flat *flat)
{
    return flat_full_nelem(flat) * fsdp_dtype_nbytes(flat->param_dtype);
}

static char *by_hand_slot(const struct fsdp *f, int flat_index)
{
    const struct flat *flat = &f->units.flats[flat_index];
    char *whole = f->flats[flat_index].by_hand;
    return flat->any_codes ? whole + gather_aligned(by_hand_nbytes(flat)) : whole;
}

/* All shards of a flat, in order. */
static int gather_by_hand(struct fsdp *f, int flat_index, struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[flat_index];
    struct flat_state *s = &f->flats[flat_index];
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    void *slot = by_hand_slot(f, flat_index);

    if (flat->whole)
        return fsdp_copy(lane, slot, s->param, gather_shard_nbytes(flat), err);
    if (offload_param(f, flat_index))
        FSDP_TRY(gather_load(f, flat_index, slot, lane, err));
    if (f->mesh->inner_size)
        FSDP_TRY(gather_outer(f, flat_index, slot, lane, err));
    FSDP_TRY(gather_flat(f, flat_index, slot, lane, err));
    if (flat->any_codes)
        return gather_decode_seen(f, flat_index, s->by_hand, slot, lane, err);
    return gather_is_unpacked(flat) ? gather_unpack(f, flat_index, slot, lane, err) : FSDP_OK;
}

static int check_module(const struct fsdp_module_tree *tree, int module, struct fsdp_err *err)
{
    if (module >= 0 && module < tree->nmodules)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL, "there is no module %d", module);
}

/* Memory for the unit's flats. Local. */
static int take_memory(struct fsdp *f, const struct unit *unit, struct fsdp_err *err)
{
    for (int k = 0; k < UNIT_NFLATS; k++) {
        int flat = unit->flats[k];
        if (flat < 0 || k == UNIT_CARRIED)
            continue;
        const struct flat *of = &f->units.flats[flat];
        const uint64_t nbytes =
            gather_slot_nbytes(of) + (of->any_codes ? gather_aligned(by_hand_nbytes(of)) : 0);
        f->flats[flat].by_hand =
            fsdp_device_alloc(f->device, nbytes, "unit unsharded by hand", err);
        if (!f->flats[flat].by_hand)
            return FSDP_ENOMEM;
    }
    return FSDP_OK;
}

static void give_memory(struct fsdp *f, const struct unit *unit)
{
    for (int k = 0; k < UNIT_NFLATS; k++)
        if (unit->flats[k] >= 0) {
            fsdp_device_free(f->device, f->flats[unit->flats[k]].by_hand);
            f->flats[unit->flats[k]].by_hand = NULL;
        }
}

int fsdp_unshard(struct fsdp *f, int module, struct fsdp_err *err)
{
    FSDP_TRY(check_module(f->tree, module, err));
    FSDP_TRY(engine_between_steps(f, "fsdp_unshard", err));
    const struct unit *unit = &f->units.units[f->units.unit_of_module[module]];
    if (engine_is_by_hand(f, unit))
        return FSDP_OK;
    FSDP_TRY(fsdp_sync(f, err));
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = fsdp_oob_agree(f->mesh->oob, take_memory(f, unit, &why), &why);
    for (int k = 0; k < UNIT_NFLATS && !rc; k++)
        if (unit->flats[k] >= 0 && k != UNIT_CARRIED)
            rc = gather_by_hand(f, unit->flats[k], &why);
    if (!rc)
        rc = fsdp_sync(f, &why);
    if (!rc)
        return FSDP_OK;
    give_memory(f, unit);
    return fsdp_err_pass(err, rc, &why);
}

int fsdp_reshard(struct fsdp *f, int module, struct fsdp_err *err)
{
    FSDP_TRY(check_module(f->tree, module, err));
    FSDP_TRY(fsdp_sync(f, err)); /* the model may still read */
    give_memory(f, &f->units.units[f->units.unit_of_module[module]]);
    return FSDP_OK;
}

const void *fsdp_unsharded_param(const struct fsdp *f, int param)
{
    if (param < 0 || param >= f->units.nparams)
        return NULL;
    int k = f->units.flat_of_param[param];
    const struct flat *flat = &f->units.flats[k];
    uint64_t start = flat->cut.start[f->units.index_in_flat[param]];
    const char *whole = f->flats[k].by_hand;
    return whole ? whole + start * fsdp_dtype_nbytes(flat->param_dtype) : NULL;
}

void access_destroy(struct fsdp *f)
{
    for (int u = 0; f->flats && u < f->units.nunits; u++)
        give_memory(f, &f->units.units[u]);
}

/* ---- whole tensors --------------------------------------------------------------------------- */

enum { PIECE_NELEM = 1 << 20 };

struct summon {
    struct fsdp *f;
    const struct fsdp_full_opts *opts;
    bool mine; /* this rank gets the tensors */
    float *piece;
    float *value, *grad; /* [nelem of the largest tensor], where mine */
};

/* World rank of replica 0 that holds shard s. */
static int owner_of(const struct fsdp_mesh *mesh, int s)
{
    if (!mesh->inner_size)
        return s;
    return s % mesh->outer_size * mesh->inner_size + s / mesh->outer_size;
}

/* The tensor's box in shard s: where it lies in the tensor and in the shard. */
static uint64_t box_of(const struct flat *flat, int i, int s, uint64_t *in_tensor,
                       uint64_t *in_shard)
{
    struct fsdp_box box;
    uint64_t nelem = fsdp_cut_box(&box, in_shard, &flat->cut, flat->tensors, i, s);
    const struct fsdp_tensor *tensor = &flat->tensors[i];
    *in_tensor = tensor->ndim ? box.offset[0] * fsdp_tensor_row_nelem(tensor) : 0;
    return nelem;
}

/* Tensor i of flat k, its gradient or its master, out of all ranks' shards into whole (NULL: this
 * rank only passes it on). */
static int summon_tensor(struct summon *s, int k, int i, bool grad, float *whole,
                         struct fsdp_err *err)
{
    const struct flat *flat = &s->f->units.flats[k];
    const struct fsdp_mesh *mesh = s->f->mesh;
    struct fsdp_lane *lane = s->f->lanes[SCHED_COMPUTE];

    for (int shard = 0; shard < flat->cut.nranks; shard++) {
        uint64_t to, from, nelem = box_of(flat, i, shard, &to, &from);
        int root = owner_of(mesh, shard);
        for (uint64_t done = 0; done < nelem; done += PIECE_NELEM) {
            size_t count = nelem - done < PIECE_NELEM ? nelem - done : PIECE_NELEM;
            if (mesh->rank == root && grad)
                FSDP_TRY(fsdp_cast(lane, s->piece, FSDP_F32, grad_at(s->f, k, from + done),
                                   flat_grad_dtype(s->f, flat), count, err));
            else if (mesh->rank == root)
                FSDP_TRY(master_copy(s->f, k, from + done, s->piece, count, err));
            FSDP_TRY(fsdp_comm_broadcast(mesh->world, s->piece, count, FSDP_F32, root, lane, err));
            if (whole)
                FSDP_TRY(fsdp_copy(lane, whole + to + done, s->piece, count * 4, err));
        }
    }
    return fsdp_lane_sync(lane, err);
}

/* Through the device, where the shard is in another type. */
static int write_grad(struct summon *s, int k, uint64_t pos, const float *from, uint64_t nelem,
                      struct fsdp_err *err)
{
    const enum fsdp_dtype dtype = flat_grad_dtype(s->f, &s->f->units.flats[k]);
    struct fsdp_lane *lane = s->f->lanes[SCHED_COMPUTE];

    if (dtype == FSDP_F32)
        return fsdp_copy(lane, grad_at(s->f, k, pos), from, nelem * sizeof *from, err);
    for (uint64_t done = 0; done < nelem; done += PIECE_NELEM) {
        const size_t count = nelem - done < PIECE_NELEM ? nelem - done : PIECE_NELEM;
        FSDP_TRY(fsdp_copy(lane, s->piece, from + done, count * sizeof *from, err));
        FSDP_TRY(
            fsdp_cast(lane, grad_at(s->f, k, pos + done), dtype, s->piece, FSDP_F32, count, err));
    }
    return FSDP_OK;
}

/* This rank's box of the tensor back into its shard. */
static int write_back(struct summon *s, int k, int i, bool grad, const float *whole,
                      struct fsdp_err *err)
{
    const struct flat *flat = &s->f->units.flats[k];
    struct fsdp_lane *lane = s->f->lanes[SCHED_COMPUTE];
    uint64_t from, to, nelem = box_of(flat, i, flat_shard(s->f, flat), &from, &to);
    if (grad)
        FSDP_TRY(write_grad(s, k, to, whole + from, nelem, err));
    else
        FSDP_TRY(master_set(s->f, k, to, whole + from, nelem, err));
    return fsdp_lane_sync(lane, err);
}

/* *said: what fn said; the tensors after a failure are passed on, because others wait for them. */
static int summon_param(struct summon *s, int param, fsdp_full_param_f *fn, void *ctx, int *said,
                        struct fsdp_err *said_err, struct fsdp_err *err)
{
    int k = s->f->units.flat_of_param[param], i = s->f->units.index_in_flat[param];
    const struct flat *flat = &s->f->units.flats[k];
    bool with_grad = s->opts->with_grads && flat->trainable;
    struct fsdp_full_param full = {.param = param,
                                   .tensor = flat->tensors[i],
                                   .value = s->value,
                                   .grad = with_grad ? s->grad : NULL};

    full.tensor.dtype = FSDP_F32; /* as value, whatever the weights are kept in */
    FSDP_TRY(summon_tensor(s, k, i, false, s->value, err));
    if (with_grad)
        FSDP_TRY(summon_tensor(s, k, i, true, s->grad, err));
    if (!s->mine || *said)
        return FSDP_OK;
    *said = fn(ctx, &full, said_err);
    if (*said || !s->opts->writeback)
        return FSDP_OK;
    FSDP_TRY(snapshot_wait(s->f, err));
    FSDP_TRY(write_back(s, k, i, false, s->value, err));
    return with_grad ? write_back(s, k, i, true, s->grad, err) : FSDP_OK;
}

static bool is_wanted(const struct fsdp *f, const struct fsdp_full_opts *opts, int param)
{
    int module = f->tree->params[param].module;
    if (opts->param >= 0)
        return param == opts->param;
    if (!opts->recurse)
        return f->units.flats[f->units.flat_of_param[param]].unit ==
               f->units.unit_of_module[opts->module];
    while (module > opts->module)
        module = f->tree->modules[module].parent;
    return module == opts->module;
}

static int prepare_summon(struct summon *s, struct fsdp_err *err)
{
    uint64_t most = 1;

    if (s->opts->writeback)
        FSDP_TRY(snapshot_wait(s->f, err));
    for (int p = 0; p < s->f->units.nparams; p++) {
        uint64_t nelem = fsdp_tensor_nelem(&s->f->tree->params[p].tensor);
        if (is_wanted(s->f, s->opts, p) && nelem > most)
            most = nelem;
    }
    uint64_t piece = most < PIECE_NELEM ? most : PIECE_NELEM;
    s->piece = fsdp_device_alloc(s->f->device, piece * sizeof(float), "full parameters", err);
    if (!s->piece)
        return FSDP_ENOMEM;
    if (s->mine && !(s->value = fsdp_alloc(most, sizeof(float), "full parameters", err)))
        return FSDP_ENOMEM;
    if (s->mine && s->opts->with_grads &&
        !(s->grad = fsdp_alloc(most, sizeof(float), "full gradients", err)))
        return FSDP_ENOMEM;
    return FSDP_OK;
}

static int check_full_opts(const struct fsdp *f, const struct fsdp_full_opts *opts,
                           struct fsdp_err *err)
{
    if (opts->version != FSDP_FULL_OPTS_VERSION)
        return fsdp_err_set(err, FSDP_EINVAL, "fsdp_full_opts version %u, this library has %d",
                            opts->version, FSDP_FULL_OPTS_VERSION);
    if (opts->writeback && opts->rank0_only)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "fsdp_full_params: writeback with rank0_only: the other ranks would "
                            "have nothing to write; load a checkpoint, or give it to all");
    if (opts->param >= f->units.nparams)
        return fsdp_err_set(err, FSDP_EINVAL, "there is no parameter %d", opts->param);
    if (opts->writeback && f->optim.kind->gathered)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "fsdp_full_params: writeback with %s, whose state follows the weights: "
                            "load a checkpoint instead",
                            f->optim.kind->name);
    if (opts->with_grads && f->opts.update_at == FSDP_UPDATE_AT_REDUCE)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "fsdp_full_params: with fsdp.update_at reduce there are no gradients "
                            "after a step");
    if (opts->with_grads && opts->writeback && f->opts.offload_gradients)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "fsdp_full_params: writeback with gradients, whose norm is known: set "
                            "fsdp.offload_gradients false");
    FSDP_TRY(check_module(f->tree, opts->module, err));
    FSDP_TRY(engine_between_steps(f, "fsdp_full_params", err));
    return opts->writeback ? engine_check_resharded(f, "fsdp_full_params with writeback", err)
                           : FSDP_OK;
}

int fsdp_full_params(struct fsdp *f, const struct fsdp_full_opts *opts, fsdp_full_param_f *fn,
                     void *ctx, struct fsdp_err *err)
{
    struct summon s = {.f = f, .opts = opts, .mine = !opts->rank0_only || f->mesh->rank == 0};
    struct fsdp_err why = FSDP_ERR_INIT, said_err = FSDP_ERR_INIT;
    int said = FSDP_OK, rc;

    FSDP_TRY(check_full_opts(f, opts, err));
    FSDP_TRY(fsdp_sync(f, err));
    FSDP_TRY_GOTO(fsdp_oob_agree(f->mesh->oob, prepare_summon(&s, &why), &why), out);
    for (int p = 0; p < f->units.nparams && !rc; p++)
        if (is_wanted(f, opts, p))
            rc = summon_param(&s, p, fn, ctx, &said, &said_err, &why);
    if (!rc && said) {
        rc = said;
        why = said_err;
    }
    rc = fsdp_oob_agree(f->mesh->oob, rc, &why);
    if (opts->writeback && !rc)
        rc = state_masters_changed(f, &why);
out:
    fsdp_device_free(f->device, s.piece);
    fsdp_free(s.value);
    fsdp_free(s.grad);
    return fsdp_err_pass(err, rc, &why);
}
