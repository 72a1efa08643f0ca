/* SPDX-License-Identifier: Apache-2.0 */
/* activations.h: activation functions and their derivatives, for loops that vectorise. Private to
 * models/nn. */
#ifndef NN_ACTIVATIONS_H
#define NN_ACTIVATIONS_H

#include "math_loops.h"

static inline float nn_silu(float x)
{
    return x / (1.0f + nn_exp(-x));
}

/* The value again, and its derivative: with s = sigmoid(x), s (1 + x (1 - s)). */
static inline float nn_silu_slope(float x, float *slope)
{
    float s = 1.0f / (1.0f + nn_exp(-x)), value = x * s;
    *slope = s + value * (1.0f - s);
    return value;
}

/* GELU: Hendrycks and Gimpel, arXiv 1606.08415, with tanh. As (1 + tanh(u)) / 2 = sigmoid(2u), it
 * is x sigmoid(2u) with u = sqrt(2 / pi) (x + 0.044715 x³). */
#define NN_GELU_A 1.5957691216057308f     /* 2 sqrt(2 / pi) */
#define NN_GELU_B (NN_GELU_A * 0.044715f) /* 2u = A x + B x³ */

static inline float nn_gelu_tanh(float x)
{
    return x / (1.0f + nn_exp(-x * (NN_GELU_A + NN_GELU_B * x * x)));
}

/* With e = exp(-2u) and s = sigmoid(2u) = 1 / (1 + e): d (x s) / dx = s + x s (1 - s) (A + 3 B x²),
 * where 1 - s = e s keeps its digits near s = 1. */
static inline float nn_gelu_tanh_slope(float x, float *slope)
{
    float sq = x * x;
    float e = nn_exp(-x * (NN_GELU_A + NN_GELU_B * sq)), s = 1.0f / (1.0f + e), value = x * s;
    *slope = s + value * (e * s) * (NN_GELU_A + 3.0f * NN_GELU_B * sq);
    return value;
}

/* x Phi(x), and Phi(x) + x phi(x). */
static inline float nn_gelu(float x)
{
    float density;
    return x * nn_normal(x, &density);
}

static inline float nn_gelu_slope(float x, float *slope)
{
    float density, phi = nn_normal(x, &density), near = x;
    near = near < -14.0f ? -14.0f : near;
    near = near > 14.0f ? 14.0f : near;
    *slope = phi + near * density;
    return x * phi;
}

/* NaN stays NaN. */
static inline float nn_relu(float x)
{
    return x < 0 ? 0 : x;
}

static inline float nn_relu_slope(float x, float *slope)
{
    *slope = x > 0 ? 1.0f : 0.0f;
    return nn_relu(x);
}

#endif
