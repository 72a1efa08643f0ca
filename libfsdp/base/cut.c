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

int fsdp_cut_create(struct fsdp_cut *out, const struct fsdp_tensor *tensors, int ntensors,
                    int nranks, struct fsdp_err *err)
{
    uint64_t end = 0, all_rows = FSDP_CUT_ALIGN, total;

    memset(out, 0, sizeof *out);
    uint64_t *start = fsdp_alloc((size_t)ntensors, sizeof *start, "cut", err);
    if (!start)
        return FSDP_ENOMEM;
    for (int i = 0; i < ntensors; i++) {
        uint64_t align;
        if (!lcm(&align, FSDP_CUT_ALIGN, row_of(&tensors[i])) || !round_up(&start[i], end, align) ||
            __builtin_add_overflow(start[i], fsdp_tensor_nelem(&tensors[i]), &end) ||
            !lcm(&all_rows, all_rows, row_of(&tensors[i]))) {
            fsdp_free(start);
            return fsdp_err_set(err, FSDP_EINVAL, "tensor '%s': its place in the unit overflows",
                                tensors[i].name);
        }
    }
    uint64_t share = end / (uint64_t)nranks + (end % (uint64_t)nranks != 0);
    if (!round_up(&out->shard_nelem, share, all_rows) ||
        __builtin_mul_overflow(out->shard_nelem, (uint64_t)nranks, &total)) {
        fsdp_free(start);
        return fsdp_err_set(err, FSDP_EINVAL,
                            "unit of %llu elements on %d ranks: padding overflows",
                            (unsigned long long)end, nranks);
    }
    out->ntensors = ntensors;
    out->nranks = nranks;
    out->start = start;
    return FSDP_OK;
}

void fsdp_cut_destroy(struct fsdp_cut *cut)
{
    if (cut) {
        fsdp_free(cut->start);
        memset(cut, 0, sizeof *cut);
    }
}

uint64_t fsdp_cut_box(struct fsdp_box *out, uint64_t *shard_pos, const struct fsdp_cut *cut,
                      const struct fsdp_tensor *tensors, int i, int rank)
{
    const struct fsdp_tensor *tensor = &tensors[i];
    uint64_t row = row_of(tensor), begin = cut->start[i], end = begin + fsdp_tensor_nelem(tensor);
    uint64_t shard_begin = cut->shard_nelem * (uint64_t)rank;
    uint64_t shard_end = shard_begin + cut->shard_nelem;

    memset(out, 0, sizeof *out);
    for (int d = 0; d < tensor->ndim; d++)
        out->length[d] = d ? tensor->shape[d] : 0;
    *shard_pos = 0;

    uint64_t from = begin > shard_begin ? begin : shard_begin;
    uint64_t to = end < shard_end ? end : shard_end;
    if (from >= to) {
        /* An empty box lies at the end or the beginning of the tensor, as torch writes it. */
        if (tensor->ndim)
            out->offset[0] = end <= shard_begin ? tensor->shape[0] : 0;
        return 0;
    }
    *shard_pos = from - shard_begin;
    if (tensor->ndim) {
        out->offset[0] = (from - begin) / row;
        out->length[0] = (to - from) / row;
    }
    return to - from;
}
