/* SPDX-License-Identifier: Apache-2.0 */
#include "nf4.h"

#include <string.h>

#include "fsdp/sys/cpu.h"
#include "gather.h"
#include "nf4_encode.h"

struct nf4_tensor {
    int flat, tensor;
    uint64_t nblocks; /* of the whole tensor */
    float *scales;    /* on the device: the offset, then nf4_nsupers of them */
    /* On the host, of this rank's part. */
    float *values;   /* those that wait; NULL: none */
    uint64_t nbytes; /* written of them */
    float *absmax;   /* of each block, until scales are quantized; NULL: they are */
};

/* ---- the tensors ----------------------------------------------------------------------------- */

int nf4_plan(struct fsdp *f, struct fsdp_err *err)
{
    int n = 0;

    for (int k = 0; k < f->units.nflats; k++) {
        f->units.flats[k].first_nf4 = n;
        n += f->units.flats[k].nf4 ? f->units.flats[k].ntensors : 0;
    }
    f->nf4.tensors = fsdp_alloc((size_t)n, sizeof *f->nf4.tensors, "tensors in NF4", err);
    if (!f->nf4.tensors)
        return FSDP_ENOMEM;
    for (int k = 0; k < f->units.nflats; k++)
        for (int i = 0; f->units.flats[k].nf4 && i < f->units.flats[k].ntensors; i++)
            f->nf4.tensors[f->nf4.ntensors++] = (struct nf4_tensor){
                .flat = k,
                .tensor = i,
                .nblocks = nf4_nblocks(fsdp_tensor_nelem(&f->units.flats[k].tensors[i]))};
    return FSDP_OK;
}

void nf4_destroy(struct fsdp *f)
{
    for (int t = 0; t < f->nf4.ntensors; t++) {
        fsdp_free(f->nf4.tensors[t].values);
        fsdp_free(f->nf4.tensors[t].absmax);
    }
    fsdp_free(f->nf4.tensors);
}

static uint64_t scales_nelem(const struct nf4_tensor *t)
{
    return 1 + nf4_nsupers(t->nblocks);
}

uint64_t nf4_scales_nbytes(const struct fsdp *f)
{
    uint64_t nelem = 0;
    for (int t = 0; t < f->nf4.ntensors; t++)
        nelem += scales_nelem(&f->nf4.tensors[t]);
    return nelem * sizeof(float);
}

void nf4_place(struct fsdp *f, char *mem)
{
    float *at = (float *)mem;
    for (int t = 0; t < f->nf4.ntensors; t++) {
        f->nf4.tensors[t].scales = at;
        at = at ? at + scales_nelem(&f->nf4.tensors[t]) : NULL;
    }
}

static struct nf4_tensor *tensor_of(const struct fsdp *f, int flat, int tensor)
{
    return &f->nf4.tensors[f->units.flats[flat].first_nf4 + tensor];
}

static const char *name_of(const struct fsdp *f, const struct nf4_tensor *t)
{
    return f->units.flats[t->flat].tensors[t->tensor].name;
}

/* This rank's part of a tensor: [first, first + nelem) of it, from `pos` on in the shard. */
struct own {
    uint64_t pos, first, nelem;
};

static struct own own_part(const struct fsdp *f, const struct nf4_tensor *t)
{
    const struct flat *flat = &f->units.flats[t->flat];
    struct fsdp_box box;
    struct own own;

    own.nelem =
        fsdp_cut_box(&box, &own.pos, &flat->cut, flat->tensors, t->tensor, flat_shard(f, flat));
    own.first = box.offset[0] * fsdp_tensor_row_nelem(&flat->tensors[t->tensor]);
    return own;
}

/* The codes of a shard's elements from `pos` on, and those of their scales. */
static uint8_t *codes_at(const void *shard, uint64_t pos)
{
    return (uint8_t *)(uintptr_t)shard + pos / 2;
}

static uint8_t *scale_codes_at(const struct flat *flat, const void *shard, uint64_t pos)
{
    return (uint8_t *)(uintptr_t)shard + flat->cut.shard_nelem / 2 + pos / FSDP_NF4_BLOCK;
}

/* ---- reading --------------------------------------------------------------------------------- */

int nf4_decode(const struct fsdp *f, const struct nf4_part *part, struct fsdp_lane *lane,
               struct fsdp_err *err)
{
    const float *scales = f->nf4.tensors[part->flat->first_nf4 + part->tensor].scales;
    const struct fsdp_nf4_args args = {
        .dst = part->dst,
        .dst_dtype = part->dst_dtype,
        .codes = codes_at(part->shard, part->pos),
        .scale_codes = scale_codes_at(part->flat, part->shard, part->pos),
        .offset = scales,
        .scales = scales + 1,
        .first_block = part->first / FSDP_NF4_BLOCK,
        .nelem = part->nelem,
        .pieces = {.count = part->count,
                   .dst_step = part->nelem * fsdp_dtype_nbytes(part->dst_dtype),
                   .src_step = part->step}};
    return fsdp_nf4_decode(lane, &args, err);
}

/* Elements [at, at + nelem) of this rank's part, in fp32. */
static int decode_own(struct fsdp *f, const struct nf4_tensor *t, uint64_t at, float *x,
                      uint64_t nelem, struct fsdp_err *err)
{
    const struct own own = own_part(f, t);
    const struct nf4_part part = {.flat = &f->units.flats[t->flat],
                                  .tensor = t->tensor,
                                  .shard = f->flats[t->flat].param,
                                  .pos = own.pos + at,
                                  .first = own.first + at,
                                  .nelem = nelem,
                                  .dst = x,
                                  .dst_dtype = FSDP_F32};
    return nf4_decode(f, &part, f->lanes[SCHED_COMPUTE], err);
}

/* The tensor that has the shard's element at `pos`, and where that is in this rank's part of it. */
static struct nf4_tensor *find(const struct fsdp *f, int flat, uint64_t pos, uint64_t *at)
{
    for (int i = 0; i < f->units.flats[flat].ntensors; i++) {
        struct nf4_tensor *t = tensor_of(f, flat, i);
        const struct own own = own_part(f, t);
        *at = pos - own.pos;
        if (pos >= own.pos && *at < own.nelem)
            return t;
    }
    return NULL;
}

int nf4_get(struct fsdp *f, int flat, uint64_t pos, float *x, uint64_t nelem, struct fsdp_err *err)
{
    uint64_t at;
    const struct nf4_tensor *t = find(f, flat, pos, &at);
    return t ? decode_own(f, t, at, x, nelem, err) : FSDP_OK;
}

int nf4_read(const struct nf4_slice *slice, uint64_t pos, void *dst, size_t nbytes,
             struct fsdp_err *err)
{
    enum { PIECE = 1 << 16 };
    struct fsdp *f = slice->f;
    const struct nf4_tensor *t = tensor_of(f, slice->flat, slice->tensor);
    const uint64_t last = own_part(f, t).nelem;
    float *x = fsdp_alloc(PIECE, sizeof *x, "values in NF4", err);
    int rc = x ? FSDP_OK : FSDP_ENOMEM;

    for (uint64_t end = pos + nbytes; pos < end && !rc;) {
        const uint64_t at = pos / sizeof *x / FSDP_NF4_BLOCK * FSDP_NF4_BLOCK;
        const uint64_t nelem = last - at < PIECE ? last - at : PIECE;
        const uint64_t skip = pos - at * sizeof *x, most = nelem * sizeof *x - skip;
        const size_t here = end - pos < most ? end - pos : most;
        rc = decode_own(f, t, at, f->mem.joined, nelem, err);
        if (!rc)
            rc = fsdp_copy(f->lanes[SCHED_COMPUTE], x, f->mem.joined, nelem * sizeof *x, err);
        if (!rc)
            rc = fsdp_lane_sync(f->lanes[SCHED_COMPUTE], err);
        if (!rc)
            memcpy(dst, (const char *)x + skip, here);
        dst = (char *)dst + here;
        pos += here;
    }
    fsdp_free(x);
    return rc;
}

/* ---- writing --------------------------------------------------------------------------------- */

struct encoding {
    uint8_t *codes;
    float *absmax;
    const float *x;
    uint64_t nelem;
};

static void encode_blocks(void *arg, int worker, size_t from, size_t to)
{
    const struct encoding *e = arg;
    const uint64_t at = (uint64_t)from * FSDP_NF4_BLOCK, end = (uint64_t)to * FSDP_NF4_BLOCK;
    (void)worker;
    nf4_encode(e->codes + at / 2, e->absmax + from, e->x + at,
               (end < e->nelem ? end : e->nelem) - at);
}

/* All of this rank's part is there. */
static int encode_own(struct fsdp *f, struct nf4_tensor *t, struct fsdp_err *err)
{
    enum { GRAIN = 256 };
    const struct own own = own_part(f, t);
    const uint64_t nblocks = nf4_nblocks(own.nelem);
    struct encoding e = {.x = t->values, .nelem = own.nelem};
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    int rc = FSDP_ENOMEM;

    fsdp_free(t->absmax);
    t->absmax = e.absmax = fsdp_alloc(nblocks, sizeof *e.absmax, "scales of NF4", err);
    e.codes = fsdp_alloc((own.nelem + 1) / 2, 1, "codes of NF4", err);
    if (e.absmax && e.codes) {
        fsdp_cpu_for(nblocks, GRAIN, encode_blocks, &e);
        rc = fsdp_copy(lane, codes_at(f->flats[t->flat].param, own.pos), e.codes,
                       (own.nelem + 1) / 2, err);
        if (!rc)
            rc = fsdp_lane_sync(lane, err);
    }
    fsdp_free(e.codes);
    fsdp_free(t->values);
    t->values = NULL;
    t->nbytes = 0;
    return rc;
}

/* Where nbytes from `pos` on of this rank's part wait. */
static int wait_at(char **out, struct fsdp *f, struct nf4_tensor *t, uint64_t pos,
                   struct fsdp_err *err)
{
    if (!t->values)
        t->values = fsdp_alloc(own_part(f, t).nelem, sizeof *t->values, "values for NF4", err);
    *out = t->values ? (char *)t->values + pos : NULL;
    return t->values ? FSDP_OK : FSDP_ENOMEM;
}

static int note_written(struct fsdp *f, struct nf4_tensor *t, uint64_t nbytes, struct fsdp_err *err)
{
    t->nbytes += nbytes;
    return t->nbytes == own_part(f, t).nelem * sizeof *t->values ? encode_own(f, t, err) : FSDP_OK;
}

int nf4_write(const struct nf4_slice *slice, uint64_t pos, const void *src, size_t nbytes,
              struct fsdp_err *err)
{
    struct nf4_tensor *t = tensor_of(slice->f, slice->flat, slice->tensor);
    char *to;
    if (!nbytes)
        return FSDP_OK;
    FSDP_TRY(wait_at(&to, slice->f, t, pos, err));
    memcpy(to, src, nbytes);
    return note_written(slice->f, t, nbytes, err);
}

int nf4_put(struct fsdp *f, int flat, uint64_t pos, const float *x, uint64_t nelem,
            struct fsdp_err *err)
{
    uint64_t at;
    struct nf4_tensor *t = find(f, flat, pos, &at);
    char *to;
    if (!t || !nelem)
        return FSDP_OK;
    FSDP_TRY(wait_at(&to, f, t, at * sizeof *x, err));
    FSDP_TRY(fsdp_copy(f->lanes[SCHED_COMPUTE], to, x, nelem * sizeof *x, err));
    FSDP_TRY(fsdp_lane_sync(f->lanes[SCHED_COMPUTE], err));
    return note_written(f, t, nelem * sizeof *x, err);
}

/* ---- scales ---------------------------------------------------------------------------------- */

/* The absmax of all blocks of a tensor, in memory for the largest. */
struct settling {
    struct fsdp *f;
    float *device, *host;
};

/* Of all ranks of replica 0: the sum over all ranks brings every part to everyone. */
static int gather_absmax(const struct settling *s, const struct nf4_tensor *t, struct fsdp_err *err)
{
    struct fsdp *f = s->f;
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    const struct own own = own_part(f, t);

    FSDP_TRY(fsdp_zero(lane, s->device, t->nblocks * sizeof *s->device, err));
    if (t->absmax && f->mesh->replicate_rank == 0)
        FSDP_TRY(fsdp_copy(lane, s->device + own.first / FSDP_NF4_BLOCK, t->absmax,
                           nf4_nblocks(own.nelem) * sizeof *s->device, err));
    FSDP_TRY(fsdp_comm_all_reduce(f->mesh->world, s->device, s->device, t->nblocks, FSDP_F32, lane,
                                  err));
    FSDP_TRY(fsdp_copy(lane, s->host, s->device, t->nblocks * sizeof *s->host, err));
    return fsdp_lane_sync(lane, err);
}

/* Every rank finds the tensor's numbers and the codes of its own blocks. */
static int settle_tensor(const struct settling *s, struct nf4_tensor *t, struct fsdp_err *err)
{
    struct fsdp *f = s->f;
    const struct flat *flat = &f->units.flats[t->flat];
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    const struct own own = own_part(f, t);
    const uint64_t first = own.first / FSDP_NF4_BLOCK, nblocks = nf4_nblocks(own.nelem);

    FSDP_TRY(gather_absmax(s, t, err));
    float *scales = fsdp_alloc(scales_nelem(t), sizeof *scales, "scales of NF4", err);
    uint8_t *codes = fsdp_alloc(nblocks, 1, "scales of NF4", err);
    int rc = scales && codes ? FSDP_OK : FSDP_ENOMEM;
    if (!rc) {
        nf4_encode_tensor(scales + 1, scales, s->host, t->nblocks);
        nf4_encode_scales(codes, s->host + (nblocks ? first : 0), first, nblocks, scales + 1,
                          *scales);
        rc = fsdp_copy(lane, t->scales, scales, scales_nelem(t) * sizeof *scales, err);
    }
    if (!rc && nblocks)
        rc = fsdp_copy(lane, scale_codes_at(flat, f->flats[t->flat].param, own.pos), codes, nblocks,
                       err);
    if (!rc)
        rc = fsdp_lane_sync(lane, err);
    fsdp_free(scales);
    fsdp_free(codes);
    fsdp_free(t->absmax);
    t->absmax = NULL;
    return rc;
}

/* written[t]: some rank has values of it. Collective. */
static int agree_on_written(const struct fsdp *f, uint8_t *written, struct fsdp_err *err)
{
    const size_t n = (size_t)f->nf4.ntensors, nranks = (size_t)f->mesh->oob->size;
    uint8_t *all = fsdp_alloc(n * nranks, 1, "tensors in NF4", err);
    int rc = all ? FSDP_OK : FSDP_ENOMEM;

    for (size_t t = 0; t < n; t++) {
        const struct nf4_tensor *of = &f->nf4.tensors[t];
        written[t] = of->absmax != NULL;
        if (of->values && !rc)
            rc = fsdp_err_set(err, FSDP_EINVAL, "'%s' was written in part: NF4 needs all of it",
                              name_of(f, of));
    }
    rc = fsdp_oob_agree(f->mesh->oob, rc, err);
    if (!rc)
        rc = f->mesh->oob->allgather(f->mesh->oob, written, n, all, err);
    for (size_t i = 0; !rc && i < n * nranks; i++)
        written[i % n] |= all[i];
    fsdp_free(all);
    return rc;
}

static int settle(struct settling *s, const uint8_t *written, struct fsdp_err *err)
{
    struct fsdp *f = s->f;
    uint64_t most = 0;
    int rc = FSDP_OK;

    for (int t = 0; t < f->nf4.ntensors; t++)
        if (written[t] && f->nf4.tensors[t].nblocks > most)
            most = f->nf4.tensors[t].nblocks;
    if (!most)
        return FSDP_OK;
    s->device = fsdp_device_alloc(f->device, most * sizeof *s->device, "scales of NF4", err);
    s->host = fsdp_alloc(most, sizeof *s->host, "scales of NF4", err);
    FSDP_TRY(fsdp_oob_agree(f->mesh->oob, s->device && s->host ? FSDP_OK : FSDP_ENOMEM, err));
    for (int t = 0; t < f->nf4.ntensors && !rc; t++)
        if (written[t])
            rc = settle_tensor(s, &f->nf4.tensors[t], err);
    return rc;
}

int nf4_settle(struct fsdp *f, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    struct settling s = {.f = f};

    if (!f->nf4.ntensors)
        return FSDP_OK;
    uint8_t *written = fsdp_alloc((size_t)f->nf4.ntensors, 1, "tensors in NF4", &why);
    int rc = fsdp_oob_agree(f->mesh->oob, written ? FSDP_OK : FSDP_ENOMEM, &why);
    if (!rc)
        rc = agree_on_written(f, written, &why);
    if (!rc)
        rc = settle(&s, written, &why);
    fsdp_device_free(f->device, s.device);
    fsdp_free(s.host);
    fsdp_free(written);
    return rc ? fsdp_err_pass(err, rc, &why) : FSDP_OK;
}

int nf4_share(struct fsdp *f, struct fsdp_err *err)
{
    const uint64_t nelem = nf4_scales_nbytes(f) / sizeof(float);
    if (!nelem || f->mesh->size == 1)
        return FSDP_OK;
    return fsdp_comm_broadcast(f->mesh->world, f->nf4.tensors[0].scales, nelem, FSDP_F32, 0,
                               f->lanes[SCHED_COMPUTE], err);
}

/* ---- as bitsandbytes stores it --------------------------------------------------------------- */

/* Bytes of the device that a slice shows. */
struct raw {
    struct fsdp *f;
    char *data;
    uint64_t nbytes;
};

static int raw_copy(const struct raw *r, uint64_t pos, void *dst, const void *src, size_t nbytes,
                    struct fsdp_err *err)
{
    struct fsdp_lane *lane = r->f->lanes[SCHED_COMPUTE];
    if (pos > r->nbytes || nbytes > r->nbytes - pos)
        return fsdp_err_set(err, FSDP_EINVAL, "bytes %llu + %zu of a slice of %llu",
                            (unsigned long long)pos, nbytes, (unsigned long long)r->nbytes);
    FSDP_TRY(fsdp_copy(lane, dst, src, nbytes, err));
    return fsdp_lane_sync(lane, err);
}

static int raw_read(void *ctx, uint64_t pos, void *dst, size_t nbytes, struct fsdp_err *err)
{
    const struct raw *r = ctx;
    return raw_copy(r, pos, dst, r->data + pos, nbytes, err);
}

static int raw_write(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *err)
{
    const struct raw *r = ctx;
    return raw_copy(r, pos, r->data + pos, src, nbytes, err);
}

/* One of a tensor's three: rows [first, first + count) of `all`, each of one element. */
struct raw_slice {
    const char *suffix;
    enum fsdp_dtype dtype;
    int ndim;
    uint64_t all, first, count;
    void *data;
    bool whole; /* on every rank */
};

static int give_raw(struct fsdp *f, const struct nf4_tensor *t, const struct raw_slice *x,
                    fsdp_slice_f *fn, void *ctx, struct fsdp_err *err)
{
    struct raw raw = {f, x->data, x->count * fsdp_dtype_nbytes(x->dtype)};
    const struct fsdp_slice_io io = {.ctx = &raw, .read = raw_read, .write = raw_write};
    char *name = fsdp_sprintf(err, "%s%s", name_of(f, t), x->suffix);
    const struct fsdp_slice slice = {
        .tensor = {.name = name, .dtype = x->dtype, .ndim = x->ndim, .shape = {x->all, 1}},
        .box = {.offset = {x->first}, .length = {x->count, x->ndim > 1}},
        .replica = x->whole ? f->mesh->rank : f->mesh->replicate_rank,
        .nreplica = x->whole ? f->mesh->size : f->mesh->replicate_size};
    if (!name)
        return FSDP_ENOMEM;
    const int rc = fn(ctx, FSDP_SLICE_MODEL, &slice, &io, err);
    fsdp_free(name);
    return rc;
}

static int give_tensor(struct fsdp *f, const struct nf4_tensor *t, fsdp_slice_f *fn, void *ctx,
                       struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[t->flat];
    const void *shard = f->flats[t->flat].param;
    const struct own own = own_part(f, t);
    const uint64_t nelem = fsdp_tensor_nelem(&flat->tensors[t->tensor]);
    const struct raw_slice slices[] = {
        {"", FSDP_U8, 2, (nelem + 1) / 2, own.first / 2, (own.nelem + 1) / 2,
         codes_at(shard, own.pos), false},
        {".absmax", FSDP_U8, 1, t->nblocks, own.first / FSDP_NF4_BLOCK, nf4_nblocks(own.nelem),
         scale_codes_at(flat, shard, own.pos), false},
        {".nested_absmax", FSDP_F32, 1, nf4_nsupers(t->nblocks), 0, nf4_nsupers(t->nblocks),
         t->scales + 1, true},
    };
    for (int i = 0; i < 3; i++)
        FSDP_TRY(give_raw(f, t, &slices[i], fn, ctx, err));
    return FSDP_OK;
}

int fsdp_nf4_each(struct fsdp *f, fsdp_slice_f *fn, void *ctx, struct fsdp_err *err)
{
    for (int t = 0; t < f->nf4.ntensors; t++)
        FSDP_TRY(give_tensor(f, &f->nf4.tensors[t], fn, ctx, err));
    return FSDP_OK;
}

bool fsdp_param_is_nf4(const struct fsdp *f, int param)
{
    return param >= 0 && param < f->units.nparams &&
           f->units.flats[f->units.flat_of_param[param]].nf4;
}

int fsdp_nf4_set_offset(struct fsdp *f, int param, float offset, struct fsdp_err *err)
{
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    if (!fsdp_param_is_nf4(f, param))
        return fsdp_err_set(err, FSDP_EINVAL, "parameter %d is not held in NF4", param);
    const struct nf4_tensor *t =
        tensor_of(f, f->units.flat_of_param[param], f->units.index_in_flat[param]);
    FSDP_TRY(fsdp_copy(lane, t->scales, &offset, sizeof offset, err));
    return fsdp_lane_sync(lane, err);
}
