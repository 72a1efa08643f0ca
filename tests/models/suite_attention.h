/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention with grouped heads against plain loops in fp64, also with several documents in a
 * row, dropout, windows, capped scores and sinks; its gradient against the exact one and, so that
 * both are not wrong alike, against finite differences of the forward pass. */
#ifndef SUITE_ATTENTION_H
#define SUITE_ATTENTION_H

#include "attention_ref.h"

static float *work_for(struct shape s)
{
    const struct nn_attention a = {
        .B = s.B, .Tq = s.Tq, .Tk = s.Tk, .NH = s.NH, .NKV = s.NKV, .D = s.D, .window = s.window};
    return ref_output(nn->attention_work_nelem(&a), 0);
}

static double *widen(const float *x, size_t nelem)
{
    double *y = ref_wide(nelem);
    for (size_t i = 0; i < nelem; i++)
        y[i] = x[i];
    return y;
}

/* Dropout of ones: its factors, in the order that attention takes them. */
static float *drop_factors(struct shape s, struct nn_drop drop)
{
    const size_t row = (size_t)s.NH * s.Tq * drop_row(s);
    float *x = malloc(s.B * row * sizeof *x);
    struct nn_dropout args = {.out = x, .x = x, .B = s.B, .row_nelem = row, .drop = drop};
    for (size_t i = 0; i < s.B * row; i++)
        x[i] = 1;
    if (nn->dropout(ref_lane(), &args, &err))
        abort();
    return x;
}

static float *narrow(const double *x, size_t nelem)
{
    float *y = malloc(nelem * sizeof *y);
    for (size_t i = 0; i < nelem; i++)
        y[i] = (float)x[i];
    return y;
}

static void test_attention(struct shape s, struct nn_drop drop, double spread)
{
    float *factors = drop.p > 0 ? drop_factors(s, drop) : NULL;
    s.factors = factors;
    const size_t n_q = nq(s), n_k = nk(s), n_lse = (size_t)s.B * s.NH * s.Tq, NH = (size_t)s.NH;
    float *q = ref_values(n_q, spread), *k = ref_values(n_k, spread), *v = ref_values(n_k, 1);
    float *o = ref_output(n_q, 0), *lse = ref_output(n_lse, 0), *d_o = ref_values(n_q, 1);
    float *work = work_for(s), *sinks = s.sinks ? narrow(s.sinks, NH) : NULL;
    float *dsinks = ref_values(NH, 1);
    double *wq = widen(q, n_q), *wk = widen(k, n_k), *wv = widen(v, n_k), *wd = widen(d_o, n_q);
    double *ro = ref_wide(n_q), *rlse = ref_wide(n_lse);
    double *grad[4] = {ref_wide(n_q), ref_wide(n_k), ref_wide(n_k), widen(dsinks, NH)};

    forward_ref(s, wq, wk, wv, ro, rlse);
    backward_ref(s, wq, wk, wv, wd, grad);
    struct nn_attention a = {.q = q,
                             .k = k,
                             .v = v,
                             .o = o,
                             .lse = lse,
                             .d_o = d_o,
                             .work = work,
                             .B = s.B,
                             .Tq = s.Tq,
                             .Tk = s.Tk,
                             .NH = s.NH,
                             .NKV = s.NKV,
                             .D = s.D,
                             .scale = (float)(1 / sqrt(s.D)),
                             .starts = s.starts,
                             .window = s.window,
                             .softcap = s.cap,
                             .sinks = sinks,
                             .dsinks = sinks ? dsinks : NULL,
                             .dsinks_beta = 1,
                             .drop = drop};
    int rc = nn->attention_forward(ref_lane(), &a, &err);
    rc |= nn->attention_backward(ref_lane(), &a, &err);
    double e[6] = {ref_error(o, ro, n_q),      ref_error(lse, rlse, n_lse),
                   ref_error(q, grad[0], n_q), ref_error(k, grad[1], n_k),
                   ref_error(v, grad[2], n_k), sinks ? ref_error(dsinks, grad[3], NH) : 0};
    ok(!rc && e[0] < 1e-6 && e[1] < 1e-6 && e[2] < 2e-6 && e[3] < 2e-6 && e[4] < 1e-6 &&
           e[5] < 1e-6,
       "attention B%d T%d of %d, %d/%d heads of %d%s: "
       "o %.1e lse %.1e dq %.1e dk %.1e dv %.1e dsinks %.1e",
       s.B, s.Tq, s.Tk, s.NH, s.NKV, s.D, traits(s), e[0], e[1], e[2], e[3], e[4], e[5]);
    free(factors), free(sinks), free(dsinks);
    free(q), free(k), free(v), free(o), free(lse), free(d_o), free(work);
    free(wq), free(wk), free(wv), free(wd), free(ro), free(rlse);
    for (int i = 0; i < 4; i++)
        free(grad[i]);
}

static double weighted_output(struct shape s, double *const *in, const double *d_o)
{
    double *o = ref_wide(nq(s)), *lse = ref_wide((size_t)s.B * s.NH * s.Tq), sum;
    s.sinks = s.sinks ? in[3] : NULL;
    forward_ref(s, in[0], in[1], in[2], o, lse);
    sum = dot(o, d_o, (int)nq(s));
    free(o), free(lse);
    return sum;
}

/* The exact gradient above is the gradient of the forward pass above. */
static void test_reference(struct shape s)
{
    const size_t n[4] = {nq(s), nk(s), nk(s), s.sinks ? (size_t)s.NH : 0};
    double *in[4], *grad[4], *d_o = ref_wide(n[0]), worst = 0;
    const double h = 1e-5;

    for (int k = 0; k < 4; k++) {
        in[k] = ref_wide((size_t)s.NH + n[k]);
        grad[k] = ref_wide((size_t)s.NH + n[k]);
        for (size_t i = 0; i < n[k]; i++)
            in[k][i] = ref_random();
    }
    for (size_t i = 0; i < n[0]; i++)
        d_o[i] = ref_random();
    s.sinks = s.sinks ? in[3] : NULL;
    backward_ref(s, in[0], in[1], in[2], d_o, grad);
    for (int k = 0; k < 4; k++)
        for (size_t i = 0; i < n[k]; i++) {
            double x = in[k][i];
            in[k][i] = x + h;
            double up = weighted_output(s, in, d_o);
            in[k][i] = x - h;
            double down = weighted_output(s, in, d_o);
            in[k][i] = x;
            worst = fmax(worst, fabs((up - down) / (2 * h) - grad[k][i]));
        }
    ok(worst < 1e-8, "the reference's gradient is that of its forward pass%s (%.1e)", traits(s),
       worst);
    for (int k = 0; k < 4; k++)
        free(in[k]), free(grad[k]);
    free(d_o);
}

/* Positions [first, end) of a row as a batch of their own get the same bits. */
static bool same_alone(struct shape s, const struct nn_attention *row, float *const *in,
                       const float *d_o, int first, int end)
{
    const int T = end - first;
    const size_t q = q_at(s, 0, first, 0), k = k_at(s, 0, first, 0);
    const size_t n_q = (size_t)T * s.NH * s.D, n_k = (size_t)T * s.NKV * s.D;
    struct nn_attention a = *row;
    a.q = ref_copy(in[0] + q, n_q), a.k = ref_copy(in[1] + k, n_k), a.v = ref_copy(in[2] + k, n_k);
    a.o = ref_output(n_q, 0), a.lse = ref_output((size_t)s.NH * T, 0);
    a.d_o = d_o + q;
    s.Tq = s.Tk = T;
    a.work = work_for(s);
    a.starts = NULL;
    a.Tq = a.Tk = T;
    if (nn->attention_forward(ref_lane(), &a, &err) || nn->attention_backward(ref_lane(), &a, &err))
        abort();
    bool same = !memcmp(a.o, nn_at(row->o, FSDP_F32, q), n_q * sizeof(float)) &&
                !memcmp(a.q, nn_at(row->q, FSDP_F32, q), n_q * sizeof(float)) &&
                !memcmp(a.k, nn_at(row->k, FSDP_F32, k), n_k * sizeof(float)) &&
                !memcmp(a.v, nn_at(row->v, FSDP_F32, k), n_k * sizeof(float));
    free(a.q), free(a.k), free(a.v), free(a.o), free(a.lse), free(a.work);
    return same;
}

static void test_documents(int window, float cap, const double *wide_sinks)
{
    enum { T = 200, NDOCS = 5, NH = 4 };
    static const int bounds[NDOCS + 1] = {0, 70, 71, 135, 136, T};
    const struct shape s = {
        .B = 1, .Tq = T, .Tk = T, .NH = NH, .NKV = 2, .D = 16, .window = window, .cap = cap};
    int32_t starts[T];
    float *sinks = wide_sinks ? narrow(wide_sinks, NH) : NULL;
    float *in[3] = {ref_values(nq(s), 2), ref_values(nk(s), 2), ref_values(nk(s), 1)};
    float *d_o = ref_values(nq(s), 1);
    bool same = true;

    for (int d = 0; d < NDOCS; d++)
        for (int t = bounds[d]; t < bounds[d + 1]; t++)
            starts[t] = bounds[d];
    struct nn_attention a = {.q = ref_copy(in[0], nq(s)),
                             .k = ref_copy(in[1], nk(s)),
                             .v = ref_copy(in[2], nk(s)),
                             .o = ref_output(nq(s), 0),
                             .lse = ref_output((size_t)s.NH * T, 0),
                             .d_o = d_o,
                             .work = work_for(s),
                             .starts = starts,
                             .B = 1,
                             .Tq = T,
                             .Tk = T,
                             .NH = s.NH,
                             .NKV = s.NKV,
                             .D = s.D,
                             .window = window,
                             .softcap = cap,
                             .sinks = sinks,
                             .scale = 0.25f};
    if (nn->attention_forward(ref_lane(), &a, &err) || nn->attention_backward(ref_lane(), &a, &err))
        abort();
    for (int d = 0; d < NDOCS; d++)
        same &= same_alone(s, &a, in, d_o, bounds[d], bounds[d + 1]);
    ok(same, "documents in one row are bit-equal to the same documents alone%s",
       window ? " (window, cap, sinks)" : "");
    for (int k = 0; k < 3; k++)
        free(in[k]);
    free(a.q), free(a.k), free(a.v), free(a.o), free(a.lse), free(a.work), free(d_o);
    free(sinks);
}

/* Documents of 1, 2, 4, ... positions, from another place in each row. */
static int32_t *some_starts(int B, int T)
{
    int32_t *starts = malloc((size_t)B * T * sizeof *starts);
    for (int b = 0; b < B; b++)
        for (int t = 0, first = 0, len = 1 + b; t < T; t++) {
            if (t == first + len) {
                first = t;
                len *= 2;
            }
            starts[b * T + t] = first;
        }
    return starts;
}

static struct shape packed(int B, int Tq, int Tk, int NH, int NKV, int D, const int32_t *starts)
{
    return (struct shape){B, Tq, Tk, NH, NKV, D, starts, NULL, 0, 0, NULL};
}

static struct shape shape(int B, int Tq, int Tk, int NH, int NKV, int D)
{
    return packed(B, Tq, Tk, NH, NKV, D, NULL);
}

/* A tensor's bits after the passes of `a`, whose inputs they do not change. */
static void copies_pass(struct nn_attention *a, struct shape s, float *const *in, const float *d_o)
{
    a->q = ref_copy(in[0], nq(s)), a->k = ref_copy(in[1], nk(s)), a->v = ref_copy(in[2], nk(s));
    a->o = ref_output(nq(s), 0), a->lse = ref_output((size_t)s.B * s.NH * s.Tq, 0);
    a->d_o = d_o;
    a->work = work_for(s);
    if (nn->attention_forward(ref_lane(), a, &err) || nn->attention_backward(ref_lane(), a, &err))
        abort();
}

/* A window of all keys is none; and keys before every window are not read: they may be NaN. There
 * are 32, a multiple of every tile. */
static void test_window(void)
{
    enum { T = 150, WINDOW = 9, KEPT = 40, Tk = T + KEPT };
    struct shape s = {.B = 1, .Tq = T, .Tk = Tk, .NH = 4, .NKV = 2, .D = 16};
    float *in[3] = {ref_values(nq(s), 2), ref_values(nk(s), 2), ref_values(nk(s), 1)};
    float *d_o = ref_values(nq(s), 1);
    struct nn_attention a[3];
    bool same = true, zero = true;

    for (int i = 0; i < 3; i++) {
        s.window = i == 0 ? 0 : i == 1 ? Tk : WINDOW;
        a[i] = (struct nn_attention){
            .B = 1, .Tq = T, .Tk = Tk, .NH = s.NH, .NKV = s.NKV, .D = s.D, .scale = 0.25f};
        a[i].window = s.window;
        if (i == 2)
            for (int j = 0; j < (KEPT - WINDOW + 1) * s.NKV * s.D; j++)
                in[1][j] = in[2][j] = NAN;
        copies_pass(&a[i], s, in, d_o);
    }
    same &= !memcmp(a[0].o, a[1].o, nq(s) * sizeof(float));
    same &= !memcmp(a[0].q, a[1].q, nq(s) * sizeof(float));
    same &= !memcmp(a[0].k, a[1].k, nk(s) * sizeof(float));
    same &= !memcmp(a[0].v, a[1].v, nk(s) * sizeof(float));
    ok(same, "a window of all keys gives the bits of none");
    for (size_t i = 0; i < nk(s); i++) {
        const float dk = ((float *)a[2].k)[i], dv = ((float *)a[2].v)[i];
        const bool unseen = i < (size_t)((KEPT - WINDOW + 1) * s.NKV * s.D);
        zero &= unseen ? dk == 0 && dv == 0 : isfinite(dk) && isfinite(dv);
    }
    for (size_t i = 0; i < nq(s); i++)
        zero &= isfinite(((float *)a[2].o)[i]) && isfinite(((float *)a[2].q)[i]);
    ok(zero, "keys before every window are not read, and their gradients are zero");
    for (int i = 0; i < 3; i++) {
        free(a[i].q), free(a[i].k), free(a[i].v), free(a[i].o), free(a[i].lse), free(a[i].work);
        free(in[i]);
    }
    free(d_o);
}

static const double some_sinks[8] = {0.5, -1.5, 4, -0.25, 0, 2, -6, 1};

static struct shape with(struct shape s, int window, float cap, bool sinks)
{
    s.window = window;
    s.cap = cap;
    s.sinks = sinks ? some_sinks : NULL;
    return s;
}

/* Each trait alone, and every combination of them with each kind of row. */
static void run_traits(void)
{
    const struct nn_drop drop = {.p = 0.3f, .key = 12345, .first_row = UINT64_C(1) << 40};
    int32_t *starts = some_starts(2, 150);

    test_reference(with(shape(1, 3, 4, 4, 2, 2), 2, 0, false));
    test_reference(with(shape(1, 3, 4, 4, 2, 2), 0, 1.5f, false));
    test_reference(with(shape(2, 3, 4, 4, 2, 2), 0, 0, true));
    test_reference(with(shape(2, 5, 6, 4, 2, 2), 3, 0.7f, true));
    for (int traits = 1; traits < 8; traits++) {
        const int window = traits & 1 ? 21 : 0;
        const float cap = traits & 2 ? 1.5f : 0;
        const bool sinks = traits & 4;
        test_attention(with(shape(2, 131, 131, 6, 2, 19), window, cap, sinks), no_drop, 2);
        test_attention(with(shape(2, 67, 170, 4, 2, 16), window, cap, sinks), no_drop, 1);
        test_attention(with(packed(2, 150, 150, 4, 2, 16, starts), window, cap, sinks), drop, 1);
    }
    test_attention(with(shape(1, 1, 77, 4, 2, 16), 5, 50, true), no_drop, 1);
    test_attention(with(shape(1, 133, 133, 3, 3, 16), 1, 0, true), no_drop, 1);
    test_attention(with(shape(1, 200, 200, 2, 1, 70), 64, 30, true), no_drop, 3);
    test_attention(with(shape(1, 70, 70, 4, 2, 130), 13, 50, true), drop, 1);
    test_documents(17, 2, some_sinks);
    test_window();
    free(starts);
}

static void run_attention(void)
{
    const struct nn_drop drop = {.p = 0.3f, .key = 12345, .first_row = UINT64_C(1) << 40};
    int32_t *starts = some_starts(2, 150);

    test_reference(shape(1, 3, 4, 4, 2, 2));
    test_attention(shape(1, 1, 1, 1, 1, 2), no_drop, 1);
    test_attention(shape(2, 5, 5, 4, 2, 16), no_drop, 1);
    test_attention(shape(1, 64, 64, 2, 1, 16), no_drop, 2);
    test_attention(shape(2, 65, 65, 6, 2, 64), no_drop, 1);
    test_attention(shape(1, 130, 130, 3, 3, 16), no_drop, 3);
    test_attention(shape(1, 131, 131, 8, 1, 64), no_drop, 1);
    test_attention(shape(1, 1, 77, 4, 2, 16), no_drop, 1);   /* decoding */
    test_attention(shape(2, 67, 100, 4, 2, 16), no_drop, 1); /* a prompt's later piece */
    test_attention(packed(2, 150, 150, 4, 2, 16, starts), no_drop, 1);
    test_attention(shape(2, 70, 70, 4, 2, 16), drop, 1);
    test_attention(packed(2, 150, 150, 4, 2, 16, starts), drop, 1);
    test_documents(0, 0, NULL);
    free(starts);
}

#endif
