/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal attention, one head and one block of queries at a time, so that scores never take more
 * than QUERIES rows of memory. What the backward pass needs of the softmax is its log-sum-exp per
 * row, from which it makes the probabilities again (Dao et al., arXiv 2205.14135).
 *
 *        keys 0 ........... nkeys     a block of queries sees the keys before its end; inside its
 *      q [ x x x x x x . . . ]        last square, row r sees valid(r) keys and the rest of the row
 *      q [ x x x x x x x . . ]        is set to zero before it enters a matrix product
 *      q [ x x x x x x x x . ]
 */
#include <cblas.h>
#include <math.h>

#include "cpu.h"

enum { QUERIES = 64 };

/* One head of one document: its matrices in fp32, whose rows are nq_row (q, o, d_o) and nk_row (k,
 * v) elements apart. Of a 16-bit type they are copies in a->work, and q_at and k_at say of what. */
struct head {
    float *q, *k, *v, *o, *d_o, *lse;
    int nq_row, nk_row, Tq, Tk;
    size_t q_at, k_at;
    /* Dropout's element of query r and key i is drop_first + r drop_row + i, in row b. */
    int b;
    uint64_t drop_first, drop_row;
};

/* A block of queries of a head and its scratch. */
struct block {
    int first, nqueries, nkeys;
    float *p, *dp; /* (nqueries, nkeys) */
};

/* p, dp | dk, dv | copies of q, o, d_o, k, v */
static size_t work_nelem(int Tq, int Tk, int D, enum fsdp_dtype dtype)
{
    const size_t queries = Tq < QUERIES ? (size_t)Tq : QUERIES;
    const size_t nq = (size_t)Tq * (size_t)D, nk = (size_t)Tk * (size_t)D;
    return 2 * queries * (size_t)Tk + 2 * nk + (dtype == FSDP_F32 ? 0 : 3 * nq + 2 * nk);
}

/* Each thread has its own. */
size_t nn_cpu_attention_work_nelem(const struct nn_attention *s)
{
    return work_nelem(s->Tq, s->Tk, s->D, s->dtype) * (size_t)fsdp_cpu_threads();
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

static void place_copies(struct head *hd, const struct nn_attention *a)
{
    const size_t nq = (size_t)a->Tq * (size_t)a->D, nk = (size_t)a->Tk * (size_t)a->D;
    hd->q = a->work + work_nelem(a->Tq, a->Tk, a->D, FSDP_F32);
    hd->o = hd->q + nq;
    hd->d_o = hd->o + nq;
    hd->k = hd->d_o + nq;
    hd->v = hd->k + nk;
    hd->nq_row = hd->nk_row = a->D;
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
        .nq_row = (int)nq_row,
        .nk_row = (int)nk_row,
        .Tq = end - first,
        .Tk = a->starts ? end - first : a->Tk,
        .b = b,
        .drop_first = (uint64_t)(h * a->Tq + first) * drop_row + (uint64_t)first,
        .drop_row = drop_row,
    };
    if (a->dtype != FSDP_F32) {
        place_copies(&hd, a);
        return hd;
    }
    hd.q = (float *)a->q + q;
    hd.o = (float *)a->o + q;
    hd.d_o = nn_at(a->d_o, FSDP_F32, a->d_o ? q : 0);
    hd.k = (float *)a->k + k;
    hd.v = (float *)a->v + k;
    return hd;
}

/* A head's rows between the caller's memory, row_nelem apart, and a copy in fp32. */
static void load_rows(float *to, const void *from, enum fsdp_dtype dtype, size_t at, int nrows,
                      int row_nelem, int D)
{
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
    if (a->dtype == FSDP_F32)
        return;
    load_rows(hd->q, a->q, a->dtype, hd->q_at, hd->Tq, nq_row, a->D);
    load_rows(hd->k, a->k, a->dtype, hd->k_at, hd->Tk, nk_row, a->D);
    load_rows(hd->v, a->v, a->dtype, hd->k_at, hd->Tk, nk_row, a->D);
    if (backward) {
        load_rows(hd->o, a->o, a->dtype, hd->q_at, hd->Tq, nq_row, a->D);
        load_rows(hd->d_o, a->d_o, a->dtype, hd->q_at, hd->Tq, nq_row, a->D);
    }
}

static struct block block_at(const struct nn_attention *a, const struct head *hd, int first)
{
    int nqueries = hd->Tq - first < QUERIES ? hd->Tq - first : QUERIES;
    int nkeys = hd->Tk - hd->Tq + first + nqueries;
    size_t tile = (size_t)(a->Tq < QUERIES ? a->Tq : QUERIES) * (size_t)a->Tk;
    return (struct block){first, nqueries, nkeys, a->work, a->work + tile};
}

/* Keys that row r of the block sees. */
static size_t valid(const struct block *blk, int r)
{
    return (size_t)(blk->nkeys - blk->nqueries + r + 1);
}

/* p = scale q kᵀ */
static void scores(const struct nn_attention *a, const struct head *hd, const struct block *blk)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, blk->nqueries, blk->nkeys, a->D, a->scale,
                hd->q + (size_t)blk->first * (size_t)hd->nq_row, hd->nq_row, hd->k, hd->nk_row, 0,
                blk->p, blk->nkeys);
}

FSDP_CPU_CLONES static void exp_minus(float *x, size_t nelem, float shift)
{
    for (size_t i = 0; i < nelem; i++)
        x[i] = nn_exp(x[i] - shift);
}

/* x *= dropout's factors of row r of the block. */
static void drop_row(float *x, const struct nn_attention *a, const struct head *hd,
                     const struct block *blk, int r, size_t nelem)
{
    enum { PIECE = 256 };
    float factors[PIECE];
    const uint64_t at = hd->drop_first + (uint64_t)(blk->first + r) * hd->drop_row;
    for (size_t from = 0; from < nelem; from += PIECE) {
        const size_t n = nelem - from < PIECE ? nelem - from : PIECE;
        nn_drop_factors(factors, &a->drop, hd->b, at + from, n);
        for (size_t i = 0; i < n; i++)
            x[from + i] *= factors[i];
    }
}

static void forward_block(const struct nn_attention *a, const struct head *hd,
                          const struct block *blk)
{
    const size_t D = (size_t)a->D;
    float inv_sum[QUERIES];

    scores(a, hd, blk);
    for (int r = 0; r < blk->nqueries; r++) {
        float *p = blk->p + (size_t)r * (size_t)blk->nkeys;
        size_t nvalid = valid(blk, r);
        float most = nn_max(p, nvalid);
        exp_minus(p, nvalid, most);
        memset(p + nvalid, 0, ((size_t)blk->nkeys - nvalid) * sizeof *p);
        float sum = nn_sum(p, nvalid);
        inv_sum[r] = 1.0f / sum;
        hd->lse[blk->first + r] = most + logf(sum);
        if (a->drop.p > 0)
            drop_row(p, a, hd, blk, r, nvalid);
    }
    float *o = hd->o + (size_t)blk->first * (size_t)hd->nq_row;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, blk->nqueries, a->D, blk->nkeys, 1,
                blk->p, blk->nkeys, hd->v, hd->nk_row, 0, o, hd->nq_row);
    for (int r = 0; r < blk->nqueries; r++, o += hd->nq_row)
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
    g.a.work += (size_t)worker * work_nelem(a->Tq, a->Tk, a->D, a->dtype);
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
    fsdp_cpu_for((size_t)a->B * (size_t)a->NKV, 1, forward_groups, a);
}

/* p = exp(p - lse); dp = p (dp - delta) scale */
FSDP_CPU_CLONES static void gradient_row(float *restrict p, float *restrict dp, size_t nelem,
                                         float lse, float delta, float scale)
{
    for (size_t i = 0; i < nelem; i++) {
        p[i] = nn_exp(p[i] - lse);
        dp[i] = p[i] * (dp[i] - delta) * scale;
    }
}

/* p becomes the probabilities (with dropout, those that were left), dp becomes the gradient of the
 * scores: ds = p (dp - sum(p dp)) scale, where sum(p dp) = d_o · o. */
static void softmax_backward(const struct nn_attention *a, const struct head *hd,
                             const struct block *blk)
{
    const size_t D = (size_t)a->D, row = (size_t)hd->nq_row;
    for (int r = 0; r < blk->nqueries; r++) {
        float *p = blk->p + (size_t)r * (size_t)blk->nkeys;
        float *dp = blk->dp + (size_t)r * (size_t)blk->nkeys;
        const size_t nvalid = valid(blk, r), at = (size_t)(blk->first + r);
        const float delta = nn_dot(hd->d_o + at * row, hd->o + at * row, D);
        if (a->drop.p > 0)
            drop_row(dp, a, hd, blk, r, nvalid);
        gradient_row(p, dp, nvalid, hd->lse[at], delta, a->scale);
        if (a->drop.p > 0)
            drop_row(p, a, hd, blk, r, nvalid);
        memset(p + nvalid, 0, ((size_t)blk->nkeys - nvalid) * sizeof *p);
        memset(dp + nvalid, 0, ((size_t)blk->nkeys - nvalid) * sizeof *dp);
    }
}

/* dk and dv (Tk, D) get this block's part; dq goes over q, whose rows nobody reads any more. */
static void backward_block(const struct nn_attention *a, const struct head *hd,
                           const struct block *blk, float *dk, float *dv, float beta)
{
    const int n = blk->nqueries, nkeys = blk->nkeys, D = a->D;
    const size_t at = (size_t)blk->first * (size_t)hd->nq_row;
    float *q = hd->q + at;
    const float *d_o = hd->d_o + at;

    scores(a, hd, blk);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, nkeys, D, 1, d_o, hd->nq_row, hd->v,
                hd->nk_row, 0, blk->dp, nkeys);
    softmax_backward(a, hd, blk);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, nkeys, D, n, 1, blk->p, nkeys, d_o,
                hd->nq_row, beta, dv, D);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, nkeys, D, n, 1, blk->dp, nkeys, q,
                hd->nq_row, beta, dk, D);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, D, nkeys, 1, blk->dp, nkeys, hd->k,
                hd->nk_row, 0, q, hd->nq_row);
}

/* The last block sees every key, so it goes first and writes dk and dv; all others add. */
static void backward_document(const struct group *g, int from, int end)
{
    const struct nn_attention *a = &g->a;
    const int last = (end - from - 1) / QUERIES * QUERIES, nk_row = a->NKV * a->D;
    const size_t nkv = (size_t)a->Tk * (size_t)a->D;
    float *dk = a->work + work_nelem(a->Tq, a->Tk, a->D, FSDP_F32) - 2 * nkv, *dv = dk + nkv;
    struct head hd = {0};

    for (int h = g->first_head; h < g->end_head; h++) {
        hd = head_at(a, g->b, from, end, h);
        load_head(a, &hd, true);
        for (int first = last; first >= 0; first -= QUERIES) {
            struct block blk = block_at(a, &hd, first);
            bool writes = h == g->first_head && first == last;
            backward_block(a, &hd, &blk, dk, dv, writes ? 0.0f : 1.0f);
        }
        if (a->dtype != FSDP_F32)
            store_rows(a->q, a->dtype, hd.q_at, hd.q, hd.Tq, a->NH * a->D, a->D);
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

static void attention_backward(struct nn_attention *a)
{
    fsdp_cpu_for((size_t)a->B * (size_t)a->NKV, 1, backward_groups, a);
}

NN_CPU_ENQUEUE(attention_forward, nn_attention)
NN_CPU_ENQUEUE(attention_backward, nn_attention)
