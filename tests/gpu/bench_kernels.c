/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each operator at the shapes of an 8B Llama's layer, next to the time that its bytes take at the
 * speed of a copy, measured here, or its products at the speed of the largest matrix product,
 * measured here, too.
 *
 *   bench_kernels [cuda|cpu] [small]
 *
 * The last line is one JSON object.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../models/nn/nn.h"

struct bench {
    struct fsdp_device *device;
    struct fsdp_lane *lane;
    const struct nn_ops *nn;
    int rows, T, dim, ffn, NH, NKV, D, vocab;
    double copy_rate, product_rate; /* bytes and operations a second */
    char json[16384];
    int failed;
};

static void fail(const char *what, const struct fsdp_err *err)
{
    fprintf(stderr, "bench_kernels: %s: %s\n", what, err->text);
    exit(1);
}

/* Random values: zeros would flatter a GPU's clock. */
static void *make(struct bench *b, size_t nelem, enum fsdp_dtype dtype)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    static uint64_t stream;
    struct fsdp_init init = {FSDP_INIT_NORMAL, 0.5f};
    float *wide = fsdp_device_alloc(b->device, nelem * sizeof *wide, "values", &err);
    void *out = dtype == FSDP_F32 ? wide
                                  : fsdp_device_alloc(b->device, nelem * fsdp_dtype_nbytes(dtype),
                                                      "values", &err);

    if (!wide || !out || fsdp_init_fill(b->lane, wide, 0, nelem, init, 1, ++stream, &err) ||
        (dtype != FSDP_F32 && fsdp_cast(b->lane, out, dtype, wide, FSDP_F32, nelem, &err)) ||
        fsdp_lane_sync(b->lane, &err))
        fail("memory", &err);
    if (dtype != FSDP_F32)
        fsdp_device_free(b->device, wide);
    return out;
}

typedef int call_f(struct bench *b, const void *args, struct fsdp_err *err);

static double seconds(struct bench *b, const char *what, call_f *call, const void *args)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    int rc = FSDP_OK, rounds = 0;
    double begin = 0, spent = 0;

    for (int n = 1; spent < 0.2 && rc == FSDP_OK; n *= 2) { /* the first rounds warm up */
        rc = fsdp_lane_sync(b->lane, &err);
        begin = fsdp_time_now();
        for (int i = 0; i < n && rc == FSDP_OK; i++)
            rc = call(b, args, &err);
        rc = rc ? rc : fsdp_lane_sync(b->lane, &err);
        spent = fsdp_time_now() - begin;
        rounds = n;
    }
    if (rc)
        fail(what, &err);
    return spent / rounds;
}

static void report(struct bench *b, const char *what, call_f *call, const void *args, double nbytes,
                   double nops)
{
    double s = seconds(b, what, call, args), by_bytes = nbytes / b->copy_rate;
    double by_ops = nops / b->product_rate, floor = by_bytes > by_ops ? by_bytes : by_ops;
    size_t len = strlen(b->json);

    printf("%-34s %10.1f us   floor %10.1f us (%s)   %5.1f %%\n", what, s * 1e6, floor * 1e6,
           by_bytes > by_ops ? "bytes" : "products", 100 * floor / s);
    snprintf(b->json + len, sizeof b->json - len,
             ", {\"kernel\": \"%s\", \"us\": %.2f, \"floor_us\": %.2f}", what, s * 1e6,
             floor * 1e6);
}

/* ---- the calls ------------------------------------------------------------------------------- */

struct copy {
    void *dst;
    const void *src;
    size_t nbytes;
};
static int call_copy(struct bench *b, const void *args, struct fsdp_err *err)
{
    const struct copy *c = args;
    return fsdp_copy(b->lane, c->dst, c->src, c->nbytes, err);
}

#define CALL(op, type)                                                                             \
    static int call_##op(struct bench *b, const void *args, struct fsdp_err *err)                  \
    {                                                                                              \
        return b->nn->op(b->lane, (const struct type *)args, err);                                 \
    }
CALL(linear_forward, nn_linear)
CALL(linear_backward_input, nn_linear)
CALL(linear_backward_weight, nn_linear)
CALL(rmsnorm_forward, nn_rmsnorm)
CALL(rmsnorm_backward, nn_rmsnorm_backward)
CALL(rope, nn_rope)
CALL(attention_forward, nn_attention)
CALL(attention_backward, nn_attention)
CALL(glu_forward, nn_glu)
CALL(glu_backward, nn_glu)
CALL(cross_entropy, nn_cross_entropy)

static int call_adamw(struct bench *b, const void *args, struct fsdp_err *err)
{
    return fsdp_adamw(b->lane, args, err);
}

struct sums {
    double *out;
    const float *x;
    size_t nelem;
};
static int call_sumsq(struct bench *b, const void *args, struct fsdp_err *err)
{
    const struct sums *s = args;
    return fsdp_sumsq(b->lane, s->out, s->x, s->nelem, err);
}

/* ---- the table ------------------------------------------------------------------------------- */

/* ldy: how far apart the rows of y lie */
static void bench_rows_of(struct bench *b, const char *name, int nin, int nout, int ldy)
{
    enum fsdp_dtype half = FSDP_BF16;
    size_t rows = (size_t)b->rows, in = (size_t)nin, out = (size_t)nout;
    struct nn_linear args = {.rows = b->rows,
                             .nin = nin,
                             .nout = nout,
                             .ldy = ldy,
                             .dtype = half,
                             .y_dtype = half,
                             .w_dtype = half,
                             .dw_dtype = half};
    void *x = make(b, rows * in, half), *w = make(b, in * out, half),
         *y = make(b, rows * (size_t)ldy, half);
    size_t nwork = b->nn->linear_work_nelem(&args);
    double nops = 2.0 * b->rows * nin * nout;
    double nbytes = 2.0 * (double)(rows * in + in * out + rows * out);
    char what[48];

    args.work = nwork ? make(b, nwork, FSDP_F32) : NULL;
    args.x = x, args.w = w, args.dy = y;
    args.out = y;
    if (!b->product_rate) {
        b->product_rate = nops / seconds(b, name, call_linear_forward, &args);
        printf("largest product: %.1f TFLOP/s\n\n", b->product_rate / 1e12);
    }
    snprintf(what, sizeof what, "%s forward", name);
    report(b, what, call_linear_forward, &args, nbytes, nops);
    args.out = x;
    snprintf(what, sizeof what, "%s backward input", name);
    report(b, what, call_linear_backward_input, &args, nbytes, nops);
    args.out = w, args.beta = 1;
    args.x = x;
    snprintf(what, sizeof what, "%s backward weight", name);
    report(b, what, call_linear_backward_weight, &args, nbytes + 2.0 * (double)(in * out), nops);
    fsdp_device_free(b->device, x);
    fsdp_device_free(b->device, w);
    fsdp_device_free(b->device, y);
    fsdp_device_free(b->device, args.work);
}

static void bench_linear(struct bench *b, const char *name, int nin, int nout)
{
    bench_rows_of(b, name, nin, nout, nout);
}

static void bench_norm(struct bench *b)
{
    enum fsdp_dtype half = FSDP_BF16;
    size_t n = (size_t)b->rows * (size_t)b->dim;
    void *x = make(b, n, half), *y = make(b, n, half), *w = make(b, (size_t)b->dim, half);
    void *dw = make(b, (size_t)b->dim, half), *dx = make(b, n, half);
    float *rstd = make(b, (size_t)b->rows, FSDP_F32);
    struct nn_rmsnorm forward = {y, rstd, NULL, x, w, b->rows, b->dim, 1e-5f, 0, half, half};
    struct nn_rmsnorm_backward backward = {y,      dx, dw, x, w,    rstd, b->rows,
                                           b->dim, 1,  0,  0, half, half, half};

    report(b, "rmsnorm forward", call_rmsnorm_forward, &forward, 4.0 * (double)n, 0);
    report(b, "rmsnorm backward", call_rmsnorm_backward, &backward, 10.0 * (double)n, 0);
    fsdp_device_free(b->device, x);
    fsdp_device_free(b->device, y);
    fsdp_device_free(b->device, w);
    fsdp_device_free(b->device, dw);
    fsdp_device_free(b->device, dx);
    fsdp_device_free(b->device, rstd);
}

static void bench_attention(struct bench *b)
{
    enum fsdp_dtype half = FSDP_BF16;
    int B = b->rows / b->T;
    size_t q = (size_t)b->rows * (size_t)(b->NH * b->D),
           kv = (size_t)b->rows * (size_t)(b->NKV * b->D);
    struct nn_attention args = {.B = B,
                                .Tq = b->T,
                                .Tk = b->T,
                                .NH = b->NH,
                                .NKV = b->NKV,
                                .D = b->D,
                                .scale = 0.1f,
                                .dtype = half};
    size_t nwork = b->nn->attention_work_nelem(&args);
    double causal = 2.0 * B * b->NH * (double)b->T * b->T * b->D; /* two products, half of each */
    float *table = make(b, (size_t)b->T * (size_t)b->D, FSDP_F32);

    args.q = make(b, q, half);
    args.k = make(b, kv, half);
    args.v = make(b, kv, half);
    args.o = make(b, q, half);
    args.d_o = make(b, q, half);
    args.lse = make(b, (size_t)(B * b->NH) * (size_t)b->T, FSDP_F32);
    args.work = nwork ? make(b, nwork, FSDP_F32) : NULL;
    struct nn_rope rope = {args.q, NULL, table, table, NULL,  B,   b->T,
                           b->NH,  b->D, b->D,  0,     false, half};
    report(b, "rope", call_rope, &rope, 4.0 * (double)q, 0);
    report(b, "attention forward", call_attention_forward, &args, 4.0 * (double)(q + kv), causal);
    report(b, "attention backward", call_attention_backward, &args, 8.0 * (double)(q + kv),
           2.5 * causal);
    fsdp_device_free(b->device, args.q);
    fsdp_device_free(b->device, args.k);
    fsdp_device_free(b->device, args.v);
    fsdp_device_free(b->device, args.o);
    fsdp_device_free(b->device, (void *)(uintptr_t)args.d_o);
    fsdp_device_free(b->device, args.lse);
    fsdp_device_free(b->device, args.work);
    fsdp_device_free(b->device, table);
}

static void bench_rest(struct bench *b)
{
    enum fsdp_dtype half = FSDP_BF16;
    size_t f = (size_t)b->rows * (size_t)b->ffn, chunk = (size_t)b->rows / 8;
    struct nn_glu swiglu = {make(b, f, half), make(b, f, half), make(b, f, half), f, NN_SILU, half};
    report(b, "swiglu forward", call_glu_forward, &swiglu, 6.0 * (double)f, 0);
    report(b, "swiglu backward", call_glu_backward, &swiglu, 12.0 * (double)f, 0);
    fsdp_device_free(b->device, swiglu.y);
    fsdp_device_free(b->device, swiglu.gate);
    fsdp_device_free(b->device, swiglu.up);

    size_t nlogits = chunk * (size_t)b->vocab;
    struct nn_cross_entropy loss = {.logits = make(b, nlogits, half),
                                    .targets =
                                        fsdp_device_alloc(b->device, chunk * 4, "targets", NULL),
                                    .loss_sum = fsdp_device_alloc(b->device, 8, "loss", NULL),
                                    .rows = (int)chunk,
                                    .vocab = b->vocab,
                                    .scale = 1,
                                    .grad = true,
                                    .dtype = half};
    report(b, "loss and its gradient", call_cross_entropy, &loss, 6.0 * (double)nlogits, 0);
    fsdp_device_free(b->device, loss.logits);

    size_t n = (size_t)b->dim * (size_t)b->ffn;
    struct fsdp_adamw_args adamw = {.master = make(b, n, FSDP_F32),
                                    .exp_avg = make(b, n, FSDP_F32),
                                    .exp_avg_sq =
                                        fsdp_device_alloc(b->device, n * 4, "moment", NULL),
                                    .grad = make(b, n, FSDP_F32),
                                    .param = make(b, n, half),
                                    .param_dtype = half,
                                    .nelem = n,
                                    .nsteps = 10,
                                    .lr = 1e-4,
                                    .beta1 = 0.9,
                                    .beta2 = 0.95,
                                    .eps = 1e-8,
                                    .weight_decay = 0.1};
    struct sums sums = {fsdp_device_alloc(b->device, 8, "sum", NULL), adamw.grad, n};
    report(b, "adamw", call_adamw, &adamw, 30.0 * (double)n, 0);
    report(b, "sum of squares", call_sumsq, &sums, 4.0 * (double)n, 0);
}

int main(int argc, char **argv)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct bench b = {.rows = 8192,
                      .T = 4096,
                      .dim = 4096,
                      .ffn = 14336,
                      .NH = 32,
                      .NKV = 8,
                      .D = 128,
                      .vocab = 128256};
    const char *kind = argc > 1 ? argv[1] : "cuda";

    if (argc > 2 && !strcmp(argv[2], "small")) /* to see that it works */
        b = (struct bench){.rows = 256,
                           .T = 128,
                           .dim = 128,
                           .ffn = 384,
                           .NH = 4,
                           .NKV = 2,
                           .D = 32,
                           .vocab = 512};
    if (fsdp_device_open(&b.device, kind, 0, &err) || nn_ops_of(&b.nn, b.device, &err) ||
        fsdp_lane_create(&b.lane, b.device, "bench", &err))
        fail(kind, &err);
    size_t nbytes = (size_t)b.rows * (size_t)b.ffn * 4;
    struct copy copy = {make(&b, nbytes / 4, FSDP_F32), make(&b, nbytes / 4, FSDP_F32), nbytes};
    b.copy_rate = 2 * (double)nbytes / seconds(&b, "copy", call_copy, &copy);
    printf("%s, %d rows of %d, %d hidden; copy: %.2f TB/s read and written\n",
           fsdp_device_name(b.device), b.rows, b.dim, b.ffn, b.copy_rate / 1e12);
    fsdp_device_free(b.device, copy.dst);
    fsdp_device_free(b.device, (void *)(uintptr_t)copy.src);
    bench_linear(&b, "gate and up", b.dim, 2 * b.ffn);
    bench_linear(&b, "qkv", b.dim, (b.NH + 2 * b.NKV) * b.D);
    bench_linear(&b, "attention out", b.NH * b.D, b.dim);
    bench_linear(&b, "down", b.ffn, b.dim);
    bench_rows_of(&b, "head of 50257", 768, 50257, 50304);
    bench_rows_of(&b, "head of 50304", 768, 50304, 50304);
    bench_norm(&b);
    bench_attention(&b);
    bench_rest(&b);
    printf("{\"copy_TB_s\": %.3f, \"product_TFLOP_s\": %.1f, \"kernels\": [%s]}\n",
           b.copy_rate / 1e12, b.product_rate / 1e12, b.json + 2);
    fsdp_lane_destroy(b.lane);
    fsdp_device_close(b.device);
    return 0;
}
