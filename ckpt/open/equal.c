/* SPDX-License-Identifier: Apache-2.0 */
/* Two stored tensors that should be one: compared a few rows at a time. */
#include <string.h>

#include "source/format_ops.h"
#include "util/convert.h"

enum { STEP_NBYTES = 1 << 20 };

struct side {
    struct ckpt *ckpt;
    int tensor;
    enum fsdp_dtype dtype; /* as it is compared */
    void *rows;
};

static int copy_rows(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *err)
{
    (void)err;
    memcpy((char *)((struct side *)ctx)->rows + pos, src, nbytes);
    return FSDP_OK;
}

/* Rows [first, first + count) in side->dtype; a scalar is one row. */
static int read_rows(struct side *side, uint64_t first, uint64_t count,
                     struct ckpt_buffers *buffers, struct fsdp_err *err)
{
    const struct fsdp_slice_io io = {.ctx = side, .write = copy_rows};
    struct fsdp_slice slice = {.tensor = side->ckpt->m.layout.tensors[side->tensor].tensor};

    slice.box = ckpt_box_whole(&slice.tensor);
    slice.tensor.dtype = side->dtype;
    if (slice.tensor.ndim) {
        slice.box.offset[0] = first;
        slice.box.length[0] = count;
    }
    return ckpt_slice_read(side->ckpt, side->tensor, &slice, &io, buffers, NULL, err);
}

/* Of one type, the bits; else numbers in double precision, which has all of both. */
static bool are_equal(const struct side side[2], bool bits, uint64_t count)
{
    const double *a = side[0].rows, *b = side[1].rows;
    if (bits)
        return !memcmp(a, b, (size_t)count * fsdp_dtype_nbytes(side[0].dtype));
    for (uint64_t i = 0; i < count; i++)
        if (a[i] != b[i] && (a[i] == a[i] || b[i] == b[i])) /* NaN equals NaN */
            return false;
    return true;
}

static int compare(bool *equal, struct side side[2], bool bits, struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &side[0].ckpt->m.layout.tensors[side[0].tensor].tensor;
    const uint64_t nrows = t->ndim ? t->shape[0] : 1;
    const uint64_t row = nrows ? fsdp_tensor_nelem(t) / nrows : 0;
    const size_t elem_nbytes = fsdp_dtype_nbytes(side[0].dtype);
    const uint64_t most = STEP_NBYTES / elem_nbytes, step = row && row < most ? most / row : 1;
    struct ckpt_buffers buffers = {0};
    int rc = FSDP_ENOMEM;

    for (int i = 0; i < 2; i++)
        if (!(side[i].rows = fsdp_alloc((size_t)(step * row), elem_nbytes, "rows to compare", err)))
            goto out;
    FSDP_TRY_GOTO(ckpt_buffers_create(&buffers, STEP_NBYTES, err), out);
    for (uint64_t first = 0; row && *equal && first < nrows; first += step) {
        const uint64_t count = nrows - first < step ? nrows - first : step;
        for (int i = 0; i < 2; i++)
            FSDP_TRY_GOTO(read_rows(&side[i], first, count, &buffers, err), out);
        *equal = are_equal(side, bits, count * row);
    }
out:
    ckpt_buffers_destroy(&buffers);
    for (int i = 0; i < 2; i++)
        fsdp_free(side[i].rows);
    return rc;
}

int ckpt_check_equal(struct ckpt *ckpt, const char *one, const char *other, struct fsdp_err *err)
{
    struct side side[2] = {{.ckpt = ckpt, .tensor = ckpt_tensor_index(ckpt, one)},
                           {.ckpt = ckpt, .tensor = ckpt_tensor_index(ckpt, other)}};
    const struct ckpt_layout *layout = &ckpt->m.layout;
    bool equal = true;

    if (side[0].tensor < 0 || side[1].tensor < 0 || side[0].tensor == side[1].tensor)
        return FSDP_OK;
    const struct fsdp_tensor *a = &layout->tensors[side[0].tensor].tensor;
    const struct fsdp_tensor *b = &layout->tensors[side[1].tensor].tensor;
    equal = a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof a->shape[0] * (size_t)a->ndim);
    const bool bits = a->dtype == b->dtype;
    if (equal && !bits &&
        (!ckpt_convert_can(FSDP_F64, a->dtype) || !ckpt_convert_can(FSDP_F64, b->dtype)))
        return FSDP_OK; /* who reads one gets the reason */
    side[0].dtype = side[1].dtype = bits ? a->dtype : FSDP_F64;
    if (equal)
        FSDP_TRY(compare(&equal, side, bits, err));
    if (equal)
        return FSDP_OK;
    const struct ckpt_layout_file *file =
        &layout->files[layout->pieces[layout->first[side[0].tensor]].file];
    return fsdp_err_set(err, FSDP_EINVAL, "'%s/%s': tensor '%s' differs from '%s'", ckpt->path,
                        file->path, one, other);
}
