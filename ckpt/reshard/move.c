/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving the bytes. Threads take tasks (move.h) in the order of the files' bytes; each fills its
 * task (fill.h), adds to the fingerprints, and records it in the journal. A part that the store is
 * to copy is moved, too, where the store does not do it.
 */
#include <string.h>

#include "average/average.h"
#include "util/crc.h"
#include "fill.h"
#include "writer.h"
#include "file/sink.h"
#include "util/workers.h"
#include "source/format_ops.h"

struct file_state {
    int npending;                  /* tasks handed out and not yet done, and one for handing out */
    struct ckpt_job_shares shares; /* for its note, if job->notes.folder */
    struct ckpt_job_runs runs, copies; /* (copies.c) */
    struct ckpt_job_piece *pieces;     /* where there are copies, and of torch's archives */
    int npieces;
    /* torch's archives: what is done of each piece, and the CRC-32 of that. NULL in other files. */
    struct piece_state {
        uint64_t nbytes;
        uint32_t crc32;
    } * done;
};

struct mover {
    struct ckpt_job *job;
    pthread_mutex_t lock; /* all below, and the job's sums, fingerprints and journal */
    struct file_state *states;
    int file; /* that tasks are handed out of; pieces: its */
    struct ckpt_job_piece *pieces;
    struct ckpt_move_cursor cursor;
    int nleft;    /* files of which not all tasks are done */
    bool checked; /* of one object: the sources, before it was finished */
    uint64_t done, resumed;
    int rc;
    struct fsdp_err err;
};

static void fail_move(struct mover *m, int rc, const struct fsdp_err *err)
{
    if (m->rc)
        return;
    m->rc = rc;
    m->err = *err;
    for (int i = 0; i < m->job->nfiles; i++)
        ckpt_job_sink_stop(m->job->files[i].sink);
}

static void state_free(struct file_state *state)
{
    fsdp_free(state->pieces);
    fsdp_free(state->done);
    state->pieces = NULL;
    state->done = NULL;
    ckpt_job_shares_free(&state->shares);
    ckpt_job_runs_free(&state->runs);
    ckpt_job_runs_free(&state->copies);
}

/* ---- handing out ----------------------------------------------------------------------------- */

static int keep_pieces(struct file_state *state, const struct ckpt_job_piece *pieces, int npieces,
                       bool wrapped, struct fsdp_err *err)
{
    state->pieces = fsdp_alloc((size_t)npieces, sizeof *state->pieces, "pieces", err);
    if (wrapped)
        state->done = fsdp_alloc((size_t)npieces, sizeof *state->done, "pieces", err);
    if (!state->pieces || (wrapped && !state->done))
        return FSDP_ENOMEM;
    memcpy(state->pieces, pieces, (size_t)npieces * sizeof *pieces);
    state->npieces = npieces;
    return FSDP_OK;
}

static int open_file(struct mover *m, struct fsdp_err *err)
{
    struct ckpt_job *job = m->job;
    struct ckpt_job_file *file = &job->files[m->file];
    struct file_state *state = &m->states[m->file];
    struct ckpt_journal_record done = {.nbytes = 0};
    char *header = NULL, *path = NULL;
    int npieces = 0;

    fsdp_free(m->pieces);
    m->pieces = NULL;
    int rc = ckpt_job_pieces(&m->pieces, &npieces, &header, job, m->file, err);
    if (rc == FSDP_OK && !(path = *file->name ? ckpt_path_join(job->commit.out, file->name, err)
                                              : fsdp_strdup(job->commit.out, err)))
        rc = FSDP_ENOMEM;
    if (rc == FSDP_OK) {
        ckpt_journal_find(&done, &job->journal, (uint32_t)m->file, CKPT_JOURNAL_WHOLE);
        struct ckpt_job_sink_args args = {
            .header = header,
            .header_nbytes = file->header_nbytes,
            .nbytes = file->nbytes,
            .window = job->budget.window,
            .replace =
                job->args->overwrite || (job->folder && (job->notes.found || job->copies.never)),
            .keeps = !job->folder && job->notes.folder ? job->notes.attempt : NULL,
            .found = job->notes.found,
            .done_nbytes = done.nbytes,
            .done_crc32c = done.crc32c};
        rc = ckpt_job_sink_open(&file->sink, job->store, path, &args, err);
    }
    if (rc == FSDP_OK)
        rc = ckpt_job_copies_of(&state->runs, &state->copies, job, m->pieces, npieces, file->sink,
                                err);
    if (rc == FSDP_OK && (job->writer->wrap || state->copies.nruns))
        rc = keep_pieces(state, m->pieces, npieces, job->writer->wrap != NULL, err);
    m->cursor = (struct ckpt_move_cursor){.pieces = m->pieces,
                                          .npieces = npieces,
                                          .copies = state->copies.runs,
                                          .ncopies = state->copies.nruns,
                                          .end = UINT64_MAX};
    state->npending = 1;
    fsdp_free(header);
    fsdp_free(path);
    return rc;
}

/* A part of a file into the fingerprints; where a stored tensor is complete, it must be what was
 * saved. */
static int add_share(struct ckpt_job *job, const struct ckpt_job_share *share, struct fsdp_err *err)
{
    const struct ckpt_tensor *t = &job->ckpt->m.layout.tensors[share->stored];
    struct ckpt_average *average = job->args->average;
    uint64_t want = t->fingerprint;
    job->tensors[share->tensor].fingerprint ^= share->written;
    if (average ? !ckpt_average_fingerprint(&want, average, share->stored) : !t->has_fingerprint)
        return FSDP_OK;
    job->proof.sums[share->stored] ^= share->read;
    job->proof.seen[share->stored] += share->nelem;
    if (job->proof.seen[share->stored] != fsdp_tensor_nelem(&t->tensor) ||
        job->proof.sums[share->stored] == want)
        return FSDP_OK;
    return average ? ckpt_average_blame(average, share->stored, err)
                   : ckpt_fingerprint_blame(job->ckpt, share->stored,
                                            job->proof.sums[share->stored], err);
}

/* *there: an earlier run has done the next file; what it noted counts as done now. */
static int recall_file(bool *there, struct mover *m, struct fsdp_err *err)
{
    struct ckpt_job *job = m->job;
    struct ckpt_job_shares shares = {NULL, 0, 0};
    uint64_t nbytes = 0;
    int rc = ckpt_job_note_recall(there, &shares, job, m->file, err);
    for (size_t i = 0; rc == FSDP_OK && i < shares.nshares; i++) {
        const struct ckpt_job_share *share = &shares.shares[i];
        if (share->tensor < 0) {
            ckpt_job_copies_add(job, share);
            nbytes += share->tensor == CKPT_SHARE_COPIED ? share->nelem : 0;
            continue;
        }
        rc = add_share(job, share, err);
        nbytes += job->tensors[share->tensor].form
                      ? share->nelem
                      : ckpt_job_nbytes(&job->tensors[share->tensor], share->nelem);
    }
    m->done += nbytes;
    m->resumed += nbytes;
    ckpt_job_shares_free(&shares);
    return rc;
}

/* The lock is held. *finished: a file whose last task was done before this was known, -1: none. */
static bool next_task(struct ckpt_move_task *task, int *finished, struct mover *m)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    *finished = -1;
    while (!m->rc && m->file < m->job->nfiles) {
        if (!m->job->files[m->file].sink) {
            bool there = false;
            int rc = m->job->notes.found ? recall_file(&there, m, &err) : FSDP_OK;
            if (rc == FSDP_OK && !there)
                rc = open_file(m, &err);
            if (rc) {
                fail_move(m, rc, &err);
                return false;
            }
            m->file += there;
            m->nleft -= there;
            if (there)
                continue;
        }
        task->file = m->file;
        if (ckpt_move_next(task, &m->cursor, m->job)) {
            m->states[m->file].npending++;
            return true;
        }
        struct file_state *state = &m->states[m->file];
        if (--state->npending == 0) {
            *finished = m->file++;
            return true;
        }
        m->file++;
    }
    return false;
}

/* ---- accounts -------------------------------------------------------------------------------- */

struct worker {
    struct mover *m;
    struct ckpt_fill fill;
};

/* torch's archives end with the CRC-32 of their elements: with the last of a piece, all around them
 * is written. Called without the lock. */
static int wrap_pieces(struct worker *w, const struct ckpt_move_task *task, struct fsdp_err *err)
{
    struct mover *m = w->m;
    struct file_state *state = &m->states[task->file];
    for (int i = 0; state->done && i < task->nsegments; i++) {
        const struct ckpt_move_segment *s = &task->segments[i];
        const struct ckpt_job_piece *piece = &state->pieces[s->piece];
        struct piece_state *done = &state->done[s->piece];
        uint64_t nbytes = ckpt_job_nbytes(&m->job->tensors[s->tensor], s->nelem);
        uint64_t behind = piece->pos + piece->nbytes - (task->pos + s->at) - nbytes;
        uint32_t crc32 = ckpt_crc32_shift(ckpt_crc32(0, w->fill.out + s->at, nbytes), behind);
        pthread_mutex_lock(&m->lock);
        done->crc32 ^= crc32;
        done->nbytes += nbytes;
        bool whole = done->nbytes == piece->nbytes;
        pthread_mutex_unlock(&m->lock);
        if (whole)
            FSDP_TRY(m->job->writer->wrap(m->job, task->file, piece, done->crc32, err));
    }
    return FSDP_OK;
}

/* What a task read and wrote, into the fingerprints, and the notes of its file. The lock is held.
 */
static int account(struct worker *w, const struct ckpt_move_task *task, struct fsdp_err *err)
{
    struct ckpt_job *job = w->m->job;
    for (int i = 0; i < task->nsegments; i++) {
        const struct ckpt_move_segment *s = &task->segments[i];
        const struct ckpt_job_share share = {
            .tensor = s->tensor,
            .stored = job->parts[s->part].tensor,
            .nelem = ckpt_job_quant_nelem(job, &job->tensors[s->tensor], s->nelem),
            .read = w->fill.record.parts[i],
            .written = w->fill.out_parts[i]};
        FSDP_TRY(add_share(job, &share, err));
        if (job->notes.folder)
            FSDP_TRY(ckpt_job_shares_add(&w->m->states[task->file].shares, &share, err));
    }
    return FSDP_OK;
}

static int say_progress(struct mover *m, uint64_t nbytes, struct fsdp_err *err)
{
    const struct ckpt_reshard_args *args = m->job->args;
    m->done += nbytes;
    if (args->progress && args->progress(args->progress_ctx, m->done, m->job->nbytes.total))
        return fsdp_err_set(err, FSDP_ECANCELED, "writing '%s' was stopped", m->job->commit.final);
    return FSDP_OK;
}

static int finish_task(struct worker *w, const struct ckpt_move_task *task, bool recalled,
                       struct fsdp_err *err)
{
    struct mover *m = w->m;
    FSDP_TRY(account(w, task, err));
    if (recalled)
        m->resumed += task->nbytes;
    else
        FSDP_TRY(ckpt_journal_add(&m->job->journal, &w->fill.record, err));
    return say_progress(m, task->nbytes, err);
}

/* Bytes of a source file that are in an output file. The lock is held. */
static int account_source(struct mover *m, int file, const struct ckpt_job_share *share,
                          struct fsdp_err *err)
{
    ckpt_job_copies_add(m->job, share);
    return m->job->notes.folder ? ckpt_job_shares_add(&m->states[file].shares, share, err)
                                : FSDP_OK;
}

/* What the task's bytes contribute to the checksums of source files. */
static int sum_runs(struct worker *w, const struct ckpt_move_task *task, struct fsdp_err *err)
{
    struct mover *m = w->m;
    const struct ckpt_job_runs *runs = &m->states[task->file].runs;
    const uint64_t end = task->pos + task->nbytes;
    int rc = FSDP_OK;
    size_t low = 0, high = runs->nruns; /* the first run that ends behind the task's begin */
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (runs->runs[mid].pos + runs->runs[mid].nbytes <= task->pos)
            low = mid + 1;
        else
            high = mid;
    }
    for (; rc == FSDP_OK && low < runs->nruns && runs->runs[low].pos < end; low++) {
        const struct ckpt_job_run *run = &runs->runs[low];
        const uint64_t first = run->pos > task->pos ? run->pos : task->pos;
        const uint64_t stop = run->pos + run->nbytes < end ? run->pos + run->nbytes : end;
        const bool all = stop - first == task->nbytes;
        const uint32_t crc32c =
            all ? w->fill.record.crc32c
                : ckpt_crc32c(0, w->fill.out + (first - task->pos), stop - first);
        const struct ckpt_job_share share = ckpt_job_copies_share(
            m->job, run->file, run->from + (first - run->pos), stop - first, crc32c, false);
        pthread_mutex_lock(&m->lock);
        rc = account_source(m, task->file, &share, err);
        pthread_mutex_unlock(&m->lock);
    }
    return rc;
}

/* Called without the lock, as the next one. */
static int move_task(struct worker *w, const struct ckpt_move_task *task, struct fsdp_err *err)
{
    bool recalled;
    FSDP_TRY(ckpt_fill_task(&recalled, &w->fill, task, err));
    FSDP_TRY(wrap_pieces(w, task, err));
    FSDP_TRY(sum_runs(w, task, err));
    pthread_mutex_lock(&w->m->lock);
    const int rc = finish_task(w, task, recalled, err);
    pthread_mutex_unlock(&w->m->lock);
    return rc;
}

/* The store copies the part; or its bytes pass through here, as all others do from then on. */
static int copy_task(struct worker *w, const struct ckpt_move_task *task, struct fsdp_err *err)
{
    struct mover *m = w->m;
    struct ckpt_job *job = m->job;
    const struct file_state *state = &m->states[task->file];
    const struct ckpt_job_run *run = task->copy;
    struct fsdp_err why = FSDP_ERR_INIT;
    uint32_t crc32c;

    pthread_mutex_lock(&m->lock);
    bool off = job->copies.off;
    pthread_mutex_unlock(&m->lock);
    int rc = off ? FSDP_EUNSUPPORTED
                 : ckpt_file_copy_part(&crc32c, job->ckpt, run->file, run->nbytes, run->from,
                                       job->files[task->file].sink, run->pos, &why);
    if (rc == FSDP_ECORRUPT || rc == FSDP_ENOMEM || rc == FSDP_ECANCELED)
        return fsdp_err_pass(err, rc, &why);
    if (rc == FSDP_OK) {
        const struct ckpt_job_share share =
            ckpt_job_copies_share(job, run->file, run->from, run->nbytes, crc32c, true);
        pthread_mutex_lock(&m->lock);
        rc = account_source(m, task->file, &share, err);
        if (rc == FSDP_OK)
            rc = say_progress(m, run->nbytes, err);
        pthread_mutex_unlock(&m->lock);
        return rc;
    }
    pthread_mutex_lock(&m->lock);
    job->copies.off = true;
    pthread_mutex_unlock(&m->lock);
    struct ckpt_move_cursor cursor = ckpt_move_cursor_of(job, state->pieces, state->npieces, run);
    struct ckpt_move_task part = {.file = task->file};
    while (ckpt_move_next(&part, &cursor, job))
        FSDP_TRY(move_task(w, &part, err));
    return FSDP_OK;
}

/* Before the last file is finished: of one object, that is when it becomes visible. */
static int check_sources(struct mover *m, struct fsdp_err *err)
{
    struct ckpt_job *job = m->job;
    FSDP_TRY(ckpt_job_copies_prove(job, err));
    if (job->folder || !ckpt_store_has_whole_files(job->store))
        return FSDP_OK;
    if (job->ckpt->format->check_rest)
        FSDP_TRY(job->ckpt->format->check_rest(job->ckpt, err));
    if (job->args->average)
        FSDP_TRY(ckpt_average_finish(job->args->average, err));
    m->checked = true;
    return ckpt_unchanged(job->ckpt, err);
}

/* A sync: others continue meanwhile. The lock is held before and after. */
static void finish_file(struct mover *m, int index)
{
    struct ckpt_job_file *file = &m->job->files[index];
    struct ckpt_job_sink *sink = file->sink;
    struct fsdp_err err = FSDP_ERR_INIT;
    const bool last = --m->nleft == 0;
    file->sink = NULL;
    pthread_mutex_unlock(&m->lock);
    int rc = last ? check_sources(m, &err) : FSDP_OK;
    if (rc == FSDP_OK)
        rc = ckpt_job_sink_finish(&file->stored_nbytes, &file->crc32c, &sink, &err);
    if (rc == FSDP_OK && m->job->notes.folder)
        rc = ckpt_job_note_add(m->job, index, &m->states[index].shares, &err);
    pthread_mutex_lock(&m->lock);
    file->sink = sink; /* what is left of it after a failure */
    struct ckpt_journal_record record = {.file = (uint32_t)index,
                                         .pos = CKPT_JOURNAL_WHOLE,
                                         .nbytes = file->stored_nbytes,
                                         .crc32c = file->crc32c};
    if (rc == FSDP_OK)
        rc = ckpt_journal_add(&m->job->journal, &record, &err);
    if (rc)
        fail_move(m, rc, &err);
    state_free(&m->states[index]);
}

/* A failure goes to the mover, who also ends what others wait for. */
static int move_worker(struct ckpt_workers *workers, int index, struct fsdp_err *unused)
{
    struct worker *w = (struct worker *)workers->ctx + index;
    struct mover *m = w->m;
    struct ckpt_move_task task;
    int finished;
    (void)unused;

    pthread_mutex_lock(&m->lock);
    while (next_task(&task, &finished, m)) {
        struct fsdp_err err = FSDP_ERR_INIT;
        if (finished >= 0) {
            finish_file(m, finished);
            continue;
        }
        pthread_mutex_unlock(&m->lock);
        int rc = task.copy ? copy_task(w, &task, &err) : move_task(w, &task, &err);
        pthread_mutex_lock(&m->lock);
        if (rc)
            fail_move(m, rc, &err);
        else if (--m->states[task.file].npending == 0)
            finish_file(m, task.file);
    }
    pthread_mutex_unlock(&m->lock);
    return FSDP_OK;
}

/* ---- threads --------------------------------------------------------------------------------- */

static int run_workers(struct mover *m, struct fsdp_err *err)
{
    int nworkers = m->job->budget.nthreads;
    struct worker *workers = fsdp_alloc((size_t)nworkers, sizeof *workers, "workers", err);
    int rc = workers ? FSDP_OK : FSDP_ENOMEM;
    for (int i = 0; rc == FSDP_OK && i < nworkers; i++) {
        workers[i].m = m;
        rc = ckpt_fill_create(&workers[i].fill, m->job, err);
    }
    if (rc == FSDP_OK)
        rc = ckpt_workers_run(nworkers, move_worker, workers, err);
    for (int i = 0; workers && i < nworkers; i++)
        ckpt_fill_free(&workers[i].fill);
    fsdp_free(workers);
    return rc;
}

static int move_all(struct ckpt_job *job, struct fsdp_err *err)
{
    struct mover m = {.job = job, .nleft = job->nfiles};
    size_t count = (size_t)job->ckpt->m.layout.ntensors;
    int rc = FSDP_ENOMEM;

    for (int i = 0; i < job->ntensors; i++)
        job->tensors[i].fingerprint = 0;
    m.states = fsdp_alloc((size_t)job->nfiles, sizeof *m.states, "file states", err);
    job->proof.sums = fsdp_alloc(count, sizeof *job->proof.sums, "fingerprints", err);
    job->proof.seen = fsdp_alloc(count, sizeof *job->proof.seen, "fingerprints", err);
    if (m.states && job->proof.sums && job->proof.seen) {
        pthread_mutex_init(&m.lock, NULL);
        rc = ckpt_job_copies_plan(job, err);
        if (rc == FSDP_OK)
            rc = ckpt_job_measure(job, err);
        if (rc == FSDP_OK)
            rc = run_workers(&m, err);
        if (rc == FSDP_OK && m.rc)
            rc = fsdp_err_pass(err, m.rc, &m.err);
        if (rc == FSDP_OK)
            rc = ckpt_job_copies_prove(job, err);
        if (rc == FSDP_OK && !m.checked && job->ckpt->format->check_rest)
            rc = job->ckpt->format->check_rest(job->ckpt, err);
        if (rc == FSDP_OK && job->args->average)
            rc = m.checked ? ckpt_average_unchanged(job->args->average, err)
                           : ckpt_average_finish(job->args->average, err);
        pthread_mutex_destroy(&m.lock);
    }
    const bool kept = rc == FSDP_OK || ckpt_job_keeps(job, rc);
    for (int i = 0; i < job->nfiles; i++) {
        if (!kept)
            ckpt_job_sink_drop(job->files[i].sink);
        ckpt_job_sink_abandon(job->files[i].sink);
        job->files[i].sink = NULL;
        if (m.states)
            state_free(&m.states[i]);
    }
    job->nbytes.resumed = m.resumed;
    fsdp_free(m.pieces);
    fsdp_free(m.states);
    return rc;
}

int ckpt_job_move(struct ckpt_job *job, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = move_all(job, &why);
    if (rc && job->copies.wrong) {
        fsdp_log(FSDP_LOG_WARN, "%s: all is read and sent instead", why.text);
        job->copies.wrong = false;
        job->copies.never = true;
        fsdp_free(job->proof.sums);
        fsdp_free(job->proof.seen);
        job->proof.sums = job->proof.seen = NULL;
        why = (struct fsdp_err)FSDP_ERR_INIT;
        rc = move_all(job, &why);
    }
    return fsdp_err_pass(err, rc, &why);
}
