/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Comparing two checkpoints by tensor, whatever their formats and sharding. Equal fingerprints of
 * equal types settle a tensor without reading it; else both are streamed in the same blocks.
 */
#include <math.h>
#include <string.h>

#include "util/convert.h"
#include "side.h"
#include "util/workers.h"
#include "source/format_ops.h"

struct differ {
    struct ckpt_diff_side a, b;
    const struct ckpt_diff_args *args;
    int ntensors;
    struct ckpt_diff_tensor *tensors;
    size_t block_nbytes;
    atomic_int next;
};

/* One thread's buffers: a block of each, as stored and as compared. */
struct buffers {
    char *a, *b, *scratch, *as, *bs;
};

/* ---- which tensors --------------------------------------------------------------------------- */

static bool wanted(const struct differ *d, const struct ckpt_tensor *t)
{
    return (t->kind == FSDP_SLICE_MODEL || !d->args->model) &&
           ckpt_select_matches(&d->args->select, t->tensor.name);
}

static bool same_shape(const struct fsdp_tensor *a, const struct fsdp_tensor *b)
{
    return a->ndim == b->ndim && !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape);
}

/* What is known without reading data. */
static enum ckpt_diff_result judge_tensors(const struct differ *d, const struct ckpt_tensor *a,
                                           const struct ckpt_tensor *b)
{
    if (!same_shape(&a->tensor, &b->tensor))
        return CKPT_DIFF_SHAPE;
    if (a->tensor.dtype != b->tensor.dtype)
        return d->args->any_dtype && ckpt_convert_can(a->tensor.dtype, b->tensor.dtype)
                   ? CKPT_DIFF_UNREAD
                   : CKPT_DIFF_DTYPE;
    if (!d->args->data && a->has_fingerprint && b->has_fingerprint &&
        a->fingerprint == b->fingerprint)
        return CKPT_DIFF_SAME_FINGERPRINT;
    return CKPT_DIFF_UNREAD;
}

/* torch keeps the step next to every parameter, as `state.<parameter>.step`; a checkpoint of ours
 * says it once. Does this tensor, which `other` lacks, say what `other` says? */
static bool is_step_of(const struct ckpt_diff_side *side, int tensor, const struct ckpt *other)
{
    const struct ckpt_tensor *t = &side->tensors[tensor];
    const char *dot = strrchr(t->tensor.name, '.');
    int64_t step;
    return other->format->has_manifest && t->kind == FSDP_SLICE_OPTIM && dot &&
           !strcmp(dot, ".step") && fsdp_tensor_nelem(&t->tensor) == 1 &&
           ckpt_scalar_read(&step, side->ckpt,
                            side->job.parts[side->job.tensors[tensor].first_part].tensor,
                            NULL) == FSDP_OK &&
           step == ckpt_step(other);
}

static void list_pair(struct differ *d, const char *name, int a, int b)
{
    struct ckpt_diff_tensor *out = &d->tensors[d->ntensors++];
    *out = (struct ckpt_diff_tensor){
        .name = name, .a = a < 0 ? NULL : &d->a.tensors[a], .b = b < 0 ? NULL : &d->b.tensors[b]};
    if (out->a && out->b)
        out->result = judge_tensors(d, out->a, out->b);
    else if (out->a)
        out->result = is_step_of(&d->a, a, d->b.ckpt) ? CKPT_DIFF_SAME : CKPT_DIFF_ONLY_A;
    else
        out->result = is_step_of(&d->b, b, d->a.ckpt) ? CKPT_DIFF_SAME : CKPT_DIFF_ONLY_B;
}

static int list_tensors(struct differ *d, struct fsdp_err *err)
{
    int na = d->a.job.ntensors, nb = d->b.job.ntensors;
    d->tensors = fsdp_alloc((size_t)na + (size_t)nb, sizeof *d->tensors, "differences", err);
    if (!d->tensors)
        return FSDP_ENOMEM;
    for (int i = 0; i < na; i++)
        if (wanted(d, &d->a.tensors[i]))
            list_pair(d, d->a.tensors[i].tensor.name, i,
                      ckpt_diff_side_find(&d->b, d->a.tensors[i].tensor.name));
    for (int i = 0; i < nb; i++) {
        const char *name = d->b.tensors[i].tensor.name;
        int at = ckpt_diff_side_find(&d->a, name);
        /* What a has under another name, tied to this one, is not yet compared with it. */
        if (wanted(d, &d->b.tensors[i]) && (at < 0 || strcmp(d->a.tensors[at].tensor.name, name)))
            list_pair(d, name, at, i);
    }
    return FSDP_OK;
}

/* ---- elements -------------------------------------------------------------------------------- */

/* Both are compared as this type: the narrower one; of two narrow ones neither holds the other. */
static enum fsdp_dtype common_dtype(enum fsdp_dtype a, enum fsdp_dtype b)
{
    size_t na = fsdp_dtype_nbytes(a), nb = fsdp_dtype_nbytes(b);
    if (a == b || na < nb)
        return a;
    return nb < na ? b : FSDP_F32;
}

/* The bits of a floating number as an integer in the order of the numbers: neighbours differ by 1,
 * and both zeros are 0. */
static int64_t rank_of(const void *at, size_t nbytes)
{
    uint64_t bits = 0;
    memcpy(&bits, at, nbytes); /* little-endian */
    uint64_t sign = UINT64_C(1) << (8 * nbytes - 1);
    return bits & sign ? -(int64_t)(bits & (sign - 1)) : (int64_t)bits;
}

static double value_of(const void *at, enum fsdp_dtype dtype)
{
    double wide;
    float narrow;
    int64_t rank;
    if (dtype == FSDP_F64) {
        memcpy(&wide, at, sizeof wide);
        return wide;
    }
    if (fsdp_dtype_is_float(dtype)) {
        ckpt_convert(&narrow, FSDP_F32, at, dtype, 1);
        return (double)narrow;
    }
    if (dtype == FSDP_F8_E8M0) {
        uint8_t exponent = *(const uint8_t *)at;
        return exponent == 0xff ? NAN : ldexp(1, exponent - 127);
    }
    bool is_signed =
        dtype == FSDP_I8 || dtype == FSDP_I16 || dtype == FSDP_I32 || dtype == FSDP_I64;
    size_t nbytes = fsdp_dtype_nbytes(dtype);
    uint64_t bits = 0;
    memcpy(&bits, at, nbytes);
    if (!is_signed)
        return (double)bits;
    rank = (int64_t)(bits << (64 - 8 * nbytes)) >> (64 - 8 * nbytes);
    return (double)rank;
}

/* |a - b|; NaN where either is no number. */
static double distance(const void *a, const void *b, enum fsdp_dtype dtype)
{
    if (dtype != FSDP_C64)
        return fabs(value_of(a, dtype) - value_of(b, dtype));
    const char *x = a, *y = b;
    return hypot(value_of(x, FSDP_F32) - value_of(y, FSDP_F32),
                 value_of(x + 4, FSDP_F32) - value_of(y + 4, FSDP_F32));
}

static double magnitude(const void *at, enum fsdp_dtype dtype)
{
    if (dtype != FSDP_C64)
        return fabs(value_of(at, dtype));
    return hypot(value_of(at, FSDP_F32), value_of((const char *)at + 4, FSDP_F32));
}

/* Elements whose bytes differ. */
static void compare_element(struct ckpt_diff_tensor *t, const struct ckpt_diff_args *args,
                            const void *a, const void *b, enum fsdp_dtype dtype, uint64_t index)
{
    bool is_float = fsdp_dtype_is_float(dtype);
    size_t nbytes = fsdp_dtype_nbytes(dtype);
    bool is_number = is_float || dtype == FSDP_C64 || dtype == FSDP_F8_E8M0;
    double x = magnitude(a, dtype), y = magnitude(b, dtype), abs = distance(a, b, dtype);
    uint64_t ulp = 0;
    if (isnan(x) && isnan(y))
        return;
    if (abs == 0 && is_number) /* the two zeros */
        return;
    if (isnan(abs))
        abs = INFINITY;
    if (!is_number && abs < 1) /* beyond what a double can tell apart */
        abs = 1;
    if (is_float) {
        int64_t ra = rank_of(a, nbytes), rb = rank_of(b, nbytes);
        ulp = ra > rb ? (uint64_t)ra - (uint64_t)rb : (uint64_t)rb - (uint64_t)ra;
        t->max_ulp = isfinite(abs) && ulp > t->max_ulp ? ulp : t->max_ulp;
    }
    t->max_abs = abs > t->max_abs ? abs : t->max_abs;
    bool near = abs <= args->atol + args->rtol * y || (is_float && ulp && ulp <= args->ulp);
    if (near && isfinite(abs)) {
        t->nnear++;
        return;
    }
    if (!t->ndiffer++)
        t->first = index;
}

static void compare_block(struct ckpt_diff_tensor *t, const struct ckpt_diff_args *args,
                          const char *a, const char *b, enum fsdp_dtype dtype, uint64_t pos,
                          uint64_t nelem)
{
    enum { STEP = 1024 }; /* most are equal: found so in larger steps */
    size_t nbytes = fsdp_dtype_nbytes(dtype);
    for (uint64_t i = 0; i < nelem; i += STEP) {
        uint64_t part = nelem - i < STEP ? nelem - i : STEP;
        if (!memcmp(a + i * nbytes, b + i * nbytes, part * nbytes))
            continue;
        for (uint64_t k = i; k < i + part; k++)
            if (memcmp(a + k * nbytes, b + k * nbytes, nbytes))
                compare_element(t, args, a + k * nbytes, b + k * nbytes, dtype, pos + k);
    }
}

/* ---- streaming ------------------------------------------------------------------------------- */

/* A box of both tensors, to be compared in one type. */
struct block {
    struct fsdp_box box;
    uint64_t nelem;
    enum fsdp_dtype dtype;
    void *scratch;
    size_t scratch_nbytes;
};

/* One side's elements: *out is data, or converted where they have another type. */
static int read_as(const void **out, const struct ckpt_diff_side *side,
                   const struct ckpt_tensor *tensor, const struct block *block, char *data,
                   char *converted, struct fsdp_err *err)
{
    const enum fsdp_dtype stored = tensor->tensor.dtype;
    FSDP_TRY(ckpt_diff_side_read(side, (int)(tensor - side->tensors), &block->box, data,
                                 block->scratch, block->scratch_nbytes, err));
    *out = data;
    if (stored != block->dtype) {
        ckpt_convert(converted, block->dtype, data, stored, block->nelem);
        *out = converted;
    }
    return FSDP_OK;
}

static int compare_tensor(struct differ *d, struct ckpt_diff_tensor *t, struct buffers *buffers,
                          struct fsdp_err *err)
{
    const struct fsdp_tensor *tensor = &t->a->tensor;
    struct block block = {.dtype = common_dtype(tensor->dtype, t->b->tensor.dtype),
                          .scratch = buffers->scratch,
                          .scratch_nbytes = d->block_nbytes};
    const uint64_t total = fsdp_tensor_nelem(tensor), nrows = tensor->ndim ? tensor->shape[0] : 1;
    const void *a, *b;

    for (uint64_t at = 0; at < total; at += block.nelem) {
        block.nelem = ckpt_box_run(&block.box, tensor, 0, nrows, at, d->block_nbytes / 8);
        FSDP_TRY(read_as(&a, &d->a, t->a, &block, buffers->a, buffers->as, err));
        FSDP_TRY(read_as(&b, &d->b, t->b, &block, buffers->b, buffers->bs, err));
        compare_block(t, d->args, a, b, block.dtype, at, block.nelem);
    }
    t->result = t->ndiffer ? CKPT_DIFF_DATA : t->nnear ? CKPT_DIFF_NEAR : CKPT_DIFF_SAME;
    return FSDP_OK;
}

static int diff_worker(struct ckpt_workers *workers, int index, struct fsdp_err *err)
{
    struct differ *d = workers->ctx;
    struct buffers buffers = {NULL, NULL, NULL, NULL, NULL};
    char *all = fsdp_alloc(5, d->block_nbytes, "comparison buffers", err);
    int rc = all ? FSDP_OK : FSDP_ENOMEM;
    (void)index;
    if (all)
        buffers = (struct buffers){all, all + d->block_nbytes, all + 2 * d->block_nbytes,
                                   all + 3 * d->block_nbytes, all + 4 * d->block_nbytes};
    while (rc == FSDP_OK && !ckpt_workers_stopped(workers)) {
        int i = atomic_fetch_add(&d->next, 1);
        if (i >= d->ntensors)
            break;
        if (d->tensors[i].result == CKPT_DIFF_UNREAD)
            rc = compare_tensor(d, &d->tensors[i], &buffers, err);
    }
    fsdp_free(all);
    return rc;
}

/* Five buffers a thread within the budget. */
static int fit_memory(struct differ *d, int *nworkers, struct fsdp_err *err)
{
    uint64_t mem = d->args->mem_nbytes;
    bool far = ckpt_is_far(d->a.ckpt) || ckpt_is_far(d->b.ckpt);
    *nworkers = d->args->nthreads ? d->args->nthreads : far ? 8 : ckpt_workers_default(8);
    if (*nworkers > CKPT_MAX_WORKERS)
        *nworkers = CKPT_MAX_WORKERS;
    FSDP_TRY(ckpt_mem_check(mem, 5 * CKPT_MIN_BLOCK_NBYTES, err));
    d->block_nbytes = CKPT_JOB_BLOCK_NBYTES;
    while (*nworkers > 1 && (uint64_t)*nworkers * 5 * d->block_nbytes > mem)
        --*nworkers;
    while (5 * d->block_nbytes > mem)
        d->block_nbytes /= 2;
    return FSDP_OK;
}

int ckpt_diff(bool *same, struct ckpt *a, struct ckpt *b, const struct ckpt_diff_args *args,
              ckpt_diff_f *report, void *ctx, struct fsdp_err *err)
{
    struct differ d = {.a.ckpt = a, .b.ckpt = b, .args = args};
    int nworkers = 0, rc;

    if (args->version != CKPT_DIFF_ARGS_VERSION)
        return fsdp_err_set(err, FSDP_EINVAL, "ckpt_diff: arguments of version %u", args->version);
    ckpt_warn_unread(a);
    ckpt_warn_unread(b);
    rc = fit_memory(&d, &nworkers, err);
    if (rc == FSDP_OK)
        rc = ckpt_diff_side_create(&d.a, a, b, &args->select, err);
    if (rc == FSDP_OK)
        rc = ckpt_diff_side_create(&d.b, b, a, &args->select, err);
    if (rc == FSDP_OK)
        rc = list_tensors(&d, err);
    if (rc == FSDP_OK)
        rc = ckpt_workers_run(nworkers, diff_worker, &d, err);
    if (rc == FSDP_OK)
        rc = ckpt_unchanged(a, err);
    if (rc == FSDP_OK)
        rc = ckpt_unchanged(b, err);
    *same = rc == FSDP_OK;
    for (int i = 0; rc == FSDP_OK && i < d.ntensors; i++) {
        *same &= d.tensors[i].result <= CKPT_DIFF_NEAR;
        report(ctx, &d.tensors[i]);
    }
    if (rc == FSDP_OK && !d.ntensors)
        rc = fsdp_err_set(err, FSDP_EINVAL,
                          "neither '%s' nor '%s' holds a tensor that was asked for", a->path,
                          b->path);
    fsdp_free(d.tensors);
    ckpt_diff_side_destroy(&d.a);
    ckpt_diff_side_destroy(&d.b);
    return rc;
}
