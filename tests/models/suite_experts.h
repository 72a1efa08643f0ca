/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of mixtures of experts against plain loops in fp64, in all types: inputs are
 * rounded to the type first, so that a result is off by its own rounding alone. */
#ifndef SUITE_EXPERTS_H
#define SUITE_EXPERTS_H

#include "suite.h"

/* ---- values of a type ------------------------------------------------------------------------ */

struct typed {
    void *at; /* of the type; exactly nelem of them */
    float *wide;
    size_t nelem;
    enum fsdp_dtype dtype;
};

static struct typed typed_of(enum fsdp_dtype dtype, size_t nelem)
{
    struct typed x = {malloc(nelem * fsdp_dtype_nbytes(dtype)), ref_values(nelem, 1), nelem, dtype};
    fsdp_cpu_convert(x.at, dtype, x.wide, FSDP_F32, nelem);
    fsdp_cpu_convert(x.wide, FSDP_F32, x.at, dtype, nelem);
    return x;
}

/* An output: NaN where beta is 0. */
static struct typed typed_output(enum fsdp_dtype dtype, size_t nelem, float beta)
{
    struct typed x = typed_of(dtype, nelem);
    for (size_t i = 0; i < nelem && beta == 0.0f; i++)
        x.wide[i] = NAN;
    fsdp_cpu_convert(x.at, dtype, x.wide, FSDP_F32, nelem);
    return x;
}

static double typed_error(struct typed x, const double *want)
{
    fsdp_cpu_convert(x.wide, FSDP_F32, x.at, x.dtype, x.nelem);
    return ref_error(x.wide, want, x.nelem);
}

static void typed_free(struct typed x)
{
    free(x.at), free(x.wide);
}

static double unit_of(enum fsdp_dtype dtype)
{
    return dtype == FSDP_F32 ? 1e-6 : dtype == FSDP_BF16 ? 3e-3 : 4e-4;
}

/* ---- routing --------------------------------------------------------------------------------- */

struct route_case {
    int rows, experts, chosen, counted;
    bool normalized;
    enum fsdp_dtype dtype;
    float z_loss;
};

/* A row's probabilities, in fp64, and its experts. Gives log sum exp. */
static double route_ref(const struct route_case *c, const float *logits, double *p, int32_t *expert)
{
    double sum = 0;
    for (int e = 0; e < c->experts; e++)
        sum += p[e] = exp((double)logits[e]);
    for (int e = 0; e < c->experts; e++)
        p[e] /= sum;
    for (int k = 0; k < c->chosen; k++) {
        int best = -1;
        for (int e = 0; e < c->experts; e++) {
            bool taken = false;
            for (int j = 0; j < k; j++)
                taken |= expert[j] == e;
            if (!taken && (best < 0 || logits[e] > logits[best]))
                best = e;
        }
        expert[k] = best;
    }
    return log(sum);
}

/* The gradients of a row's logits. */
static void route_backward_ref(const struct route_case *c, const double *p, const int32_t *expert,
                               const float *dweight, const float *balance, double *dlogits)
{
    double *dp = ref_wide((size_t)c->experts), s = 0;
    for (int k = 0; k < c->chosen; k++)
        s += p[expert[k]];
    for (int e = 0; e < c->experts && balance; e++)
        dp[e] = balance[e];
    for (int k = 0; k < c->chosen; k++)
        for (int j = 0; j < c->chosen; j++)
            dp[expert[j]] +=
                dweight[k] * (!c->normalized ? j == k : (j == k) / s - p[expert[k]] / s / s);
    for (int e = 0; e < c->experts; e++)
        for (int f = 0; f < c->experts; f++)
            dlogits[f] += dp[e] * p[e] * ((e == f) - p[f]);
    free(dp);
}

static void test_route(struct route_case c)
{
    const size_t R = (size_t)c.rows, E = (size_t)c.experts, K = (size_t)c.chosen;
    struct typed logits = typed_of(c.dtype, R * E), dlogits = typed_output(c.dtype, R * E, 0);
    float *probs = ref_output(R * E, 0), *weight = ref_output(R * K, 0);
    float *dweight = ref_values(R * K, 1), *balance = ref_values(E, 1);
    int32_t *expert = malloc(R * K * sizeof *expert), *want = malloc(R * K * sizeof *want);
    double *p = ref_wide(R * E), *w = ref_wide(R * K), *d = ref_wide(R * E), *l = ref_wide(R);
    float *lse = ref_output(R, 0), loss_scale = 4;

    for (size_t i = 0; i < R * E; i++) { /* all different, but for two that are the same */
        const size_t e = i % E;
        logits.wide[i] = (float)((e * 37 + i / E * 11) % E) / 16 - 1;
        if (e == E - 1 && E > 3)
            logits.wide[i] = logits.wide[i - 1];
    }
    fsdp_cpu_convert(logits.at, c.dtype, logits.wide, FSDP_F32, R * E);
    fsdp_cpu_convert(logits.wide, FSDP_F32, logits.at, c.dtype, R * E);
    for (size_t r = 0; r < R; r++) {
        double sum = 0;
        l[r] = route_ref(&c, logits.wide + r * E, p + r * E, want + r * K);
        for (size_t k = 0; k < K; k++)
            sum += w[r * K + k] = p[r * E + (size_t)want[r * K + k]];
        for (size_t k = 0; k < K && c.normalized; k++)
            w[r * K + k] /= sum;
        route_backward_ref(&c, p + r * E, want + r * K, dweight + r * K,
                           r < (size_t)c.counted ? balance : NULL, d + r * E);
        for (size_t e = 0; e < E && r < (size_t)c.counted; e++)
            d[r * E + e] += 2 * loss_scale * c.z_loss * l[r] * p[r * E + e];
    }
    const struct nn_route a = {.logits = logits.at,
                               .probs = probs,
                               .expert = expert,
                               .weight = weight,
                               .lse = lse,
                               .rows = c.rows,
                               .experts = c.experts,
                               .chosen = c.chosen,
                               .normalized = c.normalized,
                               .dtype = c.dtype};
    const struct nn_route_backward b = {.dlogits = dlogits.at,
                                        .dweight = dweight,
                                        .balance = c.counted ? balance : NULL,
                                        .probs = probs,
                                        .weight = weight,
                                        .lse = c.z_loss > 0 ? lse : NULL,
                                        .loss_scale = &loss_scale,
                                        .z_loss = c.z_loss,
                                        .expert = expert,
                                        .rows = c.rows,
                                        .experts = c.experts,
                                        .chosen = c.chosen,
                                        .counted = c.counted,
                                        .normalized = c.normalized,
                                        .dtype = c.dtype};
    int rc = nn->route_forward(ref_lane(), &a, &err);
    rc |= nn->route_backward(ref_lane(), &b, &err);
    const bool same = !memcmp(expert, want, R * K * sizeof *want);
    double e[4] = {ref_error(probs, p, R * E), ref_error(weight, w, R * K), typed_error(dlogits, d),
                   ref_error(lse, l, R)};
    ok(!rc && same && e[0] < 1e-6 && e[1] < 1e-6 && e[2] < 3 * unit_of(c.dtype) && e[3] < 1e-6,
       "routing %d rows to %d of %d experts%s, %s, z-loss %g: %.1e %.1e %.1e, gradient %.1e",
       c.rows, c.chosen, c.experts, c.normalized ? ", normalized" : "", fsdp_dtype_name(c.dtype),
       (double)c.z_loss, e[0], e[1], e[3], e[2]);
    typed_free(logits), typed_free(dlogits);
    free(probs), free(weight), free(dweight), free(balance), free(expert), free(want);
    free(p), free(w), free(d), free(l), free(lse);
}

/* Any choices: expert s of the rows' K different ones. One expert is never chosen. */
static int32_t *choices(int rows, int experts, int chosen)
{
    int32_t *expert = malloc((size_t)rows * chosen * sizeof *expert);
    for (int i = 0; i < rows * chosen; i++) {
        const int r = i / chosen, k = i % chosen;
        expert[i] = (r * r + 3 * r + k) % (experts - 1);
        expert[i] += expert[i] >= experts / 2;
    }
    return expert;
}

static void test_load(int layers, int experts, int chosen, int rows)
{
    const size_t E = (size_t)experts, nslots = (size_t)rows * chosen;
    double *counts = ref_wide(layers * E), *sums = ref_wide(E), squares = 2, z_loss = 5;
    float *balance = ref_output(E, 0), *probs = ref_values(rows * E, 1), loss_scale = 4;
    float *lse = ref_values((size_t)rows, 1);
    double *want = ref_wide(layers * E), *total = ref_wide(layers * E), loss = 3, want_loss = 0;
    double *want_sums = ref_wide(E), *want_balance = ref_wide(E), n = 0, want_squares = 2;
    int32_t *expert = choices(rows, experts, chosen);
    const double many = 1 << 24; /* to which fp32 cannot add 1 */
    int rc = 0;

    for (size_t i = 0; i < layers * E; i++)
        counts[i] = want[i] = many;
    for (size_t e = 0; e < E; e++)
        sums[e] = want_sums[e] = (double)e / 8;
    for (int l = 0; l < layers; l++) {
        const struct nn_expert_load a = {.counts = counts + l * E,
                                         .sums = sums,
                                         .squares = &squares,
                                         .expert = expert,
                                         .probs = probs,
                                         .lse = lse,
                                         .rows = rows,
                                         .experts = experts,
                                         .chosen = chosen};
        rc |= nn->expert_load(ref_lane(), &a, &err);
        for (size_t s = 0; s < nslots; s++)
            want[l * E + (size_t)expert[s]]++;
        for (size_t i = 0; i < rows * E; i++)
            want_sums[i % E] += (double)probs[i];
        for (int r = 0; r < rows; r++)
            want_squares += (double)lse[r] * lse[r];
    }
    n = (double)layers * (rows + (double)E * many / chosen);
    for (size_t e = 0; e < E; e++) {
        double count = 0;
        for (int l = 0; l < layers; l++)
            count += want[l * E + e];
        want_loss += 0.5 * (double)E * count / n * want_sums[e] / n;
        want_balance[e] = 0.5 * (double)E * count / n / n * 0.25 * 4;
    }
    const struct nn_balance b = {.loss = &loss,
                                 .z_loss = &z_loss,
                                 .total = total,
                                 .balance = balance,
                                 .counts = counts,
                                 .sums = sums,
                                 .squares = &squares,
                                 .loss_scale = &loss_scale,
                                 .layers = layers,
                                 .experts = experts,
                                 .chosen = chosen,
                                 .scale = 0.5f,
                                 .coef = 0.25f,
                                 .z_scale = 0.125};
    rc |= nn->balance(ref_lane(), &b, &err);
    double e[3] = {ref_error(balance, want_balance, E), fabs(squares - want_squares),
                   fabs(z_loss - 5 - want_squares / 8)};
    for (size_t i = 0; i < E; i++)
        e[1] = fmax(e[1], fabs(sums[i] - want_sums[i]));
    const size_t nbytes = layers * E * sizeof *want;
    ok(!rc && e[0] < 1e-6 && e[1] < 1e-9 && e[2] < 1e-9 && !memcmp(counts, want, nbytes) &&
           !memcmp(total, want, nbytes) && fabs(loss - 3 - want_loss) < 1e-9 * fabs(loss),
       "load of %d experts in %d layers: %.1e %.1e, loss %.3g, z-loss %.6f", experts, layers, e[0],
       e[1], loss - 3, z_loss - 5);
    free(counts), free(sums), free(balance), free(probs), free(want), free(total), free(lse);
    free(want_sums), free(want_balance), free(expert);
}

/* ---- rows and products ----------------------------------------------------------------------- */

struct expert_order {
    int32_t *expert, *first, *slot, *place;
};

static void order_free(struct expert_order o)
{
    free(o.expert), free(o.first), free(o.slot), free(o.place);
}

/* Checked: each expert's places have its slots in rising order, and places are the inverse. */
static struct expert_order test_order(int rows, int experts, int chosen)
{
    const size_t n = (size_t)rows * chosen;
    struct expert_order o = {choices(rows, experts, chosen),
                             malloc(((size_t)experts + 1) * sizeof *o.first),
                             malloc(n * sizeof *o.slot), malloc(n * sizeof *o.place)};
    int32_t *host = calloc((size_t)experts + 1, sizeof *host);
    const struct nn_expert_order a = {.first = o.first,
                                      .slot = o.slot,
                                      .place = o.place,
                                      .first_host = host,
                                      .expert = o.expert,
                                      .rows = rows,
                                      .experts = experts,
                                      .chosen = chosen};
    bool good = !nn->expert_order(ref_lane(), &a, &err) && o.first[0] == 0 &&
                o.first[experts] == (int32_t)n;

    for (int e = 0; e < experts && good; e++)
        for (int32_t at = o.first[e]; at < o.first[e + 1] && good; at++) {
            const int32_t slot = o.slot[at];
            good = slot >= 0 && slot < (int32_t)n && o.expert[slot] == e && o.place[slot] == at &&
                   (at == o.first[e] || o.slot[at - 1] < slot);
        }
    if (!strcmp(nn->name, "cuda"))
        good &= !memcmp(host, o.first, ((size_t)experts + 1) * sizeof *host);
    ok(good, "%d slots in the order of %d experts", rows * chosen, experts);
    free(host);
    return o;
}

static void test_rows(struct expert_order o, int rows, int chosen, int dim, enum fsdp_dtype dtype,
                      float beta)
{
    const size_t K = (size_t)chosen, C = (size_t)dim, n = (size_t)rows * K;
    struct typed x = typed_of(dtype, rows * C), there = typed_output(dtype, n * C, 0);
    struct typed y = typed_of(dtype, n * C), dy = typed_of(dtype, n * C);
    struct typed back = typed_output(dtype, rows * C, beta);
    float *weight = ref_values(n, 1), *dweight = ref_output(n, 0);
    double *w_there = ref_wide(n * C), *w_back = ref_wide(rows * C), *w_dw = ref_wide(n);
    double *w_dy = ref_wide(n * C);

    for (size_t i = 0; i < rows * C && beta != 0.0f; i++)
        w_back[i] = beta * back.wide[i];
    for (size_t i = 0; i < n * C; i++) {
        const size_t slot = (size_t)o.slot[i / C], row = slot / K, col = i % C;
        w_there[i] = (double)weight[slot] * x.wide[row * C + col];
        w_back[row * C + col] += (double)weight[slot] * y.wide[i];
        w_dw[slot] += (double)dy.wide[i] * y.wide[i];
        w_dy[i] = (double)weight[slot] * dy.wide[i];
    }
    const struct nn_spread_rows spread = {there.at, x.at, weight, o.slot, rows, chosen, dim, dtype};
    const struct nn_collect_rows collect = {back.at, y.at, weight, o.place, rows,
                                            chosen,  dim,  beta,   dtype};
    const struct nn_weigh_backward weigh = {.dy = dy.at,
                                            .y = y.at,
                                            .dweight = dweight,
                                            .weight = weight,
                                            .slot = o.slot,
                                            .nplaces = (int)n,
                                            .dim = dim,
                                            .dtype = dtype};
    int rc = nn->spread_rows(ref_lane(), &spread, &err);
    rc |= nn->collect_rows(ref_lane(), &collect, &err);
    rc |= nn->weigh_backward(ref_lane(), &weigh, &err);
    const double unit = unit_of(dtype);
    double e[4] = {typed_error(there, w_there), typed_error(back, w_back),
                   ref_error(dweight, w_dw, n), typed_error(dy, w_dy)};
    ok(!rc && e[0] < unit && e[1] < unit && e[2] < 2e-6 && e[3] < unit,
       "%d rows of %d to %d experts each and back, beta %g, %s: %.1e %.1e %.1e %.1e", rows, dim,
       chosen, beta, fsdp_dtype_name(dtype), e[0], e[1], e[2], e[3]);
    typed_free(x), typed_free(there), typed_free(y), typed_free(dy), typed_free(back);
    free(weight), free(dweight), free(w_there), free(w_back), free(w_dw), free(w_dy);
}

/* The gradient of weights where rows went through a map with a bias before they were weighted. */
static void test_weigh_bias(struct expert_order o, int nplaces, int experts, int nout,
                            enum fsdp_dtype dtype, enum fsdp_dtype w_dtype)
{
    enum { DIM = 19 };
    const size_t n = (size_t)nplaces, O = (size_t)nout;
    struct typed y = typed_of(dtype, n * DIM), dy = typed_of(dtype, n * DIM);
    struct typed d_out = typed_of(dtype, n * O), b = typed_of(w_dtype, experts * O);
    float *weight = ref_values(n, 1), *dweight = ref_output(n, 0);
    double *want = ref_wide(n);
    const struct nn_weigh_backward weigh = {.dy = dy.at,
                                            .y = y.at,
                                            .dweight = dweight,
                                            .weight = weight,
                                            .slot = o.slot,
                                            .b = b.at,
                                            .d_out = d_out.at,
                                            .expert = o.expert,
                                            .nplaces = nplaces,
                                            .dim = DIM,
                                            .nout = nout,
                                            .dtype = dtype,
                                            .w_dtype = w_dtype};

    for (size_t i = 0; i < n * DIM; i++)
        want[o.slot[i / DIM]] += (double)dy.wide[i] * y.wide[i];
    for (size_t i = 0; i < n * O; i++) {
        const size_t slot = (size_t)o.slot[i / O];
        want[slot] += (double)d_out.wide[i] * b.wide[(size_t)o.expert[slot] * O + i % O];
    }
    const int rc = nn->weigh_backward(ref_lane(), &weigh, &err);
    const double e = ref_error(dweight, want, n);
    ok(!rc && e < 2e-6, "gradients of weights with biases of %d, %s and %s: %.1e", nout,
       fsdp_dtype_name(dtype), fsdp_dtype_name(w_dtype), e);
    typed_free(y), typed_free(dy), typed_free(d_out), typed_free(b);
    free(weight), free(dweight), free(want);
}

struct grouped_case {
    int rows, experts, chosen, nin, nout;
    size_t gap; /* elements between one expert's matrix and the next */
    float beta;
    bool each; /* a list of matrices, for forward */
    enum fsdp_dtype dtype;
    bool transposed, biased;
};

/* y += x wᵀ + b, dx += dy w, dw += dyᵀ x, db += dy of the place's expert. */
static void grouped_ref(const struct grouped_case *c, const struct expert_order *o,
                        const float *const in[4], double *const out[4])
{
    const float *x = in[0], *w = in[1], *dy = in[2], *b = in[3];
    const size_t I = (size_t)c->nin, O = (size_t)c->nout;
    for (size_t at = 0; at < (size_t)c->rows * c->chosen; at++) {
        const size_t expert = (size_t)o->expert[o->slot[at]], matrix = expert * (I * O + c->gap);
        for (size_t j = 0; j < O; j++) {
            out[0][at * O + j] += c->biased ? b[expert * O + j] : 0;
            out[3][expert * O + j] += dy[at * O + j];
            for (size_t i = 0; i < I; i++) {
                const size_t k = matrix + (c->transposed ? i * O + j : j * I + i);
                out[0][at * O + j] += (double)x[at * I + i] * w[k];
                out[1][at * I + i] += (double)dy[at * O + j] * w[k];
                out[2][k] += (double)dy[at * O + j] * x[at * I + i];
            }
        }
    }
}

static void test_grouped(struct grouped_case c)
{
    const struct expert_order o = test_order(c.rows, c.experts, c.chosen);
    const size_t n = (size_t)c.rows * c.chosen, matrix = (size_t)c.nin * c.nout;
    const size_t nw = (size_t)(c.experts - 1) * (matrix + c.gap) + matrix;
    struct typed x = typed_of(c.dtype, n * c.nin), w = typed_of(c.dtype, nw);
    struct typed dy = typed_of(c.dtype, n * c.nout), b = typed_of(c.dtype, c.experts * c.nout);
    struct typed out[4] = {
        typed_output(c.dtype, n * c.nout, c.beta), typed_output(c.dtype, n * c.nin, c.beta),
        typed_output(FSDP_F32, nw, c.beta), typed_output(FSDP_F32, c.experts * c.nout, c.beta)};
    const float *const in[] = {x.wide, w.wide, dy.wide, b.wide};
    double *want[4], e[4];
    const void **each = malloc((size_t)c.experts * sizeof *each);
    struct nn_grouped a = {.x = x.at,
                           .w = c.each ? NULL : w.at,
                           .dy = dy.at,
                           .b = c.biased ? b.at : NULL,
                           .db = c.biased ? out[3].at : NULL,
                           .transposed = c.transposed,
                           .stride = matrix + c.gap,
                           .first = o.first,
                           .first_host = c.beta == 0.0f ? o.first : NULL,
                           .experts = c.experts,
                           .nplaces = (int)n,
                           .nin = c.nin,
                           .nout = c.nout,
                           .beta = c.beta,
                           .dtype = c.dtype,
                           .w_dtype = c.dtype};
    const struct nn_linear shape = {.rows = (int)n,
                                    .nin = c.nin,
                                    .nout = c.nout,
                                    .dtype = c.dtype,
                                    .y_dtype = c.dtype,
                                    .w_dtype = c.dtype};

    for (int k = 0; k < 4; k++) {
        want[k] = ref_wide(out[k].nelem);
        for (size_t i = 0; i < out[k].nelem && c.beta != 0.0f; i++)
            want[k][i] = c.beta * out[k].wide[i];
    }
    grouped_ref(&c, &o, in, want);
    for (int i = 0; i < c.experts; i++)
        each[i] = nn_at(w.at, c.dtype, (size_t)i * a.stride);
    a.w_each = c.each ? each : NULL;
    a.work = ref_output(nn->linear_work_nelem(&shape) + 1, 0);
    a.out = out[0].at;
    int rc = nn->grouped_forward(ref_lane(), &a, &err);
    a.out = out[1].at;
    rc |= nn->grouped_backward_input(ref_lane(), &a, &err);
    a.out = out[2].at;
    rc |= nn->grouped_backward_weight(ref_lane(), &a, &err);
    for (size_t i = 0; i < nw; i++) /* what lies between matrices must stay */
        if (i % a.stride >= matrix)
            want[2][i] = out[2].wide[i], rc |= c.beta == 0.0f && !isnan(((float *)out[2].at)[i]);
    for (size_t i = 0; i < nw && c.beta == 0.0f; i++)
        if (i % a.stride >= matrix)
            want[2][i] = ((float *)out[2].at)[i] = 0;
    for (int k = 0; k < 4; k++)
        e[k] = k < 3 || c.biased ? typed_error(out[k], want[k]) : 0;
    const double unit = unit_of(c.dtype);
    ok(!rc && e[0] < unit && e[1] < unit && e[2] < 1e-6 * suite_mixed_slack && e[3] < 1e-6,
       "products of %d experts, %d -> %d, beta %g%s%s%s, %s: %.1e %.1e %.1e %.1e", c.experts, c.nin,
       c.nout, c.beta, c.each ? ", listed" : "", c.transposed ? ", transposed" : "",
       c.biased ? ", biased" : "", fsdp_dtype_name(c.dtype), e[0], e[1], e[2], e[3]);
    for (int k = 0; k < 4; k++)
        typed_free(out[k]), free(want[k]);
    typed_free(x), typed_free(w), typed_free(dy), typed_free(b), order_free(o), free(each),
        free(a.work);
}

static void run_experts(void)
{
    static const enum fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    const uint64_t state = ref_state; /* what follows has the same values whatever is tested here */

    for (int t = 0; t < 3; t++) {
        test_route((struct route_case){67, 7, 2, 50, true, types[t], 0.01f});
        test_route((struct route_case){5, 40, 8, 5, false, types[t], 0});
        test_route((struct route_case){3, 3, 3, 0, true, types[t], 0});
        test_route((struct route_case){2, 67, 1, 2, false, types[t], 0.5f});
        const struct expert_order o = test_order(67, 7, 3);
        test_rows(o, 67, 3, 1031, types[t], 0);
        test_rows(o, 67, 3, 5, types[t], 1);
        test_weigh_bias(o, 67 * 3, 7, 1031, types[t], FSDP_F32);
        test_weigh_bias(o, 67 * 3, 7, 5, types[t], types[t]);
        order_free(o);
        test_grouped((struct grouped_case){37, 5, 2, 19, 23, 7, 0, false, types[t], false, false});
        test_grouped((struct grouped_case){37, 5, 2, 24, 16, 0, 1, false, types[t], false, true});
        test_grouped((struct grouped_case){3, 9, 1, 33, 8, 5, 0, true, types[t], false, false});
        test_grouped((struct grouped_case){37, 5, 2, 19, 23, 7, 0, false, types[t], true, true});
        test_grouped((struct grouped_case){37, 5, 2, 24, 16, 0, 1, false, types[t], true, true});
        test_grouped((struct grouped_case){3, 9, 1, 33, 8, 5, 0, false, types[t], true, false});
    }
    test_grouped((struct grouped_case){600, 3, 2, 130, 70, 0, 0, false, FSDP_F32, false, false});
    test_grouped((struct grouped_case){600, 3, 2, 130, 70, 0, 0, false, FSDP_F32, true, true});
    /* So many rows each that a GPU may have another way for them. */
    test_grouped((struct grouped_case){1100, 2, 1, 20, 36, 4, 0, false, FSDP_BF16, false, true});
    test_grouped((struct grouped_case){1100, 2, 1, 20, 36, 4, 1, false, FSDP_F32, true, false});
    order_free(test_order(700, 3, 2));
    test_load(3, 7, 2, 67);
    test_load(1, 300, 3, 5);
    ref_state = state;
}

#endif
