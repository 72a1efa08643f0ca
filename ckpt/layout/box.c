/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes of tensors: their text, and parts of them. Pure. */
#include <stdio.h>
#include <string.h>

#include "layout.h"

struct fsdp_box ckpt_piece_box(const struct ckpt_piece *piece, int ndim)
{
    struct fsdp_box box = {{0}, {0}};
    memcpy(box.offset, piece->offset, (size_t)ndim * sizeof *box.offset);
    memcpy(box.length, piece->length, (size_t)ndim * sizeof *box.length);
    return box;
}

void ckpt_box_text(char *out, size_t out_nbytes, const struct fsdp_box *box, int ndim)
{
    size_t len = 0;
    for (int d = 0; d < ndim && len < out_nbytes; d++)
        len += (size_t)snprintf(out + len, out_nbytes - len, "%s%llu:%llu", d ? ", " : "[",
                                (unsigned long long)box->offset[d],
                                (unsigned long long)(box->offset[d] + box->length[d]));
    if (len < out_nbytes)
        snprintf(out + len, out_nbytes - len, ndim ? "]" : "[]");
}

struct fsdp_box ckpt_box_whole(const struct fsdp_tensor *tensor)
{
    struct fsdp_box box = {{0}, {0}};
    memcpy(box.length, tensor->shape, (size_t)tensor->ndim * sizeof *tensor->shape);
    return box;
}

uint64_t ckpt_box_run(struct fsdp_box *out, const struct fsdp_tensor *tensor, uint64_t row,
                      uint64_t nrows, uint64_t at, uint64_t most_nelem)
{
    *out = ckpt_box_whole(tensor);
    if (!tensor->ndim)
        return 1;
    out->offset[0] = row;
    out->length[0] = nrows;
    uint64_t inner =
        fsdp_box_nelem(out, tensor->ndim); /* of one index of the dimensions before d */
    for (int d = 0; d < tensor->ndim; d++) {
        uint64_t length = out->length[d];
        inner /= length;
        uint64_t index = at / inner % length, left = length - index;
        bool aligned = at % inner == 0;
        out->offset[d] += index;
        if (aligned && inner <= most_nelem) {
            out->length[d] = most_nelem / inner < left ? most_nelem / inner : left;
            return out->length[d] * inner;
        }
        out->length[d] = 1;
    }
    return 1;
}

uint64_t ckpt_replica_part(struct fsdp_box *out, const struct fsdp_box *box, int ndim, int replica,
                           int nreplica)
{
    *out = *box;
    if (ndim == 0)
        return replica == 0;
    uint64_t rows = box->length[0], each = rows / (uint64_t)nreplica;
    uint64_t more = rows % (uint64_t)nreplica, r = (uint64_t)replica;
    out->offset[0] += r * each + (r < more ? r : more);
    out->length[0] = each + (r < more);
    return fsdp_box_nelem(out, ndim);
}
