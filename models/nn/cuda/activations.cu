/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Activations (one pass over memory, eight elements a thread), and gated linear units of them
 * (Shazeer, arXiv 2002.05202). An activation is a type with value(x) and slope(x, &slope), which
 * gives the value again; a gated unit has forward(gate, up) and backward(&gate, &up, &dy), which
 * leaves y in dy. For results of type T.
 */
#include "kernel.cuh"

enum { THREADS = 256 };

/* First element of this thread. */
static __device__ inline size_t my_first(void)
{
    return ((size_t)blockIdx.x * THREADS + threadIdx.x) * VEC;
}

static unsigned grid_for(size_t nelem)
{
    return blocks_for(nelem, THREADS * VEC);
}

/* ---- activations ----------------------------------------------------------------------------- */

/* With s = sigmoid(x): d silu / dx = s (1 + x (1 - s)). */
template <class T> struct silu {
    static __device__ inline float value(float x)
    {
        return quotient_for<T>(x, 1.0f + exp_for<T>(-x));
    }
    static __device__ inline float slope(float x, float *slope)
    {
        const float s = quotient_for<T>(1.0f, 1.0f + exp_for<T>(-x)), v = x * s;
        *slope = s + v * (1.0f - s);
        return v;
    }
};

/* Hendrycks and Gimpel, arXiv 1606.08415, with tanh: x sigmoid(2u), where 2u = A x + B x³. */
#define GELU_A 1.5957691216057308f /* 2 sqrt(2 / pi) */
#define GELU_B (GELU_A * 0.044715f)

/* With s = sigmoid(2u): d (x s) / dx = s + x s (1 - s) (A + 3 B x²). 1 - s is sigmoid(-2u), made
 * of its own exponential's inverse, which keeps its digits near s = 1 and stays finite. */
template <class T> struct gelu_tanh {
    static __device__ inline float value(float x)
    {
        return quotient_for<T>(x, 1.0f + exp_for<T>(-x * (GELU_A + GELU_B * x * x)));
    }
    static __device__ inline float slope(float x, float *slope)
    {
        const float sq = x * x, u2 = x * (GELU_A + GELU_B * sq);
        const float e = exp_for<T>(-fabsf(u2)), most = quotient_for<T>(1.0f, 1.0f + e),
                    least = e * most;
        const float s = u2 >= 0 ? most : least, rest = u2 >= 0 ? least : most;
        const float v = x * s;
        *slope = s + v * rest * (GELU_A + 3.0f * GELU_B * sq);
        return v;
    }
};

/* x Phi(x), and Phi(x) + x phi(x), with the normal distribution and its density. */
template <class T> struct gelu {
    static __device__ inline float phi(float x)
    {
        return 0.5f * erfcf(-0.70710678118654752f * x);
    }
    static __device__ inline float value(float x)
    {
        return x * phi(x);
    }
    static __device__ inline float slope(float x, float *slope)
    {
        const float p = phi(x), near = fminf(fmaxf(x, -14.0f), 14.0f);
        *slope = p + near * (0.39894228040143268f * exp_for<T>(-0.5f * near * near));
        return x * p;
    }
};

/* NaN stays NaN. */
template <class T> struct relu {
    static __device__ inline float value(float x)
    {
        return x < 0 ? 0.0f : x;
    }
    static __device__ inline float slope(float x, float *slope)
    {
        *slope = x > 0 ? 1.0f : 0.0f;
        return value(x);
    }
};

/* ---- gated units ----------------------------------------------------------------------------- */

template <class Act> struct gated {
    static __device__ inline float forward(float gate, float up)
    {
        return Act::value(gate) * up;
    }
    static __device__ inline void backward(float *gate, float *up, float *dy)
    {
        float slope;
        const float v = Act::slope(*gate, &slope), u = *up, d = *dy;
        *gate = d * u * slope;
        *up = d * v;
        *dy = v * u;
    }
};

/* (u + 1) g sigmoid(1.702 g) of clamped gate and up, as in gpt-oss. */
template <class T> struct clamped_swish {
    static __device__ inline float clamped_gate(float gate)
    {
        return gate > NN_CLAMPED_SWISH_LIMIT ? NN_CLAMPED_SWISH_LIMIT : gate;
    }
    static __device__ inline float clamped_up(float up)
    {
        up = up > NN_CLAMPED_SWISH_LIMIT ? NN_CLAMPED_SWISH_LIMIT : up;
        return up < -NN_CLAMPED_SWISH_LIMIT ? -NN_CLAMPED_SWISH_LIMIT : up;
    }
    static __device__ inline float forward(float gate, float up)
    {
        const float g = clamped_gate(gate);
        return quotient_for<T>(g, 1.0f + exp_for<T>(-1.702f * g)) * (clamped_up(up) + 1.0f);
    }
    /* What was clamped has no gradient. 1 - sigmoid as for GELU. */
    static __device__ inline void backward(float *gate, float *up, float *dy)
    {
        const float g = clamped_gate(*gate), u = clamped_up(*up), d = *dy;
        const float e = exp_for<T>(-fabsf(1.702f * g)), most = quotient_for<T>(1.0f, 1.0f + e);
        const float s = g >= 0 ? most : e * most, rest = g >= 0 ? e * most : most, v = g * s;
        const float slope = s + 1.702f * v * rest;
        *gate = g < *gate ? 0.0f : d * (u + 1.0f) * slope;
        *up = u != *up ? 0.0f : d * v;
        *dy = v * (u + 1.0f);
    }
};

/* ---- kernels --------------------------------------------------------------------------------- */

template <class T, class Unit>
__global__ void glu_forward_kernel(T *y, const T *gate, const T *up, size_t nelem, bool aligned)
{
    const size_t at = my_first();
    float g[VEC], u[VEC];
    if (at >= nelem)
        return;
    load8(g, gate, at, nelem, aligned);
    load8(u, up, at, nelem, aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++)
        g[i] = Unit::forward(g[i], u[i]);
    store8(y, at, nelem, aligned, g);
}

template <class T, class Unit>
__global__ void glu_backward_kernel(T *y, T *gate, T *up, size_t nelem, bool aligned)
{
    const size_t at = my_first();
    float g[VEC], u[VEC], dy[VEC];
    if (at >= nelem)
        return;
    load8(g, gate, at, nelem, aligned);
    load8(u, up, at, nelem, aligned);
    load8(dy, y, at, nelem, aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++)
        Unit::backward(&g[i], &u[i], &dy[i]);
    store8(gate, at, nelem, aligned, g);
    store8(up, at, nelem, aligned, u);
    store8(y, at, nelem, aligned, dy);
}

template <class T, class Act>
__global__ void pointwise_forward_kernel(T *y, const T *x, size_t nelem, bool aligned)
{
    const size_t at = my_first();
    float v[VEC];
    if (at >= nelem)
        return;
    load8(v, x, at, nelem, aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++)
        v[i] = Act::value(v[i]);
    store8(y, at, nelem, aligned, v);
}

template <class T, class Act>
__global__ void pointwise_backward_kernel(T *y, T *x, size_t nelem, bool aligned)
{
    const size_t at = my_first();
    float v[VEC], dy[VEC];
    if (at >= nelem)
        return;
    load8(v, x, at, nelem, aligned);
    load8(dy, y, at, nelem, aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        float slope;
        const float value = Act::slope(v[i], &slope);
        v[i] = dy[i] * slope;
        dy[i] = value;
    }
    store8(x, at, nelem, aligned, v);
    store8(y, at, nelem, aligned, dy);
}

/* ---- operators ------------------------------------------------------------------------------- */

/* LAUNCH_FOR_TYPE of kernel<elem, unit>. */
#define LAUNCH_UNIT(a, lane, kernel, unit, ...)                                                    \
    LAUNCH_FOR_TYPE((a)->dtype, lane, (kernel<elem, unit>), grid_for((a)->nelem), THREADS,         \
                    __VA_ARGS__)
/* Of the activation that a->act says, the others with it. */
#define LAUNCH_GLU(a, lane, kernel, ...)                                                           \
    do {                                                                                           \
        if ((a)->act == NN_SILU)                                                                   \
            LAUNCH_UNIT(a, lane, kernel, gated<silu<elem>>, __VA_ARGS__);                          \
        else if ((a)->act == NN_GELU_TANH)                                                         \
            LAUNCH_UNIT(a, lane, kernel, gated<gelu_tanh<elem>>, __VA_ARGS__);                     \
        else if ((a)->act == NN_GELU)                                                              \
            LAUNCH_UNIT(a, lane, kernel, gated<gelu<elem>>, __VA_ARGS__);                          \
        else if ((a)->act == NN_RELU)                                                              \
            LAUNCH_UNIT(a, lane, kernel, gated<relu<elem>>, __VA_ARGS__);                          \
        else                                                                                       \
            LAUNCH_UNIT(a, lane, kernel, clamped_swish<elem>, __VA_ARGS__);                        \
    } while (0)
#define LAUNCH_POINTWISE(a, lane, kernel, ...)                                                     \
    do {                                                                                           \
        if ((a)->act == NN_SILU)                                                                   \
            LAUNCH_UNIT(a, lane, kernel, silu<elem>, __VA_ARGS__);                                 \
        else if ((a)->act == NN_GELU_TANH)                                                         \
            LAUNCH_UNIT(a, lane, kernel, gelu_tanh<elem>, __VA_ARGS__);                            \
        else if ((a)->act == NN_GELU)                                                              \
            LAUNCH_UNIT(a, lane, kernel, gelu<elem>, __VA_ARGS__);                                 \
        else                                                                                       \
            LAUNCH_UNIT(a, lane, kernel, relu<elem>, __VA_ARGS__);                                 \
    } while (0)

extern "C" int nn_cuda_glu_forward(struct fsdp_lane *lane, const struct nn_glu *a,
                                   struct fsdp_err *err)
{
    const bool aligned = is_aligned(a->y) && is_aligned(a->gate) && is_aligned(a->up);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_GLU(a, lane, glu_forward_kernel, TO(a->y), FROM(a->gate), FROM(a->up), a->nelem,
               aligned);
    return fsdp_cuda_launched(lane, "glu_forward", err);
}

extern "C" int nn_cuda_glu_backward(struct fsdp_lane *lane, const struct nn_glu *a,
                                    struct fsdp_err *err)
{
    const bool aligned = is_aligned(a->y) && is_aligned(a->gate) && is_aligned(a->up);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_GLU(a, lane, glu_backward_kernel, TO(a->y), TO(a->gate), TO(a->up), a->nelem, aligned);
    return fsdp_cuda_launched(lane, "glu_backward", err);
}

extern "C" int nn_cuda_pointwise_forward(struct fsdp_lane *lane, const struct nn_pointwise *a,
                                         struct fsdp_err *err)
{
    const bool aligned = is_aligned(a->y) && is_aligned(a->x);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_POINTWISE(a, lane, pointwise_forward_kernel, TO(a->y), FROM(a->x), a->nelem, aligned);
    return fsdp_cuda_launched(lane, "pointwise_forward", err);
}

extern "C" int nn_cuda_pointwise_backward(struct fsdp_lane *lane, const struct nn_pointwise *a,
                                          struct fsdp_err *err)
{
    const bool aligned = is_aligned(a->y) && is_aligned(a->x);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_POINTWISE(a, lane, pointwise_backward_kernel, TO(a->y), TO(a->x), a->nelem, aligned);
    return fsdp_cuda_launched(lane, "pointwise_backward", err);
}
