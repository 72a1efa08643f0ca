/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adafactor on the CPU, in the three calls that fsdp_adafactor has. Sums are of doubles.
 *
 *     sums   [ p^2 | row_var | g^2 of column 0 | column 1 | ... ]   of a matrix, cut by rows
 *            [ p^2 | (unused) ]                                     of all else
 */
#include "cpu.h"
#include "device/common/formula.h"

/* ---- measure --------------------------------------------------------------------------------- */

/* Rows of one matrix: their averages, and what they add to sums of its columns. */
static void measure_rows(const struct fsdp_adafactor_args *a, const struct adafactor *f,
                         size_t first, size_t nrows, double *columns)
{
    for (size_t r = first; r < first + nrows; r++) {
        double sum = 0;
        for (size_t c = 0; c < a->ncols; c++) {
            const double g = (double)(a->grad[r * a->ncols + c] * f->scale);
            sum += g * g;
            columns[c] += g * g;
        }
        a->row_var[r] = adafactor_mix(a->row_var[r], sum / (double)a->ncols, f->weight);
    }
}

static void mix_columns(const struct fsdp_adafactor_args *a, const struct adafactor *f,
                        float *col_var, const double *columns)
{
    for (size_t c = 0; c < a->ncols; c++)
        col_var[c] = adafactor_mix(col_var[c], columns[c] / (double)a->nrows, f->weight);
}

static int measure_matrices(const struct fsdp_adafactor_args *a, const struct adafactor *f,
                            struct fsdp_err *err)
{
    double *columns = fsdp_alloc(a->ncols, sizeof *columns, "sums of columns", err);

    if (!columns)
        return FSDP_ENOMEM;
    for (size_t m = 0; m < a->nelem / a->nrows / a->ncols; m++) {
        for (size_t c = 0; c < a->ncols; c++)
            columns[c] = 0;
        measure_rows(a, f, m * a->nrows, a->nrows, columns);
        mix_columns(a, f, a->col_var + m * a->ncols, columns);
    }
    fsdp_free(columns);
    return FSDP_OK;
}

static int measure(const struct fsdp_adafactor_args *a, struct fsdp_err *err)
{
    const struct adafactor f = adafactor_of(a);

    for (size_t i = 0; i < a->nelem; i++)
        a->sums[ADAFACTOR_SUM_P] += (double)a->master[i] * (double)a->master[i];
    for (size_t i = 0; a->variance && i < a->nelem; i++) {
        const float g = a->grad[i] * f.scale;
        a->variance[i] = adafactor_mix(a->variance[i], (double)(g * g), f.weight);
    }
    if (!a->row_var)
        return FSDP_OK;
    if (!a->by_rows)
        return measure_matrices(a, &f, err);
    measure_rows(a, &f, 0, a->nelem / a->ncols, a->sums + ADAFACTOR_SUM_COLUMNS);
    for (size_t r = 0; r < a->nelem / a->ncols; r++)
        a->sums[ADAFACTOR_SUM_ROWS] += (double)a->row_var[r];
    return FSDP_OK;
}

/* ---- estimate, apply ------------------------------------------------------------------------- */

/* Mean of the rows' averages, of the matrix that row `first` begins. */
static float row_mean(const struct fsdp_adafactor_args *a, size_t first)
{
    double sum = a->sums[ADAFACTOR_SUM_ROWS];

    if (!a->by_rows) {
        sum = 0;
        for (size_t r = first; r < first + a->nrows; r++)
            sum += (double)a->row_var[r];
    }
    return adafactor_mean(sum, a->nrows);
}

/* Calls fn for every element's update. */
typedef void element_f(const struct fsdp_adafactor_args *a, double factor, size_t i, float u);

static void each_update(const struct fsdp_adafactor_args *a, double factor, element_f *fn)
{
    const struct adafactor f = adafactor_of(a);
    float mean = 1;

    for (size_t i = 0; a->variance && i < a->nelem; i++)
        fn(a, factor, i, a->grad[i] * f.scale / adafactor_root(a->variance[i]));
    for (size_t r = 0; a->row_var && r < a->nelem / a->ncols; r++) {
        const float *col_var = a->col_var + (!a->by_rows ? r / a->nrows * a->ncols : 0);
        if (r == 0 || (!a->by_rows && r % a->nrows == 0))
            mean = row_mean(a, r);
        for (size_t c = 0; c < a->ncols; c++) {
            const size_t i = r * a->ncols + c;
            fn(a, factor, i,
               a->grad[i] * f.scale / adafactor_root(a->row_var[r] * col_var[c] / mean));
        }
    }
}

static void add_square(const struct fsdp_adafactor_args *a, double factor, size_t i, float u)
{
    (void)factor, (void)i;
    *a->update_sum += (double)u * (double)u;
}

static void step_element(const struct fsdp_adafactor_args *a, double factor, size_t i, float u)
{
    a->master[i] = adafactor_step(a, factor, a->master[i], u);
}

static void estimate(const struct fsdp_adafactor_args *a)
{
    const struct adafactor f = adafactor_of(a);

    if (a->row_var && a->by_rows)
        mix_columns(a, &f, a->col_var, a->sums + ADAFACTOR_SUM_COLUMNS);
    each_update(a, 0, add_square);
}

static void apply_update(const struct fsdp_adafactor_args *a)
{
    const struct adafactor f = adafactor_of(a);
    each_update(a, adafactor_rate(a, &f), step_element);
}

static int adafactor_run(void *arg, struct fsdp_err *err)
{
    const struct fsdp_adafactor_args *a = arg;
    if (a->loss_scale && a->loss_scale->skip)
        return FSDP_OK;
    if (a->phase == FSDP_ADAFACTOR_MEASURE)
        return measure(a, err);
    if (a->phase == FSDP_ADAFACTOR_ESTIMATE)
        estimate(a);
    else
        apply_update(a);
    return FSDP_OK;
}

int device_cpu_adafactor(void *lane, const struct fsdp_adafactor_args *args, struct fsdp_err *err)
{
    return device_cpu_lane_call(lane, adafactor_run, args, sizeof *args, err);
}
