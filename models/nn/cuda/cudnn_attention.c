/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of cuDNN for attention, made when a model's memory is laid out, and their execution.
 *
 * Rows of several documents go through plans that take all rows' documents as they lie behind one
 * another. Such a plan is for so many documents (nn_cuda_documents_step) of at most a row's length,
 * and does not know of rows; the tables that it reads are made from `starts` on the device. The
 * statistics of these lie by position, not by head: forward and backward take the same way.
 *
 * A batch of fewer rows than planned, the last one of an evaluation, goes through packed plans with
 * a document a row, or its rows go one by one through a forward plan for one.
 *
 * Dropout is cuDNN's where the caller lets the device choose what is dropped. Its random numbers
 * depend on a seed and on the place in the plan's batch: each run has a seed of its own, which is
 * made of the caller's key and the number of the run's first row.
 *
 * A deterministic backward pass takes memory by the square of the sequence, so its plans are for
 * one sequence, and the batch goes through them one by one. Gradients cannot take the place of q, k
 * and v while the kernel reads them: they lie in work memory first,
 *
 *     work   [ seeds | tables | delta | dq in fp32 | dq | dk | dv | dk, dv of heads | workspace ]
 */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "cudnn_attention.h"
#include "cudnn_sdpa.h"

enum { MOST_DEVICES = 64, ALIGNMENT = 256 };
enum { MOST_DOCUMENTS = 1 << 20, SEEDS_APART = 16 };
enum {
    LEAST_PACKED = 91100,
    LEAST_DROPPED_WINDOW = 91002,
    LAST_OF_MULTIPLES = 91500,
    MULTIPLE = 128
};

struct plans {
    struct sdpa_shape shape; /* its B: sequences, or documents, at once */
    int B;                   /* rows of a batch; 0: any */
    int ordinal;
    bool none; /* they could not be made, which is not tried again */
    cudnnBackendDescriptor_t forward, backward;
    int64_t forward_nbytes, backward_nbytes; /* workspaces */
    float kept, kept_inverse;                /* 1 - p of dropout, and 1 / (1 - p) */
    struct plans *next;
};

/* Which of the plans of a shape. */
enum plan_kind {
    OF_BATCH,  /* of whole batches, their rows sequences */
    OF_ROW,    /* forward of rows one by one */
    OF_PACKED, /* of whole batches' documents */
    NKINDS
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cudnnHandle_t handles[MOST_DEVICES];
static struct plans *all;

/* 0: all keys */
static int32_t window_of(const struct nn_attention *a)
{
    return a->window < a->Tk ? a->window : 0;
}

static float drop_p(const struct nn_attention *a)
{
    return a->drop_fast ? a->drop.p : 0;
}

static struct sdpa_shape shape_of(const struct nn_attention *a, enum plan_kind kind, int documents)
{
    const bool deterministic = nn_cuda_attention_chosen() == NN_CUDA_DETERMINISTIC;
    const struct nn_cuda_way way = {.deterministic = deterministic};
    return (struct sdpa_shape){.B = kind == OF_PACKED ? documents
                                    : kind == OF_ROW  ? 1
                                                      : nn_cuda_room_rows(a, way),
                               .T = a->Tq,
                               .NH = a->NH,
                               .NKV = a->NKV,
                               .D = a->D,
                               .dtype = (int32_t)a->dtype,
                               .deterministic = deterministic,
                               .window = window_of(a),
                               .packed = kind == OF_PACKED,
                               .drop_p = drop_p(a)};
}

static int rows_of(const struct nn_attention *a, enum plan_kind kind)
{
    return kind == OF_BATCH ? a->B : 0;
}

static struct plans *find_plans(const struct nn_attention *a, enum plan_kind kind, int documents,
                                int ordinal)
{
    const struct sdpa_shape shape = shape_of(a, kind, documents);
    for (struct plans *p = all; p; p = p->next)
        if (p->ordinal == ordinal && p->B == rows_of(a, kind) &&
            !memcmp(&p->shape, &shape, sizeof shape))
            return p;
    return NULL;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Of one run of a plan. */
struct room {
    struct nn_cuda_documents tables;
    void *seeds, *delta, *accum, *dq, *dk, *dv, *dk_heads, *dv_heads, *workspace;
};

/* Work memory lies as its caller has it. */
static void *begin_of(void *work)
{
    return (void *)(((uintptr_t)work + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

static struct nn_cuda_way way_of(const struct plans *p)
{
    return (struct nn_cuda_way){.deterministic = p->shape.deterministic,
                                .documents = p->shape.packed ? p->shape.B : 0,
                                .drops = p->shape.drop_p > 0};
}

static void *take_piece(char **at, size_t nbytes)
{
    void *here = *at;
    *at += nbytes;
    return here;
}

static struct room place_tensors(const struct plans *p, const struct nn_attention *a, bool backward)
{
    const struct nn_cuda_room n = nn_cuda_room_of(a, way_of(p), (size_t)p->backward_nbytes);
    char *at = begin_of(a->work);
    struct room r = {.tables = {.starts = a->starts,
                                .B = a->B,
                                .T = a->Tq,
                                .most = p->shape.B,
                                .q_nelem = a->NH * a->D,
                                .k_nelem = a->NKV * a->D,
                                .stats_nelem = a->NH}};

    r.seeds = take_piece(&at, n.seeds);
    r.tables.lengths = take_piece(&at, n.table);
    r.tables.q_begins = take_piece(&at, n.table);
    r.tables.k_begins = take_piece(&at, n.table);
    r.tables.stats_begins = take_piece(&at, n.table);
    if (backward) {
        r.delta = take_piece(&at, n.delta);
        r.accum = take_piece(&at, n.accum);
        r.dq = take_piece(&at, n.dq);
        r.dk = take_piece(&at, n.dk);
        r.dv = take_piece(&at, n.dv);
        r.dk_heads = take_piece(&at, n.dk_heads);
        r.dv_heads = take_piece(&at, n.dv_heads);
    }
    r.workspace = at;
    return r;
}

static size_t work_nelem(const struct plans *p, const struct nn_attention *a)
{
    return nn_cuda_cudnn_work_nelem(a, way_of(p), (size_t)p->forward_nbytes,
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

/* What NVIDIA's frontend keeps from these versions, whose plans give wrong results. */
static int check_version(const struct plans *p, size_t version, struct fsdp_err *err)
{
    if (p->shape.packed && version < LEAST_PACKED)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "several documents in a row: cuDNN %zu is older than 9.11", version);
    if (p->shape.drop_p > 0 && p->shape.window && version < LEAST_DROPPED_WINDOW)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "dropout with a window: cuDNN %zu is older than 9.10.2", version);
    if (!p->shape.packed && version <= LAST_OF_MULTIPLES && p->shape.T % MULTIPLE)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "rows of %d positions: cuDNN %zu takes multiples of %d, 9.15.1 and "
                            "newer any number",
                            p->shape.T, version, MULTIPLE);
    return FSDP_OK;
}

static int make(struct plans *p, bool trains, struct fsdp_err *err)
{
    const struct cudnn_api *api;
    cudnnHandle_t handle = NULL;

    FSDP_TRY(cudnn_open(&api, err));
    FSDP_TRY(check_version(p, api->get_version(), err));
    FSDP_TRY(handle_for(&handle, api, p->ordinal, err));
    FSDP_TRY(make_plan(&p->forward, &p->forward_nbytes, api, handle, &p->shape, sdpa_forward_graph,
                       err));
    if (!trains)
        return FSDP_OK;
    int rc = make_plan(&p->backward, &p->backward_nbytes, api, handle, &p->shape,
                       sdpa_backward_graph, err);
    if (rc)
        api->destroy_descriptor(p->forward);
    return rc;
}

static const char *text_of(enum plan_kind kind)
{
    static const char *const text[NKINDS] = {"", "single rows, ", "several documents in a row, "};
    return text[kind];
}

/* Elements of work; 0: there are no such plans. */
static size_t plan_for(const struct nn_attention *a, enum plan_kind kind, int documents,
                       int ordinal)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct plans *p = find_plans(a, kind, documents, ordinal);

    if (p)
        return p->none ? 0 : work_nelem(p, a);
    if (!(p = fsdp_alloc(1, sizeof *p, "plans of attention", &err)))
        return 0;
    p->shape = shape_of(a, kind, documents);
    p->B = rows_of(a, kind);
    p->ordinal = ordinal;
    p->kept = 1 - p->shape.drop_p;
    p->kept_inverse = 1 / p->kept;
    p->none = make(p, kind != OF_ROW, &err) != FSDP_OK;
    if (p->none)
        fsdp_log(FSDP_LOG_WARN, "attention: " NN_CUDA_SLOW ", because of: %s%s", text_of(kind),
                 err.text);
    p->next = all;
    all = p;
    return p->none ? 0 : work_nelem(p, a);
}

/* Plans for as many documents as rows, and on to the most; none after the first that fails. */
static size_t plan_packed(const struct nn_attention *a, int ordinal)
{
    const int last = nn_cuda_documents_step(a->documents);
    size_t most = 0;

    for (int n = nn_cuda_documents_step(a->B); n <= last; n *= 2) {
        const size_t nelem = plan_for(a, OF_PACKED, n, ordinal);
        if (!nelem)
            break;
        most = nelem > most ? nelem : most;
    }
    return most;
}

size_t cudnn_attention_plan(const struct nn_attention *shape, bool packed)
{
    size_t nelem[NKINDS] = {0}, most = 0;
    int ordinal;

    if (cudaGetDevice(&ordinal))
        return 0;
    pthread_mutex_lock(&lock);
    nelem[OF_BATCH] = plan_for(shape, OF_BATCH, 0, ordinal);
    if (packed)
        nelem[OF_PACKED] = plan_packed(shape, ordinal);
    if (nelem[OF_BATCH] && !nelem[OF_PACKED] && shape->B > 1 && shape->drop.p <= 0)
        nelem[OF_ROW] = plan_for(shape, OF_ROW, 0, ordinal);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < NKINDS; i++)
        most = nelem[i] > most ? nelem[i] : most;
    return most;
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

static struct plans *usable(struct plans *p)
{
    return p && !p->none ? p : NULL;
}

/* The plans for a batch; lock is held. */
static struct plans *choose_plans(const struct nn_attention *a, int ordinal)
{
    const bool packed = a->starts && a->documents != a->B;
    struct plans *p = packed ? NULL : usable(find_plans(a, OF_BATCH, 0, ordinal));

    if (packed && !a->documents)
        return NULL;
    for (int n = nn_cuda_documents_step(packed ? a->documents : a->B); !p && n <= MOST_DOCUMENTS;
         n *= 2)
        p = usable(find_plans(a, OF_PACKED, n, ordinal));
    return p || packed || a->drop.p > 0 ? p : usable(find_plans(a, OF_ROW, 0, ordinal));
}

static struct plans *planned(const struct fsdp_lane *lane, const struct nn_attention *a)
{
    pthread_mutex_lock(&lock);
    struct plans *p = choose_plans(a, fsdp_cuda_ordinal(lane));
    pthread_mutex_unlock(&lock);
    return p;
}

bool cudnn_attention_can(const struct fsdp_lane *lane, const struct nn_attention *a)
{
    const struct plans *p = planned(lane, a);

    if (!p || !aligned(a->q) || !aligned(a->k) || !aligned(a->v) || !aligned(a->o) ||
        !aligned(a->lse) || (a->d_o && !p->backward))
        return false;
    if (p->shape.packed)
        return true;
    /* What was dropped only cuDNN knows: then both directions are its own, or the call fails. Other
     * sequences of a batch that goes through one by one. */
    return (p->shape.drop_p > 0 || aligned(a->d_o)) &&
           (a->B == p->shape.B || aligned(stats(p, a->lse, 1)));
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

/* Of the run from sequence b on. */
static uint64_t seed_of(const struct nn_attention *a, int b)
{
    const uint64_t place[] = {a->drop.key, a->drop.first_row + (uint64_t)b};
    return fsdp_hash(FSDP_HASH_SEED, place, sizeof place);
}

/* From sequence b on; packed, b is 0. */
static void name_inputs(struct pack *pack, const struct plans *p, const struct nn_attention *a,
                        int b, const struct room *r)
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
    if (p->shape.drop_p > 0) {
        name(pack, SDPA_SEED, r->seeds);
        name(pack, SDPA_OFFSET, (char *)r->seeds + SEEDS_APART);
        name(pack, SDPA_KEPT_INVERSE, &p->kept_inverse);
    }
    if (!p->shape.packed)
        return;
    name(pack, SDPA_LENGTHS, r->tables.lengths);
    name(pack, SDPA_Q_BEGINS, r->tables.q_begins);
    name(pack, SDPA_K_BEGINS, r->tables.k_begins);
    name(pack, SDPA_STATS_BEGINS, r->tables.stats_begins);
}

/* Sequences of a run of the plan: packed, all of the batch. */
static int at_once(const struct plans *p, const struct nn_attention *a)
{
    return p->shape.packed ? a->B : p->shape.B;
}

int cudnn_attention_forward(struct fsdp_lane *lane, const struct nn_attention *a,
                            struct fsdp_err *err)
{
    const struct plans *p = planned(lane, a);
    const struct room r = place_tensors(p, a, false);

    FSDP_TRY(fsdp_cuda_enter(lane, err));
    if (p->shape.packed)
        FSDP_TRY(nn_cuda_documents(lane, &r.tables, err));
    for (int b = 0; b < a->B; b += at_once(p, a)) {
        struct pack pack = {.n = 0};
        name_inputs(&pack, p, a, b, &r);
        if (p->shape.drop_p > 0)
            FSDP_TRY(nn_cuda_seeds(lane, r.seeds, seed_of(a, b), err));
        FSDP_TRY(run_plan(lane, p, false, &pack, r.workspace, err));
    }
    return FSDP_OK;
}

static int backward_piece(struct fsdp_lane *lane, const struct plans *p,
                          const struct nn_attention *a, int b, const struct room *r,
                          struct fsdp_err *err)
{
    static const float one = 1;
    const size_t row = (size_t)at_once(p, a) * (size_t)a->Tq * (size_t)a->D;
    const size_t q_nbytes = row * (size_t)a->NH * sizeof(uint16_t);
    const size_t k_nbytes = row * (size_t)a->NKV * sizeof(uint16_t);
    struct pack pack = {.n = 0};

    name_inputs(&pack, p, a, b, r);
    name(&pack, SDPA_DO, sequence(p, a->d_o, b, a->NH));
    name(&pack, SDPA_DQ, r->dq);
    name(&pack, SDPA_DK, r->dk);
    name(&pack, SDPA_DV, r->dv);
    name(&pack, SDPA_DELTA, r->delta);
    if (p->shape.drop_p > 0)
        name(&pack, SDPA_KEPT, &p->kept);
    else
        name(&pack, SDPA_ONE, &one);
    if (!p->shape.deterministic)
        name(&pack, SDPA_DQ_ACCUM, r->accum);
    if (p->shape.packed && a->NH != a->NKV) {
        name(&pack, SDPA_DK_HEADS, r->dk_heads);
        name(&pack, SDPA_DV_HEADS, r->dv_heads);
    }
    if (p->shape.drop_p > 0)
        FSDP_TRY(nn_cuda_seeds(lane, r->seeds, seed_of(a, b), err));
    FSDP_TRY(run_plan(lane, p, true, &pack, r->workspace, err));
    if (a->left && at_once(p, a) == a->B) {
        *a->left = (struct nn_attention_left){.dq = r->dq, .dk = r->dk};
    } else {
        FSDP_TRY(fsdp_copy(lane, sequence(p, a->q, b, a->NH), r->dq, q_nbytes, err));
        FSDP_TRY(fsdp_copy(lane, sequence(p, a->k, b, a->NKV), r->dk, k_nbytes, err));
    }
    return fsdp_copy(lane, sequence(p, a->v, b, a->NKV), r->dv, k_nbytes, err);
}

int cudnn_attention_backward(struct fsdp_lane *lane, const struct nn_attention *a,
                             struct fsdp_err *err)
{
    const struct plans *p = planned(lane, a);
    const struct room r = place_tensors(p, a, true);

    /* Other kernels would read the statistics that its forward pass left by head. */
    if (!aligned(a->d_o))
        return fsdp_err_set(err, FSDP_EINTERNAL,
                            "attention: the output's gradient does not lie at 16 bytes");
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    if (p->shape.packed)
        FSDP_TRY(nn_cuda_documents(lane, &r.tables, err));
    for (int b = 0; b < a->B; b += at_once(p, a))
        FSDP_TRY(backward_piece(lane, p, a, b, &r, err));
    return FSDP_OK;
}
