/* SPDX-License-Identifier: Apache-2.0 */
/* The lists that a job is made of. */
#include <string.h>

#include "format/hf/hf_names.h"
#include "job.h"
#include "layout/layout.h"

int ckpt_job_add_tensor(struct ckpt_job *job, const struct fsdp_tensor *tensor,
                        enum fsdp_slice_kind kind, struct fsdp_err *err)
{
    struct ckpt_job_tensor *tensors =
        fsdp_alloc_grow(job->tensors, (size_t)job->ntensors, &job->max_tensors, sizeof *tensors,
                        "job tensors", err);
    if (!tensors)
        return FSDP_ENOMEM;
    job->tensors = tensors;
    job->tensors[job->ntensors++] = (struct ckpt_job_tensor){
        .tensor = *tensor, .kind = kind, .first_part = job->nparts, .unit = -1, .param = -1};
    return FSDP_OK;
}

enum fsdp_slot_kind ckpt_job_slot_kind(const struct ckpt_job *job, const struct ckpt_job_tensor *t)
{
    const struct ckpt_manifest *m = &job->ckpt->m;
    const char *dot = strrchr(t->tensor.name, '.');

    for (int k = 0; t->kind == FSDP_SLICE_OPTIM && dot && k < m->noptim; k++)
        if (!strcmp(dot + 1, m->optim[k].name))
            return m->optim[k].kind;
    return FSDP_PER_ELEMENT;
}

const char *ckpt_job_keep_name(struct ckpt_job *job, const char *name, struct fsdp_err *err)
{
    const size_t nbytes = strlen(name) + 1;
    char *copy = ckpt_pool_text(&job->names, nbytes, err);
    return copy ? memcpy(copy, name, nbytes) : NULL;
}

int ckpt_job_add_part(struct ckpt_job *job, const struct ckpt_job_part *part, struct fsdp_err *err)
{
    struct ckpt_job_part *parts = fsdp_alloc_grow(job->parts, (size_t)job->nparts, &job->max_parts,
                                                  sizeof *parts, "job parts", err);
    if (!parts)
        return FSDP_ENOMEM;
    job->parts = parts;
    job->parts[job->nparts++] = *part;
    job->tensors[job->ntensors - 1].nparts++;
    return FSDP_OK;
}

uint64_t ckpt_job_nbytes(const struct ckpt_job_tensor *t, uint64_t nelem)
{
    return t->encoding ? nelem / t->encoding->block_nelem * t->encoding->block_nbytes
                       : nelem * fsdp_dtype_nbytes(t->tensor.dtype);
}

uint64_t ckpt_job_nelem(const struct ckpt_job_tensor *t, uint64_t nbytes)
{
    return t->encoding ? nbytes / t->encoding->block_nbytes * t->encoding->block_nelem
                       : nbytes / fsdp_dtype_nbytes(t->tensor.dtype);
}

bool ckpt_job_computes(const struct ckpt_job *job, const struct ckpt_job_tensor *t)
{
    bool computes = t->encoding || t->form || t->offset != 0;
    for (int i = t->first_part; !computes && i < t->first_part + t->nparts; i++)
        computes = job->parts[i].order == CKPT_ROWS_COLUMNS || job->parts[i].skip;
    return computes;
}

const char *ckpt_job_dtype_name(const struct ckpt_job *job)
{
    int dtype = -1;
    for (int i = 0; i < job->ntensors; i++) {
        if (!fsdp_dtype_is_float(job->tensors[i].tensor.dtype) ||
            job->tensors[i].form == CKPT_FORM_CODES)
            continue;
        if (dtype >= 0 && dtype != (int)job->tensors[i].tensor.dtype)
            return NULL;
        dtype = (int)job->tensors[i].tensor.dtype;
    }
    return dtype < 0 ? NULL : ckpt_hf_dtype_name((enum fsdp_dtype)dtype);
}

struct fsdp_box ckpt_job_piece_box(const struct ckpt_job *job, const struct ckpt_job_piece *piece)
{
    const struct fsdp_tensor *t = &job->tensors[piece->tensor].tensor;
    struct fsdp_box box = ckpt_box_whole(t);
    if (t->ndim) {
        box.offset[0] = piece->row;
        box.length[0] = piece->nrows;
    }
    return box;
}
