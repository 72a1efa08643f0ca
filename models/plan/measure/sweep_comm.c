/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives over the groups of a run, and a product next to one. */
#include <stdlib.h>
#include <unistd.h>

#include "sweep.h"

enum { LEAST_NBYTES = 128, HOST_NBYTES = 32 << 20 };
enum { STEP = 4, LATE_STEP = 256 }; /* factor between sizes */
#define LONGEST_S 0.4               /* larger collectives are not measured */

struct collective {
    struct fsdp_comm *comm;
    enum fsdp_collective kind;
    char *buffer; /* registered memory of the communicator, [room] */
    size_t room;
    size_t nelem; /* of the whole, fp32 */
    struct fsdp_lane *lane;
};

/* Out of place, as the engine does it, each call with other memory than the one before. */
static int run_collective(struct sweep *s, void *ctx, int call, struct fsdp_err *err)
{
    const struct collective *c = ctx;
    struct fsdp_lane *lane = c->lane ? c->lane : s->lane;
    const size_t part = c->nelem / (size_t)fsdp_comm_size(c->comm);
    const size_t places = c->room / sizeof(float) / (2 * c->nelem);
    float *to = (float *)(void *)c->buffer + (size_t)call % places * 2 * c->nelem;
    float *from = to + c->nelem;

    if (c->kind == FSDP_ALL_GATHER)
        return fsdp_comm_all_gather(c->comm, to, from, part, FSDP_F32, lane, err);
    if (c->kind == FSDP_REDUCE_SCATTER)
        return fsdp_comm_reduce_scatter(c->comm, to, from, part, FSDP_F32, lane, err);
    return fsdp_comm_all_reduce(c->comm, from, from, c->nelem, FSDP_F32, lane, err);
}

/* ---- ranks that share a clock: what is not waiting ------------------------------------------- */

enum { MEETINGS = 16, APART = 224, BETWEEN_NBYTES = 4 << 20 };

/* Where lanes run in the caller, ranks compute between their collectives and come to them one after
 * the other: those that wait sleep, and the caches hold other things. A collective takes from when
 * the last one has come. Between two of them each rank multiplies matrices and copies some
 * megabytes, each time another rank more than the others. */
struct meetings {
    double begin[MEETINGS], end[MEETINGS];
};

static int meet(struct meetings *m, struct sweep *s, struct collective *c, struct fsdp_err *err)
{
    const size_t n = (size_t)APART * APART;
    struct nn_linear between = {.out = sweep_values(s, FSDP_F32, n, 0),
                                .x = sweep_values(s, FSDP_F32, n, 1),
                                .w = sweep_values(s, FSDP_F32, n, 2),
                                .rows = APART,
                                .nin = APART,
                                .nout = APART};

    const int size = fsdp_comm_size(c->comm), rank = fsdp_comm_rank(c->comm);
    char *pool = (char *)(void *)s->pool;

    for (int i = 0; i < MEETINGS; i++) {
        const int ntimes = i % size == rank ? 3 : 1;
        for (int k = 0; k < ntimes; k++)
            FSDP_TRY(s->nn->linear_forward(s->lane, &between, err));
        FSDP_TRY(fsdp_copy(s->lane, pool + ((size_t)i % 4 + 4) * BETWEEN_NBYTES,
                           pool + (size_t)i % 4 * BETWEEN_NBYTES, BETWEEN_NBYTES, err));
        m->begin[i] = fsdp_time_now();
        FSDP_TRY(run_collective(s, c, i, err));
        m->end[i] = fsdp_time_now();
    }
    return fsdp_lane_sync(s->lane, err);
}

static bool share_cores(const struct sweep *s)
{
    return (int)sysconf(_SC_NPROCESSORS_ONLN) < s->opts->node_nranks;
}

static int time_meetings(double *seconds, struct sweep *s, struct collective *c,
                         struct fsdp_err *err)
{
    struct fsdp_oob *oob = s->opts->oob;
    const int size = fsdp_comm_size(c->comm), rank = fsdp_comm_rank(c->comm);
    const size_t nwords = sizeof(struct meetings) / sizeof(double);
    struct meetings *all = fsdp_alloc((size_t)size, sizeof *all, "sweep of collectives", err);
    double own[MEETINGS];
    int rc = all ? meet(&all[rank], s, c, err) : FSDP_ENOMEM;

    rc = fsdp_oob_agree(oob, rc, err);
    if (rc == FSDP_OK)
        rc = fsdp_comm_all_gather(c->comm, all, &all[rank], nwords, FSDP_F64, s->lane, err);
    if (rc == FSDP_OK)
        rc = fsdp_lane_sync(s->lane, err);
    for (int i = 0; i < MEETINGS && rc == FSDP_OK; i++) {
        double last = all[0].begin[i];
        for (int r = 1; r < size; r++)
            last = all[r].begin[i] > last ? all[r].begin[i] : last;
        own[i] = all[rank].end[i] - last;
    }
    fsdp_free(all);
    FSDP_TRY(fsdp_oob_agree(oob, rc, err));
    qsort(own, MEETINGS, sizeof *own, fsdp_compare_doubles);
    double mine[2] = {own[MEETINGS / 2], sweep_mean(own, MEETINGS)};

    if (share_cores(s)) /* turns are the rule there, and part of each size */
        mine[0] = mine[1];
    FSDP_TRY(oob->allgather(oob, mine, sizeof mine, s->all, err));
    *seconds = 0;
    for (int r = 0; r < oob->size; r++) {
        *seconds += s->all[2 * r] / oob->size;
        s->late_sum += (s->all[2 * r + 1] - s->all[2 * r]) / oob->size;
    }
    s->nlate++;
    return FSDP_OK;
}

/* A rank that slept until the last one came gets its core back late where others use the machine:
 * now and then by milliseconds. Few meetings tell little of that, all of them together more: the
 * median of a size and the mean delay of all sizes are what a step sees. */
static void add_delay(struct sweep *s)
{
    struct measured *out = s->out;

    out->rendezvous_s = s->nlate > 0 && s->late_sum > 0 ? s->late_sum / s->nlate : 0;
    for (int i = 0; i < out->ncollectives; i++)
        out->collectives[i].seconds += out->rendezvous_s;
}

/* Clocks of nodes differ. */
static bool share_clock(const struct sweep *s)
{
    return fsdp_device_is_host(s->opts->device) && s->opts->node_nranks == s->opts->oob->size;
}

/* stride: how far the group's ranks are apart. */
static int add_time(struct sweep *s, const struct collective *c, int stride, double seconds,
                    struct fsdp_err *err)
{
    struct measured *out = s->out;
    const struct fsdp_net_clock net = {.node_nranks = s->opts->node_nranks};
    const struct fsdp_group g = fsdp_group_of(&net, fsdp_comm_size(c->comm), stride);
    struct fsdp_collective_time *all =
        fsdp_alloc_grow(out->collectives, (size_t)out->ncollectives, &out->max_collectives,
                        sizeof *all, "measured collectives", err);
    if (!all)
        return FSDP_ENOMEM;
    out->collectives = all;
    all[out->ncollectives++] =
        (struct fsdp_collective_time){c->kind, g.nranks, g.nnodes, (double)c->nelem * 4, seconds};
    return FSDP_OK;
}

/* From the smallest size to the largest; few of them once time is up, because one size says nothing
 * of the rest. */
static int sweep_sizes(struct sweep *s, struct collective c, int stride, size_t most,
                       struct fsdp_err *err)
{
    const size_t size = (size_t)fsdp_comm_size(c.comm);
    double seconds = 0;
    bool late = false;

    for (size_t nbytes = LEAST_NBYTES; nbytes <= most && seconds < LONGEST_S;
         nbytes *= late ? LATE_STEP : STEP) {
        FSDP_TRY(sweep_is_late(&late, s, err));
        c.nelem = (nbytes / 4 + size - 1) / size * size;
        FSDP_TRY(share_clock(s) ? time_meetings(&seconds, s, &c, err)
                                : sweep_time(&seconds, s, run_collective, &c, err));
        FSDP_TRY(add_time(s, &c, stride, seconds, err));
    }
    return FSDP_OK;
}

/* Groups of one rank send nothing; a size that another group had needs no second sweep. */
static int sweep_group(struct sweep *s, struct fsdp_comm *comm, int stride, const char *name,
                       const enum fsdp_collective *kinds, int nkinds, struct fsdp_err *err)
{
    const size_t most = fsdp_device_is_host(s->opts->device) ? HOST_NBYTES : s->largest_nbytes;
    struct collective c = {.comm = comm};

    if (!comm || fsdp_comm_size(comm) < 2)
        return FSDP_OK;
    sweep_say(s, "collectives over %d ranks (%s)", fsdp_comm_size(comm), name);
    c.room = 2 * most + 4096;
    c.buffer = fsdp_comm_mem_alloc(comm, c.room, err);
    int rc = fsdp_oob_agree(s->opts->oob, c.buffer ? FSDP_OK : FSDP_ENOMEM, err);
    for (int i = 0; i < nkinds && rc == FSDP_OK; i++) {
        c.kind = kinds[i];
        rc = sweep_sizes(s, c, stride, most, err);
    }
    fsdp_comm_mem_free(comm, c.buffer);
    return rc;
}

static int sweep_groups(struct sweep *s, struct fsdp_err *err)
{
    static const enum fsdp_collective gather[] = {FSDP_ALL_GATHER};
    static const enum fsdp_collective scatter[] = {FSDP_REDUCE_SCATTER};
    static const enum fsdp_collective sum[] = {FSDP_ALL_REDUCE};
    const struct fsdp_mesh *m = s->opts->mesh;
    const int outer = m->inner_size > 0 ? m->inner_size : 1;

    FSDP_TRY(sweep_group(s, m->gather, 1, "gather", gather, 1, err));
    FSDP_TRY(sweep_group(s, m->reduce, 1, "reduce", scatter, 1, err));
    FSDP_TRY(sweep_group(s, m->outer_gather, outer, "outer gather", gather, 1, err));
    FSDP_TRY(sweep_group(s, m->outer_reduce, outer, "outer reduce", scatter, 1, err));
    if (m->regather_size != m->shard_size)
        FSDP_TRY(sweep_group(s, m->regather, 1, "regather", gather, 1, err));
    FSDP_TRY(sweep_group(s, m->replicate, m->shard_size, "replicas", sum, 1, err));
    if (m->replicate_size == m->size)
        return FSDP_OK;
    return sweep_group(s, m->world, 1, "world", sum, 1, err);
}

int sweep_collectives(struct sweep *s, struct fsdp_err *err)
{
    FSDP_TRY(sweep_groups(s, err));
    add_delay(s);
    return FSDP_OK;
}

/* ---- contention ------------------------------------------------------------------------------ */

struct both {
    struct nn_linear linear;
    struct collective gather; /* comm NULL: alone */
};

/* Some products, and gathers on another lane that last about as long. */
static int run_both(struct sweep *s, void *ctx, int call, struct fsdp_err *err)
{
    const struct both *b = ctx;

    if (b->gather.comm)
        FSDP_TRY(run_collective(s, (void *)(uintptr_t)&b->gather, call, err));
    for (int i = 0; i < 4; i++)
        FSDP_TRY(s->nn->linear_forward(s->lane, &b->linear, err));
    return FSDP_OK;
}

static int time_both(double *contention, struct sweep *s, struct both *b, struct fsdp_err *err)
{
    struct fsdp_comm *comm = b->gather.comm;
    double alone, together;

    b->gather.comm = NULL;
    FSDP_TRY(sweep_time(&alone, s, run_both, b, err));
    b->gather.comm = comm;
    FSDP_TRY(sweep_time(&together, s, run_both, b, err));
    *contention = alone > 0 && together > alone ? together / alone - 1 : 0;
    return FSDP_OK;
}

int sweep_contention(struct sweep *s, struct fsdp_err *err)
{
    enum { SIZE = 4096 };
    const size_t n = (size_t)SIZE * SIZE;
    const enum fsdp_dtype type = s->opts->type;
    struct both b = {.linear = {.rows = SIZE,
                                .nin = SIZE,
                                .nout = SIZE,
                                .dtype = type,
                                .y_dtype = type,
                                .w_dtype = type,
                                .dw_dtype = type},
                     .gather = {.comm = s->opts->mesh->gather, .kind = FSDP_ALL_GATHER}};
    int rc = FSDP_OK;

    if (!b.gather.comm || fsdp_comm_size(b.gather.comm) < 2 || 3 * n > s->pool_nelem)
        return FSDP_OK;
    sweep_say(s, "products next to a gather");
    b.linear.x = sweep_values(s, type, n, 0);
    b.linear.w = sweep_values(s, type, n, 1);
    b.linear.out = sweep_values(s, type, n, 2);
    const size_t nwork = s->nn->linear_work_nelem(&b.linear);
    b.linear.work =
        nwork ? fsdp_device_alloc(s->opts->device, nwork * sizeof(float), "sweep", err) : NULL;
    b.gather.nelem =
        n * 2 / (size_t)fsdp_comm_size(b.gather.comm) * (size_t)fsdp_comm_size(b.gather.comm);
    b.gather.room = 2 * b.gather.nelem * sizeof(float);
    b.gather.buffer = fsdp_comm_mem_alloc(b.gather.comm, b.gather.room, err);
    rc = fsdp_lane_create(&b.gather.lane, s->opts->device, "sweep gathers", err);
    if (rc == FSDP_OK && (!b.gather.buffer || (nwork && !b.linear.work)))
        rc = FSDP_ENOMEM;
    rc = fsdp_oob_agree(s->opts->oob, rc, err);
    if (rc == FSDP_OK)
        rc = time_both(&s->out->contention, s, &b, err);
    if (b.gather.lane && rc == FSDP_OK)
        rc = fsdp_lane_sync(b.gather.lane, err);
    fsdp_comm_mem_free(s->opts->mesh->gather, b.gather.buffer);
    fsdp_device_free(s->opts->device, b.linear.work);
    fsdp_lane_destroy(b.gather.lane);
    return rc;
}
