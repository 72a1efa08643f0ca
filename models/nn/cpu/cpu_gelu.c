/* SPDX-License-Identifier: Apache-2.0 */
/* GELU: Hendrycks and Gimpel, arXiv 1606.08415, with tanh. As (1 + tanh(u)) / 2 = sigmoid(2u), it
 * is x sigmoid(2u) with u = sqrt(2 / pi) (x + 0.044715 x³). */
#include "cpu.h"

#define GELU_A 1.5957691216057308f  /* 2 sqrt(2 / pi) */
#define GELU_B (GELU_A * 0.044715f) /* 2u = A x + B x³ */

FSDP_CPU_CLONES static void forward_piece(float *restrict y, const float *restrict x, size_t nelem)
{
    for (size_t i = 0; i < nelem; i++)
        y[i] = x[i] / (1.0f + nn_exp(-x[i] * (GELU_A + GELU_B * x[i] * x[i])));
}

static void forward_part(void *arg, int worker, size_t from, size_t to)
{
    const struct nn_gelu *a = arg;
    float room[2][NN_PIECE];

    (void)worker;
    for (size_t at = from; at < to; at += NN_PIECE) {
        const size_t n = to - at < NN_PIECE ? to - at : NN_PIECE;
        const float *x = nn_read(a->x, a->dtype, at, n, room[0]);
        float *y = nn_piece(a->y, a->dtype, at, room[1]);
        forward_piece(y, x, n);
        nn_write(a->y, a->dtype, at, n, y);
    }
}

/* With e = exp(-2u) and s = sigmoid(2u) = 1 / (1 + e): d (x s) / dx = s + x s (1 - s) (A + 3 B x²),
 * where 1 - s = e s keeps its digits near s = 1. */
FSDP_CPU_CLONES static void backward_piece(float *restrict y, float *restrict x, size_t nelem)
{
    for (size_t i = 0; i < nelem; i++) {
        float v = x[i], sq = v * v, dy = y[i];
        float e = nn_exp(-v * (GELU_A + GELU_B * sq)), s = 1.0f / (1.0f + e), out = v * s;
        x[i] = dy * (s + out * (e * s) * (GELU_A + 3.0f * GELU_B * sq));
        y[i] = out;
    }
}

static void backward_part(void *arg, int worker, size_t from, size_t to)
{
    const struct nn_gelu *a = arg;
    float room[2][NN_PIECE];

    (void)worker;
    for (size_t at = from; at < to; at += NN_PIECE) {
        const size_t n = to - at < NN_PIECE ? to - at : NN_PIECE;
        float *x = nn_change(a->x, a->dtype, at, n, room[0]);
        float *y = nn_change(a->y, a->dtype, at, n, room[1]);
        backward_piece(y, x, n);
        nn_write(a->x, a->dtype, at, n, x);
        nn_write(a->y, a->dtype, at, n, y);
    }
}

static void gelu_forward(struct nn_gelu *a)
{
    fsdp_cpu_for(a->nelem, NN_GRAIN, forward_part, a);
}

static void gelu_backward(struct nn_gelu *a)
{
    fsdp_cpu_for(a->nelem, NN_GRAIN, backward_part, a);
}

NN_CPU_ENQUEUE(gelu_forward, nn_gelu)
NN_CPU_ENQUEUE(gelu_backward, nn_gelu)
