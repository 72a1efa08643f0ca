/* SPDX-License-Identifier: Apache-2.0 */
/* Activations, gated units, scaled additions and copies against fp64, gradients against its finite
 * differences. */
#ifndef SUITE_ELEMENTWISE_H
#define SUITE_ELEMENTWISE_H

#include "suite.h"

static const char *const act_names[] = {[NN_SILU] = "silu",
                                        [NN_GELU_TANH] = "gelu with tanh",
                                        [NN_GELU] = "gelu",
                                        [NN_RELU] = "relu",
                                        [NN_CLAMPED_SWISH] = "clamped swish"};

static double act_value(enum nn_act act, double x)
{
    return act == NN_SILU        ? x / (1 + exp(-x))
           : act == NN_GELU_TANH ? 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)))
           : act == NN_GELU      ? 0.5 * x * erfc(-x / sqrt(2))
                                 : fmax(x, 0);
}

static double glu_value(enum nn_act act, double gate, double up)
{
    if (act != NN_CLAMPED_SWISH)
        return act_value(act, gate) * up;
    const double g = fmin(gate, 7), u = fmax(fmin(up, 7), -7);
    return (u + 1) * g / (1 + exp(-1.702 * g));
}

/* Kinks have no slope: values are kept away from them. */
static float off_kinks(float x)
{
    static const float kinks[] = {-7, 0, 7};
    for (int i = 0; i < 3; i++)
        if (fabsf(x - kinks[i]) < 1e-3f)
            return kinks[i] + 0.01f;
    return x;
}

/* d glu / d gate and d up, by differences. */
static void glu_slopes(double *by_gate, double *by_up, enum nn_act act, double gate, double up)
{
    const double h = 1e-5;
    *by_gate = (glu_value(act, gate + h, up) - glu_value(act, gate - h, up)) / (2 * h);
    *by_up = (glu_value(act, gate, up + h) - glu_value(act, gate, up - h)) / (2 * h);
}

/* Some values saturate and stay finite; one has a slope. */
static void test_glu(enum nn_act act, size_t n)
{
    float *gate = ref_values(n, 9), *up = ref_values(n, act == NN_CLAMPED_SWISH ? 9 : 2);
    float *y = ref_output(n, 0), *dy = ref_values(n, 1);
    double *ry = ref_wide(n), *rgate = ref_wide(n), *rup = ref_wide(n);

    for (size_t i = 0; i < n; i++) {
        gate[i] = i == 0 ? -200.0f : i == 1 ? 200.0f : i == 2 ? 0.5f : off_kinks(gate[i]);
        up[i] = off_kinks(up[i]);
        ry[i] = glu_value(act, gate[i], up[i]);
        glu_slopes(&rgate[i], &rup[i], act, gate[i], up[i]);
        rgate[i] *= dy[i];
        rup[i] *= dy[i];
    }
    struct nn_glu f = {.y = y, .gate = gate, .up = up, .nelem = n, .act = act}, b = f;
    b.y = dy;
    int rc = nn->glu_forward(ref_lane(), &f, &err) | nn->glu_backward(ref_lane(), &b, &err);
    double e[4] = {ref_error(y, ry, n), ref_error(gate, rgate, n), ref_error(up, rup, n),
                   ref_error(dy, ry, n)};
    ok(!rc && e[0] < 5e-7 && e[1] < 5e-7 && e[2] < 5e-7 && e[3] < 5e-7,
       "glu of %s, %zu: %.1e %.1e %.1e, y again %.1e", act_names[act], n, e[0], e[1], e[2], e[3]);
    free(gate), free(up), free(y), free(dy), free(ry), free(rgate), free(rup);
}

static void test_pointwise(enum nn_act act, size_t n)
{
    float *x = ref_values(n, 6), *y = ref_output(n, 0), *dy = ref_values(n, 1);
    double *ry = ref_wide(n), *rdx = ref_wide(n);
    const double h = 1e-5;

    for (size_t i = 0; i < n; i++) {
        x[i] = i == 0 ? -200.0f : i == 1 ? 200.0f : off_kinks(x[i]);
        ry[i] = act_value(act, x[i]);
        rdx[i] = dy[i] * (act_value(act, x[i] + h) - act_value(act, x[i] - h)) / (2 * h);
    }
    struct nn_pointwise f = {.y = y, .x = x, .nelem = n, .act = act}, b = f;
    b.y = dy;
    int rc =
        nn->pointwise_forward(ref_lane(), &f, &err) | nn->pointwise_backward(ref_lane(), &b, &err);
    double e[3] = {ref_error(y, ry, n), ref_error(x, rdx, n), ref_error(dy, ry, n)};
    ok(!rc && e[0] < 5e-7 && e[1] < 5e-7 && e[2] < 5e-7, "%s of %zu: %.1e %.1e, y again %.1e",
       act_names[act], n, e[0], e[1], e[2]);
    free(x), free(y), free(dy), free(ry), free(rdx);
}

/* in_place: out is x. */
static void test_scale_add(size_t n, float alpha, float beta, bool in_place)
{
    float *x = ref_values(n, 1), *out = in_place ? x : ref_output(n, beta);
    double *want = ref_wide(n);

    for (size_t i = 0; i < n; i++)
        want[i] = (double)alpha * x[i] + (beta == 0.0f ? 0 : (double)beta * out[i]);
    struct nn_scale_add a = {.out = out, .x = x, .nelem = n, .alpha = alpha, .beta = beta};
    int rc = nn->scale_add(ref_lane(), &a, &err);
    ok(!rc && ref_error(out, want, n) < 1e-7, "scale_add of %zu, %g and %g%s: %.1e", n, alpha, beta,
       in_place ? ", in place" : "", ref_error(out, want, n));
    if (!in_place)
        free(out);
    free(x), free(want);
}

/* What lies between blocks must stay. */
static void test_copy_blocks(const struct nn_copy_blocks *shape)
{
    struct nn_copy_blocks a = *shape;
    const size_t last = (size_t)a.rows - 1, block = (size_t)a.nblocks - 1;
    const size_t nx = last * a.x_row + block * a.x_block + (size_t)a.width;
    const size_t nout = last * a.out_row + block * a.out_block + (size_t)a.width;
    float *x = ref_values(nx, 1), *out = ref_values(nout, 1), *want = ref_copy(out, nout);

    for (size_t r = 0; r <= last; r++)
        for (size_t j = 0; j <= block; j++)
            memcpy(want + r * a.out_row + j * a.out_block, x + r * a.x_row + j * a.x_block,
                   (size_t)a.width * sizeof *x);
    a.x = x, a.out = out;
    int rc = nn->copy_blocks(ref_lane(), &a, &err);
    ok(!rc && !memcmp(out, want, nout * sizeof *out), "copy of %d rows of %d blocks of %d", a.rows,
       a.nblocks, a.width);
    free(x), free(out), free(want);
}

static void test_copies(void)
{
    static const struct nn_copy_blocks shapes[] = {
        {.rows = 1, .nblocks = 1, .width = 1},
        /* q of q, k and v in one, and back */
        {.rows = 67, .nblocks = 1, .width = 24, .out_row = 24, .x_row = 40},
        {.rows = 67, .nblocks = 1, .width = 24, .out_row = 40, .x_row = 24},
        /* a head's q, k and v side by side */
        {.rows = 5,
         .nblocks = 3,
         .width = 7,
         .out_row = 21,
         .out_block = 7,
         .x_row = 65,
         .x_block = 21},
        {.rows = 9,
         .nblocks = 4,
         .width = 8,
         .out_row = 96,
         .out_block = 24,
         .x_row = 32,
         .x_block = 8},
        /* matrices of experts, from innermost to outermost and back */
        {.rows = 36,
         .nblocks = 5,
         .width = 1,
         .out_row = 1,
         .out_block = 36,
         .x_row = 5,
         .x_block = 1},
        {.rows = 36,
         .nblocks = 5,
         .width = 1,
         .out_row = 5,
         .out_block = 1,
         .x_row = 1,
         .x_block = 36},
        /* every other element, as gpt-oss lays gate and up */
        {.rows = 11,
         .nblocks = 35,
         .width = 1,
         .out_row = 35,
         .out_block = 1,
         .x_row = 70,
         .x_block = 2},
        {.rows = 11,
         .nblocks = 35,
         .width = 1,
         .out_row = 70,
         .out_block = 2,
         .x_row = 35,
         .x_block = 1},
        {.rows = 300,
         .nblocks = 2,
         .width = 130,
         .out_row = 260,
         .out_block = 130,
         .x_row = 270,
         .x_block = 140},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        test_copy_blocks(&shapes[i]);
}

static void run_elementwise(void)
{
    static const size_t sizes[] = {3, 1021, 40009};
    for (int s = 0; s < 3; s++) {
        for (int act = NN_SILU; act <= NN_CLAMPED_SWISH; act++)
            test_glu((enum nn_act)act, sizes[s]);
        for (int act = NN_SILU; act <= NN_RELU; act++)
            test_pointwise((enum nn_act)act, sizes[s]);
        test_scale_add(sizes[s], 0.22f, 0, false);
        test_scale_add(sizes[s], 0.22f, 1, false);
        test_scale_add(sizes[s], 1, 0.5f, false);
        test_scale_add(sizes[s], 12, 0, true);
    }
    test_copies();
}

#endif
