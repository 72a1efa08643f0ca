/* SPDX-License-Identifier: Apache-2.0 */
/* Attention's dropout of probabilities that the device chooses (nn_attention.drop_fast), in bf16.
 * Values that are unit vectors show what it dropped; with that, the reference gives results and
 * gradients. Whether another kernel than the plain one computes is the caller's to know. */
#ifndef SUITE_FAST_DROPOUT_H
#define SUITE_FAST_DROPOUT_H

#include "attention_ref.h"

/* A tensor in bf16, and its values in fp64. */
struct narrow {
    uint16_t *bits;
    double *value;
    size_t nelem;
};

static struct narrow narrow_of(size_t nelem, const float *x)
{
    struct narrow n = {malloc(nelem * 2), ref_wide(nelem), nelem};
    for (size_t i = 0; i < nelem; i++) {
        n.bits[i] = fsdp_f32_to_bf16(x[i]);
        n.value[i] = fsdp_bf16_to_f32(n.bits[i]);
    }
    return n;
}

static struct narrow narrow_random(size_t nelem)
{
    float *x = ref_values(nelem, 1);
    struct narrow n = narrow_of(nelem, x);
    free(x);
    return n;
}

static void narrow_free(struct narrow n)
{
    free(n.bits), free(n.value);
}

static double narrow_error(const struct narrow *n, const double *want)
{
    float *x = malloc(n->nelem * sizeof *x);
    for (size_t i = 0; i < n->nelem; i++)
        x[i] = fsdp_bf16_to_f32(n->bits[i]);
    const double e = ref_error(x, want, n->nelem);
    free(x);
    return e;
}

static struct nn_attention fast_args(struct shape s, struct nn_drop drop)
{
    return (struct nn_attention){.B = s.B,
                                 .Tq = s.Tq,
                                 .Tk = s.Tk,
                                 .NH = s.NH,
                                 .NKV = s.NKV,
                                 .D = s.D,
                                 .scale = (float)(1 / sqrt(s.D)),
                                 .starts = s.starts,
                                 .documents = s.starts ? s.B * s.Tq : 0,
                                 .window = s.window,
                                 .dtype = FSDP_BF16,
                                 .drop = drop,
                                 .drop_fast = true};
}

/* Factors as drop_factors gives them; T = D. */
static float *shown_factors(struct shape s, struct nn_attention a)
{
    const size_t nlse = (size_t)s.B * s.NH * s.Tq;
    float *unit = ref_output(nk(s), 0), *lse = ref_output(nlse, 0);
    float *x = malloc(nlse * drop_row(s) * sizeof *x);
    struct narrow o = narrow_random(nq(s));

    memset(unit, 0, nk(s) * sizeof *unit);
    memset(x, 0, nlse * drop_row(s) * sizeof *x);
    for (int b = 0; b < s.B; b++)
        for (int t = 0; t < s.Tk; t++)
            for (int h = 0; h < s.NH; h++)
                unit[k_at(s, b, t, h) + (size_t)t] = 1;
    struct narrow v = narrow_of(nk(s), unit);
    a.v = v.bits, a.o = o.bits, a.lse = lse;
    if (nn->attention_forward(ref_lane(), &a, &err))
        abort();
    for (int b = 0; b < s.B; b++)
        for (int h = 0; h < s.NH; h++)
            for (int t = 0; t < s.Tq; t++)
                for (int j = 0; j < s.Tk; j++)
                    x[((size_t)(b * s.NH + h) * s.Tq + t) * drop_row(s) + j] =
                        o.bits[q_at(s, b, t, h) + (size_t)j] & 0x7fff ? 1 / (1 - a.drop.p) : 0;
    free(unit), free(lse), narrow_free(v), narrow_free(o);
    return x;
}

/* Of the probabilities that there are, within five standard deviations, and in each head. */
static bool share_is(struct shape s, const float *factors, float p)
{
    for (int bh = 0; bh < s.B * s.NH; bh++) {
        double kept = 0, n = 0;
        for (int t = 0; t < s.Tq; t++)
            for (int j = first_key(s, bh / s.NH, t); j < end_key(s, t); j++, n++)
                kept += factors[((size_t)bh * s.Tq + t) * drop_row(s) + j] > 0;
        if (fabs(kept / n - (1 - (double)p)) > 5 * sqrt(p * (1 - p) / n))
            return false;
    }
    return true;
}

/* s: Tq = Tk = D. bound: of errors in the norm. */
static void test_fast_dropout(struct shape s, float p, double bound)
{
    const struct nn_drop drop = {.p = p, .key = UINT64_C(0x9876543210fedcba), .first_row = 12};
    struct narrow q = narrow_random(nq(s)), k = narrow_random(nk(s)), v = narrow_random(nk(s));
    struct narrow o = narrow_random(nq(s)), d_o = narrow_random(nq(s));
    double *ro = ref_wide(nq(s)), *rlse = ref_wide((size_t)s.B * s.NH * s.Tq);
    double *grad[4] = {ref_wide(nq(s)), ref_wide(nk(s)), ref_wide(nk(s)), ref_wide((size_t)s.NH)};
    float *lse = ref_output((size_t)s.B * s.NH * s.Tq, 0);
    struct nn_attention a = fast_args(s, drop);
    const size_t mask_nbytes = (size_t)s.B * s.NH * s.Tq * drop_row(s) * sizeof(float);
    float *work = ref_output(nn->attention_work_nelem(&a), 0);

    a.q = q.bits, a.k = k.bits, a.v = v.bits, a.o = o.bits, a.d_o = d_o.bits, a.lse = lse;
    a.work = work;
    float *factors = shown_factors(s, a), *again = shown_factors(s, a), *other[2];
    for (int i = 0; i < 2; i++) {
        struct nn_attention b = a;
        b.drop.key += !i;
        b.drop.first_row += (uint64_t)i;
        other[i] = shown_factors(s, b);
    }
    ok(share_is(s, factors, p), "%g are dropped in each head%s", (double)p, traits(s));
    ok(!memcmp(factors, again, mask_nbytes) && memcmp(factors, other[0], mask_nbytes) &&
           memcmp(factors, other[1], mask_nbytes),
       "the same ones again, others with another key and of other rows");
    s.factors = factors;
    forward_ref(s, q.value, k.value, v.value, ro, rlse);
    backward_ref(s, q.value, k.value, v.value, d_o.value, grad);
    int rc = nn->attention_forward(ref_lane(), &a, &err);
    rc |= nn->attention_backward(ref_lane(), &a, &err);
    const double e[4] = {narrow_error(&o, ro), narrow_error(&q, grad[0]), narrow_error(&k, grad[1]),
                         narrow_error(&v, grad[2])};
    ok(!rc && e[0] < bound && e[1] < bound && e[2] < bound && e[3] < bound,
       "attention B%d T%d, %d/%d heads%s: o %.1e dq %.1e dk %.1e dv %.1e", s.B, s.Tq, s.NH, s.NKV,
       traits(s), e[0], e[1], e[2], e[3]);
    narrow_free(q), narrow_free(k), narrow_free(v), narrow_free(o), narrow_free(d_o);
    free(ro), free(rlse), free(lse), free(work), free(factors), free(again);
    free(other[0]), free(other[1]);
    for (int i = 0; i < 4; i++)
        free(grad[i]);
}

#endif
