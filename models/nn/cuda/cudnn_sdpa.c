/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal attention with grouped heads, spelled out in the operations from which cuDNN 9 recognises
 * it and runs one kernel. Letters: S scores, P probabilities; tensors that are not in memory are
 * fp32 unless they enter a product.
 *
 *   forward    S = Q K' scale, -inf right of the diagonal;  lse = max + log(sum exp(S - max));
 *              P = exp(S - max) / sum;  O = P V
 *   dropout    P M / (1 - p) in place of P, M being 1 with the probability 1 - p, else 0
 *   backward   delta = sum(dO O);  P = exp(Q K' scale - lse), 0 right of the diagonal;
 *              dV = P' dO;  dS = P (dO V' - delta) scale;  dK = dS' Q;  dQ = dS K
 *   dropout    delta (1 - p) in place of delta, P M / (1 - p) in dV,
 *              dS = P (dO V' M - delta) / (1 - p) scale
 *
 * A window masks in the same way what lies too far left of the diagonal. Packed documents are
 * sequences that begin where a table says, (positions, heads, D) in memory, the statistics
 * (positions, heads); scores past a document's end are masked.
 */
#include "cudnn_sdpa.h"

#define F32 CUDNN_DATA_FLOAT

/* What the tensors of a graph have in common. */
struct sizes {
    const struct sdpa_shape *s;
    graph_tensor lengths, q_begins, k_begins, stats_begins; /* NULL where nothing is packed */
};

static cudnnDataType_t type_of(const struct sdpa_shape *s)
{
    return s->dtype == FSDP_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

static struct graph_shape dense(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (struct graph_shape){{a, b, c, d}, {b * c * d, c * d, d, 1}, NULL};
}

static graph_tensor memory(struct graph *g, enum sdpa_uid uid, cudnnDataType_t type,
                           struct graph_shape shape)
{
    return graph_tensor_new(g, GRAPH_MEMORY, uid, type, shape);
}

static graph_tensor value(struct graph *g, enum sdpa_uid uid, cudnnDataType_t type)
{
    return graph_tensor_new(g, GRAPH_VALUE, uid, type, dense(1, 1, 1, 1));
}

static graph_tensor passing(struct graph *g, cudnnDataType_t type, struct graph_shape shape)
{
    return graph_tensor_new(g, GRAPH_VIRTUAL, 0, type, shape);
}

static graph_tensor table(struct graph *g, const struct sdpa_shape *s, enum sdpa_uid uid, int n)
{
    return s->packed ? memory(g, uid, CUDNN_DATA_INT32, dense(n, 1, 1, 1)) : NULL;
}

static struct sizes sizes_of(struct graph *g, const struct sdpa_shape *s)
{
    return (struct sizes){.s = s,
                          .lengths = table(g, s, SDPA_LENGTHS, s->B),
                          .q_begins = table(g, s, SDPA_Q_BEGINS, s->B + 1),
                          .k_begins = table(g, s, SDPA_K_BEGINS, s->B + 1),
                          .stats_begins = table(g, s, SDPA_STATS_BEGINS, s->B + 1)};
}

/* (B, heads, T, D) of memory that is (B, T, heads, D). */
static struct graph_shape heads_of(const struct sizes *z, int heads, graph_tensor begins)
{
    const int64_t T = z->s->T, D = z->s->D, n = heads;
    return (struct graph_shape){{z->s->B, n, T, D}, {T * n * D, D, n * D, 1}, begins};
}

static struct graph_shape queries_of(const struct sizes *z)
{
    return heads_of(z, z->s->NH, z->q_begins);
}

static struct graph_shape keys_of(const struct sizes *z)
{
    return heads_of(z, z->s->NKV, z->k_begins);
}

/* The last two dimensions the other way round. */
static struct graph_shape turned(struct graph_shape x)
{
    return (struct graph_shape){{x.dim[0], x.dim[1], x.dim[3], x.dim[2]},
                                {x.stride[0], x.stride[1], x.stride[3], x.stride[2]},
                                x.ragged};
}

static struct graph_shape scores_of(const struct sdpa_shape *s)
{
    return dense(s->B, s->NH, s->T, s->T);
}

static struct graph_shape sums_of(const struct sdpa_shape *s)
{
    return dense(s->B, s->NH, s->T, 1);
}

/* Statistics in memory. */
static struct graph_shape stats_of(const struct sizes *z)
{
    const int64_t T = z->s->T, n = z->s->NH;
    return z->s->packed
               ? (struct graph_shape){{z->s->B, n, T, 1}, {T * n, 1, n, 1}, z->stats_begins}
               : sums_of(z->s);
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

/* x where both positions are of the document, else -inf. */
static graph_tensor inside(struct graph *g, const struct sizes *z, graph_tensor x,
                           graph_tensor minus_inf)
{
    const struct graph_shape shape = scores_of(z->s);
    graph_tensor within[3], y = passing(g, F32, shape);

    for (int i = 0; i < 2; i++) {
        graph_tensor at = index_of(g, x, 2 + i, shape);
        within[i] = passing(g, CUDNN_DATA_BOOLEAN, shape);
        graph_pointwise(g, CUDNN_POINTWISE_CMP_LT, CUDNN_DATA_BOOLEAN, -1, at, z->lengths, NULL,
                        within[i]);
    }
    within[2] = passing(g, CUDNN_DATA_BOOLEAN, shape);
    graph_pointwise(g, CUDNN_POINTWISE_LOGICAL_AND, CUDNN_DATA_BOOLEAN, -1, within[0], within[1],
                    NULL, within[2]);
    graph_pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, F32, -1, x, minus_inf, within[2], y);
    return y;
}

/* x where query >= key and, with a window, key + window > query, else -inf. */
static graph_tensor causal(struct graph *g, const struct sdpa_shape *s, graph_tensor x,
                           graph_tensor minus_inf)
{
    const struct graph_shape shape = scores_of(s);
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

/* Of products whose rows, columns or summed dimension are a document's positions. */
static struct graph_sizes of_scores(const struct sizes *z)
{
    return (struct graph_sizes){.m = z->lengths, .n = z->lengths};
}

static struct graph_sizes of_rows(const struct sizes *z)
{
    return (struct graph_sizes){.m = z->lengths, .k = z->lengths};
}

/* M */
static graph_tensor mask_of(struct graph *g, const struct sdpa_shape *s)
{
    graph_tensor seed = memory(g, SDPA_SEED, CUDNN_DATA_INT64, dense(1, 1, 1, 1));
    graph_tensor offset = memory(g, SDPA_OFFSET, CUDNN_DATA_INT64, dense(1, 1, 1, 1));
    graph_tensor mask = passing(g, F32, scores_of(s));
    graph_bernoulli(g, seed, offset, 1 - (double)s->drop_p, mask);
    return mask;
}

/* y = x M / (1 - p) */
static void drop_scores(struct graph *g, const struct sdpa_shape *s, graph_tensor x,
                        graph_tensor mask, graph_tensor inverse, graph_tensor y)
{
    graph_tensor masked = apply(g, CUDNN_POINTWISE_MUL, x, mask, scores_of(s));
    graph_pointwise(g, CUDNN_POINTWISE_MUL, F32, -1, masked, inverse, NULL, y);
}

void sdpa_forward_graph(struct graph *g, const struct sdpa_shape *s)
{
    const cudnnDataType_t type = type_of(s);
    const struct sizes z = sizes_of(g, s);
    const struct graph_shape q = queries_of(&z), kv = keys_of(&z);
    const struct graph_shape scores = scores_of(s), sums = sums_of(s);
    graph_tensor Q = memory(g, SDPA_Q, type, q), K = memory(g, SDPA_K, type, turned(kv));
    graph_tensor V = memory(g, SDPA_V, type, kv), O = memory(g, SDPA_O, type, q);
    graph_tensor lse = memory(g, SDPA_LSE, F32, stats_of(&z)), scale = value(g, SDPA_SCALE, F32);
    graph_tensor minus_inf = value(g, SDPA_MINUS_INF, F32);
    graph_tensor S = passing(g, F32, scores), most = passing(g, F32, sums);
    graph_tensor sum = passing(g, F32, sums), P = passing(g, type, scores);

    graph_matmul(g, Q, K, S, of_scores(&z));
    graph_tensor scaled = apply(g, CUDNN_POINTWISE_MUL, S, scale, scores);
    graph_tensor seen = s->packed ? inside(g, &z, scaled, minus_inf) : scaled;
    graph_tensor masked = causal(g, s, seen, minus_inf);
    graph_reduce(g, CUDNN_REDUCE_TENSOR_MAX, masked, most);
    graph_tensor shifted = apply(g, CUDNN_POINTWISE_SUB, masked, most, scores);
    graph_tensor e = apply(g, CUDNN_POINTWISE_EXP, shifted, NULL, scores);
    graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, sum);
    graph_tensor log_sum = apply(g, CUDNN_POINTWISE_LOG, sum, NULL, sums);
    graph_pointwise(g, CUDNN_POINTWISE_ADD, F32, -1, most, log_sum, NULL, lse);
    if (s->drop_p > 0) {
        graph_tensor whole = apply(g, CUDNN_POINTWISE_DIV, e, sum, scores);
        drop_scores(g, s, whole, mask_of(g, s), value(g, SDPA_KEPT_INVERSE, F32), P);
    } else {
        graph_pointwise(g, CUDNN_POINTWISE_DIV, F32, -1, e, sum, NULL, P);
    }
    graph_matmul(g, P, V, O, of_rows(&z));
}

/* out (a key-value head's) = x' y, summed over the heads of a group; `heads` is what each head's
 * has where it is in memory. */
static void turned_product(struct graph *g, const struct sizes *z, graph_tensor x, graph_tensor y,
                           graph_tensor out, enum sdpa_uid heads)
{
    const struct sdpa_shape *s = z->s;
    const cudnnDataType_t type = type_of(s);
    graph_tensor xt = passing(g, type, turned(scores_of(s)));

    graph_reshape(g, x, xt);
    if (s->NH == s->NKV) {
        graph_matmul(g, xt, y, out, of_rows(z));
        return;
    }
    /* It begins where the keys' tensor does, times the heads of a group. */
    graph_tensor each = s->packed ? memory(g, heads, type, heads_of(z, s->NH, z->k_begins))
                                  : passing(g, type, dense(s->B, s->NH, s->T, s->D));
    graph_matmul(g, xt, y, each, of_rows(z));
    graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, each, out);
}

/* dQ = dS keys, through sums in fp32 that are made with atomics. */
static void query_gradient(struct graph *g, const struct sizes *z, graph_tensor dS,
                           graph_tensor keys, graph_tensor dQ)
{
    const struct sdpa_shape *s = z->s;

    if (s->deterministic) {
        graph_matmul(g, dS, keys, dQ, of_rows(z));
        return;
    }
    graph_tensor accum =
        memory(g, SDPA_DQ_ACCUM, F32, s->packed ? queries_of(z) : dense(s->B, s->NH, s->T, s->D));
    graph_matmul(g, dS, keys, accum, of_rows(z));
    graph_pointwise(g, CUDNN_POINTWISE_IDENTITY, F32, -1, accum, NULL, NULL, dQ);
}

void sdpa_backward_graph(struct graph *g, const struct sdpa_shape *s)
{
    const cudnnDataType_t type = type_of(s);
    const struct sizes z = sizes_of(g, s);
    const struct graph_shape q = queries_of(&z), kv = keys_of(&z);
    const struct graph_shape scores = scores_of(s), stats = stats_of(&z);
    graph_tensor Q = memory(g, SDPA_Q, type, q), K = memory(g, SDPA_K, type, turned(kv));
    graph_tensor V = memory(g, SDPA_V, type, turned(kv)), O = memory(g, SDPA_O, type, q);
    graph_tensor dO = memory(g, SDPA_DO, type, q), dQ = memory(g, SDPA_DQ, type, q);
    graph_tensor dK = memory(g, SDPA_DK, type, kv), dV = memory(g, SDPA_DV, type, kv);
    graph_tensor lse = memory(g, SDPA_LSE, F32, stats), delta = memory(g, SDPA_DELTA, F32, stats);
    const bool drops = s->drop_p > 0;
    graph_tensor scale = value(g, SDPA_SCALE, F32);
    graph_tensor one = value(g, drops ? SDPA_KEPT : SDPA_ONE, F32);
    graph_tensor inverse = drops ? value(g, SDPA_KEPT_INVERSE, F32) : NULL;
    graph_tensor mask = drops ? mask_of(g, s) : NULL;
    graph_tensor minus_inf = value(g, SDPA_MINUS_INF, F32);
    graph_tensor S = passing(g, F32, scores), sums = passing(g, F32, sums_of(s));
    graph_tensor dP = passing(g, F32, scores), dS = passing(g, type, scores);
    graph_tensor keys = passing(g, type, kv);

    graph_tensor products = apply(g, CUDNN_POINTWISE_MUL, dO, O, dense(s->B, s->NH, s->T, s->D));
    graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, products, sums);
    graph_pointwise(g, CUDNN_POINTWISE_MUL, F32, -1, sums, one, NULL, delta);

    graph_matmul(g, Q, K, S, of_scores(&z));
    graph_tensor scaled = apply(g, CUDNN_POINTWISE_MUL, S, scale, scores);
    graph_tensor seen = s->packed ? inside(g, &z, scaled, minus_inf) : scaled;
    graph_tensor shifted = apply(g, CUDNN_POINTWISE_SUB, seen, lse, scores);
    graph_tensor P = apply(g, CUDNN_POINTWISE_EXP, causal(g, s, shifted, minus_inf), NULL, scores);
    graph_tensor dropped = P;
    if (drops) {
        dropped = passing(g, F32, scores);
        drop_scores(g, s, P, mask, inverse, dropped);
    }
    turned_product(g, &z, dropped, dO, dV, SDPA_DV_HEADS);

    graph_matmul(g, dO, V, dP, of_scores(&z));
    graph_tensor kept = drops ? apply(g, CUDNN_POINTWISE_MUL, dP, mask, scores) : dP;
    graph_tensor centred = apply(g, CUDNN_POINTWISE_SUB, kept, delta, scores);
    graph_tensor weighted = apply(g, CUDNN_POINTWISE_MUL, centred, P, scores);
    if (drops)
        weighted = apply(g, CUDNN_POINTWISE_MUL, weighted, inverse, scores);
    graph_pointwise(g, CUDNN_POINTWISE_MUL, F32, -1, weighted, scale, NULL, dS);
    turned_product(g, &z, dS, Q, dK, SDPA_DK_HEADS);

    graph_reshape(g, K, keys);
    query_gradient(g, &z, dS, keys, dQ);
}
