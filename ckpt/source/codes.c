/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What compressed-tensors stores of a matrix M.weight [out, in]:
 *
 *   M.weight          F8_E4M3 or I8 [out, in]: codes; or
 *   M.weight_packed   I32 [out, ceil(in * bits / 32)]: integers of 8 or 4 bits, without their sign
 *   M.weight_shape    I64 [2], with M.weight_packed
 *   M.weight_scale    a floating type, [1], [out, 1] or [out, in / group]: what codes are scaled by
 *
 * Other programs have M.weight_scale_inv, of blocks, which are not decoded.
 */
#include <stdio.h>
#include <string.h>

#include "code_names.h"
#include "unpack.h"

/* ---- what is stored -------------------------------------------------------------------------- */

/* Sets bits and the decoded shape of packed integers; false: they are none of ours. */
static int read_packed(bool *fits, struct ckpt_codes *out, struct ckpt *ckpt,
                       const struct fsdp_tensor *t, struct fsdp_err *err)
{
    const struct ckpt_tensor *shape = ckpt_part_near(ckpt, t->name, "_shape");
    int64_t lengths[2];

    *fits = shape && shape->tensor.dtype == FSDP_I64 && shape->tensor.ndim == 1 &&
            shape->tensor.shape[0] == 2 && t->dtype == FSDP_I32 && t->ndim == 2;
    if (!*fits)
        return FSDP_OK;
    FSDP_TRY(ckpt_part_read(lengths, sizeof lengths, NULL, ckpt, shape, FSDP_I64, err));
    const uint64_t nwords = t->shape[1], row_nelem = (uint64_t)lengths[1];
    *fits = lengths[0] > 0 && (uint64_t)lengths[0] == t->shape[0] && lengths[1] > 0 &&
            lengths[1] < INT32_MAX;
    if (!*fits)
        return FSDP_OK;
    const bool eight = nwords == (row_nelem + 3) / 4, four = nwords == (row_nelem + 7) / 8;
    *fits = eight != four; /* a row of one word can be either */
    out->bits = eight ? 8 : 4;
    out->row_nbytes = nwords * 4;
    out->tensor.shape[1] = row_nelem;
    return FSDP_OK;
}

/* Sets how many elements of a row share a scale. */
static bool read_scales(struct ckpt_codes *out, const struct fsdp_tensor *scales)
{
    const uint64_t nrows = out->tensor.shape[0], row_nelem = out->tensor.shape[1];
    const uint64_t each = scales->ndim == 2 ? scales->shape[1] : 0;
    out->tensor.dtype = scales->dtype;
    out->whole = fsdp_tensor_nelem(scales) == 1;
    out->group = each ? row_nelem / each : row_nelem;
    return fsdp_dtype_is_float(scales->dtype) && fsdp_dtype_nbytes(scales->dtype) >= 2 &&
           fsdp_dtype_nbytes(scales->dtype) <= 4 &&
           (out->whole || (each && scales->shape[0] == nrows && row_nelem % each == 0));
}

int ckpt_codes_read(bool *fits, struct ckpt_codes *out, struct ckpt *ckpt,
                    const struct fsdp_tensor *t, struct fsdp_err *err)
{
    const struct ckpt_tensor *scales = ckpt_part_near(ckpt, t->name, "_scale");
    const bool words = ckpt_codes_is_packed(t->name);

    *out = (struct ckpt_codes){.bits = 8, .words = words, .floats = t->dtype == FSDP_F8_E4M3};
    out->tensor = *t;
    *fits = scales && t->ndim == 2 && fsdp_tensor_nelem(t) &&
            (words || t->dtype == FSDP_F8_E4M3 || t->dtype == FSDP_I8) &&
            !ckpt_part_near(ckpt, t->name, "_zero_point") &&
            !ckpt_part_near(ckpt, t->name, "_g_idx") &&
            !ckpt_part_near(ckpt, t->name, "_global_scale");
    if (!*fits)
        return FSDP_OK;
    out->row_nbytes = t->shape[1];
    if (words)
        FSDP_TRY(read_packed(fits, out, ckpt, t, err));
    if (*fits)
        *fits = read_scales(out, &scales->tensor);
    return FSDP_OK;
}
