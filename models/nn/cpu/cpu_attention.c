/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal attention, one head and one block of queries at a time, so that scores never take more
 * than QUERIES rows of memory. What the backward pass needs of the softmax is its log-sum-exp per
 * row, from which it makes the probabilities again (Dao et al., arXiv 2205.14135).
 *
 *        keys first_key .. nkeys      a block of queries sees the keys before its end and, with a
 *      q [ x x x x x x . . . ]        window, none before first_key; row r sees keys_of(r), and the
 *      q [ . x x x x x x . . ]        rest of the row is set to zero before it enters a matrix
 *      q [ . . x x x x x x . ]        product
 */
#include <math.h>

#include "cpu.h"

enum { QUERIES = 64 };

/* One head of one document: its matrices where they lie, from elements q_at (q, o, d_o) and k_at
 * (k, v) on, or copies of them in a->work. o and dq are fp32, o_row elements between rows: the
 * caller's, or what is converted in the end. */
struct head {
    struct nn_matrix q, k, v, d_o;
    float *o, *dq, *lse;
    int o_row, Tq, Tk;
    size_t q_at, k_at;
    float sink; /* -INFINITY: none */
    /* Dropout's element of query r and key i is drop_first + r drop_row + i, in row b. */
    int b;
    uint64_t drop_first, drop_row;
};

/* A block of queries of a head and its scratch. */
struct block {
    int first, nqueries, first_key, nkeys;
    float *p, *dp; /* (nqueries, nkeys) */
};

/* The largest block of scores: a window's keys, and one more for each further query. */
static size_t tile_nelem(const struct nn_attention *a)
{
    const size_t queries = a->Tq < QUERIES ? (size_t)a->Tq : QUERIES, Tk = (size_t)a->Tk;
    const size_t seen = a->window ? (size_t)a->window + queries - 1 : Tk;
    return queries * (seen < Tk ? seen : Tk);
}

/* p, dp | dk, dv | copies of q (then dq), o, d_o, k, v */
static size_t work_nelem(const struct nn_attention *a, enum fsdp_dtype dtype)
{
    const size_t nq = (size_t)a->Tq * (size_t)a->D, nk = (size_t)a->Tk * (size_t)a->D;
    return 2 * tile_nelem(a) + 2 * nk + (dtype == FSDP_F32 ? 0 : 3 * nq + 2 * nk);
}

/* Each thread has its own. */
size_t nn_cpu_attention_work_nelem(const struct nn_attention *s)
{
    return work_nelem(s, s->dtype) * (size_t)fsdp_cpu_threads();
}

/* The document of row b that begins at position `first` ends before this one. */
static int document_end(const struct nn_attention *a, int b, int first)
{
    int end = first + 1;
    if (!a->starts)
        return a->Tq;
    const int32_t *starts = a->starts + (size_t)b * (size_t)a->Tq;
    while (end < a->Tq && starts[end] == starts[first])
        end++;
    return end;
}

/* Are the caller's matrices multiplied as they are? Of a 16-bit type, else, copies in fp32. */
static bool as_they_are(const struct nn_attention *a)
{
    return a->dtype == FSDP_F32 || (nn_tile_has(a->dtype) && a->D % 2 == 0);
}

static void place_copies(struct head *hd, const struct nn_attention *a)
{
    const size_t nq = (size_t)a->Tq * (size_t)a->D, nk = (size_t)a->Tk * (size_t)a->D;
    float *copies = a->work + work_nelem(a, FSDP_F32);

    hd->dq = copies;
    hd->o = copies + nq;
    hd->o_row = a->D;
    if (as_they_are(a))
        return;
    hd->q = (struct nn_matrix){.at = copies, .ld = a->D};
    hd->d_o = (struct nn_matrix){.at = copies + 2 * nq, .ld = a->D};
    hd->k = (struct nn_matrix){.at = copies + 3 * nq, .ld = a->D};
    hd->v = (struct nn_matrix){.at = copies + 3 * nq + nk, .ld = a->D};
}

/* Rows of the caller's that are ld elements apart, from element `at` on. */
static struct nn_matrix rows_at(const void *x, const struct nn_attention *a, size_t at, size_t ld)
{
    return (struct nn_matrix){nn_at(x, a->dtype, at), (int)ld, false, a->dtype, 0};
}

static float sink_of(const struct nn_attention *a, int h)
{
    float sink = -INFINITY;
    if (a->sinks)
        fsdp_cpu_convert(&sink, FSDP_F32, nn_at(a->sinks, a->w_dtype, (size_t)h), a->w_dtype, 1);
    return sink;
}

static struct head head_at(const struct nn_attention *a, int b, int first, int end, int h)
{
    const int group = a->NH / a->NKV;
    const size_t D = (size_t)a->D, nq_row = (size_t)a->NH * D, nk_row = (size_t)a->NKV * D;
    const size_t q = ((size_t)b * (size_t)a->Tq + (size_t)first) * nq_row + (size_t)h * D;
    const size_t k = ((size_t)b * (size_t)a->Tk + (size_t)first) * nk_row + (size_t)(h / group) * D;
    const uint64_t drop_row = ((uint64_t)a->Tk + 31) / 32 * 32;
    struct head hd = {
        .q_at = q,
        .k_at = k,
        .lse = a->lse + ((size_t)b * (size_t)a->NH + (size_t)h) * (size_t)a->Tq + first,
        .q = rows_at(a->q, a, q, nq_row),
        .k = rows_at(a->k, a, k, nk_row),
        .v = rows_at(a->v, a, k, nk_row),
        .d_o = rows_at(a->d_o, a, a->d_o ? q : 0, nq_row),
        .o_row = (int)nq_row,
        .Tq = end - first,
        .Tk = a->starts ? end - first : a->Tk,
        .sink = sink_of(a, h),
        .b = b,
        .drop_first = (uint64_t)(h * a->Tq + first) * drop_row + (uint64_t)first,
        .drop_row = drop_row,
    };
    if (a->dtype != FSDP_F32) {
        place_copies(&hd, a);
        return hd;
    }
    hd.dq = (float *)a->q + q;
    hd.o = (float *)a->o + q;
    return hd;
}

/* A head's rows between the caller's memory, row_nelem apart, and a copy in fp32. */
static void load_rows(const struct nn_matrix *copy, const void *from, enum fsdp_dtype dtype,
                      size_t at, int nrows, int row_nelem, int D)
{
    float *to = nn_at(copy->at, FSDP_F32, 0);
    for (int t = 0; t < nrows; t++, to += D, at += (size_t)row_nelem)
        fsdp_cpu_convert(to, FSDP_F32, nn_at(from, dtype, at), dtype, (size_t)D);
}

static void store_rows(void *to, enum fsdp_dtype dtype, size_t at, const float *from, int nrows,
                       int row_nelem, int D)
{
    for (int t = 0; t < nrows; t++, from += D, at += (size_t)row_nelem)
        fsdp_cpu_convert(nn_at(to, dtype, at), dtype, from, FSDP_F32, (size_t)D);
}

static void load_head(const struct nn_attention *a, const struct head *hd, bool backward)
{
    const int nq_row = a->NH * a->D, nk_row = a->NKV * a->D;
    if (as_they_are(a))
        return;
    load_rows(&hd->q, a->q, a->dtype, hd->q_at, hd->Tq, nq_row, a->D);
    load_rows(&hd->k, a->k, a->dtype, hd->k_at, hd->Tk, nk_row, a->D);
    load_rows(&hd->v, a->v, a->dtype, hd->k_at, hd->Tk, nk_row, a->D);
    if (backward)
        load_rows(&hd->d_o, a->d_o, a->dtype, hd->q_at, hd->Tq, nq_row, a->D);
}

/* First key that a window shows to query t, both of their document. */
static int window_begin(const struct nn_attention *a, const struct head *hd, int t)
{
    const int end = hd->Tk - hd->Tq + t + 1;
    return a->window && a->window < end ? end - a->window : 0;
}

static struct block block_at(const struct nn_attention *a, const struct head *hd, int first)
{
    const int nqueries = hd->Tq - first < QUERIES ? hd->Tq - first : QUERIES;
    const int first_key = window_begin(a, hd, first);
    const int nkeys = hd->Tk - hd->Tq + first + nqueries - first_key;
    return (struct block){first, nqueries, first_key, nkeys, a->work, a->work + tile_nelem(a)};
}

/* Keys that a row of the block sees, counted from its first. */
struct keys {
    size_t begin, end;
};

static struct keys keys_of(const struct nn_attention *a, const struct head *hd,
                           const struct block *blk, int r)
{
    const int begin = window_begin(a, hd, blk->first + r) - blk->first_key;
    return (struct keys){(size_t)begin, (size_t)(blk->nkeys - blk->nqueries + r + 1)};
}

static void clear_unseen(float *row, const struct block *blk, struct keys keys)
{
    memset(row, 0, keys.begin * sizeof *row);
    memset(row + keys.end, 0, ((size_t)blk->nkeys - keys.end) * sizeof *row);
}

/* ---- products of a block --------------------------------------------------------------------- */

/* x from a row on: a block's queries of q or d_o, its keys of k or v. */
static struct nn_matrix from_row(const struct nn_matrix *x, int row, bool transposed)
{
    struct nn_matrix out = *x;
    out.at = nn_at(x->at, x->dtype, (size_t)row * (size_t)x->ld);
    out.transposed = transposed;
    return out;
}

/* p or dp, (nqueries, nkeys) */
static struct nn_matrix tile_of(const float *x, const struct block *blk, bool transposed)
{
    return (struct nn_matrix){.at = x, .ld = blk->nkeys, .transposed = transposed};
}

/* c = alpha op(a) op(b) + beta c. A few rows are not worth turning b for them. */
static void multiply_small(const struct nn_product *g, float alpha)
{
    const bool is_worth = g->m >= 4 || !g->b.transposed || g->b.dtype != FSDP_F32;
    if (is_worth && nn_tile_has(g->b.dtype))
        nn_tile_gemm(g, alpha);
    else
        nn_blas_sgemm(g, alpha);
}

/* p = scale q kᵀ, or dp = d_o vᵀ */
static void queries_by_keys(const struct nn_attention *a, const struct block *blk, float *out,
                            const struct nn_matrix *q, const struct nn_matrix *k, float scale)
{
    multiply_small(&(struct nn_product){.m = blk->nqueries,
                                        .n = blk->nkeys,
                                        .k = a->D,
                                        .a = from_row(q, blk->first, false),
                                        .b = from_row(k, blk->first_key, true),
                                        .c = out,
                                        .ldc = blk->nkeys},
                   scale);
}

/* o = p v, or dq = dp k: rows of `out` begin with the block's queries. */
static void sum_over_keys(const struct nn_attention *a, const struct head *hd,
                          const struct block *blk, float *out, const float *p,
                          const struct nn_matrix *v)
{
    multiply_small(&(struct nn_product){.m = blk->nqueries,
                                        .n = a->D,
                                        .k = blk->nkeys,
                                        .a = tile_of(p, blk, false),
                                        .b = from_row(v, blk->first_key, false),
                                        .c = out + (size_t)blk->first * (size_t)hd->o_row,
                                        .ldc = hd->o_row},
                   1);
}

/* dv = pᵀ d_o, or dk = dpᵀ q: (Tk, D), of which the block's keys are written, or added to. */
static void sum_over_queries(const struct nn_attention *a, const struct block *blk, float *out,
                             const float *p, const struct nn_matrix *q, float beta)
{
    multiply_small(&(struct nn_product){.m = blk->nkeys,
                                        .n = a->D,
                                        .k = blk->nqueries,
                                        .a = tile_of(p, blk, true),
                                        .b = from_row(q, blk->first, false),
                                        .c = out + (size_t)blk->first_key * (size_t)a->D,
                                        .ldc = a->D,
                                        .beta = beta},
                   1);
}

/* ---- forward --------------------------------------------------------------------------------- */

FSDP_CPU_CLONES static void cap_row(float *x, size_t nelem, float cap)
{
    const float inv = 1.0f / cap;
    for (size_t i = 0; i < nelem; i++)
        x[i] = cap * nn_tanh(x[i] * inv);
}

FSDP_CPU_CLONES static void exp_minus(float *x, size_t nelem, float shift)
{
    for (size_t i = 0; i < nelem; i++)
        x[i] = nn_exp(x[i] - shift);
}

/* Row r of x, a block's, times dropout's factors. */
static void drop_row(float *x, const struct nn_attention *a, const struct head *hd,
                     const struct block *blk, int r, struct keys keys)
{
    enum { PIECE = 256 };
    float factors[PIECE];
    const uint64_t at = hd->drop_first + (uint64_t)(blk->first + r) * hd->drop_row;
    for (size_t from = keys.begin; from < keys.end; from += PIECE) {
        const size_t n = keys.end - from < PIECE ? keys.end - from : PIECE;
        nn_drop_factors(factors, &a->drop, hd->b, at + (uint64_t)blk->first_key + from, n);
        for (size_t i = 0; i < n; i++)
            x[from + i] *= factors[i];
    }
}

/* A row of p: exp(score - most), most of the scores and of the sink. Returns 1 / sum. */
static float softmax_row(const struct nn_attention *a, const struct head *hd,
                         const struct block *blk, int r)
{
    float *row = blk->p + (size_t)r * (size_t)blk->nkeys;
    const struct keys keys = keys_of(a, hd, blk, r);
    const size_t nkeys = keys.end - keys.begin;
    float *p = row + keys.begin;

    if (a->softcap > 0)
        cap_row(p, nkeys, a->softcap);
    const float highest = nn_max(p, nkeys), most = highest > hd->sink ? highest : hd->sink;
    exp_minus(p, nkeys, most);
    clear_unseen(row, blk, keys);
    const float sum = nn_sum(p, nkeys) + expf(hd->sink - most);
    hd->lse[blk->first + r] = most + logf(sum);
    if (a->drop.p > 0)
        drop_row(row, a, hd, blk, r, keys);
    return 1.0f / sum;
}

static void forward_block(const struct nn_attention *a, const struct head *hd,
                          const struct block *blk)
{
    const size_t D = (size_t)a->D;
    float inv_sum[QUERIES];

    queries_by_keys(a, blk, blk->p, &hd->q, &hd->k, a->scale);
    for (int r = 0; r < blk->nqueries; r++)
        inv_sum[r] = softmax_row(a, hd, blk, r);
    sum_over_keys(a, hd, blk, hd->o, blk->p, &hd->v);
    float *o = hd->o + (size_t)blk->first * (size_t)hd->o_row;
    for (int r = 0; r < blk->nqueries; r++, o += hd->o_row)
        for (size_t i = 0; i < D; i++)
            o[i] *= inv_sum[r];
}

/* A group is the query heads that share a key-value head, over a row: what one thread does. */
struct group {
    struct nn_attention a; /* with this thread's work */
    int b, first_head, end_head;
};

static struct group group_of(const struct nn_attention *a, size_t number, int worker)
{
    const int nheads = a->NH / a->NKV, kv_head = (int)(number % (size_t)a->NKV);
    struct group g = {*a, (int)(number / (size_t)a->NKV), kv_head * nheads, (kv_head + 1) * nheads};
    g.a.work += (size_t)worker * work_nelem(a, a->dtype);
    return g;
}

static void forward_document(const struct group *g, int from, int end)
{
    const struct nn_attention *a = &g->a;
    for (int h = g->first_head; h < g->end_head; h++) {
        const struct head hd = head_at(a, g->b, from, end, h);
        load_head(a, &hd, false);
        for (int first = 0; first < hd.Tq; first += QUERIES) {
            struct block blk = block_at(a, &hd, first);
            forward_block(a, &hd, &blk);
        }
        if (a->dtype != FSDP_F32)
            store_rows(a->o, a->dtype, hd.q_at, hd.o, hd.Tq, a->NH * a->D, a->D);
    }
}

static void forward_groups(void *arg, int worker, size_t first, size_t last)
{
    for (size_t number = first; number < last; number++) {
        const struct group g = group_of(arg, number, worker);
        for (int from = 0, end; from < g.a.Tq; from = end) {
            end = document_end(&g.a, g.b, from);
            forward_document(&g, from, end);
        }
    }
}

static void attention_forward(struct nn_attention *a)
{
    nn_blas_leave_room();
    fsdp_cpu_for((size_t)a->B * (size_t)a->NKV, 1, forward_groups, a);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* p = exp(p - lse); dp = p (dp - delta) scale */
FSDP_CPU_CLONES static void gradient_row(float *restrict p, float *restrict dp, size_t nelem,
                                         float lse, float delta, float scale)
{
    for (size_t i = 0; i < nelem; i++) {
        p[i] = nn_exp(p[i] - lse);
        dp[i] = p[i] * (dp[i] - delta) * scale;
    }
}

/* The same of scores that become cap tanh(p / cap), whose derivative is 1 - tanh². */
FSDP_CPU_CLONES static void capped_gradient_row(float *restrict p, float *restrict dp, size_t nelem,
                                                float lse, float delta, float scale, float cap)
{
    const float inv = 1.0f / cap;
    for (size_t i = 0; i < nelem; i++) {
        const float y = nn_tanh(p[i] * inv);
        p[i] = nn_exp(cap * y - lse);
        dp[i] = p[i] * (dp[i] - delta) * (1.0f - y * y) * scale;
    }
}

/* d_o · o of a row of D elements from `at`. */
static float delta_at(const struct nn_attention *a, size_t at)
{
    float o_room[NN_PIECE], d_room[NN_PIECE], sum = 0;
    for (size_t from = 0, D = (size_t)a->D; from < D; from += NN_PIECE) {
        const size_t n = D - from < NN_PIECE ? D - from : NN_PIECE;
        sum += nn_dot(nn_read(a->d_o, a->dtype, at + from, n, d_room),
                      nn_read(a->o, a->dtype, at + from, n, o_room), n);
    }
    return sum;
}

/* p becomes the probabilities (with dropout, those that were left), dp becomes the gradient of the
 * scores: ds = p (dp - sum(p dp)) scale, where sum(p dp) = d_o · o. */
static void softmax_backward(const struct nn_attention *a, const struct head *hd,
                             const struct block *blk)
{
    const size_t row = (size_t)a->NH * (size_t)a->D;
    for (int r = 0; r < blk->nqueries; r++) {
        float *p = blk->p + (size_t)r * (size_t)blk->nkeys;
        float *dp = blk->dp + (size_t)r * (size_t)blk->nkeys;
        const struct keys keys = keys_of(a, hd, blk, r);
        const size_t at = (size_t)(blk->first + r), nkeys = keys.end - keys.begin;
        const float delta = delta_at(a, hd->q_at + at * row), lse = hd->lse[at];
        if (a->drop.p > 0)
            drop_row(dp, a, hd, blk, r, keys);
        if (a->softcap > 0)
            capped_gradient_row(p + keys.begin, dp + keys.begin, nkeys, lse, delta, a->scale,
                                a->softcap);
        else
            gradient_row(p + keys.begin, dp + keys.begin, nkeys, lse, delta, a->scale);
        if (a->drop.p > 0)
            drop_row(p, a, hd, blk, r, keys);
        clear_unseen(p, blk, keys);
        clear_unseen(dp, blk, keys);
    }
}

/* dk and dv (Tk, D) get this block's part; dq may go over q, whose rows nobody reads any more. */
static void backward_block(const struct nn_attention *a, const struct head *hd,
                           const struct block *blk, float *dk, float *dv, float beta)
{
    queries_by_keys(a, blk, blk->p, &hd->q, &hd->k, a->scale);
    queries_by_keys(a, blk, blk->dp, &hd->d_o, &hd->v, 1);
    softmax_backward(a, hd, blk);
    sum_over_queries(a, blk, dv, blk->p, &hd->d_o, beta);
    sum_over_queries(a, blk, dk, blk->dp, &hd->q, beta);
    sum_over_keys(a, hd, blk, hd->dq, blk->dp, &hd->k);
}

/* The last block sees every key but those before its window, so it goes first and writes dk and dv;
 * all others add. */
static void backward_head(const struct nn_attention *a, const struct head *hd, float *dk, float *dv,
                          bool writes)
{
    const int last = (hd->Tq - 1) / QUERIES * QUERIES;
    for (int first = last; first >= 0; first -= QUERIES) {
        const struct block blk = block_at(a, hd, first);
        const bool sets = writes && first == last;
        const size_t before = (size_t)blk.first_key * (size_t)a->D;
        if (sets) {
            memset(dk, 0, before * sizeof *dk);
            memset(dv, 0, before * sizeof *dv);
        }
        backward_block(a, hd, &blk, dk, dv, sets ? 0.0f : 1.0f);
    }
}

static void backward_document(const struct group *g, int from, int end)
{
    const struct nn_attention *a = &g->a;
    const int nk_row = a->NKV * a->D;
    float *dk = a->work + 2 * tile_nelem(a), *dv = dk + (size_t)a->Tk * (size_t)a->D;
    struct head hd = {0};

    for (int h = g->first_head; h < g->end_head; h++) {
        hd = head_at(a, g->b, from, end, h);
        load_head(a, &hd, true);
        backward_head(a, &hd, dk, dv, h == g->first_head);
        if (a->dtype != FSDP_F32)
            store_rows(a->q, a->dtype, hd.q_at, hd.dq, hd.Tq, a->NH * a->D, a->D);
    }
    store_rows(a->k, a->dtype, hd.k_at, dk, hd.Tk, nk_row, a->D);
    store_rows(a->v, a->dtype, hd.k_at, dv, hd.Tk, nk_row, a->D);
}

static void backward_groups(void *arg, int worker, size_t first, size_t last)
{
    for (size_t number = first; number < last; number++) {
        const struct group g = group_of(arg, number, worker);
        for (int from = 0, end; from < g.a.Tq; from = end) {
            end = document_end(&g.a, g.b, from);
            backward_document(&g, from, end);
        }
    }
}

/* A sink's value is zero, so that the gradient of its score is -p delta in each row, p its share of
 * the softmax. One thread sums a head, in the order of the rows. */
static void sink_gradients(void *arg, int worker, size_t first, size_t last)
{
    const struct nn_attention *a = arg;
    const size_t Tq = (size_t)a->Tq, NH = (size_t)a->NH;
    (void)worker;
    for (size_t h = first; h < last; h++) {
        const float sink = sink_of(a, (int)h);
        double sum = 0;
        for (size_t b = 0; b < (size_t)a->B; b++)
            for (size_t t = 0; t < Tq; t++) {
                const float p = expf(sink - a->lse[(b * NH + h) * Tq + t]);
                sum -= (double)(p * delta_at(a, ((b * Tq + t) * NH + h) * (size_t)a->D));
            }
        void *to = nn_at(a->dsinks, a->dw_dtype, h);
        float out = 0;
        if (a->dsinks_beta != 0.0f)
            fsdp_cpu_convert(&out, FSDP_F32, to, a->dw_dtype, 1);
        out = (float)(sum + (double)(a->dsinks_beta * out));
        fsdp_cpu_convert(to, a->dw_dtype, &out, FSDP_F32, 1);
    }
}

static void attention_backward(struct nn_attention *a)
{
    nn_blas_leave_room();
    if (a->sinks && a->dsinks)
        fsdp_cpu_for((size_t)a->NH, 1, sink_gradients, a);
    fsdp_cpu_for((size_t)a->B * (size_t)a->NKV, 1, backward_groups, a);
}

NN_CPU_ENQUEUE(attention_forward, nn_attention)
NN_CPU_ENQUEUE(attention_backward, nn_attention)
