/* SPDX-License-Identifier: Apache-2.0 */
/* SwiGLU: Shazeer, arXiv 2002.05202. */
#include "cpu.h"

FSDP_CPU_CLONES static void forward_piece(float *restrict y, const float *restrict gate,
                                          const float *restrict up, size_t nelem)
{
    for (size_t i = 0; i < nelem; i++)
        y[i] = gate[i] / (1.0f + nn_exp(-gate[i])) * up[i];
}

static void forward_part(void *arg, int worker, size_t from, size_t to)
{
    const struct nn_swiglu *a = arg;
    const enum fsdp_dtype dtype = a->dtype;
    float room[3][NN_PIECE];

    (void)worker;
    for (size_t at = from; at < to; at += NN_PIECE) {
        const size_t n = to - at < NN_PIECE ? to - at : NN_PIECE;
        const float *gate = nn_read(a->gate, dtype, at, n, room[0]);
        const float *up = nn_read(a->up, dtype, at, n, room[1]);
        float *y = nn_piece(a->y, dtype, at, room[2]);
        forward_piece(y, gate, up, n);
        nn_write(a->y, dtype, at, n, y);
    }
}

/* With s = sigmoid(gate) and silu = gate s: d silu / d gate = s (1 + gate (1 - s)). */
FSDP_CPU_CLONES static void backward_piece(float *restrict y, float *restrict gate,
                                           float *restrict up, size_t nelem)
{
    for (size_t i = 0; i < nelem; i++) {
        float g = gate[i], u = up[i], dy = y[i];
        float s = 1.0f / (1.0f + nn_exp(-g)), silu = g * s;
        gate[i] = dy * u * (s + silu * (1.0f - s));
        up[i] = dy * silu;
        y[i] = silu * u;
    }
}

static void backward_part(void *arg, int worker, size_t from, size_t to)
{
    const struct nn_swiglu *a = arg;
    const enum fsdp_dtype dtype = a->dtype;
    float room[3][NN_PIECE];

    (void)worker;
    for (size_t at = from; at < to; at += NN_PIECE) {
        const size_t n = to - at < NN_PIECE ? to - at : NN_PIECE;
        float *gate = nn_change(a->gate, dtype, at, n, room[0]);
        float *up = nn_change(a->up, dtype, at, n, room[1]);
        float *y = nn_change(a->y, dtype, at, n, room[2]);
        backward_piece(y, gate, up, n);
        nn_write(a->gate, dtype, at, n, gate);
        nn_write(a->up, dtype, at, n, up);
        nn_write(a->y, dtype, at, n, y);
    }
}

static void swiglu_forward(struct nn_swiglu *a)
{
    fsdp_cpu_for(a->nelem, NN_GRAIN, forward_part, a);
}

static void swiglu_backward(struct nn_swiglu *a)
{
    fsdp_cpu_for(a->nelem, NN_GRAIN, backward_part, a);
}

NN_CPU_ENQUEUE(swiglu_forward, nn_swiglu)
NN_CPU_ENQUEUE(swiglu_backward, nn_swiglu)
