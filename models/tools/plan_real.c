/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp-plan --against and --calibrate: the plan next to a trace of the run. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "output.h"
#include "plan.h"
#include "plan/answer/text.h"
#include "plan/measure/against.h"
#include "plan/measure/calibrate.h"

/* ---- the two traces -------------------------------------------------------------------------- */

struct traces {
    struct trace_file plan, run;
};

static int write_plan(FILE *to, const void *ctx, struct fsdp_err *err)
{
    return answer_trace(ctx, to, err);
}

/* The plan's list under the clock, as a trace. */
static int trace_plan(struct trace_file *out, const struct question *question, struct fsdp_err *err)
{
    const char *folder = getenv("TMPDIR");
    char path[4096];
    int fd;

    if (snprintf(path, sizeof path, "%s/fsdp-plan.XXXXXX", folder && *folder ? folder : "/tmp") >=
            (int)sizeof path ||
        (fd = mkstemp(path)) < 0)
        return fsdp_err_sys(err, errno, "cannot write a temporary file in %s; set TMPDIR",
                            folder && *folder ? folder : "/tmp");
    close(fd);
    int rc = output_write(path, write_plan, question, err);
    if (rc == FSDP_OK)
        rc = trace_file_read(out, path, err);
    unlink(path);
    return rc;
}

static int check_ranks(const struct trace_file *run, int ngpus, struct fsdp_err *err)
{
    if (run->planned)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s is a trace of a plan; fsdp-launch --trace=FILE writes one of a run",
                            run->path);
    if (run->nprocs != ngpus)
        return fsdp_err_set(err, FSDP_EMISMATCH,
                            "%s is of a run on %d rank%s, and the plan is for %d: add --gpus %d",
                            run->path, run->nprocs, run->nprocs == 1 ? "" : "s", ngpus,
                            run->nprocs);
    return FSDP_OK;
}

static int open_traces(struct traces *out, const struct question *question, const char *path,
                       struct fsdp_err *err)
{
    *out = (struct traces){.run = {.path = NULL}};
    FSDP_TRY(trace_file_read(&out->run, path, err));
    int rc = check_ranks(&out->run, question->ngpus, err);
    if (rc == FSDP_OK)
        rc = trace_plan(&out->plan, question, err);
    if (rc)
        trace_file_close(&out->run);
    return rc;
}

static void close_traces(struct traces *traces)
{
    trace_file_close(&traces->plan);
    trace_file_close(&traces->run);
}

/* ---- against --------------------------------------------------------------------------------- */

int plan_against(const struct plan_asked *asked, const struct plan_settings *set,
                 struct fsdp_err *err)
{
    struct against against = {.nrows = 0};
    struct traces traces;
    struct answer answer;

    if (set->output)
        FSDP_TRY(plan_check_output(set->output, set->overwrite, err));
    FSDP_TRY(answer_make(&answer, &asked->question, err));
    FSDP_TRY(open_traces(&traces, &asked->question, set->against, err));
    int rc = against_make(&against, &traces.plan, &traces.run, answer.step_s, AGAINST_SLOWEST, err);
    if (rc == FSDP_OK)
        against_print(&against, 0, stdout);
    if (rc == FSDP_OK && set->output)
        rc = against_write(&traces.plan, &traces.run, against.rank, set->output, err);
    if (rc == FSDP_OK && set->output)
        printf("%s has a step of both; open it in ui.perfetto.dev\n", set->output);
    against_free(&against);
    close_traces(&traces);
    return rc;
}

/* ---- calibrate ------------------------------------------------------------------------------- */

/* Products of 8 bits have the factor of the others: no trace tells them apart. */
static const enum cluster_factor factor_of[CALIBRATE_NFACTORS] = {
    [CALIBRATE_PRODUCT] = CLUSTER_PRODUCT, [CALIBRATE_ATTENTION] = CLUSTER_ATTENTION,
    [CALIBRATE_MEMORY] = CLUSTER_MEMORY,   [CALIBRATE_NODE] = CLUSTER_NODE,
    [CALIBRATE_FLAT] = CLUSTER_FLAT,       [CALIBRATE_RAIL] = CLUSTER_RAIL,
    [CALIBRATE_LATENCY] = CLUSTER_LATENCY, [CALIBRATE_HOST] = CLUSTER_HOST,
};

static int correct_cluster(struct cluster *cluster, const struct calibration *c,
                           struct fsdp_err *err)
{
    for (int k = 0; k < CALIBRATE_NFACTORS; k++) {
        const enum cluster_factor factor = factor_of[k];
        if (c->factor[k] != 1)
            FSDP_TRY(
                cluster_set_factor(cluster, factor, cluster->factor[factor] * c->factor[k], err));
    }
    if (c->factor[CALIBRATE_PRODUCT] != 1)
        FSDP_TRY(cluster_set_factor(
            cluster, CLUSTER_PRODUCT_8,
            cluster->factor[CLUSTER_PRODUCT_8] * c->factor[CALIBRATE_PRODUCT], err));
    return cluster_set_number(cluster, CLUSTER_MEASURED_JITTER, c->jitter, err);
}

/* One round: a plan under the clock as it is, and what the run says of it. */
static int fit_once(struct calibration *out, struct cluster *cluster,
                    const struct question *question, const struct trace_file *run,
                    struct fsdp_err *err)
{
    struct trace_file plan;

    FSDP_TRY(trace_plan(&plan, question, err));
    int rc = calibrate_fit(out, &plan, run, err);
    trace_file_close(&plan);
    return rc ? rc : correct_cluster(cluster, out, err);
}

/* What the step takes besides the list that the corrected clock plans. */
static int finish_clock(struct calibration *c, struct cluster *cluster,
                        const struct question *question, struct fsdp_err *err)
{
    struct fsdp_clock clock = cluster->clock;
    struct answer answer;

    FSDP_TRY(answer_make(&answer, question, err));
    calibrate_finish(&clock, c, answer.times.list_s);
    FSDP_TRY(cluster_set_number(cluster, CLUSTER_MEASURED_JITTER, c->jitter, err));
    FSDP_TRY(cluster_set_factor(cluster, CLUSTER_STEP, 1, err));
    return cluster_set_number(cluster, CLUSTER_MEASURED_STEP_MS, c->step_s * 1e3, err);
}

static void print_factors(const struct calibration *c, const struct cluster *cluster)
{
    char text[ANSWER_TEXT_NBYTES];

    printf("measured time / modelled time\n");
    for (int k = 0; k < CALIBRATE_NFACTORS; k++)
        if (c->real_s[k] > 0)
            printf("  %-36s %10.3f   rests on %s of a step\n",
                   calibrate_name((enum calibrate_factor)k), cluster->factor[factor_of[k]],
                   answer_seconds(text, c->real_s[k]));
    printf("  %-36s %10s\n", "a step besides its list", answer_seconds(text, c->step_s));
    printf("  %-36s %8.1f %%\n\n", "spread of a rank's step", 100 * c->jitter);
}

static int print_step(const struct calibration *c, const struct question *question,
                      const char *path, struct fsdp_err *err)
{
    char planned[ANSWER_TEXT_NBYTES], real[ANSWER_TEXT_NBYTES];
    struct answer answer;

    FSDP_TRY(answer_make(&answer, question, err));
    printf("a step takes %s in the trace, and %s by the corrected clock\n"
           "%s has it: fsdp-plan ... --cluster %s\n",
           answer_seconds(real, c->real_step_s), answer_seconds(planned, answer.step_s), path,
           path);
    return FSDP_OK;
}

int plan_calibrate(struct plan_asked *asked, const struct plan_settings *set, struct fsdp_err *err)
{
    enum { ROUNDS = 2 }; /* products bound by memory hide some of the first */
    const char *path = set->output ? set->output : "cluster.yaml";
    struct calibration calibration;
    struct trace_file run;

    FSDP_TRY(plan_check_cluster(set, path, err));
    FSDP_TRY(trace_file_read(&run, set->calibrate, err));
    int rc = check_ranks(&run, asked->question.ngpus, err);
    for (int round = 0; round < ROUNDS && rc == FSDP_OK; round++)
        rc = fit_once(&calibration, &asked->cluster, &asked->question, &run, err);
    if (rc == FSDP_OK)
        rc = finish_clock(&calibration, &asked->cluster, &asked->question, err);
    trace_file_close(&run);
    if (rc == FSDP_OK)
        rc = cluster_write(&asked->cluster, path, err);
    if (rc)
        return rc;
    print_factors(&calibration, &asked->cluster);
    return print_step(&calibration, &asked->question, path, err);
}

/* ---- what is written ------------------------------------------------------------------------- */

int plan_check_output(const char *path, bool overwrite, struct fsdp_err *err)
{
    if (!strcmp(path, "-"))
        return fsdp_err_set(err, FSDP_EINVAL, "-o -: name a file; standard output has the table");
    if (!overwrite && !access(path, F_OK))
        return fsdp_err_set(err, FSDP_EEXIST,
                            "%s exists: name another file with -o, or add --overwrite", path);
    return FSDP_OK;
}

int plan_check_cluster(const struct plan_settings *set, const char *path, struct fsdp_err *err)
{
    if (set->cluster && set->what_if.ntexts)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--what-if %s: a cluster.yaml keeps the text of %s; change it there",
                            set->what_if.text[0], set->cluster);
    return plan_check_output(path, set->overwrite, err);
}
