/* SPDX-License-Identifier: Apache-2.0 */
/* Gated linear units: Shazeer, arXiv 2002.05202; clamped as in gpt-oss (arXiv 2508.10925). */
#include "activations.h"
#include "cpu.h"

typedef void forward_loop_f(float *restrict y, const float *restrict gate, const float *restrict up,
                            size_t nelem);
typedef void backward_loop_f(float *restrict y, float *restrict gate, float *restrict up,
                             size_t nelem);

/* Loops forward_ACT and backward_ACT over a piece. */
#define GLU_LOOPS(act)                                                                             \
    FSDP_CPU_CLONES static void forward_##act(float *restrict y, const float *restrict gate,       \
                                              const float *restrict up, size_t nelem)              \
    {                                                                                              \
        for (size_t i = 0; i < nelem; i++)                                                         \
            y[i] = nn_##act(gate[i]) * up[i];                                                      \
    }                                                                                              \
    FSDP_CPU_CLONES static void backward_##act(float *restrict y, float *restrict gate,            \
                                               float *restrict up, size_t nelem)                   \
    {                                                                                              \
        for (size_t i = 0; i < nelem; i++) {                                                       \
            float slope, value = nn_##act##_slope(gate[i], &slope), u = up[i], dy = y[i];          \
            gate[i] = dy * u * slope;                                                              \
            up[i] = dy * value;                                                                    \
            y[i] = value * u;                                                                      \
        }                                                                                          \
    }
GLU_LOOPS(silu)
GLU_LOOPS(gelu_tanh)
GLU_LOOPS(gelu)
GLU_LOOPS(relu)

/* ---- clamped swish: (u + 1) g sigmoid(1.702 g) ----------------------------------------------- */

#define STEEP 1.702f

static inline float clamped_gate(float gate)
{
    return gate > NN_CLAMPED_SWISH_LIMIT ? NN_CLAMPED_SWISH_LIMIT : gate;
}

static inline float clamped_up(float up)
{
    up = up > NN_CLAMPED_SWISH_LIMIT ? NN_CLAMPED_SWISH_LIMIT : up;
    return up < -NN_CLAMPED_SWISH_LIMIT ? -NN_CLAMPED_SWISH_LIMIT : up;
}

FSDP_CPU_CLONES static void forward_clamped(float *restrict y, const float *restrict gate,
                                            const float *restrict up, size_t nelem)
{
    for (size_t i = 0; i < nelem; i++) {
        float g = clamped_gate(gate[i]);
        y[i] = g / (1.0f + nn_exp(-STEEP * g)) * (clamped_up(up[i]) + 1.0f);
    }
}

/* What was clamped has no gradient. With e = exp(-1.702 g), 1 - sigmoid is e times sigmoid, which
 * keeps its digits. */
FSDP_CPU_CLONES static void backward_clamped(float *restrict y, float *restrict gate,
                                             float *restrict up, size_t nelem)
{
    for (size_t i = 0; i < nelem; i++) {
        float g = clamped_gate(gate[i]), u = clamped_up(up[i]), dy = y[i];
        float e = nn_exp(-STEEP * g), s = 1.0f / (1.0f + e), value = g * s;
        float slope = s + STEEP * value * (e * s);
        gate[i] = g < gate[i] ? 0.0f : dy * (u + 1.0f) * slope;
        up[i] = u != up[i] ? 0.0f : dy * value;
        y[i] = value * (u + 1.0f);
    }
}

/* ---- operators ------------------------------------------------------------------------------- */

static forward_loop_f *const forward_loops[] = {[NN_SILU] = forward_silu,
                                                [NN_GELU_TANH] = forward_gelu_tanh,
                                                [NN_GELU] = forward_gelu,
                                                [NN_RELU] = forward_relu,
                                                [NN_CLAMPED_SWISH] = forward_clamped};
static backward_loop_f *const backward_loops[] = {[NN_SILU] = backward_silu,
                                                  [NN_GELU_TANH] = backward_gelu_tanh,
                                                  [NN_GELU] = backward_gelu,
                                                  [NN_RELU] = backward_relu,
                                                  [NN_CLAMPED_SWISH] = backward_clamped};

static void forward_part(void *arg, int worker, size_t from, size_t to)
{
    const struct nn_glu *a = arg;
    const enum fsdp_dtype dtype = a->dtype;
    float room[3][NN_PIECE];

    (void)worker;
    for (size_t at = from; at < to; at += NN_PIECE) {
        const size_t n = to - at < NN_PIECE ? to - at : NN_PIECE;
        const float *gate = nn_read(a->gate, dtype, at, n, room[0]);
        const float *up = nn_read(a->up, dtype, at, n, room[1]);
        float *y = nn_piece(a->y, dtype, at, room[2]);
        forward_loops[a->act](y, gate, up, n);
        nn_write(a->y, dtype, at, n, y);
    }
}

static void backward_part(void *arg, int worker, size_t from, size_t to)
{
    const struct nn_glu *a = arg;
    const enum fsdp_dtype dtype = a->dtype;
    float room[3][NN_PIECE];

    (void)worker;
    for (size_t at = from; at < to; at += NN_PIECE) {
        const size_t n = to - at < NN_PIECE ? to - at : NN_PIECE;
        float *gate = nn_change(a->gate, dtype, at, n, room[0]);
        float *up = nn_change(a->up, dtype, at, n, room[1]);
        float *y = nn_change(a->y, dtype, at, n, room[2]);
        backward_loops[a->act](y, gate, up, n);
        nn_write(a->gate, dtype, at, n, gate);
        nn_write(a->up, dtype, at, n, up);
        nn_write(a->y, dtype, at, n, y);
    }
}

static void glu_forward(struct nn_glu *a)
{
    fsdp_cpu_for(a->nelem, NN_GRAIN, forward_part, a);
}

static void glu_backward(struct nn_glu *a)
{
    fsdp_cpu_for(a->nelem, NN_GRAIN, backward_part, a);
}

NN_CPU_ENQUEUE(glu_forward, nn_glu)
NN_CPU_ENQUEUE(glu_backward, nn_glu)
