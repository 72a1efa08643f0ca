/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths of adapted weights, and products of columns with magnitudes: values against fp64,
 * gradients against differences of them. */
#ifndef SUITE_COLUMNS_H
#define SUITE_COLUMNS_H

#include "suite.h"

/* ldw: as in nn_lengths */
static void test_lengths(int nin, int nout, int r, int ldw)
{
    const size_t nw = ldw ? (size_t)(nin - 1) * (size_t)ldw + (size_t)nout : (size_t)nin * nout;
    float *w = ref_values(nw, 1), *a = ref_values((size_t)r * nin, 1);
    float *b = ref_values((size_t)nout * r, 1), *length = ref_output((size_t)nout, 0);
    double *want = ref_wide((size_t)nout);
    const float scale = 0.75f;

    for (int o = 0; o < nout; o++) {
        for (int i = 0; i < nin; i++) {
            double x = ldw ? w[(size_t)i * ldw + o] : w[(size_t)o * nin + i];
            for (int k = 0; k < r; k++)
                x += (double)scale * (double)b[o * r + k] * (double)a[k * nin + i];
            want[o] += x * x;
        }
        want[o] = sqrt(want[o]);
    }
    const struct nn_lengths args = {.length = length,
                                    .w = w,
                                    .a = a,
                                    .b = b,
                                    .nin = nin,
                                    .nout = nout,
                                    .r = r,
                                    .ldw = ldw,
                                    .scale = scale};
    const int rc = nn->lengths(ref_lane(), &args, &err);
    const double error = ref_error(length, want, (size_t)nout);
    ok(!rc && error < 3e-7, "lengths of %d x %d, rank %d, %d apart: %.1e", nout, nin, r, ldw,
       error);
    free(w), free(a), free(b), free(length), free(want);
}

/* The sum of dy times what columns_forward makes. */
static double columns_loss(const struct nn_columns *a, const double *magnitude, const float *dy)
{
    const float *x = a->x, *b = a->b;
    double sum = 0;

    for (int r = 0; r < a->rows; r++)
        for (int c = 0; c < a->cols; c++) {
            const size_t at = (size_t)r * nn_columns_ld(a) + c;
            sum += dy[at] * (x[at] * magnitude[c] / a->length[c] + (b ? (double)b[c] : 0));
        }
    return sum;
}

/* gap: elements between rows, which nothing changes */
static void test_columns(int rows, int cols, int gap, bool biased, float beta)
{
    const size_t ld = (size_t)(cols + gap), n = (size_t)rows * ld;
    float *x = ref_values(n, 1), *dy = ref_values(n, 1), *out = ref_output(n, beta);
    float *m = ref_values((size_t)cols, 1), *b = ref_values((size_t)cols, 1);
    float *length = ref_values((size_t)cols, 1), *dm = ref_output((size_t)cols, beta);
    double *want = ref_wide(n), *slope = ref_wide((size_t)cols), *wide = ref_wide((size_t)cols);
    const double h = 1e-3;

    for (int c = 0; c < cols; c++)
        length[c] = 1.5f + length[c];
    for (size_t i = 0; i < n; i++) {
        const size_t c = i % ld;
        if (c >= (size_t)cols)
            out[i] = 7;
        want[i] = 7;
        if (c >= (size_t)cols)
            continue;
        want[i] = (double)x[i] * m[c] / length[c] + (biased ? (double)b[c] : 0);
        want[i] += beta == 0.0f ? 0 : (double)beta * out[i];
    }
    struct nn_columns args = {.out = out,
                              .x = x,
                              .dy = dy,
                              .magnitude = m,
                              .length = length,
                              .b = biased ? b : NULL,
                              .rows = rows,
                              .cols = cols,
                              .ld = gap ? (int)ld : 0,
                              .beta = beta};
    for (int c = 0; c < cols; c++)
        wide[c] = m[c];
    for (int c = 0; c < cols; c++) {
        const double was = wide[c], before = beta == 0.0f ? 0 : (double)beta * dm[c];
        wide[c] = was + h;
        slope[c] = columns_loss(&args, wide, dy);
        wide[c] = was - h;
        slope[c] = (slope[c] - columns_loss(&args, wide, dy)) / (2 * h) + before;
        wide[c] = was;
    }
    int rc = nn->columns_forward(ref_lane(), &args, &err);
    const double error = ref_error(out, want, n);
    args.out = dm;
    rc = rc ? rc : nn->columns_backward(ref_lane(), &args, &err);
    const double off = ref_error(dm, slope, (size_t)cols);
    ok(!rc && error < 2e-7 && off < 1e-6,
       "columns %d x %d, %d apart%s, beta %g: %.1e; gradient %.1e", rows, cols, (int)ld,
       biased ? ", biased" : "", (double)beta, error, off);
    free(x), free(dy), free(out), free(m), free(b), free(length), free(dm);
    free(want), free(slope), free(wide);
}

static void run_columns(void)
{
    test_lengths(1, 1, 1, 0);
    test_lengths(67, 33, 3, 0);
    test_lengths(1031, 70, 9, 0);
    test_lengths(1031, 70, 9, 71);
    test_lengths(33, 5, 2, 5);
    for (int beta = 0; beta < 2; beta++) {
        test_columns(1, 3, 0, false, (float)beta);
        test_columns(67, 130, 0, true, (float)beta);
        test_columns(67, 131, 5, true, (float)beta);
        test_columns(67, 61, 3, false, (float)beta);
        test_columns(1100, 9, 0, true, (float)beta);
        test_columns(5, 1031, 0, false, 0.5f * (float)beta);
    }
}

#endif
