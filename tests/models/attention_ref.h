/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention and its gradient by plain loops in fp64, with all that nn_attention has. */
#ifndef ATTENTION_REF_H
#define ATTENTION_REF_H

#include "suite.h"

struct shape {
    int B, Tq, Tk, NH, NKV, D;
    const int32_t *starts; /* (B, Tq) or NULL */
    const float *factors;  /* (B, NH, Tq, drop_row) of the probabilities, or NULL */
    int window;
    float cap;
    const double *sinks; /* (NH) or NULL */
};

/* Dropout's factors of a row of keys lie this far apart. */
static size_t drop_row(struct shape s)
{
    return ((size_t)s.Tk + 31) / 32 * 32;
}

static int end_key(struct shape s, int t)
{
    return s.Tk - s.Tq + t + 1;
}

static int first_key(struct shape s, int b, int t)
{
    const int start = s.starts ? s.starts[b * s.Tq + t] : 0, end = end_key(s, t);
    return s.window && end - s.window > start ? end - s.window : start;
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

/* One query: key j of [first, end) has probability p[j], and its score changes by slope[j] with the
 * product of q and k. */
struct row {
    double *p, *slope, *dp, sink, lse;
    int first, end;
};

static struct row row_for(struct shape s)
{
    return (struct row){
        ref_wide((size_t)s.Tk), ref_wide((size_t)s.Tk), ref_wide((size_t)s.Tk), 0, 0, 0, 0};
}

static void free_row(struct row *row)
{
    free(row->p), free(row->slope), free(row->dp);
}

static void probabilities(struct row *row, struct shape s, const double *q, const double *k, int b,
                          int t, int h)
{
    const double sink = s.sinks ? s.sinks[h] : -INFINITY, scale = 1 / sqrt(s.D);
    double most = sink, *p = row->p;
    row->first = first_key(s, b, t), row->end = end_key(s, t);
    for (int j = row->first; j < row->end; j++) {
        const double score = scale * dot(q + q_at(s, b, t, h), k + k_at(s, b, j, h), s.D);
        const double bend = s.cap > 0 ? tanh(score / s.cap) : 0;
        p[j] = s.cap > 0 ? s.cap * bend : score;
        row->slope[j] = scale * (1 - bend * bend);
        most = fmax(most, p[j]);
    }
    double sum = row->sink = exp(sink - most);
    for (int j = row->first; j < row->end; j++)
        sum += p[j] = exp(p[j] - most);
    for (int j = row->first; j < row->end; j++)
        p[j] /= sum;
    row->sink /= sum;
    row->lse = most + log(sum);
}

static void forward_ref(struct shape s, const double *q, const double *k, const double *v,
                        double *o, double *lse)
{
    struct row row = row_for(s);
    for (int b = 0; b < s.B; b++)
        for (int h = 0; h < s.NH; h++)
            for (int t = 0; t < s.Tq; t++) {
                probabilities(&row, s, q, k, b, t, h);
                lse[(b * s.NH + h) * s.Tq + t] = row.lse;
                for (int i = 0; i < s.D; i++) {
                    double sum = 0;
                    for (int j = row.first; j < row.end; j++)
                        sum += row.p[j] * factor(s, b, h, t, j) * v[k_at(s, b, j, h) + i];
                    o[q_at(s, b, t, h) + i] = sum;
                }
            }
    free_row(&row);
}

/* grad: dq, dk, dv, dsinks */
static void backward_ref(struct shape s, const double *q, const double *k, const double *v,
                         const double *d_o, double *const *grad)
{
    struct row row = row_for(s);
    for (int b = 0; b < s.B; b++)
        for (int h = 0; h < s.NH; h++)
            for (int t = 0; t < s.Tq; t++) {
                const size_t at = q_at(s, b, t, h);
                double mean = 0;
                probabilities(&row, s, q, k, b, t, h);
                for (int j = row.first; j < row.end; j++) {
                    row.dp[j] = factor(s, b, h, t, j) * dot(d_o + at, v + k_at(s, b, j, h), s.D);
                    mean += row.p[j] * row.dp[j];
                }
                grad[3][h] -= row.sink * mean;
                for (int j = row.first; j < row.end; j++)
                    for (int i = 0; i < s.D; i++) {
                        const size_t key = k_at(s, b, j, h) + i;
                        double ds = row.p[j] * (row.dp[j] - mean) * row.slope[j];
                        grad[2][key] += row.p[j] * factor(s, b, h, t, j) * d_o[at + i];
                        grad[1][key] += ds * q[at + i];
                        grad[0][at + i] += ds * k[key];
                    }
            }
    free_row(&row);
}

static const struct nn_drop no_drop;

/* " window 5, cap 2, ..." in words. */
static const char *traits(struct shape s)
{
    static char text[120];
    char window[32] = "", cap[32] = "";
    if (s.window)
        snprintf(window, sizeof window, ", window %d", s.window);
    if (s.cap > 0)
        snprintf(cap, sizeof cap, ", cap %g", (double)s.cap);
    snprintf(text, sizeof text, "%s%s%s%s%s", s.starts ? ", documents" : "",
             s.factors ? ", dropout" : "", window, cap, s.sinks ? ", sinks" : "");
    return text;
}

#endif
