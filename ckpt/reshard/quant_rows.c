/* SPDX-License-Identifier: Apache-2.0 */
/* Scales and codes of quantized weights. Rows of a weight are read when their scales are written,
 * and again when their codes are: none of them is kept. */
#include <math.h>
#include <string.h>

#include "format/ctensors/ctensors.h"
#include "util/convert.h"
#include "job.h"

/* ---- how much at once ------------------------------------------------------------------------ */

uint64_t ckpt_job_quant_room(const struct ckpt_job *job, const struct ckpt_job_tensor *t,
                             uint64_t most_nelem)
{
    enum { READS = 4 }; /* of the weight, for a run of scales, which are few */
    const uint64_t row_nelem = job->quant->weights[t->weight].tensor.shape[1];
    const uint64_t nrows = most_nelem / row_nelem ? most_nelem / row_nelem : 1;
    if (t->form == CKPT_FORM_CODES)
        return nrows * t->tensor.shape[1];
    return t->form == CKPT_FORM_SCALES ? READS * nrows * t->tensor.shape[1]
                                       : fsdp_tensor_nelem(&t->tensor);
}

uint64_t ckpt_job_quant_nelem(const struct ckpt_job *job, const struct ckpt_job_tensor *t,
                              uint64_t nelem)
{
    if (t->form == CKPT_FORM_VALUES)
        return nelem;
    return t->form == CKPT_FORM_CODES
               ? nelem / t->tensor.shape[1] * job->quant->weights[t->weight].tensor.shape[1]
               : 0;
}

uint64_t ckpt_job_quant_row_nelem(const struct ckpt_job *job)
{
    uint64_t longest = 0;
    for (int i = 0; job->quant && i < job->quant->nweights; i++)
        if (job->quant->weights[i].tensor.shape[1] > longest)
            longest = job->quant->weights[i].tensor.shape[1];
    return longest;
}

/* ---- elements -------------------------------------------------------------------------------- */

int ckpt_job_quant_read(const struct ckpt_job_buffers *buffers, const struct ckpt_job_dst *read,
                        const struct ckpt_job *job, int weight, int part, uint64_t row,
                        uint64_t nrows, struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &job->quant->weights[weight].tensor;
    const struct ckpt_job_part *from = &job->parts[part];
    const enum fsdp_dtype dtype = ckpt_job_dtype(job, from->tensor);
    const struct fsdp_box box = {.offset = {row}, .length = {nrows, t->shape[1]}};
    const uint64_t nelem = nrows * t->shape[1];
    struct ckpt_job_dst to = *read;

    to.dst = buffers->in;
    to.narrow = fsdp_dtype_nbytes(t->dtype) < 4;
    FSDP_TRY(ckpt_job_read(&to, job, from, &box, err));
    ckpt_convert(buffers->values, FSDP_F32, buffers->in, dtype, nelem);
    if (dtype != t->dtype) { /* the scheme's scales are of what a cast makes of it */
        ckpt_convert(buffers->in, t->dtype, buffers->values, FSDP_F32, nelem);
        ckpt_convert(buffers->values, FSDP_F32, buffers->in, t->dtype, nelem);
    }
    if (isfinite(ckpt_ct_largest(buffers->values, nelem)))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                        "'%s': tensor '%s' holds values that are not finite, and cannot be "
                        "quantized: repair it, or leave it as it is (--quantize-ignore)",
                        job->ckpt->path, t->name);
}

/* Scales of a row; or its codes. */
static void row_scales(float *dst, const struct ckpt_ct_scheme *scheme, enum fsdp_dtype dtype,
                       const float *row, uint64_t row_nelem)
{
    const uint64_t nscales = ckpt_ct_nscales(scheme, row_nelem), each = row_nelem / nscales;
    for (uint64_t i = 0; i < nscales; i++)
        dst[i] = ckpt_ct_scale(scheme, dtype, ckpt_ct_largest(row + i * each, each));
}

static void row_codes(uint8_t *dst, const struct ckpt_ct_scheme *scheme,
                      const struct ckpt_job_weight *w, float *row)
{
    const uint64_t row_nelem = w->tensor.shape[1];
    const uint64_t nscales = ckpt_ct_nscales(scheme, row_nelem), each = row_nelem / nscales;
    for (uint64_t i = 0; i < nscales; i++) {
        float *values = row + i * each;
        const float largest =
            scheme->strategy == CKPT_CT_TENSOR ? w->largest : ckpt_ct_largest(values, each);
        ckpt_ct_encode(dst + i * each, scheme, w->tensor.dtype,
                       ckpt_ct_scale(scheme, w->tensor.dtype, largest), values, each);
    }
    memset(dst + row_nelem, 0, ckpt_ct_row_nbytes(scheme, row_nelem) - row_nelem);
}

/* Rows that are in buffers->values. */
static void fill_rows(char *dst, const struct ckpt_job_buffers *buffers, const struct ckpt_job *job,
                      const struct ckpt_job_tensor *t, uint64_t nrows)
{
    const struct ckpt_ct_scheme *scheme = job->quant->scheme;
    const struct ckpt_job_weight *w = &job->quant->weights[t->weight];
    const uint64_t row_nelem = w->tensor.shape[1],
                   row_nbytes = ckpt_job_nbytes(t, t->tensor.shape[1]);
    float *scales = buffers->in; /* what was read is in values, and takes more room */
    for (uint64_t r = 0; r < nrows; r++) {
        float *row = buffers->values + r * row_nelem;
        if (t->form == CKPT_FORM_CODES) {
            row_codes((uint8_t *)dst + r * row_nbytes, scheme, w, row);
        } else {
            row_scales(scales, scheme, w->tensor.dtype, row, row_nelem);
            ckpt_convert(dst + r * row_nbytes, t->tensor.dtype, scales, FSDP_F32,
                         t->tensor.shape[1]);
        }
    }
}

int ckpt_job_quant_fill(void *dst, const struct ckpt_job_buffers *buffers,
                        const struct ckpt_job_dst *read, const struct ckpt_job *job, int tensor,
                        int part, const struct fsdp_box *box, struct fsdp_err *err)
{
    const struct ckpt_job_tensor *t = &job->tensors[tensor];
    const struct ckpt_job_weight *w = &job->quant->weights[t->weight];
    const uint64_t each = buffers->most_nelem / w->tensor.shape[1], nrows = box->length[0];

    if (t->form == CKPT_FORM_SHAPE) {
        memcpy(dst, w->tensor.shape + box->offset[0], nrows * sizeof *w->tensor.shape);
        return FSDP_OK;
    }
    if (t->form == CKPT_FORM_SCALE) {
        const float scale = ckpt_ct_scale(job->quant->scheme, w->tensor.dtype, w->largest);
        ckpt_convert(dst, w->tensor.dtype, &scale, FSDP_F32, 1);
        return FSDP_OK;
    }
    for (uint64_t r = 0; r < nrows; r += each) {
        const uint64_t n = nrows - r < each ? nrows - r : each;
        FSDP_TRY(
            ckpt_job_quant_read(buffers, read, job, t->weight, part, box->offset[0] + r, n, err));
        fill_rows((char *)dst + r * ckpt_job_nbytes(t, t->tensor.shape[1]), buffers, job, t, n);
    }
    return FSDP_OK;
}
