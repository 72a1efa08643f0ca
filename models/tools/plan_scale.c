/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp-plan --scale and --chart: rows over GPUs, and pictures. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "chart_terminal.h"
#include "output.h"
#include "plan.h"
#include "plan/scale/scale.h"

/* ---- what is asked --------------------------------------------------------------------------- */

static bool is_png(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && !strcasecmp(dot, ".png");
}

static bool is_svg(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && !strcasecmp(dot, ".svg");
}

static bool is_same_file(const struct stat *a, const char *path)
{
    struct stat b;
    return path && !stat(path, &b) && a->st_dev == b.st_dev && a->st_ino == b.st_ino;
}

int plan_check_chart(const struct plan_settings *set, const char *config, struct fsdp_err *err)
{
    struct stat st;

    if (!set->chart)
        return FSDP_OK;
    if (set->search)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--chart with --search: search first, then draw what it wrote: "
                            "fsdp-plan best.yaml --chart %s",
                            set->chart);
    if (!is_svg(set->chart) && !is_png(set->chart))
        return fsdp_err_set(err, FSDP_EINVAL, "--chart %s: the name must end in .svg or .png",
                            set->chart);
    if (is_png(set->chart) && !chart_has_png())
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--chart %s: this build draws no PNG, because it was made without "
                            "cairo; write an .svg",
                            set->chart);
    if (stat(set->chart, &st))
        return FSDP_OK;
    if (S_ISDIR(st.st_mode))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--chart %s is a folder: name a file in it, such as "
                            "%s/plan.svg",
                            set->chart, set->chart);
    if (is_same_file(&st, config) || is_same_file(&st, set->cluster))
        return fsdp_err_set(err, FSDP_EINVAL, "--chart %s is read for the plan: name another file",
                            set->chart);
    return FSDP_OK;
}

int plan_check_scale(const struct plan_settings *set, struct fsdp_err *err)
{
    if (!set->scale.from && set->scale_batch)
        return fsdp_err_set(err, FSDP_EINVAL, "--scale-batch is for --scale: add --scale 8..1024");
    if (!set->scale.from)
        return FSDP_OK;
    if (set->search || set->trace)
        return fsdp_err_set(err, FSDP_EINVAL, "--scale with --%s: leave out one of them",
                            set->search ? "search" : "trace");
    if (set->scale_batch == PLAN_BATCH_GPU && set->batch_tokens > 0 && !set->ngpus && !set->nnodes)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--scale with --batch: say for how many GPUs that is (--gpus N), or "
                            "keep it for all of them (--scale-batch constant)");
    return FSDP_OK;
}

int plan_take_range(void *to, const char *text, struct fsdp_err *err)
{
    struct plan_range *range = to;
    char end;

    if (sscanf(text, "%9d..%9d%c", &range->from, &range->to, &end) != 2 || range->from < 1 ||
        range->to > 1 << 20)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "'%s' is not a range of GPUs such as 8..16384 (1 to %d)", text,
                            1 << 20);
    if (range->to < range->from)
        return fsdp_err_set(err, FSDP_EINVAL, "'%s' ends before it begins: write %d..%d", text,
                            range->to, range->from);
    return FSDP_OK;
}

/* ---- pictures -------------------------------------------------------------------------------- */

struct picture {
    const struct scale_chart *chart;
    bool png;
};

static int write_picture(FILE *to, const void *ctx, struct fsdp_err *err)
{
    const struct picture *p = ctx;
    const struct chart_page page = {.width = 960, .height = 0};
    const struct chart *chart = scale_chart_get(p->chart);

    return p->png ? chart_png(to, chart, &page, err) : chart_svg(to, chart, &page, err);
}

static int keep_picture(const char *path, const struct scale_chart *chart, struct fsdp_err *err)
{
    struct picture picture = {chart, is_png(path)};

    return output_write(path, write_picture, &picture, err);
}

int plan_chart(const struct plan_asked *asked, const struct plan_settings *set,
               struct fsdp_err *err)
{
    struct settings *settings = fsdp_alloc(1, sizeof *settings, "settings", err);
    struct scale_chart *chart;
    int rc;

    if (!settings)
        return FSDP_ENOMEM;
    rc = settings_make(settings, &asked->question, err);
    if (rc == FSDP_OK)
        rc = settings_chart_create(&chart, settings, &asked->question, err);
    fsdp_free(settings);
    if (rc)
        return rc;
    rc = keep_picture(set->chart, chart, err);
    scale_chart_destroy(chart);
    return rc;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static volatile sig_atomic_t interrupted;

static void interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

static bool show_progress(void *ctx, int nplanned, int nall)
{
    double *last = ctx;
    const double now = fsdp_time_now();

    if (isatty(STDERR_FILENO) && now - *last > 0.2) {
        *last = now;
        fprintf(stderr, "\r%d of %d plans\033[K", nplanned, nall > nplanned ? nall : nplanned);
    }
    return !interrupted;
}

struct rows {
    const struct scale *scale;
    const struct question *question;
};

static int write_rows(FILE *to, const void *ctx, struct fsdp_err *err)
{
    const struct rows *r = ctx;
    return scale_json(r->scale, r->question, to, err);
}

/* The chart goes under the table on a terminal, unless it is drawn as a picture. */
static int show_rows(const struct scale *scale, const struct plan_asked *asked,
                     const struct plan_settings *set, struct fsdp_err *err)
{
    const bool has_table = !set->json || strcmp(set->json, "-") != 0;
    const bool has_text = has_table && !set->chart && isatty(STDOUT_FILENO);
    struct rows rows = {scale, &asked->question};
    struct scale_chart *chart = NULL;
    int rc = FSDP_OK;

    if (has_table)
        scale_print(scale, &asked->question, stdout);
    fflush(stdout);
    if (set->json)
        FSDP_TRY(output_write(set->json, write_rows, &rows, err));
    if (!set->chart && !has_text)
        return FSDP_OK;
    FSDP_TRY(scale_chart_create(&chart, scale, &asked->question, err));
    if (set->chart) {
        rc = keep_picture(set->chart, chart, err);
    } else {
        enum { MOST_LINES = 30 };
        struct chart_terminal terminal = chart_terminal_find(0, 0, CHART_COLOURS_AUTO);
        if (terminal.nlines > MOST_LINES)
            terminal.nlines = MOST_LINES;
        struct fsdp_err small = FSDP_ERR_INIT; /* no room: the table has all of it */
        chart_text(stdout, scale_chart_get(chart), &terminal, &small);
    }
    scale_chart_destroy(chart);
    return rc;
}

int plan_scale(const struct plan_asked *asked, const struct plan_settings *set, bool *fits,
               struct fsdp_err *err)
{
    double last = 0;
    const struct scale_opts opts = {
        .from = set->scale.from,
        .to = set->scale.to,
        .batch = set->scale_batch == PLAN_BATCH_CONSTANT ? SCALE_CONSTANT : SCALE_PER_GPU,
        .from_question = set->ngpus || set->nnodes || asked->cluster.ngpus,
        .progress = show_progress,
        .ctx = &last,
    };
    struct sigaction old, action = {.sa_handler = interrupt};
    struct scale *scale = fsdp_alloc(1, sizeof *scale, "rows", err);

    if (!scale)
        return FSDP_ENOMEM;
    sigaction(SIGINT, &action, &old);
    int rc = scale_make(scale, &asked->question, &opts, err);
    sigaction(SIGINT, &old, NULL);
    if (last > 0)
        fputs("\r\033[K", stderr);
    if (rc == FSDP_OK) {
        *fits = scale_fits(scale);
        rc = show_rows(scale, asked, set, err);
    }
    fsdp_free(scale);
    return rc;
}
