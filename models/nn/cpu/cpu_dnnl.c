/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of bf16 and of fp32 through oneDNN, whose kernels are made for the processor and for the
 * shape: of bf16 with AVX-512 BF16 or AMX, where they are about twice as fast as fp32's; of fp32
 * with AVX-512, where products of few rows are faster than the CBLAS's. Elsewhere oneDNN has none
 * worth calling. Primitives are made once per shape and kept; of more shapes than there are places,
 * as experts have with their numbers of rows, those that were used last. Which product comes from
 * here depends on the shape of a thread's part alone: a run that resumes has the same bits.
 */
#include "cpu.h"

#if HAVE_DNNL
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* oneDNN divides its work with OpenMP; here the callers are the threads. */
extern void omp_set_num_threads(int nthreads) __attribute__((weak));

enum { MAX_PRODUCTS = 256 }; /* a model without experts has some tens of shapes */

/* What a primitive depends on: nn_gemm without its pointers. */
struct shape {
    int m, n, k, lda, ldb, ldc;
    int a_dtype, b_dtype, c_dtype, bias_dtype; /* bias_dtype -1: none */
    bool a_transposed, b_transposed, adds;
};

struct product {
    struct shape shape;
    dnnl_primitive_t primitive; /* NULL: oneDNN has no such product */
    dnnl_memory_desc_t a, b, c, bias, scratch;
    size_t scratch_nbytes;
    /* Under the lock. */
    int users;
    uint64_t used; /* when it was last asked for */
};

/* A product stays as it is while it has users. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct product products[MAX_PRODUCTS];
static int nproducts;
static uint64_t product_clock;
static dnnl_engine_t engine;

static dnnl_data_type_t type_of(int dtype)
{
    return dtype == FSDP_BF16 ? dnnl_bf16 : dtype == FSDP_F16 ? dnnl_f16 : dnnl_f32;
}

static struct shape shape_of(const struct nn_product *g)
{
    struct shape s;
    memset(&s, 0, sizeof s); /* padding too: shapes are compared as bytes */
    s.m = g->m;
    s.n = g->n;
    s.k = g->k;
    s.lda = g->a.ld;
    s.ldb = g->b.ld;
    s.ldc = g->ldc;
    s.a_dtype = g->a.dtype;
    s.b_dtype = g->b.dtype;
    s.c_dtype = g->c_dtype;
    s.bias_dtype = g->bias ? (int)g->bias_dtype : -1;
    s.a_transposed = g->a.transposed;
    s.b_transposed = g->b.transposed;
    s.adds = g->beta != 0.0f;
    return s;
}

/* A matrix of oneDNN, rows x cols as the product sees it. Version 2 holds descriptions by value. */
static bool describe_matrix(dnnl_memory_desc_t *out, int rows, int cols, int dtype, int ld,
                            bool transposed)
{
    const dnnl_dims_t dims = {rows, cols};
    const dnnl_dims_t strides = {transposed ? 1 : ld, transposed ? ld : 1};
#if DNNL_VERSION_MAJOR >= 3
    return !dnnl_memory_desc_create_with_strides(out, 2, dims, type_of(dtype), strides);
#else
    return !dnnl_memory_desc_init_by_strides(out, 2, dims, type_of(dtype), strides);
#endif
}

#if DNNL_VERSION_MAJOR >= 3
#define DESC(x) (x)
#else
#define DESC(x) (&(x))
#endif

static dnnl_status_t make_desc(dnnl_primitive_desc_t *out, struct product *p,
                               const_dnnl_primitive_attr_t attr)
{
    const bool biased = p->shape.bias_dtype >= 0;
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_matmul_primitive_desc_create(out, engine, p->a, p->b, biased ? p->bias : NULL, p->c,
                                             attr);
#else
    dnnl_matmul_desc_t desc;
    dnnl_status_t status =
        dnnl_matmul_desc_init(&desc, &p->a, &p->b, biased ? &p->bias : NULL, &p->c);
    return status ? status : dnnl_primitive_desc_create(out, &desc, attr, engine, NULL);
#endif
}

static bool add_to_c(dnnl_post_ops_t post)
{
#if DNNL_VERSION_MAJOR >= 3
    return !dnnl_post_ops_append_sum(post, 1, 0, dnnl_data_type_undef);
#else
    return !dnnl_post_ops_append_sum(post, 1);
#endif
}

static bool describe_scratch(struct product *p, const_dnnl_primitive_desc_t desc)
{
#if DNNL_VERSION_MAJOR >= 3
    const_dnnl_memory_desc_t scratch =
        dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    bool good = scratch && !dnnl_memory_desc_clone(&p->scratch, scratch);
#else
    const dnnl_memory_desc_t *scratch =
        dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    bool good = scratch;
    if (good)
        p->scratch = *scratch;
#endif
    p->scratch_nbytes = good ? dnnl_memory_desc_get_size(scratch) : 0;
    return good;
}

/* By one thread for all: oneDNN plans for as many as the one that makes it has, and its own memory
 * for intermediate results would be that thread's, whoever computes. */
static void make_product(struct product *p, const struct shape *s)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t post = NULL;
    dnnl_primitive_desc_t desc = NULL;

    p->shape = *s;
    bool good =
        describe_matrix(&p->a, s->m, s->k, s->a_dtype, s->lda, s->a_transposed) &&
        describe_matrix(&p->b, s->k, s->n, s->b_dtype, s->ldb, s->b_transposed) &&
        describe_matrix(&p->c, s->m, s->n, s->c_dtype, s->ldc, false) &&
        (s->bias_dtype < 0 || describe_matrix(&p->bias, 1, s->n, s->bias_dtype, s->n, false)) &&
        !dnnl_primitive_attr_create(&attr) && !dnnl_post_ops_create(&post) &&
        !dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) &&
        (!s->adds || add_to_c(post)) && !dnnl_primitive_attr_set_post_ops(attr, post) &&
        !make_desc(&desc, p, attr) && describe_scratch(p, desc);
    if (!good || dnnl_primitive_create(&p->primitive, desc))
        p->primitive = NULL;
    dnnl_primitive_desc_destroy(desc);
    dnnl_post_ops_destroy(post);
    dnnl_primitive_attr_destroy(attr);
}

static void drop_product(struct product *p)
{
    if (p->primitive)
        dnnl_primitive_destroy(p->primitive);
#if DNNL_VERSION_MAJOR >= 3
    const dnnl_memory_desc_t descs[] = {p->a, p->b, p->c, p->bias, p->scratch};
    for (int i = 0; i < 5; i++)
        if (descs[i])
            dnnl_memory_desc_destroy(descs[i]);
#endif
    memset(p, 0, sizeof *p);
}

/* A place for one more: a free one, or that of the product that nobody has asked for the longest.
 * NULL: all are in use. */
static struct product *place_product(void)
{
    struct product *oldest = NULL;

    if (nproducts < MAX_PRODUCTS)
        return &products[nproducts++];
    for (int i = 0; i < nproducts; i++)
        if (!products[i].users && (!oldest || products[i].used < oldest->used))
            oldest = &products[i];
    if (oldest)
        drop_product(oldest);
    return oldest;
}

/* NULL: oneDNN has no such product. Else it is in use until release_product. */
static struct product *acquire_product(const struct shape *s)
{
    struct product *found = NULL;

    pthread_mutex_lock(&lock);
    if (omp_set_num_threads)
        omp_set_num_threads(1);
    if (!engine && dnnl_engine_create(&engine, dnnl_cpu, 0))
        engine = NULL;
    for (int i = 0; i < nproducts && !found; i++)
        if (!memcmp(&products[i].shape, s, sizeof *s))
            found = &products[i];
    if (!found && engine && (found = place_product()))
        make_product(found, s);
    if (found)
        found->used = ++product_clock;
    if (found && found->primitive)
        found->users++;
    else
        found = NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

static void release_product(struct product *p)
{
    pthread_mutex_lock(&lock);
    p->users--;
    pthread_mutex_unlock(&lock);
}

/* What a thread has of its own: a stream, and memory for intermediate results. */
struct worker {
    dnnl_stream_t stream;
    void *scratch;
    size_t scratch_nbytes;
};

static pthread_key_t worker_key;
static pthread_once_t worker_once = PTHREAD_ONCE_INIT;
static bool has_worker_key;

static void worker_destroy(void *arg)
{
    struct worker *w = arg;
    dnnl_stream_destroy(w->stream);
    free(w->scratch);
    free(w);
}

static void make_worker_key(void)
{
    has_worker_key = !pthread_key_create(&worker_key, worker_destroy);
}

static struct worker *this_worker(void)
{
    pthread_once(&worker_once, make_worker_key);
    struct worker *w = has_worker_key ? pthread_getspecific(worker_key) : NULL;
    if (w || !has_worker_key || !(w = calloc(1, sizeof *w)))
        return w;
    if (omp_set_num_threads)
        omp_set_num_threads(1);
    if (dnnl_stream_create(&w->stream, engine, dnnl_stream_default_flags) ||
        pthread_setspecific(worker_key, w)) {
        worker_destroy(w);
        return NULL;
    }
    return w;
}

static bool has_scratch(struct worker *w, size_t nbytes)
{
    enum { ALIGN = 64 };
    if (w->scratch_nbytes >= nbytes)
        return true;
    free(w->scratch);
    w->scratch = aligned_alloc(ALIGN, (nbytes + ALIGN - 1) / ALIGN * ALIGN);
    w->scratch_nbytes = w->scratch ? nbytes : 0;
    return w->scratch;
}

static bool execute(const struct product *p, const struct nn_product *g)
{
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, NULL},
                              {DNNL_ARG_WEIGHTS, NULL},
                              {DNNL_ARG_DST, NULL},
                              {DNNL_ARG_SCRATCHPAD, NULL},
                              {DNNL_ARG_BIAS, NULL}};
    struct worker *w = this_worker();
    bool good =
        w && has_scratch(w, p->scratch_nbytes) &&
        !dnnl_memory_create(&args[0].memory, DESC(p->a), engine, nn_at(g->a.at, FSDP_F32, 0)) &&
        !dnnl_memory_create(&args[1].memory, DESC(p->b), engine, nn_at(g->b.at, FSDP_F32, 0)) &&
        !dnnl_memory_create(&args[2].memory, DESC(p->c), engine, g->c) &&
        !dnnl_memory_create(&args[3].memory, DESC(p->scratch), engine, w->scratch) &&
        (!g->bias ||
         !dnnl_memory_create(&args[4].memory, DESC(p->bias), engine, nn_at(g->bias, FSDP_F32, 0)));

    good = good && !dnnl_primitive_execute(p->primitive, w->stream, g->bias ? 5 : 4, args) &&
           !dnnl_stream_wait(w->stream);
    for (int i = 0; i < 5; i++)
        dnnl_memory_destroy(args[i].memory);
    return good;
}

bool nn_dnnl_is_fast(enum fsdp_dtype dtype)
{
#if DNNL_VERSION_MAJOR >= 3 || DNNL_VERSION_MINOR >= 4
    /* Sets of bits, of which one that has others is not always greater. */
    const unsigned has = dnnl_get_effective_cpu_isa();
    const unsigned needs =
        dtype == FSDP_BF16 ? dnnl_cpu_isa_avx512_core_bf16 : dnnl_cpu_isa_avx512_core;
    return (dtype == FSDP_BF16 || dtype == FSDP_F32) && (has & needs) == needs;
#else
    (void)dtype;
    return false;
#endif
}

bool nn_dnnl_gemm(const struct nn_product *g)
{
    const struct shape s = shape_of(g);
    if ((g->beta != 0.0f && g->beta != 1.0f) || g->m < 1 || g->n < 1 || g->k < 1)
        return false;
    struct product *p = acquire_product(&s);
    if (!p)
        return false;
    const bool done = execute(p, g);
    release_product(p);
    return done;
}

#else

bool nn_dnnl_is_fast(enum fsdp_dtype dtype)
{
    (void)dtype;
    return false;
}

bool nn_dnnl_gemm(const struct nn_product *g)
{
    (void)g;
    return false;
}

#endif
