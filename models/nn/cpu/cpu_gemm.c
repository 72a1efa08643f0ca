/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products of any mix of types. fp32 by fp32, and bf16 by bf16, go to oneDNN where it has
 * kernels for the processor's own instructions; else fp32 goes to CBLAS as it is. Of other types
 * blocks that fit the second cache are converted to fp32 and multiplied there, sums stay in fp32
 * over all of k, and the result is rounded once. Products in 8 bits become those of bf16.
 *
 *            b  [ k x n ]            for each block of c:
 *               [   |   ]                for each block of k: convert a's and b's, multiply, add
 *      a        [   v   ]                add bias and beta c, convert
 *   [ m x k ]  c [m x n]
 *   [ ----> ]    [  .  ]
 */
#include <cblas.h>

#include "cpu.h"

enum { BLOCK = 512 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Of one thread. */
static size_t work_nelem(int m, int n, int k)
{
    const size_t rows = (size_t)least(m, BLOCK), cols = (size_t)least(n, BLOCK);
    const size_t depth = (size_t)least(k, BLOCK);
    return rows * depth + depth * cols + rows * cols;
}

size_t nn_cpu_linear_work_nelem(const struct nn_linear *s)
{
    if (!s->dtype && !s->y_dtype && !s->w_dtype && !s->dw_dtype && !s->f8.dtype)
        return 0;
    return work_nelem(s->rows, s->nin, s->nout) * (size_t)fsdp_cpu_threads() +
           (s->f8.dtype ? nn_cpu_f8_nelem(s) : 0);
}

/* One row of c: the product is as fast as memory gives b. */
static void sgemv(const struct nn_product *g)
{
    const bool down = !g->b.transposed; /* b lies (k, n) */
    nn_blas_leave_room();
    cblas_sgemv(CblasRowMajor, down ? CblasTrans : CblasNoTrans, down ? g->k : g->n,
                down ? g->n : g->k, 1.0f, g->b.at, g->b.ld, g->a.at, g->a.transposed ? g->a.ld : 1,
                g->beta, g->c, 1);
}

/* Every row of c begins as bias + beta c, and the product is added to it. */
static void add_bias(const struct nn_product *g)
{
    float room[NN_PIECE];
    for (size_t from = 0; from < (size_t)g->n; from += NN_PIECE) {
        const size_t nelem = (size_t)g->n - from < NN_PIECE ? (size_t)g->n - from : NN_PIECE;
        const float *bias = nn_read(g->bias, g->bias_dtype, from, nelem, room);
        for (int r = 0; r < g->m; r++) {
            float *c = (float *)g->c + (size_t)r * (size_t)g->ldc + from;
            if (g->beta == 0.0f)
                memcpy(c, bias, nelem * sizeof *c);
            else
                for (size_t i = 0; i < nelem; i++)
                    c[i] = bias[i] + g->beta * c[i];
        }
    }
}

/* Rows [row, row + nrows) and columns [col, col + ncols) of op(x), as fp32. */
static struct nn_matrix block_of(const struct nn_matrix *x, int row, int col, int nrows, int ncols,
                                 float *room)
{
    struct nn_matrix out = *x;
    const int first = x->transposed ? col : row, n = x->transposed ? ncols : nrows;
    const int from = x->transposed ? row : col, width = x->transposed ? nrows : ncols;
    const size_t at = (size_t)first * (size_t)x->ld + (size_t)from;

    out.at = nn_at(x->at, x->dtype, at);
    if (x->dtype == FSDP_F32)
        return out;
    for (int r = 0; r < n; r++)
        fsdp_cpu_convert(room + (size_t)r * (size_t)width, FSDP_F32,
                         nn_at(out.at, x->dtype, (size_t)r * (size_t)x->ld), x->dtype,
                         (size_t)width);
    out.at = room;
    out.ld = width;
    out.dtype = FSDP_F32;
    return out;
}

/* A finished block of sums goes to c. */
static void store_block(const struct nn_product *g, const float *sums, int row, int col, int nrows,
                        int ncols)
{
    const size_t n = (size_t)ncols;
    float bias_room[BLOCK], old_room[BLOCK], out[BLOCK];
    const float *bias = NULL;

    if (g->bias)
        bias = nn_read(g->bias, g->bias_dtype, (size_t)col, n, bias_room);
    for (int r = 0; r < nrows; r++, sums += n) {
        const size_t at = (size_t)(row + r) * (size_t)g->ldc + (size_t)col;
        memcpy(out, sums, n * sizeof *out);
        for (size_t i = 0; i < n && bias; i++)
            out[i] += bias[i];
        if (g->beta != 0.0f) {
            const float *old = nn_read(g->c, g->c_dtype, at, n, old_room);
            for (size_t i = 0; i < n; i++)
                out[i] += g->beta * old[i];
        }
        fsdp_cpu_convert(nn_at(g->c, g->c_dtype, at), g->c_dtype, out, FSDP_F32, n);
    }
}

/* Blocks of a row of c follow each other, and where k is one block a's stays converted. */
static void block(const struct nn_product *g, int row, int col, int nrows, int ncols)
{
    const bool kept = col > 0 && g->k <= BLOCK && g->a.dtype != FSDP_F32;
    float *a_room = g->work, *b_room = a_room + (size_t)nrows * (size_t)least(g->k, BLOCK);
    float *sums = b_room + (size_t)ncols * (size_t)least(g->k, BLOCK);
    const bool direct = g->c_dtype == FSDP_F32;
    struct nn_product part = {.m = nrows, .n = ncols, .c = sums, .ldc = ncols};

    if (direct) {
        part.c = (float *)g->c + (size_t)row * (size_t)g->ldc + (size_t)col;
        part.ldc = g->ldc;
    }
    for (int k = 0; k < g->k; k += BLOCK) {
        part.k = least(g->k - k, BLOCK);
        if (kept)
            part.a = (struct nn_matrix){a_room, g->a.transposed ? nrows : g->k, g->a.transposed,
                                        FSDP_F32, FSDP_F32};
        else
            part.a = block_of(&g->a, row, k, nrows, part.k, a_room);
        part.b = block_of(&g->b, k, col, part.k, ncols, b_room);
        part.beta = k ? 1.0f : direct ? g->beta : 0.0f;
        nn_blas_sgemm(&part, 1);
    }
    if (!direct)
        store_block(g, sums, row, col, nrows, ncols);
}

static bool is_f32(const struct nn_product *g)
{
    return g->a.dtype == FSDP_F32 && g->b.dtype == FSDP_F32 && g->c_dtype == FSDP_F32;
}

/* Making a kernel for a shape takes about as long as a product of some tens of rows. In fp32 the
 * CBLAS does without. */
static bool is_for_dnnl(const struct nn_product *g)
{
    if (g->k < 1)
        return false;
    if (is_f32(g))
        return g->m > 1 && !g->passing && nn_dnnl_is_fast(FSDP_F32);
    return g->a.dtype == FSDP_BF16 && g->b.dtype == FSDP_BF16 && nn_dnnl_is_fast(FSDP_BF16);
}

bool nn_cpu_multiplies(enum fsdp_dtype dtype)
{
    return dtype == FSDP_F32 || (dtype == FSDP_BF16 && nn_dnnl_is_fast(dtype));
}

static void without_dnnl(const struct nn_product *g)
{
    struct nn_product rest = *g;

    if (g->bias && g->c_dtype == FSDP_F32) {
        add_bias(g);
        rest.bias = NULL;
        rest.beta = 1;
    }
    if (is_f32(g)) {
        if (g->m == 1)
            sgemv(&rest);
        else
            nn_blas_sgemm(&rest, 1);
        return;
    }
    for (int row = 0; row < g->m; row += BLOCK)
        for (int col = 0; col < g->n; col += BLOCK)
            block(&rest, row, col, least(g->m - row, BLOCK), least(g->n - col, BLOCK));
}

/* oneDNN's kernels for a b that lies (k, n) are fast up to these sizes. Beyond, with few rows in
 * fp32, they take up to 1.5 times as long. A sum of bf16 is not divided, because c may be in 16
 * bits. */
enum { DNNL_COLS = 1024, DNNL_DEPTH = 2048 };

/* The part of c's columns from `col` on that comes from k on. */
static void dnnl_part(const struct nn_product *g, int col, int ncols, int k, int depth)
{
    struct nn_product part = *g;

    part.n = ncols;
    part.k = depth;
    part.a.at = nn_at(g->a.at, g->a.dtype, (size_t)k * (g->a.transposed ? (size_t)g->a.ld : 1));
    part.b.at = nn_at(g->b.at, g->b.dtype, (size_t)k * (size_t)g->b.ld + (size_t)col);
    part.c = nn_at(g->c, g->c_dtype, (size_t)col);
    part.bias = k || !g->bias ? NULL : nn_at(g->bias, g->bias_dtype, (size_t)col);
    if (k)
        part.beta = 1;
    if (!nn_dnnl_gemm(&part))
        without_dnnl(&part);
}

static void gemm(const struct nn_product *g)
{
    const int most_depth = is_f32(g) ? DNNL_DEPTH : g->k;

    if (!is_for_dnnl(g) || g->b.transposed) {
        if (!is_for_dnnl(g) || !nn_dnnl_gemm(g))
            without_dnnl(g);
        return;
    }
    for (int col = 0; col < g->n; col += DNNL_COLS)
        for (int k = 0; k < g->k; k += most_depth)
            dnnl_part(g, col, least(g->n - col, DNNL_COLS), k, least(g->k - k, most_depth));
}

/* Rows [from, to) of c, or as many columns where c is wide. */
static void gemm_part(void *arg, int worker, size_t from, size_t to)
{
    const struct nn_product *g = arg;
    const bool by_rows = g->m >= g->n;
    struct nn_matrix *x;
    struct nn_product part = *g;

    if (g->work)
        part.work += (size_t)worker * work_nelem(g->m, g->n, g->k);
    if (by_rows) {
        x = &part.a;
        part.m = (int)(to - from);
        part.c = nn_at(g->c, g->c_dtype, from * (size_t)g->ldc);
    } else {
        x = &part.b;
        part.n = (int)(to - from);
        part.c = nn_at(g->c, g->c_dtype, from);
        if (g->bias)
            part.bias = nn_at(g->bias, g->bias_dtype, from);
    }
    x->at = nn_at(x->at, x->dtype, from * (by_rows != x->transposed ? (size_t)x->ld : 1));
    gemm(&part);
}

/* A part for each thread, unless handing it over takes longer than the product. */
void nn_gemm(const struct nn_product *g)
{
    const double nflops = 2.0 * g->m * g->n * g->k, worth = 4e6;
    const int most = g->m >= g->n ? g->m : g->n, nthreads = fsdp_cpu_threads();
    const int share = (most + nthreads - 1) / nthreads, grain = (share + 31) / 32 * 32;
    struct nn_product whole = g->a.f8 ? nn_cpu_f8_product(g) : *g;

    fsdp_cpu_for((size_t)most, (size_t)(nflops < worth ? most : grain), gemm_part, &whole);
}
