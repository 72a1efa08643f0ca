/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "reshard/writer.h"
#include "side.h"

static uint64_t rows_of(const struct fsdp_tensor *tensor)
{
    return tensor->ndim ? tensor->shape[0] : 1;
}

static struct ckpt_tensor tensor_of(const struct ckpt_job *job, int index)
{
    const struct ckpt_job_tensor *t = &job->tensors[index];
    const struct ckpt_job_part *part = &job->parts[t->first_part];
    const struct ckpt_tensor *stored = &job->ckpt->m.layout.tensors[part->tensor];
    struct ckpt_tensor out = *stored;
    out.tensor = t->tensor;
    out.has_fingerprint &=
        t->nparts == 1 && part->order == CKPT_ROWS_SAME && part->nrows == rows_of(&stored->tensor);
    return out;
}

static int by_name(const void *a, const void *b, void *ctx)
{
    const struct ckpt_tensor *tensors = ctx;
    return strcmp(tensors[*(const int *)a].tensor.name, tensors[*(const int *)b].tensor.name);
}

static bool has_containers(const struct ckpt *ckpt)
{
    for (int i = 0; i < ckpt_ntensors(ckpt); i++)
        if (ckpt_tensor_at(ckpt, i)->outer_nbytes)
            return true;
    return false;
}

int ckpt_diff_side_create(struct ckpt_diff_side *out, struct ckpt *ckpt, const struct ckpt *other,
                          const struct ckpt_select *select, struct fsdp_err *err)
{
    static const struct ckpt_reshard_args all = CKPT_RESHARD_ARGS_INIT;
    int rc;

    *out = (struct ckpt_diff_side){.ckpt = ckpt, .args = all};
    out->args.select = *select;
    out->args.output = has_containers(other) ? CKPT_OUTPUT_WEIGHTS : CKPT_OUTPUT_NATIVE;
    out->job.ckpt = ckpt;
    out->job.args = &out->args;
    out->job.writer = ckpt_writer_of(out->args.output);
    FSDP_TRY_GOTO(ckpt_job_select_all(&out->job, err), out);
    size_t count = (size_t)out->job.ntensors;
    rc = FSDP_ENOMEM;
    out->tensors = fsdp_alloc(count, sizeof *out->tensors, "compared tensors", err);
    out->sorted = fsdp_alloc(count, sizeof *out->sorted, "compared tensors", err);
    if (!out->tensors || !out->sorted)
        goto out;
    for (int i = 0; i < out->job.ntensors; i++) {
        out->tensors[i] = tensor_of(&out->job, i);
        out->sorted[i] = i;
    }
    qsort_r(out->sorted, count, sizeof *out->sorted, by_name, out->tensors);
    rc = FSDP_OK;
out:
    if (rc)
        ckpt_diff_side_destroy(out);
    return rc;
}

void ckpt_diff_side_destroy(struct ckpt_diff_side *side)
{
    ckpt_job_tensors_free(&side->job);
    fsdp_free(side->tensors);
    fsdp_free(side->sorted);
    memset(side, 0, sizeof *side);
}

int ckpt_diff_side_find(const struct ckpt_diff_side *side, const char *name)
{
    int low = 0, high = side->job.ntensors;

    while (low < high) {
        const int middle = low + (high - low) / 2;
        const int order = strcmp(name, side->tensors[side->sorted[middle]].tensor.name);
        if (order == 0)
            return side->sorted[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    for (int i = 0; i < side->job.naliases; i++)
        if (!strcmp(side->job.aliases[i].name, name))
            return ckpt_job_find_stored(&side->job, side->job.aliases[i].stored);
    return -1;
}

int ckpt_diff_side_read(const struct ckpt_diff_side *side, int tensor, const struct fsdp_box *box,
                        void *dst, void *scratch, size_t scratch_nbytes, struct fsdp_err *err)
{
    const struct ckpt_job *job = &side->job;
    const struct ckpt_job_tensor *t = &job->tensors[tensor];
    const struct ckpt_job_part *parts = &job->parts[t->first_part];
    size_t row_nbytes = fsdp_dtype_nbytes(t->tensor.dtype);
    struct ckpt_job_dst to = {.dst = dst, .scratch = scratch, .scratch_nbytes = scratch_nbytes};

    if (!t->tensor.ndim)
        return ckpt_job_read(&to, job, parts, box, err);
    for (int d = 1; d < t->tensor.ndim; d++)
        row_nbytes *= box->length[d];
    for (int i = 0; i < t->nparts; i++) {
        struct fsdp_box rows = *box;
        uint64_t begin = box->offset[0], end = begin + box->length[0];
        uint64_t part_end = parts[i].row + parts[i].nrows;
        rows.offset[0] = parts[i].row > begin ? parts[i].row : begin;
        end = part_end < end ? part_end : end;
        if (rows.offset[0] >= end)
            continue;
        rows.length[0] = end - rows.offset[0];
        to.dst = (char *)dst + (rows.offset[0] - begin) * row_nbytes;
        FSDP_TRY(ckpt_job_read(&to, job, &parts[i], &rows, err));
    }
    return FSDP_OK;
}
