/* SPDX-License-Identifier: Apache-2.0 */
/* A model's last step: scaled and capped logits, and their cross-entropy. */
#include "kernel.cuh"

/* What is done to a logit: cap * tanh(scale x / cap), or scale x where cap is 0. */
struct logit_step {
    float scale, cap, inner; /* inner: scale / cap */
};

static inline logit_step step_of(float logit_scale, float softcap)
{
    const float scale = logit_scale == 0.0f ? 1.0f : logit_scale;
    return (logit_step){scale, softcap, softcap == 0.0f ? 0.0f : scale / softcap};
}

static inline bool changes(logit_step step)
{
    return step.scale != 1.0f || step.cap != 0.0f;
}

static __device__ inline float step_logit(float x, logit_step step)
{
    return step.cap == 0.0f ? step.scale * x : step.cap * tanhf(step.inner * x);
}

/* dz/dx at x. With e = exp(-2 |u|), 1 - tanh(u)² is 4 e / (1 + e)²; 1 where there is no cap. */
static __device__ inline float step_slope(float x, logit_step step)
{
    const float e = expf(-2.0f * fabsf(step.inner * x)), r = __fdividef(1.0f, 1.0f + e);
    return step.scale * (4.0f * e * r * r);
}

enum { STEP_THREADS = 256 };

template <class T>
__global__ void logits_kernel(T *logits, size_t nelem, logit_step step, bool aligned)
{
    const size_t at = ((size_t)blockIdx.x * STEP_THREADS + threadIdx.x) * VEC;
    float v[VEC];
    if (at >= nelem)
        return;
    load8(v, logits, at, nelem, aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++)
        v[i] = step_logit(v[i], step);
    store8(logits, at, nelem, aligned, v);
}

extern "C" int nn_cuda_logits(struct fsdp_lane *lane, const struct nn_logits *a,
                              struct fsdp_err *err)
{
    const logit_step step = step_of(a->logit_scale, a->softcap);
    if (!changes(step))
        return FSDP_OK;
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, logits_kernel, blocks_for(a->nelem, STEP_THREADS * VEC),
               STEP_THREADS, TO(a->logits), a->nelem, step, is_aligned(a->logits));
    return fsdp_cuda_launched(lane, "logits", err);
}

/* ---- cross-entropy ------------------------------------------------------------------------------
 * A block takes a row: one reading for the greatest logit and the sum of exponentials, each thread
 * its own and then all of them, and a second one, which writes gradients and goes backwards, since
 * the row's end is what caches still have. The rows' losses go to scratch memory and are added up
 * in their order. */
enum { LOSS_THREADS = 512, LOSS_LOTS = 2, SUM_THREADS = 256 };
enum { LOSS_STRIDE = LOSS_THREADS * VEC, LOSS_STEP = LOSS_LOTS * LOSS_STRIDE };

/* The sum of exp(x - most) so far. */
struct softmax_sum {
    float most;
    double sum;
};

/* The same bits for (a, b) as for (b, a). */
static __device__ inline softmax_sum joined(softmax_sum a, softmax_sum b)
{
    softmax_sum out;
    out.most = fmaxf(a.most, b.most);
    /* -inf - -inf, of two threads without elements, would be NaN */
    const float da = a.sum > 0 ? expf(a.most - out.most) : 0,
                db = b.sum > 0 ? expf(b.most - out.most) : 0;
    out.sum = a.sum * (double)da + b.sum * (double)db;
    return out;
}

/* Of groups of `lanes` neighbours in a warp. */
static __device__ inline softmax_sum joined_lanes(softmax_sum all, int lanes)
{
    for (int step = lanes / 2; step > 0; step /= 2) {
        softmax_sum other;
        other.most = __shfl_xor_sync(FULL_MASK, all.most, step);
        other.sum = __shfl_xor_sync(FULL_MASK, all.sum, step);
        all = joined(all, other);
    }
    return all;
}

/* Logits as the loss sees them; -inf, of no element, stays. */
template <bool STEPS> static __device__ inline void step_lot(float out[VEC], logit_step step)
{
#pragma unroll
    for (int i = 0; STEPS && i < VEC; i++)
        out[i] = out[i] == -INFINITY ? out[i] : step_logit(out[i], step);
}

template <class T, bool STEPS>
static __device__ inline softmax_sum row_sum(const T *x, size_t vocab, logit_step step,
                                             bool aligned)
{
    enum { NWARPS = LOSS_THREADS / WARP };
    __shared__ softmax_sum room[NWARPS];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    float most = -INFINITY, sum = 0, v[LOSS_LOTS][VEC];

    for (size_t at = threadIdx.x * VEC; at < vocab; at += LOSS_STEP) {
        float here = -INFINITY;
#pragma unroll
        for (int k = 0; k < LOSS_LOTS; k++) {
            load8(v[k], x, at + k * LOSS_STRIDE, vocab, aligned, -INFINITY);
            step_lot<STEPS>(v[k], step);
        }
#pragma unroll
        for (int k = 0; k < LOSS_LOTS; k++)
#pragma unroll
            for (int i = 0; i < VEC; i++)
                here = fmaxf(here, v[k][i]);
        if (here > most) {
            sum *= exp_for<T>(most - here);
            most = here;
        }
#pragma unroll
        for (int k = 0; k < LOSS_LOTS; k++)
#pragma unroll
            for (int i = 0; i < VEC; i++)
                sum += exp_for<T>(v[k][i] - most);
    }
    const softmax_sum all = joined_lanes({most, (double)sum}, WARP);
    if (lane == 0)
        room[warp] = all;
    __syncthreads();
    return joined_lanes(room[lane % NWARPS], NWARPS);
}

/* The sum of a row's z. */
template <class T, bool STEPS>
static __device__ inline double row_total(const T *x, size_t vocab, logit_step step)
{
    __shared__ double room[WARP];
    double sum = 0;
    for (size_t at = threadIdx.x; at < vocab; at += LOSS_THREADS)
        sum += (double)(STEPS ? step_logit(fsdp_to_float(x[at]), step) : fsdp_to_float(x[at]));
    return block_sum(sum, room);
}

struct entropy_args {
    const int32_t *targets;
    const float *weights;
    double *losses;
    const float *loss_scale;
    int vocab, ld;
    float scale, smoothing, z_loss;
    logit_step step;
    bool grad, aligned;
};

/* 16-bit rows without a step are bound by memory: three blocks of an SM hide its latency. */
template <class T, bool STEPS>
__global__ void __launch_bounds__(LOSS_THREADS, STEPS || sizeof(T) == 4 ? 2 : 3)
    cross_entropy_kernel(T *logits, entropy_args a)
{
    const size_t vocab = (size_t)a.vocab, row = blockIdx.x;
    const int target = a.targets[row];
    T *x = logits + row * (size_t)a.ld;
    float v[LOSS_LOTS][VEC], x_target = 0;

    if (target < 0) {
        for (size_t at = threadIdx.x; a.grad && at < vocab; at += LOSS_THREADS)
            x[at] = fsdp_from_float<T>(0.0f);
        if (threadIdx.x == 0)
            a.losses[row] = 0;
        return;
    }
    const softmax_sum all = row_sum<T, STEPS>(x, vocab, a.step, a.aligned);
    const double total = a.smoothing > 0.0f ? row_total<T, STEPS>(x, vocab, a.step) : 0;
    if (threadIdx.x == 0)
        x_target = STEPS ? step_logit(fsdp_to_float(x[target]), a.step) : fsdp_to_float(x[target]);
    __syncthreads(); /* the target's logit was read */
    const float weight = a.weights ? a.weights[row] : 1.0f;
    const float to_grad = a.scale * (a.loss_scale ? *a.loss_scale : 1.0f) * weight;
    const float lse = a.z_loss != 0.0f ? logf((float)all.sum) + all.most : 0;
    const float each = (float)((double)(to_grad * (1 + 2 * a.z_loss * lse)) / all.sum);
    const float flat = to_grad * a.smoothing / (float)a.vocab,
                peak = to_grad * (1.0f - a.smoothing);
    for (size_t left = a.grad ? (vocab + LOSS_STEP - 1) / LOSS_STEP : 0; left > 0; left--) {
        const size_t at = (left - 1) * LOSS_STEP + threadIdx.x * VEC;
#pragma unroll
        for (int k = 0; k < LOSS_LOTS; k++)
            load8(v[k], x, at + k * LOSS_STRIDE, vocab, a.aligned);
#pragma unroll
        for (int k = 0; k < LOSS_LOTS; k++) {
            const size_t to = at + k * LOSS_STRIDE;
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float x_i = v[k][i], z = STEPS ? step_logit(x_i, a.step) : x_i;
                v[k][i] = exp_for<T>(z - all.most) * each - flat -
                          (to + i == (size_t)target ? peak : 0.0f);
                if (STEPS)
                    v[k][i] *= step_slope(x_i, a.step);
            }
            store8(x, to, vocab, a.aligned, v[k]);
        }
    }
    if (threadIdx.x == 0) { /* last, so that nobody waits for its logarithm */
        const double above = log(all.sum), eps = (double)a.smoothing;
        const double sum = above + (double)all.most;
        double loss = above - ((double)x_target - (double)all.most);
        if (eps > 0)
            loss = (1 - eps) * loss + eps * (above - (total / a.vocab - (double)all.most));
        a.losses[row] = (double)weight * (loss + (double)a.z_loss * sum * sum);
    }
}

__global__ void __launch_bounds__(SUM_THREADS)
    loss_sum_kernel(double *loss_sum, const double *losses, int rows)
{
    __shared__ double room[WARP];
    double sum = 0;
    for (int r = (int)threadIdx.x; r < rows; r += SUM_THREADS)
        sum += losses[r];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        *loss_sum += sum;
}

extern "C" int nn_cuda_cross_entropy(struct fsdp_lane *lane, const struct nn_cross_entropy *a,
                                     struct fsdp_err *err)
{
    const int ld = nn_cross_entropy_ld(a), most = NN_CUDA_SCRATCH_NBYTES / (int)sizeof(double);
    const bool aligned = ld % VEC == 0 && is_aligned(a->logits);
    const logit_step step = step_of(a->logit_scale, a->softcap);
    void *scratch;

    FSDP_TRY(fsdp_cuda_enter(lane, err));
    FSDP_TRY(nn_cuda_scratch(&scratch, lane, err));
    entropy_args args = {};
    args.losses = (double *)scratch;
    args.loss_scale = a->loss_scale;
    args.vocab = a->vocab;
    args.ld = ld;
    args.scale = a->scale;
    args.smoothing = a->smoothing;
    args.z_loss = a->z_loss;
    args.step = step;
    args.grad = a->grad;
    args.aligned = aligned;
    for (int first = 0; first < a->rows; first += most) {
        const int rows = a->rows - first < most ? a->rows - first : most;
        const size_t at = (size_t)first * (size_t)ld;
        args.targets = a->targets + first;
        args.weights = a->weights ? a->weights + first : NULL;
        if (changes(step))
            LAUNCH_FOR_TYPE(a->dtype, lane, (cross_entropy_kernel<elem, true>), (unsigned)rows,
                            LOSS_THREADS, TO(a->logits) + at, args);
        else
            LAUNCH_FOR_TYPE(a->dtype, lane, (cross_entropy_kernel<elem, false>), (unsigned)rows,
                            LOSS_THREADS, TO(a->logits) + at, args);
        LAUNCH(lane, loss_sum_kernel, 1, SUM_THREADS, a->loss_sum, (const double *)scratch, rows);
    }
    return fsdp_cuda_launched(lane, "cross_entropy", err);
}
