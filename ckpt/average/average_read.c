/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled without joining products and sums in one instruction: all machines give the same bits.
 */
#include <math.h>
#include <string.h>

#include "members.h"
#include "util/convert.h"

/* ---- sums ------------------------------------------------------------------------------------ */

/* Where the values of one checkpoint go. */
struct adding {
    void *dst;
    const struct ckpt_average *average;
    const struct ckpt_member *member;
    const char *name; /* of the tensor */
    enum fsdp_dtype dtype;
    bool first; /* there is nothing yet to which they are added */
};

static int add_values(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *err)
{
    enum { STEP = 1024 };
    const struct adding *a = ctx;
    const size_t elem = fsdp_dtype_nbytes(a->dtype), nelem = nbytes / elem;
    double *sum = (double *)a->dst + pos / elem;
    float values[STEP];
    (void)err;

    for (size_t at = 0, n; at < nelem; at += n) {
        n = nelem - at < STEP ? nelem - at : STEP;
        const double *wide = a->dtype == FSDP_F64 ? (const double *)src + at : NULL;
        if (!wide)
            ckpt_convert(values, FSDP_F32, (const char *)src + at * elem, a->dtype, n);
        for (size_t i = 0; i < n; i++) {
            const double x = wide ? wide[i] : (double)values[i];
            const double term = a->member->weight * x;
            sum[at + i] = a->first ? term : sum[at + i] + term; /* of -0: -0 */
        }
    }
    return FSDP_OK;
}

static int compare_values(void *ctx, uint64_t pos, const void *src, size_t nbytes,
                          struct fsdp_err *err)
{
    const struct adding *a = ctx;
    char *dst = (char *)a->dst + pos;
    if (a->first)
        memcpy(dst, src, nbytes);
    if (!memcmp(dst, src, nbytes))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EMISMATCH,
                        "tensor '%s' is of %s, of which there is no average, and '%s' has other "
                        "values than '%s' (--exclude leaves it out)",
                        a->name, fsdp_dtype_name(a->dtype), a->member->path,
                        a->average->members[0].path);
}

/* The float next to x whose last bit is 1, unless x is a float: rounded to fewer bits it gives what
 * x gives. */
static double odd_float(double x)
{
    float near = (float)x;
    uint32_t bits;
    if (!isfinite(x) || (double)near == x)
        return x;
    if (isinf(near)) /* all shorter types are infinite there, too, or have their largest value */
        return near;
    memcpy(&bits, &near, sizeof bits);
    if (!(bits & 1))
        near = nextafterf(near, (double)near < x ? INFINITY : -INFINITY);
    return near;
}

/* Fingerprints are sums, too (by XOR). Each checkpoint's is turned by its own number of bits, so
 * that equal damage in two of them does not cancel out. */
static uint64_t turn(uint64_t part, int member)
{
    const int by = member % 64;
    return by ? part << by | part >> (64 - by) : part;
}

/* One checkpoint's box, through both halves of the scratch memory. */
static int add_member(const struct ckpt_average_dst *to, struct adding *adding, int tensor,
                      const struct fsdp_box *box, uint64_t *part, struct fsdp_err *err)
{
    struct ckpt *ckpt = adding->member->ckpt;
    const struct fsdp_tensor *t = &ckpt->m.layout.tensors[tensor].tensor;
    const size_t half = to->scratch_nbytes / 2 / sizeof(double) * sizeof(double);
    struct ckpt_buffers buffers = {
        .data = to->scratch, .scratch = (char *)to->scratch + half, .nbytes = half};
    const struct fsdp_slice slice = {.tensor = *t, .box = *box, .nreplica = 1};
    const struct fsdp_slice_io io = {
        .ctx = adding, .write = fsdp_dtype_is_float(t->dtype) ? add_values : compare_values};

    adding->dtype = t->dtype;
    adding->name = t->name;
    return ckpt_slice_read(ckpt, tensor, &slice, &io, &buffers, part, err);
}

int ckpt_average_read(const struct ckpt_average_dst *to, struct ckpt_average *a, int stored,
                      const struct fsdp_box *box, struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &a->given[0]->m.layout.tensors[stored].tensor;
    const uint64_t nelem = fsdp_box_nelem(box, t->ndim);
    double *values = to->dst;

    for (int i = 0; i < a->count; i++) {
        const struct ckpt_member *m = &a->members[i];
        struct adding adding = {.dst = to->dst, .average = a, .member = m, .first = i == 0};
        uint64_t part = 0;
        FSDP_TRY(add_member(to, &adding, m->index[stored], box, &part, err));
        if (m->ckpt->m.layout.tensors[m->index[stored]].has_fingerprint)
            *to->sum ^= turn(part, i);
    }
    for (uint64_t i = 0; fsdp_dtype_is_float(t->dtype) && i < nelem; i++) {
        values[i] /= a->total;
        if (to->narrow)
            values[i] = odd_float(values[i]);
    }
    return FSDP_OK;
}

/* ---- proof ----------------------------------------------------------------------------------- */

bool ckpt_average_fingerprint(uint64_t *out, const struct ckpt_average *a, int stored)
{
    bool any = false;
    *out = 0;
    for (int i = 0; i < a->count; i++) {
        const struct ckpt_member *m = &a->members[i];
        const struct ckpt_tensor *t = &m->ckpt->m.layout.tensors[m->index[stored]];
        any |= t->has_fingerprint;
        if (t->has_fingerprint)
            *out ^= turn(t->fingerprint, i);
    }
    return any;
}

static int read_over(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *err)
{
    (void)ctx, (void)pos, (void)src, (void)nbytes, (void)err;
    return FSDP_OK;
}

/* Whoever reads a whole tensor has its fingerprint compared. */
int ckpt_average_blame(struct ckpt_average *a, int stored, struct fsdp_err *err)
{
    const struct fsdp_slice_io io = {.write = read_over};
    for (int i = 0; i < a->count; i++) {
        const struct ckpt_member *m = &a->members[i];
        const struct fsdp_tensor *t = &m->ckpt->m.layout.tensors[m->index[stored]].tensor;
        const struct fsdp_slice slice = {.tensor = *t, .box = ckpt_box_whole(t), .nreplica = 1};
        FSDP_TRY(ckpt_read_slice(m->ckpt, &slice, &io, err));
    }
    return fsdp_err_set(err, FSDP_ECORRUPT,
                        "tensor '%s': its bytes were not those that were saved when they were "
                        "read, in one of the checkpoints, and are now; try again",
                        a->given[0]->m.layout.tensors[stored].tensor.name);
}
