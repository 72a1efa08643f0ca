/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/ckpt.h"
#include "slurm_job.h"

#include "life.h"

#define NOTES "job.json"
enum { LOOK_S = 1, MARGIN_S = 20, MAX_SAME_STARTS = 3, PATH_NBYTES = 4300 };

struct train_life {
    const struct config *config;
    bool lead;
    char job[64];     /* Slurm's number of it, "" for none; of an array, the array's */
    char restart[96]; /* "restart 2" or "array task 3" if it ran before, else "" */
    int64_t end;      /* seconds since 1970, -1: none */
    bool told;        /* that it ends soon */
    double save_s;    /* the longest save so far, 0: none yet */
    double looked;    /* when files were last looked for */
    unsigned asks;    /* what was found and not yet told */
    int64_t begin, saved;
    int same;     /* earlier starts of this job at `begin` */
    bool goes_on; /* after what this job has saved, although it began elsewhere */
};

/* ---- the job ---- */

static const char *var(const char *name)
{
    const char *text = getenv(name);
    return text && text[0] ? text : NULL;
}

static void read_job(struct train_life *life)
{
    const char *array = var("SLURM_ARRAY_JOB_ID"), *job = array ? array : var("SLURM_JOB_ID");
    const char *task = var("SLURM_ARRAY_TASK_ID"), *first = var("SLURM_ARRAY_TASK_MIN");
    const char *count = var("SLURM_RESTART_COUNT");

    snprintf(life->job, sizeof life->job, "%s", job ? job : "");
    if (!job)
        return;
    if (count && atoi(count) > 0)
        snprintf(life->restart, sizeof life->restart, "restart %d of job %.20s", atoi(count), job);
    else if (array && task && first && atoll(task) > atoll(first))
        snprintf(life->restart, sizeof life->restart, "task %.20s of job array %.20s", task, job);
}

/* Newer versions of Slurm say it in the environment, but an administrator may move it. */
static int64_t ask_end(void)
{
    const char *said = var("SLURM_JOB_END_TIME");
    struct slurm_job job;
    return slurm_job_ask(&job) ? job.end : said && var("SLURM_JOB_ID") ? atoll(said) : -1;
}

bool train_life_end(const struct train_life *life, char *out, size_t out_nbytes)
{
    time_t end = (time_t)life->end;
    struct tm tm;
    return life->end >= 0 && localtime_r(&end, &tm) &&
           strftime(out, out_nbytes, "%Y-%m-%d %H:%M:%S", &tm) > 0;
}

double train_life_left(const struct train_life *life)
{
    return life && life->end >= 0 ? (double)(life->end - (int64_t)time(NULL)) : INFINITY;
}

/* Seconds before the end at which the last save must begin: two of the longest, two steps, and what
 * a busy file system may need more. */
static double margin(const struct train_life *life, double step_seconds)
{
    double set = life->config->checkpoint.before_end;
    return set > 0 ? set : MARGIN_S + 2 * life->save_s + 2 * step_seconds;
}

static bool ends_soon(struct train_life *life, double step_seconds)
{
    double left = (double)(life->end - (int64_t)time(NULL));

    if (life->end < 0 || life->told || life->config->checkpoint.before_end == 0 ||
        left > margin(life, step_seconds))
        return false;
    life->end = ask_end(); /* it may have been moved */
    left = (double)(life->end - (int64_t)time(NULL));
    if (life->end < 0 || left > margin(life, step_seconds))
        return false;
    fsdp_log(FSDP_LOG_WARN, "the job ends in %.0f s: saving and leaving", left);
    life->told = true;
    return true;
}

/* ---- job.json ---- */

/* Notes of this job's earlier starts. Returns false where there are none. */
static bool read_notes(struct train_life *life, int64_t *begin)
{
    char *text = NULL;
    ckpt_note_read(&text, life->config->checkpoint.path, NOTES, NULL);
    json_t *notes = text ? json_loads(text, 0, NULL) : NULL;
    const char *job = json_string_value(json_object_get(notes, "job"));
    bool mine = job && strcmp(job, life->job) == 0;

    *begin = mine ? json_integer_value(json_object_get(notes, "begin")) : -1;
    life->saved = mine ? json_integer_value(json_object_get(notes, "saved")) : -1;
    life->same = mine ? (int)json_integer_value(json_object_get(notes, "same")) : 0;
    json_decref(notes);
    fsdp_free(text);
    return mine;
}

/* Replaced whole. What goes wrong costs no more than the protection against starting in vain. */
static void write_notes(const struct train_life *life)
{
    const char *root = life->config->checkpoint.path;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (!life->job[0] || !root[0])
        return;
    json_t *notes =
        json_pack("{s:s, s:I, s:i, s:I}", "job", life->job, "begin", (json_int_t)life->begin,
                  "same", life->same, "saved", (json_int_t)life->saved);
    char *text = notes ? json_dumps(notes, JSON_INDENT(1)) : NULL;
    if (!text || ckpt_note_write(root, NOTES, text, &err))
        fsdp_log(FSDP_LOG_WARN, "no note for the job's next start: %s",
                 text ? err.text : "out of memory");
    free(text);
    json_decref(notes);
}

/* A checkpoint.resume that names a checkpoint is where the job began, not where each of its starts
 * does. Only what this very job has saved counts: what else lies there may be another run's. */
bool train_life_goes_on(struct train_life *life)
{
    static const char *const others[] = {"auto", "must", "never"};
    int64_t begin;

    if (!life->restart[0] || !life->config->checkpoint.path[0])
        return false;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (!strcmp(life->config->checkpoint.resume, others[i]))
            return false;
    life->goes_on = read_notes(life, &begin) && life->saved >= 0;
    return life->goes_on;
}

int train_life_begin(struct train_life *life, int64_t step, bool resumed, struct fsdp_err *err)
{
    const char *root = life->config->checkpoint.path;
    int64_t begin;

    if (!life->lead || !life->job[0] || !root[0])
        return FSDP_OK;
    bool known = read_notes(life, &begin);
    life->same = known && begin == step ? life->same + 1 : 0;
    life->begin = step;
    bool automatic = life->goes_on || strcmp(life->config->checkpoint.resume, "auto") == 0;
    if (life->restart[0] && !resumed && automatic && (!known || life->saved >= 0))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s finds no checkpoint in %s%s; is it the same folder, and mounted "
                            "here? checkpoint.resume=never starts over",
                            life->restart, root,
                            known ? ", although one was saved" : " nor a trace of its first start");
    if (life->same >= MAX_SAME_STARTS && life->restart[0])
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s begins at step %" PRId64 " for the %dth time: it does not get "
                            "further, and queueing it again would not help; see why it ended, then "
                            "remove %s/" NOTES,
                            life->restart, step, life->same + 1, root);
    write_notes(life);
    return FSDP_OK;
}

void train_life_saved(struct train_life *life, int64_t step, double seconds)
{
    if (!life)
        return;
    life->save_s = seconds > life->save_s ? seconds : life->save_s;
    life->saved = step;
    if (life->lead)
        write_notes(life);
}

/* ---- switches ---- */

/* An object store has no place for a switch: asking it every second would cost money and hold the
 * training. */
static bool path_of(const struct train_life *life, char out[PATH_NBYTES], const char *name)
{
    const char *root = life->config->checkpoint.switches;
    if (strcmp(root, "auto") == 0) {
        root = life->config->checkpoint.path;
        if (ckpt_path_is_url(root))
            return false;
    }
    return root[0] && snprintf(out, PATH_NBYTES, "%s/%s", root, name) < PATH_NBYTES;
}

static bool take_switch(const struct train_life *life, const char *name)
{
    char path[PATH_NBYTES];
    if (!path_of(life, path, name) || access(path, F_OK))
        return false;
    if (unlink(path)) {
        fsdp_log(FSDP_LOG_WARN, "%s is there, but cannot be removed (%s), so it is not heeded",
                 path, strerror(errno));
        return false;
    }
    fsdp_log(FSDP_LOG_INFO, "%s: done at this step", path);
    return true;
}

unsigned train_life_asks(struct train_life *life, double step_seconds)
{
    unsigned asks = 0;
    double now = fsdp_time_now();

    if (!life->lead || now - life->looked < LOOK_S)
        return 0;
    life->looked = now;
    if (take_switch(life, "checkpoint-now"))
        asks |= TRAIN_ASK_SAVE;
    if (take_switch(life, "stop") || ends_soon(life, step_seconds))
        asks |= TRAIN_ASK_STOP;
    return asks;
}

/* ---- beginning and end ---- */

int train_life_open(struct train_life **out, const struct config *config, bool lead,
                    struct fsdp_err *err)
{
    struct train_life *life = fsdp_alloc(1, sizeof *life, "job", err);
    if (!life)
        return FSDP_ENOMEM;
    life->config = config;
    life->lead = lead;
    life->end = life->saved = -1;
    read_job(life);
    if (lead && life->job[0])
        life->end = ask_end();
    *out = life;
    return FSDP_OK;
}

void train_life_close(struct train_life *life)
{
    fsdp_free(life);
}
