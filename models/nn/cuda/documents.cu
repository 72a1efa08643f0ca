/* SPDX-License-Identifier: Apache-2.0 */
/* What cuDNN's attention reads in device memory: where packed documents begin and how long they
 * are, and seeds of dropout. */
#include "kernel.cuh"

enum { THREADS = 1024 };

struct tables {
    int32_t *lengths, *q_begins, *k_begins, *stats_begins;
    int q_nelem, k_nelem, stats_nelem;
};

/* One block. Where documents begin is listed in q_begins first. */
__global__ void __launch_bounds__(THREADS)
    documents_kernel(tables to, const int32_t *starts, int T, int n, int most)
{
    __shared__ int by_warp[THREADS / WARP];
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int count = 0;

    for (int from = 0; from < n; from += THREADS) {
        const int at = from + (int)threadIdx.x;
        const bool begins = at < n && (starts ? starts[at] : 0) == at % T;
        const unsigned found = __ballot_sync(FULL_MASK, begins);
        if (lane == 0)
            by_warp[warp] = __popc(found);
        __syncthreads();
        int place = count + __popc(found & ((1u << lane) - 1)), total = 0;
        for (int w = 0; w < THREADS / WARP; w++) {
            place += w < warp ? by_warp[w] : 0;
            total += by_warp[w];
        }
        if (begins && place < most)
            to.q_begins[place] = at;
        count += total;
        __syncthreads();
    }
    for (int i = (count < most ? count : most) + (int)threadIdx.x; i <= most; i += THREADS)
        to.q_begins[i] = n;
    __syncthreads();
    for (int i = (int)threadIdx.x; i <= most; i += THREADS) {
        const int begin = to.q_begins[i];
        if (i < most)
            to.lengths[i] = to.q_begins[i + 1] - begin;
        to.k_begins[i] = begin * to.k_nelem;
        to.stats_begins[i] = begin * to.stats_nelem;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i <= most; i += THREADS)
        to.q_begins[i] *= to.q_nelem;
}

extern "C" int nn_cuda_documents(struct fsdp_lane *lane, const struct nn_cuda_documents *a,
                                 struct fsdp_err *err)
{
    const tables to = {a->lengths, a->q_begins, a->k_begins,   a->stats_begins,
                       a->q_nelem, a->k_nelem,  a->stats_nelem};

    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH(lane, documents_kernel, 1, THREADS, to, a->starts, a->T, a->B * a->T, a->most);
    return fsdp_cuda_launched(lane, "documents", err);
}

/* Two numbers of 64 bits, 16 bytes apart. */
__global__ void seeds_kernel(uint64_t *to, uint64_t seed, uint64_t offset)
{
    to[0] = seed;
    to[2] = offset;
}

extern "C" int nn_cuda_seeds(struct fsdp_lane *lane, void *to, uint64_t seed, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH(lane, seeds_kernel, 1, 1, (uint64_t *)to, seed, (uint64_t)0);
    return fsdp_cuda_launched(lane, "seeds", err);
}
