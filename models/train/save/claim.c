/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fsdp/sys/thread.h"
#include "ckpt/ckpt.h"

#include "claim.h"
#include "train/report/process.h"

#define NOTE "running.json"
enum { BEAT_S = 5, BEAT_URL_S = 15, LONGEST_BEAT_S = 60, SILENT_BEATS = 4 };

/* Who a run is, as its note says. */
struct owner {
    struct process who;
    char since[32];
    char job[64]; /* Slurm's, "" for none */
    int restart;  /* of that job */
    int64_t beat_s, beats;
};

struct train_claim {
    const struct config *config;
    struct owner me;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool running, stop;
    atomic_bool lost;
};

/* ---- who ---- */

static struct owner myself(const char *root)
{
    const char *job = getenv("SLURM_JOB_ID"), *restart = getenv("SLURM_RESTART_COUNT");
    struct owner me = {.restart = restart ? atoi(restart) : 0,
                       .beat_s = ckpt_path_is_url(root) ? BEAT_URL_S : BEAT_S};
    time_t now = time(NULL);
    struct tm tm;

    process_self(&me.who);
    snprintf(me.job, sizeof me.job, "%s", job ? job : "");
    if (localtime_r(&now, &tm))
        strftime(me.since, sizeof me.since, "%Y-%m-%d %H:%M:%S", &tm);
    return me;
}

/* ---- the note ---- */

static int write_note(const struct owner *me, const char *root, struct fsdp_err *err)
{
    json_t *note =
        json_pack("{s:s, s:i, s:s, s:s, s:i, s:s, s:I, s:I, s:I}", "host", me->who.host, "process",
                  me->who.pid, "since", me->since, "job", me->job, "restart", me->restart, "place",
                  me->who.place, "begun", (json_int_t)me->who.begun, "beat_seconds",
                  (json_int_t)me->beat_s, "beats", (json_int_t)me->beats);
    char *text = note ? json_dumps(note, JSON_INDENT(1)) : NULL;
    int rc = text ? ckpt_note_write(root, NOTE, text, err)
                  : fsdp_err_set(err, FSDP_ENOMEM, "%s/" NOTE ": out of memory", root);
    free(text);
    json_decref(note);
    return rc;
}

static void copy_text(char *out, size_t out_nbytes, const json_t *note, const char *key)
{
    const char *text = json_string_value(json_object_get(note, key));
    snprintf(out, out_nbytes, "%s", text ? text : "");
}

static int64_t number_of(const json_t *note, const char *key)
{
    return json_integer_value(json_object_get(note, key));
}

/* FSDP_ENOTFOUND where there is none, or what is there is no note of a run. */
static int read_note(struct owner *out, const char *root, struct fsdp_err *err)
{
    char *text = NULL;
    int rc = ckpt_note_read(&text, root, NOTE, err);
    json_t *note = text ? json_loads(text, 0, NULL) : NULL;

    *out = (struct owner){0};
    copy_text(out->who.host, sizeof out->who.host, note, "host");
    copy_text(out->since, sizeof out->since, note, "since");
    copy_text(out->who.place, sizeof out->who.place, note, "place");
    copy_text(out->job, sizeof out->job, note, "job");
    out->restart = (int)number_of(note, "restart");
    out->who.pid = (int)number_of(note, "process");
    out->who.begun = number_of(note, "begun");
    out->beats = number_of(note, "beats");
    out->beat_s = number_of(note, "beat_seconds");
    if (out->beat_s < 1 || out->beat_s > LONGEST_BEAT_S)
        out->beat_s = BEAT_S;
    fsdp_free(text);
    json_decref(note);
    return rc || (out->who.host[0] && out->who.pid > 0) ? rc : FSDP_ENOTFOUND;
}

/* ---- does its owner live? ---- */

enum life { DEAD, ALIVE, UNKNOWN };

static enum life judge_owner(const struct owner *other, const struct owner *me)
{
    if (process_is_near(&other->who))
        return process_runs(&other->who) ? ALIVE : DEAD;
    if (me->job[0] && !strcmp(other->job, me->job) && me->restart > other->restart)
        return DEAD;
    return UNKNOWN;
}

/* Does the number change? A note that goes away was taken away by its owner. */
static enum life watch_note(const struct owner *other, const char *root)
{
    const double patience = (double)(SILENT_BEATS * other->beat_s);
    const double until = fsdp_time_now() + patience;
    struct owner now;

    fsdp_log(FSDP_LOG_INFO,
             "%s/" NOTE " is of process %d on %s: waiting up to %.0f s to see whether it lives",
             root, other->who.pid, other->who.host, patience);
    while (fsdp_time_now() < until) {
        sleep(1);
        int rc = read_note(&now, root, NULL);
        if (rc == FSDP_ENOTFOUND)
            return DEAD;
        if (rc == FSDP_OK && (!process_is_same(&now.who, &other->who) || now.beats != other->beats))
            return ALIVE;
    }
    return DEAD;
}

static int refuse_folder(const struct config *c, const struct owner *other, const char *what,
                         struct fsdp_err *err)
{
    char where[CONFIG_TEXT + 128], job[96] = "";

    if (other->job[0])
        snprintf(job, sizeof job, " (Slurm job %s)", other->job);
    return fsdp_err_set(
        err, FSDP_EEXIST,
        "%.300s: process %d on %s%s %s %.300s since %s; two runs in one folder would "
        "remove each other's checkpoints: wait for it, stop it, or set another "
        "checkpoint.path",
        config_where(where, sizeof where, c, "checkpoint.path"), other->who.pid, other->who.host,
        job, what, c->checkpoint.path, other->since);
}

/* ---- keeping it ---- */

static void beat(struct train_claim *claim)
{
    const char *root = claim->config->checkpoint.path;
    struct owner now;
    int rc = read_note(&now, root, NULL);

    if (rc == FSDP_OK && !process_is_same(&now.who, &claim->me.who))
        atomic_store(&claim->lost, true);
    if ((rc && rc != FSDP_ENOTFOUND) || atomic_load(&claim->lost))
        return; /* what cannot be read is not overwritten; the next beat tries again */
    claim->me.beats++;
    write_note(&claim->me, root, NULL);
}

static void *beat_thread(void *arg)
{
    struct train_claim *claim = arg;

    pthread_mutex_lock(&claim->lock);
    while (!claim->stop) {
        const struct timespec next = fsdp_cond_time(claim->me.beat_s);
        pthread_cond_timedwait(&claim->changed, &claim->lock, &next);
        if (!claim->stop)
            beat(claim);
    }
    pthread_mutex_unlock(&claim->lock);
    return NULL;
}

static void start_beating(struct train_claim *claim)
{
    claim->running = fsdp_thread_start(&claim->thread, beat_thread, claim) == 0;
    if (!claim->running)
        fsdp_log(FSDP_LOG_WARN,
                 "no thread to keep %s/" NOTE ": a run on another machine may take "
                 "this one for dead",
                 claim->config->checkpoint.path);
}

static int take_folder(struct train_claim *claim, struct fsdp_err *err)
{
    const char *root = claim->config->checkpoint.path;
    struct owner other;
    int rc = read_note(&other, root, err);

    if (rc && rc != FSDP_ENOTFOUND)
        return rc;
    enum life life = rc ? DEAD : judge_owner(&other, &claim->me);
    if (life == UNKNOWN)
        life = watch_note(&other, root);
    if (life == ALIVE)
        return refuse_folder(claim->config, &other, "trains into", err);
    FSDP_TRY(write_note(&claim->me, root, err));
    start_beating(claim);
    return FSDP_OK;
}

int train_claim_take(struct train_claim **out, const struct config *config, struct fsdp_err *err)
{
    *out = NULL;
    if (!config->checkpoint.path[0])
        return FSDP_OK;
    struct train_claim *claim = fsdp_alloc(1, sizeof *claim, "claim of checkpoint.path", err);
    if (!claim)
        return FSDP_ENOMEM;
    claim->config = config;
    claim->me = myself(config->checkpoint.path);
    pthread_mutex_init(&claim->lock, NULL);
    fsdp_cond_init(&claim->changed);
    int rc = take_folder(claim, err);
    if (rc)
        fsdp_free(claim);
    else
        *out = claim;
    return rc;
}

int train_claim_check(struct train_claim *claim, struct fsdp_err *err)
{
    struct owner now;

    if (!claim || read_note(&now, claim->config->checkpoint.path, NULL) ||
        process_is_same(&now.who, &claim->me.who))
        return FSDP_OK;
    atomic_store(&claim->lost, true);
    return refuse_folder(claim->config, &now, "has taken", err);
}

bool train_claim_is_lost(struct train_claim *claim)
{
    return claim && atomic_load(&claim->lost);
}

void train_claim_release(struct train_claim *claim)
{
    if (!claim)
        return;
    pthread_mutex_lock(&claim->lock);
    claim->stop = true;
    pthread_cond_signal(&claim->changed);
    pthread_mutex_unlock(&claim->lock);
    if (claim->running)
        pthread_join(claim->thread, NULL);
    if (!train_claim_check(claim, NULL))
        ckpt_note_remove(claim->config->checkpoint.path, NOTE, NULL);
    pthread_cond_destroy(&claim->changed);
    pthread_mutex_destroy(&claim->lock);
    fsdp_free(claim);
}
