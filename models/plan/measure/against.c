/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "against.h"

static int check_traces(const struct trace_file *plan, const struct trace_file *run, int rank,
                        struct fsdp_err *err)
{
    if (!plan->planned || run->planned)
        return fsdp_err_set(err, FSDP_EINVAL, "%s is a trace of a %s, where one of a %s is wanted",
                            plan->planned ? run->path : plan->path, plan->planned ? "plan" : "run",
                            plan->planned ? "run" : "plan");
    if (rank < AGAINST_SLOWEST || rank >= run->nprocs)
        return fsdp_err_set(err, FSDP_EINVAL, "%s has ranks 0 to %d, not %d", run->path,
                            run->nprocs - 1, rank);
    return trace_file_same_list(plan, run, err);
}

static struct against_row *row_of(struct against_row *rows, int *nrows, const char *kind,
                                  const char *group)
{
    for (int i = 0; i < *nrows; i++)
        if (!strcmp(rows[i].kind, kind) && !strcmp(rows[i].group, group))
            return &rows[i];
    struct against_row *row = &rows[(*nrows)++];
    snprintf(row->kind, sizeof row->kind, "%s", kind);
    snprintf(row->group, sizeof row->group, "%s", group);
    return row;
}

static int by_difference(const void *a, const void *b)
{
    const struct against_row *x = a, *y = b;
    const double dx = fabs(x->real_s - x->planned_s), dy = fabs(y->real_s - y->planned_s);
    return (dx < dy) - (dx > dy);
}

static void add_row(struct against_row *row, const struct trace_file *plan,
                    const struct trace_file *run, int rank, int op)
{
    snprintf(row->lane, sizeof row->lane, "%s", run->ops[op].lane);
    row->n++;
    row->planned_s += trace_file_own(plan, 0, op);
    row->real_s += trace_file_own(run, rank, op);
    row->wait_s += trace_file_wait(run, rank, op);
}

/* Of each step what no operation accounts for, where lanes take turns; else what is between the
 * lists. */
static double idle(const struct trace_file *run, int rank)
{
    double left[TRACE_FILE_MAX_STEPS];

    for (int s = 0; s < run->nsteps; s++) {
        left[s] = trace_file_step_s(run, rank, s);
        for (int i = 0; i < run->nops; i++)
            left[s] -=
                trace_file_time(run, rank, s, i)->own + trace_file_time(run, rank, s, i)->wait;
        left[s] = left[s] > 0 ? left[s] : 0;
    }
    return trace_file_median(left, run->nsteps);
}

int against_make(struct against *out, const struct trace_file *plan, const struct trace_file *run,
                 double planned_step_s, int rank, struct fsdp_err *err)
{
    const int max_lanes = (int)(sizeof out->lanes / sizeof out->lanes[0]);
    double list[TRACE_FILE_MAX_STEPS];

    *out = (struct against){.nsteps = run->nsteps, .nranks = run->nprocs};
    FSDP_TRY(check_traces(plan, run, rank, err));
    rank = rank == AGAINST_SLOWEST ? trace_file_slowest(run) : rank;
    out->rank = rank;
    out->rows = fsdp_alloc((size_t)run->nops, sizeof *out->rows, "rows of a comparison", err);
    if (!out->rows)
        return FSDP_ENOMEM;
    for (int i = 0; i < run->nops; i++) {
        const struct trace_file_op *op = &run->ops[i];
        add_row(row_of(out->rows, &out->nrows, op->kind, op->group), plan, run, rank, i);
        if (out->nlanes < max_lanes)
            add_row(row_of(out->lanes, &out->nlanes, op->lane, ""), plan, run, rank, i);
        out->wait_s += trace_file_wait(run, rank, i);
    }
    qsort(out->rows, (size_t)out->nrows, sizeof *out->rows, by_difference);
    for (int s = 0; s < run->nsteps; s++)
        list[s] = trace_file_step(run, rank, s)->end - trace_file_step(run, rank, s)->begin;
    out->real_list_s = trace_file_median(list, run->nsteps);
    out->real_step_s = trace_file_steps(run, rank);
    out->planned_step_s = planned_step_s > 0 ? planned_step_s : trace_file_steps(plan, 0);
    out->idle_s = idle(run, rank);
    return FSDP_OK;
}

void against_free(struct against *a)
{
    fsdp_free(a->rows);
    *a = (struct against){.nrows = 0};
}

/* ---- the table ------------------------------------------------------------------------------- */

static void put_numbers(const struct against_row *r, FILE *to)
{
    fprintf(to, "%12.3f %12.3f %+12.3f", r->planned_s * 1e3, r->real_s * 1e3,
            (r->real_s - r->planned_s) * 1e3);
    if (r->planned_s > 1e-9)
        fprintf(to, " %8.2f", r->real_s / r->planned_s);
    else
        fprintf(to, " %8s", "-");
    if (r->wait_s > 0)
        fprintf(to, " %10.3f", r->wait_s * 1e3);
    putc('\n', to);
}

static int width_of(const struct against *a)
{
    int width = 24;

    for (int i = 0; i < a->nrows; i++) {
        const int len = (int)(strlen(a->rows[i].kind) + 1 + strlen(a->rows[i].group));
        width = len > width ? len : width;
    }
    return width < 60 ? width : 60;
}

static void put_row(const struct against_row *r, int width, FILE *to)
{
    char name[TRACE_FILE_KIND + TRACE_FILE_NAME];

    snprintf(name, sizeof name, "%s%s%s", r->kind, *r->group ? " " : "", r->group);
    fprintf(to, "%-*.*s %5d ", width, width, name, r->n);
    put_numbers(r, to);
}

void against_print(const struct against *a, int max_rows, FILE *to)
{
    const int width = width_of(a);
    const int nrows = max_rows > 0 && max_rows < a->nrows ? max_rows : a->nrows;
    struct against_row step = {.planned_s = a->planned_step_s, .real_s = a->real_step_s};

    fprintf(to,
            "plan against %d step%s of %d rank%s; times are of rank %d, in milliseconds of a "
            "step\n\n",
            a->nsteps, a->nsteps == 1 ? "" : "s", a->nranks, a->nranks == 1 ? "" : "s", a->rank);
    fprintf(to, "%-*s %5s %12s %12s %12s %8s %10s\n", width, "operation", "n", "planned", "real",
            "difference", "ratio", "waited");
    for (int i = 0; i < nrows; i++)
        put_row(&a->rows[i], width, to);
    if (nrows < a->nrows)
        fprintf(to, "... and %d rows with smaller differences\n", a->nrows - nrows);
    putc('\n', to);
    for (int i = 0; i < a->nlanes; i++)
        put_row(&a->lanes[i], width, to);
    fprintf(to, "%-*s %5s ", width, "step", "");
    put_numbers(&step, to);
    fprintf(
        to,
        "\nEach number is a median over the steps, so that sums may be less than the step. waited: "
        "for slower\nranks, inside collectives (%.3f ms); real times are without it. In no "
        "operation: %.3f ms\n",
        a->wait_s * 1e3, a->idle_s * 1e3);
}
