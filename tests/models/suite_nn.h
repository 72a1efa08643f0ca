/* SPDX-License-Identifier: Apache-2.0 */
/* Every operator but attention against plain loops in fp64, backward passes against their formulas
 * or finite differences, at sizes that are no multiple of anything. */
#ifndef SUITE_NN_H
#define SUITE_NN_H

#include "suite_elementwise.h"
#include "suite_experts.h"
#include "suite_columns.h"
#include "suite_logits.h"

/* out = beta * (what was there) + sum over k of a[i][k] b[k][j], all three given by strides. */
static void product(double *out, const float *a, const float *b, const int size[3], int a_row,
                    int a_col, int b_row, int b_col)
{
    for (int i = 0; i < size[0]; i++)
        for (int j = 0; j < size[1]; j++)
            for (int k = 0; k < size[2]; k++)
                out[i * size[1] + j] += (double)a[i * a_row + k * a_col] * b[k * b_row + j * b_col];
}

static double *widen(const float *x, size_t nelem, float beta)
{
    double *wide = ref_wide(nelem);
    for (size_t i = 0; i < nelem && beta != 0.0f; i++)
        wide[i] = beta * x[i];
    return wide;
}

/* A row of nout elements begins every ldy of y and dy; what lies between must stay. */
static void test_linear(int rows, int nin, int nout, int ldy, bool biased, float beta)
{
    const size_t nx = (size_t)rows * nin, nw = (size_t)nout * nin, ny = (size_t)rows * nout;
    const size_t nspread = (size_t)(rows - 1) * ldy + (size_t)nout;
    float *x = ref_values(nx, 1), *w = ref_values(nw, 1), *dy = ref_values(nspread, 1);
    float *b = ref_values((size_t)nout, 1), *db = ref_output((size_t)nout, beta);
    float *spread = ref_output(nspread, beta), *before = ref_copy(spread, nspread);
    float *y = ref_output(ny, beta), *dx = ref_output(nx, beta), *dw = ref_output(nw, beta);
    double *ry = ref_wide(ny), *rdx = widen(dx, nx, beta), *rdw = widen(dw, nw, beta);
    double *rdb = widen(db, (size_t)nout, beta);
    bool kept = true;

    for (size_t i = 0; i < ny; i++) {
        const size_t col = i % (size_t)nout, at = i / (size_t)nout * (size_t)ldy + col;
        ry[i] = (beta == 0.0f ? 0 : beta * (double)spread[at]) + (biased ? (double)b[col] : 0);
        rdb[col] += dy[at];
    }
    product(ry, x, w, (int[]){rows, nout, nin}, nin, 1, 1, nin);
    product(rdx, dy, w, (int[]){rows, nin, nout}, ldy, 1, nin, 1);
    product(rdw, dy, x, (int[]){nout, nin, rows}, 1, ldy, nin, 1);
    struct nn_linear a = {.out = spread,
                          .x = x,
                          .w = w,
                          .b = biased ? b : NULL,
                          .db = biased ? db : NULL,
                          .dy = dy,
                          .rows = rows,
                          .nin = nin,
                          .nout = nout,
                          .ldy = ldy == nout ? 0 : ldy,
                          .beta = beta};
    int rc = nn->linear_forward(ref_lane(), &a, &err);
    a.out = dx;
    rc |= nn->linear_backward_input(ref_lane(), &a, &err);
    a.out = dw;
    rc |= nn->linear_backward_weight(ref_lane(), &a, &err);
    for (size_t i = 0; i < nspread; i++)
        if (i % (size_t)ldy < (size_t)nout)
            y[i / (size_t)ldy * (size_t)nout + i % (size_t)ldy] = spread[i];
        else
            kept &= !memcmp(&spread[i], &before[i], sizeof *spread);
    double e[4] = {ref_error(y, ry, ny), ref_error(dx, rdx, nx), ref_error(dw, rdw, nw),
                   biased ? ref_error(db, rdb, (size_t)nout) : 0};
    ok(!rc && kept && e[0] < 1e-6 && e[1] < 1e-6 && e[2] < 1e-6 && e[3] < 1e-6,
       "linear %d x %d -> %d of %d%s, beta %g: %.1e %.1e %.1e %.1e", rows, nin, nout, ldy,
       biased ? " with bias" : "", beta, e[0], e[1], e[2], e[3]);
    free(x), free(w), free(dy), free(b), free(db), free(spread), free(before), free(y), free(dx);
    free(dw), free(ry), free(rdx), free(rdw), free(rdb);
}

/* A frozen weight's bias, and a frozen bias, whose memory is not there. */
static void test_linear_frozen(void)
{
    enum { ROWS = 33, NIN = 7, NOUT = 11 };
    float *x = ref_values(ROWS * NIN, 1), *dy = ref_values(ROWS * NOUT, 1);
    float *db = ref_output(NOUT, 0), *dw = ref_output(NOUT * NIN, 0);
    double *rdb = ref_wide(NOUT), *rdw = ref_wide(NOUT * NIN);
    struct nn_linear a = {.db = db, .x = x, .dy = dy, .rows = ROWS, .nin = NIN, .nout = NOUT};

    for (int i = 0; i < ROWS * NOUT; i++)
        rdb[i % NOUT] += dy[i];
    product(rdw, dy, x, (int[]){NOUT, NIN, ROWS}, 1, NOUT, NIN, 1);
    int rc = nn->linear_backward_weight(ref_lane(), &a, &err);
    a.db = NULL, a.out = dw;
    rc |= nn->linear_backward_weight(ref_lane(), &a, &err);
    ok(!rc && ref_error(db, rdb, NOUT) < 1e-6 && ref_error(dw, rdw, NOUT * NIN) < 1e-6,
       "linear: a bias' gradient alone, and a weight's");
    free(x), free(dy), free(db), free(dw), free(rdb), free(rdw);
}

/* Columns [first, first + nout) of a weight that is `ldw` wide, whose others must stay. */
static void test_transposed(int rows, int nin, int nout, int first, int ldw, float beta)
{
    size_t nx = (size_t)rows * nin, nw = (size_t)nin * ldw, ny = (size_t)rows * nout;
    size_t npart = (size_t)nin * nout;
    float *x = ref_values(nx, 1), *w = ref_values(nw, 1), *dy = ref_values(ny, 1);
    float *b = ref_values((size_t)nout, 1), *db = ref_output((size_t)nout, beta);
    float *y = ref_output(ny, beta), *dx = ref_output(nx, beta), *dw = ref_values(nw, 1);
    float *part = ref_output(npart, 0), *before = ref_copy(dw, nw);
    double *ry = widen(y, ny, beta), *rdx = widen(dx, nx, beta);
    double *rdb = widen(db, (size_t)nout, beta), *rdw = ref_wide(npart);
    bool kept = true;

    for (size_t i = 0; i < npart && beta != 0.0f; i++)
        rdw[i] = beta * dw[i / (size_t)nout * ldw + i % (size_t)nout + first];
    for (size_t i = 0; i < ny; i++) {
        ry[i] += b[i % (size_t)nout];
        rdb[i % (size_t)nout] += dy[i];
    }
    product(ry, x, w + first, (int[]){rows, nout, nin}, nin, 1, ldw, 1);
    product(rdx, dy, w + first, (int[]){rows, nin, nout}, nout, 1, 1, ldw);
    product(rdw, x, dy, (int[]){nin, nout, rows}, 1, nin, nout, 1);
    struct nn_linear a = {.out = y,
                          .db = db,
                          .x = x,
                          .w = w + first,
                          .b = b,
                          .dy = dy,
                          .rows = rows,
                          .nin = nin,
                          .nout = nout,
                          .ldw = ldw,
                          .beta = beta};
    int rc = nn->linear_forward(ref_lane(), &a, &err);
    a.out = dx;
    rc |= nn->linear_backward_input(ref_lane(), &a, &err);
    a.out = dw + first;
    rc |= nn->linear_backward_weight(ref_lane(), &a, &err);
    for (size_t i = 0; i < nw; i++) {
        const int column = (int)(i % (size_t)ldw) - first;
        if (column >= 0 && column < nout)
            part[i / (size_t)ldw * (size_t)nout + (size_t)column] = dw[i];
        else
            kept &= dw[i] == before[i];
    }
    double e[4] = {ref_error(y, ry, ny), ref_error(dx, rdx, nx), ref_error(part, rdw, npart),
                   ref_error(db, rdb, (size_t)nout)};
    ok(!rc && kept && e[0] < 1e-6 && e[1] < 1e-6 && e[2] < 1e-6 && e[3] < 1e-6,
       "transposed %d x %d -> %d of %d, beta %g: %.1e %.1e %.1e %.1e", rows, nin, nout, ldw, beta,
       e[0], e[1], e[2], e[3]);
    free(x), free(w), free(dy), free(b), free(db), free(y), free(dx), free(dw), free(part);
    free(before), free(ry), free(rdx), free(rdb), free(rdw);
}

static void test_embedding(int rows, int vocab, int dim, float beta)
{
    size_t nw = (size_t)vocab * dim, ny = (size_t)rows * dim;
    float *w = ref_values(nw, 1), *y = ref_output(ny, beta), *dy = ref_values(ny, 1);
    float *dw = ref_output(nw, beta), *before = ref_copy(y, ny);
    double *rdw = ref_wide(nw);
    int32_t *tokens = malloc((size_t)rows * sizeof *tokens);
    bool exact = true;

    for (size_t i = 0; i < nw && beta != 0.0f; i++)
        rdw[i] = dw[i];
    for (int r = 0; r < rows; r++) {
        tokens[r] = r % 3 ? (int32_t)((r * 7) % vocab) : vocab - 1; /* many repeats */
        for (int i = 0; i < dim; i++)
            rdw[(size_t)tokens[r] * dim + i] += dy[r * dim + i];
    }
    struct nn_embedding a = {.out = y,
                             .w = w,
                             .dy = dy,
                             .tokens = tokens,
                             .rows = rows,
                             .vocab = vocab,
                             .dim = dim,
                             .beta = beta};
    int rc = nn->embedding_forward(ref_lane(), &a, &err);
    for (size_t i = 0; i < ny; i++) {
        float value = w[(size_t)tokens[i / (size_t)dim] * dim + i % (size_t)dim];
        exact &= y[i] == (beta == 0.0f ? value : before[i] + value);
    }
    a.out = dw;
    rc |= nn->embedding_backward(ref_lane(), &a, &err);
    ok(!rc && exact && ref_error(dw, rdw, nw) < 1e-6, "embedding %d of %d x %d, beta %g: %.1e",
       rows, vocab, dim, beta, ref_error(dw, rdw, nw));
    free(w), free(y), free(dy), free(dw), free(before), free(rdw), free(tokens);
}

static void rmsnorm_ref(const float *x, const float *weight, double offset, const float *dy,
                        int rows, int dim, double eps, double *y, double *dx, double *dw)
{
    for (int r = 0; r < rows; r++, x += dim, dy += dim, y += dim, dx += dim) {
        double sq = 0, dot = 0;
        for (int i = 0; i < dim; i++)
            sq += (double)x[i] * x[i];
        double rstd = 1 / sqrt(sq / dim + eps);
        for (int i = 0; i < dim; i++) {
            const double w = offset + weight[i];
            y[i] = x[i] * rstd * w;
            dot += dy[i] * w * x[i];
            dw[i] += dy[i] * x[i] * rstd;
        }
        for (int i = 0; i < dim; i++)
            dx[i] += rstd * dy[i] * (offset + weight[i]) - rstd * rstd * rstd * x[i] * dot / dim;
    }
}

/* in_place: dx is x, as at the head of the model. */
static void test_rmsnorm(int rows, int dim, float offset, float dx_beta, float dw_beta,
                         bool in_place)
{
    size_t n = (size_t)rows * dim;
    float *x = ref_values(n, 2), *w = ref_values((size_t)dim, 1), *dy = ref_values(n, 1);
    float *y = ref_output(n, 0), *copy = ref_output(n, 0), *rstd = ref_output((size_t)rows, 0);
    float *dx = in_place ? x : ref_output(n, dx_beta), *dw = ref_output((size_t)dim, dw_beta);
    double *ry = ref_wide(n), *rdx = ref_wide(n), *rdw = ref_wide((size_t)dim);

    for (size_t i = 0; i < n && dx_beta != 0.0f; i++)
        rdx[i] = dx[i];
    for (int i = 0; i < dim && dw_beta != 0.0f; i++)
        rdw[i] = dw[i];
    rmsnorm_ref(x, w, offset, dy, rows, dim, 1e-5, ry, rdx, rdw);
    struct nn_rmsnorm f = {.y = y,
                           .rstd = rstd,
                           .x_copy = copy,
                           .x = x,
                           .w = w,
                           .rows = rows,
                           .dim = dim,
                           .eps = 1e-5f,
                           .w_offset = offset};
    struct nn_rmsnorm_backward b = {.dy = dy,
                                    .dx = dx,
                                    .dw = dw,
                                    .x = x,
                                    .w = w,
                                    .rstd = rstd,
                                    .rows = rows,
                                    .dim = dim,
                                    .dx_beta = dx_beta,
                                    .dw_beta = dw_beta,
                                    .w_offset = offset};
    int rc = nn->rmsnorm_forward(ref_lane(), &f, &err);
    bool copied = !memcmp(copy, x, n * sizeof *x);
    rc |= nn->rmsnorm_backward(ref_lane(), &b, &err);
    double e[4] = {ref_error(y, ry, n), ref_error(dx, rdx, n), ref_error(dw, rdw, (size_t)dim),
                   ref_error(dy, ry, n)};
    ok(!rc && copied && e[0] < 5e-7 && e[1] < 5e-7 && e[2] < 5e-7 && e[3] < 5e-7,
       "rmsnorm %d x %d, offset %g, betas %g %g%s: %.1e %.1e %.1e, y again %.1e", rows, dim, offset,
       dx_beta, dw_beta, in_place ? ", in place" : "", e[0], e[1], e[2], e[3]);
    if (!in_place)
        free(dx);
    free(x), free(w), free(dy), free(y), free(copy), free(rstd), free(dw), free(ry), free(rdx);
    free(rdw);
}

static void layernorm_ref(const struct nn_layernorm *a, const float *dy, double *y, double *dx,
                          double *dw, double *db)
{
    const int dim = a->dim;
    const float *w = a->w, *b = a->b;
    for (int r = 0; r < a->rows; r++, dy += dim, y += dim, dx += dim) {
        const float *x = (const float *)a->x + (size_t)r * (size_t)dim;
        double mean = 0, var = 0, g_mean = 0, gx_mean = 0;
        for (int i = 0; i < dim; i++)
            mean += (double)x[i] / dim;
        for (int i = 0; i < dim; i++)
            var += (x[i] - mean) * (x[i] - mean) / dim;
        double rstd = 1 / sqrt(var + a->eps);
        for (int i = 0; i < dim; i++) {
            double xhat = (x[i] - mean) * rstd, g = (double)dy[i] * w[i];
            y[i] = xhat * w[i] + b[i];
            dw[i] += dy[i] * xhat;
            db[i] += dy[i];
            g_mean += g / dim;
            gx_mean += g * xhat / dim;
        }
        for (int i = 0; i < dim; i++)
            dx[i] += rstd * ((double)dy[i] * w[i] - g_mean - (x[i] - mean) * rstd * gx_mean);
    }
}

/* offset: a mean that is large compared with the deviation. in_place: dx is x. */
static void test_layernorm(int rows, int dim, float offset, float dx_beta, float dw_beta,
                           bool in_place)
{
    const size_t n = (size_t)rows * dim, nw = (size_t)dim;
    float *x = ref_values(n, 2), *w = ref_values(nw, 1), *b = ref_values(nw, 1);
    float *dy = ref_values(n, 1), *y = ref_output(n, 0), *copy = ref_output(n, 0);
    float *mean = ref_output((size_t)rows, 0), *rstd = ref_output((size_t)rows, 0);
    for (size_t i = 0; i < n; i++)
        x[i] += offset;
    /* Random ones may cancel each other, and dx be nearly 0. */
    for (size_t i = 0; n == 3 && i < n; i++) {
        x[i] = (float)i * (float)i;
        w[i] = dy[i] = i == 1 ? -1.5f : 0.5f;
    }
    float *dx = in_place ? x : ref_output(n, dx_beta);
    float *dw = ref_output(nw, dw_beta), *db = ref_output(nw, dw_beta);
    double *ry = ref_wide(n), *rdx = widen(dx, n, dx_beta);
    double *rdw = widen(dw, nw, dw_beta), *rdb = widen(db, nw, dw_beta);
    struct nn_layernorm f = {.y = y,
                             .mean = mean,
                             .rstd = rstd,
                             .x_copy = copy,
                             .x = x,
                             .w = w,
                             .b = b,
                             .rows = rows,
                             .dim = dim,
                             .eps = 1e-5f};
    struct nn_layernorm_backward back = {.dy = dy,
                                         .dx = dx,
                                         .dw = dw,
                                         .db = db,
                                         .x = x,
                                         .w = w,
                                         .b = b,
                                         .mean = mean,
                                         .rstd = rstd,
                                         .rows = rows,
                                         .dim = dim,
                                         .dx_beta = dx_beta,
                                         .dw_beta = dw_beta};
    layernorm_ref(&f, dy, ry, rdx, rdw, rdb);
    int rc = nn->layernorm_forward(ref_lane(), &f, &err);
    bool copied = !memcmp(copy, x, n * sizeof *x);
    rc |= nn->layernorm_backward(ref_lane(), &back, &err);
    double e[5] = {ref_error(y, ry, n), ref_error(dx, rdx, n), ref_error(dw, rdw, nw),
                   ref_error(db, rdb, nw), ref_error(dy, ry, n)};
    const double bound = offset == 0.0f ? 1e-6 : 1e-4;
    bool good = !rc && copied;
    for (int i = 0; i < 5; i++)
        good &= e[i] < bound;
    ok(good, "layernorm %d x %d, betas %g %g%s: %.1e %.1e %.1e %.1e, y again %.1e", rows, dim,
       dx_beta, dw_beta, in_place ? ", in place" : "", e[0], e[1], e[2], e[3], e[4]);
    if (!in_place)
        free(dx);
    free(x), free(w), free(b), free(dy), free(y), free(copy), free(mean), free(rstd), free(dw);
    free(db), free(ry), free(rdx), free(rdw), free(rdb);
}

struct rope_case {
    int B, T, heads, D, R, first;
    double scale, growth;
    int growth_span;
    bool backwards; /* positions run the other way in each row, from a list */
};

static double rope_amplitude(const struct rope_case *c, double position)
{
    return (c->scale == 0 ? 1 : c->scale) *
           (c->growth == 0 ? 1 : 1 + c->growth * log(1 + floor(position / c->growth_span)));
}

/* want: the rotation; back: what its transpose makes of that. */
static void rope_ref(const struct rope_case *c, const float *x, const double *inv_freq,
                     double *want, double *back)
{
    const size_t row = (size_t)c->heads * c->D, n = (size_t)c->B * c->T * row;
    const size_t half = (size_t)c->R / 2;
    for (size_t i = 0; i < n; i++) {
        const size_t t = i / row % (size_t)c->T, d = i % (size_t)c->D;
        const size_t pos = (size_t)c->first + (c->backwards ? (size_t)c->T - 1 - t : t);
        want[i] = back[i] = x[i];
        if (d >= 2 * half)
            continue;
        const double angle = (double)pos * inv_freq[d % half];
        const double amplitude = rope_amplitude(c, (double)pos);
        const double other = d < half ? -x[i + half] : x[i - half];
        want[i] = amplitude * (x[i] * cos(angle) + other * sin(angle));
        back[i] = amplitude * amplitude * x[i];
    }
}

/* Rows with space between them: what `a` makes of `from`, which is `want` without space, is there,
 * in place or not, and the space keeps what it held. */
static void rope_apart(struct nn_rope a, const float *from, const float *want)
{
    const size_t nrows = (size_t)a.B * a.T, width = (size_t)a.heads * a.D;
    bool same = true;

    for (int space = 3; space <= 8; space += 5) {
        a.ld = (int)width + space;
        float *x = ref_values(nrows * a.ld, 1), *before = ref_copy(x, nrows * a.ld);
        for (int in_place = 0; in_place < 2; in_place++) {
            for (size_t row = 0; row < nrows && in_place; row++)
                memcpy(x + row * a.ld, from + row * width, width * sizeof *x);
            a.x = x;
            a.from = in_place ? NULL : from;
            same = !nn->rope(ref_lane(), &a, &err) && same;
            for (size_t row = 0; row < nrows; row++) {
                const size_t at = row * a.ld, rest = row + 1 < nrows ? (size_t)space : 0;
                same = same && !memcmp(x + at, want + row * width, width * sizeof *x) &&
                       !memcmp(x + at + width, before + at + width, rest * sizeof *x);
            }
        }
        free(x), free(before);
    }
    ok(same, "the same of rows with space between them");
}

static void test_rope(struct rope_case c)
{
    const int half = c.R / 2;
    const size_t n = (size_t)c.B * c.T * c.heads * c.D, ntable = (size_t)c.T * half;
    float *x = ref_values(n, 1), *cosine = ref_output(ntable, 0), *sine = ref_output(ntable, 0);
    double *inv_freq = ref_wide((size_t)half), *want = ref_wide(n), *back = ref_wide(n);
    int32_t *positions = malloc((size_t)c.B * c.T * sizeof *positions);

    for (int i = 0; i < c.B * c.T; i++)
        positions[i] = c.T - 1 - i % c.T;
    for (int i = 0; i < half; i++)
        inv_freq[i] = pow(500000.0, -2.0 * i / c.R);
    rope_ref(&c, x, inv_freq, want, back);
    struct nn_rope_table t = {.cos = cosine,
                              .sin = sine,
                              .inv_freq = inv_freq,
                              .first = c.first,
                              .T = c.T,
                              .half = half,
                              .scale = c.scale,
                              .growth = c.growth,
                              .growth_span = c.growth_span};
    struct nn_rope a = {.x = x,
                        .cos = cosine,
                        .sin = sine,
                        .positions = c.backwards ? positions : NULL,
                        .B = c.B,
                        .T = c.T,
                        .heads = c.heads,
                        .D = c.D,
                        .R = c.R == c.D ? 0 : c.R};
    int rc = nn->rope_table(ref_lane(), &t, &err) | nn->rope(ref_lane(), &a, &err);
    double forward = ref_error(x, want, n);
    float *turned = ref_copy(x, n), *out = ref_output(n, 0);
    a.inverse = true;
    rc |= nn->rope(ref_lane(), &a, &err);
    a.x = out, a.from = turned;
    rc |= nn->rope(ref_lane(), &a, &err);
    ok(!rc && !memcmp(out, x, n * sizeof *x), "the same of another place");
    rope_apart(a, turned, x);
    free(turned), free(out);
    ok(!rc && forward < 2e-7 && ref_error(x, back, n) < 2e-7,
       "rope %d x %d x %d x %d of %d from %d, scale %g, growth %g: %.1e, and back %.1e", c.B, c.T,
       c.heads, c.R, c.D, c.first, c.scale, c.growth, forward, ref_error(x, back, n));
    free(x), free(cosine), free(sine), free(inv_freq), free(want), free(back), free(positions);
}

static void test_split_tokens(void)
{
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8}, x[] = {1, 2, 3, 5, 6, 7},
                  y[] = {2, 3, 4, 6, 7, 8};
    int32_t inputs[6], targets[6];
    struct nn_split_tokens a = {inputs, targets, tokens, 2, 3};
    int rc = nn->split_tokens(ref_lane(), &a, &err);
    ok(!rc && !memcmp(x, inputs, sizeof x) && !memcmp(y, targets, sizeof y),
       "tokens split into inputs and targets");
    static const int32_t count[] = {7, 8, 9, 7, 8, 9};
    struct nn_positions p = {.out = inputs, .first = 7, .B = 2, .T = 3};
    ok(!nn->positions(ref_lane(), &p, &err) && !memcmp(count, inputs, sizeof count),
       "positions count from the first in every sequence");
    static const int32_t starts[] = {0, 1, 1, 0, 0, 2}, restarted[] = {0, 0, 1, 0, 1, 0};
    p = (struct nn_positions){.out = inputs, .starts = starts, .B = 2, .T = 3};
    ok(!nn->positions(ref_lane(), &p, &err) && !memcmp(restarted, inputs, sizeof restarted),
       "and anew in every document");
}

static void test_operators(void)
{
    for (int beta = 0; beta < 2; beta++) {
        for (int biased = 0; biased < 2; biased++) {
            test_linear(1, 37, 53, 53, biased, (float)beta);
            test_linear(5, 1, 3, 3, biased, (float)beta);
            test_linear(67, 64, 33, 33, biased, (float)beta);
            test_linear(67, 33, 65, 71, biased, (float)beta);
        }
        test_linear(70, 3, 1031, 1040, true, (float)beta);
        test_transposed(1, 37, 53, 0, 53, (float)beta);
        test_transposed(5, 1, 3, 2, 7, (float)beta);
        test_transposed(67, 64, 33, 33, 99, (float)beta);
        test_transposed(70, 3, 1031, 0, 1031, (float)beta);
        test_embedding(41, 13, 7, (float)beta);
        test_embedding(3, 256, 64, (float)beta);
        test_rmsnorm(1, 3, 0, (float)beta, 0, false);
        test_rmsnorm(65, 67, 0, (float)beta, 1, false);
        test_rmsnorm(33, 1031, 0, (float)beta, 0, false);
        test_rmsnorm(65, 67, 1, (float)beta, 1, false);
        test_rmsnorm(33, 1031, 1, (float)beta, 0, false);
    }
    test_linear_frozen();
    test_rmsnorm(70, 515, 0, 0, 0, true);
    test_rmsnorm(70, 515, 1, 0, 0, true);
    for (int beta = 0; beta < 2; beta++) {
        test_layernorm(1, 3, 0, (float)beta, 0, false);
        test_layernorm(65, 67, 0, (float)beta, 1, false);
        test_layernorm(33, 1031, 0, (float)beta, 0, false);
    }
    test_layernorm(70, 515, 0, 0, 0, true);
    test_layernorm(9, 515, 300, 0, 0, false);
    test_rope((struct rope_case){2, 5, 3, 16, 16, .first = 0});
    test_rope((struct rope_case){1, 67, 1, 64, 64, .first = 0});
    test_rope((struct rope_case){1, 3, 2, 6, 6, .first = 1000});
    test_rope((struct rope_case){2, 5, 3, 16, 16, .backwards = true});
    test_rope((struct rope_case){2, 5, 3, 19, 6, .first = 0});
    test_rope((struct rope_case){2, 7, 3, 80, 32, .scale = 1.25, .backwards = true});
    test_rope((struct rope_case){1, 67, 2, 20, 16, .first = 3, .growth = 0.1, .growth_span = 16});
    test_rope((struct rope_case){1, 9, 1, 10, 10, 5, .scale = 0.7, .growth = 2, .growth_span = 3});
    test_split_tokens();
}

/* Sizes at which a second thread gets something to do. */
static void test_large(void)
{
    test_linear(170, 130, 131, 131, true, 0);
    test_linear(90, 130, 300, 304, true, 1);
    test_linear(90, 130, 300, 300, false, 1);
    test_transposed(170, 130, 131, 3, 140, 0);
    test_transposed(90, 130, 300, 0, 300, 1);
}

static void run_operators(void)
{
    test_operators();
    test_large();
    run_elementwise();
    run_logits();
    run_experts();
    if (nn->lengths) /* optional */
        run_columns();
}

#endif
