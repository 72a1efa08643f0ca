/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of small matrices, as attention has them, with AVX-512: a block of c stays in registers
 * while columns of a are multiplied by rows of b. Of bf16 an instruction takes two of each, so that
 * elements become pairs along k. What does not lie so is brought into that order first, which costs
 * little, for each element is multiplied many times:
 *
 *                                  b  panel  [ DEPTH x COLS ]   of rows of b, or of pairs of rows
 *      a  [ rows x DEPTH ]         c         [  rows x COLS ]   some rows at a time in registers
 *
 * Each element of c is a sum in the order of k, whatever lies around it. Sums are in fp32.
 */
#include "cpu.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

enum { LANES = 16, COLS = 64, DEPTH = 256, ROWS = 64 };

#define FOR_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define FOR_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

/* A block of c and what it is made of. Steps count elements of 32 bits: an fp32, or a pair. */
struct strip {
    const int32_t *a, *b;
    ptrdiff_t a_row, a_step, b_row;
    int depth;
    float *c;
    ptrdiff_t c_row;
    __mmask16 last; /* columns of the last vector */
    float alpha;
    bool adds;
};

typedef void kernel_f(const struct strip *s);

#define ADD_F32(acc, a, b) _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), acc)
#define ADD_BF16(acc, a, b) _mm512_dpbf16_ps(acc, (__m512bh)(a), (__m512bh)(b))

/* nrows rows of nvecs vectors. */
#define KERNEL(type, TARGET, nrows, nvecs)                                                         \
    TARGET static void type##_##nrows##_##nvecs(const struct strip *s)                             \
    {                                                                                              \
        __m512 sum[nrows][nvecs];                                                                  \
        _Pragma("GCC unroll 8") for (int r = 0; r < nrows; r++)                                    \
            _Pragma("GCC unroll 8") for (int v = 0; v < nvecs; v++) sum[r][v] =                    \
                _mm512_setzero_ps();                                                               \
        for (int l = 0; l < s->depth; l++) {                                                       \
            const int32_t *row = s->b + l * s->b_row, *col = s->a + l * s->a_step;                 \
            __m512i b[nvecs];                                                                      \
            _Pragma("GCC unroll 8") for (int v = 0; v < nvecs; v++) b[v] =                         \
                v + 1 < nvecs ? _mm512_loadu_si512(row + v * LANES)                                \
                              : _mm512_maskz_loadu_epi32(s->last, row + v * LANES);                \
            _Pragma("GCC unroll 8") for (int r = 0; r < nrows; r++)                                \
            {                                                                                      \
                const __m512i a = _mm512_set1_epi32(col[r * s->a_row]);                            \
                _Pragma("GCC unroll 8") for (int v = 0; v < nvecs; v++) sum[r][v] =                \
                    ADD_##type(sum[r][v], a, b[v]);                                                \
            }                                                                                      \
        }                                                                                          \
        _Pragma("GCC unroll 8") for (int r = 0; r < nrows; r++)                                    \
            _Pragma("GCC unroll 8") for (int v = 0; v < nvecs; v++)                                \
                store(s, r, v, v + 1 < nvecs ? 0xffff : s->last, sum[r][v]);                       \
    }

FOR_AVX512 static inline void store(const struct strip *s, int r, int v, __mmask16 mask, __m512 sum)
{
    float *c = s->c + r * s->c_row + v * LANES;
    sum = _mm512_mul_ps(sum, _mm512_set1_ps(s->alpha));
    if (s->adds)
        sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, c));
    _mm512_mask_storeu_ps(c, mask, sum);
}

#define KERNELS(type, TARGET, nrows)                                                               \
    KERNEL(type, TARGET, nrows, 1)                                                                 \
    KERNEL(type, TARGET, nrows, 2)                                                                 \
    KERNEL(type, TARGET, nrows, 3)                                                                 \
    KERNEL(type, TARGET, nrows, 4)
KERNELS(F32, FOR_AVX512, 1)
KERNELS(F32, FOR_AVX512, 4)
KERNELS(F32, FOR_AVX512, 6)
KERNELS(BF16, FOR_BF16, 1)
KERNELS(BF16, FOR_BF16, 4)
KERNELS(BF16, FOR_BF16, 6)

#define OF_VECS(type, nrows)                                                                       \
    {                                                                                              \
        type##_##nrows##_1, type##_##nrows##_2, type##_##nrows##_3, type##_##nrows##_4             \
    }
static const int kernel_rows[] = {6, 4, 1};
static kernel_f *const kernels[2][3][COLS / LANES] = {
    {OF_VECS(F32, 6), OF_VECS(F32, 4), OF_VECS(F32, 1)},
    {OF_VECS(BF16, 6), OF_VECS(BF16, 4), OF_VECS(BF16, 1)},
};

/* ---- bringing operands into order ------------------------------------------------------------ */

static int at_most(int x, int most)
{
    return x < most ? x : most;
}

static __mmask32 first_of(int n)
{
    return n >= 32 ? 0xffffffffu : n > 0 ? (1u << n) - 1 : 0;
}

/* Columns of 16 rows of 16 elements of 32 bits become rows. */
FOR_AVX512 static inline void transpose(__m512 x[LANES])
{
    __m512 t[LANES];
    for (int i = 0; i < LANES; i += 2) {
        t[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4)
        for (int half = 0; half < 2; half++) {
            const __m512d low = _mm512_castps_pd(t[i + half]);
            const __m512d high = _mm512_castps_pd(t[i + half + 2]);
            x[i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            x[i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    /* x[4 g + c] has columns c, 4 + c, 8 + c, 12 + c of rows 4 g to 4 g + 3. */
    for (int c = 0; c < 4; c++) {
        const __m512 even = _mm512_shuffle_f32x4(x[c], x[4 + c], 0x88);
        const __m512 odd = _mm512_shuffle_f32x4(x[c], x[4 + c], 0xdd);
        const __m512 even2 = _mm512_shuffle_f32x4(x[8 + c], x[12 + c], 0x88);
        const __m512 odd2 = _mm512_shuffle_f32x4(x[8 + c], x[12 + c], 0xdd);
        t[c] = _mm512_shuffle_f32x4(even, even2, 0x88);
        t[4 + c] = _mm512_shuffle_f32x4(odd, odd2, 0x88);
        t[8 + c] = _mm512_shuffle_f32x4(even, even2, 0xdd);
        t[12 + c] = _mm512_shuffle_f32x4(odd, odd2, 0xdd);
    }
    for (int i = 0; i < LANES; i++)
        x[i] = t[i];
}

/* panel[l][j] = x[j][l], of fp32 or of pairs along a row of x: ncols rows of x, k elements of each.
 */
FOR_AVX512 static void turn(int32_t (*panel)[COLS], const char *x, size_t row_nbytes, int ncols,
                            int k, bool pairs)
{
    const int step = pairs ? 2 * LANES : LANES;
    for (int j = 0; j < ncols; j += LANES)
        for (int l = 0; l < k; l += step) {
            const __mmask32 mask = first_of(k - l);
            __m512 rows[LANES];
            for (int r = 0; r < LANES; r++) {
                const char *at = x + (size_t)(j + r) * row_nbytes + (size_t)l * (pairs ? 2 : 4);
                rows[r] = j + r >= ncols ? _mm512_setzero_ps()
                          : pairs        ? _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, at))
                                         : _mm512_maskz_loadu_ps((__mmask16)mask, at);
            }
            transpose(rows);
            for (int r = 0; r < LANES && l + r * (pairs ? 2 : 1) < k; r++)
                _mm512_storeu_ps(panel[(pairs ? l / 2 : l) + r] + j, rows[r]);
        }
}

/* Pairs of rows of bf16: panel[l][j] = x[2 l][j], x[2 l + 1][j]; zero behind the last row. */
FOR_AVX512 static void pair_rows(int32_t (*panel)[COLS], const uint16_t *x, size_t ld, int ncols,
                                 int k)
{
    for (int l = 0; l < k; l += 2, x += 2 * ld)
        for (int j = 0; j < ncols; j += LANES) {
            const __mmask16 mask = (__mmask16)first_of(ncols - j);
            const __m256i low = _mm256_maskz_loadu_epi16(mask, x + j);
            const __m256i high =
                l + 1 < k ? _mm256_maskz_loadu_epi16(mask, x + ld + j) : _mm256_setzero_si256();
            const __m512i pairs = _mm512_or_si512(
                _mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
            _mm512_storeu_si512(panel[l / 2] + j, pairs);
        }
}

/* Rows of fp32 as pairs of bf16: pairs[i][l] = x[i][2 l], x[i][2 l + 1]. */
FOR_BF16 static void narrow_rows(int32_t (*pairs)[DEPTH / 2], const float *x, size_t ld, int nrows,
                                 int k)
{
    for (int i = 0; i < nrows; i++, x += ld)
        for (int l = 0; l < k; l += 2 * LANES) {
            const __mmask32 mask = first_of(k - l);
            const __m512 low = _mm512_maskz_loadu_ps((__mmask16)mask, x + l);
            const __m512 high = _mm512_maskz_loadu_ps((__mmask16)(mask >> LANES), x + l + LANES);
            _mm512_storeu_si512(&pairs[i][l / 2], (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
}

/* Pairs of rows of fp32, in bf16: pairs[l][i] = x[2 l][i], x[2 l + 1][i]. */
FOR_BF16 static void narrow_pairs(int32_t (*pairs)[ROWS], const float *x, size_t ld, int nrows,
                                  int k)
{
    for (int l = 0; l < k; l += 2, x += 2 * ld)
        for (int i = 0; i < nrows; i += LANES) {
            const __mmask16 mask = (__mmask16)first_of(nrows - i);
            const __m512 low = _mm512_maskz_loadu_ps(mask, x + i);
            const __m512 high =
                l + 1 < k ? _mm512_maskz_loadu_ps(mask, x + ld + i) : _mm512_setzero_ps();
            const __m512i a = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(low));
            const __m512i b = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(high));
            _mm512_storeu_si512(pairs[l / 2] + i, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
        }
}

/* ---- a product ------------------------------------------------------------------------------- */

struct room {
    _Alignas(64) int32_t panel[DEPTH][COLS];
    union {
        _Alignas(64) int32_t rows[ROWS][DEPTH / 2], down[DEPTH / 2][ROWS];
    } a;
};

/* Rows [l, l + depth) of op(b), columns [j, j + ncols). */
static void take_b(struct strip *s, struct room *room, const struct nn_product *g, int j, int ncols,
                   int l, int depth)
{
    const struct nn_matrix *b = &g->b;
    const size_t ld = (size_t)b->ld, elem = fsdp_dtype_nbytes(b->dtype);
    const size_t at = b->transposed ? (size_t)j * ld + (size_t)l : (size_t)l * ld + (size_t)j;

    s->b = room->panel[0];
    s->b_row = COLS;
    if (b->transposed) {
        turn(room->panel, (const char *)b->at + at * elem, ld * elem, ncols, depth,
             b->dtype == FSDP_BF16);
    } else if (b->dtype == FSDP_BF16) {
        pair_rows(room->panel, (const uint16_t *)b->at + at, ld, ncols, depth);
    } else {
        s->b = (const int32_t *)b->at + at;
        s->b_row = b->ld;
    }
}

/* Rows [i, i + nrows) of op(a), columns [l, l + depth). */
static void take_a(struct strip *s, struct room *room, const struct nn_product *g, int i, int nrows,
                   int l, int depth)
{
    const struct nn_matrix *a = &g->a;
    const size_t ld = (size_t)a->ld;
    const size_t at = a->transposed ? (size_t)l * ld + (size_t)i : (size_t)i * ld + (size_t)l;
    const bool pairs = g->b.dtype == FSDP_BF16;

    if (pairs && a->dtype == FSDP_F32 && a->transposed) {
        narrow_pairs(room->a.down, (const float *)a->at + at, ld, nrows, depth);
        s->a = room->a.down[0];
        s->a_row = 1;
        s->a_step = ROWS;
    } else if (pairs && a->dtype == FSDP_F32) {
        narrow_rows(room->a.rows, (const float *)a->at + at, ld, nrows, depth);
        s->a = room->a.rows[0];
        s->a_row = DEPTH / 2;
        s->a_step = 1;
    } else if (pairs) {
        s->a = (const int32_t *)((const uint16_t *)a->at + at);
        s->a_row = a->ld / 2;
        s->a_step = 1;
    } else {
        s->a = (const int32_t *)a->at + at;
        s->a_row = a->transposed ? 1 : a->ld;
        s->a_step = a->transposed ? a->ld : 1;
    }
}

static void multiply_rows(struct strip s, int nrows, int ncols, bool pairs)
{
    const int nvecs = (ncols + LANES - 1) / LANES;
    s.last = (__mmask16)first_of(ncols - (nvecs - 1) * LANES);
    for (int kind = 0; kind < 3; kind++)
        for (const int n = kernel_rows[kind]; nrows >= n; nrows -= n) {
            kernels[pairs][kind][nvecs - 1](&s);
            s.a += n * s.a_row;
            s.c += n * s.c_row;
        }
}

bool nn_tile_has(enum fsdp_dtype dtype)
{
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return wide &&
           (dtype == FSDP_F32 || (dtype == FSDP_BF16 && __builtin_cpu_supports("avx512bf16")));
}

void nn_tile_gemm(const struct nn_product *g, float alpha)
{
    const bool pairs = g->b.dtype == FSDP_BF16;
    struct room room;
    struct strip s = {.c_row = g->ldc, .alpha = alpha};

    for (int j = 0; j < g->n; j += COLS)
        for (int l = 0; l < g->k; l += DEPTH) {
            const int ncols = at_most(g->n - j, COLS), depth = at_most(g->k - l, DEPTH);
            take_b(&s, &room, g, j, ncols, l, depth);
            s.depth = pairs ? (depth + 1) / 2 : depth;
            s.adds = l > 0 || g->beta != 0.0f;
            for (int i = 0; i < g->m; i += ROWS) {
                const int nrows = at_most(g->m - i, ROWS);
                take_a(&s, &room, g, i, nrows, l, depth);
                s.c = (float *)g->c + (size_t)i * (size_t)g->ldc + j;
                multiply_rows(s, nrows, ncols, pairs);
            }
        }
}

#else

bool nn_tile_has(enum fsdp_dtype dtype)
{
    (void)dtype;
    return false;
}

void nn_tile_gemm(const struct nn_product *g, float alpha)
{
    (void)g;
    (void)alpha;
}

#endif
