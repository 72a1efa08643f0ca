/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <unistd.h>

#include "average/average.h"
#include "ckpt/adapter.h"
#include "writer.h"
#include "keep/card.h"
#include "keep/tree.h"
#include "util/workers.h"

enum { MAX_THREADS = 8, MAX_GIVEN_THREADS = CKPT_MAX_WORKERS };

/* Programs would take a folder of adapters and a config.json for the model; and only native
 * checkpoints can tell what belongs to adapters, and have PEFT's files. */
static int check_is_model(const struct ckpt_job *job, struct fsdp_err *err)
{
    const char *path = ckpt_path(job->ckpt), *out = job->args->out;

    if (job->writer->own_folder || !ckpt_holds_adapters(job->ckpt))
        return FSDP_OK;
    if (job->writer->single_file)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "'%s' holds adapters and not the model that they belong to; to "
                            "merge both: ckpt-merge --adapter %s MODEL -o %s",
                            path, path, out);
    return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                        "'%s' holds adapters, and files of torch.distributed.checkpoint can carry "
                        "neither their configuration nor which model they belong to; use --format "
                        "native, or merge them into the model: ckpt-merge --adapter %s MODEL -o %s",
                        path, path, out);
}

void ckpt_reshard_args_init(struct ckpt_reshard_args *out)
{
    *out = (struct ckpt_reshard_args)CKPT_RESHARD_ARGS_INIT;
}

static int check_average(const struct ckpt_reshard_args *args, struct fsdp_err *err)
{
    if (args->average && args->all)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "an average is of weights, not of all tensors: a run does not resume "
                            "from an average of its optimizer's state");
    if (args->average && args->adapters && ckpt_adapters_scale(args->adapters))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "an adapter of DoRA is scaled by whole weights: write the average "
                            "first, and add the adapter to what comes out");
    return FSDP_OK;
}

static int check_args(struct ckpt_job *job, struct fsdp_err *err)
{
    const struct ckpt_reshard_args *args = job->args;
    if (args->version != CKPT_RESHARD_ARGS_VERSION)
        return fsdp_err_set(err, FSDP_EINVAL, "ckpt_reshard: arguments of version %u",
                            args->version);
    if (!args->out || !args->out[0])
        return fsdp_err_set(err, FSDP_EINVAL, "ckpt_reshard: no output is named");
    if (args->shard_size < 1 || args->replicate_size < 1 || args->shard_size > CKPT_MAX_RANKS ||
        args->replicate_size > CKPT_MAX_RANKS / args->shard_size)
        return fsdp_err_set(err, FSDP_EINVAL, "a mesh of %d x %d is not one of 1 to %d ranks",
                            args->replicate_size, args->shard_size, CKPT_MAX_RANKS);
    if (args->nthreads < 0 || args->nthreads > MAX_GIVEN_THREADS)
        return fsdp_err_set(err, FSDP_EINVAL, "%d threads: 1 to %d are accepted", args->nthreads,
                            MAX_GIVEN_THREADS);
    if (!(job->writer = ckpt_writer_of(args->output)))
        return fsdp_err_set(err, FSDP_EINVAL, "ckpt_reshard: unknown output %d", (int)args->output);
    if (args->compress == CKPT_COMPRESS_ZSTD && !job->writer->compresses)
        return fsdp_err_set(
            err, FSDP_EUNSUPPORTED,
            "only native checkpoints are compressed: other readers do not know such "
            "files");
    if (args->compress == CKPT_COMPRESS_ZSTD)
        FSDP_TRY(ckpt_codec_check(args->out, err));
    if (!job->writer->sharded) /* weights for other programs */
        FSDP_TRY(ckpt_unpack(job->ckpt, err));
    FSDP_TRY(ckpt_job_check_codes(job, err));
    FSDP_TRY(check_is_model(job, err));
    if (args->adapters && args->select.nmaps)
        return fsdp_err_set_blame(err, FSDP_EINVAL, "map",
                                  "adapters are named as the model is: merge them first, "
                                  "and map the names of what comes out");
    if (args->adapters)
        FSDP_TRY(ckpt_adapters_check(args->adapters, job->ckpt, err));
    FSDP_TRY(check_average(args, err));
    if (!args->dtype || job->writer->own_types)
        return FSDP_OK;
    job->cast = true;
    FSDP_TRY(fsdp_dtype_parse(&job->dtype, args->dtype, err));
    if (!fsdp_dtype_is_float(job->dtype))
        return fsdp_err_set_blame(err, FSDP_EINVAL, "dtype",
                                  "weights cannot be cast to %s, which is not a floating "
                                  "type; use float32, bfloat16, float16, ...",
                                  fsdp_dtype_name(job->dtype));
    return FSDP_OK;
}

/* Two for each processor, so that some compute while others wait for the disk; one for each where
 * they compress, and hardly ever wait. */
static int choose_threads(const struct ckpt_job *job)
{
    long nthreads = sysconf(_SC_NPROCESSORS_ONLN);
    if (job->args->nthreads)
        return job->args->nthreads;
    if (ckpt_store_is_far(job->store) || ckpt_is_far(job->ckpt))
        return MAX_THREADS;
    if (job->args->compress != CKPT_COMPRESS_ZSTD)
        nthreads *= 2;
    return nthreads < 2 ? 2 : nthreads > MAX_THREADS ? MAX_THREADS : (int)nthreads;
}

/* Bytes of the conversion buffer per byte written. */
static size_t widening_of(const struct ckpt_job *job)
{
    size_t widening = 0;
    for (int i = 0; i < job->ntensors; i++) {
        const struct ckpt_job_tensor *t = &job->tensors[i];
        size_t to = fsdp_dtype_nbytes(t->tensor.dtype);
        if (ckpt_job_computes(job, t) && !widening)
            widening = 1;
        for (int k = 0; !t->form && k < t->nparts; k++) {
            enum fsdp_dtype dtype = ckpt_job_dtype(job, job->parts[t->first_part + k].tensor);
            size_t need = dtype == t->tensor.dtype ? 0 : (fsdp_dtype_nbytes(dtype) + to - 1) / to;
            widening = need > widening ? need : widening;
        }
    }
    return widening;
}

static bool computes(const struct ckpt_job *job)
{
    bool computes = false;
    for (int i = 0; !computes && i < job->ntensors; i++)
        computes = ckpt_job_computes(job, &job->tensors[i]);
    return computes;
}

/* Bytes of a block that has room for a row of each weight that is quantized. */
static uint64_t least_block(const struct ckpt_job *job)
{
    const uint64_t need = ckpt_job_quant_row_nelem(job) * CKPT_JOB_COMPUTED_NBYTES;
    uint64_t nbytes = CKPT_MIN_BLOCK_NBYTES;
    while (nbytes < need)
        nbytes *= 2;
    return nbytes;
}

/* Buffers of all threads fit in the budget: first by fewer threads, then by smaller blocks, so that
 * most budgets give the same blocks and a killed run resumes under any of them. */
static int fit_memory(struct ckpt_job *job, struct fsdp_err *err)
{
    bool compress = job->args->compress == CKPT_COMPRESS_ZSTD;
    uint64_t widening = widening_of(job), mem = job->args->mem_nbytes;
    uint64_t store_mem = ckpt_store_memory(job->store, mem / 2) ? mem / 2 : 0;
    mem -= store_mem;
    const unsigned computing = computes(job) ? 3 : 0; /* blocks for values, and to spare */
    uint64_t each = 2 + widening + computing +
                    (compress ? 4 : 0); /* chunks and compressors: 4 blocks a thread */
    FSDP_TRY(ckpt_mem_check(mem, each * least_block(job), err));
    struct ckpt_job_budget *b = &job->budget;
    b->block_nbytes = CKPT_JOB_BLOCK_NBYTES;
    b->nthreads = choose_threads(job);
    while (b->nthreads > 1 && (uint64_t)b->nthreads * each * b->block_nbytes > mem)
        b->nthreads--;
    while (each * b->block_nbytes > mem)
        b->block_nbytes /= 2;
    b->in_nbytes = widening * b->block_nbytes;
    b->values_nbytes = computing ? b->block_nbytes : 0;
    b->spare_nbytes = computing ? (computing - 1) * b->block_nbytes : 0;
    b->window = b->nthreads + 2;
    b->memory = (uint64_t)b->nthreads * each * b->block_nbytes + store_mem;
    return FSDP_OK;
}

/* The output goes while the journal's lock keeps other runs of the job away. One that comes before
 * the folder is gone, too, keeps it. */
static void drop_temp(struct ckpt_job *job)
{
    const struct ckpt_temp temp = ckpt_job_temp(job);
    if (!ckpt_temp_is_plain(&temp)) /* it was refused, and is somebody else's */
        return;
    char *journal = ckpt_path_join(job->commit.temp, "journal", NULL);
    int rc = ckpt_temp_drop(&temp, job->commit.out);
    ckpt_journal_close(&job->journal); /* NFS keeps a name for a file that is removed while open */
    if (rc == FSDP_OK && journal) {
        ckpt_store_remove(job->store, journal, NULL);
        ckpt_store_remove(job->store, job->commit.temp, NULL);
    }
    fsdp_free(journal);
}

/* Does this job write an object of that name to its output folder? */
static bool is_written(const void *ctx, const struct ckpt_store_item *item)
{
    const struct ckpt_job *job = ctx;
    for (int i = 0; i < job->nfiles; i++)
        if (!strcmp(item->path, job->files[i].name))
            return true;
    for (int i = 0; i < job->ckpt->m.nextras; i++)
        if (!strcmp(item->path, ckpt_path_base(job->ckpt->m.extras[i].path)))
            return true;
    if (job->args->card && job->writer->has_card && !strcmp(item->path, CKPT_CARD_NAME))
        return true;
    return job->writer->index_name && !strcmp(item->path, job->writer->index_name);
}

/* The same command, elsewhere, writes the same files in the same place: it may be about to publish
 * them, or have done so, and nothing tells. What is there stays. */
static bool is_shared(const struct ckpt_job *job, int rc)
{
    return rc == FSDP_EEXIST && job->notes.folder && job->folder && !job->writer->own_folder;
}

/* An output that has no folder of its own lies where objects of others may lie, too. */
static void drop_output(struct ckpt_job *job)
{
    struct ckpt_tree tree;
    struct fsdp_err why = FSDP_ERR_INIT;
    if (job->writer->own_folder) {
        ckpt_store_drop_tree(job->store, job->commit.out);
        return;
    }
    int rc =
        ckpt_tree_list(&tree, job->store, job->commit.out, is_written, job, INT64_MAX / 2, &why);
    if (rc == FSDP_OK)
        rc = ckpt_tree_remove(&tree, job->commit.out, &why);
    if (rc && rc != FSDP_ENOTFOUND)
        fsdp_log(FSDP_LOG_WARN, "what was written is left in '%s': %s", job->commit.out, why.text);
    ckpt_tree_free(&tree);
}

/* Unless all is there and published, by a word whose answer was lost or by the same command
 * elsewhere, or that cannot be told. */
static void drop_in_place(struct ckpt_job *job)
{
    bool there = false;
    if (ckpt_commit_is_there(&there, &job->commit, NULL) || (there && job->folder))
        return;
    if (job->folder) /* one object is finished, or somebody else's, as other uploads of it are */
        drop_output(job);
    ckpt_store_drop_tree(job->store, job->notes.folder);
}

/* Of an output that is published. */
static int remove_left(struct ckpt_job *job)
{
    struct ckpt_temp temp = ckpt_job_temp(job);
    ckpt_temp_remove_left(&temp, job->notes.folder ? job->notes.folder : job->commit.temp);
    job->made_temp = false;
    return FSDP_OK;
}

/* Has the same command, elsewhere, finished the object since this one looked whether it is there?
 */
static bool came_second(const struct ckpt_job *job, int rc)
{
    bool there = false;
    return rc == FSDP_EEXIST && job->notes.folder && !job->folder &&
           ckpt_commit_is_there(&there, &job->commit, NULL) == FSDP_OK && there;
}

static int run_job(struct ckpt_job *job, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    bool done;
    if (!job->args->average) /* which did, of all */
        ckpt_warn_lacks(job->ckpt);
    FSDP_TRY(check_args(job, err));
    FSDP_TRY(ckpt_job_name(job, err));
    FSDP_TRY(ckpt_job_select(job, err));
    FSDP_TRY(fit_memory(job, err));
    FSDP_TRY(ckpt_job_arrange(job, err));
    FSDP_TRY(ckpt_job_name_temp(job, err));
    FSDP_TRY(ckpt_job_refuse(&done, job, err));
    if (done)
        return remove_left(job);
    FSDP_TRY(ckpt_job_begin(job, err));
    if (job->args->dry_run)
        return FSDP_OK;
    int rc = ckpt_job_move(job, &why);
    if (came_second(job, rc))
        return remove_left(job);
    FSDP_TRY(fsdp_err_pass(err, rc, &why));
    FSDP_TRY(ckpt_unchanged(job->ckpt, err));
    return ckpt_job_publish(job, err);
}

static void fill_result(struct ckpt_reshard_result *out, const struct ckpt_job *job, double begun)
{
    const struct ckpt_layout *layout = &job->ckpt->m.layout;
    *out = (struct ckpt_reshard_result){
        .nbytes_written = job->nbytes.written,
        .nbytes_resumed = job->nbytes.resumed,
        .nbytes_memory = job->budget.memory,
        .nbytes_within = job->copies.nbytes,
        .ntensors = job->ntensors,
        .nfiles = job->nfiles,
        .nthreads = job->budget.nthreads,
        .seconds = fsdp_time_now() - begun,
    };
    if (!job->args->dry_run)
        out->nbytes_written = 0;
    for (int i = 0; !job->args->dry_run && i < job->nfiles; i++)
        out->nbytes_written += job->files[i].stored_nbytes;
    for (int i = 0; i < job->nparts; i++) {
        const int stored = job->parts[i].tensor;
        const struct fsdp_tensor *t = &layout->tensors[stored].tensor;
        const uint64_t elem = job->args->average
                                  ? ckpt_average_elem_nbytes(job->args->average, stored)
                                  : fsdp_dtype_nbytes(t->dtype);
        out->nbytes_read += job->parts[i].nrows * fsdp_tensor_row_nelem(t) * elem;
    }
}

int ckpt_reshard(struct ckpt_reshard_result *out, struct ckpt *ckpt,
                 const struct ckpt_reshard_args *args, struct fsdp_err *err)
{
    struct ckpt_job job = {.ckpt = ckpt, .args = args};
    double begun = fsdp_time_now();
    struct fsdp_err changed = FSDP_ERR_INIT;
    int rc = run_job(&job, err);

    if (rc == FSDP_ECORRUPT && ckpt_unchanged(ckpt, &changed) == FSDP_ECORRUPT)
        fsdp_err_pass(err, rc, &changed); /* the reason for what was found */
    if (rc == FSDP_OK && out)
        fill_result(out, &job, begun);
    bool kept = ckpt_job_keeps(&job, rc);
    if (rc && job.made_temp) {
        if (kept)
            fsdp_log(FSDP_LOG_INFO,
                     "what was written is kept in '%s'; the same command resumes from there",
                     job.notes.folder ? job.commit.out : job.commit.temp);
        else if (job.notes.folder && !is_shared(&job, rc))
            drop_in_place(&job);
        else if (!job.notes.folder)
            drop_temp(&job);
    }
    ckpt_journal_close(&job.journal);
    ckpt_job_files_free(&job);
    if (job.writer && job.writer->end)
        job.writer->end(&job);
    ckpt_job_tensors_free(&job);
    fsdp_free(job.proof.sums);
    fsdp_free(job.proof.seen);
    ckpt_job_copies_free(&job);
    fsdp_free(job.notes.folder);
    ckpt_commit_end(&job.commit);
    return rc;
}
