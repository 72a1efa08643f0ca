/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: who goes where, and how even that is. A warp takes a row, a block an expert.
 */
#include "kernel.cuh"

enum { ROWS_EACH = 4, ROW_THREADS = ROWS_EACH * WARP, THREADS = 256, NWARPS = THREADS / WARP };

static __device__ inline float warp_most(float x)
{
#pragma unroll
    for (int lane = WARP / 2; lane > 0; lane /= 2)
        x = fmaxf(x, __shfl_xor_sync(FULL_MASK, x, lane));
    return x;
}

/* The row of this warp; rows or more: it has none. */
static __device__ inline int my_row(void)
{
    return (int)(blockIdx.x * ROWS_EACH + threadIdx.x / WARP);
}

static __device__ inline int my_lane(void)
{
    return (int)threadIdx.x % WARP;
}

/* ---- routing --------------------------------------------------------------------------------- */

struct routing {
    float *probs, *weight, *lse;
    int32_t *expert;
    int rows, experts, chosen;
    bool normalized;
};

/* Gives the log of the sum, in every lane. */
template <class T>
static __device__ inline float softmax_row(float *probs, const T *logits, int experts)
{
    float most = -INFINITY, sum = 0;
    for (int e = my_lane(); e < experts; e += WARP)
        most = fmaxf(most, fsdp_to_float(logits[e]));
    most = warp_most(most);
    for (int e = my_lane(); e < experts; e += WARP) {
        const float x = expf(fsdp_to_float(logits[e]) - most);
        probs[e] = x;
        sum += x;
    }
    sum = warp_sum(sum);
    for (int e = my_lane(); e < experts; e += WARP)
        probs[e] /= sum;
    return most + logf(sum);
}

/* Is (p, e) before (q, f) in falling order of probability? */
static __device__ inline bool goes_before(float p, int e, float q, int f)
{
    return f < 0 || p > q || (p == q && e < f);
}

/* The first in falling order behind (prob, expert), in every lane; k where none compares. */
static __device__ inline int next_best(const float *probs, int experts, float prob, int expert,
                                       int k)
{
    float best_prob = 0;
    int best = -1;
    for (int e = my_lane(); e < experts; e += WARP) {
        const float p = probs[e];
        const bool is_behind = expert < 0 || p < prob || (p == prob && e > expert);
        if (is_behind && goes_before(p, e, best_prob, best)) {
            best_prob = p;
            best = e;
        }
    }
#pragma unroll
    for (int lane = WARP / 2; lane > 0; lane /= 2) {
        const float p = __shfl_xor_sync(FULL_MASK, best_prob, lane);
        const int e = __shfl_xor_sync(FULL_MASK, best, lane);
        if (e >= 0 && goes_before(p, e, best_prob, best)) {
            best_prob = p;
            best = e;
        }
    }
    return best < 0 ? k : best;
}

template <class T> __global__ void route_kernel(const T *logits, routing a)
{
    const int row = my_row();
    if (row >= a.rows)
        return;
    float *probs = a.probs + (size_t)row * (size_t)a.experts, prob = 0, sum = 0;
    float *weight = a.weight + (size_t)row * (size_t)a.chosen;
    int32_t *list = a.expert + (size_t)row * (size_t)a.chosen;
    int expert = -1;
    const float lse = softmax_row(probs, logits + (size_t)row * (size_t)a.experts, a.experts);
    if (my_lane() == 0)
        a.lse[row] = lse;
    __syncwarp();
    for (int k = 0; k < a.chosen; k++) {
        expert = next_best(probs, a.experts, prob, expert, k);
        prob = probs[expert];
        sum += prob;
        if (my_lane() == 0) {
            list[k] = expert;
            weight[k] = prob;
        }
    }
    __syncwarp();
    for (int k = my_lane(); k < a.chosen && a.normalized; k += WARP)
        weight[k] /= sum;
}

extern "C" int nn_cuda_route_forward(struct fsdp_lane *lane, const struct nn_route *a,
                                     struct fsdp_err *err)
{
    const routing r = {a->probs, a->weight,  a->lse,    a->expert,
                       a->rows,  a->experts, a->chosen, a->normalized};
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, route_kernel, blocks_for((size_t)a->rows, ROWS_EACH), ROW_THREADS,
               FROM(a->logits), r);
    return fsdp_cuda_launched(lane, "route_forward", err);
}

struct routed {
    const float *dweight, *balance, *probs, *weight, *lse, *loss_scale;
    const int32_t *expert;
    int rows, experts, chosen, counted;
    bool normalized;
    float z_loss;
};

/* The gradient of probability e of a row. */
static __device__ inline float dprob(const routed &a, size_t row, int e, float sum, float mean)
{
    const size_t first = row * (size_t)a.chosen;
    float d = a.balance && row < (size_t)a.counted ? a.balance[e] : 0.0f;
    for (int k = 0; k < a.chosen; k++)
        if (a.expert[first + k] == e)
            d += a.normalized ? (a.dweight[first + k] - mean) / sum : a.dweight[first + k];
    return d;
}

template <class T> __global__ void route_backward_kernel(T *dlogits, routed a)
{
    const int row = my_row();
    if (row >= a.rows)
        return;
    const size_t at = (size_t)row * (size_t)a.experts, first = (size_t)row * (size_t)a.chosen;
    float sum = 0, mean = 0, inner = 0, z = 0;
    if (a.z_loss > 0 && row < a.counted)
        z = 2 * a.z_loss * a.lse[row] * (a.loss_scale ? *a.loss_scale : 1.0f);
    for (int k = 0; k < a.chosen; k++) {
        sum += a.probs[at + (size_t)a.expert[first + k]];
        mean += a.dweight[first + k] * a.weight[first + k];
    }
    for (int e = my_lane(); e < a.experts; e += WARP)
        inner += a.probs[at + e] * dprob(a, (size_t)row, e, sum, mean);
    inner = warp_sum(inner);
    for (int e = my_lane(); e < a.experts; e += WARP) {
        const float d = dprob(a, (size_t)row, e, sum, mean);
        dlogits[at + e] = fsdp_from_float<T>(a.probs[at + e] * (d - inner + z));
    }
}

extern "C" int nn_cuda_route_backward(struct fsdp_lane *lane, const struct nn_route_backward *a,
                                      struct fsdp_err *err)
{
    const routed r = {a->dweight,    a->balance,    a->probs, a->weight,  a->lse,
                      a->loss_scale, a->expert,     a->rows,  a->experts, a->chosen,
                      a->counted,    a->normalized, a->z_loss};
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, route_backward_kernel, blocks_for((size_t)a->rows, ROWS_EACH),
               ROW_THREADS, TO(a->dlogits), r);
    return fsdp_cuda_launched(lane, "route_backward", err);
}

/* ---- order ----------------------------------------------------------------------------------- */

/* How many of these slots chose the block's expert, in every thread. */
static __device__ inline int count_uses(const int32_t *expert, int nslots)
{
    __shared__ int room[NWARPS];
    int count = 0;
    for (int s = (int)threadIdx.x; s < nslots; s += THREADS)
        count += expert[s] == (int)blockIdx.x;
    return block_sum(count, room);
}

__global__ void count_kernel(int32_t *first, const int32_t *expert, int nslots)
{
    const int count = count_uses(expert, nslots);
    if (threadIdx.x == 0)
        first[blockIdx.x + 1] = count;
}

__global__ void begin_kernel(int32_t *first, int experts)
{
    int32_t sum = 0;
    if (threadIdx.x != 0)
        return;
    first[0] = 0;
    for (int e = 1; e <= experts; e++) {
        sum += first[e];
        first[e] = sum;
    }
}

/* The block's expert takes its slots in their order. */
__global__ void order_kernel(int32_t *slot, int32_t *place, const int32_t *first,
                             const int32_t *expert, int nslots)
{
    __shared__ int found_by[NWARPS];
    const int warp = (int)threadIdx.x / WARP;
    int next = first[blockIdx.x];
    for (int from = 0; from < nslots; from += THREADS) {
        const int s = from + (int)threadIdx.x;
        const bool mine = s < nslots && expert[s] == (int)blockIdx.x;
        const unsigned found = __ballot_sync(FULL_MASK, mine);
        if (my_lane() == 0)
            found_by[warp] = __popc(found);
        __syncthreads();
        int at = next + __popc(found & ((1u << my_lane()) - 1));
        for (int w = 0; w < NWARPS; w++) {
            at += w < warp ? found_by[w] : 0;
            next += found_by[w];
        }
        if (mine) {
            slot[at] = s;
            place[s] = at;
        }
        __syncthreads();
    }
}

extern "C" int nn_cuda_expert_order(struct fsdp_lane *lane, const struct nn_expert_order *a,
                                    struct fsdp_err *err)
{
    const int nslots = a->rows * a->chosen;
    const unsigned experts = (unsigned)a->experts;
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH(lane, count_kernel, experts, THREADS, a->first, a->expert, nslots);
    LAUNCH(lane, begin_kernel, 1, WARP, a->first, a->experts);
    LAUNCH(lane, order_kernel, experts, THREADS, a->slot, a->place, (const int32_t *)a->first,
           a->expert, nslots);
    FSDP_TRY(fsdp_cuda_launched(lane, "expert_order", err));
    if (!a->first_host)
        return FSDP_OK;
    a->first_host[0] = -1;
    if (nn_cuda_groups_are_small(nslots, a->experts))
        return FSDP_OK;
    FSDP_TRY(fsdp_copy(lane, a->first_host, a->first, (experts + 1) * sizeof *a->first, err));
    return fsdp_lane_sync(lane, err);
}

/* ---- load ------------------------------------------------------------------------------------ */

/* The first block sums the squares, too. */
__global__ void load_kernel(struct nn_expert_load a)
{
    __shared__ double room[NWARPS];
    const int count = count_uses(a.expert, a.rows * a.chosen);
    double sum = 0, squares = 0;
    for (int r = (int)threadIdx.x; r < a.rows; r += THREADS) {
        sum += (double)a.probs[(size_t)r * gridDim.x + blockIdx.x];
        squares += blockIdx.x == 0 ? (double)a.lse[r] * (double)a.lse[r] : 0.0;
    }
    sum = block_sum(sum, room);
    squares = block_sum(squares, room);
    if (threadIdx.x != 0)
        return;
    a.counts[blockIdx.x] += (double)count;
    a.sums[blockIdx.x] += sum;
    if (blockIdx.x == 0)
        *a.squares += squares;
}

extern "C" int nn_cuda_expert_load(struct fsdp_lane *lane, const struct nn_expert_load *a,
                                   struct fsdp_err *err)
{
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH(lane, load_kernel, (unsigned)a->experts, THREADS, *a);
    return fsdp_cuda_launched(lane, "expert_load", err);
}

__global__ void balance_kernel(struct nn_balance a)
{
    __shared__ double room[NWARPS];
    const int nelem = a.layers * a.experts;
    double n = 0, loss = 0;
    for (int i = (int)threadIdx.x; i < nelem; i += THREADS) {
        n += a.counts[i];
        if (a.total)
            a.total[i] += a.counts[i];
    }
    n = block_sum(n, room);
    n = n > 0 ? n / a.chosen : 1;
    for (int e = (int)threadIdx.x; e < a.experts; e += THREADS) {
        double count = 0;
        for (int l = 0; l < a.layers; l++)
            count += a.counts[l * a.experts + e];
        const double slope = (double)a.scale * a.experts * (count / n) / n;
        loss += slope * a.sums[e];
        if (a.balance)
            a.balance[e] =
                (float)(slope * (double)a.coef * (double)(a.loss_scale ? *a.loss_scale : 1.0f));
    }
    loss = block_sum(loss, room);
    if (threadIdx.x == 0 && a.loss)
        *a.loss += loss;
    if (threadIdx.x == 0 && a.z_loss)
        *a.z_loss += a.z_scale * *a.squares;
}

extern "C" int nn_cuda_balance(struct fsdp_lane *lane, const struct nn_balance *a,
                               struct fsdp_err *err)
{
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH(lane, balance_kernel, 1, THREADS, *a);
    return fsdp_cuda_launched(lane, "balance", err);
}
