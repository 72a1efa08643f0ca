/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention with grouped heads against plain loops in fp64, also with several documents in a
 * row and with dropout; its gradient against the exact one and, so that both are not wrong alike,
 * against finite differences of the forward pass. */
#ifndef SUITE_ATTENTION_H
#define SUITE_ATTENTION_H

#include "suite.h"

struct shape {
    int B, Tq, Tk, NH, NKV, D;
    const int32_t *starts; /* (B, Tq) or NULL */
    const float *factors;  /* (B, NH, Tq, drop_row) of the probabilities, or NULL */
};

/* Dropout's factors of a row of keys lie this far apart. */
static size_t drop_row(struct shape s)
{
    return ((size_t)s.Tk + 31) / 32 * 32;
}

static int first_key(struct shape s, int b, int t)
{
    return s.starts ? s.starts[b * s.Tq + t] : 0;
}

static double factor(struct shape s, int b, int h, int t, int j)
{
    return s.factors ? s.factors[((size_t)(b * s.NH + h) * s.Tq + t) * drop_row(s) + j] : 1;
}

static size_t nq(struct shape s)
{
    return (size_t)s.B * s.Tq * s.NH * s.D;
}

static size_t nk(struct shape s)
{
    return (size_t)s.B * s.Tk * s.NKV * s.D;
}

static size_t q_at(struct shape s, int b, int t, int h)
{
    return (((size_t)b * s.Tq + t) * s.NH + h) * s.D;
}

static size_t k_at(struct shape s, int b, int t, int h)
{
    return (((size_t)b * s.Tk + t) * s.NKV + h / (s.NH / s.NKV)) * s.D;
}

static double dot(const double *a, const double *b, int nelem)
{
    double sum = 0;
    for (int i = 0; i < nelem; i++)
        sum += a[i] * b[i];
    return sum;
}

/* p[first_key..n) = softmax of one query's scores; returns n, lse in *lse. */
static int probabilities(struct shape s, const double *q, const double *k, int b, int t, int h,
                         double *p, double *lse)
{
    const int n = s.Tk - s.Tq + t + 1, first = first_key(s, b, t);
    double most = -INFINITY, sum = 0;
    for (int j = first; j < n; j++) {
        p[j] = dot(q + q_at(s, b, t, h), k + k_at(s, b, j, h), s.D) / sqrt(s.D);
        most = p[j] > most ? p[j] : most;
    }
    for (int j = first; j < n; j++)
        sum += p[j] = exp(p[j] - most);
    for (int j = first; j < n; j++)
        p[j] /= sum;
    *lse = most + log(sum);
    return n;
}

static void forward_ref(struct shape s, const double *q, const double *k, const double *v,
                        double *o, double *lse)
{
    double *p = ref_wide((size_t)s.Tk);
    for (int b = 0; b < s.B; b++)
        for (int h = 0; h < s.NH; h++)
            for (int t = 0; t < s.Tq; t++) {
                int n = probabilities(s, q, k, b, t, h, p, &lse[(b * s.NH + h) * s.Tq + t]);
                for (int i = 0; i < s.D; i++) {
                    double sum = 0;
                    for (int j = first_key(s, b, t); j < n; j++)
                        sum += p[j] * factor(s, b, h, t, j) * v[k_at(s, b, j, h) + i];
                    o[q_at(s, b, t, h) + i] = sum;
                }
            }
    free(p);
}

static void backward_ref(struct shape s, const double *q, const double *k, const double *v,
                         const double *d_o, double *dq, double *dk, double *dv)
{
    double *p = ref_wide((size_t)s.Tk), *dp = ref_wide((size_t)s.Tk), lse;
    for (int b = 0; b < s.B; b++)
        for (int h = 0; h < s.NH; h++)
            for (int t = 0; t < s.Tq; t++) {
                int n = probabilities(s, q, k, b, t, h, p, &lse);
                const size_t at = q_at(s, b, t, h);
                double mean = 0;
                for (int j = first_key(s, b, t); j < n; j++) {
                    dp[j] = factor(s, b, h, t, j) * dot(d_o + at, v + k_at(s, b, j, h), s.D);
                    mean += p[j] * dp[j];
                }
                for (int j = first_key(s, b, t); j < n; j++)
                    for (int i = 0; i < s.D; i++) {
                        const size_t key = k_at(s, b, j, h) + i;
                        double ds = p[j] * (dp[j] - mean) / sqrt(s.D);
                        dv[key] += p[j] * factor(s, b, h, t, j) * d_o[at + i];
                        dk[key] += ds * q[at + i];
                        dq[at + i] += ds * k[key];
                    }
            }
    free(p), free(dp);
}

static float *work_for(struct shape s)
{
    const struct nn_attention a = {
        .B = s.B, .Tq = s.Tq, .Tk = s.Tk, .NH = s.NH, .NKV = s.NKV, .D = s.D};
    return ref_output(nn->attention_work_nelem(&a), 0);
}

static double *widen(const float *x, size_t nelem)
{
    double *y = ref_wide(nelem);
    for (size_t i = 0; i < nelem; i++)
        y[i] = x[i];
    return y;
}

static const struct nn_drop no_drop;

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

static void test_attention(struct shape s, struct nn_drop drop, double spread)
{
    float *factors = drop.p > 0 ? drop_factors(s, drop) : NULL;
    s.factors = factors;
    const size_t n_q = nq(s), n_k = nk(s), n_lse = (size_t)s.B * s.NH * s.Tq;
    float *q = ref_values(n_q, spread), *k = ref_values(n_k, spread), *v = ref_values(n_k, 1);
    float *o = ref_output(n_q, 0), *lse = ref_output(n_lse, 0), *d_o = ref_values(n_q, 1);
    float *work = work_for(s);
    double *wq = widen(q, n_q), *wk = widen(k, n_k), *wv = widen(v, n_k), *wd = widen(d_o, n_q);
    double *ro = ref_wide(n_q), *rlse = ref_wide(n_lse);
    double *rdq = ref_wide(n_q), *rdk = ref_wide(n_k), *rdv = ref_wide(n_k);

    forward_ref(s, wq, wk, wv, ro, rlse);
    backward_ref(s, wq, wk, wv, wd, rdq, rdk, rdv);
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
                             .drop = drop};
    int rc = nn->attention_forward(ref_lane(), &a, &err);
    rc |= nn->attention_backward(ref_lane(), &a, &err);
    double e[5] = {ref_error(o, ro, n_q), ref_error(lse, rlse, n_lse), ref_error(q, rdq, n_q),
                   ref_error(k, rdk, n_k), ref_error(v, rdv, n_k)};
    ok(!rc && e[0] < 1e-6 && e[1] < 1e-6 && e[2] < 2e-6 && e[3] < 2e-6 && e[4] < 1e-6,
       "attention B%d T%d of %d, %d/%d heads of %d%s%s: o %.1e lse %.1e dq %.1e dk %.1e dv %.1e",
       s.B, s.Tq, s.Tk, s.NH, s.NKV, s.D, s.starts ? ", documents" : "", factors ? ", dropout" : "",
       e[0], e[1], e[2], e[3], e[4]);
    free(factors);
    free(q), free(k), free(v), free(o), free(lse), free(d_o), free(work);
    free(wq), free(wk), free(wv), free(wd), free(ro), free(rlse), free(rdq), free(rdk), free(rdv);
}

static double weighted_output(struct shape s, double *const *in, const double *d_o)
{
    double *o = ref_wide(nq(s)), *lse = ref_wide((size_t)s.B * s.NH * s.Tq), sum;
    forward_ref(s, in[0], in[1], in[2], o, lse);
    sum = dot(o, d_o, (int)nq(s));
    free(o), free(lse);
    return sum;
}

/* The exact gradient above is the gradient of the forward pass above. */
static void test_reference(void)
{
    const struct shape s = {.B = 1, .Tq = 3, .Tk = 4, .NH = 4, .NKV = 2, .D = 2};
    const size_t n[3] = {nq(s), nk(s), nk(s)};
    double *in[3], *grad[3], *d_o = ref_wide(n[0]), worst = 0;
    const double h = 1e-5;

    for (int k = 0; k < 3; k++) {
        in[k] = ref_wide(n[k]);
        grad[k] = ref_wide(n[k]);
        for (size_t i = 0; i < n[k]; i++)
            in[k][i] = ref_random();
    }
    for (size_t i = 0; i < n[0]; i++)
        d_o[i] = ref_random();
    backward_ref(s, in[0], in[1], in[2], d_o, grad[0], grad[1], grad[2]);
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < n[k]; i++) {
            double x = in[k][i];
            in[k][i] = x + h;
            double up = weighted_output(s, in, d_o);
            in[k][i] = x - h;
            double down = weighted_output(s, in, d_o);
            in[k][i] = x;
            worst = fmax(worst, fabs((up - down) / (2 * h) - grad[k][i]));
        }
    ok(worst < 1e-8, "the reference's gradient is that of its forward pass (%.1e)", worst);
    for (int k = 0; k < 3; k++)
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

static void test_documents(void)
{
    enum { T = 200, NDOCS = 5 };
    static const int bounds[NDOCS + 1] = {0, 70, 71, 135, 136, T};
    const struct shape s = {.B = 1, .Tq = T, .Tk = T, .NH = 4, .NKV = 2, .D = 16};
    int32_t starts[T];
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
                             .scale = 0.25f};
    if (nn->attention_forward(ref_lane(), &a, &err) || nn->attention_backward(ref_lane(), &a, &err))
        abort();
    for (int d = 0; d < NDOCS; d++)
        same &= same_alone(s, &a, in, d_o, bounds[d], bounds[d + 1]);
    ok(same, "documents in one row are bit-equal to the same documents alone");
    for (int k = 0; k < 3; k++)
        free(in[k]);
    free(a.q), free(a.k), free(a.v), free(a.o), free(a.lse), free(a.work), free(d_o);
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
    return (struct shape){B, Tq, Tk, NH, NKV, D, starts, NULL};
}

static struct shape shape(int B, int Tq, int Tk, int NH, int NKV, int D)
{
    return packed(B, Tq, Tk, NH, NKV, D, NULL);
}

static void run_attention(void)
{
    const struct nn_drop drop = {.p = 0.3f, .key = 12345, .first_row = UINT64_C(1) << 40};
    int32_t *starts = some_starts(2, 150);

    test_reference();
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
    test_documents();
    free(starts);
}

#endif
