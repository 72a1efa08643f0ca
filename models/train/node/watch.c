/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fsdp/sys/thread.h"
#include "launch.h"

#include "watch.h"

enum { INTERVAL_S = 2, PATIENCE = 3, NOTICE_S = 10 };

struct train_watch {
    struct fsdp *fsdp;
    struct fsdp_mesh *mesh;
    struct fsdp_oob *oob;
    const struct fsdp_node_map *nodes;
    double floor_s, phase_s;
    int wait_s; /* for an answer of the others' watchdogs */

    pthread_t thread;
    pthread_mutex_t lock; /* what follows up to `leaving` */
    pthread_cond_t changed;
    const char *phase;
    int64_t step, nsteps; /* nsteps: of this interval */
    double steps_s, longest_s;
    watch_suspect_f *tell;
    void *tell_ctx;
    bool leaving;

    atomic_flag told;

    /* the thread's own */
    struct watch_beat *beats; /* [size] */
    uint64_t progress;
    const char *last_phase;
    double moved, comm_s;
    int *slow; /* [size] intervals in a row */
    int slowest;
    double slowest_s; /* 0: not known */
};

/* ---- judging: pure -------------------------------------------------------------------------- */

double watch_deadline(const struct watch_beat *beats, int nranks, double floor_s, double phase_s)
{
    double longest = 0;

    for (int r = 0; r < nranks; r++) {
        if (beats[r].phase || beats[r].longest_s <= 0)
            return phase_s;
        longest = beats[r].longest_s > longest ? beats[r].longest_s : longest;
    }
    return 10 * longest > floor_s ? 10 * longest : floor_s;
}

static bool behind(const struct watch_beat *a, const struct watch_beat *b)
{
    return a->nops != b->nops ? a->nops < b->nops : !a->comm && b->comm;
}

int watch_hung(const struct watch_beat *beats, int nranks, double deadline_s)
{
    int last = 0;
    bool late = false;

    for (int r = 0; r < nranks; r++) {
        late |= beats[r].idle_s > deadline_s;
        if (behind(&beats[r], &beats[last]))
            last = r;
    }
    return late ? last : -1;
}

int watch_slowest(const struct watch_beat *beats, int nranks)
{
    int slowest = 0;

    for (int r = 0; r < nranks; r++) {
        if (beats[r].phase || beats[r].busy_s <= 0)
            return -1;
        slowest = beats[r].busy_s > beats[slowest].busy_s ? r : slowest;
    }
    return nranks < 2 ? -1 : slowest;
}

int watch_straggler(const struct watch_beat *beats, int nranks, double *median_s)
{
    enum { MAX_SAMPLE = 1024 };
    const int slowest = watch_slowest(beats, nranks);
    double sample[MAX_SAMPLE];
    int nsample = 0;

    if (slowest < 0)
        return -1;
    for (int r = 0; r < nranks && nsample < MAX_SAMPLE; r++)
        sample[nsample++] = beats[r].busy_s;
    qsort(sample, (size_t)nsample, sizeof *sample, fsdp_compare_doubles);
    *median_s = sample[(nsample - 1) / 2];
    return beats[slowest].busy_s > 1.5 * *median_s ? slowest : -1;
}

bool watch_speaks(int rank, int culprit)
{
    return culprit < 0 ? rank < 2 : rank == (culprit == 0);
}

/* ---- the thread ----------------------------------------------------------------------------- */

static void fill_beat(struct train_watch *w, struct watch_beat *beat, double now)
{
    struct fsdp_position at;
    uint64_t progress = fsdp_progress(w->fsdp, &at);

    pthread_mutex_lock(&w->lock);
    bool moved = progress != w->progress || w->phase != w->last_phase;
    w->progress = progress;
    w->last_phase = w->phase;
    w->moved = moved || !w->moved ? now : w->moved;
    *beat = (struct watch_beat){.step = w->step,
                                .nops = progress,
                                .idle_s = now - w->moved,
                                .longest_s = w->longest_s,
                                .leaving = w->leaving,
                                .phase = w->phase != NULL,
                                .comm = at.comm};
    if (w->nsteps) {
        beat->step_s = w->steps_s / (double)w->nsteps;
        /* On a GPU the last steps' share comes later. */
        beat->busy_s = fmax(0, beat->step_s - (at.comm_seconds - w->comm_s) / (double)w->nsteps);
    }
    w->comm_s = at.comm_seconds;
    w->nsteps = 0;
    w->steps_s = 0;
    snprintf(beat->text, sizeof beat->text, "%s", w->phase ? w->phase : at.text);
    pthread_mutex_unlock(&w->lock);
}

static const char *host(const struct train_watch *w, int rank)
{
    return w->nodes->host[rank];
}

/* The log names the rank that speaks, but for rank 0. */
static void log_own(const struct train_watch *w, const char *text)
{
    if (w->oob->rank == 0)
        fsdp_log(FSDP_LOG_ERROR, "rank 0 on %s: %s", host(w, 0), text);
    else
        fsdp_log(FSDP_LOG_ERROR, "%s", text);
}

/* Collectives in progress end, here and, as these notice, elsewhere. A rank that is in none of
 * them, and does not come to one, is ended from here. */
static void end_job(struct train_watch *w, const struct fsdp_err *why)
{
    fsdp_mesh_abort(w->mesh, why);
    const struct timespec until = fsdp_cond_time(NOTICE_S);
    pthread_mutex_lock(&w->lock);
    while (!w->leaving && pthread_cond_timedwait(&w->changed, &w->lock, &until) == 0)
        ;
    bool stuck = !w->leaving;
    pthread_mutex_unlock(&w->lock);
    if (!stuck)
        return;
    log_own(w, "does not come back and is ended");
    w->oob->abort(w->oob, LAUNCH_PEER_LOST, why);
    _exit(LAUNCH_PEER_LOST);
}

/* Rank 0 prints a line per rank; ranks that stand at the same place share one. */
static void print_places(const struct train_watch *w)
{
    for (int r = 0; r < w->oob->size; r++) {
        const struct watch_beat *b = &w->beats[r];
        int same = r;
        while (same + 1 < w->oob->size && b[same + 1 - r].step == b->step &&
               !strcmp(b[same + 1 - r].text, b->text) && !strcmp(host(w, same + 1), host(w, r)))
            same++;
        if (same > r)
            fsdp_log(FSDP_LOG_ERROR, "ranks %d to %d on %s: step %lld, %s, for %.0f s", r, same,
                     host(w, r), (long long)b->step + 1, b->text, b->idle_s);
        else
            fsdp_log(FSDP_LOG_ERROR, "rank %d on %s: step %lld, %s, for %.0f s", r, host(w, r),
                     (long long)b->step + 1, b->text, b->idle_s);
        r = same;
    }
}

/* By one rank, and there by its thread or by train.c. */
static void tell_cause(struct train_watch *w, const struct fsdp_err *why)
{
    if (watch_speaks(w->oob->rank, why->culprit) && train_watch_may_tell(w))
        fsdp_log(FSDP_LOG_ERROR, "%s", why->text);
}

/* rank -1: not known. */
static void tell_suspect(struct train_watch *w, int rank, const char *where)
{
    pthread_mutex_lock(&w->lock);
    watch_suspect_f *tell = w->tell;
    void *ctx = w->tell_ctx;
    pthread_mutex_unlock(&w->lock);
    if (tell)
        tell(ctx, rank, rank >= 0 && rank < w->oob->size ? host(w, rank) : "", where);
}

static bool check_hang(struct train_watch *w)
{
    double deadline = watch_deadline(w->beats, w->oob->size, w->floor_s, w->phase_s);
    int hung = watch_hung(w->beats, w->oob->size, deadline);
    struct fsdp_err why = FSDP_ERR_INIT;
    char where[200];

    if (hung < 0)
        return false;
    fsdp_err_set(&why, FSDP_EPEER, "rank %d on %s hangs: no progress for %.0f s at step %lld, %s",
                 hung, host(w, hung), w->beats[hung].idle_s, (long long)w->beats[hung].step + 1,
                 w->beats[hung].text);
    why.culprit = hung;
    snprintf(where, sizeof where, "step %lld, %s", (long long)w->beats[hung].step + 1,
             w->beats[hung].text);
    tell_suspect(w, hung, where);
    if (w->oob->rank == 0) {
        fsdp_log(FSDP_LOG_ERROR, "no progress for %.0f s; where each rank is:", deadline);
        print_places(w);
    }
    tell_cause(w, &why);
    end_job(w, &why);
    return true;
}

static void check_stragglers(struct train_watch *w)
{
    double median;
    int slow = watch_straggler(w->beats, w->oob->size, &median);
    const int slowest = watch_slowest(w->beats, w->oob->size);

    if (slowest >= 0) {
        pthread_mutex_lock(&w->lock);
        w->slowest = slowest;
        w->slowest_s = w->beats[slowest].busy_s;
        pthread_mutex_unlock(&w->lock);
    }

    for (int r = 0; r < w->oob->size; r++)
        if (r != slow && w->slow[r] < PATIENCE)
            w->slow[r] = 0;
    if (slow < 0 || w->slow[slow] >= PATIENCE || ++w->slow[slow] < PATIENCE || w->oob->rank)
        return;
    fsdp_log(
        FSDP_LOG_WARN,
        "rank %d on %s is slow: it computes for %.3g s a step, the median rank for %.3g s; the "
        "others wait for it",
        slow, host(w, slow), w->beats[slow].busy_s, median);
}

/* Some ranks' watchdogs do not answer: the channel knows which. Where the others are, each says
 * itself. */
static void end_silent(struct train_watch *w, const struct fsdp_err *err)
{
    char where[240], seen[320], who[FSDP_ERR_TEXT_NBYTES];
    struct fsdp_err why = FSDP_ERR_INIT;
    struct watch_beat mine;

    fill_beat(w, &mine, fsdp_time_now());
    snprintf(where, sizeof where, "step %lld, %s, for %.0f s", (long long)mine.step + 1, mine.text,
             mine.idle_s);
    log_own(w, where);
    fsdp_err_set(&why, FSDP_EPEER,
                 "no sign of life for %d s from %s: stopped, or its machine hangs", w->wait_s,
                 fsdp_err_reason(who, err));
    why.culprit = err->culprit;
    snprintf(seen, sizeof seen, "no sign of life for %d s; rank %d waits at %s", w->wait_s,
             w->oob->rank, where);
    tell_suspect(w, err->culprit, seen);
    tell_cause(w, &why);
    end_job(w, &why);
}

/* Waits for the interval, or until the rank leaves. */
static void pause_or_leave(struct train_watch *w)
{
    const struct timespec until = fsdp_cond_time(INTERVAL_S);
    pthread_mutex_lock(&w->lock);
    while (!w->leaving && pthread_cond_timedwait(&w->changed, &w->lock, &until) == 0)
        ;
    pthread_mutex_unlock(&w->lock);
}

static void *watch_thread(void *arg)
{
    struct train_watch *w = arg;
    int nranks = w->oob->size, leaving = 0;

    while (leaving < nranks) {
        struct watch_beat mine;
        struct fsdp_err err = FSDP_ERR_INIT;
        pause_or_leave(w);
        fill_beat(w, &mine, fsdp_time_now());
        int rc = w->oob->allgather(w->oob, &mine, sizeof mine, w->beats, &err);
        if (rc == FSDP_ETIMEDOUT)
            end_silent(w, &err);
        if (rc != FSDP_OK || check_hang(w))
            break;
        check_stragglers(w);
        leaving = 0;
        for (int r = 0; r < nranks; r++)
            leaving += w->beats[r].leaving;
    }
    return NULL;
}

/* ---- the rank's side ------------------------------------------------------------------------ */

static int start_thread(struct train_watch *w, struct fsdp_err *err)
{
    pthread_mutex_init(&w->lock, NULL);
    fsdp_cond_init(&w->changed);
    int why = fsdp_thread_start(&w->thread, watch_thread, w);
    return why ? fsdp_err_sys(err, why, "cannot start a thread for the watchdog") : FSDP_OK;
}

int train_watch_open(struct train_watch **out, const struct config *config, struct fsdp *fsdp,
                     struct fsdp_mesh *mesh, struct fsdp_oob *oob,
                     const struct fsdp_node_map *nodes, struct fsdp_err *err)
{
    struct train_watch *w;
    int rc = FSDP_ENOMEM;

    *out = NULL;
    if (oob->size == 1 || config->fsdp.hang_timeout == 0)
        return FSDP_OK;
    if (!(w = fsdp_alloc(1, sizeof *w, "watchdog", err)))
        return rc;
    w->fsdp = fsdp;
    w->mesh = mesh;
    w->nodes = nodes;
    w->floor_s = config->fsdp.hang_timeout;
    w->phase_s = config->fsdp.timeout > w->floor_s ? config->fsdp.timeout : w->floor_s;
    w->wait_s = (int)ceil(w->floor_s) + 2 * INTERVAL_S;
    w->phase = "starting";
    atomic_flag_clear(&w->told);
    w->beats = fsdp_alloc((size_t)oob->size, sizeof *w->beats, "watchdog", err);
    w->slow = fsdp_alloc((size_t)oob->size, sizeof *w->slow, "watchdog", err);
    if (!w->beats || !w->slow)
        goto out;
    FSDP_TRY_GOTO(oob->dup(oob, "watchdog", &w->oob, err), out);
    if (w->oob->set_wait)
        w->oob->set_wait(w->oob, w->wait_s);
    FSDP_TRY_GOTO(start_thread(w, err), out);
    *out = w;
    return FSDP_OK;
out:
    if (w->oob)
        w->oob->close(w->oob);
    fsdp_free(w->beats);
    fsdp_free(w->slow);
    fsdp_free(w);
    return rc;
}

void train_watch_close(struct train_watch *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->leaving = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    w->oob->close(w->oob);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    fsdp_free(w->beats);
    fsdp_free(w->slow);
    fsdp_free(w);
}

bool train_watch_may_tell(struct train_watch *w)
{
    return !w || !atomic_flag_test_and_set(&w->told);
}

void train_watch_phase(struct train_watch *w, const char *phase)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->phase = phase;
    pthread_mutex_unlock(&w->lock);
}

void train_watch_tell(struct train_watch *w, watch_suspect_f *fn, void *ctx)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->tell = fn;
    w->tell_ctx = ctx;
    pthread_mutex_unlock(&w->lock);
}

void train_watch_step(struct train_watch *w, int64_t step, double seconds)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->step = step;
    w->nsteps++;
    w->steps_s += seconds;
    w->longest_s = seconds > w->longest_s ? seconds : w->longest_s;
    pthread_mutex_unlock(&w->lock);
}

int train_watch_slowest(struct train_watch *w, double *seconds)
{
    int slowest = -1;

    *seconds = 0;
    if (!w)
        return -1;
    pthread_mutex_lock(&w->lock);
    if (w->slowest_s > 0) {
        slowest = w->slowest;
        *seconds = w->slowest_s;
    }
    pthread_mutex_unlock(&w->lock);
    return slowest;
}
