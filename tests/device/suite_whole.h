/* SPDX-License-Identifier: Apache-2.0 */
/* suite_whole.h: what optimizers that see whole matrices ask of a device, against fp64. */
#ifndef DEVICE_SUITE_WHOLE_H
#define DEVICE_SUITE_WHOLE_H

#include <math.h>
#include <stdlib.h>

#include "mirror.h"
#include "tap.h"

/* ---- Adafactor ------------------------------------------------------------------------------- */

enum { WHOLE_MOST = 3000, WHOLE_ROWS = 64, WHOLE_COLUMNS = 128 };

struct whole_case {
    const char *what;
    size_t nmatrices, nrows, ncols;
    bool by_rows, is_vector;
};

struct whole_state {
    float p[WHOLE_MOST], g[WHOLE_MOST], row_var[WHOLE_ROWS], col_var[WHOLE_COLUMNS];
    float variance[WHOLE_MOST];
    double sums[FSDP_ADAFACTOR_NSUMS + WHOLE_COLUMNS], update_sum;
};

static void run_adafactor(struct fsdp_lane *lane, const struct fsdp_adafactor_args *host,
                          struct whole_state *s)
{
    for (int phase = FSDP_ADAFACTOR_MEASURE; phase <= FSDP_ADAFACTOR_APPLY; phase++) {
        struct fsdp_adafactor_args args = *host;
        args.phase = (enum fsdp_adafactor_phase)phase;
        args.master = UP(s->p);
        args.grad = UP(s->g);
        args.grad_scale = up(lane, args.grad_scale, sizeof(float));
        args.loss_scale = up(lane, args.loss_scale, sizeof *args.loss_scale);
        args.row_var = args.row_var ? UP(s->row_var) : NULL;
        args.col_var = args.col_var ? UP(s->col_var) : NULL;
        args.variance = args.variance ? UP(s->variance) : NULL;
        args.sums = UP(s->sums);
        args.update_sum = UP(s->update_sum);
        fsdp_adafactor(lane, &args, NULL);
        down(lane);
    }
}

/* The averages that the step leaves, and the updates before they are clipped, in fp64. */
static void ref_adafactor(const struct whole_case *c, const struct whole_state *s, double weight,
                          double *row_var, double *col_var, double *u)
{
    const size_t R = c->nrows, C = c->ncols;

    for (size_t m = 0; m < c->nmatrices; m++) {
        const float *g = s->g + m * R * C;
        double mean = 0;
        for (size_t r = 0; r < R; r++) {
            double sum = 0;
            for (size_t i = 0; i < C; i++)
                sum += (double)g[r * C + i] * (double)g[r * C + i] / 4;
            row_var[m * R + r] =
                (1 - weight) * (double)s->row_var[m * R + r] + weight * sum / (double)C;
            mean += row_var[m * R + r] / (double)R;
        }
        for (size_t i = 0; i < C; i++) {
            double sum = 0;
            for (size_t r = 0; r < R; r++)
                sum += (double)g[r * C + i] * (double)g[r * C + i] / 4;
            col_var[m * C + i] =
                (1 - weight) * (double)s->col_var[m * C + i] + weight * sum / (double)R;
        }
        for (size_t k = 0; k < R * C; k++)
            u[m * R * C + k] =
                (double)g[k] / 2 / sqrt(row_var[m * R + k / C] * col_var[m * C + k % C] / mean);
    }
}

static void test_adafactor_case(struct fsdp_lane *lane, const struct whole_case *c)
{
    static struct whole_state s, before;
    static double row_var[WHOLE_ROWS], col_var[WHOLE_COLUMNS], u[WHOLE_MOST];
    const size_t n = c->nmatrices * c->nrows * c->ncols;
    struct fsdp_loss_scale scale = {.nskipped = 2};
    const double t = 3, weight = pow(t, -0.8), lr = 0.05, decay = 0.1;
    double size = 0, rms = 0, worst = 0, off = 0;
    float coef = 0.5f;

    memset(&s, 0, sizeof s);
    for (size_t i = 0; i < n; i++) {
        s.p[i] = noise((int)i);
        s.g[i] = noise((int)i + 11);
        s.variance[i] = fabsf(noise((int)i + 3));
    }
    for (int i = 0; i < WHOLE_ROWS; i++)
        s.row_var[i] = 0.5f + 0.1f * noise(i);
    for (int i = 0; i < WHOLE_COLUMNS; i++)
        s.col_var[i] = 0.5f + 0.1f * noise(i + 5);
    before = s;
    struct fsdp_adafactor_args args = {.grad_scale = &coef,
                                       .loss_scale = &scale,
                                       .row_var = c->is_vector ? NULL : s.row_var,
                                       .col_var = c->is_vector ? NULL : s.col_var,
                                       .variance = c->is_vector ? s.variance : NULL,
                                       .nrows = c->nrows,
                                       .ncols = c->ncols,
                                       .nmatrices = c->nmatrices,
                                       .by_rows = c->by_rows,
                                       .nelem = n,
                                       .nsteps = 5,
                                       .lr = lr,
                                       .beta2_decay = -0.8,
                                       .eps2 = 1e-3,
                                       .weight_decay = decay};
    run_adafactor(lane, &args, &s);
    if (!c->is_vector)
        ref_adafactor(c, &before, weight, row_var, col_var, u);
    for (size_t i = 0; i < n; i++) {
        const double g = (double)before.g[i] / 2, v = (double)before.variance[i];
        if (c->is_vector)
            u[i] = g / sqrt((1 - weight) * v + weight * g * g);
        size += (double)before.p[i] * (double)before.p[i] / (double)n;
        rms += u[i] * u[i] / (double)n;
    }
    for (size_t i = 0; i < n; i++) {
        const double step = sqrt(size) * lr * u[i] / fmax(1, sqrt(rms));
        worst = fmax(worst, fabs((double)before.p[i] * (1 - lr * decay) - step - (double)s.p[i]));
    }
    for (size_t i = 0; i < c->nmatrices * c->nrows && !c->is_vector; i++)
        off = fmax(off, fabs(row_var[i] - (double)s.row_var[i]));
    for (size_t i = 0; i < c->nmatrices * c->ncols && !c->is_vector; i++)
        off = fmax(off, fabs(col_var[i] - (double)s.col_var[i]));
    ok(worst < 5e-7 && off < 1e-7, "adafactor, %s: worst difference %.1e, of averages %.1e",
       c->what, worst, off);
    scale.skip = 1;
    before = s;
    run_adafactor(lane, &args, &s);
    ok(!memcmp(s.p, before.p, sizeof s.p) && !memcmp(s.row_var, before.row_var, sizeof s.row_var) &&
           !memcmp(s.col_var, before.col_var, sizeof s.col_var) &&
           !memcmp(s.variance, before.variance, sizeof s.variance),
       "a skipped step changes nothing");
}

static void test_adafactor(struct fsdp_lane *lane)
{
    static const struct whole_case cases[] = {
        {"a matrix by rows", 1, 61, 47, true, false},
        {"a row", 1, 1, 113, true, false},
        {"three matrices", 3, 19, 41, false, false},
        {"a vector", 1, 1, 2017, false, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        test_adafactor_case(lane, &cases[i]);
}

/* ---- Muon ------------------------------------------------------------------------------------ */

static void run_muon(struct fsdp_lane *lane, const struct fsdp_muon_args *host, bool end)
{
    struct fsdp_muon_args args = *host;
    const size_t nbytes = args.nelem * sizeof(float);
    args.master = up(lane, args.master, nbytes);
    args.momentum_buffer = up(lane, args.momentum_buffer, nbytes);
    args.grad = up(lane, args.grad, nbytes);
    args.grad_scale = up(lane, args.grad_scale, sizeof(float));
    args.loss_scale = up(lane, args.loss_scale, sizeof *args.loss_scale);
    args.rows = up(lane, args.rows, args.nelem * sizeof *args.rows);
    (end ? fsdp_muon_end : fsdp_muon_begin)(lane, &args, NULL);
    down(lane);
}

static void test_muon_elements(struct fsdp_lane *lane, bool nesterov)
{
    static float p[N], m[N], g[N];
    static double rows[N];
    const struct fsdp_loss_scale skip = {.skip = 1};
    float coef = 0.25f;
    double worst = 0;

    for (int i = 0; i < N; i++) {
        p[i] = noise(i);
        m[i] = noise(i + 7);
        g[i] = noise(i + 11);
        rows[i] = NAN;
    }
    struct fsdp_muon_args args = {.master = p,
                                  .momentum_buffer = m,
                                  .grad = g,
                                  .grad_scale = &coef,
                                  .rows = rows,
                                  .nelem = N,
                                  .momentum = 0.9f,
                                  .keep = 0.99f,
                                  .rate = 0.02f,
                                  .nesterov = nesterov};
    run_muon(lane, &args, false);
    for (int i = 0; i < N; i++) {
        const double gi = (double)g[i] * 0.25, b = 0.9 * (double)noise(i + 7) + 0.1 * gi;
        worst = fmax(worst, fabs(b - (double)m[i]));
        worst = fmax(worst, fabs((nesterov ? gi + 0.9 * (b - gi) : b) - rows[i]));
    }
    run_muon(lane, &args, true);
    for (int i = 0; i < N; i++)
        worst = fmax(worst, fabs(0.99 * (double)noise(i) - 0.02 * rows[i] - (double)p[i]));
    ok(worst < 3e-7, "muon's elements%s: worst difference %.1e", nesterov ? ", Nesterov" : "",
       worst);
    const float p0 = p[7], m0 = m[7];
    const double row = rows[7];
    args.loss_scale = &skip;
    run_muon(lane, &args, false);
    run_muon(lane, &args, true);
    ok(p[7] == p0 && m[7] == m0 && rows[7] == row, "a skipped step changes nothing");
}

/* There with a norm of 1, the shorter side's vectors as rows; and back. */
static void test_muon_matrix(struct fsdp_lane *lane, size_t rows, size_t cols, float size)
{
    static double wide[WHOLE_MOST], back[WHOLE_MOST];
    static float x[WHOLE_MOST];
    const size_t n = rows * cols;
    double sum = 0, worst = 0;

    for (size_t i = 0; i < n; i++) {
        back[i] = wide[i] = (double)(size * noise((int)i));
        x[i] = NAN;
        sum += wide[i] * wide[i];
    }
    struct fsdp_muon_matrix args = {UP(wide), UP(x), rows, cols};
    fsdp_muon_unit(lane, &args, NULL);
    args.wide = UP(back);
    fsdp_muon_back(lane, &args, NULL);
    down(lane);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++) {
            const double want = wide[r * cols + c] / fmax(sqrt(sum), 1e-7);
            worst = fmax(worst, fabs(want - (double)x[rows > cols ? c * rows + r : r * cols + c]));
            worst = fmax(worst, fabs(want - back[r * cols + c]));
        }
    ok(worst < 1e-7, "muon's matrix, %zu x %zu: worst difference %.1e", rows, cols, worst);
}

static void test_matmul(struct fsdp_lane *lane, size_t rows, size_t inner, size_t cols, bool turned)
{
    static float a[WHOLE_MOST], b[2 * WHOLE_MOST], c[WHOLE_MOST], add[WHOLE_MOST];
    const float alpha = 0.75f, beta = cols % 2 ? -0.5f : 0;
    double worst = 0;

    for (int i = 0; i < WHOLE_MOST; i++) {
        a[i] = noise(i);
        b[i] = noise(i + 17), b[WHOLE_MOST + i] = noise(i + 23);
        add[i] = beta == 0 ? NAN : noise(i + 5);
        c[i] = NAN;
    }
    const struct fsdp_matmul_args args = {UP(c), UP(a), UP(b), UP(add), rows,
                                          inner, cols,  alpha, beta,    turned};
    fsdp_matmul(lane, &args, NULL);
    down(lane);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) {
            double sum = 0;
            for (size_t k = 0; k < inner; k++)
                sum += (double)a[i * inner + k] * (double)b[turned ? j * inner + k : k * cols + j];
            sum = (double)alpha * sum + (beta == 0 ? 0 : (double)(beta * add[i * cols + j]));
            worst = fmax(worst, fabs(sum - (double)c[i * cols + j]));
        }
    ok(worst < 5e-6 && isnan(c[rows * cols]), "product %zu x %zu x %zu%s: worst difference %.1e",
       rows, inner, cols, turned ? ", transposed" : "", worst);
}

static void test_muon(struct fsdp_lane *lane)
{
    test_muon_elements(lane, false);
    test_muon_elements(lane, true);
    test_muon_matrix(lane, 31, 67, 1);
    test_muon_matrix(lane, 67, 31, 1);
    test_muon_matrix(lane, 40, 40, 0);
    for (int turned = 0; turned < 2; turned++) {
        test_matmul(lane, 31, 67, 31, turned);
        test_matmul(lane, 5, 3, 130, turned);
        test_matmul(lane, 66, 17, 35, turned);
        test_matmul(lane, 1, 1, 1, turned);
    }
}

#endif
