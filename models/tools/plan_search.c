/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp-plan --search: looks for the best settings and writes them as a run.yaml. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "config/config.h"
#include "output.h"
#include "plan.h"
#include "plan/answer/text.h"
#include "plan/search/search.h"

/* ---- progress -------------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted;

static void interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

struct progress {
    bool shown;
    double last;
};

static bool show_progress(void *ctx, int nplanned, const struct answer *best)
{
    struct progress *p = ctx;
    char step[ANSWER_TEXT_NBYTES];
    const double now = fsdp_time_now();

    if (p->shown && now - p->last > 0.2) {
        p->last = now;
        fprintf(stderr, "\r%d plans%s%s\033[K", nplanned, best ? "; the best step takes " : "",
                best ? answer_seconds(step, best->step_s) : "");
    }
    return !interrupted;
}

/* ---- best.yaml ------------------------------------------------------------------------------- */

struct best {
    const struct plan_asked *asked;
    const struct plan_settings *set;
    const struct search_point *point;
};

static const char *best_path(const struct plan_settings *set)
{
    return set->output ? set->output : "best.yaml";
}

/* A name in a comment: what is no plain character is a question mark. */
static const char *plain(char *out, size_t out_nbytes, const char *name)
{
    size_t i = 0;

    for (; name[i] && i + 1 < out_nbytes; i++)
        out[i] = (unsigned char)name[i] < ' ' || name[i] == 127 ? '?' : name[i];
    out[i] = 0;
    return out;
}

static void write_head(const struct best *b, FILE *to)
{
    const struct answer *a = &b->point->answer;
    const struct cluster *c = &b->asked->cluster;
    char step[ANSWER_TEXT_NBYTES], nbytes[FSDP_NBYTES_TEXT], file[300], cluster[300];
    char settings[CHANGE_MAX_SETTINGS * (CHANGE_TEXT + 1)];

    fprintf(to,
            "# The best of a search by fsdp-plan for %d %s in nodes of %d%s%s%s%s.\n"
            "# A step is planned to take %s, +- %.0f %% (%s); a GPU needs %s.\n"
            "# What the search set: %s\n#\n"
            "#   fsdp-launch -n %d '%s'\n#\n",
            a->nranks, c->clock.device.name, c->clock.net.node_nranks, *c->net ? ", " : "", c->net,
            *c->path ? ", " : "", plain(cluster, sizeof cluster, c->path),
            answer_seconds(step, a->step_s), 100 * a->band.share, a->band.basis,
            fsdp_nbytes_text(nbytes, (uint64_t)(a->device_nbytes + a->reserved_nbytes)),
            change_text(settings, sizeof settings, &b->point->change), a->nranks,
            plain(file, sizeof file, best_path(b->set)));
    if (b->set->model)
        fprintf(to, "# Name your data where FILL_IN stands.\n");
    if (strstr(settings, CHANGE_TO_DISKS))
        fprintf(to, "# fsdp.offload_dir: name a folder on the node's own disks.\n");
}

static int write_best(FILE *to, const void *ctx, struct fsdp_err *err)
{
    const struct best *b = ctx;
    const struct question *q = &b->asked->question;
    char *overrides[PLAN_MAX_OVERRIDES + CHANGE_MAX_SETTINGS];
    struct config *config;
    int n = 0;

    for (int i = 0; i < q->noverrides; i++)
        overrides[n++] = q->overrides[i];
    for (int i = 0; i < b->point->change.nsettings; i++)
        overrides[n++] = (char *)(uintptr_t)b->point->change.setting[i];
    FSDP_TRY(config_load(&config, q->config, n, overrides, err));
    write_head(b, to);
    const int rc = config_print(config, false, to, err);
    fsdp_free(config);
    return rc;
}

/* Before a search, which takes a while. */
static int check_best(const struct plan_settings *set, struct fsdp_err *err)
{
    const char *path = best_path(set);

    if (strcmp(path, "-") != 0 && !set->overwrite && !access(path, F_OK))
        return fsdp_err_set(err, FSDP_EEXIST,
                            "%s exists: name another file with -o, or add --overwrite", path);
    return FSDP_OK;
}

static int keep_best(const struct best *b, struct fsdp_err *err)
{
    const char *path = best_path(b->set);

    FSDP_TRY(check_best(b->set, err)); /* another may have written it meanwhile */
    FSDP_TRY(output_write(path, write_best, b, err));
    if (strcmp(path, "-") != 0)
        printf("\n%s has the settings of 1\n", path);
    return FSDP_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

int plan_search(const struct plan_asked *asked, const struct plan_settings *set, bool *fits,
                struct fsdp_err *err)
{
    struct progress progress = {.shown = isatty(STDERR_FILENO)};
    const struct search_opts opts = {
        .goal = (enum search_goal)set->goal,
        .keep_numerics = set->keep_numerics,
        .most_rows = set->most_rows,
        .progress = show_progress,
        .ctx = &progress,
    };
    struct sigaction old, action = {.sa_handler = interrupt};

    FSDP_TRY(check_best(set, err));
    struct search_result *result = fsdp_alloc(1, sizeof *result, "search", err);
    if (!result)
        return FSDP_ENOMEM;
    sigaction(SIGINT, &action, &old);
    int rc = search_run(result, &asked->question, &opts, err);
    sigaction(SIGINT, &old, NULL);
    if (progress.shown)
        fputs("\r\033[K", stderr);
    if (rc == FSDP_OK) {
        *fits = result->nfront > 0;
        search_print(result, &asked->question, &opts, best_path(set), stdout);
    }
    if (rc == FSDP_OK && result->nfront)
        rc = keep_best(&(struct best){asked, set, &result->front[0]}, err);
    fsdp_free(result);
    return rc;
}
