/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A benchmark, not a test: billions of operations per second of the three products of a linear map
 * on one thread, in fp32 and in bf16, and how many times as fast bf16 is.
 *
 *   bench_gemm [name=value ...]     rows nin nout rounds; without nin and nout: the maps of a Llama
 *                                   of 34 million parameters
 */
#include <stdio.h>
#include <time.h>

#include "nn/cpu/cpu.h"
#include "nn_ref.h"

enum { ROWS, NIN, NOUT, ROUNDS, NSIZES };
static struct {
    const char *name;
    int value;
} sizes[NSIZES] = {{"rows=", 1024}, {"nin=", 0}, {"nout=", 0}, {"rounds=", 10}};

/* The thread's own time, whatever else runs: OpenBLAS's threads spin for a moment when it is
 * loaded. */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double best_rate(struct nn_product g)
{
    double best = 0;

    nn_gemm(&g); /* makes the kernel */
    for (int i = 0; i < sizes[ROUNDS].value; i++) {
        const double start = now();
        nn_gemm(&g);
        const double rate = 2e-9 * g.m * g.n * g.k / (now() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

static void *matrix(size_t nelem, enum fsdp_dtype dtype, const float *values)
{
    enum { ALIGN = 64 };
    void *x = aligned_alloc(ALIGN, (nelem * sizeof(float) + ALIGN - 1) / ALIGN * ALIGN);
    fsdp_cpu_convert(x, dtype, values, FSDP_F32, nelem);
    return x;
}

static size_t most_of(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Forward, to the input, to the weight. */
static void measure(double rate[3], int rows, int nin, int nout, enum fsdp_dtype dtype)
{
    const size_t nx = (size_t)rows * (size_t)nin, ny = (size_t)rows * (size_t)nout;
    const size_t nw = (size_t)nin * (size_t)nout;
    float *values = ref_values(most_of(nw, most_of(nx, ny)), 1);
    void *x = matrix(nx, dtype, values), *y = matrix(ny, dtype, values);
    void *w = matrix(nw, dtype, values), *dw = matrix(nw, FSDP_F32, values);
    struct nn_linear s = {.out = y,
                          .x = x,
                          .w = w,
                          .dy = y,
                          .rows = rows,
                          .nin = nin,
                          .nout = nout,
                          .dtype = dtype,
                          .y_dtype = dtype,
                          .w_dtype = dtype};

    s.work = malloc(most_of(1, nn_cpu_linear_work_nelem(&s)) * sizeof *s.work);
    rate[0] = best_rate(nn_linear_forward_product(&s));
    s.out = x;
    rate[1] = best_rate(nn_linear_backward_input_product(&s));
    s.out = dw;
    rate[2] = best_rate(nn_linear_backward_weight_product(&s));
    free(values), free(x), free(y), free(w), free(dw), free(s.work);
}

static void bench(int nin, int nout)
{
    const int rows = sizes[ROWS].value;
    double wide[3], narrow[3];

    measure(wide, rows, nin, nout, FSDP_F32);
    measure(narrow, rows, nin, nout, FSDP_BF16);
    printf("%5d rows, %5d to %5d", rows, nin, nout);
    for (int i = 0; i < 3; i++)
        printf("  %7.1f %7.1f %5.2f", wide[i], narrow[i], narrow[i] / wide[i]);
    printf("\n");
}

int main(int argc, char **argv)
{
    static const int llama[][2] = {{512, 512}, {512, 1408}, {1408, 512}, {512, 8192}};

    for (int i = 1; i < argc; i++) {
        int k = 0;
        while (k < NSIZES && strncmp(argv[i], sizes[k].name, strlen(sizes[k].name)) != 0)
            k++;
        if (k < NSIZES)
            sizes[k].value = atoi(argv[i] + strlen(sizes[k].name));
        if (k == NSIZES || sizes[k].value < 1) {
            fprintf(stderr, "bench_gemm: %s: give rows=N, nin=N, nout=N or rounds=N, N > 0\n",
                    argv[i]);
            return 2;
        }
    }
    nn_set_threads(1);
    printf("BLAS kernels: %s; oneDNN: fp32 %s, bf16 %s\n", nn_blas_kernels(),
           nn_dnnl_is_fast(FSDP_F32) ? "yes" : "no", nn_dnnl_is_fast(FSDP_BF16) ? "yes" : "no");
    printf("%26s  %-23s%-23s%s\n", "fp32, bf16 (GFLOP/s), ratio:", "forward", "to the input",
           "to the weight");
    if (sizes[NIN].value && sizes[NOUT].value)
        bench(sizes[NIN].value, sizes[NOUT].value);
    else
        for (size_t i = 0; i < sizeof llama / sizeof *llama; i++)
            bench(llama[i][0], llama[i][1]);
    return 0;
}
