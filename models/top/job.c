/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "job.h"
#include "train/report/report.h"

/* A run whose process cannot be seen from here, and that gives no sign for so long, is lost. */
static const double silent_s = 30;
enum { TAIL_NBYTES = 1 << 16 };

const char *top_state_word(int state)
{
    static const char *const words[] = {"stalled", "lost", "ended"};
    return state <= STATUS_DONE ? status_word((enum status_state)state)
                                : words[state - TOP_STALLED];
}

bool top_state_is_active(int state)
{
    return state <= STATUS_EVALUATING || state == TOP_STALLED;
}

bool top_state_is_bad(int state)
{
    return state == STATUS_HUNG || state == STATUS_FAILED || state == TOP_STALLED ||
           state == TOP_LOST;
}

/* ---- metrics --------------------------------------------------------------------------------- */

/* The end of a file, from the beginning of a line on; NULL: there is none. Freed with fsdp_free. */
static char *read_tail(const char *path)
{
    FILE *file = NULL;
    char *text = fsdp_alloc(TAIL_NBYTES + 1, 1, "metrics", NULL);

    if (!text || fsdp_file_stream(&file, path, NULL) != FSDP_OK) {
        fsdp_free(text);
        return NULL;
    }
    fseeko(file, 0, SEEK_END);
    const off_t nbytes = ftello(file), from = nbytes > TAIL_NBYTES ? nbytes - TAIL_NBYTES : 0;
    fseeko(file, from, SEEK_SET);
    text[fread(text, 1, TAIL_NBYTES, file)] = 0;
    fclose(file);
    char *line = from ? strchr(text, '\n') : text;
    memmove(text, line ? line : "", strlen(line ? line : "") + 1);
    return text;
}

/* Calls take with each whole line that is a row. */
static void each_row(const char *path, void (*take)(void *ctx, const json_t *row), void *ctx)
{
    char *text = read_tail(path);

    for (char *line = text, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        json_t *row = json_loadb(line, (size_t)(end - line), 0, NULL);
        if (json_is_integer(json_object_get(row, "step")) && json_object_get(row, "loss"))
            take(ctx, row);
        json_decref(row);
    }
    fsdp_free(text);
}

struct values {
    const char *key;
    double *out;
    int max, nvalues;
};

static void take_number(void *ctx, const json_t *row)
{
    struct values *v = ctx;
    const json_t *number = json_object_get(row, v->key);

    if (!json_is_number(number))
        return;
    if (v->nvalues == v->max)
        memmove(v->out, v->out + 1, (size_t)--v->nvalues * sizeof *v->out);
    v->out[v->nvalues++] = json_number_value(number);
}

int top_metrics_values(double *out, int max, const char *path, const char *key)
{
    struct values values = {.key = key, .out = out, .max = max};

    if (path[0] && max > 0)
        each_row(path, take_number, &values);
    return values.nvalues;
}

static double number_of(const json_t *row, const char *key)
{
    const json_t *number = json_object_get(row, key);
    return json_is_number(number) ? json_number_value(number) : (double)NAN;
}

static void take_last(void *ctx, const json_t *row)
{
    struct status *st = ctx;
    const double wall = number_of(row, "wall"), eval = number_of(row, "eval_loss");

    st->step = json_integer_value(json_object_get(row, "step"));
    st->ranks = (int)json_integer_value(json_object_get(row, "ranks"));
    st->attempt = (int)json_integer_value(json_object_get(row, "attempt"));
    st->loss = number_of(row, "loss");
    st->lr = number_of(row, "lr");
    st->tokens_per_s = number_of(row, "tokens_per_s");
    st->eval_loss = isnan(eval) ? st->eval_loss : eval;
    st->step_at = isnan(wall) ? 0 : wall;
}

static int read_metrics(struct top_job *job, struct fsdp_err *err)
{
    struct status *st = &job->status;

    *st = (struct status){.state = STATUS_RUNNING,
                          .step = -1,
                          .loss = (double)NAN,
                          .eval_loss = (double)NAN,
                          .saved.step = -1,
                          .slowest.rank = -1,
                          .hung.rank = -1};
    each_row(job->path, take_last, st);
    if (st->step < 0)
        return fsdp_err_set(err, FSDP_ECORRUPT, "%s: these are no metrics of a run", job->path);
    if (strlen(job->path) < sizeof st->metrics)
        strcpy(st->metrics, job->path);
    return FSDP_OK;
}

/* ---- judging --------------------------------------------------------------------------------- */

static bool has_ended(int state)
{
    return state == STATUS_STOPPED || state == STATUS_FAILED || state == STATUS_DONE;
}

/* Clocks of machines differ: the younger of two signs counts, by the writer's and by the file's. */
static double age_of(const struct top_job *job, double now)
{
    struct stat st;
    double age = job->status.at > 0 ? now - job->status.at : (double)INFINITY;

    if (stat(job->path, &st) == 0) {
        const double file = now - (double)st.st_mtim.tv_sec - 1e-9 * (double)st.st_mtim.tv_nsec;
        age = file < age ? file : age;
    }
    return age < 0 ? 0 : age;
}

static void judge_status(struct top_job *job, double now)
{
    const struct status *st = &job->status;
    const bool near = process_is_near(&st->process);
    char age[REPORT_NUMBER_NBYTES], usual[REPORT_NUMBER_NBYTES];
    const double slow_s = 20 * st->step_s > silent_s ? 20 * st->step_s : silent_s;
    const double since_step = now - st->step_at;

    job->state = (int)st->state;
    if (has_ended(job->state) || job->state == STATUS_HUNG)
        return;
    report_left(age, job->seen_s);
    if (near ? !process_runs(&st->process) : job->seen_s > silent_s) {
        job->state = TOP_LOST;
        snprintf(job->note, sizeof job->note,
                 near ? "process %d on %s is gone without a word; its last sign was %s ago"
                      : "process %d on %s, which is not this machine, has given no sign for %s",
                 st->process.pid, st->process.host, age);
    } else if (job->seen_s > silent_s) {
        job->state = TOP_STALLED;
        snprintf(job->note, sizeof job->note, "process %d on %s is there, and gives no sign for %s",
                 st->process.pid, st->process.host, age);
    } else if (st->state == STATUS_RUNNING && st->step_s > 0 && since_step > slow_s) {
        job->state = TOP_STALLED;
        snprintf(job->note, sizeof job->note, "no step for %s; one took %s before",
                 report_left(age, since_step), report_seconds(usual, st->step_s));
    }
}

static void judge(struct top_job *job, double now)
{
    const struct status *st = &job->status;

    job->note[0] = 0;
    job->seen_s = age_of(job, now);
    job->saved_s = st->saved.at > 0 ? now - st->saved.at : (double)NAN;
    job->left_s = (double)NAN;
    if (job->from_metrics)
        job->state = job->seen_s > silent_s ? TOP_ENDED : STATUS_RUNNING;
    else
        judge_status(job, now);
    if (job->state == STATUS_HUNG && st->hung.rank >= 0)
        snprintf(job->note, sizeof job->note, "rank %d on %s: %s", st->hung.rank, st->hung.host,
                 st->hung.where);
    else if (job->state == STATUS_HUNG || job->state == STATUS_FAILED)
        snprintf(job->note, sizeof job->note, "%s", st->reason[0] ? st->reason : st->hung.where);
    if (top_state_is_active(job->state) && st->step_s > 0 && st->steps > st->step)
        job->left_s = st->step_s * (double)(st->steps - st->step);
}

/* A file that is whole JSON, but no status, is another program's. */
static int read_status(struct status *out, const char *path, struct fsdp_err *err)
{
    enum { MOST_NBYTES = 1 << 20 };
    char *text = NULL;
    size_t nbytes = 0;
    const int rc = status_read(out, path, err);

    if (rc != FSDP_ECORRUPT || fsdp_file_read(&text, &nbytes, path, MOST_NBYTES, NULL) != FSDP_OK)
        return rc;
    json_t *root = json_loadb(text, nbytes, 0, NULL);
    const bool whole = root != NULL;
    json_decref(root);
    fsdp_free(text);
    return whole ? fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s: another program's file", path)
                 : fsdp_err_set(err, FSDP_ECORRUPT, "%s: damaged or incomplete JSON", path);
}

int top_job_read(struct top_job *job, double now, struct fsdp_err *err)
{
    if (job->from_metrics) {
        FSDP_TRY(read_metrics(job, err));
        judge(job, now);
        return FSDP_OK;
    }
    FSDP_TRY(read_status(&job->status, job->path, err));
    judge(job, now);
    /* A process that was just gone may have written its end meanwhile. */
    if (job->state == TOP_LOST) {
        FSDP_TRY(read_status(&job->status, job->path, err));
        judge(job, now);
    }
    return FSDP_OK;
}
