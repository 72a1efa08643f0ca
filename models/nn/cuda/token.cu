/* SPDX-License-Identifier: Apache-2.0 */
/* Where token ids come in: batches, embedding. */
#include "kernel.cuh"

enum { THREADS = 256 };

/* ---- batches --------------------------------------------------------------------------------- */

__global__ void split_tokens_kernel(int32_t *inputs, int32_t *targets, const int32_t *tokens, int T,
                                    size_t n)
{
    const size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= n)
        return;
    const size_t from = at + at / (size_t)T; /* a row has one token more */
    inputs[at] = tokens[from];
    if (targets)
        targets[at] = tokens[from + 1];
}

extern "C" int nn_cuda_split_tokens(struct fsdp_lane *lane, const struct nn_split_tokens *a,
                                    struct fsdp_err *err)
{
    const size_t row = ((size_t)a->T + 1) * sizeof(int32_t), T = (size_t)a->T;
    const int most = (int)(NN_CUDA_SCRATCH_NBYTES / row);
    void *scratch;

    FSDP_TRY(fsdp_cuda_enter(lane, err));
    FSDP_TRY(nn_cuda_scratch(&scratch, lane, err));
    for (int first = 0; first < a->B; first += most) {
        const size_t rows = (size_t)(a->B - first < most ? a->B - first : most), n = rows * T;
        const size_t to = (size_t)first * T;
        FSDP_TRY(fsdp_copy(lane, scratch, a->tokens + (size_t)first * (T + 1), rows * row, err));
        LAUNCH(lane, split_tokens_kernel, blocks_for(n, THREADS), THREADS, a->inputs + to,
               a->targets ? a->targets + to : NULL, (const int32_t *)scratch, a->T, n);
    }
    return fsdp_cuda_launched(lane, "split_tokens", err);
}

__global__ void positions_kernel(int32_t *out, const int32_t *starts, int first, int T, size_t n)
{
    const size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at < n)
        out[at] = first + (int32_t)(at % (size_t)T) - (starts ? starts[at] : 0);
}

extern "C" int nn_cuda_positions(struct fsdp_lane *lane, const struct nn_positions *a,
                                 struct fsdp_err *err)
{
    const size_t n = (size_t)a->B * (size_t)a->T;
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH(lane, positions_kernel, blocks_for(n, THREADS), THREADS, a->out, a->starts, a->first,
           a->T, n);
    return fsdp_cuda_launched(lane, "positions", err);
}

/* ---- embedding ------------------------------------------------------------------------------- */

template <class T>
__global__ void embedding_forward_kernel(T *out, const void *w, enum fsdp_dtype w_dtype,
                                         const int32_t *tokens, size_t nlots, int dim, float beta,
                                         bool aligned)
{
    const size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const size_t per_row = ((size_t)dim + VEC - 1) / VEC, row = at / per_row;
    const size_t col = at % per_row * VEC, n = (size_t)dim;
    float v[VEC], old[VEC];

    if (at >= nlots)
        return;
    const size_t from = (size_t)tokens[row] * n;
    load8_any(v, nn_elem(w, w_dtype, from), w_dtype, col, n, aligned);
    if (beta != 0.0f) {
        load8(old, out + row * n, col, n, aligned);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            v[i] += old[i];
    }
    store8(out + row * n, col, n, aligned, v);
}

extern "C" int nn_cuda_embedding_forward(struct fsdp_lane *lane, const struct nn_embedding *a,
                                         struct fsdp_err *err)
{
    const size_t nlots = (size_t)a->rows * blocks_for((size_t)a->dim, VEC);
    const bool aligned = a->dim % VEC == 0 && is_aligned(a->out) && is_aligned(a->w);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, embedding_forward_kernel, blocks_for(nlots, THREADS), THREADS,
               TO(a->out), a->w, a->w_dtype, a->tokens, nlots, a->dim, a->beta, aligned);
    return fsdp_cuda_launched(lane, "embedding_forward", err);
}

/*
 * Backward without atomics: a block owns some rows of dw, of which it does 1024 columns, and looks
 * through all tokens for those of its rows. What it finds, in the order of the batch, it lists in
 * shared memory, where uses of one token are linked; a token's uses are then added in their order,
 * and its row of dw is written once a list.
 *
 *     tokens   7 2 9 3 7 ...       block for rows [6, 9):  list  7 . 7 7 .    at 0, 4, 11
 *                                                          next  1   2 -
 */
enum { LIST = 512, GRAD_THREADS = 128, GRAD_COLS = GRAD_THREADS * VEC };

struct uses {
    int row[LIST], token[LIST], next[LIST]; /* next: LIST where there is none */
    bool first[LIST];
    int count, warp_count[GRAD_THREADS / WARP];
};

/* Continues to look at `from`; returns where it stopped, because the list is full or all was seen.
 */
static __device__ inline int list_uses(uses *list, const int32_t *tokens, int from, int rows,
                                       int low, int high)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    __syncthreads();
    if (threadIdx.x == 0)
        list->count = 0;
    __syncthreads();
    for (; from < rows && list->count <= LIST - GRAD_THREADS; from += GRAD_THREADS) {
        const int row = from + (int)threadIdx.x;
        const int token = row < rows ? tokens[row] : -1;
        const bool mine = token >= low && token < high;
        const unsigned found = __ballot_sync(FULL_MASK, mine);
        if (lane == 0)
            list->warp_count[warp] = __popc(found);
        const int count = list->count;
        __syncthreads();
        int at = count + __popc(found & ((1u << lane) - 1)), total = 0;
        for (int w = 0; w < GRAD_THREADS / WARP; w++) {
            at += w < warp ? list->warp_count[w] : 0;
            total += list->warp_count[w];
        }
        if (mine) {
            list->row[at] = row;
            list->token[at] = token;
        }
        __syncthreads();
        if (threadIdx.x == 0)
            list->count = count + total;
        __syncthreads();
    }
    return from;
}

static __device__ inline void link_uses(uses *list)
{
    const int count = list->count;
    for (int i = (int)threadIdx.x; i < count; i += GRAD_THREADS) {
        int next = i + 1, before = i - 1;
        while (next < count && list->token[next] != list->token[i])
            next++;
        while (before >= 0 && list->token[before] != list->token[i])
            before--;
        list->next[i] = next < count ? next : LIST;
        list->first[i] = before < 0;
    }
    __syncthreads();
}

/* Rows [low, high) of this thread's columns become zero. */
static __device__ inline void zero_rows(void *dw, enum fsdp_dtype dw_dtype, int low, int high,
                                        size_t col, size_t n, bool aligned)
{
    const float zero[VEC] = {};
    for (int r = low; r < high; r++)
        store8_any(nn_elem(dw, dw_dtype, (size_t)r * n), dw_dtype, col, n, aligned, zero);
}

template <class T>
__global__ void __launch_bounds__(GRAD_THREADS)
    embedding_backward_kernel(void *dw, enum fsdp_dtype dw_dtype, const T *dy,
                              const int32_t *tokens, int rows, int vocab, int vocab_each, int dim,
                              float beta, bool aligned)
{
    __shared__ uses list;
    const int low = (int)blockIdx.x * vocab_each;
    const int high = vocab - low < vocab_each ? vocab : low + vocab_each;
    const size_t n = (size_t)dim, col = (size_t)blockIdx.y * GRAD_COLS + threadIdx.x * VEC;
    float sum[VEC], v[VEC];

    if (beta == 0.0f && col < n)
        zero_rows(dw, dw_dtype, low, high, col, n, aligned);
    for (int from = 0; from < rows;) {
        from = list_uses(&list, tokens, from, rows, low, high);
        link_uses(&list);
        for (int i = 0; i < list.count && col < n; i++) {
            if (!list.first[i])
                continue;
            void *to = nn_elem(dw, dw_dtype, (size_t)list.token[i] * n);
            load8_any(sum, to, dw_dtype, col, n, aligned);
            for (int use = i; use < LIST; use = list.next[use]) {
                load8(v, dy + (size_t)list.row[use] * n, col, n, aligned);
#pragma unroll
                for (int k = 0; k < VEC; k++)
                    sum[k] += v[k];
            }
            store8_any(to, dw_dtype, col, n, aligned, sum);
        }
    }
}

extern "C" int nn_cuda_embedding_backward(struct fsdp_lane *lane, const struct nn_embedding *a,
                                          struct fsdp_err *err)
{
    enum { BLOCKS = 1024 };
    const int each = (a->vocab + BLOCKS - 1) / BLOCKS;
    const bool aligned = a->dim % VEC == 0 && is_aligned(a->out) && is_aligned(a->dy);
    const dim3 grid(blocks_for((size_t)a->vocab, (size_t)each),
                    blocks_for((size_t)a->dim, GRAD_COLS));
    if (!a->out)
        return FSDP_OK;
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, embedding_backward_kernel, grid, GRAD_THREADS, a->out, a->dw_dtype,
               FROM(a->dy), a->tokens, a->rows, a->vocab, each, a->dim, a->beta, aligned);
    return fsdp_cuda_launched(lane, "embedding_backward", err);
}
