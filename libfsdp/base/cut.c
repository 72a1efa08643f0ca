/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "fsdp/base.h"

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}

/* False on overflow. */
static bool lcm(uint64_t *out, uint64_t a, uint64_t b)
{
    return !__builtin_mul_overflow(a / gcd(a, b), b, out);
}

static bool round_up(uint64_t *out, uint64_t x, uint64_t multiple)
{
    uint64_t count = x / multiple + (x % multiple != 0);
    return !__builtin_mul_overflow(count, multiple, out);
}

static uint64_t row_of(const struct fsdp_tensor *tensor)
{
    uint64_t row = fsdp_tensor_row_nelem(tensor);
    return row ? row : 1;
}

/* Rows of tensor; a scalar is one. */
static uint64_t rows_of(const struct fsdp_tensor *tensor)
{
    return fsdp_tensor_nelem(tensor) / row_of(tensor);
}

uint64_t fsdp_cut_chunk_nelem(const struct fsdp_cut *cut, const struct fsdp_tensor *tensor)
{
    uint64_t rows = rows_of(tensor), nranks = (uint64_t)cut->nranks;
    return (rows / nranks + (rows % nranks != 0)) * row_of(tensor);
}

/* Tensors whole and in order, cut between rows. Fills start and shard_nelem; false on overflow. */
static bool cut_rows(struct fsdp_cut *cut, const struct fsdp_tensor *tensors)
{
    uint64_t end = 0, all_rows = FSDP_CUT_ALIGN, total, nranks = (uint64_t)cut->nranks;

    for (int i = 0; i < cut->ntensors; i++) {
        uint64_t align, *start = &cut->start[i];
        if (!lcm(&align, FSDP_CUT_ALIGN, row_of(&tensors[i])) || !round_up(start, end, align) ||
            __builtin_add_overflow(*start, fsdp_tensor_nelem(&tensors[i]), &end) ||
            !lcm(&all_rows, all_rows, row_of(&tensors[i])))
            return false;
    }
    uint64_t share = end / nranks + (end % nranks != 0);
    return round_up(&cut->shard_nelem, share, all_rows) &&
           !__builtin_mul_overflow(cut->shard_nelem, nranks, &total);
}

/* A chunk of each tensor in every shard. Fills start and shard_nelem. */
static int cut_chunks(struct fsdp_cut *cut, const struct fsdp_tensor *tensors, struct fsdp_err *err)
{
    uint64_t end = 0, nranks = (uint64_t)cut->nranks;

    cut->chunked = true;
    for (int i = 0; i < cut->ntensors; i++) {
        uint64_t total;
        if (__builtin_mul_overflow(end, nranks, &cut->start[i]) ||
            __builtin_add_overflow(end, fsdp_cut_chunk_nelem(cut, &tensors[i]), &end) ||
            !round_up(&end, end, FSDP_CUT_ALIGN) || __builtin_mul_overflow(end, nranks, &total))
            return fsdp_err_set(err, FSDP_EINVAL, "tensor '%s': its place in the unit overflows",
                                tensors[i].name);
    }
    cut->shard_nelem = end;
    return FSDP_OK;
}

/* Would the padding of the cut between rows exceed both 3 % and 1 MiB (of fp32) a rank? */
static bool wastes(const struct fsdp_cut *cut, const struct fsdp_tensor *tensors)
{
    uint64_t nelem = 0, mib = (UINT64_C(1) << 20) / sizeof(float);
    for (int i = 0; i < cut->ntensors; i++)
        nelem += fsdp_tensor_nelem(&tensors[i]);
    uint64_t padding = cut->shard_nelem * (uint64_t)cut->nranks - nelem;
    return padding > nelem / 100 * 3 && padding / (uint64_t)cut->nranks > mib;
}

int fsdp_cut_create(struct fsdp_cut *out, const struct fsdp_tensor *tensors, int ntensors,
                    int nranks, struct fsdp_err *err)
{
    struct fsdp_cut rows = {.ntensors = ntensors, .nranks = nranks}, chunks = rows;
    int rc = FSDP_ENOMEM;

    memset(out, 0, sizeof *out);
    rows.start = fsdp_alloc((size_t)ntensors, sizeof *rows.start, "cut", err);
    chunks.start = fsdp_alloc((size_t)ntensors, sizeof *chunks.start, "cut", err);
    if (!rows.start || !chunks.start)
        goto out;
    bool fits = cut_rows(&rows, tensors);
    rc = FSDP_OK;
    if (fits && !wastes(&rows, tensors)) {
        *out = rows;
    } else {
        rc = cut_chunks(&chunks, tensors, err);
        if (rc == FSDP_OK)
            *out = fits && rows.shard_nelem <= chunks.shard_nelem ? rows : chunks;
    }
out:
    if (out->start != rows.start)
        fsdp_free(rows.start);
    if (out->start != chunks.start)
        fsdp_free(chunks.start);
    return rc;
}

void fsdp_cut_destroy(struct fsdp_cut *cut)
{
    if (cut) {
        fsdp_free(cut->start);
        memset(cut, 0, sizeof *cut);
    }
}

/* The rank's elements of tensor i, in its row-major order: [*from, *to). Equal: none. */
static void range_of(uint64_t *from, uint64_t *to, const struct fsdp_cut *cut,
                     const struct fsdp_tensor *tensors, int i, int rank)
{
    uint64_t nelem = fsdp_tensor_nelem(&tensors[i]), begin, end;

    if (cut->chunked) {
        begin = fsdp_cut_chunk_nelem(cut, &tensors[i]) * (uint64_t)rank;
        end = begin + fsdp_cut_chunk_nelem(cut, &tensors[i]);
    } else {
        uint64_t start = cut->start[i], shard_begin = cut->shard_nelem * (uint64_t)rank;
        uint64_t shard_end = shard_begin + cut->shard_nelem;
        begin = shard_begin > start ? shard_begin - start : 0;
        end = shard_end > start ? shard_end - start : 0;
    }
    *from = begin < nelem ? begin : nelem;
    *to = end < nelem ? end : nelem;
}

uint64_t fsdp_cut_box(struct fsdp_box *out, uint64_t *shard_pos, const struct fsdp_cut *cut,
                      const struct fsdp_tensor *tensors, int i, int rank)
{
    const struct fsdp_tensor *tensor = &tensors[i];
    uint64_t row = row_of(tensor), from, to;

    memset(out, 0, sizeof *out);
    for (int d = 0; d < tensor->ndim; d++)
        out->length[d] = d ? tensor->shape[d] : 0;
    *shard_pos = 0;
    range_of(&from, &to, cut, tensors, i, rank);
    if (tensor->ndim) { /* an empty box lies at the end or the beginning, as torch writes it */
        out->offset[0] = from / row;
        out->length[0] = (to - from) / row;
    }
    if (from < to)
        *shard_pos = cut->chunked ? cut->start[i] / (uint64_t)cut->nranks
                                  : cut->start[i] + from - cut->shard_nelem * (uint64_t)rank;
    return to - from;
}
