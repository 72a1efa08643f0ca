/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of cuBLASLt's algorithms is the fastest for each product: the library's own order is a
 * guess from the shape. Each is timed where the product's last call left its operands, which are
 * what training has there: real values, since a GPU is faster on zeros, and real alignment.
 *
 * A product with an epilogue is compared with one without, and the kernels that do the same; a
 * batch with its products one after the other.
 *
 * A table is a list of choices. It travels among ranks and lies in files, so nothing in it is
 * trusted: the library is asked whether an algorithm is one for this product.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "gemm_lt.h"

enum { CANDIDATES = 8, ROUNDS = 3, MOST_REPEATS = 20 };
static const float ROUND_MS = 2; /* about as long is a round */
/* The library's first choice stays unless another is faster by more than clocks and caches vary, so
 * that a table made anew is mostly the same. */
static const float WORTH = 0.98f;

struct choice {
    struct gemm_key key; /* ordinal 0: GPUs of a kind are alike */
    uint32_t apart;      /* 1: what its epilogue does is faster behind it, or its batch in turn */
    cublasLtMatmulAlgo_t algo;
};

static struct gemm_key key_of(const struct gemm_plan *p)
{
    struct gemm_key key = p->key;
    key.ordinal = 0;
    return key;
}

static const struct choice *find_plan(const struct nn_tuning *t, const struct gemm_key *key)
{
    const struct choice *all = t->table;
    for (size_t i = 0; i < t->nbytes / sizeof *all; i++)
        if (!memcmp(&all[i].key, key, sizeof *key))
            return &all[i];
    return NULL;
}

static bool accepts(const struct gemm_plan *p, cublasLtHandle_t handle,
                    const cublasLtMatmulAlgo_t *algo)
{
    cublasLtMatmulHeuristicResult_t result;
    return !cublasLtMatmulAlgoCheck(handle, p->desc, p->b, p->a, p->c, p->c, algo, &result) &&
           result.workspaceSize <= NN_CUDA_SCRATCH_NBYTES;
}

/* ---- timing ---------------------------------------------------------------------------------- */

struct timer {
    struct gemm_plan *plan;
    cublasLtHandle_t handle;
    void *workspace;
    cudaEvent_t begin, end;
};

static int timer_open(struct timer *t, struct gemm_plan *p, cublasLtHandle_t handle,
                      struct fsdp_err *err)
{
    *t = (struct timer){.plan = p, .handle = handle};
    FSDP_TRY(nn_cuda_scratch(&t->workspace, p->lane, err));
    cudaError_t e = cudaEventCreateWithFlags(&t->begin, cudaEventDefault);
    e = e ? e : cudaEventCreateWithFlags(&t->end, cudaEventDefault);
    return fsdp_cuda_check((int)e, err, "cannot create an event with timing");
}

static void timer_close(struct timer *t)
{
    if (t->begin)
        cudaEventDestroy(t->begin);
    if (t->end)
        cudaEventDestroy(t->end);
}

/* Milliseconds of one run; *unfit: the library refuses this algorithm after all. */
static int measure_algorithm(float *ms, bool *unfit, const struct timer *t,
                             const cublasLtMatmulAlgo_t *algo, int repeats, struct fsdp_err *err)
{
    cudaStream_t stream = fsdp_lane_native(t->plan->lane);
    cudaError_t e = cudaEventRecord(t->begin, stream);

    *unfit = false;
    for (int i = 0; i < repeats && !e && !*unfit; i++)
        *unfit = gemm_plan_run(t->plan, t->handle, t->plan->lane, &t->plan->last, t->workspace,
                               algo, NULL) != FSDP_OK;
    e = e ? e : cudaEventRecord(t->end, stream);
    e = e ? e : cudaEventSynchronize(t->end);
    e = e ? e : cudaEventElapsedTime(ms, t->begin, t->end);
    *ms /= (float)repeats;
    return fsdp_cuda_check((int)e, err, "timing a product");
}

/* The least of some rounds. The first run, which loads the kernel, does not count. */
static int time_algo(float *best_ms, bool *unfit, const struct timer *t,
                     const cublasLtMatmulAlgo_t *algo, struct fsdp_err *err)
{
    float ms = 0;

    FSDP_TRY(measure_algorithm(&ms, unfit, t, algo, 1, err));
    if (!*unfit)
        FSDP_TRY(measure_algorithm(&ms, unfit, t, algo, 1, err));
    const float wanted = ms > 0 ? ROUND_MS / ms : MOST_REPEATS;
    const int repeats = wanted < 1 ? 1 : wanted < MOST_REPEATS ? (int)wanted : MOST_REPEATS;
    *best_ms = ms;
    for (int round = 0; round < ROUNDS && !*unfit; round++) {
        FSDP_TRY(measure_algorithm(&ms, unfit, t, algo, repeats, err));
        *best_ms = ms < *best_ms ? ms : *best_ms;
    }
    return FSDP_OK;
}

/* *taken_ms: of the algorithm that it takes. */
static int choose_plan(float *taken_ms, struct gemm_plan *p, cublasLtHandle_t handle,
                       struct fsdp_err *err)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    float ms, first_ms = 0, best_ms = 0;
    int nfound = 0, best = -1;
    struct timer timer;
    bool unfit;
    int rc = timer_open(&timer, p, handle, err);

    if (!rc)
        rc = gemm_plan_proposals(found, &nfound, CANDIDATES, p, handle, err);
    for (int i = 0; i < nfound && !rc; i++) {
        rc = time_algo(&ms, &unfit, &timer, &found[i].algo, err);
        if (rc || unfit)
            continue;
        if (best < 0)
            first_ms = ms;
        if (best < 0 || (ms < best_ms && ms < first_ms * WORTH)) {
            best = i;
            best_ms = ms;
        }
    }
    if (!rc && best >= 0) {
        p->algo = found[best].algo;
        fsdp_log(FSDP_LOG_DEBUG,
                 "product %d x %d x %d of %s to %s: choice %d of %d, %.3f ms (the first: %.3f)",
                 p->key.m, p->key.n, p->key.k, fsdp_dtype_name((enum fsdp_dtype)p->key.dtype),
                 fsdp_dtype_name((enum fsdp_dtype)p->key.c_dtype), best + 1, nfound,
                 (double)best_ms, (double)first_ms);
    }
    timer_close(&timer);
    *taken_ms = best_ms;
    return rc;
}

/* ---- epilogues ------------------------------------------------------------------------------- */

/* What has to follow: a product that has the epilogue, or one that has not. */
static int run_rest(const struct nn_product *g, bool has, struct fsdp_lane *lane,
                    struct fsdp_err *err)
{
    const struct nn_matrix *dy = g->epilogue == NN_SUMS_OF_A ? &g->a : &g->b;
    const struct nn_cuda_sum sum = {.out = g->aux,
                                    .out_dtype = g->c_dtype,
                                    .in = dy->at,
                                    .in_dtype = dy->dtype,
                                    .nrows = g->k,
                                    .ncols = g->epilogue == NN_SUMS_OF_A ? g->m : g->n,
                                    .ld = dy->ld};
    struct nn_pointwise act = {.y = g->c,
                               .x = g->aux,
                               .nelem = (size_t)g->m * (size_t)g->n,
                               .act = NN_GELU_TANH,
                               .dtype = g->c_dtype};

    switch (g->epilogue) {
    case NN_GELU_OF_SUM:
        return has ? FSDP_OK : nn_cuda_pointwise_forward(lane, &act, err);
    case NN_GELU_GRADIENT:
        if (!has)
            return nn_cuda_pointwise_backward(lane, &act, err);
        act.y = act.x;
        return nn_cuda_pointwise_forward(lane, &act, err);
    case NN_SUMS_OF_A:
    case NN_SUMS_OF_B:
        return has ? FSDP_OK : nn_cuda_sum_rows(lane, &sum, err);
    case NN_NO_EPILOGUE:
        break;
    }
    return FSDP_OK;
}

static int time_rest(float *ms, const struct timer *t, bool has, struct fsdp_err *err)
{
    cudaStream_t stream = fsdp_lane_native(t->plan->lane);

    for (int i = 0; i <= ROUNDS; i++) { /* the first run, which loads the kernel, does not count */
        cudaError_t e = i == 1 ? cudaEventRecord(t->begin, stream) : cudaSuccess;
        FSDP_TRY(fsdp_cuda_check((int)e, err, "timing a pass"));
        FSDP_TRY(run_rest(&t->plan->last, has, t->plan->lane, err));
    }
    cudaError_t e = cudaEventRecord(t->end, stream);
    e = e ? e : cudaEventSynchronize(t->end);
    e = e ? e : cudaEventElapsedTime(ms, t->begin, t->end);
    *ms /= ROUNDS;
    return fsdp_cuda_check((int)e, err, "timing a pass");
}

/* ---- the table ------------------------------------------------------------------------------- */

static int add_plan(struct nn_tuning *t, const struct gemm_plan *p, struct fsdp_err *err)
{
    const size_t n = t->nbytes / sizeof(struct choice);
    struct choice *table = fsdp_alloc(n + 1, sizeof *table, "table of products", err);

    if (!table)
        return FSDP_ENOMEM;
    if (n)
        memcpy(table, t->table, n * sizeof *table);
    table[n] = (struct choice){key_of(p), p->refused, p->algo};
    fsdp_free(t->table);
    t->table = table;
    t->nbytes = (n + 1) * sizeof *table;
    return FSDP_OK;
}

static int describe_gpu(char who[NN_TUNING_WHO], int ordinal, struct fsdp_err *err)
{
    struct cudaDeviceProp props;
    int driver = 0;
    cudaError_t e = cudaGetDeviceProperties(&props, ordinal);

    e = e ? e : cudaDriverGetVersion(&driver);
    FSDP_TRY(fsdp_cuda_check((int)e, err, "asking for the GPU's name"));
    snprintf(who, NN_TUNING_WHO, "%.100s, %d processors, driver %d, cuBLASLt %zu", props.name,
             props.multiProcessorCount, driver, cublasLtGetVersion());
    return FSDP_OK;
}

static bool is_more(const struct gemm_plan *p)
{
    return p->key.epilogue || p->key.count;
}

/* The product that takes p's place where p is slower: one of its batch, or without its epilogue. */
static int make_simpler(struct gemm_plan **out, const struct gemm_plan *p, struct fsdp_err *err)
{
    struct nn_product g = p->last;
    cublasLtHandle_t handle;

    if (gemm_is_batch(&g)) {
        g.count = 0;
    } else {
        g.epilogue = NN_NO_EPILOGUE;
        g.aux = NULL;
    }
    FSDP_TRY(gemm_plan(out, &handle, p->lane, &g, err));
    (*out)->last = g;
    (*out)->lane = p->lane;
    return FSDP_OK;
}

static int time_plan(float *ms, struct gemm_plan *p, struct nn_tuning *t, struct fsdp_err *err);

/* Whether p, which takes *ms, stays; *ms: of what is taken, and the kernel behind it. */
static int compare_apart(float *ms, struct gemm_plan *p, cublasLtHandle_t handle,
                         struct nn_tuning *t, struct fsdp_err *err)
{
    const bool batch = gemm_is_batch(&p->last);
    float rest_ms = 0, rest_apart_ms = 0, apart_ms = 0;
    struct gemm_plan *simpler;
    struct timer timer;

    FSDP_TRY(make_simpler(&simpler, p, err));
    FSDP_TRY(time_plan(&apart_ms, simpler, t, err));
    int rc = timer_open(&timer, p, handle, err);
    if (!batch) {
        rc = rc ? rc : time_rest(&rest_ms, &timer, true, err);
        rc = rc ? rc : time_rest(&rest_apart_ms, &timer, false, err);
    }
    timer_close(&timer);
    *ms += rest_ms;
    apart_ms = (batch ? (float)p->last.count : 1) * apart_ms + rest_apart_ms;
    fsdp_log(FSDP_LOG_DEBUG,
             "product %d x %d x %d, %d with epilogue %d: %.3f ms at once, %.3f ms apart", p->key.m,
             p->key.n, p->key.k, batch ? p->last.count : 1, p->key.epilogue, (double)*ms,
             (double)apart_ms);
    p->refused = !rc && apart_ms < *ms;
    *ms = p->refused ? apart_ms : *ms;
    return rc;
}

static void follow_choice(struct gemm_plan *p, const struct choice *known)
{
    p->algo = known->algo;
    p->refused = is_more(p) && known->apart;
}

/* What the table says stays, as other ranks take it from there; its time is for a comparison. */
static int time_known(float *ms, struct gemm_plan *p, cublasLtHandle_t handle,
                      const struct choice *known, struct fsdp_err *err)
{
    struct timer timer;
    bool unfit = false;

    follow_choice(p, known);
    int rc = timer_open(&timer, p, handle, err);
    rc = rc ? rc : time_algo(ms, &unfit, &timer, &p->algo, err);
    timer_close(&timer);
    *ms = unfit ? INFINITY : *ms;
    return rc;
}

static int time_plan(float *ms, struct gemm_plan *p, struct nn_tuning *t, struct fsdp_err *err)
{
    const struct gemm_key key = key_of(p);
    const struct choice *known = find_plan(t, &key);
    struct gemm_plan *same;
    cublasLtHandle_t handle;

    *ms = INFINITY;
    FSDP_TRY(gemm_plan(&same, &handle, p->lane, &p->last, err));
    if (known && p->desc && accepts(p, handle, &known->algo))
        return time_known(ms, p, handle, known, err);
    if (p->desc) /* else the library has no algorithm for it */
        FSDP_TRY(choose_plan(ms, p, handle, err));
    if (is_more(p))
        FSDP_TRY(compare_apart(ms, p, handle, t, err));
    if (!p->desc || known) /* known: of another GPU, whose algorithm this one has not */
        return FSDP_OK;
    t->ntimed++;
    return add_plan(t, p, err);
}

static int tune_plan(struct gemm_plan *p, struct nn_tuning *t, bool timed, struct fsdp_err *err)
{
    const struct gemm_key key = key_of(p);
    const struct choice *known = find_plan(t, &key);
    struct gemm_plan *other;
    cublasLtHandle_t handle;
    float ms;

    FSDP_TRY(gemm_plan(&other, &handle, p->lane, &p->last, err));
    if (!known)
        return timed ? time_plan(&ms, p, t, err) : FSDP_OK;
    if (!accepts(p, handle, &known->algo))
        return FSDP_OK;
    follow_choice(p, known);
    t->nknown++;
    if (!p->refused)
        return FSDP_OK;
    other = p;
    do
        FSDP_TRY(make_simpler(&other, other, err)); /* every rank takes the same one */
    while (!other->desc && is_more(other));
    return other->desc ? tune_plan(other, t, false, err) : FSDP_OK;
}

int nn_cuda_tune(struct fsdp_lane *lane, struct nn_tuning *tuning, bool timed, struct fsdp_err *err)
{
    const int ordinal = fsdp_cuda_ordinal(lane);

    tuning->nknown = tuning->ntimed = 0;
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    FSDP_TRY(describe_gpu(tuning->who, ordinal, err));
    if (tuning->nbytes % sizeof(struct choice))
        tuning->nbytes = 0;
    gemm_lt_lock();
    int rc = FSDP_OK;
    for (struct gemm_plan *p = gemm_plans(); p && !rc; p = p->next)
        if (p->key.ordinal == ordinal && p->lane)
            rc = tune_plan(p, tuning, timed, err);
    gemm_lt_unlock();
    return rc;
}
