/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal attention with grouped heads, spelled out in the operations from which cuDNN 9 recognises
 * it and runs one kernel. Letters: S scores, P probabilities; tensors that are not in memory are
 * fp32 unless they enter a product.
 *
 *   forward    S = Q K' scale, -inf right of the diagonal;  lse = max + log(sum exp(S - max));
 *              P = exp(S - max) / sum;  O = P V
 *   backward   delta = sum(dO O);  P = exp(Q K' scale - lse), 0 right of the diagonal;
 *              dV = P' dO;  dS = P (dO V' - delta) scale;  dK = dS' Q;  dQ = dS K
 *
 * A window masks in the same way what lies too far left of the diagonal.
 */
#include "cudnn_sdpa.h"

#define F32 CUDNN_DATA_FLOAT

static cudnnDataType_t type_of(const struct sdpa_shape *s)
{
    return s->dtype == FSDP_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

/* (B, heads, T, D) of memory that is (B, T, heads, D). */
static struct graph_shape heads_of(const struct sdpa_shape *s, int heads)
{
    const int64_t T = s->T, D = s->D, n = heads;
    return (struct graph_shape){{s->B, n, T, D}, {T * n * D, D, n * D, 1}};
}

/* The last two dimensions the other way round. */
static struct graph_shape turned(struct graph_shape x)
{
    return (struct graph_shape){{x.dim[0], x.dim[1], x.dim[3], x.dim[2]},
                                {x.stride[0], x.stride[1], x.stride[3], x.stride[2]}};
}

static struct graph_shape packed(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (struct graph_shape){{a, b, c, d}, {b * c * d, c * d, d, 1}};
}

static struct graph_shape scores_of(const struct sdpa_shape *s)
{
    return packed(s->B, s->NH, s->T, s->T);
}

static struct graph_shape stats_of(const struct sdpa_shape *s)
{
    return packed(s->B, s->NH, s->T, 1);
}

static graph_tensor memory(struct graph *g, enum sdpa_uid uid, cudnnDataType_t type,
                           struct graph_shape shape)
{
    return graph_tensor_new(g, GRAPH_MEMORY, uid, type, shape);
}

static graph_tensor value(struct graph *g, enum sdpa_uid uid, cudnnDataType_t type)
{
    return graph_tensor_new(g, GRAPH_VALUE, uid, type, packed(1, 1, 1, 1));
}

static graph_tensor passing(struct graph *g, cudnnDataType_t type, struct graph_shape shape)
{
    return graph_tensor_new(g, GRAPH_VIRTUAL, 0, type, shape);
}

/* y = mode(x, b) of y's shape, in fp32. */
static graph_tensor apply(struct graph *g, cudnnPointwiseMode_t mode, graph_tensor x,
                          graph_tensor b, struct graph_shape shape)
{
    graph_tensor y = passing(g, F32, shape);
    graph_pointwise(g, mode, F32, -1, x, b, NULL, y);
    return y;
}

static graph_tensor index_of(struct graph *g, graph_tensor x, int64_t axis,
                             struct graph_shape shape)
{
    graph_tensor y = passing(g, CUDNN_DATA_INT32, shape);
    graph_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, axis, x, NULL, NULL, y);
    return y;
}

/* x where a compares with b as `mode` says, else -inf. */
static graph_tensor select_where(struct graph *g, graph_tensor x, cudnnPointwiseMode_t mode,
                                 graph_tensor a, graph_tensor b, graph_tensor minus_inf,
                                 struct graph_shape shape)
{
    graph_tensor seen = passing(g, CUDNN_DATA_BOOLEAN, shape), y = passing(g, F32, shape);
    graph_pointwise(g, mode, CUDNN_DATA_BOOLEAN, -1, a, b, NULL, seen);
    graph_pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, F32, -1, x, minus_inf, seen, y);
    return y;
}

/* x where query >= key and, with a window, key + window > query, else -inf. */
static graph_tensor causal(struct graph *g, const struct sdpa_shape *s, graph_tensor x)
{
    const struct graph_shape shape = scores_of(s);
    graph_tensor minus_inf = value(g, SDPA_MINUS_INF, F32);
    graph_tensor query = index_of(g, x, 2, shape), key = index_of(g, x, 3, shape);
    graph_tensor y = select_where(g, x, CUDNN_POINTWISE_CMP_GE, query, key, minus_inf, shape);

    if (!s->window)
        return y;
    graph_tensor row = index_of(g, y, 2, shape), col = index_of(g, y, 3, shape);
    graph_tensor window = value(g, SDPA_WINDOW, CUDNN_DATA_INT32);
    graph_tensor end = passing(g, CUDNN_DATA_INT32, shape);
    graph_pointwise(g, CUDNN_POINTWISE_ADD, CUDNN_DATA_INT32, -1, col, window, NULL, end);
    return select_where(g, y, CUDNN_POINTWISE_CMP_GT, end, row, minus_inf, shape);
}

void sdpa_forward_graph(struct graph *g, const struct sdpa_shape *s)
{
    const cudnnDataType_t type = type_of(s);
    const struct graph_shape q = heads_of(s, s->NH), kv = heads_of(s, s->NKV);
    const struct graph_shape scores = scores_of(s), stats = stats_of(s);
    graph_tensor Q = memory(g, SDPA_Q, type, q), K = memory(g, SDPA_K, type, turned(kv));
    graph_tensor V = memory(g, SDPA_V, type, kv), O = memory(g, SDPA_O, type, q);
    graph_tensor lse = memory(g, SDPA_LSE, F32, stats), scale = value(g, SDPA_SCALE, F32);
    graph_tensor S = passing(g, F32, scores), most = passing(g, F32, stats);
    graph_tensor sum = passing(g, F32, stats), P = passing(g, type, scores);

    graph_matmul(g, Q, K, S);
    graph_tensor scaled = apply(g, CUDNN_POINTWISE_MUL, S, scale, scores);
    graph_tensor masked = causal(g, s, scaled);
    graph_reduce(g, CUDNN_REDUCE_TENSOR_MAX, masked, most);
    graph_tensor shifted = apply(g, CUDNN_POINTWISE_SUB, masked, most, scores);
    graph_tensor e = apply(g, CUDNN_POINTWISE_EXP, shifted, NULL, scores);
    graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, sum);
    graph_tensor log_sum = apply(g, CUDNN_POINTWISE_LOG, sum, NULL, stats);
    graph_pointwise(g, CUDNN_POINTWISE_ADD, F32, -1, most, log_sum, NULL, lse);
    graph_pointwise(g, CUDNN_POINTWISE_DIV, F32, -1, e, sum, NULL, P);
    graph_matmul(g, P, V, O);
}

/* out (a key-value head's) = x' y, summed over the heads of a group. */
static void turned_product(struct graph *g, const struct sdpa_shape *s, graph_tensor x,
                           graph_tensor y, graph_tensor out)
{
    const cudnnDataType_t type = type_of(s);
    graph_tensor xt = passing(g, type, turned(scores_of(s)));

    graph_reshape(g, x, xt);
    if (s->NH == s->NKV) {
        graph_matmul(g, xt, y, out);
        return;
    }
    graph_tensor each = passing(g, type, packed(s->B, s->NH, s->T, s->D));
    graph_matmul(g, xt, y, each);
    graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, each, out);
}

void sdpa_backward_graph(struct graph *g, const struct sdpa_shape *s)
{
    const cudnnDataType_t type = type_of(s);
    const struct graph_shape q = heads_of(s, s->NH), kv = heads_of(s, s->NKV);
    const struct graph_shape scores = scores_of(s), stats = stats_of(s);
    graph_tensor Q = memory(g, SDPA_Q, type, q), K = memory(g, SDPA_K, type, turned(kv));
    graph_tensor V = memory(g, SDPA_V, type, turned(kv)), O = memory(g, SDPA_O, type, q);
    graph_tensor dO = memory(g, SDPA_DO, type, q), dQ = memory(g, SDPA_DQ, type, q);
    graph_tensor dK = memory(g, SDPA_DK, type, kv), dV = memory(g, SDPA_DV, type, kv);
    graph_tensor lse = memory(g, SDPA_LSE, F32, stats), delta = memory(g, SDPA_DELTA, F32, stats);
    graph_tensor scale = value(g, SDPA_SCALE, F32), one = value(g, SDPA_ONE, F32);
    graph_tensor S = passing(g, F32, scores), sums = passing(g, F32, stats);
    graph_tensor dP = passing(g, F32, scores), dS = passing(g, type, scores);
    graph_tensor keys = passing(g, type, kv);

    graph_tensor products = apply(g, CUDNN_POINTWISE_MUL, dO, O, packed(s->B, s->NH, s->T, s->D));
    graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, products, sums);
    graph_pointwise(g, CUDNN_POINTWISE_MUL, F32, -1, sums, one, NULL, delta);

    graph_matmul(g, Q, K, S);
    graph_tensor scaled = apply(g, CUDNN_POINTWISE_MUL, S, scale, scores);
    graph_tensor shifted = apply(g, CUDNN_POINTWISE_SUB, scaled, lse, scores);
    graph_tensor P = apply(g, CUDNN_POINTWISE_EXP, causal(g, s, shifted), NULL, scores);
    turned_product(g, s, P, dO, dV);

    graph_matmul(g, dO, V, dP);
    graph_tensor centred = apply(g, CUDNN_POINTWISE_SUB, dP, delta, scores);
    graph_tensor weighted = apply(g, CUDNN_POINTWISE_MUL, centred, P, scores);
    graph_pointwise(g, CUDNN_POINTWISE_MUL, F32, -1, weighted, scale, NULL, dS);
    turned_product(g, s, dS, Q, dK);

    graph_reshape(g, K, keys);
    if (s->deterministic) {
        graph_matmul(g, dS, keys, dQ);
        return;
    }
    graph_tensor accum = memory(g, SDPA_DQ_ACCUM, F32, packed(s->B, s->NH, s->T, s->D));
    graph_matmul(g, dS, keys, accum);
    graph_pointwise(g, CUDNN_POINTWISE_IDENTITY, F32, -1, accum, NULL, NULL, dQ);
}
