/* SPDX-License-Identifier: Apache-2.0 */
/* A pass over weights that have one scale each: it follows from the largest magnitude, and the
 * first code needs it. The same rows are read again when codes are written. */
#include "format/ctensors/ctensors.h"
#include "util/workers.h"
#include "writer.h"

/* The next rows to look at. */
struct place {
    int weight, part; /* part: of the weight */
    uint64_t row, nrows;
};

struct measure {
    struct ckpt_job *job;
    pthread_mutex_t lock; /* next, and the weights' magnitudes */
    struct place next;
    uint64_t most_nelem;
};

/* The lock is held. */
static bool take_rows(struct place *out, struct measure *m)
{
    const struct ckpt_job_quant *q = m->job->quant;
    while (m->next.weight < q->nweights) {
        const struct ckpt_job_weight *w = &q->weights[m->next.weight];
        if (m->next.part == w->nparts) {
            m->next = (struct place){.weight = m->next.weight + 1};
            continue;
        }
        const struct ckpt_job_part *part = &m->job->parts[w->first_part + m->next.part];
        const uint64_t most = m->most_nelem / w->tensor.shape[1];
        const uint64_t left = part->nrows - m->next.row;
        *out = m->next;
        out->part = w->first_part + m->next.part;
        out->row = part->row + m->next.row;
        out->nrows = left < most ? left : most;
        m->next.row += out->nrows;
        if (m->next.row == part->nrows) {
            m->next.part++;
            m->next.row = 0;
        }
        return true;
    }
    return false;
}

/* *any: there were rows left. */
static int measure_rows(bool *any, struct measure *m, const struct ckpt_job_buffers *buffers,
                        const struct ckpt_job_dst *read, struct fsdp_err *err)
{
    struct ckpt_job *job = m->job;
    const struct ckpt_reshard_args *args = job->args;
    struct place at;

    pthread_mutex_lock(&m->lock);
    *any = take_rows(&at, m);
    const bool stop =
        *any && args->progress && args->progress(args->progress_ctx, 0, job->nbytes.total);
    pthread_mutex_unlock(&m->lock);
    if (!*any)
        return FSDP_OK;
    if (stop)
        return fsdp_err_set(err, FSDP_ECANCELED, "writing '%s' was stopped", job->commit.final);
    FSDP_TRY(ckpt_job_quant_read(buffers, read, job, at.weight, at.part, at.row, at.nrows, err));
    struct ckpt_job_weight *w = &job->quant->weights[at.weight];
    const float largest = ckpt_ct_largest(buffers->values, at.nrows * w->tensor.shape[1]);
    pthread_mutex_lock(&m->lock);
    if (largest > w->largest)
        w->largest = largest;
    pthread_mutex_unlock(&m->lock);
    return FSDP_OK;
}

static int measure_worker(struct ckpt_workers *workers, int index, struct fsdp_err *err)
{
    struct measure *m = workers->ctx;
    const struct ckpt_job_budget *b = &m->job->budget;
    (void)index;
    const struct ckpt_job_buffers buffers = {
        .in = fsdp_alloc(b->in_nbytes, 1, "conversion buffer", err),
        .values = fsdp_alloc(b->values_nbytes, 1, "buffer of values", err),
        .most_nelem = m->most_nelem};
    const struct ckpt_job_dst read = {.scratch = fsdp_alloc(b->block_nbytes, 1, "read buffer", err),
                                      .scratch_nbytes = b->block_nbytes,
                                      .spare = fsdp_alloc(b->spare_nbytes, 1, "spare buffer", err),
                                      .adapters = m->job->args->adapters};
    int rc = buffers.in && buffers.values && read.scratch && read.spare ? FSDP_OK : FSDP_ENOMEM;
    bool any = true;
    while (rc == FSDP_OK && any && !ckpt_workers_stopped(workers))
        rc = measure_rows(&any, m, &buffers, &read, err);
    fsdp_free(buffers.in);
    fsdp_free(buffers.values);
    fsdp_free(read.scratch);
    fsdp_free(read.spare);
    return rc;
}

int ckpt_job_measure(struct ckpt_job *job, struct fsdp_err *err)
{
    if (!job->quant || job->quant->scheme->strategy != CKPT_CT_TENSOR)
        return FSDP_OK;
    struct measure m = {.job = job,
                        .most_nelem = job->budget.block_nbytes / CKPT_JOB_COMPUTED_NBYTES};
    pthread_mutex_init(&m.lock, NULL);
    const int rc = ckpt_workers_run(job->budget.nthreads, measure_worker, &m, err);
    pthread_mutex_destroy(&m.lock);
    return rc;
}
