/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's arithmetic on the CPU. Loops are written for the vectoriser. */
#include <string.h>

#include "cpu.h"
#include "device/common/formula.h"
#include "fsdp/sys/cpu.h"

struct copy_arg {
    void *dst;
    const void *src;
    size_t nbytes;
};

static int copy_run(void *arg, struct fsdp_err *err)
{
    struct copy_arg *a = arg;
    (void)err;
    memmove(a->dst, a->src, a->nbytes);
    return FSDP_OK;
}

int device_cpu_copy(void *lane, void *dst, const void *src, size_t nbytes, struct fsdp_err *err)
{
    struct copy_arg arg = {dst, src, nbytes};
    return device_cpu_lane_call(lane, copy_run, &arg, sizeof arg, err);
}

struct pieces_arg {
    char *dst;
    const char *src;
    size_t nbytes;
    struct fsdp_pieces pieces;
};

static int pieces_run(void *arg, struct fsdp_err *err)
{
    const struct pieces_arg *a = arg;
    (void)err;
    for (size_t i = 0; i < a->pieces.count; i++)
        memcpy(a->dst + i * a->pieces.dst_step, a->src + i * a->pieces.src_step, a->nbytes);
    return FSDP_OK;
}

int device_cpu_copy_pieces(void *lane, void *dst, const void *src, size_t nbytes,
                           const struct fsdp_pieces *pieces, struct fsdp_err *err)
{
    struct pieces_arg arg = {dst, src, nbytes, *pieces};
    return device_cpu_lane_call(lane, pieces_run, &arg, sizeof arg, err);
}

static int zero_run(void *arg, struct fsdp_err *err)
{
    struct copy_arg *a = arg;
    (void)err;
    memset(a->dst, 0, a->nbytes);
    return FSDP_OK;
}

int device_cpu_zero(void *lane, void *dst, size_t nbytes, struct fsdp_err *err)
{
    struct copy_arg arg = {dst, NULL, nbytes};
    return device_cpu_lane_call(lane, zero_run, &arg, sizeof arg, err);
}

/* ---- casts ----------------------------------------------------------------------------------- */

struct cast_arg {
    void *dst;
    const void *src;
    enum fsdp_dtype dst_dtype, src_dtype;
    size_t nelem;
};

static int cast_run(void *arg, struct fsdp_err *err)
{
    struct cast_arg *a = arg;
    (void)err;
    fsdp_cpu_convert(a->dst, a->dst_dtype, a->src, a->src_dtype, a->nelem);
    return FSDP_OK;
}

int device_cpu_cast(void *lane, void *dst, enum fsdp_dtype dst_dtype, const void *src,
                    enum fsdp_dtype src_dtype, size_t nelem, struct fsdp_err *err)
{
    struct cast_arg arg = {dst, src, dst_dtype, src_dtype, nelem};
    return device_cpu_lane_call(lane, cast_run, &arg, sizeof arg, err);
}

FSDP_CPU_CLONES static void add(float *restrict dst, const float *restrict src, size_t nelem)
{
    for (size_t i = 0; i < nelem; i++)
        dst[i] += src[i];
}

static void accumulate_part(void *arg, int worker, size_t from, size_t to)
{
    enum { PIECE = 1024 };
    const struct cast_arg *a = arg;
    const bool narrow = a->dst_dtype != FSDP_F32;
    float *dst = a->dst, piece[PIECE], sum[PIECE];
    (void)worker;
    if (a->src_dtype == FSDP_F32 && !narrow) {
        add(dst + from, (const float *)a->src + from, to - from);
        return;
    }
    for (size_t at = from; at < to; at += PIECE) {
        size_t nelem = to - at < PIECE ? to - at : PIECE;
        const char *src = (const char *)a->src + at * fsdp_dtype_nbytes(a->src_dtype);
        char *there = (char *)a->dst + at * fsdp_dtype_nbytes(a->dst_dtype);
        fsdp_cpu_convert(piece, FSDP_F32, src, a->src_dtype, nelem);
        if (narrow)
            fsdp_cpu_convert(sum, FSDP_F32, there, a->dst_dtype, nelem);
        add(narrow ? sum : dst + at, piece, nelem);
        if (narrow)
            fsdp_cpu_convert(there, a->dst_dtype, sum, FSDP_F32, nelem);
    }
}

static int accumulate_run(void *arg, struct fsdp_err *err)
{
    struct cast_arg *a = arg;
    (void)err;
    fsdp_cpu_for(a->nelem, DEVICE_CPU_GRAIN, accumulate_part, a);
    return FSDP_OK;
}

int device_cpu_accumulate(void *lane, void *dst, enum fsdp_dtype dst_dtype, const void *src,
                          enum fsdp_dtype src_dtype, size_t nelem, struct fsdp_err *err)
{
    struct cast_arg arg = {dst, src, dst_dtype, src_dtype, nelem};
    return device_cpu_lane_call(lane, accumulate_run, &arg, sizeof arg, err);
}

/* ---- gradient norm --------------------------------------------------------------------------- */

struct sumsq_arg {
    double *out;
    const char *x;
    enum fsdp_dtype dtype;
    size_t nelem;
};

/* Partial sums are of SPAN elements each, whatever number of threads takes them. */
enum { SPAN = 1 << 16, NSPANS = 64 };

struct sumsq_part {
    const char *x;
    enum fsdp_dtype dtype;
    size_t nelem;
    double sum[NSPANS];
};

FSDP_CPU_CLONES static double sumsq(const float *x, size_t nelem)
{
    enum { NACC = 16 }; /* independent accumulators: the order is fixed, and it vectorises */
    double acc[NACC] = {0}, total = 0;
    size_t i = 0;
    for (; i + NACC <= nelem; i += NACC)
        for (int k = 0; k < NACC; k++)
            acc[k] += (double)x[i + (size_t)k] * (double)x[i + (size_t)k];
    for (; i < nelem; i++)
        acc[0] += (double)x[i] * (double)x[i];
    for (int k = 0; k < NACC; k++)
        total += acc[k];
    return total;
}

/* In pieces of fixed length, too. */
static double sumsq_narrow(const char *x, enum fsdp_dtype dtype, size_t nelem)
{
    enum { PIECE = 1 << 12 };
    float piece[PIECE];
    double total = 0;

    for (size_t at = 0; at < nelem; at += PIECE) {
        const size_t here = nelem - at < PIECE ? nelem - at : PIECE;
        fsdp_cpu_convert(piece, FSDP_F32, x + at * fsdp_dtype_nbytes(dtype), dtype, here);
        total += sumsq(piece, here);
    }
    return total;
}

static void sumsq_spans(void *arg, int worker, size_t from, size_t to)
{
    struct sumsq_part *p = arg;
    (void)worker;
    for (size_t span = from; span < to; span++) {
        const size_t rest = p->nelem - span * SPAN, here = rest < SPAN ? rest : SPAN;
        const char *x = p->x + span * SPAN * fsdp_dtype_nbytes(p->dtype);
        p->sum[span] = p->dtype == FSDP_F32 ? sumsq((const float *)(const void *)x, here)
                                            : sumsq_narrow(x, p->dtype, here);
    }
}

static int sumsq_run(void *arg, struct fsdp_err *err)
{
    const struct sumsq_arg *a = arg;
    struct sumsq_part part = {.dtype = a->dtype};
    double total = 0;
    (void)err;
    for (size_t at = 0; at < a->nelem; at += (size_t)SPAN * NSPANS) {
        part.x = a->x + at * fsdp_dtype_nbytes(a->dtype);
        part.nelem = a->nelem - at < (size_t)SPAN * NSPANS ? a->nelem - at : (size_t)SPAN * NSPANS;
        const size_t nspans = (part.nelem + SPAN - 1) / SPAN;
        fsdp_cpu_for(nspans, 1, sumsq_spans, &part);
        for (size_t i = 0; i < nspans; i++)
            total += part.sum[i];
    }
    *a->out = total;
    return FSDP_OK;
}

int device_cpu_sumsq(void *lane, double *out, const void *x, enum fsdp_dtype dtype, size_t nelem,
                     struct fsdp_err *err)
{
    struct sumsq_arg arg = {out, x, dtype, nelem};
    return device_cpu_lane_call(lane, sumsq_run, &arg, sizeof arg, err);
}

static int clip_run(void *arg, struct fsdp_err *err)
{
    const struct fsdp_clip_args *a = arg;
    (void)err;
    clip_of(a->coef, a->norm, a->partial, a->npartials, a->type, a->max_norm, a->scale);
    return FSDP_OK;
}

int device_cpu_clip_coef(void *lane, const struct fsdp_clip_args *args, struct fsdp_err *err)
{
    struct fsdp_clip_args arg = *args;
    return device_cpu_lane_call(lane, clip_run, &arg, sizeof arg, err);
}

struct scale_arg {
    struct fsdp_loss_scale *scale;
    const float *norm;
    struct fsdp_loss_scale_rule rule;
};

static int scale_run(void *arg, struct fsdp_err *err)
{
    const struct scale_arg *a = arg;
    (void)err;
    loss_scale_next(a->scale, *a->norm, a->rule);
    return FSDP_OK;
}

int device_cpu_loss_scale_update(void *lane, struct fsdp_loss_scale *scale, const float *norm,
                                 struct fsdp_loss_scale_rule rule, struct fsdp_err *err)
{
    struct scale_arg arg = {scale, norm, rule};
    return device_cpu_lane_call(lane, scale_run, &arg, sizeof arg, err);
}

/* ---- initial values -------------------------------------------------------------------------- */

struct init_arg {
    float *dst;
    uint64_t first;
    size_t nelem;
    struct fsdp_init init;
    uint64_t seed, stream;
};

static int init_run(void *arg, struct fsdp_err *err)
{
    struct init_arg *a = arg;
    (void)err;
    if (a->init.kind == FSDP_INIT_ZEROS || a->init.kind == FSDP_INIT_ONES) {
        for (size_t i = 0; i < a->nelem; i++)
            a->dst[i] = a->init.kind == FSDP_INIT_ONES;
        return FSDP_OK;
    }
    float block[4];
    uint64_t loaded = UINT64_MAX;
    for (size_t i = 0; i < a->nelem; i++) {
        uint64_t element = a->first + i;
        if (element / 4 != loaded)
            init_block(block, a->init, a->seed, a->stream, loaded = element / 4);
        a->dst[i] = block[element % 4];
    }
    return FSDP_OK;
}

int device_cpu_init_fill(void *lane, float *dst, uint64_t first, size_t nelem,
                         struct fsdp_init init, uint64_t seed, uint64_t stream,
                         struct fsdp_err *err)
{
    struct init_arg arg = {dst, first, nelem, init, seed, stream};
    return device_cpu_lane_call(lane, init_run, &arg, sizeof arg, err);
}
