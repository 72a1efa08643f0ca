/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/setup/data.h"
#include "warm.h"

/* ---- the file -------------------------------------------------------------------------------- */

enum { MOST_NBYTES = 1 << 20, PATH_NBYTES = 1024 };

struct header {
    char magic[16];
    char who[NN_TUNING_WHO];
    uint64_t nbytes, hash; /* of the table that follows */
};
static const char MAGIC[16] = "fsdp products 2";

void train_warm_read(struct nn_tuning *t, const char *path)
{
    struct header h;
    char more;
    FILE *file = NULL;
    const bool absent = fsdp_file_stream(&file, path, NULL) == FSDP_ENOTFOUND;
    bool sound = false;

    t->table = NULL;
    t->nbytes = 0;
    if (file && fread(&h, sizeof h, 1, file) == 1 && !memcmp(h.magic, MAGIC, sizeof MAGIC) &&
        !strncmp(h.who, t->who, sizeof h.who) && h.nbytes <= MOST_NBYTES &&
        (t->table = fsdp_alloc((size_t)h.nbytes + 1, 1, "table of products", NULL)))
        sound = fread(t->table, 1, (size_t)h.nbytes, file) == h.nbytes &&
                fread(&more, 1, 1, file) == 0 &&
                fsdp_hash(FSDP_HASH_SEED, t->table, (size_t)h.nbytes) == h.hash;
    if (file)
        fclose(file);
    if (sound) {
        t->nbytes = (size_t)h.nbytes;
        return;
    }
    fsdp_free(t->table);
    t->table = NULL;
    if (!absent)
        fsdp_log(FSDP_LOG_WARN,
                 "%s cannot be read, is damaged, or is not of this GPU (%s): products are timed "
                 "anew",
                 path, t->who);
}

struct tuning_file {
    const struct nn_tuning *tuning;
    const char *path;
};

static int put_tuning(FILE *to, const void *ctx, struct fsdp_err *err)
{
    const struct tuning_file *file = ctx;
    const struct nn_tuning *t = file->tuning;
    struct header h = {.nbytes = t->nbytes};

    memcpy(h.magic, MAGIC, sizeof MAGIC);
    snprintf(h.who, sizeof h.who, "%s", t->who);
    h.hash = fsdp_hash(FSDP_HASH_SEED, t->table, t->nbytes);
    if (fwrite(&h, sizeof h, 1, to) != 1 || fwrite(t->table, 1, t->nbytes, to) != t->nbytes ||
        fflush(to) || fsync(fileno(to)))
        return fsdp_err_sys(err, errno, "cannot write '%s'", file->path);
    return FSDP_OK;
}

void train_warm_write(const struct nn_tuning *t, const char *path)
{
    const struct tuning_file file = {t, path};
    struct fsdp_err err = FSDP_ERR_INIT;

    if (fsdp_folder_make_above(path, 0777, &err) ||
        fsdp_file_replace(path, put_tuning, &file, &err))
        fsdp_log(FSDP_LOG_WARN,
                 "%s; the next run times its products again (FSDP_CUDA_TUNE names a folder)",
                 err.text);
}

/* FSDP_CUDA_TUNE: off, or a folder. "": there is no place for a file. */
static const char *file_of(char path[PATH_NBYTES], const char *who)
{
    const char *folder = getenv("FSDP_CUDA_TUNE"), *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME"), *below = "";

    if (!folder || !*folder) {
        folder = cache && *cache == '/' ? cache : home;
        below = folder == cache ? "/fsdp" : "/.cache/fsdp";
    }
    path[0] = 0;
    if (folder && *folder)
        snprintf(path, PATH_NBYTES, "%s%s/products-%016" PRIx64, folder, below,
                 fsdp_hash(FSDP_HASH_SEED, who, strlen(who)));
    return path;
}

/* ---- products -------------------------------------------------------------------------------- */

/* Rank 0's part: what is known, and what it finds. */
static int decide(struct train_loop *l, const struct nn_ops *nn, struct nn_tuning *t,
                  struct fsdp_err *err)
{
    char path[PATH_NBYTES];

    FSDP_TRY(nn->tune(l->words.lane, t, false, err)); /* who */
    if (*file_of(path, t->who))
        train_warm_read(t, path);
    FSDP_TRY(nn->tune(l->words.lane, t, true, err));
    if (t->ntimed && *path)
        train_warm_write(t, path);
    return FSDP_OK;
}

/* Rank 0's table, so that all ranks make the same products of the same numbers. */
static int follow(struct train_loop *l, const struct nn_ops *nn, struct nn_tuning *t,
                  struct fsdp_err *err)
{
    char theirs[NN_TUNING_WHO];
    uint64_t nbytes = t->nbytes;
    int rc = FSDP_OK;

    memcpy(theirs, t->who, sizeof theirs);
    FSDP_TRY(fsdp_oob_broadcast(l->oob, theirs, sizeof theirs, 0, err));
    FSDP_TRY(fsdp_oob_broadcast(l->oob, &nbytes, sizeof nbytes, 0, err));
    if (!nbytes)
        return FSDP_OK;
    if (l->oob->rank != 0 &&
        !(t->table = fsdp_alloc((size_t)nbytes + 1, 1, "table of products", err)))
        rc = FSDP_ENOMEM;
    FSDP_TRY(fsdp_oob_agree(l->oob, rc, err));
    FSDP_TRY(fsdp_oob_broadcast(l->oob, t->table, (size_t)nbytes, 0, err));
    if (l->oob->rank == 0)
        return FSDP_OK;
    FSDP_TRY(nn->tune(l->words.lane, t, false, err)); /* who, before there is a table */
    t->nbytes = (size_t)nbytes;
    if (!strcmp(theirs, t->who))
        return nn->tune(l->words.lane, t, false, err);
    fsdp_log(FSDP_LOG_WARN,
             "its products are made as cuBLASLt proposes first: rank 0 has timed them on %s, and "
             "this is %s",
             theirs, t->who);
    return FSDP_OK;
}

static int tune(struct train_loop *l, struct nn_tuning *t, struct fsdp_err *err)
{
    const char *choice = getenv("FSDP_CUDA_TUNE");
    const struct nn_ops *nn;

    FSDP_TRY(nn_ops_of(&nn, l->parts->device, err));
    if (!nn->tune)
        return FSDP_OK;
    int32_t wanted = !choice || strcmp(choice, "off") != 0;
    FSDP_TRY(fsdp_oob_broadcast(l->oob, &wanted, sizeof wanted, 0, err));
    if (!wanted)
        return FSDP_OK;
    int rc = l->oob->rank == 0 ? decide(l, nn, t, err) : FSDP_OK;
    FSDP_TRY(fsdp_oob_agree(l->oob, rc, err));
    return fsdp_oob_agree(l->oob, follow(l, nn, t, err), err);
}

/* ---- a pass ---------------------------------------------------------------------------------- */

/* Rows of any tokens, in the memory of the first step's, each of so many documents. */
static void make_rows(struct train_loop *l, int nmicro, size_t ndocuments)
{
    const size_t T = (size_t)l->parts->config->data.seq_len;
    const size_t nrows = (size_t)nmicro * (size_t)l->parts->batch.micro_rows *
                         (size_t)train_parts_row_sequences(l->parts);
    const unsigned vocab = (unsigned)l->parts->ops->vocab_size(l->parts->model);

    for (size_t i = 0; i < nrows * (T + 1); i++)
        l->rows.tokens[i] = (int32_t)((unsigned)i * 2654435761u % vocab);
    for (size_t i = 0; l->rows.starts && i < nrows * T; i++) {
        l->rows.labels[i] = (int32_t)((unsigned)i * 2654435761u % vocab);
        const size_t document = i % T * ndocuments / T;
        l->rows.starts[i] = (int32_t)((document * T + ndocuments - 1) / ndocuments);
    }
}

static int run_rows(struct train_loop *l, int nmicro, struct fsdp_err *err)
{
    const struct train_parts *p = l->parts;

    for (int micro = 0; micro < nmicro; micro++) {
        struct model_batch batch =
            train_rows_batch(&l->rows, (size_t)(micro * p->batch.micro_rows), p->batch.micro_rows);
        batch.loss_scale = 1 / train_rows_ntokens(&l->rows);
        batch.dropout = true;
        FSDP_TRY(fsdp_micro_begin(p->fsdp, FSDP_TRAIN, micro, err));
        FSDP_TRY(p->ops->run(p->model, p->fsdp, &batch, true, l->words.eval_sums, err));
        FSDP_TRY(fsdp_micro_end(p->fsdp, err));
    }
    return fsdp_sync(p->fsdp, err);
}

/* Attention has a plan for each power of two of documents, with kernels of its own. The greatest is
 * for the most documents, which need not be a power of two. */
static int run_documents(struct train_loop *l, struct fsdp_err *err)
{
    const struct train_parts *p = l->parts;
    const int nrows = p->batch.micro_rows * train_parts_row_sequences(p);
    const int most = p->ops->most_documents(p->model) / nrows;

    for (int ndocuments = 2; ndocuments / 2 < most; ndocuments *= 2) {
        make_rows(l, 1, (size_t)(ndocuments < most ? ndocuments : most));
        FSDP_TRY(run_rows(l, 1, err));
        fsdp_step_reset(p->fsdp);
    }
    return FSDP_OK;
}

static int warm_pass(struct train_loop *l, struct fsdp_err *err)
{
    const struct train_parts *p = l->parts;
    const int nmicro = p->batch.accumulation < 2 ? p->batch.accumulation : 2;

    FSDP_TRY(run_documents(l, err));
    make_rows(l, nmicro, 1);
    FSDP_TRY(run_rows(l, nmicro, err));
    FSDP_TRY(fsdp_warm(p->fsdp, err)); /* what only the last micro-step and the update do */
    fsdp_step_reset(p->fsdp);
    /* The communicator of all ranks. */
    return fsdp_control_sum(p->fsdp, l->words.eval_sums, 1, err);
}

/* What the device holds from here on: scripts/check_gpu.sh holds the GPU's own count against it. */
static void show_memory(const struct train_loop *l)
{
    enum { MAX_ROWS = 32 };
    struct fsdp_memory_row rows[MAX_ROWS];
    const int nrows = fsdp_memory_plan(l->parts->fsdp, rows, MAX_ROWS);
    const uint64_t in_all = fsdp_device_stats(l->parts->device).alloc_nbytes;
    uint64_t planned = 0;

    for (int i = 0; i < nrows && i < MAX_ROWS; i++)
        planned += rows[i].host ? 0 : rows[i].nbytes;
    report_line(l->sinks.report,
                "device memory: %" PRIu64 " bytes planned, %" PRIu64
                " of workspaces for libraries and sums",
                planned, in_all > planned ? in_all - planned : 0);
}

int train_warm(struct train_loop *l, struct fsdp_err *err)
{
    char took[REPORT_NUMBER_NBYTES], timed[REPORT_NUMBER_NBYTES];
    const double began = fsdp_time_now();
    struct nn_tuning t = {.who = ""};

    if (fsdp_device_is_host(l->parts->device))
        return FSDP_OK;
    train_watch_phase(l->sinks.watch, "warming up");
    FSDP_TRY(warm_pass(l, err));
    const double passed = fsdp_time_now();
    int rc = tune(l, &t, err);
    fsdp_free(t.table);
    if (rc == FSDP_OK && t.ntimed + t.nknown)
        report_line(l->sinks.report, "warmed up in %s; %s more for products: %d known, %d timed",
                    report_seconds(took, passed - began),
                    report_seconds(timed, fsdp_time_now() - passed), t.nknown, t.ntimed);
    else if (rc == FSDP_OK)
        report_line(l->sinks.report, "warmed up in %s", report_seconds(took, passed - began));
    if (rc == FSDP_OK)
        show_memory(l);
    return rc;
}
