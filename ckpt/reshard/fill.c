/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/adapter.h"
#include "fill.h"
#include "file/sink.h"
#include "source/format_ops.h"
#include "util/convert.h"
#include "util/crc.h"

enum { PAGE_NBYTES = 4096 };

int ckpt_fill_create(struct ckpt_fill *f, struct ckpt_job *job, struct fsdp_err *err)
{
    const size_t block_nbytes = job->budget.block_nbytes;

    f->job = job;
    f->out_page = fsdp_alloc(block_nbytes + PAGE_NBYTES, 1, "output buffer", err);
    f->scratch = fsdp_alloc(block_nbytes, 1, "read buffer", err);
    f->in = fsdp_alloc(job->budget.in_nbytes, 1, "conversion buffer", err);
    f->values = fsdp_alloc(job->budget.values_nbytes, 1, "buffer of values", err);
    f->spare = fsdp_alloc(job->budget.spare_nbytes, 1, "spare buffer", err);
    return f->out_page && f->scratch && f->in && f->values && f->spare ? FSDP_OK : FSDP_ENOMEM;
}

void ckpt_fill_free(struct ckpt_fill *f)
{
    fsdp_free(f->out_page);
    fsdp_free(f->scratch);
    fsdp_free(f->in);
    fsdp_free(f->values);
    fsdp_free(f->spare);
}

/* The elements in f->in as the output has them. */
static void compute(char *dst, struct ckpt_fill *f, const struct ckpt_job_tensor *to,
                    enum fsdp_dtype dtype, uint64_t nelem)
{
    if (!to->encoding && to->offset == 0) {
        ckpt_convert(dst, to->tensor.dtype, f->in, dtype, nelem);
        return;
    }
    ckpt_convert(f->values, FSDP_F32, f->in, dtype, nelem);
    for (uint64_t i = 0; to->offset != 0 && i < nelem; i++)
        f->values[i] += to->offset;
    if (to->encoding)
        to->encoding->encode(dst, f->values, nelem);
    else
        ckpt_convert(dst, to->tensor.dtype, f->values, FSDP_F32, nelem);
}

static int fill_quantized(struct ckpt_fill *f, const struct ckpt_move_segment *s, int i,
                          struct fsdp_err *err)
{
    const struct ckpt_job *job = f->job;
    const struct ckpt_job_buffers buffers = {.in = f->in,
                                             .values = f->values,
                                             .most_nelem = job->budget.block_nbytes /
                                                           CKPT_JOB_COMPUTED_NBYTES};
    uint64_t sum = 0;
    const struct ckpt_job_dst read = {.scratch = f->scratch,
                                      .scratch_nbytes = job->budget.block_nbytes,
                                      .spare = f->spare,
                                      .adapters = job->args->adapters,
                                      .sum = &sum};
    char *dst = f->out + s->at;
    FSDP_TRY(ckpt_job_quant_fill(dst, &buffers, &read, job, s->tensor, s->part, &s->box, err));
    f->record.parts[i] = job->tensors[s->tensor].form == CKPT_FORM_CODES ? sum : 0;
    f->out_parts[i] = 0;
    f->record.crc32c =
        ckpt_crc32c(f->record.crc32c, dst, ckpt_job_nbytes(&job->tensors[s->tensor], s->nelem));
    return FSDP_OK;
}

static int fill_segment(struct ckpt_fill *f, const struct ckpt_move_task *task, int i,
                        struct fsdp_err *err)
{
    struct ckpt_job *job = f->job;
    const struct ckpt_move_segment *s = &task->segments[i];
    if (job->tensors[s->tensor].form)
        return fill_quantized(f, s, i, err);
    const struct ckpt_job_part *from = &job->parts[s->part];
    const struct fsdp_tensor *to = &job->tensors[s->tensor].tensor;
    enum fsdp_dtype dtype = ckpt_job_dtype(job, from->tensor);
    bool changes = job->args->average ||
                   ckpt_adapters_change(job->args->adapters,
                                        ckpt_own_name(&job->ckpt->m.layout.tensors[from->tensor]));
    const struct ckpt_job_tensor *made = &job->tensors[s->tensor];
    bool same = dtype == to->dtype && !made->encoding && made->offset == 0;
    char *dst = f->out + s->at;
    uint32_t *crc32c = &f->record.crc32c;
    uint64_t part = 0;

    const struct ckpt_job_dst to_here = {.dst = same ? dst : f->in,
                                         .scratch = f->scratch,
                                         .scratch_nbytes = job->budget.block_nbytes,
                                         .spare = f->spare,
                                         .narrow = fsdp_dtype_nbytes(to->dtype) < 4,
                                         .adapters = job->args->adapters,
                                         .sum = &part,
                                         .crc32c = same && !changes ? crc32c : NULL};
    FSDP_TRY(ckpt_job_read(&to_here, job, from, &s->box, err));
    if (!same)
        compute(dst, f, made, dtype, s->nelem);
    f->record.parts[i] = part;
    f->out_parts[i] = part;
    if (made->encoding) {
        *crc32c = ckpt_crc32c(*crc32c, dst, ckpt_job_nbytes(made, s->nelem));
        return FSDP_OK;
    }
    if (!same || changes || from->order != CKPT_ROWS_SAME || job->tensors[s->tensor].nparts > 1 ||
        from->nrows != (job->ckpt->m.layout.tensors[from->tensor].tensor.ndim
                            ? job->ckpt->m.layout.tensors[from->tensor].tensor.shape[0]
                            : 1))
        f->out_parts[i] =
            ckpt_fingerprint_part_summed(same && !changes ? NULL : crc32c, to, &s->box, dst);
    return FSDP_OK;
}

/* Is the range there already? */
static int recall(bool *same, struct ckpt_fill *f, const struct ckpt_move_task *task,
                  struct fsdp_err *err)
{
    const struct ckpt_job *job = f->job;
    *same = false;
    if (!ckpt_journal_find(&f->record, &job->journal, (uint32_t)task->file, task->pos) ||
        f->record.nbytes != task->nbytes || (int)f->record.nparts != task->nsegments)
        return FSDP_OK;
    FSDP_TRY(ckpt_job_sink_recall(same, job->files[task->file].sink, f->out, task->nbytes,
                                  task->pos, f->record.crc32c, err));
    for (int i = 0; *same && i < task->nsegments; i++) {
        const struct ckpt_move_segment *s = &task->segments[i];
        const struct ckpt_job_tensor *t = &job->tensors[s->tensor];
        if (!t->encoding && !t->form)
            f->out_parts[i] = ckpt_fingerprint_part(&t->tensor, &s->box, f->out + s->at);
    }
    return FSDP_OK;
}

int ckpt_fill_task(bool *recalled, struct ckpt_fill *f, const struct ckpt_move_task *task,
                   struct fsdp_err *err)
{
    f->out = f->out_page + task->pos % PAGE_NBYTES;
    FSDP_TRY(recall(recalled, f, task, err));
    if (*recalled)
        return FSDP_OK;
    f->record.crc32c = 0;
    for (int i = 0; i < task->nsegments; i++)
        FSDP_TRY(fill_segment(f, task, i, err));
    f->record.file = (uint32_t)task->file;
    f->record.pos = task->pos;
    f->record.nbytes = task->nbytes;
    f->record.nparts = (uint32_t)task->nsegments;
    return ckpt_job_sink_put(f->job->files[task->file].sink, f->out, task->nbytes, task->pos,
                             f->record.crc32c, err);
}
