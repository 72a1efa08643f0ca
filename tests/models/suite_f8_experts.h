/* SPDX-License-Identifier: Apache-2.0 */
/* Products of experts in 8 bits against the model of suite_f8.h: one scale for all places, and one
 * for the weights of all experts, or those of weights that were gathered in codes. */
#ifndef SUITE_F8_EXPERTS_H
#define SUITE_F8_EXPERTS_H

#include "suite_f8.h"

enum { F8_MOST_EXPERTS = 8 };
struct f8_experts {
    int experts, rows[F8_MOST_EXPERTS]; /* of each */
    int nin, nout;
    size_t gap; /* elements between one expert's matrix and the next */
    enum fsdp_dtype dtype, w_dtype, dw_dtype, grad_dtype;
    float beta;
    bool transposed, biased, told; /* told: the host knows the rows */
    enum {
        F8_VALUES,
        F8_CODES_OF_ALL,
        F8_CODES_OF_EACH
    } form; /* of w: of one tensor, or of each */
};

struct f8_experts_memory {
    int32_t first[F8_MOST_EXPERTS + 1];
    size_t n, matrix, stride, nw, nb, ny, nx;
    float *x, *w, *dy, *b, *old;
    void *nx_, *nw_, *ndy, *nb_; /* of their types */
    void *y, *dx, *dw, *db;
    double *rx, *rw, *rdy;            /* rounded */
    double *want[4];                  /* of y, dx, dw, db */
    double amax[2 * F8_MOST_EXPERTS]; /* of codes, two apart */
    float *work;
};

/* Values that begin as x, rounded in place as one group. Elements that lie in gaps have no part. */
static double *f8_as_one(const float *x, size_t nelem, size_t stride, size_t matrix,
                         enum fsdp_dtype dtype)
{
    double *out = ref_wide(nelem), amax = 0;

    for (size_t i = 0; i < nelem; i++)
        if (i % stride < matrix)
            amax = fmax(amax, fabs((double)x[i]));
    for (size_t i = 0; i < nelem; i++)
        out[i] = i % stride < matrix ? f8_value(dtype, amax, (double)x[i]) : NAN;
    return out;
}

/* The weights become codes, and what lies between experts codes of NaN. */
static void f8_experts_encode(struct f8_experts_memory *m, const struct f8_experts *c)
{
    uint8_t *codes = malloc(m->nw);
    float *value = malloc(m->matrix * sizeof *value);
    double most = 0;

    memset(codes, 0x7f, m->nw);
    for (int e = 0; e < c->experts; e++) {
        double *own = &m->amax[2 * e];
        for (size_t i = 0; i < m->matrix; i++)
            *own = fmax(*own, fabs((double)m->w[(size_t)e * m->stride + i]));
        most = fmax(most, *own);
    }
    for (int e = 0; e < c->experts; e++) {
        const size_t at = (size_t)e * m->stride;
        const double *amax = c->form == F8_CODES_OF_ALL ? &m->amax[0] : &m->amax[2 * e];
        m->amax[0] = c->form == F8_CODES_OF_ALL ? most : m->amax[0];
        const struct fsdp_dequantize_args back = {.dst = value,
                                                  .dst_dtype = FSDP_F32,
                                                  .src = codes + at,
                                                  .src_dtype = FSDP_F8_E4M3,
                                                  .nelem = m->matrix,
                                                  .amax = amax};
        fsdp_quantize(ref_lane(), codes + at, FSDP_F8_E4M3, m->w + at, m->matrix, amax, &err);
        fsdp_dequantize(ref_lane(), &back, &err);
        fsdp_lane_sync(ref_lane(), &err);
        for (size_t i = 0; i < m->matrix; i++)
            m->rw[at + i] = (double)value[i];
    }
    free(value);
    free(m->nw_);
    m->nw_ = codes;
}

static struct f8_experts_memory f8_experts_memory(const struct f8_experts *c)
{
    struct f8_experts_memory m = {.matrix = (size_t)c->nin * (size_t)c->nout};

    for (int e = 0; e < c->experts; e++)
        m.first[e + 1] = m.first[e] + c->rows[e];
    m.n = (size_t)m.first[c->experts];
    m.stride = m.matrix + c->gap;
    m.nw = (size_t)(c->experts - 1) * m.stride + m.matrix;
    m.nb = (size_t)c->experts * (size_t)c->nout;
    m.nx = m.n * (size_t)c->nin, m.ny = m.n * (size_t)c->nout;
    m.x = f8_values(m.nx, c->dtype), m.w = f8_values(m.nw, c->w_dtype);
    m.dy = f8_values(m.ny, c->dtype), m.b = f8_values(m.nb, c->w_dtype);
    for (size_t i = 0; i < m.nw; i++) /* what is not an expert's must not matter */
        m.w[i] = i % m.stride < m.matrix ? m.w[i] : 1024;
    m.old = f8_held_by_all(m.nx + m.ny + m.nw + m.nb);
    m.nx_ = f8_narrow(m.x, m.nx, c->dtype), m.nw_ = f8_narrow(m.w, m.nw, c->w_dtype);
    m.ndy = f8_narrow(m.dy, m.ny, c->dtype), m.nb_ = f8_narrow(m.b, m.nb, c->w_dtype);
    m.y = f8_narrow(m.old, m.ny, c->dtype), m.dx = f8_narrow(m.old, m.nx, c->dtype);
    m.dw = f8_narrow(m.old, m.nw, c->dw_dtype), m.db = f8_narrow(m.old, m.nb, c->dw_dtype);
    m.rx = f8_as_one(m.x, m.nx, m.nx, m.nx, FSDP_F8_E4M3);
    m.rw = f8_as_one(m.w, m.nw, m.stride, m.matrix, FSDP_F8_E4M3);
    m.rdy = f8_as_one(m.dy, m.ny, m.ny, m.ny, c->grad_dtype);
    const size_t nelem[] = {m.ny, m.nx, m.nw, m.nb};
    for (int k = 0; k < 4; k++) {
        m.want[k] = ref_wide(nelem[k]);
        for (size_t i = 0; i < nelem[k]; i++)
            m.want[k][i] = c->beta != 0 ? (double)c->beta * (double)m.old[i] : 0;
    }
    for (int e = 0; e < c->experts && c->form; e++) /* of other magnitudes */
        for (size_t i = 0; i < m.matrix; i++)
            m.w[(size_t)e * m.stride + i] *= ldexpf(1, 3 * e - 5);
    if (c->form)
        f8_experts_encode(&m, c);
    return m;
}

static void f8_experts_release(struct f8_experts_memory *m)
{
    void *const all[] = {m->x,   m->w,   m->dy,   m->b,       m->old,     m->nx_,     m->nw_,
                         m->ndy, m->nb_, m->y,    m->dx,      m->dw,      m->db,      m->rx,
                         m->rw,  m->rdy, m->work, m->want[0], m->want[1], m->want[2], m->want[3]};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

/* Of one place of expert e. */
static void f8_expert_place(struct f8_experts_memory *m, const struct f8_experts *c, size_t e,
                            size_t at)
{
    const size_t I = (size_t)c->nin, O = (size_t)c->nout;

    for (size_t j = 0; j < O; j++) {
        m->want[0][at * O + j] += c->biased ? (double)m->b[e * O + j] : 0;
        m->want[3][e * O + j] += (double)m->dy[at * O + j];
        for (size_t i = 0; i < I; i++) {
            const size_t k = e * m->stride + (c->transposed ? i * O + j : j * I + i);
            m->want[0][at * O + j] += m->rx[at * I + i] * m->rw[k];
            m->want[1][at * I + i] += m->rdy[at * O + j] * m->rw[k];
            m->want[2][k] += m->rdy[at * O + j] * m->rx[at * I + i];
        }
    }
}

static int f8_experts_run(struct f8_experts_memory *m, const struct f8_experts *c)
{
    struct nn_grouped a = {.x = m->nx_,
                           .w = m->nw_,
                           .dy = m->ndy,
                           .b = c->biased ? m->nb_ : NULL,
                           .db = c->biased ? m->db : NULL,
                           .stride = m->stride,
                           .first = m->first,
                           .first_host = c->told ? m->first : NULL,
                           .experts = c->experts,
                           .nplaces = (int)m->n,
                           .nin = c->nin,
                           .nout = c->nout,
                           .transposed = c->transposed,
                           .beta = c->beta,
                           .dtype = c->dtype,
                           .w_dtype = c->w_dtype,
                           .dw_dtype = c->dw_dtype,
                           .f8 = {FSDP_F8_E4M3, c->grad_dtype, NN_F8_TENSOR},
                           .w_amax = c->form ? m->amax : NULL,
                           .amax_step = c->form == F8_CODES_OF_EACH ? 2 : 0};
    int rc = 0;

    a.work = m->work = ref_output(nn->grouped_work_nelem(&a), 0);
    a.out = m->y;
    rc |= nn->grouped_forward(ref_lane(), &a, &err);
    a.out = m->dx;
    rc |= nn->grouped_backward_input(ref_lane(), &a, &err);
    a.out = m->dw;
    return rc | nn->grouped_backward_weight(ref_lane(), &a, &err);
}

/* The worst of the gradients of all matrices; -1: what lies between them changed. */
static double f8_experts_dw(const struct f8_experts_memory *m, const struct f8_experts *c)
{
    const size_t elem = fsdp_dtype_nbytes(c->dw_dtype);
    float *all = malloc(m->nw * sizeof *all);
    double worst = 0;

    fsdp_cpu_convert(all, FSDP_F32, m->dw, c->dw_dtype, m->nw);
    for (size_t i = 0; i < m->nw; i++)
        if (i % m->stride >= m->matrix && all[i] != m->old[i])
            worst = 1e30;
    free(all);
    for (int e = 0; e < c->experts; e++) {
        const size_t at = (size_t)e * m->stride;
        worst = fmax(worst,
                     f8_excess((char *)m->dw + at * elem, c->dw_dtype, m->want[2] + at, m->matrix));
    }
    return worst;
}

static void f8_grouped(struct f8_experts c)
{
    struct f8_experts_memory m = f8_experts_memory(&c);
    const double most = suite_unit_slack * (suite_bias_apart && c.beta != 0 ? 2.5 : 1);

    for (int e = 0; e < c.experts; e++)
        for (int at = m.first[e]; at < m.first[e + 1]; at++)
            f8_expert_place(&m, &c, (size_t)e, (size_t)at);
    const int rc = f8_experts_run(&m, &c);
    const double y = f8_excess(m.y, c.dtype, m.want[0], m.ny);
    const double dx = f8_excess(m.dx, c.dtype, m.want[1], m.nx), dw = f8_experts_dw(&m, &c);
    const double db = c.biased ? f8_excess(m.db, c.dw_dtype, m.want[3], m.nb) : 0;
    ok(!rc && y <= most && dx <= most && dw <= most && db <= most,
       "%d experts in 8 bits, %zu places, %d -> %d, %s, gradients %s, beta %g%s%s%s: %.2f %.2f "
       "%.2f %.2f of the bound",
       c.experts, m.n, c.nin, c.nout, fsdp_dtype_name(c.dtype), fsdp_dtype_name(c.grad_dtype),
       (double)c.beta, c.transposed ? ", transposed" : "", c.biased ? ", biased" : "",
       c.form ? ", of codes" : "", y, dx, dw, db);
    f8_experts_release(&m);
}

/* A NaN, or an infinity, of one place reaches its own row and its expert's gradient. */
static void f8_experts_not_finite(float bad, int rows, int last)
{
    struct f8_experts c = {.experts = 3,
                           .rows = {rows, 9, last},
                           .nin = 32,
                           .nout = 48,
                           .dtype = FSDP_BF16,
                           .w_dtype = FSDP_BF16,
                           .grad_dtype = FSDP_F8_E4M3};
    struct f8_experts_memory m = f8_experts_memory(&c);
    const size_t place = (size_t)rows, nout = (size_t)c.nout; /* the first of expert 1 */
    float *y = malloc(m.ny * sizeof *y), *dw = m.dw;
    bool good = true;

    ((uint16_t *)m.nx_)[place * (size_t)c.nin + 5] = fsdp_f32_to_bf16(bad);
    const int rc = f8_experts_run(&m, &c);
    fsdp_cpu_convert(y, FSDP_F32, m.y, FSDP_BF16, m.ny);
    for (size_t i = 0; i < m.ny; i++)
        good &= isfinite(y[i]) == (i / nout != place);
    for (size_t i = 0; i < m.nw; i++)
        good &= isfinite(dw[i]) == (i / m.stride != 1 || i % (size_t)c.nin != 5);
    ok(!rc && good, "%g of one place: its y, and its column of its expert's dw", (double)bad);
    free(y);
    f8_experts_release(&m);
}

/* Few rows each, of which some have none; and so many that a GPU has another way for them, which
 * are no multiple of 16. */
static void run_f8_experts(void)
{
    static const enum fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};

    for (int i = 0; i < 3 * 2; i++) {
        struct f8_experts c = {.experts = 5,
                               .rows = {17, 0, 30, 1, 26},
                               .nin = 19,
                               .nout = 23,
                               .gap = 7,
                               .dtype = types[i / 2],
                               .w_dtype = types[i / 2],
                               .grad_dtype = FSDP_F8_E4M3,
                               .transposed = i % 2,
                               .biased = i % 2};
        f8_grouped(c);
        c.nin = 32, c.nout = 16, c.gap = 0, c.beta = 1, c.dw_dtype = c.dtype;
        c.grad_dtype = FSDP_F8_E5M2, c.told = true;
        f8_grouped(c);
        struct f8_experts large = {.experts = 3,
                                   .rows = {1003, 0, 563},
                                   .nin = 32,
                                   .nout = 48,
                                   .gap = 16,
                                   .dtype = types[i / 2],
                                   .w_dtype = types[i / 2],
                                   .grad_dtype = FSDP_F8_E4M3,
                                   .transposed = i % 2,
                                   .biased = true,
                                   .told = true};
        f8_grouped(large);
        large.rows[0] = 1600, large.rows[1] = 7, large.rows[2] = 16;
        large.beta = 1, large.dw_dtype = large.dtype, large.told = false, large.biased = false;
        large.grad_dtype = FSDP_F8_E5M2;
        f8_grouped(large);
        large.nin = 33, large.nout = 20, large.gap = 0, large.biased = true, large.beta = 0;
        f8_grouped(large);
        /* Of a unit that has other types. CUDA adds its biases to what is rounded. */
        large.w_dtype = FSDP_F32, large.biased = false;
        f8_grouped(large);
        /* Gathered in codes: of odd sizes, of few rows, and of many. */
        c.form = F8_CODES_OF_EACH;
        f8_grouped(c);
        c.nin = 19, c.nout = 23, c.gap = 5, c.form = F8_CODES_OF_ALL;
        f8_grouped(c);
        large.w_dtype = large.dtype, large.nin = 32, large.nout = 48, large.gap = 16;
        large.form = F8_CODES_OF_EACH, large.told = true, large.biased = true;
        f8_grouped(large);
        large.form = F8_CODES_OF_ALL, large.gap = 0, large.rows[0] = 800, large.rows[2] = 1604;
        f8_grouped(large);
    }
    f8_experts_not_finite(NAN, 20, 33);
    f8_experts_not_finite(-INFINITY, 20, 33);
    f8_experts_not_finite(NAN, 803, 805);
    f8_experts_not_finite(INFINITY, 803, 805);
}

#endif
