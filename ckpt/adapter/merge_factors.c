/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of an adapter that belong to a weight, and their product. Of a weight a block of rows
 * is changed at a time; for it, A or the rows of B are read anew, so that memory does not grow with
 * the adapters. Of all experts' A and B only those of the block's expert are kept.
 */
#include <stdio.h>
#include <string.h>

#include "merge.h"
#include "source/source.h"

enum { NAME_NBYTES = 1024, BLOCK_NBYTES = 1 << 20 };
#define WEIGHT ".weight"

/* ---- names ----------------------------------------------------------------------------------- */

static const struct ckpt_tensor *find_part(const struct ckpt_merged *m, const char *weight,
                                           const char *part)
{
    char name[NAME_NBYTES];
    const size_t n = strlen(weight), suffix = strlen(WEIGHT);

    if (n < suffix || strcmp(weight + n - suffix, WEIGHT))
        return NULL;
    const int len =
        snprintf(name, sizeof name, CKPT_ADAPTER_PREFIX "%.*s.%s", (int)(n - suffix), weight, part);
    return len < (int)sizeof name ? ckpt_tensor_find(ckpt_adapter_ckpt(m->adapter), name) : NULL;
}

const struct ckpt_tensor *ckpt_merged_part(const struct ckpt_merged *m, const char *weight,
                                           const char *part)
{
    char other[NAME_NBYTES];
    const struct ckpt_tensor *own = find_part(m, weight, part);
    return !own && ckpt_adapter_module_name(other, sizeof other, weight) ? find_part(m, other, part)
                                                                         : own;
}

/* ---- factors --------------------------------------------------------------------------------- */

static int take(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *err)
{
    (void)err;
    memcpy((char *)ctx + pos, src, nbytes);
    return FSDP_OK;
}

int ckpt_merged_read(void *out, struct ckpt *ckpt, const struct fsdp_tensor *t,
                     const struct fsdp_box *box, enum fsdp_dtype dtype, struct fsdp_err *err)
{
    struct fsdp_slice slice = {.tensor = *t, .box = *box, .nreplica = 1};
    const struct fsdp_slice_io io = {.ctx = out, .write = take};
    slice.tensor.dtype = dtype;
    return ckpt_read_slice(ckpt, &slice, &io, err);
}

/* Of the adapter. */
static int read_box(void *out, const struct ckpt_merged *m, const struct ckpt_tensor *t,
                    const struct fsdp_box *box, enum fsdp_dtype dtype, struct fsdp_err *err)
{
    return ckpt_merged_read(out, ckpt_adapter_ckpt(m->adapter), &t->tensor, box, dtype, err);
}

/* out (rows, cols) = x (cols, rows)ᵀ */
static void transpose(float *out, const float *x, size_t rows, size_t cols)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            out[i * cols + j] = x[j * rows + i];
}

/* A box of a matrix, as fp32; turned: as its transpose. *out is freed with fsdp_free. */
static int read_part(float **out, const struct ckpt_merged *m, const struct ckpt_tensor *t,
                     const struct fsdp_box *box, bool turn, struct fsdp_err *err)
{
    const size_t rows = (size_t)box->length[0], cols = (size_t)box->length[1];
    float *x = fsdp_alloc(rows * cols, sizeof *x, "adapter", err);
    float *turned = turn && x ? fsdp_alloc(rows * cols, sizeof *x, "adapter", err) : NULL;
    int rc = x && (turned || !turn) ? read_box(x, m, t, box, FSDP_F32, err) : FSDP_ENOMEM;

    if (rc == FSDP_OK && turned)
        transpose(turned, x, cols, rows);
    *out = turned ? turned : x;
    if (turned || rc)
        fsdp_free(x);
    if (rc) {
        fsdp_free(turned);
        *out = NULL;
    }
    return rc;
}

/* Columns [first, first + n) of one expert's A, turned; or all of it. */
static int read_a(float **out, const struct ckpt_merged *m, const struct ckpt_low *low,
                  uint64_t first, uint64_t n, struct fsdp_err *err)
{
    const uint64_t r = low->a->tensor.shape[0] / low->experts;
    const struct fsdp_box box = {.offset = {low->expert * r, first}, .length = {r, n}};
    return read_part(out, m, low->a, &box, low->across, err);
}

/* Of rows of B those columns that are the expert's: some rows at a time, of which most is left. */
static int take_b(float *out, const struct ckpt_merged *m, const struct ckpt_low *low,
                  const struct fsdp_box *rows, struct fsdp_err *err)
{
    const uint64_t ncols = rows->length[1], end = rows->offset[0] + rows->length[0];
    const uint64_t fit = BLOCK_NBYTES / sizeof(float) / ncols, block = fit ? fit : 1;
    const size_t r = (size_t)(ncols / low->experts);
    float *x = fsdp_alloc((size_t)(block * ncols), sizeof *x, "adapter", err);
    struct fsdp_box box = *rows;
    int rc = x ? FSDP_OK : FSDP_ENOMEM;

    for (; rc == FSDP_OK && box.offset[0] < end; box.offset[0] += block) {
        box.length[0] = end - box.offset[0] < block ? end - box.offset[0] : block;
        rc = read_box(x, m, low->b, &box, FSDP_F32, err);
        for (size_t i = 0; rc == FSDP_OK && i < (size_t)box.length[0] * r; i++)
            *out++ = x[i * (size_t)low->experts + (size_t)low->expert];
    }
    fsdp_free(x);
    return rc;
}

/* Rows [first, first + n) of one expert's B; or all of it, turned. */
static int read_b(float **out, const struct ckpt_merged *m, const struct ckpt_low *low,
                  uint64_t first, uint64_t n, struct fsdp_err *err)
{
    const uint64_t at = low->part * (low->b->tensor.shape[0] / low->nparts);
    const struct fsdp_box box = {.offset = {at + first}, .length = {n, low->b->tensor.shape[1]}};
    const size_t r = (size_t)(box.length[1] / low->experts);

    if (low->experts == 1)
        return read_part(out, m, low->b, &box, low->across, err);
    float *x = fsdp_alloc((size_t)n * r, sizeof *x, "adapter", err);
    *out = x && low->across ? fsdp_alloc((size_t)n * r, sizeof *x, "adapter", err) : x;
    int rc = *out ? take_b(x, m, low, &box, err) : FSDP_ENOMEM;
    if (rc == FSDP_OK && low->across)
        transpose(*out, x, r, (size_t)n);
    if (low->across)
        fsdp_free(x);
    return rc;
}

int ckpt_factors_read(struct ckpt_factors *f, const struct ckpt_merged *m,
                      const struct ckpt_low *low, const struct fsdp_box *box, uint64_t ncols,
                      struct fsdp_err *err)
{
    const uint64_t first = box->offset[0], n = box->length[0];

    *f = (struct ckpt_factors){
        .r = (size_t)low->rank.r, .ncols = (size_t)ncols, .scale = low->rank.scale * m->weight};
    if (low->across) {
        FSDP_TRY(read_a(&f->left, m, low, first, n, err));
        return read_b(&f->right, m, low, 0, ncols, err);
    }
    FSDP_TRY(read_b(&f->left, m, low, first, n, err));
    return read_a(&f->right, m, low, 0, ncols, err);
}

void ckpt_factors_free(struct ckpt_factors *f)
{
    fsdp_free(f->left);
    fsdp_free(f->right);
    f->left = f->right = NULL;
}

void ckpt_factors_add(float *change, float *sum, const struct ckpt_factors *f, size_t row,
                      size_t first, size_t n)
{
    memset(sum, 0, n * sizeof *sum);
    for (size_t k = 0; k < f->r; k++) {
        const float left = f->left[row * f->r + k], *right = f->right + k * f->ncols + first;
        for (size_t j = 0; j < n; j++)
            sum[j] += left * right[j];
    }
    for (size_t j = 0; j < n; j++)
        change[j] += (float)(sum[j] * f->scale);
}
