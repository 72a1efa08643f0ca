/* SPDX-License-Identifier: Apache-2.0 */
/* formula.h: what one element, or one scalar, becomes: the same text on the CPU and on GPUs. */
#ifndef FSDP_FORMULA_H
#define FSDP_FORMULA_H

#include <float.h>
#include <math.h>
#include <string.h>

#include "fsdp/device.h"
#include "philox.h"

/* ---- AdamW: Loshchilov and Hutter, arXiv 1711.05101 ------------------------------------------ */

struct adamw {
    float scale, keep, add, eps, b1, b2, nb1, nb2, step, root;
};

/* The factors of a step that is not skipped. */
static inline FSDP_ON_DEVICE struct adamw adamw_of(const struct fsdp_adamw_args *a)
{
    const double t = (double)(a->nsteps - (a->loss_scale ? a->loss_scale->nskipped : 0));
    const double bias1 = 1 - pow(a->beta1, t), bias2 = 1 - pow(a->beta2, t);
    struct adamw w;

    w.scale = a->grad_scale ? *a->grad_scale : 1.0f;
    w.keep = a->decay_in_grad ? 1 : (float)(1 - a->lr * a->weight_decay);
    w.add = a->decay_in_grad ? (float)a->weight_decay : 0;
    w.eps = (float)a->eps;
    w.b1 = (float)a->beta1;
    w.b2 = (float)a->beta2;
    w.nb1 = (float)(1 - a->beta1);
    w.nb2 = (float)(1 - a->beta2);
    w.step = (float)(a->lr / bias1);
    w.root = (float)(1 / sqrt(bias2));
    return w;
}

static inline FSDP_ON_DEVICE void adamw_element(const struct adamw *w, float *p, float *m, float *v,
                                                float g)
{
    float gi = g * w->scale + w->add * *p;
    float mi = w->b1 * *m + w->nb1 * gi;
    float vi = w->b2 * *v + w->nb2 * gi * gi;
    *m = mi;
    *v = vi;
    *p = *p * w->keep - w->step * mi / (sqrtf(vi) * w->root + w->eps);
}

/* ---- Adafactor: Shazeer and Stern, arXiv 1804.04235 ------------------------------------------ */

enum { ADAFACTOR_SUM_P, ADAFACTOR_SUM_ROWS, ADAFACTOR_SUM_COLUMNS = FSDP_ADAFACTOR_NSUMS };

struct adafactor {
    float scale, weight; /* of gradients; of this step in the averages */
    double t, nelem;
};

static inline FSDP_ON_DEVICE struct adafactor adafactor_of(const struct fsdp_adafactor_args *a)
{
    struct adafactor f;

    f.t = (double)(a->nsteps - (a->loss_scale ? a->loss_scale->nskipped : 0));
    f.scale = a->grad_scale ? *a->grad_scale : 1.0f;
    f.weight = (float)pow(f.t, a->beta2_decay);
    f.nelem = (double)a->nrows * (double)a->ncols * (double)a->nmatrices;
    return f;
}

/* What an update is multiplied with, once update_sum is known. */
static inline FSDP_ON_DEVICE double adafactor_rate(const struct fsdp_adafactor_args *a,
                                                   const struct adafactor *f)
{
    const double size = sqrt(a->sums[ADAFACTOR_SUM_P] / f->nelem), rate = 1 / sqrt(f->t);
    const double alpha = (size > a->eps2 ? size : a->eps2) * (a->lr < rate ? a->lr : rate);
    const double rms = sqrt(*a->update_sum / f->nelem);
    return alpha / (rms > 1 ? rms : 1);
}

static inline FSDP_ON_DEVICE float adafactor_mix(float average, double x, float weight)
{
    return average + weight * ((float)x - average);
}

static inline FSDP_ON_DEVICE float adafactor_root(float estimate)
{
    const float least = FLT_EPSILON * FLT_EPSILON;
    return sqrtf(estimate > least ? estimate : least);
}

/* Of the rows' averages, whose sum is given. */
static inline FSDP_ON_DEVICE float adafactor_mean(double sum, uint64_t nrows)
{
    const float mean = (float)(sum / (double)nrows);
    return mean > FLT_EPSILON ? mean : FLT_EPSILON;
}

static inline FSDP_ON_DEVICE float adafactor_step(const struct fsdp_adafactor_args *a, double rate,
                                                  float p, float u)
{
    return p * (float)(1 - a->lr * a->weight_decay) - (float)rate * u;
}

/* ---- Muon: what its elements become ---------------------------------------------------------- */

/* An element of the matrix that is made orthogonal. */
static inline FSDP_ON_DEVICE float muon_element(const struct fsdp_muon_args *a, float *momentum,
                                                float g)
{
    const float b = *momentum + (1 - a->momentum) * (g - *momentum);
    *momentum = b;
    return a->nesterov ? g + a->momentum * (b - g) : b;
}

static inline FSDP_ON_DEVICE float muon_scale(double sum_of_squares)
{
    const float norm = (float)sqrt(sum_of_squares), least = 1e-7f;
    return norm > least ? norm : least;
}

/* ---- AdamW with moments in 8 bits: Dettmers et al., arXiv 2110.02861 ------------------------- */

/* The factors of the arithmetic between decoding and encoding. */
static inline FSDP_ON_DEVICE struct adamw adamw8bit_of(const struct fsdp_adamw8bit_args *a)
{
    struct fsdp_adamw_args args;

    memset(&args, 0, sizeof args);
    args.grad_scale = a->grad_scale;
    args.loss_scale = a->loss_scale;
    args.nsteps = a->nsteps;
    args.lr = a->lr;
    args.beta1 = a->beta1;
    args.beta2 = a->beta2;
    args.eps = a->eps;
    args.weight_decay = a->weight_decay;
    return adamw_of(&args);
}

/* What a block is divided by: 1 where it is all zero. */
static inline FSDP_ON_DEVICE float adamw8bit_scale(float absmax)
{
    return absmax == 0 ? 1.0f : absmax;
}

/* ---- BF16 with stochastic rounding, masters in two halves ------------------------------------ */

/* x rounded to one of its two BF16 neighbours by 16 random bits; a NaN stays one. */
static inline FSDP_ON_DEVICE uint16_t bf16_by_chance(float x, uint32_t random)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t rounded = (bits + (random & 0xffff)) >> 16, quiet = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

static inline FSDP_ON_DEVICE float bf16_value(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline FSDP_ON_DEVICE void master_split(uint16_t *param, uint16_t *rest, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u; /* rounding up must not make a number */
    *param = (uint16_t)(nan ? bits >> 16 | 0x40 : (bits + 0x8000) >> 16);
    *rest = (uint16_t)(nan ? 0 : bits);
}

static inline FSDP_ON_DEVICE float master_join(uint16_t param, uint16_t rest)
{
    const uint32_t bits = (((uint32_t)param - (rest >> 15)) << 16) | rest;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- SGD ------------------------------------------------------------------------------------- */

struct sgd {
    float scale, decay, lr, momentum, take, keep;
    bool nesterov;
};

static inline FSDP_ON_DEVICE struct sgd sgd_of(const struct fsdp_sgd_args *a)
{
    /* In the first step the buffer becomes the gradient itself, dampened or not. */
    const bool first = a->nsteps - (a->loss_scale ? a->loss_scale->nskipped : 0) == 1;
    struct sgd s;

    s.scale = a->grad_scale ? *a->grad_scale : 1.0f;
    s.decay = (float)a->weight_decay;
    s.lr = (float)a->lr;
    s.momentum = (float)a->momentum;
    s.take = first ? 1 : (float)(1 - a->dampening);
    s.keep = first ? 0 : s.momentum;
    s.nesterov = a->nesterov;
    return s;
}

static inline FSDP_ON_DEVICE void sgd_plain(const struct sgd *s, float *p, float g)
{
    *p -= s->lr * (g * s->scale + s->decay * *p);
}

static inline FSDP_ON_DEVICE void sgd_momentum(const struct sgd *s, float *p, float *b, float g)
{
    float gi = g * s->scale + s->decay * *p;
    float bi = s->keep * *b + s->take * gi;
    *b = bi;
    *p -= s->lr * (s->nesterov ? gi + s->momentum * bi : bi);
}

/* ---- Lion: Chen et al., arXiv 2302.06675 ----------------------------------------------------- */

struct lion {
    float scale, keep, lr, b1, nb1, b2, nb2;
};

static inline FSDP_ON_DEVICE struct lion lion_of(const struct fsdp_lion_args *a)
{
    struct lion l;

    l.scale = a->grad_scale ? *a->grad_scale : 1.0f;
    l.keep = (float)(1 - a->lr * a->weight_decay);
    l.lr = (float)a->lr;
    l.b1 = (float)a->beta1;
    l.nb1 = (float)(1 - a->beta1);
    l.b2 = (float)a->beta2;
    l.nb2 = (float)(1 - a->beta2);
    return l;
}

static inline FSDP_ON_DEVICE void lion_element(const struct lion *l, float *p, float *m, float g)
{
    float gi = g * l->scale;
    float u = l->b1 * *m + l->nb1 * gi;
    float sign = u > 0 ? 1.0f : u < 0 ? -1.0f : u; /* a NaN stays one */
    *p = *p * l->keep - l->lr * sign;
    *m = l->b2 * *m + l->nb2 * gi;
}

/* ---- schedule-free AdamW: Defazio et al., arXiv 2405.15682 ----------------------------------- */

struct schedulefree {
    float scale, eps, decay, lr, b1, nb1, b2, nb2, inverse, weight;
};

static inline FSDP_ON_DEVICE struct schedulefree
schedulefree_of(const struct fsdp_schedulefree_args *a)
{
    struct schedulefree s;

    s.scale = a->grad_scale ? *a->grad_scale : 1.0f;
    s.eps = (float)a->eps;
    s.decay = (float)a->weight_decay;
    s.lr = (float)a->lr;
    s.b1 = (float)a->beta1;
    s.nb1 = (float)(1 - a->beta1);
    s.b2 = (float)a->beta2;
    s.nb2 = (float)(1 - a->beta2);
    s.inverse = (float)(1 / (1 - pow(a->beta2, (double)a->nsteps)));
    s.weight = (float)a->weight;
    return s;
}

static inline FSDP_ON_DEVICE float schedulefree_y(float b1, float nb1, float x, float z)
{
    return b1 * x + nb1 * z;
}

/* The new y. */
static inline FSDP_ON_DEVICE float schedulefree_element(const struct schedulefree *s, float *x,
                                                        float *z, float *v, float g)
{
    float gi = g * s->scale, y = schedulefree_y(s->b1, s->nb1, *x, *z);
    float vi = s->b2 * *v + s->nb2 * gi * gi;
    float d = gi / (sqrtf(vi * s->inverse) + s->eps) + s->decay * y;
    float zi = *z - s->lr * d;
    *v = vi;
    *z = zi;
    *x += s->weight * (zi - *x);
    return schedulefree_y(s->b1, s->nb1, *x, zi);
}

/* ---- averages of weights: torch.lerp, which goes by the nearer end --------------------------- */

static inline FSDP_ON_DEVICE float ema_near(float average, float x, float weight)
{
    return average + weight * (x - average);
}

static inline FSDP_ON_DEVICE float ema_far(float average, float x, float weight)
{
    return x - (1 - weight) * (x - average);
}

/* ---- norms, clipping, the loss scale --------------------------------------------------------- */

/* The greater of two that are not negative: takes a NaN, and keeps it. */
static inline FSDP_ON_DEVICE double greater(double most, double x)
{
    return isnan(most) || x <= most ? most : x;
}

static inline FSDP_ON_DEVICE void clip_of(float *coef, float *norm, const double *partial,
                                          size_t npartials, enum fsdp_norm type, float max_norm,
                                          const struct fsdp_loss_scale *scale)
{
    double total = 0;
    for (size_t i = 0; i < npartials; i++)
        total = type == FSDP_NORM_2 ? total + partial[i] : greater(total, partial[i]);
    double inverse = scale ? (double)scale->inverse : 1;
    double root = (type == FSDP_NORM_2 ? sqrt(total) : total) * inverse;
    *norm = (float)root;
    *coef = (float)inverse;
    /* An infinite or NaN norm gives a zero or NaN factor, as in PyTorch: it must not pass for 1. */
    if (max_norm > 0) {
        double c = (double)max_norm / (root + 1e-6);
        *coef = (float)(c >= 1 ? inverse : c * inverse);
    }
}

static inline FSDP_ON_DEVICE void loss_scale_next(struct fsdp_loss_scale *s, float norm,
                                                  struct fsdp_loss_scale_rule rule)
{
    s->skip = !isfinite(norm);
    s->nskipped += s->skip;
    s->good_steps = s->skip ? 0 : s->good_steps + 1;
    if (s->skip) {
        s->scale *= rule.backoff;
    } else if (s->good_steps == rule.interval) {
        s->good_steps = 0;
        if (isfinite(s->scale * s->split * rule.growth))
            s->scale *= rule.growth;
    }
    s->factor = s->scale * s->split;
    s->inverse = 1 / s->factor;
}

/* ---- 8-bit floats with one scale for many elements ------------------------------------------- */

/* The scale of F8_E4M3: the greatest power of two, up to 2^110, with which amax, that of floats, is
 * at most 448 = 1.75 * 2^8; NaN (and so all elements) for what is not finite. A product in 8 bits
 * has scales by the same rule (docs/fp8.md). */
static inline FSDP_ON_DEVICE float e4m3_scale(double amax)
{
    const float most = (float)amax;
    uint32_t u, exponent;
    float scale;

    memcpy(&u, &most, sizeof u);
    if (u >= 0x7f800000u)
        return NAN;
    exponent = 2 * 127 + 8 - (u >> 23) - ((u & 0x7fffffu) > 0x600000u);
    u = (exponent > 127 + 110 ? 127 + 110 : exponent) << 23;
    memcpy(&scale, &u, sizeof scale);
    return scale;
}

/* fsdp_f32_to_f8_e4m3, clamped to +-448, without branches. */
static inline FSDP_ON_DEVICE uint8_t e4m3_encode(float x)
{
    float magnitude = fabsf(x), shifted;
    uint32_t u, m, small;
    magnitude = magnitude > 448 ? 448 : magnitude; /* NaN stays */
    shifted = magnitude + 0x1p14f;
    memcpy(&u, &x, sizeof u);
    memcpy(&m, &magnitude, sizeof m);
    memcpy(&small, &shifted, sizeof small);
    uint32_t normal = (m + 0x7ffff + (m >> 20 & 1) - 0x3c000000u) >> 20;
    uint32_t code = m < 0x3c800000u ? small - 0x46800000u : normal;
    code = m > 0x7f800000u ? 0x7f : code;
    return (uint8_t)((u >> 24 & 0x80) | code);
}

static inline FSDP_ON_DEVICE float e4m3_decode(uint8_t code)
{
    /* Exponent and fraction lie in an fp32 as they would there, for another bias. */
    const uint32_t bits = (uint32_t)(code & 0x7f) << 20;
    float magnitude;
    memcpy(&magnitude, &bits, sizeof bits);
    magnitude = (code & 0x7f) == 0x7f ? NAN : magnitude * 0x1p120f;
    return code & 0x80 ? -magnitude : magnitude;
}

/* ---- initial values -------------------------------------------------------------------------- */

/* Element i of a tensor comes from block i / 4 of its stream, so a shard that begins anywhere
 * computes the same values as the whole. Box-Muller takes the words of a block in pairs. */
static inline FSDP_ON_DEVICE void init_block(float out[4], struct fsdp_init init, uint64_t seed,
                                             uint64_t stream, uint64_t block)
{
    const double pi = 3.14159265358979323846;
    uint32_t word[4];
    philox4x32(word, seed, stream, block);
    if (init.kind == FSDP_INIT_UNIFORM) {
        for (int k = 0; k < 4; k++)
            out[k] = init.scale * ((float)(word[k] >> 8) * 0x1p-23f - 1.0f);
        return;
    }
    for (int k = 0; k < 4; k += 2) {
        double u = ((double)word[k] + 0.5) * 0x1p-32, w = (double)word[k + 1] * 0x1p-32;
        double radius = sqrt(-2 * log(u)), angle = 2 * pi * w;
        out[k] = (float)((double)init.scale * radius * cos(angle));
        out[k + 1] = (float)((double)init.scale * radius * sin(angle));
    }
}

#endif
