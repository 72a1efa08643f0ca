/* SPDX-License-Identifier: Apache-2.0 */
/* Initial values, and the state as slices. */
#include <stdio.h>
#include <string.h>

#include "gather.h"
#include "master.h"
#include "nf4.h"
#include "offload.h"
#include "offload_file.h"
#include "slots.h"
#include "state.h"

struct filling {
    struct fsdp *f;
    const struct param *param;
    uint64_t first; /* element of the tensor */
};

static int fill_piece(void *ctx, float *x, uint64_t at, uint64_t nelem, struct fsdp_err *err)
{
    const struct filling *p = ctx;
    const char *name = p->param->tensor.name;
    /* The stream follows the name, so that a model may reorder its parameters. */
    uint64_t stream = fsdp_hash(FSDP_HASH_SEED, name, strlen(name));
    return fsdp_init_fill(p->f->lanes[SCHED_COMPUTE], x, p->first + at, nelem, p->param->init,
                          p->f->opts.seed, stream, err);
}

static int init_flat(struct fsdp *f, int k, struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[k];

    for (int i = 0; i < flat->ntensors; i++) {
        const struct param *p = &f->tree->params[flat->params[i]];
        struct fsdp_box box;
        uint64_t pos,
            nelem = fsdp_cut_box(&box, &pos, &flat->cut, flat->tensors, i, flat_shard(f, flat));
        struct filling filling = {
            f, p, p->tensor.ndim ? box.offset[0] * fsdp_tensor_row_nelem(&p->tensor) : 0};
        const struct master_visit visit = {
            .pos = pos, .nelem = nelem, .writes = true, .fn = fill_piece, .ctx = &filling};
        FSDP_TRY(master_each(f, k, &visit, err));
    }
    return FSDP_OK;
}

int fsdp_init_params(struct fsdp *f, struct fsdp_err *err)
{
    for (int k = 0; k < f->units.nflats; k++)
        FSDP_TRY(init_flat(f, k, err));
    FSDP_TRY(nf4_settle(f, err));
    FSDP_TRY(master_state_begin(f, err));
    FSDP_TRY(gather_refresh(f, err));
    return fsdp_sync(f, err);
}

/* ---- slices ---------------------------------------------------------------------------------- */

struct slice_mem {
    const struct fsdp *f;
    struct fsdp_lane *lane;
    char *data;
    struct master_halves halves; /* param NULL: data is fp32, or what the slice says */
    struct nf4_slice nf4;        /* f NULL: it is not in NF4 */
    uint64_t nbytes;
    bool *written; /* set by a write; may be NULL */
};

static int check_range(const struct slice_mem *m, uint64_t pos, size_t nbytes, struct fsdp_err *err)
{
    if (pos <= m->nbytes && nbytes <= m->nbytes - pos)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL, "bytes %llu + %zu of a slice of %llu",
                        (unsigned long long)pos, nbytes, (unsigned long long)m->nbytes);
}

static int slice_read(void *ctx, uint64_t pos, void *dst, size_t nbytes, struct fsdp_err *err)
{
    struct slice_mem *m = ctx;
    FSDP_TRY(check_range(m, pos, nbytes, err));
    if (m->nf4.f)
        return nf4_read(&m->nf4, pos, dst, nbytes, err);
    if (m->halves.param)
        return master_read_halves(&m->halves, pos, dst, nbytes, err);
    FSDP_TRY(offload_copy_host(&m->f->offload, m->lane, dst, m->data + pos, nbytes, err));
    return fsdp_lane_sync(m->lane, err);
}

static const void *slice_at(void *ctx, uint64_t pos, size_t nbytes)
{
    const struct slice_mem *m = ctx;
    bool in_memory = fsdp_device_is_host(m->f->device) && !m->halves.param && !m->nf4.f &&
                     !offload_file_holds(m->f->offload.file, m->data);
    /* Whatever fails is reported by the read that follows. */
    if (!in_memory || check_range(m, pos, nbytes, NULL) || fsdp_lane_sync(m->lane, NULL))
        return NULL;
    return m->data + pos;
}

static int slice_write(void *ctx, uint64_t pos, const void *src, size_t nbytes,
                       struct fsdp_err *err)
{
    struct slice_mem *m = ctx;
    FSDP_TRY(check_range(m, pos, nbytes, err));
    if (m->written)
        *m->written = true;
    if (m->nf4.f)
        return nf4_write(&m->nf4, pos, src, nbytes, err);
    if (m->halves.param)
        return master_write_halves(&m->halves, pos, src, nbytes, err);
    FSDP_TRY(offload_copy_host(&m->f->offload, m->lane, m->data + pos, src, nbytes, err));
    return fsdp_lane_sync(m->lane, err);
}

/* The part's box, where it begins in this rank's memory of it, and its number of elements. */
static uint64_t part_box(struct fsdp_box *box, uint64_t *pos, const struct fsdp *f,
                         const struct state_slice *at)
{
    const struct flat *of = &f->units.flats[at->flat];
    struct fsdp_box whole;
    uint64_t nelem =
        fsdp_cut_box(&whole, pos, &of->cut, of->tensors, at->tensor, flat_shard(f, of));

    *box = whole;
    if (!at->part)
        return nelem;
    *pos = slots_pos(f, at->flat, at->tensor, at->part - 1);
    return fsdp_slot_box(box, &f->optim.slots[at->part - 1], &of->tensors[at->tensor], &whole,
                         nelem);
}

uint64_t state_slice_nelem(const struct fsdp *f, int flat, int tensor, int part)
{
    const struct state_slice at = {.flat = flat, .tensor = tensor, .part = part};
    struct fsdp_box box;
    uint64_t pos;
    return part && !slots_has(f, flat, tensor, part - 1) ? 0 : part_box(&box, &pos, f, &at);
}

static int visit_slice(struct fsdp *f, struct state_slice *at, const char *name,
                       state_visit_f *visit, void *ctx, fsdp_slice_f *fn, void *fn_ctx,
                       struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[at->flat];
    const struct fsdp_tensor *tensor = &flat->tensors[at->tensor];
    const struct fsdp_slot *slot = at->part ? &f->optim.slots[at->part - 1] : NULL;
    bool whole = flat->whole || (slot && fsdp_slot_is_shared(slot, tensor));
    at->slice = (struct fsdp_slice){.tensor = slot ? fsdp_slot_tensor(slot, tensor) : *tensor,
                                    .replica = whole ? f->mesh->rank : f->mesh->replicate_rank,
                                    .nreplica = whole ? f->mesh->size : f->mesh->replicate_size};
    at->nelem = part_box(&at->slice.box, &at->pos, f, at);
    if (!at->nelem && !at->slice.tensor.ndim)
        return FSDP_OK; /* a scalar has no empty box: only its owner gives it */
    at->slice.tensor.name = name;
    return visit(ctx, at, fn, fn_ctx, err);
}

int state_visit(struct fsdp *f, state_visit_f *visit, void *ctx, fsdp_slice_f *fn, void *fn_ctx,
                struct fsdp_err *err)
{
    for (int k = 0; k < f->units.nflats; k++) {
        const struct flat *flat = &f->units.flats[k];
        for (int i = 0; i < flat->ntensors; i++) {
            struct state_slice at = {.flat = k, .tensor = i, .kind = FSDP_SLICE_MODEL};
            FSDP_TRY(visit_slice(f, &at, flat->tensors[i].name, visit, ctx, fn, fn_ctx, err));
            for (int o = 0; o < f->optim.nslots; o++) {
                if (!slots_has(f, k, i, o))
                    continue;
                char *name =
                    fsdp_sprintf(err, "state.%s.%s", flat->tensors[i].name, f->optim.slots[o].name);
                if (!name)
                    return FSDP_ENOMEM;
                at = (struct state_slice){
                    .flat = k, .tensor = i, .part = o + 1, .kind = FSDP_SLICE_OPTIM};
                int rc = visit_slice(f, &at, name, visit, ctx, fn, fn_ctx, err);
                fsdp_free(name);
                if (rc)
                    return rc;
            }
        }
    }
    return FSDP_OK;
}

/* Where a write to a slot is noted; NULL for those that begin as zeros. */
static bool *written_mark(struct fsdp *f, const struct state_slice *at)
{
    int o = at->part - 1;
    if (!f->optim.from_weights[o])
        return NULL;
    return &f->optim.written[o * f->units.nparams + f->units.flats[at->flat].params[at->tensor]];
}

static int visit_live(void *ctx, const struct state_slice *at, fsdp_slice_f *fn, void *fn_ctx,
                      struct fsdp_err *err)
{
    struct fsdp *f = ctx;
    struct flat_state *state = &f->flats[at->flat];
    struct slice_mem mem = {.f = f,
                            .lane = f->lanes[SCHED_COMPUTE],
                            .nbytes = at->nelem * fsdp_dtype_nbytes(at->slice.tensor.dtype)};
    if (at->part) {
        mem.data = state_at(&f->optim, state, at->part - 1, at->pos);
        mem.written = written_mark(f, at);
    } else if (f->units.flats[at->flat].nf4) {
        mem.nf4 = (struct nf4_slice){f, at->flat, at->tensor};
    } else if (state->master) {
        mem.data = (char *)(state->master + at->pos);
    } else if (flat_is_bf16_alone(f, &f->units.flats[at->flat])) {
        mem.data = (char *)((uint16_t *)state->param + at->pos);
    } else {
        mem.data = (char *)((uint16_t *)state->param + at->pos);
        mem.halves = (struct master_halves){.offload = &f->offload,
                                            .param = mem.data,
                                            .rest = state->rest ? state->rest + at->pos : NULL,
                                            .dtype = f->units.flats[at->flat].param_dtype,
                                            .lane = mem.lane};
    }
    struct fsdp_slice_io io = {
        .ctx = &mem, .read = slice_read, .write = slice_write, .at = slice_at};

    return fn(fn_ctx, at->kind, &at->slice, &io, err);
}

int fsdp_state_each(struct fsdp *f, fsdp_slice_f *fn, void *ctx, struct fsdp_err *err)
{
    return state_visit(f, visit_live, f, fn, ctx, err);
}

/* Those who hold the same values of a flat. */
static struct fsdp_comm *replicas(const struct fsdp *f, int k)
{
    return f->units.flats[k].whole ? f->mesh->world : f->mesh->replicate;
}

static int broadcast_part(struct fsdp *f, int k, void *data, uint64_t nelem, enum fsdp_dtype dtype,
                          struct fsdp_err *err)
{
    if (!nelem)
        return FSDP_OK;
    return fsdp_comm_broadcast(replicas(f, k), data, nelem, dtype, 0, f->lanes[SCHED_COMPUTE], err);
}

/* Replica 0's values to the others. */
static int broadcast_flat(struct fsdp *f, int k, bool optim, struct fsdp_err *err)
{
    struct flat_state s;
    if (fsdp_comm_size(replicas(f, k)) == 1)
        return FSDP_OK;
    FSDP_TRY(offload_begin(&s, f, k, err));
    for (int o = 0; optim && f->units.flats[k].trainable && o < f->optim.nslots; o++)
        FSDP_TRY(
            broadcast_part(f, k, s.optim[o], slots_nelem(f, k, o), f->optim.slots[o].dtype, err));
    uint64_t nelem = f->units.flats[k].cut.shard_nelem;
    if (f->units.flats[k].nf4) {
        FSDP_TRY(
            broadcast_part(f, k, s.param, gather_shard_nbytes(&f->units.flats[k]), FSDP_U8, err));
    } else if (s.master) {
        FSDP_TRY(broadcast_part(f, k, s.master, nelem, FSDP_F32, err));
    } else {
        FSDP_TRY(broadcast_part(f, k, s.param, nelem, f->units.flats[k].param_dtype, err));
        if (s.rest) /* 16 bits, whatever they mean */
            FSDP_TRY(broadcast_part(f, k, s.rest, nelem, FSDP_BF16, err));
    }
    return offload_end(f, k, err);
}

/* Rank 0's values of a slot that every rank has to the others. */
static int broadcast_shared(struct fsdp *f, int k, int o, struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[k];
    struct flat_state s;
    FSDP_TRY(offload_begin(&s, f, k, err));
    for (int i = 0; i < flat->ntensors; i++)
        if (slots_has(f, k, i, o) && fsdp_slot_is_shared(&f->optim.slots[o], &flat->tensors[i]))
            FSDP_TRY(fsdp_comm_broadcast(f->mesh->world,
                                         state_at(&f->optim, &s, o, slots_pos(f, k, i, o)),
                                         state_slice_nelem(f, k, i, o + 1), f->optim.slots[o].dtype,
                                         0, f->lanes[SCHED_COMPUTE], err));
    return offload_end(f, k, err);
}

static int broadcast_all_shared(struct fsdp *f, struct fsdp_err *err)
{
    for (int o = 0; o < f->optim.nslots; o++)
        for (int k = 0; f->optim.slots[o].kind == FSDP_PER_COLUMN && k < f->units.nflats; k++)
            if (f->units.flats[k].trainable)
                FSDP_TRY(broadcast_shared(f, k, o, err));
    return FSDP_OK;
}

static int state_changed(struct fsdp *f, bool optim, struct fsdp_err *err)
{
    FSDP_TRY(nf4_settle(f, err));
    for (int k = 0; k < f->units.nflats; k++)
        FSDP_TRY(broadcast_flat(f, k, optim, err));
    FSDP_TRY(nf4_share(f, err));
    if (optim && f->mesh->size > 1)
        FSDP_TRY(broadcast_all_shared(f, err));
    FSDP_TRY(gather_refresh(f, err));
    return fsdp_sync(f, err);
}

int state_masters_changed(struct fsdp *f, struct fsdp_err *err)
{
    return state_changed(f, false, err);
}

int fsdp_state_loaded(struct fsdp *f, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_sync(f, err));
    FSDP_TRY(master_state_begin(f, err));
    memset(f->optim.written, 0, MAX_SLOTS * (size_t)f->units.nparams);
    return state_changed(f, true, err);
}

const struct fsdp_state_layout *fsdp_state_layout(const struct fsdp *f)
{
    return &f->layout;
}

int state_layout_create(struct fsdp *f, struct fsdp_err *err)
{
    f->flat_descs = fsdp_alloc((size_t)f->units.nflats, sizeof *f->flat_descs, "state layout", err);
    f->flat_slots =
        fsdp_alloc((size_t)f->units.nparams, sizeof *f->flat_slots, "state layout", err);
    if (!f->flat_descs || !f->flat_slots)
        return FSDP_ENOMEM;
    uint32_t *slots = f->flat_slots;
    for (int k = 0; k < f->units.nflats; k++) {
        const struct flat *flat = &f->units.flats[k];
        for (int i = 0; i < flat->ntensors; i++)
            slots[i] = f->optim.kept[flat->params[i]];
        f->flat_descs[k] = (struct fsdp_flat_desc){
            .unit = f->tree->modules[f->units.units[flat->unit].module].name,
            .trainable = flat->trainable,
            .ntensors = flat->ntensors,
            .tensors = flat->tensors,
            .slots = slots};
        slots += flat->ntensors;
    }
    f->layout = (struct fsdp_state_layout){.shard_size = f->mesh->shard_size,
                                           .replicate_size = f->mesh->replicate_size,
                                           .inner_size = f->mesh->inner_size,
                                           .nflats = f->units.nflats,
                                           .flats = f->flat_descs,
                                           .nslots = f->optim.nslots,
                                           .slots = f->optim.slots};
    return FSDP_OK;
}
