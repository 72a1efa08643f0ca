/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of cuDNN for attention, made when a model's memory is laid out, and their execution.
 *
 * A deterministic backward pass takes memory by the square of the sequence, so its plans are for
 * one sequence, and the batch goes through them one by one. Gradients cannot take the place of q, k
 * and v while the kernel reads them: they lie in work memory first,
 *
 *     work   [ delta | dq in fp32 | dq | dk | dv | workspace ]
 */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "cudnn_attention.h"
#include "cudnn_sdpa.h"

enum { MOST_DEVICES = 64, ALIGNMENT = 256 };

struct plans {
    struct sdpa_shape shape; /* its B: sequences at once */
    int B, ordinal;
    bool none; /* they could not be made, which is not tried again */
    cudnnBackendDescriptor_t forward, backward;
    int64_t forward_nbytes, backward_nbytes; /* workspaces */
    struct plans *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cudnnHandle_t handles[MOST_DEVICES];
static struct plans *all;

/* 0: all keys */
static int32_t window_of(const struct nn_attention *a)
{
    return a->window < a->Tk ? a->window : 0;
}

static struct plans *find_plans(const struct nn_attention *a, int ordinal)
{
    for (struct plans *p = all; p; p = p->next)
        if (p->ordinal == ordinal && p->B == a->B && p->shape.T == a->Tq && p->shape.NH == a->NH &&
            p->shape.NKV == a->NKV && p->shape.D == a->D && p->shape.dtype == (int32_t)a->dtype &&
            p->shape.window == window_of(a))
            return p;
    return NULL;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Of one run of the backward plan. */
struct room {
    void *delta, *accum, *dq, *dk, *dv, *workspace;
};

/* Work memory lies as its caller has it. */
static void *begin_of(void *work)
{
    return (void *)(((uintptr_t)work + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

static void place_tensors(struct room *r, const struct plans *p, const struct nn_attention *a)
{
    const struct nn_cuda_room nbytes =
        nn_cuda_room_of(a, p->shape.deterministic, (size_t)p->backward_nbytes);
    char *at = begin_of(a->work);

    r->delta = at;
    r->accum = at += nbytes.delta;
    r->dq = at += nbytes.accum;
    r->dk = at += nbytes.dq;
    r->dv = at += nbytes.dk;
    r->workspace = at + nbytes.dv;
}

static size_t work_nelem(const struct plans *p, const struct nn_attention *a)
{
    return nn_cuda_cudnn_work_nelem(a, p->shape.deterministic, (size_t)p->forward_nbytes,
                                    (size_t)p->backward_nbytes);
}

/* ---- making plans ---------------------------------------------------------------------------- */

static int handle_for(cudnnHandle_t *out, const struct cudnn_api *api, int ordinal,
                      struct fsdp_err *err)
{
    if (ordinal >= MOST_DEVICES)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "GPU %d: at most %d in a process", ordinal,
                            MOST_DEVICES);
    if (!handles[ordinal]) {
        cudnnStatus_t s = api->create(&handles[ordinal]);
        if (s)
            return fsdp_err_set(err, FSDP_EUNSUPPORTED, "cuDNN cannot be opened on GPU %d: %s",
                                ordinal, api->error_string(s));
    }
    *out = handles[ordinal];
    return FSDP_OK;
}

static int make_plan(cudnnBackendDescriptor_t *plan, int64_t *nbytes, const struct cudnn_api *api,
                     cudnnHandle_t handle, const struct sdpa_shape *shape,
                     void (*draw)(struct graph *, const struct sdpa_shape *), struct fsdp_err *err)
{
    struct graph g = {.api = api};
    draw(&g, shape);
    int rc = graph_plan(plan, nbytes, &g, handle, NULL, err);
    graph_close(&g);
    return rc;
}

static int make(struct plans *p, struct fsdp_err *err)
{
    const struct cudnn_api *api;
    cudnnHandle_t handle = NULL;

    FSDP_TRY(cudnn_open(&api, err));
    FSDP_TRY(handle_for(&handle, api, p->ordinal, err));
    FSDP_TRY(make_plan(&p->forward, &p->forward_nbytes, api, handle, &p->shape, sdpa_forward_graph,
                       err));
    int rc = make_plan(&p->backward, &p->backward_nbytes, api, handle, &p->shape,
                       sdpa_backward_graph, err);
    if (rc)
        api->destroy_descriptor(p->forward);
    return rc;
}

static size_t plan_for(const struct nn_attention *a, int ordinal, bool deterministic)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct plans *p = find_plans(a, ordinal);

    if (p)
        return p->none ? 0 : work_nelem(p, a);
    if (!(p = fsdp_alloc(1, sizeof *p, "plans of attention", &err)))
        return 0;
    p->shape = (struct sdpa_shape){.B = nn_cuda_room_rows(a, deterministic),
                                   .T = a->Tq,
                                   .NH = a->NH,
                                   .NKV = a->NKV,
                                   .D = a->D,
                                   .dtype = (int32_t)a->dtype,
                                   .deterministic = deterministic,
                                   .window = window_of(a)};
    p->B = a->B;
    p->ordinal = ordinal;
    p->none = make(p, &err) != FSDP_OK;
    if (p->none)
        fsdp_log(FSDP_LOG_WARN, "attention: plain kernels are used, which are slow (%s)", err.text);
    p->next = all;
    all = p;
    return p->none ? 0 : work_nelem(p, a);
}

size_t cudnn_attention_plan(const struct nn_attention *shape, bool deterministic)
{
    int ordinal;

    if (cudaGetDevice(&ordinal))
        return 0;
    pthread_mutex_lock(&lock);
    const size_t nelem = plan_for(shape, ordinal, deterministic);
    pthread_mutex_unlock(&lock);
    return nelem;
}

/* ---- running them ---------------------------------------------------------------------------- */

static bool aligned(const void *x)
{
    return (uintptr_t)x % 16 == 0;
}

/* Sequences from b on of a statistic. */
static float *stats(const struct plans *p, float *x, int b)
{
    return x + (size_t)b * (size_t)p->shape.NH * (size_t)p->shape.T;
}

bool cudnn_attention_can(const struct fsdp_lane *lane, const struct nn_attention *a)
{
    if (!aligned(a->q) || !aligned(a->k) || !aligned(a->v) || !aligned(a->o) || !aligned(a->d_o) ||
        !aligned(a->lse))
        return false;
    pthread_mutex_lock(&lock);
    const struct plans *p = find_plans(a, fsdp_cuda_ordinal(lane));
    pthread_mutex_unlock(&lock);
    /* Other sequences of a batch that goes through one by one. */
    return p && !p->none && (p->B == p->shape.B || aligned(stats(p, a->lse, 1)));
}

/* Pointers by their names in the graph. */
struct pack {
    int64_t uid[SDPA_NUIDS];
    void *at[SDPA_NUIDS];
    int n;
};

static void name(struct pack *p, enum sdpa_uid uid, const void *at)
{
    p->uid[p->n] = uid;
    p->at[p->n++] = (void *)(uintptr_t)at;
}

static cudnnStatus_t execute(const struct cudnn_api *api, cudnnHandle_t handle,
                             cudnnBackendDescriptor_t plan, const struct pack *p, void *workspace)
{
    cudnnBackendDescriptor_t v = NULL;
    cudnnStatus_t s = api->create_descriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &v);

    s = s ? s : api->set(v, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, p->n, p->uid);
    s = s ? s
          : api->set(v, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, p->n, p->at);
    s = s ? s : api->set(v, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    s = s ? s : api->finalize(v);
    s = s ? s : api->execute(handle, plan, v);
    if (v)
        api->destroy_descriptor(v);
    return s;
}

static int run_plan(struct fsdp_lane *lane, const struct plans *p, bool backward,
                    const struct pack *pack, void *workspace, struct fsdp_err *err)
{
    const struct cudnn_api *api;
    char why[160] = "";

    FSDP_TRY(cudnn_open(&api, err));
    pthread_mutex_lock(&lock);
    cudnnHandle_t handle = handles[p->ordinal];
    cudnnStatus_t s = api->set_stream(handle, (cudaStream_t)fsdp_lane_native(lane));
    s = s ? s : execute(api, handle, backward ? p->backward : p->forward, pack, workspace);
    if (s)
        api->last_error(why, sizeof why - 1);
    pthread_mutex_unlock(&lock);
    return s ? fsdp_err_set(err, FSDP_EINTERNAL, "attention through cuDNN: %s %s",
                            api->error_string(s), why)
             : FSDP_OK;
}

/* Sequences from b on of a tensor with row_nelem elements a position. */
static void *sequence(const struct plans *p, const void *x, int b, int heads)
{
    const size_t nelem = (size_t)p->shape.T * (size_t)heads * (size_t)p->shape.D;
    return nn_at(x, (enum fsdp_dtype)p->shape.dtype, (size_t)b * nelem);
}

static void name_inputs(struct pack *pack, const struct plans *p, const struct nn_attention *a,
                        int b)
{
    /* The value of masked scores that cuDNN looks for changed with 9.10. */
    static const float minus_inf = -INFINITY, least = -FLT_MAX;
    const struct cudnn_api *api;

    name(pack, SDPA_Q, sequence(p, a->q, b, a->NH));
    name(pack, SDPA_K, sequence(p, a->k, b, a->NKV));
    name(pack, SDPA_V, sequence(p, a->v, b, a->NKV));
    name(pack, SDPA_O, sequence(p, a->o, b, a->NH));
    name(pack, SDPA_LSE, stats(p, a->lse, b));
    name(pack, SDPA_SCALE, &a->scale);
    if (p->shape.window)
        name(pack, SDPA_WINDOW, &p->shape.window);
    name(pack, SDPA_MINUS_INF,
         !cudnn_open(&api, NULL) && api->get_version() < 91000 ? &least : &minus_inf);
}

static struct plans *planned(const struct fsdp_lane *lane, const struct nn_attention *a)
{
    pthread_mutex_lock(&lock);
    struct plans *p = find_plans(a, fsdp_cuda_ordinal(lane));
    pthread_mutex_unlock(&lock);
    return p;
}

int cudnn_attention_forward(struct fsdp_lane *lane, const struct nn_attention *a,
                            struct fsdp_err *err)
{
    const struct plans *p = planned(lane, a);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    for (int b = 0; b < a->B; b += p->shape.B) {
        struct pack pack = {.n = 0};
        name_inputs(&pack, p, a, b);
        FSDP_TRY(run_plan(lane, p, false, &pack, begin_of(a->work), err));
    }
    return FSDP_OK;
}

static int backward_piece(struct fsdp_lane *lane, const struct plans *p,
                          const struct nn_attention *a, int b, const struct room *r,
                          struct fsdp_err *err)
{
    static const float one = 1;
    const size_t row = (size_t)p->shape.B * (size_t)p->shape.T * (size_t)p->shape.D;
    const size_t q_nbytes = row * (size_t)a->NH * sizeof(uint16_t);
    const size_t k_nbytes = row * (size_t)a->NKV * sizeof(uint16_t);
    struct pack pack = {.n = 0};

    name_inputs(&pack, p, a, b);
    name(&pack, SDPA_DO, sequence(p, a->d_o, b, a->NH));
    name(&pack, SDPA_DQ, r->dq);
    name(&pack, SDPA_DK, r->dk);
    name(&pack, SDPA_DV, r->dv);
    name(&pack, SDPA_DELTA, r->delta);
    name(&pack, SDPA_ONE, &one);
    if (!p->shape.deterministic)
        name(&pack, SDPA_DQ_ACCUM, r->accum);
    FSDP_TRY(run_plan(lane, p, true, &pack, r->workspace, err));
    FSDP_TRY(fsdp_copy(lane, sequence(p, a->q, b, a->NH), r->dq, q_nbytes, err));
    FSDP_TRY(fsdp_copy(lane, sequence(p, a->k, b, a->NKV), r->dk, k_nbytes, err));
    return fsdp_copy(lane, sequence(p, a->v, b, a->NKV), r->dv, k_nbytes, err);
}

int cudnn_attention_backward(struct fsdp_lane *lane, const struct nn_attention *a,
                             struct fsdp_err *err)
{
    const struct plans *p = planned(lane, a);
    struct room r;

    FSDP_TRY(fsdp_cuda_enter(lane, err));
    place_tensors(&r, p, a);
    for (int b = 0; b < a->B; b += p->shape.B)
        FSDP_TRY(backward_piece(lane, p, a, b, &r, err));
    return FSDP_OK;
}
