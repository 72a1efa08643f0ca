/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DoRA: what a weight with its adapter is multiplied with, so that its rows have the lengths that
 * the magnitudes say. Of a matrix (out, in) a box has whole rows, or they are read. The rows of one
 * that is stored as (in, out) are its columns: they are read a block at a time, and their lengths
 * kept for the next boxes.
 */
#include <math.h>
#include <string.h>

#include "merge.h"
#include "source/source.h"

enum { BLOCK_NBYTES = 1 << 20 };

/* The squares of a block of rows, with the adapter, in fp64: to[row] or to[column] += each. */
static int add_squares(double *to, bool by_row, struct ckpt_adapters *a,
                       const struct fsdp_tensor *weight, const struct fsdp_box *box,
                       struct fsdp_err *err)
{
    const size_t n = (size_t)box->length[1], nrows = (size_t)box->length[0];
    float *values = fsdp_alloc(nrows * n, sizeof *values, "rows of a weight", err);
    float *sum = fsdp_alloc(n, sizeof *sum, "rows of a weight", err);
    struct ckpt_factors f = {0};
    struct ckpt_low low;
    int rc = values && sum ? FSDP_OK : FSDP_ENOMEM;

    ckpt_merged_low(&low, &a->all[0], weight->name);
    if (rc == FSDP_OK)
        rc = ckpt_factors_read(&f, &a->all[0], &low, box, weight->shape[1], err);
    if (rc == FSDP_OK)
        rc = ckpt_merged_read(values, a->model, weight, box, FSDP_F32, err);
    for (size_t row = 0; rc == FSDP_OK && row < nrows; row++) {
        float *x = values + row * n;
        ckpt_factors_add(x, sum, &f, row, 0, n);
        for (size_t i = 0; i < n; i++)
            to[by_row ? row : i] += (double)x[i] * (double)x[i];
    }
    ckpt_factors_free(&f);
    fsdp_free(values);
    fsdp_free(sum);
    return rc;
}

/* Whole rows [first, first + n). */
static struct fsdp_box rows_of(const struct fsdp_tensor *weight, uint64_t first, uint64_t n)
{
    return (struct fsdp_box){.offset = {first}, .length = {n, weight->shape[1]}};
}

/* length[i]: of whole rows, or of all columns. */
static int make_lengths(float *length, bool by_row, struct ckpt_adapters *a,
                        const struct fsdp_tensor *weight, const struct fsdp_box *rows,
                        struct fsdp_err *err)
{
    const uint64_t end = rows->offset[0] + rows->length[0], first = rows->offset[0];
    const size_t n = (size_t)(by_row ? rows->length[0] : rows->length[1]);
    const uint64_t fit = BLOCK_NBYTES / sizeof(float) / (rows->length[1] ? rows->length[1] : 1);
    const uint64_t block = fit ? fit : 1;
    double *squares = fsdp_alloc(n, sizeof *squares, "lengths", err);
    int rc = squares ? FSDP_OK : FSDP_ENOMEM;

    for (uint64_t row = first; rc == FSDP_OK && row < end; row += block) {
        const struct fsdp_box box = rows_of(weight, row, end - row < block ? end - row : block);
        rc = add_squares(squares + (by_row ? row - first : 0), by_row, a, weight, &box, err);
    }
    for (size_t i = 0; rc == FSDP_OK && i < n; i++)
        length[i] = (float)sqrt(squares[i]);
    fsdp_free(squares);
    return rc;
}

/* ---- columns --------------------------------------------------------------------------------- */

void ckpt_lengths_free(struct ckpt_lengths *lengths)
{
    for (int i = 0; i < CKPT_NLENGTHS; i++) {
        fsdp_free(lengths->name[i]);
        fsdp_free(lengths->length[i]);
    }
    pthread_mutex_destroy(&lengths->lock);
}

/* Those of all columns of a weight, into the next place. */
static int keep_lengths(int *at, struct ckpt_adapters *a, const struct fsdp_tensor *weight,
                        struct fsdp_err *err)
{
    struct ckpt_lengths *kept = &a->lengths;
    const struct fsdp_box all = rows_of(weight, 0, weight->shape[0]);
    float *length = fsdp_alloc((size_t)weight->shape[1], sizeof *length, "lengths", err);
    char *name = fsdp_strdup(weight->name, err);
    const int rc = length && name ? make_lengths(length, false, a, weight, &all, err) : FSDP_ENOMEM;

    if (rc) {
        fsdp_free(length);
        fsdp_free(name);
        return rc;
    }
    *at = kept->next;
    kept->next = (kept->next + 1) % CKPT_NLENGTHS;
    fsdp_free(kept->name[*at]);
    fsdp_free(kept->length[*at]);
    kept->name[*at] = name;
    kept->length[*at] = length;
    return FSDP_OK;
}

/* out[n]: those of columns from `first` on. */
static int read_lengths(float *out, struct ckpt_adapters *a, const struct fsdp_tensor *weight,
                        size_t first, size_t n, struct fsdp_err *err)
{
    struct ckpt_lengths *kept = &a->lengths;
    int at = 0, rc = FSDP_OK;

    pthread_mutex_lock(&kept->lock);
    while (at < CKPT_NLENGTHS && (!kept->name[at] || strcmp(kept->name[at], weight->name) != 0))
        at++;
    if (at == CKPT_NLENGTHS)
        rc = keep_lengths(&at, a, weight, err);
    if (rc == FSDP_OK)
        memcpy(out, kept->length[at] + first, n * sizeof *out);
    pthread_mutex_unlock(&kept->lock);
    return rc;
}

/* ---- scales ---------------------------------------------------------------------------------- */

int ckpt_scales_read(struct ckpt_scales *scales, struct ckpt_adapters *a,
                     const struct fsdp_tensor *weight, const struct fsdp_box *box,
                     struct fsdp_err *err)
{
    const struct ckpt_merged *m = &a->all[0];
    const bool by_row = !ckpt_adapter_spec(m->adapter)->transposed;
    const uint64_t first = box->offset[by_row ? 0 : 1];
    const size_t n = (size_t)box->length[by_row ? 0 : 1];
    const struct fsdp_box part = {.offset = {first}, .length = {n}};
    const struct fsdp_box rows = rows_of(weight, box->offset[0], box->length[0]);
    const struct ckpt_tensor *magnitude =
        ckpt_merged_part(m, weight->name, "lora_magnitude_vector");

    scales->by_row = by_row;
    if (!magnitude)
        return FSDP_OK;
    float *length = fsdp_alloc(n, sizeof *length, "lengths", err);
    scales->scale = fsdp_alloc(n, sizeof *scales->scale, "lengths", err);
    int rc = length && scales->scale ? FSDP_OK : FSDP_ENOMEM;
    if (rc == FSDP_OK)
        rc = by_row ? make_lengths(length, true, a, weight, &rows, err)
                    : read_lengths(length, a, weight, (size_t)first, n, err);
    if (rc == FSDP_OK)
        rc = ckpt_merged_read(scales->scale, ckpt_adapter_ckpt(m->adapter), &magnitude->tensor,
                              &part, FSDP_F32, err);
    for (size_t i = 0; rc == FSDP_OK && i < n; i++)
        scales->scale[i] /= length[i];
    fsdp_free(length);
    return rc;
}
