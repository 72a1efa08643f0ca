/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of single elements: activations, the last step of logits, and scaled additions. */
#include "activations.h"
#include "cpu.h"

typedef void forward_loop_f(float *restrict y, const float *restrict x, size_t nelem);
typedef void backward_loop_f(float *restrict y, float *restrict x, size_t nelem);

/* Loops forward_ACT and backward_ACT over a piece. */
#define POINTWISE_LOOPS(act)                                                                       \
    FSDP_CPU_CLONES static void forward_##act(float *restrict y, const float *restrict x,          \
                                              size_t nelem)                                        \
    {                                                                                              \
        for (size_t i = 0; i < nelem; i++)                                                         \
            y[i] = nn_##act(x[i]);                                                                 \
    }                                                                                              \
    FSDP_CPU_CLONES static void backward_##act(float *restrict y, float *restrict x, size_t nelem) \
    {                                                                                              \
        for (size_t i = 0; i < nelem; i++) {                                                       \
            float slope, value = nn_##act##_slope(x[i], &slope), dy = y[i];                        \
            x[i] = dy * slope;                                                                     \
            y[i] = value;                                                                          \
        }                                                                                          \
    }
POINTWISE_LOOPS(silu)
POINTWISE_LOOPS(gelu_tanh)
POINTWISE_LOOPS(gelu)
POINTWISE_LOOPS(relu)

static forward_loop_f *const forward_loops[] = {[NN_SILU] = forward_silu,
                                                [NN_GELU_TANH] = forward_gelu_tanh,
                                                [NN_GELU] = forward_gelu,
                                                [NN_RELU] = forward_relu};
static backward_loop_f *const backward_loops[] = {[NN_SILU] = backward_silu,
                                                  [NN_GELU_TANH] = backward_gelu_tanh,
                                                  [NN_GELU] = backward_gelu,
                                                  [NN_RELU] = backward_relu};

static void forward_part(void *arg, int worker, size_t from, size_t to)
{
    const struct nn_pointwise *a = arg;
    float room[2][NN_PIECE];

    (void)worker;
    for (size_t at = from; at < to; at += NN_PIECE) {
        const size_t n = to - at < NN_PIECE ? to - at : NN_PIECE;
        const float *x = nn_read(a->x, a->dtype, at, n, room[0]);
        float *y = nn_piece(a->y, a->dtype, at, room[1]);
        forward_loops[a->act](y, x, n);
        nn_write(a->y, a->dtype, at, n, y);
    }
}

static void backward_part(void *arg, int worker, size_t from, size_t to)
{
    const struct nn_pointwise *a = arg;
    float room[2][NN_PIECE];

    (void)worker;
    for (size_t at = from; at < to; at += NN_PIECE) {
        const size_t n = to - at < NN_PIECE ? to - at : NN_PIECE;
        float *x = nn_change(a->x, a->dtype, at, n, room[0]);
        float *y = nn_change(a->y, a->dtype, at, n, room[1]);
        backward_loops[a->act](y, x, n);
        nn_write(a->x, a->dtype, at, n, x);
        nn_write(a->y, a->dtype, at, n, y);
    }
}

static void pointwise_forward(struct nn_pointwise *a)
{
    fsdp_cpu_for(a->nelem, NN_GRAIN, forward_part, a);
}

static void pointwise_backward(struct nn_pointwise *a)
{
    fsdp_cpu_for(a->nelem, NN_GRAIN, backward_part, a);
}

/* ---- scaled additions ------------------------------------------------------------------------ */

/* out may be x where beta is 0. */
FSDP_CPU_CLONES static void scale_add_piece(float *out, const float *x, float alpha, float beta,
                                            size_t nelem)
{
    if (beta == 0.0f) {
        FSDP_INDEPENDENT
        for (size_t i = 0; i < nelem; i++)
            out[i] = alpha * x[i];
    } else {
        FSDP_INDEPENDENT
        for (size_t i = 0; i < nelem; i++)
            out[i] = alpha * x[i] + beta * out[i];
    }
}

static void scale_add_part(void *arg, int worker, size_t from, size_t to)
{
    const struct nn_scale_add *a = arg;
    float room[2][NN_PIECE];

    (void)worker;
    for (size_t at = from; at < to; at += NN_PIECE) {
        const size_t n = to - at < NN_PIECE ? to - at : NN_PIECE;
        const float *x = nn_read(a->x, a->dtype, at, n, room[0]);
        float *out = nn_piece(a->out, a->dtype, at, room[1]);
        if (a->beta != 0.0f)
            nn_read(a->out, a->dtype, at, n, room[1]);
        scale_add_piece(out, x, a->alpha, a->beta, n);
        nn_write(a->out, a->dtype, at, n, out);
    }
}

static void scale_add(struct nn_scale_add *a)
{
    fsdp_cpu_for(a->nelem, NN_GRAIN, scale_add_part, a);
}

NN_CPU_ENQUEUE(pointwise_forward, nn_pointwise)
NN_CPU_ENQUEUE(pointwise_backward, nn_pointwise)
NN_CPU_ENQUEUE(scale_add, nn_scale_add)
