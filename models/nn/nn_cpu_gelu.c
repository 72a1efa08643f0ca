/* SPDX-License-Identifier: Apache-2.0 */
/* GELU: Hendrycks and Gimpel, arXiv 1606.08415, with tanh. As (1 + tanh(u)) / 2 = sigmoid(2u), it
 * is x sigmoid(2u) with u = sqrt(2 / pi) (x + 0.044715 x³). */
#include "nn/nn_cpu.h"

#define GELU_A 1.5957691216057308f  /* 2 sqrt(2 / pi) */
#define GELU_B (GELU_A * 0.044715f) /* 2u = A x + B x³ */

static void gelu_forward(const struct nn_gelu *a)
{
    const float *restrict x = a->x;
    float *restrict y = a->y;
#pragma GCC ivdep
    for (size_t i = 0; i < a->nelem; i++)
        y[i] = x[i] / (1.0f + nn_exp(-x[i] * (GELU_A + GELU_B * x[i] * x[i])));
}

/* With e = exp(-2u) and s = sigmoid(2u) = 1 / (1 + e): d (x s) / dx = s + x s (1 - s) (A + 3 B x²),
 * where 1 - s = e s keeps its digits near s = 1. */
static void gelu_backward(const struct nn_gelu *a)
{
    float *restrict x = a->x, *restrict y = a->y;
#pragma GCC ivdep
    for (size_t i = 0; i < a->nelem; i++) {
        float v = x[i], sq = v * v, dy = y[i];
        float e = nn_exp(-v * (GELU_A + GELU_B * sq)), s = 1.0f / (1.0f + e), out = v * s;
        x[i] = dy * (s + out * (e * s) * (GELU_A + 3.0f * GELU_B * sq));
        y[i] = out;
    }
}

NN_CPU_ENQUEUE(gelu_forward, nn_gelu)
NN_CPU_ENQUEUE(gelu_backward, nn_gelu)
