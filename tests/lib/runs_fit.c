/* SPDX-License-Identifier: Apache-2.0 */
/* All rows of a file: their errors, and the fit of the constants to them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runs.h"

int runs_open(struct runs *runs, const char *file, struct fsdp_err *err)
{
    *runs = (struct runs){0};
    runs_constants(runs->value);
    FSDP_TRY(runs_read(&runs->row, &runs->nrows, file, err));
    FSDP_TRY(fsdp_device_open(&runs->device, "cpu", 0, err));
    runs->plan = fsdp_alloc((size_t)runs->nrows + 1, sizeof *runs->plan, "plans", err);
    runs->predicted = fsdp_alloc((size_t)runs->nrows + 1, sizeof *runs->predicted, "times", err);
    runs->lacks = fsdp_alloc((size_t)runs->nrows + 1, sizeof *runs->lacks, "times", err);
    if (!runs->plan || !runs->predicted || !runs->lacks)
        return FSDP_ENOMEM;
    for (int i = 0; i < runs->nrows; i++)
        if (!runs_lacks(&runs->row[i]) && !runs_is_foreign(&runs->row[i]) &&
            runs_plan(&runs->plan[i], &runs->row[i], runs->device, NULL)) {
            runs_plan_free(&runs->plan[i]);
            runs->lacks[i] = "a shape that can be planned";
        }
    return FSDP_OK;
}

void runs_close(struct runs *runs)
{
    for (int i = 0; runs->plan && i < runs->nrows; i++)
        runs_plan_free(&runs->plan[i]);
    fsdp_free(runs->plan);
    fsdp_free(runs->predicted);
    fsdp_free(runs->lacks);
    fsdp_free(runs->row);
    fsdp_device_close(runs->device);
    *runs = (struct runs){0};
}

int runs_predict_all(struct runs *runs, struct fsdp_err *err)
{
    for (int i = 0; i < runs->nrows; i++) {
        runs->predicted[i] = 0;
        if (!runs_lacks(&runs->row[i]) && !runs->lacks[i])
            FSDP_TRY(
                runs_predict(&runs->predicted[i], &runs->row[i], &runs->plan[i], runs->value, err));
    }
    return FSDP_OK;
}

/* ---- errors ---------------------------------------------------------------------------------- */

static bool counts(const struct runs_row *r, double predicted, const char *source,
                   enum runs_which which)
{
    if (!r->usable || !(r->measured > 0) || !(predicted > 0))
        return false;
    if (source && strcmp(source, r->source) != 0)
        return false;
    switch (which) {
    case RUNS_OWN:
        return !runs_is_foreign(r);
    case RUNS_FSDP:
        return !runs_is_foreign(r) && !strncmp(r->strategy, "zero3", 5);
    case RUNS_FOREIGN:
        return runs_is_foreign(r);
    default:
        return true;
    }
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *sorted, int n, double at)
{
    const double place = at * (n - 1);
    const int below = (int)place;
    const int above = below + 1 < n ? below + 1 : below;
    return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
}

struct runs_errors runs_errors(const struct runs *runs, const char *source, enum runs_which which)
{
    struct runs_errors e = {0};
    static double error[RUNS_MAX];

    for (int i = 0; i < runs->nrows; i++)
        if (counts(&runs->row[i], runs->predicted[i], source, which))
            error[e.nrows++] = runs->predicted[i] / runs->row[i].measured - 1;
    if (!e.nrows)
        return e;
    qsort(error, (size_t)e.nrows, sizeof error[0], ascending);
    e.bias = quantile(error, e.nrows, .5);
    for (int i = 0; i < e.nrows; i++) {
        error[i] = fabs(error[i]);
        e.mean += error[i] / e.nrows;
        e.within_10 += (error[i] <= .1) / (double)e.nrows;
        e.within_20 += (error[i] <= .2) / (double)e.nrows;
    }
    qsort(error, (size_t)e.nrows, sizeof error[0], ascending);
    e.median = quantile(error, e.nrows, .5);
    e.p90 = quantile(error, e.nrows, .9);
    return e;
}

const char *runs_source(const struct runs *runs, int k)
{
    for (int i = 0; i < runs->nrows; i++) {
        bool seen = false;
        for (int j = 0; j < i && !seen; j++)
            seen = !strcmp(runs->row[j].source, runs->row[i].source);
        if (!seen && k-- == 0)
            return runs->row[i].source;
    }
    return NULL;
}

static void print_line(const char *what, struct runs_errors e, FILE *to)
{
    if (e.nrows)
        fprintf(to, "| %s | %d | %+.1f %% | %.1f %% | %.1f %% | %.0f %% | %.0f %% | %.1f %% |\n",
                what, e.nrows, 100 * e.bias, 100 * e.median, 100 * e.mean, 100 * e.within_10,
                100 * e.within_20, 100 * e.p90);
}

void runs_print(const struct runs *runs, FILE *to)
{
    const char *source;

    fprintf(
        to,
        "| source | rows | bias | median | mean | within 10 %% | within 20 %% | 90 %% below |\n");
    fprintf(to, "| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (int k = 0; (source = runs_source(runs, k)); k++)
        print_line(source, runs_errors(runs, source, RUNS_ALL), to);
    print_line("all rows", runs_errors(runs, NULL, RUNS_ALL), to);
    print_line("one list: tp = pp = cp = 1", runs_errors(runs, NULL, RUNS_OWN), to);
    print_line("of these FSDP", runs_errors(runs, NULL, RUNS_FSDP), to);
    print_line("foreign: by formula", runs_errors(runs, NULL, RUNS_FOREIGN), to);
}

/* ---- the fit --------------------------------------------------------------------------------- */

struct fit {
    struct runs *runs;
    const char *without;
    double *weight; /* [nrows] */
    double total;
};

static double loss_of(const struct runs_row *r, double predicted)
{
    const double off = fabs(log(predicted / r->measured));
    return off < .6 ? off : .6;
}

static int weigh(struct fit *fit, struct fsdp_err *err)
{
    struct runs *runs = fit->runs;

    fit->weight = fsdp_alloc((size_t)runs->nrows + 1, sizeof *fit->weight, "weights", err);
    if (!fit->weight)
        return FSDP_ENOMEM;
    for (int i = 0; i < runs->nrows; i++) {
        const struct runs_row *r = &runs->row[i];
        if (!counts(r, runs->predicted[i], NULL, RUNS_ALL) ||
            (fit->without && !strcmp(fit->without, r->source)))
            continue;
        fit->weight[i] = 1 / sqrt(runs_errors(runs, r->source, RUNS_ALL).nrows);
        fit->total += fit->weight[i];
    }
    return FSDP_OK;
}

/* By how much the objective would change. Rows that the constant does not act on stay. */
static int change(double *out, const struct fit *fit, enum runs_constant which, double value,
                  double *predicted, struct fsdp_err *err)
{
    struct runs *runs = fit->runs;
    const double before = runs->value[which];
    int rc = FSDP_OK;

    *out = 0;
    runs->value[which] = value;
    for (int i = 0; i < runs->nrows && rc == FSDP_OK; i++) {
        predicted[i] = runs->predicted[i];
        if (!(fit->weight[i] > 0) || !runs_constant_acts(which, &runs->row[i]))
            continue;
        rc = runs_predict(&predicted[i], &runs->row[i], &runs->plan[i], runs->value, err);
        *out += fit->weight[i] / fit->total *
                (loss_of(&runs->row[i], predicted[i]) - loss_of(&runs->row[i], runs->predicted[i]));
    }
    runs->value[which] = before;
    return rc;
}

static int try_constant(const struct fit *fit, enum runs_constant which, double *step,
                        double *predicted, struct fsdp_err *err)
{
    struct runs *runs = fit->runs;
    double low, high, gain;

    runs_constant_range(&low, &high, which);
    for (int sign = 1; sign >= -1; sign -= 2) {
        double value = runs->value[which] * (1 + sign * *step);
        value = value < low ? low : value > high ? high : value;
        if (value == runs->value[which])
            continue;
        FSDP_TRY(change(&gain, fit, which, value, predicted, err));
        if (gain < -1e-6) {
            runs->value[which] = value;
            memcpy(runs->predicted, predicted, (size_t)runs->nrows * sizeof *predicted);
            *step *= 1.3;
            return FSDP_OK;
        }
    }
    *step *= .5;
    return FSDP_OK;
}

int runs_fit(struct runs *runs, int rounds, const char *without, struct fsdp_err *err)
{
    struct fit fit = {.runs = runs, .without = without};
    double step[RUNS_NCONSTANTS];
    double *predicted = fsdp_alloc((size_t)runs->nrows + 1, sizeof *predicted, "times", err);
    int rc = predicted ? runs_predict_all(runs, err) : FSDP_ENOMEM;

    if (rc == FSDP_OK)
        rc = weigh(&fit, err);
    for (int i = 0; i < RUNS_NCONSTANTS; i++)
        step[i] = runs_constant_is_fitted((enum runs_constant)i) ? .12 : 0;
    for (int round = 0; round < rounds && rc == FSDP_OK; round++)
        for (int i = 0; i < RUNS_NCONSTANTS && rc == FSDP_OK; i++)
            if (step[i] > .002)
                rc = try_constant(&fit, (enum runs_constant)i, &step[i], predicted, err);
    if (rc == FSDP_OK)
        rc = runs_predict_all(runs, err);
    fsdp_free(fit.weight);
    fsdp_free(predicted);
    return rc;
}
