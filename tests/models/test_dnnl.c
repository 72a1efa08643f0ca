/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products through oneDNN against those through the CBLAS: transposed or not, added or not, with a
 * bias, of parts of wider matrices. In fp32, which every processor can, for how matrices are
 * described; in bf16 where the processor can.
 */
#include "nn/cpu/cpu.h"
#include "nn_ref.h"

static struct nn_matrix matrix(int rows, int cols, bool transposed, enum fsdp_dtype dtype,
                               const float *values)
{
    const int ld = (transposed ? rows : cols) + 5;
    const size_t nelem = (size_t)(transposed ? cols : rows) * ld;
    void *x = malloc(nelem * fsdp_dtype_nbytes(dtype));
    fsdp_cpu_convert(x, dtype, values, FSDP_F32, nelem);
    return (struct nn_matrix){x, ld, transposed, dtype, FSDP_F32};
}

static void test_product(int m, int n, int k, int mode, enum fsdp_dtype dtype,
                         enum fsdp_dtype c_dtype)
{
    const bool at = mode & 1, bt = mode & 2, biased = mode & 4, adds = mode & 8;
    const size_t nc = (size_t)m * (n + 3), width = fsdp_dtype_nbytes(c_dtype);
    float *values = ref_values((size_t)(m + n + k + 5) * (m + n + k + 5), 1),
          *c = ref_values(nc, 1);
    float *got = malloc(nc * sizeof *got), *want = malloc(nc * sizeof *want);
    const struct nn_linear shape = {.rows = m, .nin = k, .nout = n, .dtype = FSDP_BF16};
    float *work = malloc(nn_cpu_linear_work_nelem(&shape) * sizeof *work);
    void *out[2] = {malloc(nc * width), malloc(nc * width)};
    struct nn_product g = {.m = m,
                           .n = n,
                           .k = k,
                           .a = matrix(m, k, at, dtype, values),
                           .b = matrix(k, n, bt, dtype, values + 3),
                           .ldc = n + 3,
                           .c_dtype = c_dtype,
                           .bias = biased ? values : NULL,
                           .beta = adds ? 1 : 0,
                           .work = work};
    double *wide = ref_wide(nc);

    for (int i = 0; i < 2; i++)
        fsdp_cpu_convert(out[i], c_dtype, c, FSDP_F32, nc);
    g.c = out[0];
    bool done = nn_dnnl_gemm(&g);
    g.c = out[1];
    nn_gemm(&g);
    fsdp_cpu_convert(got, FSDP_F32, out[0], c_dtype, nc);
    fsdp_cpu_convert(want, FSDP_F32, out[1], c_dtype, nc);
    for (size_t i = 0; i < nc; i++)
        wide[i] = want[i];
    const double e = ref_error(got, wide, nc), bound = c_dtype == FSDP_BF16 ? 2e-3 : 1e-6;
    ok(done && e < bound, "%d x %d x %d of %s to %s%s%s%s%s: %.1e", m, n, k, fsdp_dtype_name(dtype),
       fsdp_dtype_name(c_dtype), at ? ", a transposed" : "", bt ? ", b transposed" : "",
       biased ? ", bias" : "", adds ? ", added" : "", e);
    free(values), free(c), free(got), free(want), free(work), free(out[0]), free(out[1]);
    free(wide), free(nn_at(g.a.at, dtype, 0)), free(nn_at(g.b.at, dtype, 0));
}

/* Experts have other numbers of rows in each step: more shapes than primitives are kept for. Which
 * kernel a shape has is the library's choice, so that each shape is compared with itself. */
static void test_many_shapes(void)
{
    enum { NSHAPES = 700, N = 8, K = 8 };
    float *x = ref_values((size_t)NSHAPES * K, 1), *w = ref_values((size_t)K * N, 1);
    float *y = calloc((size_t)NSHAPES * N, sizeof *y);
    uint64_t *first = calloc(NSHAPES + 1, sizeof *first);
    int ndone = 0, nequal = 0;

    for (int round = 0; round < 2; round++)
        for (int m = 1; m <= NSHAPES; m++) {
            const struct nn_product g = {.m = m,
                                         .n = N,
                                         .k = K,
                                         .a = {x, K, false, FSDP_F32},
                                         .b = {w, N, false, FSDP_F32},
                                         .c = y,
                                         .ldc = N,
                                         .c_dtype = FSDP_F32};
            ndone += nn_dnnl_gemm(&g);
            const uint64_t hash = fsdp_hash(FSDP_HASH_SEED, y, (size_t)m * N * sizeof *y);
            nequal += round && hash == first[m];
            first[m] = hash;
        }
    ok(ndone == 2 * NSHAPES, "%d of %d products of many shapes are oneDNN's", ndone, 2 * NSHAPES);
    ok(nequal == NSHAPES, "%d of %d have the same bits again", nequal, NSHAPES);
    free(x), free(w), free(y), free(first);
}

/* A sum of nothing: beta c and the bias are left. */
static void test_no_depth(enum fsdp_dtype dtype, bool transposed)
{
    enum { M = 2, N = 3, START = 5, BIAS = 7 };
    const float start = START, bias_of_one = BIAS;
    float c[M * N], none[M * N] = {0}, work[M * N];
    uint32_t bias[N];
    bool good = true;
    const struct nn_product g = {.m = M,
                                 .n = N,
                                 .a = {none, 1, false, dtype},
                                 .b = {none, N, transposed, dtype},
                                 .c = c,
                                 .ldc = N,
                                 .bias = bias,
                                 .bias_dtype = dtype,
                                 .work = work,
                                 .beta = 1};

    for (size_t i = 0; i < N; i++)
        fsdp_cpu_convert(nn_at(bias, dtype, i), dtype, &bias_of_one, FSDP_F32, 1);
    for (size_t i = 0; i < M * N; i++)
        c[i] = start;
    nn_gemm(&g);
    for (size_t i = 0; i < M * N; i++)
        good &= c[i] == START + BIAS;
    ok(good, "a product of depth 0 in %s, b%s transposed, leaves the bias and beta c",
       fsdp_dtype_name(dtype), transposed ? "" : " not");
}

int main(void)
{
    for (int k = 0; k < 4; k++)
        test_no_depth(k & 1 ? FSDP_BF16 : FSDP_F32, k & 2);
    if (!HAVE_DNNL) {
        tap_skip("built without oneDNN");
        return tap_done();
    }
    for (int mode = 0; mode < 16; mode++) {
        test_product(37, 53, 19, mode, FSDP_F32, FSDP_F32);
        test_product(130, 64, 96, mode, FSDP_F32, FSDP_F32);
    }
    test_product(37, 53, 19, 0, FSDP_F32, FSDP_F32); /* one that is known */
    for (int mode = 0; mode < 16; mode++)            /* in parts, where that is faster */
        test_product(3, 1100, 2100, mode, FSDP_F32, FSDP_F32);
    test_many_shapes();
    if (nn_dnnl_is_fast(FSDP_BF16)) {
        for (int mode = 0; mode < 16; mode++) {
            test_product(130, 65, 96, mode, FSDP_BF16, FSDP_BF16);
            test_product(130, 65, 96, mode, FSDP_BF16, FSDP_F32);
            test_product(3, 1100, 2100, mode, FSDP_BF16, FSDP_BF16);
        }
    } else {
        tap_skip("this processor has no products of bf16");
    }
    return tap_done();
}
