/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes, events and memory on a GPU.
 *
 * A lane is a stream that does not wait for the default one; an urgent lane has the greatest
 * priority. Calls of the host (fsdp_lane_call) run on a thread of the driver, their arguments in a
 * ring that the lane owns, so that nothing is allocated when work is enqueued.
 *
 * The driver may run the calls of all lanes on one thread, one after the other, so a call that
 * blocks (a read of offloaded state from a disk) holds up those of other lanes, but no kernel and
 * no copy of theirs. Hence a call must wait for nothing that another call, or the GPU, has to do:
 * those of the engine wait for disks and for threads of their own alone. NCCL asks for such calls
 * only in CUDA graphs, of which ours contain none of its work, and under CUDA_LAUNCH_BLOCKING.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cuda_lane.h"
#include "cuda_nvtx.h"

enum { RING = 1024, PAGE_NBYTES = 4096, CUDA_ALIGN_NBYTES = 256 };

/* cudaMalloc aligns to 256 bytes at least, not to pages: what it gave, for what was given out. */
struct block {
    void *base, *aligned;
    struct block *next;
};

/* Threads that never chose a GPU ask for events, too; without a choice CUDA would make a context
 * for them on the first one, which is another rank's. */
struct cuda_event {
    cudaEvent_t event;
    int ordinal;
};

/* That work continues is an answer and no error, but CUDA keeps it as the thread's last error,
 * which the next launch of a kernel would take for its own. */
static bool is_unready(cudaError_t e)
{
    if (e == cudaErrorNotReady)
        cudaGetLastError();
    return e == cudaErrorNotReady;
}

/* ---- device and memory ----------------------------------------------------------------------- */

static int dev_open(void **state, int ordinal, unsigned flags, struct fsdp_err *err)
{
    (void)flags;
    struct cuda_device *d = fsdp_alloc(1, sizeof *d, "cuda device", err);
    if (!d)
        return FSDP_ENOMEM;
    d->ordinal = ordinal;
    pthread_mutex_init(&d->lock, NULL);
    cudaError_t e = cudaSetDevice(ordinal);
    e = e ? e : cudaDeviceGetStreamPriorityRange(&d->least, &d->greatest);
    int rc = fsdp_cuda_check((int)e, err, "device cuda:%d", ordinal);
    if (rc) {
        pthread_mutex_destroy(&d->lock);
        fsdp_free(d);
        return rc;
    }
    *state = d;
    return FSDP_OK;
}

static void dev_close(void *state)
{
    struct cuda_device *d = state;
    pthread_mutex_destroy(&d->lock);
    fsdp_free(d);
}

static void *dev_alloc(void *state, size_t nbytes, const char *name, struct fsdp_err *err)
{
    struct cuda_device *d = state;
    struct block *b = fsdp_alloc(1, sizeof *b, name, err);
    if (!b)
        return NULL;
    cudaError_t e = cudaSetDevice(d->ordinal);
    e = e ? e : cudaMalloc(&b->base, nbytes + PAGE_NBYTES - CUDA_ALIGN_NBYTES);
    b->aligned = (void *)(((uintptr_t)b->base + PAGE_NBYTES - 1) / PAGE_NBYTES * PAGE_NBYTES);
    e = e ? e : cudaMemset(b->aligned, 0, nbytes);
    /* Lanes do not wait for the default stream. */
    e = e ? e : cudaStreamSynchronize(NULL);
    if (e) {
        fsdp_cuda_check((int)e, err, "%s: %zu bytes on cuda:%d", name, nbytes, d->ordinal);
        cudaFree(b->base);
        fsdp_free(b);
        return NULL;
    }
    pthread_mutex_lock(&d->lock);
    b->next = d->blocks;
    d->blocks = b;
    pthread_mutex_unlock(&d->lock);
    return b->aligned;
}

static void dev_free(void *state, void *ptr)
{
    struct cuda_device *d = state;
    pthread_mutex_lock(&d->lock);
    struct block **at = &d->blocks;
    while ((*at)->aligned != ptr)
        at = &(*at)->next;
    struct block *b = *at;
    *at = b->next;
    pthread_mutex_unlock(&d->lock);
    cudaSetDevice(d->ordinal);
    cudaFree(b->base);
    fsdp_free(b);
}

static void *host_alloc(void *state, size_t nbytes, const char *name, struct fsdp_err *err)
{
    struct cuda_device *d = state;
    void *ptr = NULL;
    cudaError_t e = cudaSetDevice(d->ordinal);
    e = e ? e : cudaHostAlloc(&ptr, nbytes ? nbytes : 1, cudaHostAllocPortable);
    if (fsdp_cuda_check((int)e, err, "%s: %zu bytes of page-locked host memory", name, nbytes))
        return NULL;
    memset(ptr, 0, nbytes);
    return ptr;
}

static void host_free(void *state, void *ptr)
{
    struct cuda_device *d = state;
    cudaSetDevice(d->ordinal);
    cudaFreeHost(ptr);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static int lane_create(void **out, void *state, const char *name, bool urgent, struct fsdp_err *err)
{
    struct cuda_device *d = state;
    struct cuda_lane *l = fsdp_alloc(1, sizeof *l, "cuda lane", err);
    struct call *ring = fsdp_alloc(RING, sizeof *ring, "cuda lane calls", err);
    if (!l || !ring) {
        fsdp_free(l);
        fsdp_free(ring);
        return FSDP_ENOMEM;
    }
    l->device = d;
    l->ring = ring;
    strncpy(l->name, name, sizeof l->name - 1);
    cudaError_t e = cudaSetDevice(d->ordinal);
    e = e ? e : cudaMalloc((void **)&l->partials, CUDA_PARTIALS * sizeof *l->partials);
    e = e ? e
          : cudaStreamCreateWithPriority(&l->stream, cudaStreamNonBlocking,
                                         urgent ? d->greatest : d->least);
    int rc = fsdp_cuda_check((int)e, err, "lane %s: cannot create its stream", name);
    if (rc) {
        cudaFree(l->partials);
        fsdp_free(ring);
        fsdp_free(l);
        return rc;
    }
    pthread_mutex_init(&l->lock, NULL);
    *out = l;
    return FSDP_OK;
}

static void *lane_native(void *lane)
{
    const struct cuda_lane *l = lane;
    return l->stream;
}

static int lane_sync(void *lane, struct fsdp_err *err)
{
    struct cuda_lane *l = lane;
    FSDP_TRY(cuda_lane_refuse(l, "waiting for it", err));
    cudaError_t e = cudaSetDevice(l->device->ordinal);
    e = e ? e : cudaStreamSynchronize(l->stream);
    FSDP_TRY(cuda_lane_check(l, e, "enqueued work failed", err));
    cuda_stamps_read(&l->stamps);
    return cuda_lane_failure(l, err);
}

static int lane_stamp(void *lane, double *to, struct fsdp_err *err)
{
    struct cuda_lane *l = lane;
    FSDP_TRY(cuda_lane_refuse(l, "a stamp", err));
    FSDP_TRY(device_cuda_enter(l, err));
    return cuda_stamps_add(&l->stamps, l->stream, to, err);
}

static void lane_destroy(void *lane)
{
    struct cuda_lane *l = lane;
    lane_sync(l, NULL); /* calls in flight read the ring */
    cuda_stamps_free(&l->stamps);
    cudaStreamDestroy(l->stream);
    cudaFree(l->partials);
    pthread_mutex_destroy(&l->lock);
    fsdp_free(l->ring);
    fsdp_free(l);
}

/* On a thread of the driver. After a failure the lane drops its calls. */
static void CUDART_CB run_call(void *arg)
{
    struct call *c = arg;
    struct cuda_lane *l = c->lane;
    struct fsdp_err failure = FSDP_ERR_INIT;
    if (!atomic_load(&l->failed)) {
        int rc = c->fn(c->arg, &failure);
        if (rc) {
            failure.status = rc;
            cuda_lane_fail(l, &failure);
        }
    }
    atomic_fetch_add(&l->head, 1);
}

static int lane_call(void *lane, fsdp_lane_f *fn, const void *arg, size_t arg_nbytes,
                     struct fsdp_err *err)
{
    struct cuda_lane *l = lane;
    FSDP_TRY(cuda_lane_refuse(l, "a call of the host", err));
    FSDP_TRY(device_cuda_enter(l, err));
    while (l->tail - atomic_load(&l->head) == RING) {
        /* Of a GPU that has failed no call comes back. */
        cudaError_t e = cudaStreamQuery(l->stream);
        if (!is_unready(e))
            FSDP_TRY(cuda_lane_check(l, e, "enqueued work failed", err));
        nanosleep(&(struct timespec){0, 20000}, NULL);
    }
    struct call *c = &l->ring[l->tail % RING];
    c->lane = l;
    c->fn = fn;
    memcpy(c->arg, arg, arg_nbytes);
    FSDP_TRY(
        cuda_lane_check(l, cudaLaunchHostFunc(l->stream, run_call, c), "call of the host", err));
    l->tail++;
    return FSDP_OK;
}

/* ---- events: they pass a failed lane, or other lanes would wait for ever --------------------- */

static int event_create(void **out, void *state, bool timed, struct fsdp_err *err)
{
    struct cuda_device *d = state;
    struct cuda_event *v = fsdp_alloc(1, sizeof *v, "cuda event", err);
    if (!v)
        return FSDP_ENOMEM;
    v->ordinal = d->ordinal;
    cudaError_t e = cudaSetDevice(d->ordinal);
    e = e ? e
          : cudaEventCreateWithFlags(&v->event, timed ? cudaEventDefault : cudaEventDisableTiming);
    int rc = fsdp_cuda_check((int)e, err, "cannot create an event");
    if (rc) {
        fsdp_free(v);
        return rc;
    }
    *out = v;
    return FSDP_OK;
}

static void event_destroy(void *event)
{
    struct cuda_event *v = event;
    cudaSetDevice(v->ordinal);
    cudaEventDestroy(v->event);
    fsdp_free(v);
}

static int event_record(void *event, void *lane, struct fsdp_err *err)
{
    struct cuda_event *v = event;
    struct cuda_lane *l = lane;
    FSDP_TRY(cuda_lane_refuse(l, "recording an event", err));
    cudaError_t e = cudaSetDevice(v->ordinal);
    return cuda_lane_check(l, e ? e : cudaEventRecord(v->event, l->stream), "recording an event",
                           err);
}

static int event_wait(void *event, void *lane, struct fsdp_err *err)
{
    struct cuda_event *v = event;
    struct cuda_lane *l = lane;
    FSDP_TRY(cuda_lane_refuse(l, "waiting for an event", err));
    cudaError_t e = cudaSetDevice(l->device->ordinal);
    return cuda_lane_check(l, e ? e : cudaStreamWaitEvent(l->stream, v->event, 0),
                           "waiting for an event", err);
}

static int event_done(void *event, bool *done, struct fsdp_err *err)
{
    struct cuda_event *v = event;
    cudaError_t e = cudaSetDevice(v->ordinal);
    e = e ? e : cudaEventQuery(v->event);
    *done = e == cudaSuccess;
    return is_unready(e) ? FSDP_OK : fsdp_cuda_check((int)e, err, "the GPU failed");
}

static int event_seconds(void *from, void *to, double *seconds, struct fsdp_err *err)
{
    const struct cuda_event *begin = from, *end = to;
    float ms = 0;
    cudaError_t e = cudaSetDevice(begin->ordinal);
    e = e ? e : cudaEventElapsedTime(&ms, begin->event, end->event);
    *seconds = (double)ms / 1e3;
    return fsdp_cuda_check((int)e, err, "the time between two events");
}

/* ---- copies ---------------------------------------------------------------------------------- */

static int copy(void *lane, void *dst, const void *src, size_t nbytes, struct fsdp_err *err)
{
    struct cuda_lane *l = lane;
    FSDP_TRY(device_cuda_enter(l, err));
    return cuda_lane_check(l, cudaMemcpyAsync(dst, src, nbytes, cudaMemcpyDefault, l->stream),
                           "copy", err);
}

/* The driver's limit on the distance of rows. */
static bool fits_pitch(size_t step)
{
    return step <= INT32_MAX;
}

static int copy_pieces(void *lane, void *dst, const void *src, size_t nbytes,
                       const struct fsdp_pieces *p, struct fsdp_err *err)
{
    struct cuda_lane *l = lane;

    if (p->count == 1 || !fits_pitch(p->dst_step) || !fits_pitch(p->src_step)) {
        for (size_t i = 0; i < p->count; i++)
            FSDP_TRY(copy(lane, (char *)dst + i * p->dst_step, (const char *)src + i * p->src_step,
                          nbytes, err));
        return FSDP_OK;
    }
    FSDP_TRY(device_cuda_enter(l, err));
    return cuda_lane_check(l,
                           cudaMemcpy2DAsync(dst, p->dst_step, src, p->src_step, nbytes, p->count,
                                             cudaMemcpyDefault, l->stream),
                           "copy of pieces", err);
}

static int look_at(void *state, struct fsdp_device_look *out, struct fsdp_err *err)
{
    struct cuda_device *d = state;
    struct cudaDeviceProp props;
    size_t nfree = 0, total = 0;
    cudaError_t e = cudaSetDevice(d->ordinal);

    if (!d->model[0]) { /* it takes milliseconds */
        e = e ? e : cudaGetDeviceProperties(&props, d->ordinal);
        if (!e)
            snprintf(d->model, sizeof d->model, "%.*s", (int)sizeof d->model - 1, props.name);
    }
    e = e ? e : cudaMemGetInfo(&nfree, &total);
    snprintf(out->model, sizeof out->model, "%s", d->model);
    out->used_nbytes = total - nfree;
    out->total_nbytes = total;
    return fsdp_cuda_check((int)e, err, "memory of cuda:%d", d->ordinal);
}

static int zero(void *lane, void *dst, size_t nbytes, struct fsdp_err *err)
{
    struct cuda_lane *l = lane;
    FSDP_TRY(device_cuda_enter(l, err));
    return cuda_lane_check(l, cudaMemsetAsync(dst, 0, nbytes, l->stream), "zero", err);
}

const struct fsdp_device_ops fsdp_device_cuda_ops = {
    .abi = FSDP_DEVICE_OPS_ABI,
    .name = "cuda",
    .open = dev_open,
    .close = dev_close,
    .alloc = dev_alloc,
    .free = dev_free,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .lane_create = lane_create,
    .lane_destroy = lane_destroy,
    .lane_sync = lane_sync,
    .lane_call = lane_call,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_done = event_done,
    .event_seconds = event_seconds,
    .copy = copy,
    .copy_pieces = copy_pieces,
    .zero = zero,
    .cast = device_cuda_cast,
    .accumulate = device_cuda_accumulate,
    .sumsq = device_cuda_sumsq,
    .absmax = device_cuda_absmax,
    .max_rows = device_cuda_max_rows,
    .quantize = device_cuda_quantize,
    .dequantize = device_cuda_dequantize,
    .nf4_decode = device_cuda_nf4_decode,
    .clip_coef = device_cuda_clip_coef,
    .loss_scale_update = device_cuda_loss_scale_update,
    .adamw = device_cuda_adamw,
    .split = device_cuda_split,
    .join = device_cuda_join,
    .narrow = device_cuda_narrow,
    .sgd = device_cuda_sgd,
    .lion = device_cuda_lion,
    .adamw8bit = device_cuda_adamw8bit,
    .schedulefree = device_cuda_schedulefree,
    .schedulefree_y = device_cuda_schedulefree_y,
    .ema = device_cuda_ema,
    .adafactor = device_cuda_adafactor,
    .muon_begin = device_cuda_muon_begin,
    .muon_end = device_cuda_muon_end,
    .muon_unit = device_cuda_muon_unit,
    .muon_back = device_cuda_muon_back,
    .matmul = device_cuda_matmul,
    .init_fill = device_cuda_init_fill,
    .lane_native = lane_native,
    .lane_stamp = lane_stamp,
    .is_profiled = device_cuda_is_profiled,
    .range_push = device_cuda_range_push,
    .range_pop = device_cuda_range_pop,
    .look = look_at,
    .capture_begin = device_cuda_capture_begin,
    .capture_end = device_cuda_capture_end,
    .graph_launch = device_cuda_graph_launch,
    .graph_destroy = device_cuda_graph_destroy,
};
