/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of an adapter that belong to a weight, and their product. Of a weight a block of rows
 * is changed at a time; for it, A or the rows of B are read anew, so that memory does not grow with
 * the adapters.
 */
#include <stdio.h>
#include <string.h>

#include "merge.h"
#include "source/source.h"

enum { NAME_NBYTES = 1024 };
#define WEIGHT ".weight"

/* ---- names ----------------------------------------------------------------------------------- */

const struct ckpt_tensor *ckpt_merged_part(const struct ckpt_merged *m, const char *weight,
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

const struct ckpt_tensor *ckpt_merged_whole(const struct ckpt_merged *m, const char *weight)
{
    char name[NAME_NBYTES];
    const int len = snprintf(name, sizeof name, CKPT_ADAPTER_PREFIX "%s", weight);
    return len < (int)sizeof name ? ckpt_tensor_find(ckpt_adapter_ckpt(m->adapter), name) : NULL;
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

/* Rows [first, first + n) along dimension `dim` of a matrix with two dimensions, as fp32; turned:
 * as its transpose. *out is freed with fsdp_free. */
struct strip {
    int dim;
    uint64_t first, n;
    bool turned;
};

static int read_strip(float **out, const struct ckpt_merged *m, const struct ckpt_tensor *t,
                      const struct strip *s, struct fsdp_err *err)
{
    struct fsdp_box box = {.length = {t->tensor.shape[0], t->tensor.shape[1]}};
    box.offset[s->dim] = s->first;
    box.length[s->dim] = s->n;
    const size_t rows = (size_t)box.length[0], cols = (size_t)box.length[1];
    float *x = fsdp_alloc(rows * cols, sizeof *x, "adapter", err);
    float *turned = s->turned && x ? fsdp_alloc(rows * cols, sizeof *x, "adapter", err) : NULL;
    int rc = x && (turned || !s->turned) ? read_box(x, m, t, &box, FSDP_F32, err) : FSDP_ENOMEM;

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

int ckpt_factors_read(struct ckpt_factors *f, const struct ckpt_merged *m,
                      const struct fsdp_tensor *weight, const struct fsdp_box *box,
                      struct fsdp_err *err)
{
    const struct ckpt_adapter_spec *spec = ckpt_adapter_spec(m->adapter);
    const struct ckpt_tensor *a = ckpt_merged_part(m, weight->name, "lora_A.weight");
    const struct ckpt_tensor *b = ckpt_merged_part(m, weight->name, "lora_B.weight");
    const uint64_t first = box->offset[0], n = box->length[0];
    const bool across = spec->transposed;
    const struct strip left = {across ? 1 : 0, first, n, across};
    const struct strip right = {0, 0, across ? b->tensor.shape[0] : a->tensor.shape[0], across};

    *f = (struct ckpt_factors){.r = (size_t)spec->r,
                               .ncols = (size_t)weight->shape[1],
                               .scale = ckpt_adapter_scale(spec) * m->weight};
    FSDP_TRY(read_strip(&f->left, m, across ? a : b, &left, err));
    return read_strip(&f->right, m, across ? b : a, &right, err);
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
