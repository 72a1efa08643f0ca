/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "fsdp/base.h"

uint64_t fsdp_tensor_nelem(const struct fsdp_tensor *tensor)
{
    uint64_t nelem = 1;
    for (int d = 0; d < tensor->ndim; d++)
        nelem *= tensor->shape[d];
    return nelem;
}

uint64_t fsdp_box_nelem(const struct fsdp_box *box, int ndim)
{
    uint64_t nelem = 1;
    for (int d = 0; d < ndim; d++)
        nelem *= box->length[d];
    return nelem;
}

uint64_t fsdp_tensor_row_nelem(const struct fsdp_tensor *tensor)
{
    uint64_t nelem = 1;
    for (int d = 1; d < tensor->ndim; d++)
        nelem *= tensor->shape[d];
    return nelem;
}

int fsdp_tensor_check(const struct fsdp_tensor *tensor, struct fsdp_err *err)
{
    if ((unsigned)tensor->dtype >= FSDP_NDTYPES)
        return fsdp_err_set(err, FSDP_EINVAL, "tensor '%s': unknown dtype %d", tensor->name,
                            (int)tensor->dtype);
    if (tensor->ndim < 0 || tensor->ndim > FSDP_MAX_DIMS)
        return fsdp_err_set(err, FSDP_EINVAL, "tensor '%s': %d dimensions (at most %d)",
                            tensor->name, tensor->ndim, FSDP_MAX_DIMS);
    /* An empty dimension makes the product zero but must not hide an overflow next to it. */
    uint64_t nbytes = fsdp_dtype_nbytes(tensor->dtype);
    for (int d = 0; d < tensor->ndim; d++) {
        uint64_t length = tensor->shape[d] ? tensor->shape[d] : 1;
        if (__builtin_mul_overflow(nbytes, length, &nbytes) || nbytes > UINT64_C(1) << 62)
            return fsdp_err_set(err, FSDP_EINVAL, "tensor '%s': its size overflows", tensor->name);
    }
    return FSDP_OK;
}

bool fsdp_box_intersect(struct fsdp_box *out, const struct fsdp_box *a, const struct fsdp_box *b,
                        int ndim)
{
    struct fsdp_box box = {{0}, {0}};
    for (int d = 0; d < ndim; d++) {
        uint64_t a_end = a->offset[d] + a->length[d], b_end = b->offset[d] + b->length[d];
        uint64_t begin = a->offset[d] > b->offset[d] ? a->offset[d] : b->offset[d];
        uint64_t end = a_end < b_end ? a_end : b_end;
        if (begin >= end) {
            memset(out, 0, sizeof *out);
            return false;
        }
        box.offset[d] = begin;
        box.length[d] = end - begin;
    }
    *out = box;
    return true;
}
