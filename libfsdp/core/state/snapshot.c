/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A copy of the state in host memory, for a writer that runs during training.
 *
 *   parts     of a flat's shard: the master (a split one as its two halves) and each slot
 *   copied    those that the budget has room for, chosen once: the last that a writer comes to,
 *             which writes all masters before all optimizer tensors
 *   read live those that it has not, and frozen flats, which nothing updates
 *
 * The next update of a flat may overwrite it only when its parts were copied (an event of the copy
 * lane, which the compute lane waits for) and its live parts were read (a wait of the host).
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "fsdp/sys/cpu.h"
#include "fsdp/sys/thread.h"
#include "master.h"
#include "offload.h"
#include "offload_file.h"
#include "slots.h"
#include "state.h"

struct part {
    const char *live;
    const uint16_t *rest; /* of a split master, whose parameters live is; else NULL */
    bool narrow;          /* live is in 16 bits, with a rest or without, and read as fp32 */
    uint64_t nelem;
    size_t elem_nbytes; /* of live */
    bool is_copied;
    uint64_t pos;  /* of the copy, in host; a rest lies behind the parameters */
    uint8_t *read; /* [ntensors] of a live part: its slice was read, and may have changed since */
};

struct fsdp_snapshot {
    struct fsdp *f;
    double timeout_s;
    struct fsdp_lane *lane;     /* the copy lane; the writer's, once the copies are enqueued */
    struct fsdp_event **copied; /* [nflats] */
    struct part *parts;         /* [nflats][1 + nslots]: the master, then the optimizer's */
    char *host;
    uint64_t host_nbytes;
    uint8_t *read;
    bool *held; /* [nflats] its next update is not yet enqueued */

    pthread_mutex_t lock; /* below */
    pthread_cond_t changed;
    int *nunread; /* [nflats] live slices that the writer has still to read */
    bool active;
};

static int nparts(const struct engine_optim *optim)
{
    return 1 + optim->nslots;
}

static struct part *part_of(const struct fsdp_snapshot *s, int flat, int i)
{
    return &s->parts[flat * nparts(&s->f->optim) + i];
}

/* ---- what is copied -------------------------------------------------------------------------- */

static uint64_t part_nbytes(const struct part *part)
{
    return part->nelem * (part->elem_nbytes + (part->rest ? sizeof *part->rest : 0));
}

/* Part i of a flat gets a place in host memory, if there is room. */
static void place_part(struct fsdp_snapshot *s, int flat, int i, uint64_t budget_nbytes)
{
    struct part *part = part_of(s, flat, i);
    uint64_t nbytes = part_nbytes(part);

    if (!s->f->units.flats[flat].trainable || s->host_nbytes + nbytes > budget_nbytes)
        return;
    part->is_copied = true;
    part->pos = s->host_nbytes;
    s->host_nbytes += nbytes;
}

static void place_all(struct fsdp_snapshot *s, uint64_t budget_nbytes)
{
    int nflats = s->f->units.nflats;
    for (int k = nflats - 1; k >= 0; k--)
        for (int i = 1; i < nparts(&s->f->optim); i++)
            place_part(s, k, i, budget_nbytes);
    for (int k = nflats - 1; k >= 0; k--)
        place_part(s, k, 0, budget_nbytes);
}

static struct part live_part(const struct fsdp *f, int flat, int i)
{
    const struct flat_state *s = &f->flats[flat];
    uint64_t nelem = f->units.flats[flat].cut.shard_nelem;
    if (i)
        return (struct part){.live = s->optim[i - 1],
                             .nelem = slots_nelem(f, flat, i - 1),
                             .elem_nbytes = fsdp_dtype_nbytes(f->optim.slots[i - 1].dtype)};
    if (s->master)
        return (struct part){
            .live = (const char *)s->master, .nelem = nelem, .elem_nbytes = sizeof(float)};
    return (struct part){.live = s->param,
                         .rest = s->rest,
                         .narrow = !flat_is_bf16_alone(f, &f->units.flats[flat]),
                         .nelem = nelem,
                         .elem_nbytes = sizeof *s->rest};
}

static int find_room(struct fsdp_snapshot *s, uint64_t budget_nbytes, struct fsdp_err *err)
{
    struct fsdp *f = s->f;
    size_t nmarks = 0;

    for (int k = 0; k < f->units.nflats; k++) {
        nmarks += (size_t)f->units.flats[k].ntensors * (size_t)nparts(&f->optim);
        for (int i = 0; i < nparts(&f->optim); i++)
            *part_of(s, k, i) = live_part(f, k, i);
    }
    place_all(s, budget_nbytes);
    s->host = fsdp_host_alloc(s->f->device, (size_t)s->host_nbytes, "snapshot", err);
    uint8_t *mark = s->read = fsdp_alloc(nmarks, 1, "snapshot marks", err);
    if (!s->host || !s->read)
        return FSDP_ENOMEM;
    for (int k = 0; k < f->units.nflats; k++)
        for (int i = 0; i < nparts(&f->optim); i++, mark += f->units.flats[k].ntensors)
            part_of(s, k, i)->read = mark;
    return FSDP_OK;
}

struct untouched {
    char *bytes;
    size_t nbytes;
};

static int touch_pages(void *arg, struct fsdp_err *err)
{
    const struct untouched *u = arg;
    (void)err;
    memset(u->bytes, 0, u->nbytes);
    return FSDP_OK;
}

/* Memory of the host that nobody wrote to yet is given out page by page as it is, which takes many
 * times as long as the copy that would write there first: during the first steps instead. */
static int touch_behind(struct fsdp_snapshot *s, struct fsdp_err *err)
{
    struct untouched all = {s->host, (size_t)s->host_nbytes};
    if (!fsdp_device_is_host(s->f->device))
        return FSDP_OK; /* pinned, and so touched */
    return fsdp_lane_call(s->lane, touch_pages, &all, sizeof all, err);
}

int fsdp_snapshot_create(struct fsdp_snapshot **out, struct fsdp *f, uint64_t budget_nbytes,
                         double timeout_s, struct fsdp_err *err)
{
    size_t nflats = (size_t)f->units.nflats;
    struct fsdp_snapshot *s = fsdp_alloc(1, sizeof *s, "snapshot", err);
    int rc = FSDP_ENOMEM;

    if (!s)
        return rc;
    s->f = f;
    s->timeout_s = timeout_s;
    pthread_mutex_init(&s->lock, NULL);
    fsdp_cond_init(&s->changed);
    s->copied = fsdp_alloc(nflats, sizeof(struct fsdp_event *), "snapshot events", err);
    s->parts =
        fsdp_alloc(nflats * (size_t)nparts(&f->optim), sizeof *s->parts, "snapshot parts", err);
    s->held = fsdp_alloc(nflats, sizeof *s->held, "snapshot", err);
    s->nunread = fsdp_alloc(nflats, sizeof *s->nunread, "snapshot", err);
    if (!s->copied || !s->parts || !s->held || !s->nunread)
        goto out;
    FSDP_TRY_GOTO(find_room(s, budget_nbytes ? budget_nbytes : UINT64_MAX, err), out);
    FSDP_TRY_GOTO(fsdp_lane_create(&s->lane, f->device, "copy", err), out);
    FSDP_TRY_GOTO(touch_behind(s, err), out);
    for (size_t k = 0; k < nflats; k++)
        FSDP_TRY_GOTO(fsdp_event_create(&s->copied[k], f->device, err), out);
    f->snapshot = s;
    rc = FSDP_OK;
out:
    if (rc)
        fsdp_snapshot_destroy(s);
    else
        *out = s;
    return rc;
}

void fsdp_snapshot_destroy(struct fsdp_snapshot *s)
{
    if (!s)
        return;
    if (s->f->snapshot == s)
        s->f->snapshot = NULL;
    /* Copies may be under way, and updates may wait for them. */
    if (s->lane)
        fsdp_lane_sync(s->lane, NULL);
    fsdp_lane_sync(s->f->lanes[SCHED_COMPUTE], NULL);
    fsdp_lane_sync(s->f->lanes[SCHED_UPDATES], NULL);
    for (int k = 0; s->copied && k < s->f->units.nflats; k++)
        fsdp_event_destroy(s->copied[k]);
    fsdp_lane_destroy(s->lane);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    fsdp_free(s->copied);
    fsdp_free(s->parts);
    fsdp_free(s->held);
    fsdp_free(s->nunread);
    fsdp_free(s->read);
    fsdp_host_free(s->f->device, s->host);
    fsdp_free(s);
}

/* ---- taking ---------------------------------------------------------------------------------- */

struct host_copy {
    void *dst;
    const void *src;
    size_t nbytes;
};

static int copy_past(void *arg, struct fsdp_err *err)
{
    const struct host_copy *c = arg;
    (void)err;
    fsdp_cpu_copy_past(c->dst, c->src, c->nbytes);
    return FSDP_OK;
}

static int copy(struct fsdp_snapshot *s, void *dst, const void *src, size_t nbytes,
                struct fsdp_err *err)
{
    struct host_copy c = {dst, src, nbytes};
    if (!fsdp_device_is_host(s->f->device) || offload_file_holds(s->f->offload.file, src))
        return offload_copy_host(&s->f->offload, s->lane, dst, src, nbytes, err);
    return fsdp_lane_call(s->lane, copy_past, &c, sizeof c, err);
}

static int copy_flat(struct fsdp_snapshot *s, int k, struct fsdp_err *err)
{
    const struct flat *flat = &s->f->units.flats[k];

    s->nunread[k] = 0;
    s->held[k] = flat->trainable;
    for (int i = 0; flat->trainable && i < nparts(&s->f->optim); i++) {
        struct part *part = part_of(s, k, i);
        if (part->is_copied) {
            uint64_t nbytes = part->nelem * part->elem_nbytes;
            FSDP_TRY(copy(s, s->host + part->pos, part->live, nbytes, err));
            if (part->rest)
                FSDP_TRY(copy(s, s->host + part->pos + nbytes, part->rest, nbytes, err));
            continue;
        }
        for (int t = 0; t < flat->ntensors; t++) {
            part->read[t] = 0;
            s->nunread[k] += state_slice_nelem(s->f, k, t, i) > 0;
        }
    }
    return fsdp_event_record(s->copied[k], s->lane, err);
}

int fsdp_snapshot_take(struct fsdp_snapshot *s, struct fsdp_err *err)
{
    struct fsdp *f = s->f;

    if (s->active)
        return fsdp_err_set(err, FSDP_EINVAL, "a snapshot is taken already and not yet released");
    /* The latest update, and what it wrote to the device may be on its way to the host. */
    FSDP_TRY(engine_order(f, SCHED_COMPUTE, s->lane, err));
    FSDP_TRY(engine_order(f, SCHED_UPDATES, s->lane, err));
    FSDP_TRY(engine_order(f, SCHED_DOWNLOADS, s->lane, err));
    for (int k = 0; k < f->units.nflats; k++)
        FSDP_TRY(copy_flat(s, k, err));
    s->active = true;
    return FSDP_OK;
}

void fsdp_snapshot_release(struct fsdp_snapshot *s)
{
    pthread_mutex_lock(&s->lock);
    s->active = false;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* ---- before an update ------------------------------------------------------------------------ */

/* Until the writer has read what it reads live: of one flat, or of all (-1) and for good. */
static int wait_for_writer(struct fsdp_snapshot *s, int flat, struct fsdp_err *err)
{
    const struct timespec end = fsdp_cond_time(s->timeout_s + 1);
    int errnum = 0;

    pthread_mutex_lock(&s->lock);
    while (s->active && (flat < 0 || s->nunread[flat]) && errnum != ETIMEDOUT)
        errnum = pthread_cond_timedwait(&s->changed, &s->lock, &end);
    bool late = s->active && (flat < 0 || s->nunread[flat]);
    pthread_mutex_unlock(&s->lock);
    if (!late)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_ETIMEDOUT,
                        "unit '%s': its update waited %.0f s for a background save to read it; "
                        "give the save more host memory",
                        flat < 0 ? "" : s->f->flat_descs[flat].unit, s->timeout_s);
}

int snapshot_wait(struct fsdp *f, struct fsdp_err *err)
{
    return f->snapshot ? wait_for_writer(f->snapshot, -1, err) : FSDP_OK;
}

int snapshot_hold(struct fsdp *f, int flat, struct fsdp_lane *lane, struct fsdp_err *err)
{
    struct fsdp_snapshot *s = f->snapshot;

    if (!s || !s->held[flat])
        return FSDP_OK;
    s->held[flat] = false;
    /* The copy reads what the update overwrites. */
    FSDP_TRY(fsdp_event_wait(s->copied[flat], lane, err));
    return wait_for_writer(s, flat, err);
}

/* ---- reading --------------------------------------------------------------------------------- */

struct view {
    struct fsdp_snapshot *s;
    const struct part *part;
    const char *data;      /* the slice's */
    const uint16_t *rest;  /* of a split master */
    enum fsdp_dtype dtype; /* of data that is narrow */
    uint64_t nbytes;
    int tensor;
    bool nf4, was_read;
};

static int view_read(void *ctx, uint64_t pos, void *dst, size_t nbytes, struct fsdp_err *err)
{
    struct view *v = ctx;
    if (pos > v->nbytes || nbytes > v->nbytes - pos)
        return fsdp_err_set(err, FSDP_EINVAL, "bytes %llu + %zu of a slice of %llu",
                            (unsigned long long)pos, nbytes, (unsigned long long)v->nbytes);
    v->was_read = true;
    if (v->part->is_copied && !v->part->narrow) {
        memcpy(dst, v->data + pos, nbytes);
        return FSDP_OK;
    }
    if (!v->part->is_copied && v->part->read[v->tensor])
        return fsdp_err_set(err, FSDP_EINTERNAL,
                            "a snapshot without room for all is read twice, but training went on");
    if (v->nf4)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "a snapshot holds no parameters in NF4: nothing changes them");
    if (v->part->narrow) {
        const struct master_halves halves = {&v->s->f->offload, (void *)(uintptr_t)v->data,
                                             (uint16_t *)(uintptr_t)v->rest, v->dtype, v->s->lane};
        return master_read_halves(&halves, pos, dst, nbytes, err);
    }
    FSDP_TRY(offload_copy_host(&v->s->f->offload, v->s->lane, dst, v->data + pos, nbytes, err));
    return fsdp_lane_sync(v->s->lane, err);
}

static const void *view_at(void *ctx, uint64_t pos, size_t nbytes)
{
    struct view *v = ctx;
    if (!v->part->is_copied || v->part->narrow || pos > v->nbytes || nbytes > v->nbytes - pos)
        return NULL;
    return v->data + pos;
}

static int view_write(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *err)
{
    (void)ctx, (void)pos, (void)src, (void)nbytes;
    return fsdp_err_set(err, FSDP_EINVAL, "a snapshot is not written to");
}

/* The visitor has read what it wanted of a live slice: its flat may continue when that was the
 * last.
 */
static void live_was_read(struct fsdp_snapshot *s, int flat, uint8_t *read)
{
    *read = 1;
    pthread_mutex_lock(&s->lock);
    if (!--s->nunread[flat])
        pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static int visit(void *ctx, const struct state_slice *at, fsdp_slice_f *fn, void *fn_ctx,
                 struct fsdp_err *err)
{
    struct fsdp_snapshot *s = ctx;
    const struct part *part = part_of(s, at->flat, at->part);
    const char *data = part->is_copied ? s->host + part->pos : part->live;
    const uint16_t *rest = part->rest;
    if (rest && part->is_copied)
        rest = (const uint16_t *)data + part->nelem;
    struct view view = {.s = s,
                        .part = part,
                        .data = data + at->pos * part->elem_nbytes,
                        .rest = rest ? rest + at->pos : NULL,
                        .dtype = s->f->units.flats[at->flat].param_dtype,
                        .nbytes = at->nelem * fsdp_dtype_nbytes(at->slice.tensor.dtype),
                        .tensor = at->tensor,
                        .nf4 = s->f->units.flats[at->flat].nf4};
    struct fsdp_slice_io io = {.ctx = &view, .read = view_read, .write = view_write, .at = view_at};

    FSDP_TRY(fn(fn_ctx, at->kind, &at->slice, &io, err));
    if (view.was_read && !part->is_copied && s->f->units.flats[at->flat].trainable)
        live_was_read(s, at->flat, &part->read[at->tensor]);
    return FSDP_OK;
}

int fsdp_snapshot_each(struct fsdp_snapshot *s, fsdp_slice_f *fn, void *ctx, struct fsdp_err *err)
{
    if (!s->active)
        return fsdp_err_set(err, FSDP_EINVAL, "no snapshot is taken");
    FSDP_TRY(fsdp_lane_sync(s->lane, err)); /* the copies */
    return state_visit(s->f, visit, s, fn, ctx, err);
}
