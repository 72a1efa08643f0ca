/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "show.h"
#include "train/report/report.h"

enum { LABEL = 12, MAX_VALUES = 400 };

/* ---- one run --------------------------------------------------------------------------------- */

/* Nothing for an empty text. What is longer than a line continues in the next. */
static void put_fact(FILE *to, const struct top_style *style, const char *label, const char *fmt,
                     ...) FSDP_PRINTF(4, 5);
static void put_fact(FILE *to, const struct top_style *style, const char *label, const char *fmt,
                     ...)
{
    const int room = style->columns - LABEL - 1 > 20 ? style->columns - LABEL - 1 : 20;
    char text[1400], part[1400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (const char *at = text; *at;) {
        size_t nbytes = strlen(at);
        if (nbytes > (size_t)room) {
            nbytes = (size_t)room;
            while (nbytes > (size_t)room / 2 && at[nbytes] != ' ')
                nbytes--;
            if (at[nbytes] != ' ')
                nbytes = (size_t)room;
        }
        while (nbytes > 1 && ((unsigned char)at[nbytes] & 0xc0) == 0x80)
            nbytes--;
        snprintf(part, sizeof part, "%.*s", (int)nbytes, at);
        fprintf(to, "%-*s ", LABEL, at == text ? label : "");
        top_put(to, style, part, room, false, false);
        fputc('\n', to);
        at += nbytes;
        at += *at == ' ';
    }
}

/* The means of groups of values, as many as there are columns. */
static int shrink(double *values, int nvalues, int columns)
{
    if (nvalues <= columns)
        return nvalues;
    for (int c = 0; c < columns; c++) {
        const int from = c * nvalues / columns, to = (c + 1) * nvalues / columns;
        double sum = 0;
        for (int i = from; i < to; i++)
            sum += values[i] / (to - from);
        values[c] = sum;
    }
    return columns;
}

/* A value a column, from the lowest that there is to the highest. */
static void put_curve(FILE *to, const struct top_style *style, const char *label, const char *path,
                      const char *key)
{
    static const char *const bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char plain[] = "_.:-=+*#";
    enum { NBARS = sizeof bars / sizeof bars[0] };
    double values[MAX_VALUES];
    char first[REPORT_NUMBER_NBYTES], last[REPORT_NUMBER_NBYTES];
    const int all = top_metrics_values(values, MAX_VALUES, path, key);

    if (all < 2)
        return;
    const bool is_rate = values[0] >= 1000;
    if (is_rate) {
        report_rate_short(first, values[0]);
        report_rate_short(last, values[all - 1]);
    } else {
        snprintf(first, sizeof first, "%.4g", values[0]);
        snprintf(last, sizeof last, "%.4g", values[all - 1]);
    }
    const int room = style->columns - LABEL - 3 - (int)(strlen(first) + strlen(last));
    const int nvalues = shrink(values, all, room < 10 ? 10 : room);
    double lo = values[0], hi = values[0];
    for (int i = 0; i < nvalues; i++) {
        lo = values[i] < lo ? values[i] : lo;
        hi = values[i] > hi ? values[i] : hi;
    }
    fprintf(to, "%-*s %s ", LABEL, label, first);
    top_ink(to, style, TOP_CYAN);
    for (int i = 0; i < nvalues; i++) {
        const double share = hi > lo ? (values[i] / 2 - lo / 2) / (hi / 2 - lo / 2) : 0;
        const int bar = (int)((NBARS - 1) * share + 0.5);
        if (style->utf8)
            fputs(bars[bar], to);
        else
            fputc(plain[bar], to);
    }
    top_plain(to, style);
    fprintf(to, " %s\n", last);
}

static const char *time_text(char out[32], double wall)
{
    const time_t seconds = wall > 0 && wall < 1e12 ? (time_t)wall : 0;
    struct tm tm;

    if (!seconds || !localtime_r(&seconds, &tm) || !strftime(out, 32, "%Y-%m-%d %H:%M:%S", &tm))
        out[0] = 0;
    return out;
}

static const char *loss_text(char out[REPORT_NUMBER_NBYTES], double loss)
{
    snprintf(out, REPORT_NUMBER_NBYTES, fabs(loss) < 1e6 ? "%.4f" : "%.4g", loss);
    return out;
}

static void put_progress(FILE *to, const struct top_style *style, const struct top_job *job)
{
    const struct status *st = &job->status;
    char a[REPORT_NUMBER_NBYTES], b[REPORT_NUMBER_NBYTES], left[REPORT_NUMBER_NBYTES + 8] = "";
    char usual[32] = "", mfu[32] = "", text[32];

    if (isfinite(job->left_s))
        snprintf(left, sizeof left, ", %s left", report_left(a, job->left_s));
    if (st->steps > 0)
        put_fact(to, style, "step", "%s of %s (%.1f%%)%s", report_count(a, (uint64_t)st->step),
                 report_count(b, (uint64_t)st->steps), 100 * (double)st->step / (double)st->steps,
                 left);
    else
        put_fact(to, style, "step", "%s", report_count(a, (uint64_t)st->step));
    if (isfinite(st->loss) && isfinite(st->eval_loss))
        put_fact(to, style, "loss", "%s; held out %s", loss_text(a, st->loss),
                 loss_text(b, st->eval_loss));
    else if (isfinite(st->loss))
        put_fact(to, style, "loss", "%s", loss_text(a, st->loss));
    if (st->step_s > 0)
        snprintf(usual, sizeof usual, ", %.3g s a step", st->step_s);
    if (st->mfu > 0)
        snprintf(mfu, sizeof mfu, ", MFU %.1f%%", 100 * st->mfu);
    if (st->tokens_per_s > 0)
        put_fact(to, style, "rate", "%s tokens/s%s%s", report_rate(a, st->tokens_per_s), usual,
                 mfu);
    if (st->saved.step >= 0)
        put_fact(to, style, "saved", "step %s, %s ago (%s)",
                 report_count(a, (uint64_t)st->saved.step), report_left(b, job->saved_s),
                 time_text(text, st->saved.at));
    if (st->slowest.rank >= 0)
        put_fact(to, style, "slowest", "rank %d computes %.3g s a step", st->slowest.rank,
                 st->slowest.seconds);
}

void top_show_detail(FILE *to, const struct top_style *style, const struct top_job *job)
{
    const struct status *st = &job->status;
    char a[REPORT_NUMBER_NBYTES], text[32];

    top_ink(to, style, TOP_BOLD);
    put_fact(to, style, "job", "%s", job->name);
    top_plain(to, style);
    put_fact(to, style, "state", "%s; its last sign was %s ago", top_state_word(job->state),
             report_left(a, job->seen_s));
    put_fact(to, style, "trouble", "%s", job->note);
    put_progress(to, style, job);
    if (st->nodes > 0)
        put_fact(to, style, "ranks", "%d on %d node%s, start %d of this run", st->ranks, st->nodes,
                 st->nodes == 1 ? "" : "s", st->attempt);
    if (st->process.pid > 0)
        put_fact(to, style, "process", "%d on %s%s%s, since %s", st->process.pid, st->process.host,
                 st->job[0] ? ", Slurm job " : "", st->job, time_text(text, st->began));
    put_fact(to, style, "settings", "%s", st->config);
    put_fact(to, style, "checkpoints", "%s", st->checkpoints);
    put_fact(to, style, "metrics", "%s", st->metrics);
    if (st->metrics[0])
        fputc('\n', to);
    put_curve(to, style, "loss", st->metrics, "loss");
    put_curve(to, style, "tokens/s", st->metrics, "tokens_per_s");
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *real_or_null(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static void set_number(json_t *object, const char *key, double x)
{
    json_object_set_new(object, key, real_or_null(x));
}

/* JSON is UTF-8; the name of a folder need not be. */
static void set_text(json_t *object, const char *key, const char *text)
{
    json_t *value = json_string(text);

    if (!value) {
        char *clean = fsdp_strdup(text, NULL);
        value = clean ? json_string(fsdp_text_clean(clean)) : NULL;
        fsdp_free(clean);
    }
    json_object_set_new(object, key, value);
}

/* The status as it stands in its file, and what was made of it. */
static json_t *object_of(const struct top_job *job)
{
    const struct status *st = &job->status;
    json_t *object = job->from_metrics ? NULL : json_load_file(job->path, 0, NULL);

    if (!object)
        object = json_pack("{s:I, s:i, s:i}", "step", (json_int_t)st->step, "attempt", st->attempt,
                           "ranks", st->ranks);
    if (!object)
        return NULL;
    if (job->from_metrics) {
        set_number(object, "loss", st->loss);
        set_number(object, "tokens_per_s", st->tokens_per_s);
        set_text(object, "metrics", st->metrics);
    }
    set_text(object, "name", job->name);
    set_text(object, "file", job->path);
    set_text(object, "state", top_state_word(job->state));
    set_text(object, "trouble", job->note);
    set_number(object, "seen_seconds_ago", job->seen_s);
    set_number(object, "saved_seconds_ago", job->saved_s);
    set_number(object, "seconds_left", job->left_s);
    return object;
}

int top_show_json(FILE *to, const struct top_jobs *jobs, struct fsdp_err *err)
{
    json_t *all = json_array();

    for (int i = 0; i < jobs->njobs && all; i++)
        json_array_append_new(all, object_of(&jobs->job[i]));
    const int failed = !all || json_dumpf(all, to, JSON_INDENT(1) | JSON_REAL_PRECISION(12)) != 0 ||
                       fputc('\n', to) == EOF;
    json_decref(all);
    return failed ? fsdp_err_set(err, FSDP_EIO, "the list of jobs cannot be written") : FSDP_OK;
}
