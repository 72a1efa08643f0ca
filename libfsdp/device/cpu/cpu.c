/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes and events on the CPU.
 *
 * Unthreaded (the default) a lane runs its work in the caller, so enqueueing order is execution
 * order and events have nothing to do. Threaded, every lane is a ring of calls served by a thread
 * of its own, and events are counters: record enqueues "reached n", wait enqueues "block until n".
 * Shuffled (cpu_shuffle.c), lanes have the same rings, and whoever waits for one runs them.
 */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "cpu.h"
#include "cpu_lane.h"

static int dev_open(void **state, int ordinal, unsigned flags, struct fsdp_err *err)
{
    (void)ordinal;
    struct device *d = fsdp_alloc(1, sizeof *d, "cpu device", err);
    if (!d)
        return FSDP_ENOMEM;
    d->threaded = flags & FSDP_DEVICE_THREADED;
    d->shuffled = flags & FSDP_DEVICE_SHUFFLED;
    d->random = flags; /* holds the seed */
    *state = d;
    return FSDP_OK;
}

static void dev_close(void *state)
{
    fsdp_free(state);
}

/* Pages come straight from the system: zeroed without being touched, so that memory which is
 * planned but not used costs nothing, and in huge pages where there are any. A page in front keeps
 * the length. */
enum { PAGE_NBYTES = 4096 };

static void *dev_alloc(void *state, size_t nbytes, const char *name, struct fsdp_err *err)
{
    (void)state;
    size_t total = nbytes + PAGE_NBYTES;
    char *mem = total < nbytes
                    ? MAP_FAILED
                    : mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mem == MAP_FAILED) {
        fsdp_err_set(err, FSDP_ENOMEM, "%s: out of memory allocating %zu bytes", name, nbytes);
        return NULL;
    }
    madvise(mem, total, MADV_HUGEPAGE); /* advice only */
    memcpy(mem, &total, sizeof total);
    return mem + PAGE_NBYTES;
}

static void dev_free(void *state, void *ptr)
{
    (void)state;
    char *mem = (char *)ptr - PAGE_NBYTES;
    size_t total;
    memcpy(&total, mem, sizeof total);
    munmap(mem, total);
}

static void *lane_main(void *ptr)
{
    struct lane *l = ptr;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (l->head == l->tail && !l->stop)
            pthread_cond_wait(&l->changed, &l->lock);
        if (l->head == l->tail)
            break;
        struct call *c = &l->ring[l->head % RING];
        /* Events still pass after a failure, or other lanes would wait for ever. */
        bool dropped = l->failure.status && !device_cpu_is_event(c->fn);
        pthread_mutex_unlock(&l->lock);
        if (!dropped)
            device_cpu_lane_run(l, c->fn, c->arg);
        pthread_mutex_lock(&l->lock);
        l->head++;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static int lane_create(void **out, void *state, const char *name, bool urgent, struct fsdp_err *err)
{
    (void)urgent;
    struct lane *l = fsdp_alloc(1, sizeof *l, "cpu lane", err);
    if (!l)
        return FSDP_ENOMEM;
    l->device = state;
    strncpy(l->name, name, sizeof l->name - 1);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    if (l->device->shuffled) {
        device_cpu_shuffle_add(l);
    } else if (l->device->threaded) {
        l->ring = fsdp_alloc(RING, sizeof *l->ring, "cpu lane ring", err);
        int errnum = l->ring ? pthread_create(&l->thread, NULL, lane_main, l) : 0;
        if (!l->ring || errnum) {
            int rc = l->ring ? fsdp_err_sys(err, errnum, "lane %s: cannot start its thread", name)
                             : FSDP_ENOMEM;
            fsdp_free(l->ring);
            fsdp_free(l);
            return rc;
        }
    }
    *out = l;
    return FSDP_OK;
}

static void lane_destroy(void *ptr)
{
    struct lane *l = ptr;
    if (l->device->shuffled) {
        device_cpu_shuffle_sync(l, NULL);
        device_cpu_shuffle_remove(l);
    } else if (l->device->threaded) {
        pthread_mutex_lock(&l->lock);
        l->stop = true;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
    }
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    fsdp_free(l->ring);
    fsdp_free(l);
}

static int lane_sync(void *ptr, struct fsdp_err *err)
{
    struct lane *l = ptr;
    if (l->device->shuffled)
        return device_cpu_shuffle_sync(l, err);
    pthread_mutex_lock(&l->lock);
    while (l->head != l->tail)
        pthread_cond_wait(&l->changed, &l->lock);
    int rc = device_cpu_lane_failure(l, err);
    pthread_mutex_unlock(&l->lock);
    return rc;
}

/* ---- events ---------------------------------------------------------------------------------- */

static int event_create(void **out, void *state, bool timed, struct fsdp_err *err)
{
    (void)state;
    (void)timed; /* all are */
    struct event *e = fsdp_alloc(1, sizeof *e, "cpu event", err);
    if (!e)
        return FSDP_ENOMEM;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    *out = e;
    return FSDP_OK;
}

static void event_destroy(void *ptr)
{
    struct event *e = ptr;
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    fsdp_free(e);
}

static int event_record(void *ptr, void *lane, struct fsdp_err *err)
{
    struct lane *l = lane;
    struct event *e = ptr;
    if (!l->device->threaded && !l->device->shuffled) {
        pthread_mutex_lock(&e->lock);
        e->time = fsdp_time_now();
        pthread_mutex_unlock(&e->lock);
        return FSDP_OK;
    }
    pthread_mutex_lock(&e->lock);
    const bool other = e->lane && e->lane != l;
    e->lane = other ? e->lane : l;
    e->recorded += !other;
    struct event_arg arg = {e, e->recorded};
    pthread_mutex_unlock(&e->lock);
    /* Records of two lanes would be reached in any order. */
    if (other)
        return fsdp_err_set(err, FSDP_EINVAL, "an event of another lane is recorded on lane '%s'",
                            l->name);
    return device_cpu_lane_call(lane, device_cpu_event_reached, &arg, sizeof arg, err);
}

static int event_wait(void *ptr, void *lane, struct fsdp_err *err)
{
    struct lane *l = lane;
    struct event *e = ptr;
    if (!l->device->threaded && !l->device->shuffled)
        return FSDP_OK;
    pthread_mutex_lock(&e->lock);
    struct event_arg arg = {e, e->recorded};
    pthread_mutex_unlock(&e->lock);
    return device_cpu_lane_call(lane, device_cpu_event_block, &arg, sizeof arg, err);
}

static int event_done(void *ptr, bool *done, struct fsdp_err *err)
{
    struct event *e = ptr;
    (void)err;
    pthread_mutex_lock(&e->lock);
    *done = e->reached >= e->recorded;
    pthread_mutex_unlock(&e->lock);
    return FSDP_OK;
}

static double time_of(struct event *e)
{
    pthread_mutex_lock(&e->lock);
    const double time = e->time;
    pthread_mutex_unlock(&e->lock);
    return time;
}

static int event_seconds(void *from, void *to, double *seconds, struct fsdp_err *err)
{
    (void)err;
    *seconds = time_of(to) - time_of(from);
    return FSDP_OK;
}

const struct fsdp_device_ops fsdp_device_cpu_ops = {
    .abi = FSDP_DEVICE_OPS_ABI,
    .name = "cpu",
    .is_host = true,
    .open = dev_open,
    .close = dev_close,
    .alloc = dev_alloc,
    .free = dev_free,
    .host_alloc = dev_alloc,
    .host_free = dev_free,
    .lane_create = lane_create,
    .lane_destroy = lane_destroy,
    .lane_sync = lane_sync,
    .lane_call = device_cpu_lane_call,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_done = event_done,
    .event_seconds = event_seconds,
    .copy = device_cpu_copy,
    .copy_pieces = device_cpu_copy_pieces,
    .zero = device_cpu_zero,
    .cast = device_cpu_cast,
    .accumulate = device_cpu_accumulate,
    .sumsq = device_cpu_sumsq,
    .absmax = device_cpu_absmax,
    .max_rows = device_cpu_max_rows,
    .quantize = device_cpu_quantize,
    .dequantize = device_cpu_dequantize,
    .nf4_decode = device_cpu_nf4_decode,
    .clip_coef = device_cpu_clip_coef,
    .loss_scale_update = device_cpu_loss_scale_update,
    .adamw = device_cpu_adamw,
    .split = device_cpu_split,
    .join = device_cpu_join,
    .narrow = device_cpu_narrow,
    .sgd = device_cpu_sgd,
    .lion = device_cpu_lion,
    .adamw8bit = device_cpu_adamw8bit,
    .adafactor = device_cpu_adafactor,
    .muon_begin = device_cpu_muon_begin,
    .muon_end = device_cpu_muon_end,
    .muon_unit = device_cpu_muon_unit,
    .muon_back = device_cpu_muon_back,
    .matmul = device_cpu_matmul,
    .schedulefree = device_cpu_schedulefree,
    .schedulefree_y = device_cpu_schedulefree_y,
    .ema = device_cpu_ema,
    .init_fill = device_cpu_init_fill,
};
