/* SPDX-License-Identifier: Apache-2.0 */
/* SwiGLU: Shazeer, arXiv 2002.05202. */
#include "nn/nn_cpu.h"

static void swiglu_forward(const struct nn_swiglu *a)
{
    const float *restrict gate = a->gate, *restrict up = a->up;
    float *restrict y = a->y;
#pragma GCC ivdep
    for (size_t i = 0; i < a->nelem; i++)
        y[i] = gate[i] / (1.0f + nn_exp(-gate[i])) * up[i];
}

/* With s = sigmoid(gate) and silu = gate s: d silu / d gate = s (1 + gate (1 - s)). */
static void swiglu_backward(const struct nn_swiglu *a)
{
    float *restrict gate = a->gate, *restrict up = a->up, *restrict y = a->y;
#pragma GCC ivdep
    for (size_t i = 0; i < a->nelem; i++) {
        float g = gate[i], u = up[i], dy = y[i];
        float s = 1.0f / (1.0f + nn_exp(-g)), silu = g * s;
        gate[i] = dy * u * (s + silu * (1.0f - s));
        up[i] = dy * silu;
        y[i] = silu * u;
    }
}

NN_CPU_ENQUEUE(swiglu_forward, nn_swiglu)
NN_CPU_ENQUEUE(swiglu_backward, nn_swiglu)
