/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn_sdpa.h: causal attention as graphs for cuDNN. Private to models/nn/cuda. */
#ifndef NN_CUDA_CUDNN_SDPA_H
#define NN_CUDA_CUDNN_SDPA_H

#include "cudnn_graph.h"

/* What plans are made for: as of nn_attention, T = Tq = Tk. Packed: B documents of at most T
 * positions, one behind the other in memory, of which some may have none. */
struct sdpa_shape {
    int32_t B, T, NH, NKV, D, dtype;
    int32_t deterministic; /* backward without atomics, for O(B NH T²) bytes of workspace */
    int32_t window;        /* 0: all keys */
    int32_t packed;
    float drop_p; /* 0: no dropout */
};

/* Names of tensors in a graph. */
enum sdpa_uid {
    SDPA_Q = 1,
    SDPA_K,
    SDPA_V,
    SDPA_O,
    SDPA_LSE,
    SDPA_DO,
    SDPA_DQ,
    SDPA_DK,
    SDPA_DV,
    SDPA_DELTA,    /* (B, NH, T) sums of d_o o */
    SDPA_DQ_ACCUM, /* (B, NH, T, D) in fp32 */
    SDPA_SCALE,
    SDPA_MINUS_INF,
    SDPA_ONE,
    SDPA_WINDOW, /* int32 */
    /* Packed: (B) positions of each document, and (B + 1) where documents begin in q, in k, and in
     * statistics, in elements; all int32. Gradients of k and v for each head of q, (positions, NH,
     * D), where heads share keys. */
    SDPA_LENGTHS,
    SDPA_Q_BEGINS,
    SDPA_K_BEGINS,
    SDPA_STATS_BEGINS,
    SDPA_DK_HEADS,
    SDPA_DV_HEADS,
    /* Dropout: int64 in memory, and by value 1 - p and 1 / (1 - p). */
    SDPA_SEED,
    SDPA_OFFSET,
    SDPA_KEPT,
    SDPA_KEPT_INVERSE,
    SDPA_NUIDS
};

void sdpa_forward_graph(struct graph *g, const struct sdpa_shape *s);
void sdpa_backward_graph(struct graph *g, const struct sdpa_shape *s);

#endif
