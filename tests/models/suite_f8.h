/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products in 8 bits against a model of them in double: scales are found by trying, codes are those
 * of fsdp/base.h, which other tests hold to PyTorch's. Where one product makes an element, fp32
 * holds it exactly, so that equal bits of the result are equal codes and scales.
 */
#ifndef SUITE_F8_H
#define SUITE_F8_H

#include "nn/f8.h"
#include "suite.h"

/* ---- the model ------------------------------------------------------------------------------- */

/* The value of x's code in a group whose greatest absolute value is amax. */
static double f8_value(enum fsdp_dtype dtype, double amax, double x)
{
    const bool e5m2 = dtype == FSDP_F8_E5M2;
    int e = -110;

    while (ldexp(amax, -e) > (e5m2 ? 57344 : 448))
        e++;
    const float scaled = (float)ldexp(x, -e);
    return ldexp(e5m2 ? fsdp_f8_e5m2_to_f32(fsdp_f32_to_f8_e5m2(scaled))
                      : fsdp_f8_e4m3_to_f32(fsdp_f32_to_f8_e4m3(scaled)),
                 e);
}

/* A matrix of doubles; element (row, col) may be that of the transposed one. */
struct f8_operand {
    double *at;
    int rows, cols;
};

static struct f8_operand f8_operand(const float *x, int rows, int cols, int ld, bool transposed)
{
    struct f8_operand out = {malloc(sizeof(double) * (size_t)rows * (size_t)cols), rows, cols};
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++)
            out.at[r * cols + c] = transposed ? x[c * ld + r] : x[r * ld + c];
    return out;
}

/* Rounds groups of `length` elements along what the product sums over. */
static void f8_round(struct f8_operand *x, bool down, enum nn_f8_scale scale, enum fsdp_dtype dtype)
{
    const int nlines = down ? x->cols : x->rows, nsum = down ? x->rows : x->cols;
    const int length = scale == NN_F8_BLOCK ? 32 : nsum;
    double all = 0;

    for (int i = 0; i < x->rows * x->cols; i++)
        all = fmax(all, fabs(x->at[i]));
    for (int line = 0; line < nlines; line++)
        for (int from = 0; from < nsum; from += length) {
            const int end = from + length < nsum ? from + length : nsum;
            double amax = scale == NN_F8_TENSOR ? all : 0;
            for (int i = from; i < end; i++)
                amax = fmax(amax, fabs(x->at[down ? i * x->cols + line : line * x->cols + i]));
            for (int i = from; i < end; i++) {
                double *value = &x->at[down ? i * x->cols + line : line * x->cols + i];
                *value = f8_value(dtype, amax, *value);
            }
        }
}

/* want (a.rows, b.cols) = a b + beta want; both operands are freed. */
static void f8_product(double *want, struct f8_operand a, struct f8_operand b, double beta)
{
    for (int m = 0; m < a.rows; m++)
        for (int n = 0; n < b.cols; n++) {
            double sum = 0;
            for (int k = 0; k < a.cols; k++)
                sum += a.at[m * a.cols + k] * b.at[k * b.cols + n];
            want[m * b.cols + n] = sum + (beta != 0 ? beta * want[m * b.cols + n] : 0);
        }
    free(a.at), free(b.at);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Of many magnitudes, zeros among them; those that a 16-bit type holds. */
static float *f8_values(size_t nelem, enum fsdp_dtype dtype)
{
    float *x = ref_values(nelem, 1);
    void *narrow = malloc(nelem * sizeof *x);

    for (size_t i = 0; i < nelem; i++) {
        const int power = (int)(ref_random() * 12) - 8;
        x[i] = i % 11 == 7 ? 0 : ldexpf(x[i], power);
    }
    fsdp_cpu_convert(narrow, dtype, x, FSDP_F32, nelem);
    fsdp_cpu_convert(x, FSDP_F32, narrow, dtype, nelem);
    free(narrow);
    return x;
}

/* Values that BF16 and F16 hold. */
static float *f8_held_by_all(size_t nelem)
{
    float *x = f8_values(nelem, FSDP_BF16);
    for (size_t i = 0; i < nelem; i++)
        x[i] = fsdp_f16_to_f32(fsdp_f32_to_f16(x[i]));
    return x;
}

static void *f8_narrow(const float *x, size_t nelem, enum fsdp_dtype dtype)
{
    void *out = malloc(nelem * fsdp_dtype_nbytes(dtype));
    fsdp_cpu_convert(out, dtype, x, FSDP_F32, nelem);
    return out;
}

/* The largest difference as a part of what is allowed: half a unit of the last place, and what sums
 * in another order may miss. */
static double f8_excess(const void *got, enum fsdp_dtype dtype, const double *want, size_t nelem)
{
    const double unit = dtype == FSDP_F32 ? 0x1p-24 : dtype == FSDP_BF16 ? 0x1p-8 : 0x1p-11;
    float *x = malloc(nelem * sizeof *x);
    double most = 0, worst = 0;

    fsdp_cpu_convert(x, FSDP_F32, got, dtype, nelem);
    for (size_t i = 0; i < nelem; i++)
        most = fmax(most, fabs(want[i]));
    for (size_t i = 0; i < nelem; i++) {
        const double part = fabs(x[i] - want[i]) / (unit * fabs(want[i]) + 2e-6 * most + 0x1p-25);
        worst = part <= worst ? worst : isfinite(part) ? part : 1e30;
    }
    free(x);
    return worst;
}

/* ---- operators ------------------------------------------------------------------------------- */

struct f8_case {
    int rows, nin, nout;
    enum fsdp_dtype dtype, dw_dtype;
    struct nn_f8 f8;
    float beta;
    bool biased;
};

static struct f8_operand f8_rounded(const float *x, int rows, int cols, int ld, bool transposed,
                                    bool down, enum nn_f8_scale scale, enum fsdp_dtype dtype)
{
    struct f8_operand out = f8_operand(x, rows, cols, ld, transposed);
    f8_round(&out, down, scale, dtype);
    return out;
}

struct f8_memory {
    float *x, *w, *dy, *b, *old; /* values; w as nn_linear has it, or (nin, ldw) */
    void *nx, *nw, *ndy, *nb;    /* of dtype */
    void *y, *dx, *dw, *db;
    double *ry, *rdx, *rdw;
    float *work;
    size_t nx_elem, nw_elem, ny_elem;
};

static struct f8_memory f8_memory(const struct f8_case *c, int ldw)
{
    const struct nn_linear shape = {.rows = c->rows,
                                    .nin = c->nin,
                                    .nout = c->nout,
                                    .dtype = c->dtype,
                                    .y_dtype = c->dtype,
                                    .w_dtype = c->dtype,
                                    .dw_dtype = c->dw_dtype,
                                    .f8 = c->f8};
    struct f8_memory m = {.nx_elem = (size_t)c->rows * (size_t)c->nin,
                          .nw_elem =
                              ldw ? (size_t)c->nin * (size_t)ldw : (size_t)c->nin * (size_t)c->nout,
                          .ny_elem = (size_t)c->rows * (size_t)c->nout};
    m.x = f8_values(m.nx_elem, c->dtype);
    m.w = f8_values(m.nw_elem, c->dtype);
    m.dy = f8_values(m.ny_elem, c->dtype);
    m.b = f8_values((size_t)c->nout, c->dtype);
    m.old = f8_held_by_all(m.nx_elem + m.nw_elem + m.ny_elem);
    m.nx = f8_narrow(m.x, m.nx_elem, c->dtype);
    m.nw = f8_narrow(m.w, m.nw_elem, c->dtype);
    m.ndy = f8_narrow(m.dy, m.ny_elem, c->dtype);
    m.nb = f8_narrow(m.b, (size_t)c->nout, c->dtype);
    m.y = f8_narrow(m.old, m.ny_elem, c->dtype);
    m.dx = f8_narrow(m.old, m.nx_elem, c->dtype);
    m.dw = f8_narrow(m.old, m.nw_elem, c->dw_dtype);
    m.db = f8_narrow(m.old, (size_t)c->nout, c->dw_dtype);
    m.ry = ref_wide(m.ny_elem);
    m.rdx = ref_wide(m.nx_elem);
    m.rdw = ref_wide(m.nw_elem);
    for (size_t i = 0; i < m.ny_elem; i++)
        m.ry[i] = m.old[i];
    for (size_t i = 0; i < m.nx_elem; i++)
        m.rdx[i] = m.old[i];
    for (size_t i = 0; i < m.nw_elem; i++)
        m.rdw[i] = m.old[i];
    m.work = ref_output(nn->linear_work_nelem(&shape), 0);
    return m;
}

static void f8_release(struct f8_memory *m)
{
    void *const all[] = {m->x, m->w,  m->dy, m->b,  m->old, m->nx,  m->nw,  m->ndy, m->nb,
                         m->y, m->dx, m->dw, m->db, m->ry,  m->rdx, m->rdw, m->work};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

/* What y, dx and dw must be. */
static void f8_references(struct f8_memory *m, const struct f8_case *c, int ldw)
{
    const enum nn_f8_scale s = c->f8.scale;
    const enum fsdp_dtype d = c->f8.dtype, g = c->f8.grad_dtype;
    const int ldx = c->nin, ldy = c->nout;
    const bool wt = !ldw; /* of w (nout, nin), forward takes the transposed one */
    const int ld = ldw ? ldw : c->nin;

    f8_product(m->ry, f8_rounded(m->x, c->rows, c->nin, ldx, false, false, s, d),
               f8_rounded(m->w, c->nin, c->nout, ld, wt, true, s, d), c->beta);
    for (int i = 0; i < c->rows * c->nout && c->biased; i++)
        m->ry[i] += m->b[i % c->nout];
    f8_product(m->rdx, f8_rounded(m->dy, c->rows, c->nout, ldy, false, false, s, g),
               f8_rounded(m->w, c->nout, c->nin, ld, !wt, true, s, d), c->beta);
    if (!ldw)
        f8_product(m->rdw, f8_rounded(m->dy, c->nout, c->rows, ldy, true, false, s, g),
                   f8_rounded(m->x, c->rows, c->nin, ldx, false, true, s, d), c->beta);
}

static const char *f8_name(const struct f8_case *c, char out[100])
{
    static const char *const scales[] = {"tensor", "row", "block"};
    snprintf(out, 100, "%s, %d x %d x %d, %s, gradients %s, a scale a %s",
             fsdp_dtype_name(c->dtype), c->rows, c->nin, c->nout, fsdp_dtype_name(c->f8.dtype),
             fsdp_dtype_name(c->f8.grad_dtype), scales[c->f8.scale]);
    return out;
}

static void f8_linear(const struct f8_case *c)
{
    struct f8_memory m = f8_memory(c, 0);
    struct nn_linear a = {.x = m.nx, .w = m.nw, .dy = m.ndy, .work = m.work, .beta = c->beta};
    char name[100];
    int rc = 0;

    a.rows = c->rows, a.nin = c->nin, a.nout = c->nout, a.f8 = c->f8;
    a.dtype = a.y_dtype = a.w_dtype = c->dtype, a.dw_dtype = c->dw_dtype;
    f8_references(&m, c, 0);
    a.out = m.y, a.b = c->biased ? m.nb : NULL;
    rc |= nn->linear_forward(ref_lane(), &a, &err);
    a.out = m.dx;
    rc |= nn->linear_backward_input(ref_lane(), &a, &err);
    a.out = m.dw, a.db = c->biased ? m.db : NULL;
    rc |= nn->linear_backward_weight(ref_lane(), &a, &err);
    const double y = f8_excess(m.y, c->dtype, m.ry, m.ny_elem);
    const double dx = f8_excess(m.dx, c->dtype, m.rdx, m.nx_elem);
    const double dw = f8_excess(m.dw, c->dw_dtype, m.rdw, m.nw_elem);
    const double most = suite_unit_slack * (suite_bias_apart && c->beta != 0 ? 2.5 : 1);
    ok(!rc && y <= most && dx <= most && dw <= most, "linear in %s: %.2f %.2f %.2f of the bound",
       f8_name(c, name), y, dx, dw);
    f8_release(&m);
}

/* With the weight the other way round, some columns of a wider one. */
static void f8_transposed(const struct f8_case *c)
{
    const int ldw = c->nout + 16;
    struct f8_memory m = f8_memory(c, ldw);
    struct nn_linear a = {.x = m.nx, .w = m.nw, .dy = m.ndy, .work = m.work, .beta = c->beta};
    char name[100];
    int rc = 0;

    a.rows = c->rows, a.nin = c->nin, a.nout = c->nout, a.ldw = ldw, a.f8 = c->f8;
    a.dtype = a.y_dtype = a.w_dtype = c->dtype, a.dw_dtype = c->dw_dtype;
    f8_references(&m, c, ldw);
    a.out = m.y, a.b = c->biased ? m.nb : NULL;
    rc |= nn->linear_forward(ref_lane(), &a, &err);
    a.out = m.dx;
    rc |= nn->linear_backward_input(ref_lane(), &a, &err);
    a.out = m.dw;
    rc |= nn->linear_backward_weight(ref_lane(), &a, &err);
    /* dw (nin, nout), ldw apart, and nothing between its rows. */
    double *want = ref_wide((size_t)c->nin * (size_t)c->nout);
    float *got = malloc(sizeof *got * (size_t)c->nin * (size_t)c->nout),
          *all = malloc(m.nw_elem * sizeof *all);
    bool kept = true;
    fsdp_cpu_convert(all, FSDP_F32, m.dw, c->dw_dtype, m.nw_elem);
    for (int r = 0; r < c->nin; r++)
        for (int col = 0; col < ldw; col++) {
            if (col < c->nout)
                got[r * c->nout + col] = all[r * ldw + col];
            else if (r + 1 < c->nin)
                kept &= all[r * ldw + col] == m.old[r * ldw + col];
            if (col < c->nout)
                want[r * c->nout + col] = m.old[r * ldw + col];
        }
    f8_product(
        want, f8_rounded(m.x, c->nin, c->rows, c->nin, true, false, c->f8.scale, c->f8.dtype),
        f8_rounded(m.dy, c->rows, c->nout, c->nout, false, true, c->f8.scale, c->f8.grad_dtype),
        c->beta);
    const double y = f8_excess(m.y, c->dtype, m.ry, m.ny_elem);
    const double dx = f8_excess(m.dx, c->dtype, m.rdx, m.nx_elem);
    double dw = 0, most_value = 0;
    const double unit = c->dw_dtype == FSDP_F32    ? 0x1p-24
                        : c->dw_dtype == FSDP_BF16 ? 0x1p-8
                                                   : 0x1p-11;
    for (int i = 0; i < c->nin * c->nout; i++)
        most_value = fmax(most_value, fabs(want[i]));
    for (int i = 0; i < c->nin * c->nout; i++)
        dw =
            fmax(dw, fabs(got[i] - want[i]) / (unit * fabs(want[i]) + 2e-6 * most_value + 0x1p-25));
    const double most = suite_unit_slack * (suite_bias_apart && c->beta != 0 ? 2.5 : 1);
    ok(!rc && kept && y <= most && dx <= most && dw <= most,
       "transposed in %s: %.2f %.2f %.2f of the bound", f8_name(c, name), y, dx, dw);
    free(want), free(got), free(all);
    f8_release(&m);
}

/* One product to an element: fp32 holds it, and the bits are those of the codes and scales. */
static void f8_exact(enum fsdp_dtype dtype, enum fsdp_dtype grad_dtype, double factor)
{
    const struct f8_case c = {
        48, 1, 80, FSDP_F32, FSDP_F32, {.dtype = dtype, .grad_dtype = grad_dtype}, 0, false};
    struct f8_memory m = f8_memory(&c, 0);
    struct nn_linear a = {.x = m.nx, .w = m.nw, .work = m.work, .out = m.y, .f8 = c.f8};
    bool equal = true;

    a.rows = c.rows, a.nin = 1, a.nout = c.nout;
    for (size_t i = 0; i < m.nx_elem; i++)
        m.x[i] = (float)(ref_random() * factor);
    memcpy(m.nx, m.x, m.nx_elem * sizeof *m.x);
    f8_references(&m, &c, 0);
    const int rc = nn->linear_forward(ref_lane(), &a, &err);
    for (size_t i = 0; i < m.ny_elem; i++)
        equal &= ((float *)m.y)[i] == (float)m.ry[i];
    ok(!rc && equal, "codes and scales of values around %g are those of the model", factor);
    f8_release(&m);
}

/* The same of sums over many elements, of which one is not zero: x with scales of `kind`, in y
 * along its rows and in dw down its columns. Blocks fill tiles of scales in part, and more than
 * one. */
static void f8_exact_lines(enum nn_f8_scale kind)
{
    enum { ROWS = 160, NIN = 192, NOUT = 160 };
    const struct f8_case c = {
        ROWS, NIN, NOUT, FSDP_F32, FSDP_F32, {FSDP_F8_E4M3, FSDP_F8_E4M3, kind}, 0, false};
    struct f8_memory m = f8_memory(&c, 0);
    struct nn_linear a = {.x = m.nx, .w = m.nw, .dy = m.ndy, .work = m.work, .f8 = c.f8};
    int ny = 0, ndw = 0;
    char name[100];

    a.rows = ROWS, a.nin = NIN, a.nout = NOUT, a.out = m.y;
    memset(m.w, 0, m.nw_elem * sizeof *m.w);
    memset(m.dy, 0, m.ny_elem * sizeof *m.dy);
    for (int i = 0; i < NOUT; i++) {
        m.w[i * NIN + i * 7 % NIN] = 1.375f;
        m.dy[i * 7 % ROWS * NOUT + i] = -0.8125f;
    }
    memcpy(m.nw, m.w, m.nw_elem * sizeof *m.w);
    memcpy(m.ndy, m.dy, m.ny_elem * sizeof *m.dy);
    f8_references(&m, &c, 0);
    int rc = nn->linear_forward(ref_lane(), &a, &err);
    a.out = m.dw;
    rc |= nn->linear_backward_weight(ref_lane(), &a, &err);
    for (size_t i = 0; i < m.ny_elem; i++)
        ny += ((float *)m.y)[i] == (float)m.ry[i];
    for (size_t i = 0; i < m.nw_elem; i++)
        ndw += ((float *)m.dw)[i] == (float)m.rdw[i];
    ok(!rc && ny == ROWS * NOUT && ndw == NIN * NOUT,
       "codes and scales of x are those of the model, %d and %d: %s", ny, ndw, f8_name(&c, name));
    f8_release(&m);
}

/* Nothing is hidden: what is not finite reaches the sums it is in, and those alone. */
static void f8_not_finite(float bad, enum fsdp_dtype dtype)
{
    enum { ROWS = 32, NIN = 32, NOUT = 16 };
    const struct f8_case c = {ROWS,  NIN,      NOUT,
                              dtype, FSDP_F32, {.dtype = FSDP_F8_E4M3, .grad_dtype = FSDP_F8_E4M3},
                              0,     false};
    struct f8_memory m = f8_memory(&c, 0);
    struct nn_linear a = {.x = m.nx, .w = m.nw, .work = m.work, .out = m.y, .f8 = c.f8};
    float y[ROWS * NOUT];
    bool right = true;

    a.rows = ROWS, a.nin = NIN, a.nout = NOUT, a.dtype = a.y_dtype = a.w_dtype = dtype;
    m.x[3 * NIN + 5] = bad;
    fsdp_cpu_convert(m.nx, dtype, m.x, FSDP_F32, m.nx_elem);
    const int rc = nn->linear_forward(ref_lane(), &a, &err);
    fsdp_cpu_convert(y, FSDP_F32, m.y, dtype, m.ny_elem);
    for (int i = 0; i < ROWS * NOUT; i++)
        right &= isfinite(y[i]) == (i / NOUT != 3);
    ok(!rc && right, "%f in an operand of %s is seen in its row, and only there", (double)bad,
       fsdp_dtype_name(dtype));
    f8_release(&m);
}

/* Of zeros, y is the bias. */
static void f8_zeros(void)
{
    const struct f8_case c = {
        16, 32,  16, FSDP_F32, FSDP_F32, {.dtype = FSDP_F8_E4M3, .grad_dtype = FSDP_F8_E4M3},
        0,  true};
    struct f8_memory m = f8_memory(&c, 0);
    struct nn_linear a = {.x = m.nx, .w = m.nw, .b = m.nb, .work = m.work, .out = m.y, .f8 = c.f8};
    bool right = true;

    a.rows = c.rows, a.nin = c.nin, a.nout = c.nout;
    memset(m.nx, 0, m.nx_elem * sizeof(float));
    const int rc = nn->linear_forward(ref_lane(), &a, &err);
    for (int i = 0; i < c.rows * c.nout; i++)
        right &= ((float *)m.y)[i] == m.b[i % c.nout];
    ok(!rc && right, "of zeros the bias is left");
    f8_release(&m);
}

/* ---- products of the same x ------------------------------------------------------------------ */

enum { SHARED_ROWS = 48, SHARED_NIN = 80, SHARED_WIDEST = 65, SHARED_NMAPS = 5 };

static int f8_one_map(struct nn_linear a, bool transposed, bool backward)
{
    a.ldw = transposed ? a.nout : 0;
    return backward ? nn->linear_backward_weight(ref_lane(), &a, &err)
                    : nn->linear_forward(ref_lane(), &a, &err);
}

static struct nn_linear f8_map(const struct f8_memory *m, const struct f8_case *c, int nout)
{
    struct nn_linear a = {.x = m->nx, .w = m->nw, .dy = m->ndy, .work = m->work, .f8 = c->f8};
    a.rows = c->rows, a.nin = c->nin, a.nout = nout;
    a.dtype = a.y_dtype = a.w_dtype = a.dw_dtype = c->dtype;
    return a;
}

/* Maps that read the same x, in turn, have the bits that each has alone. The last one takes what
 * the one before left of x, wherever products in 8 bits are: x is zeros by then. Before them are a
 * map whose width is no multiple of 16, one that is not in 8 bits, and one without an output. */
static void f8_shared(enum fsdp_dtype dtype, enum nn_f8_scale scale, bool transposed, bool backward)
{
    static const int nouts[SHARED_NMAPS] = {32, SHARED_WIDEST, 32, 48, 16};
    const struct f8_case c = {SHARED_ROWS, SHARED_NIN, SHARED_WIDEST,
                              dtype,       dtype,      {FSDP_F8_E4M3, FSDP_F8_E4M3, scale},
                              0,           false};
    struct f8_memory m = f8_memory(&c, 0);
    const size_t row = (size_t)(backward ? SHARED_NIN : SHARED_ROWS) * fsdp_dtype_nbytes(dtype);
    enum nn_f8_made made = NN_F8_NOTHING;
    char *alone[SHARED_NMAPS], *out = malloc(row * SHARED_WIDEST);
    int rc = 0, nequal = 0;

    for (int i = 0; i < SHARED_NMAPS; i++) {
        struct nn_linear a = f8_map(&m, &c, nouts[i]);
        a.out = alone[i] = malloc(row * (size_t)nouts[i]);
        a.f8.dtype = i == 2 ? FSDP_F32 : FSDP_F8_E4M3;
        rc |= f8_one_map(a, transposed, backward);
    }
    for (int i = 0; i < SHARED_NMAPS; i++) {
        struct nn_linear a = f8_map(&m, &c, nouts[i]);
        a.made = &made;
        a.f8.dtype = i == 2 ? FSDP_F32 : FSDP_F8_E4M3;
        if (i == SHARED_NMAPS - 1 && backward)
            rc |= f8_one_map(a, transposed, backward);
        if (i == SHARED_NMAPS - 1)
            memset(m.nx, 0, m.nx_elem * fsdp_dtype_nbytes(dtype));
        a.out = out;
        rc |= f8_one_map(a, transposed, backward);
        nequal += !memcmp(alone[i], out, row * (size_t)nouts[i]);
        free(alone[i]);
    }
    ok(!rc && nequal == SHARED_NMAPS, "%s, %s%s, a scale of kind %d: %d of %d products of one x",
       fsdp_dtype_name(dtype), transposed ? "transposed" : "linear",
       backward ? ", to the weight" : "", (int)scale, nequal, SHARED_NMAPS);
    free(out);
    f8_release(&m);
}

/* ---- matrices that share a scale ------------------------------------------------------------- */

enum { GROUP_NMAPS = 3, GROUP_NIN = 32 };

/* Products of one element each, so that equal bits are equal codes and scales: y of x with one
 * element a row, dx of such a dy. Of the matrices, the second has by far the greatest values. */
static bool f8_map_of_group(const struct nn_linear *map, const float *w, double amax)
{
    const int rows = map->rows, nout = map->nout, widest = nout > GROUP_NIN ? nout : GROUP_NIN;
    const size_t nelem = (size_t)rows * (size_t)widest;
    float *from = malloc(nelem * sizeof *from), *to = malloc(nelem * sizeof *to);
    struct nn_linear a = *map;
    bool equal = true;
    int rc = 0;

    for (int backward = 0; backward < 2; backward++) {
        const int n = backward ? nout : GROUP_NIN, nto = backward ? GROUP_NIN : nout;
        memset(from, 0, nelem * sizeof *from);
        for (int r = 0; r < rows; r++)
            from[r * n + r % n] = 1.5f;
        a.x = a.dy = from;
        a.out = to;
        rc |= backward ? nn->linear_backward_input(ref_lane(), &a, &err)
                       : nn->linear_forward(ref_lane(), &a, &err);
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < nto; i++) {
                const float own = backward ? w[r % n * GROUP_NIN + i] : w[i * GROUP_NIN + r % n];
                equal &= to[r * nto + i] == (float)(1.5 * f8_value(FSDP_F8_E4M3, amax, own));
            }
    }
    free(from), free(to);
    return !rc && equal;
}

static void f8_group(void)
{
    static const int nouts[GROUP_NMAPS] = {48, 16, 33}; /* the last one is no product of codes */
    static const int powers[GROUP_NMAPS] = {0, 11, -9};
    struct nn_linear a = {.rows = 64, .nin = GROUP_NIN, .nout = 48};
    uint32_t bits = 7, want = 0;
    struct nn_f8_amax amax = {.amax = &bits, .count = GROUP_NMAPS};
    float *w[GROUP_NMAPS];
    int nequal = 0;

    a.f8 = (struct nn_f8){FSDP_F8_E4M3, FSDP_F8_E4M3, NN_F8_TENSOR};
    a.work = ref_output(nn->linear_work_nelem(&a), 0);
    for (int i = 0; i < GROUP_NMAPS; i++) {
        const size_t nelem = (size_t)nouts[i] * GROUP_NIN;
        amax.w[i] = w[i] = f8_values(nelem, FSDP_F32);
        amax.rows[i] = nouts[i], amax.cols[i] = GROUP_NIN;
        for (size_t k = 0; k < nelem; k++) {
            w[i][k] = ldexpf(w[i][k], powers[i]);
            const uint32_t own = nn_f8_magnitude(w[i][k]);
            want = own > want ? own : want;
        }
    }
    int rc = nn->f8_amax(ref_lane(), &amax, &err) | fsdp_lane_sync(ref_lane(), &err);
    ok(!rc && bits == want, "the greatest value of three matrices: %g", (double)nn_f8_float(bits));
    a.w_shared = &bits;
    for (int i = 0; i < GROUP_NMAPS; i++) {
        a.w = w[i], a.nout = nouts[i];
        nequal += f8_map_of_group(&a, w[i], (double)nn_f8_float(want));
        free(w[i]);
    }
    ok(nequal == GROUP_NMAPS, "%d of %d maps, y and dx, have the codes of one scale", nequal,
       GROUP_NMAPS);
    free(a.work);
}

/* ---- weights that were gathered in codes ----------------------------------------------------- */

/* y and dx of a map, or of GPT-2's, whose weight (nin, ldw) is wider. */
static int f8_y_and_dx(const struct f8_memory *m, const struct f8_case *c, int ldw, const void *w,
                       const double *amax, void *y, void *dx)
{
    struct nn_linear a = {.x = m->nx, .w = w, .w_amax = amax, .dy = m->ndy, .work = m->work};
    int rc;

    a.rows = c->rows, a.nin = c->nin, a.nout = c->nout, a.ldw = ldw, a.f8 = c->f8, a.b = m->nb;
    a.dtype = a.y_dtype = a.w_dtype = c->dtype;
    a.out = y;
    rc = nn->linear_forward(ref_lane(), &a, &err);
    a.out = dx;
    return rc | nn->linear_backward_input(ref_lane(), &a, &err);
}

/* With codes as they came, a product has the bits that it has of their values. The map is a part of
 * the tensor, whose greatest element is elsewhere; `greatest` is that. */
static void f8_gathered(const struct f8_case *c, bool transposed, float greatest)
{
    const int ldw = transposed ? c->nout + 16 : 0;
    const size_t first = transposed ? 16 : 16 * (size_t)c->nin;
    const size_t nelem =
        transposed ? (size_t)c->nin * (size_t)ldw : ((size_t)c->nout + 16) * (size_t)c->nin;
    const size_t ny = (size_t)c->rows * (size_t)c->nout, nx = (size_t)c->rows * (size_t)c->nin;
    const size_t elem = fsdp_dtype_nbytes(c->dtype);
    struct f8_memory m = f8_memory(c, 0);
    float *master = f8_values(nelem, FSDP_F32);
    uint8_t *codes = malloc(nelem);
    char *values = malloc(nelem * elem), *out[4], name[100];
    const double amax = fabs((double)greatest);
    const struct fsdp_dequantize_args back = {.dst = values,
                                              .dst_dtype = c->dtype,
                                              .src = codes,
                                              .src_dtype = FSDP_F8_E4M3,
                                              .nelem = nelem,
                                              .amax = &amax};

    for (size_t i = 0; i < nelem; i++)
        master[i] *= isfinite(greatest) ? greatest / 64 : 1;
    master[0] = greatest;
    for (int i = 0; i < 4; i++)
        out[i] = calloc(i % 2 ? nx : ny, elem);
    int rc = fsdp_quantize(ref_lane(), codes, FSDP_F8_E4M3, master, nelem, &amax, &err) |
             fsdp_dequantize(ref_lane(), &back, &err) | fsdp_lane_sync(ref_lane(), &err);
    rc |= f8_y_and_dx(&m, c, ldw, values + first * elem, NULL, out[0], out[1]);
    rc |= f8_y_and_dx(&m, c, ldw, codes + first, &amax, out[2], out[3]);
    bool equal = isfinite(greatest) && !memcmp(out[0], out[2], ny * elem) &&
                 !memcmp(out[1], out[3], nx * elem);
    if (!isfinite(greatest)) {
        float *y = malloc(ny * sizeof *y);
        fsdp_cpu_convert(y, FSDP_F32, out[2], c->dtype, ny);
        equal = true;
        for (size_t i = 0; i < ny; i++)
            equal &= isnan(y[i]);
        free(y);
    }
    ok(!rc && equal, "%s of codes, the greatest %g: in %s", transposed ? "transposed" : "linear",
       (double)greatest, f8_name(c, name));
    for (int i = 0; i < 4; i++)
        free(out[i]);
    free(values), free(codes), free(master);
    f8_release(&m);
}

static void run_f8_gathered(enum nn_f8_scale last)
{
    static const enum fsdp_dtype types[] = {FSDP_F32, FSDP_BF16};
    static const float greatest[] = {3.9f, -0x1.cp-40f, 4e10f, INFINITY};

    for (int i = 0; i < 2 * 2 * 4; i++) {
        struct f8_case c = {
            48, 80,  32, types[i % 2], FSDP_F32, {FSDP_F8_E4M3, FSDP_F8_E4M3, NN_F8_TENSOR},
            0,  true};
        f8_gathered(&c, i / 2 % 2, greatest[i / 4]);
        c.f8.scale = i / 4 ? NN_F8_TENSOR : last;
        c.f8.grad_dtype = FSDP_F8_E5M2;
        c.rows = 37, c.nin = 33, c.nout = 65;
        f8_gathered(&c, i / 2 % 2, greatest[i / 4]);
    }
}

static void run_f8(enum nn_f8_scale last)
{
    static const enum fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    const struct nn_f8 e4m3 = {FSDP_F8_E4M3, FSDP_F8_E4M3, NN_F8_TENSOR};

    for (int i = 0; i < 3; i++)
        for (enum nn_f8_scale scale = NN_F8_TENSOR; scale <= last; scale++) {
            struct f8_case c = {.rows = 48, .nin = 80, .nout = 32, .f8 = e4m3, .biased = true};
            c.dtype = types[i];
            c.f8.scale = scale;
            f8_linear(&c);
            f8_transposed(&c);
            c.f8.grad_dtype = FSDP_F8_E5M2, c.beta = 1, c.dw_dtype = types[i], c.biased = false;
            f8_linear(&c);
            f8_transposed(&c);
            /* Dimensions that no library of 8-bit products takes, one row among them. */
            c.rows = scale == NN_F8_ROW ? 1 : 37, c.nin = 33, c.nout = 65;
            f8_linear(&c);
            f8_transposed(&c);
            /* Several squares of columns, and tiles of blocks' scales. */
            c.rows = 160, c.nin = 192, c.nout = 160, c.biased = i == 1, c.beta = 0;
            if (scale == NN_F8_TENSOR)
                continue;
            f8_linear(&c);
            f8_transposed(&c);
        }
    for (enum nn_f8_scale scale = NN_F8_TENSOR; scale <= last; scale++)
        for (int i = 0; i < 4; i++)
            f8_shared(i ? FSDP_BF16 : FSDP_F32, scale, i / 2, i % 2);
    for (enum nn_f8_scale scale = NN_F8_TENSOR; scale <= last; scale++)
        f8_exact_lines(scale);
    run_f8_gathered(last);
    f8_group();
    f8_exact(FSDP_F8_E4M3, FSDP_F8_E4M3, 1);
    f8_exact(FSDP_F8_E4M3, FSDP_F8_E4M3, 3e7);
    f8_exact(FSDP_F8_E5M2, FSDP_F8_E5M2, 1e-5);
    f8_exact(FSDP_F8_E4M3, FSDP_F8_E4M3, 1e-37);
    f8_not_finite(NAN, FSDP_BF16);
    f8_not_finite(INFINITY, FSDP_BF16);
    f8_not_finite(-INFINITY, FSDP_F16);
    f8_zeros();
}

#endif
