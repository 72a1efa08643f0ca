/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dispatcher: splits the world into groups, picks a backend, and checks arguments and sticky
 * errors once, so that backends need not.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backends.h"

struct fsdp_comm {
    const struct fsdp_comm_ops *ops;
    void *state;
    struct fsdp_device *device;
    struct fsdp_comm_group group;
    char name[64];
    pthread_mutex_t lock;    /* of aborted */
    struct fsdp_err aborted; /* status 0: not aborted */
};

/* What every rank shows the others before groups are made. */
struct card {
    int32_t status, color, key, backend;
    int32_t no_copy_engines, most_ctas;
    char device[16];
    uint64_t nodes_hash;
    char text[256];
};

static int backend_parse(int32_t *out, const char *name, struct fsdp_err *err)
{
    char known[128] = "auto";
    size_t len = strlen(known);
    const int count = comm_backends_count();

    *out = COMM_BACKEND_AUTO;
    if (!name || !strcmp(name, "auto"))
        return FSDP_OK;
    for (int i = 0; i < count; i++) {
        if (!strcmp(name, comm_backends[i].name)) {
            *out = i;
            return FSDP_OK;
        }
        len += (size_t)snprintf(known + len, sizeof known - len, ", %s", comm_backends[i].name);
    }
    return fsdp_err_set(err, FSDP_EINVAL, "no communication backend '%s' in this build (known: %s)",
                        name, known);
}

static int opts_check(const struct fsdp_comm_opts *opts, const struct fsdp_oob *oob,
                      struct fsdp_err *err)
{
    const struct fsdp_node_map *nodes = opts->nodes;

    if (opts->version != FSDP_COMM_OPTS_VERSION)
        return fsdp_err_set(err, FSDP_EINVAL, "comm options of version %u, this library has %d",
                            opts->version, FSDP_COMM_OPTS_VERSION);
    if (!opts->name || !*opts->name)
        return fsdp_err_set(err, FSDP_EINVAL, "comm options without a name");
    if (opts->color < 0)
        return fsdp_err_set(err, FSDP_EINVAL, "comm %s: color %d is negative", opts->name,
                            opts->color);
    if (!(opts->timeout_s > 0))
        return fsdp_err_set(err, FSDP_EINVAL, "comm %s: timeout of %g s, must be over 0",
                            opts->name, opts->timeout_s);
    if (opts->nccl.most_ctas < 0)
        return fsdp_err_set(err, FSDP_EINVAL, "comm %s: at most %d blocks of a kernel", opts->name,
                            opts->nccl.most_ctas);
    if (!nodes || !nodes->node_of || nodes->nranks != oob->size)
        return fsdp_err_set(err, FSDP_EINVAL, "comm %s: a node map of %d ranks for a world of %d",
                            opts->name, nodes && nodes->node_of ? nodes->nranks : 0, oob->size);
    for (int r = 0; r < nodes->nranks; r++)
        if (nodes->node_of[r] < 0 || nodes->node_of[r] >= nodes->nnodes)
            return fsdp_err_set(err, FSDP_EINVAL,
                                "comm %s: the node map puts rank %d on node %d of %d", opts->name,
                                r, nodes->node_of[r], nodes->nnodes);
    return FSDP_OK;
}

/* Exchanges cards and fails on all ranks alike if one of them is bad or they contradict. */
static int cards_exchange(struct card *all, const struct fsdp_comm_opts *opts, struct fsdp_oob *oob,
                          const struct fsdp_device *device, struct fsdp_err *err)
{
    struct fsdp_err mine_err = FSDP_ERR_INIT;
    struct card mine;

    memset(&mine, 0, sizeof mine); /* travels whole, padding too */
    snprintf(mine.device, sizeof mine.device, "%s", fsdp_device_name(device));
    mine.status = opts_check(opts, oob, &mine_err);
    if (mine.status == FSDP_OK)
        mine.status = backend_parse(&mine.backend, opts->backend, &mine_err);
    if (mine.status == FSDP_OK) {
        mine.color = opts->color;
        mine.key = opts->key;
        mine.no_copy_engines = opts->nccl.no_copy_engines;
        mine.most_ctas = opts->nccl.most_ctas;
        mine.nodes_hash = fsdp_hash(FSDP_HASH_SEED, opts->nodes->node_of,
                                    (size_t)opts->nodes->nranks * sizeof *opts->nodes->node_of);
    }
    snprintf(mine.text, sizeof mine.text, "%.*s", (int)sizeof mine.text - 1, mine_err.text);
    FSDP_TRY(oob->allgather(oob, &mine, sizeof mine, all, err));
    if (mine.status) {
        *err = mine_err;
        return mine.status;
    }
    for (int r = 0; r < oob->size; r++)
        if (all[r].status) {
            fsdp_err_set(err, all[r].status, "%.*s", (int)sizeof all[r].text - 1, all[r].text);
            return fsdp_err_of_rank(err, all[r].status, r);
        }
    for (int r = 0; r < oob->size; r++) {
        if (all[r].backend != all[0].backend)
            return fsdp_err_set(err, FSDP_EMISMATCH,
                                "comm %s: ranks 0 and %d ask for different backends", opts->name,
                                r);
        if (all[r].no_copy_engines != all[0].no_copy_engines ||
            all[r].most_ctas != all[0].most_ctas)
            return fsdp_err_set(err, FSDP_EMISMATCH,
                                "comm %s: ranks 0 and %d have different options of NCCL",
                                opts->name, r);
        if (strcmp(all[r].device, all[0].device))
            return fsdp_err_set(err, FSDP_EMISMATCH,
                                "comm %s: rank 0 has device %s and rank %d has %s: give every rank "
                                "a GPU (device: cuda says why one has none), or use device cpu",
                                opts->name, all[0].device, r, all[r].device);
        if (all[r].nodes_hash != all[0].nodes_hash)
            return fsdp_err_set(err, FSDP_EMISMATCH,
                                "comm %s: ranks 0 and %d have different node maps", opts->name, r);
    }
    return FSDP_OK;
}

/* Is world rank a before b in their common group? */
static bool card_before(const struct card *all, int a, int b)
{
    return all[a].key != all[b].key ? all[a].key < all[b].key : a < b;
}

static int group_size(const struct card *all, int nranks, int color)
{
    int size = 0;
    for (int r = 0; r < nranks; r++)
        size += all[r].color == color;
    return size;
}

static int backend_of(const struct card *all, int nranks, int rank,
                      const struct fsdp_device *device)
{
    if (all[rank].backend != COMM_BACKEND_AUTO)
        return all[rank].backend;
    return comm_backend_for(group_size(all, nranks, all[rank].color), device);
}

static int group_make(struct fsdp_comm *comm, const struct card *all,
                      const struct fsdp_comm_opts *opts, const struct fsdp_oob *oob,
                      struct fsdp_err *err)
{
    struct fsdp_comm_group *group = &comm->group;
    int size = group_size(all, oob->size, opts->color);
    int *world_rank = fsdp_alloc((size_t)size, sizeof *world_rank, "comm ranks", err);
    int *node = fsdp_alloc((size_t)size, sizeof *node, "comm nodes", err);
    char(*host)[FSDP_HOST_NBYTES] = fsdp_alloc((size_t)size, sizeof *host, "comm hosts", err);

    snprintf(comm->name, sizeof comm->name, "%s", opts->name);
    *group = (struct fsdp_comm_group){.name = comm->name,
                                      .size = size,
                                      .world_rank = world_rank,
                                      .node = node,
                                      .host = (const char(*)[FSDP_HOST_NBYTES])(void *)host,
                                      .color = opts->color,
                                      .timeout_s = opts->timeout_s,
                                      .use = opts->use,
                                      .nccl = opts->nccl};
    if (!world_rank || !node || !host)
        return FSDP_ENOMEM;
    for (int r = 0; r < oob->size; r++) {
        int place = 0;
        if (all[r].color != opts->color)
            continue;
        for (int q = 0; q < oob->size; q++)
            place += all[q].color == opts->color && card_before(all, q, r);
        world_rank[place] = r;
        node[place] = opts->nodes->node_of[r];
        snprintf(host[place], sizeof host[place], "%s",
                 opts->nodes->host ? opts->nodes->host[r] : "?");
        if (r == oob->rank)
            group->rank = place;
    }
    return FSDP_OK;
}

/* Groups of one world may use different backends ("auto"), but a backend's create is collective
 * over the world: a rank whose own group uses another backend takes part and drops the result. */
static int backends_create(struct fsdp_comm *comm, const struct card *all, struct fsdp_oob *oob,
                           struct fsdp_err *err)
{
    int mine = backend_of(all, oob->size, oob->rank, comm->device);
    const int count = comm_backends_count();

    for (int i = 0; i < count; i++) {
        bool used = false;
        void *state = NULL;
        for (int r = 0; r < oob->size; r++)
            used |= backend_of(all, oob->size, r, comm->device) == i;
        if (!used)
            continue;
        const struct fsdp_comm_ops *ops = comm_backends[i].load(comm->device, NULL, 0);
        int rc = ops->create(&state, &comm->group, oob, comm->device, err);
        if (rc) {
            if (comm->ops)
                comm->ops->destroy(comm->state, false);
            return rc;
        }
        if (i != mine) {
            ops->destroy(state, true);
        } else {
            comm->ops = ops;
            comm->state = state;
        }
    }
    return FSDP_OK;
}

static void comm_free(struct fsdp_comm *comm)
{
    if (comm) {
        fsdp_free((void *)(uintptr_t)comm->group.world_rank);
        fsdp_free((void *)(uintptr_t)comm->group.node);
        fsdp_free((void *)(uintptr_t)comm->group.host);
        pthread_mutex_destroy(&comm->lock);
        fsdp_free(comm);
    }
}

static int backend_check(const struct fsdp_comm *comm, int backend, struct fsdp_err *err)
{
    char why[512] = "no reason given";
    const struct fsdp_comm_ops *ops = comm_backends[backend].load(comm->device, why, sizeof why);

    if (ops && ops->usable(&comm->group, comm->device, why, sizeof why))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EUNSUPPORTED, "comm %s: backend '%s' cannot serve this group: %s",
                        comm->name, comm_backends[backend].name, why);
}

int fsdp_comm_create(struct fsdp_comm **out, const struct fsdp_comm_opts *opts,
                     struct fsdp_oob *oob, struct fsdp_device *device, struct fsdp_err *err)
{
    struct fsdp_comm *comm = NULL;
    struct fsdp_err own = FSDP_ERR_INIT; /* agreed upon, so needed without err too */
    int rc;

    if (!out || !opts || !oob || !device)
        return fsdp_err_set(err, FSDP_EINVAL, "fsdp_comm_create: a NULL argument");
    struct card *all = fsdp_alloc((size_t)oob->size, sizeof *all, "comm cards", err);
    if (!all)
        return FSDP_ENOMEM;
    FSDP_TRY_GOTO(cards_exchange(all, opts, oob, device, &own), out);
    /* From here a failure of one rank is agreed upon, so that no other waits for it. */
    comm = fsdp_alloc(1, sizeof *comm, "comm", &own);
    rc = comm ? FSDP_OK : FSDP_ENOMEM;
    if (rc == FSDP_OK) {
        pthread_mutex_init(&comm->lock, NULL);
        comm->device = device;
        rc = group_make(comm, all, opts, oob, &own);
    }
    if (rc == FSDP_OK)
        rc = backend_check(comm, backend_of(all, oob->size, oob->rank, device), &own);
    FSDP_TRY_GOTO(fsdp_oob_agree(oob, rc, &own), out);
    FSDP_TRY_GOTO(backends_create(comm, all, oob, &own), out);
    *out = comm;
    comm = NULL;
out:
    if (rc && err)
        *err = own;
    comm_free(comm);
    fsdp_free(all);
    return rc;
}

void fsdp_comm_destroy(struct fsdp_comm *comm)
{
    if (comm) {
        comm->ops->destroy(comm->state, fsdp_comm_status(comm, NULL) == FSDP_OK);
        comm_free(comm);
    }
}

void fsdp_comm_abort(struct fsdp_comm *comm, const struct fsdp_err *why)
{
    struct fsdp_err none = FSDP_ERR_INIT;
    char reason[FSDP_ERR_TEXT_NBYTES];

    if (!comm)
        return;
    if (!why) {
        fsdp_err_set(&none, FSDP_ECANCELED, "no reason given");
        why = &none;
    }
    pthread_mutex_lock(&comm->lock);
    if (!comm->aborted.status) {
        fsdp_err_set(&comm->aborted, FSDP_ECANCELED, "%s", fsdp_err_reason(reason, why));
        comm->aborted.culprit = why->culprit;
        fsdp_err_relay(&comm->aborted, FSDP_ECANCELED, "comm %s: aborted: ", comm->name);
    }
    pthread_mutex_unlock(&comm->lock);
    comm->ops->abort(comm->state, why);
}

int fsdp_comm_rank(const struct fsdp_comm *comm)
{
    return comm->group.rank;
}

int fsdp_comm_size(const struct fsdp_comm *comm)
{
    return comm->group.size;
}

const char *fsdp_comm_name(const struct fsdp_comm *comm)
{
    return comm->name;
}

const char *fsdp_comm_backend(const struct fsdp_comm *comm)
{
    return comm->ops->name;
}

const char *fsdp_comm_about(const struct fsdp_comm *comm, char *text, size_t text_nbytes)
{
    if (text_nbytes)
        text[0] = '\0';
    if (text_nbytes && comm->ops->about)
        comm->ops->about(comm->state, text, text_nbytes);
    return text;
}

int fsdp_comm_status(struct fsdp_comm *comm, struct fsdp_err *err)
{
    /* What ended the communicator first: the backend keeps it where it saw a failure before. */
    int rc = comm->ops->status(comm->state, err);
    if (rc == FSDP_OK) {
        pthread_mutex_lock(&comm->lock);
        rc = comm->aborted.status;
        if (rc && err)
            *err = comm->aborted;
        pthread_mutex_unlock(&comm->lock);
    }
    return rc;
}

void *fsdp_comm_mem_alloc(struct fsdp_comm *comm, size_t nbytes, struct fsdp_err *err)
{
    if (fsdp_comm_status(comm, err))
        return NULL;
    if (!comm->ops->mem_alloc)
        return fsdp_device_alloc(comm->device, nbytes, comm->name, err);
    fsdp_device_count_alloc(comm->device, nbytes);
    return comm->ops->mem_alloc(comm->state, nbytes, err);
}

bool fsdp_comm_has_common(const struct fsdp_comm *comm)
{
    return comm && comm->ops->mem_common && comm->ops->has_common(comm->state);
}

void *fsdp_comm_mem_common(struct fsdp_comm *comm, size_t nbytes, struct fsdp_err *err)
{
    if (fsdp_comm_status(comm, err))
        return NULL;
    if (!fsdp_comm_has_common(comm)) {
        fsdp_err_set(err, FSDP_EUNSUPPORTED, "comm %s: its ranks have no memory in common",
                     comm->name);
        return NULL;
    }
    fsdp_device_count_alloc(comm->device, nbytes / (size_t)comm->group.size);
    return comm->ops->mem_common(comm->state, nbytes, err);
}

void fsdp_comm_mem_free(struct fsdp_comm *comm, void *ptr)
{
    if (!comm || !ptr)
        return;
    if (comm->ops->mem_alloc)
        comm->ops->mem_free(comm->state, ptr);
    else
        fsdp_device_free(comm->device, ptr);
}

int fsdp_comm_mem_share(struct fsdp_comm *comm, void *ptr, size_t nbytes, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_comm_status(comm, err));
    return comm->ops->mem_share ? comm->ops->mem_share(comm->state, ptr, nbytes, err) : FSDP_OK;
}

void fsdp_comm_mem_unshare(struct fsdp_comm *comm, void *ptr)
{
    if (comm && ptr && comm->ops->mem_share)
        comm->ops->mem_free(comm->state, ptr);
}

/* ---- checks of one operation ---------------------------------------------------------------- */

enum { NEEDS_SUM = 1 };

static int begin_call(struct fsdp_comm *comm, const char *op, enum fsdp_dtype dtype, unsigned flags,
                      struct fsdp_lane *lane, struct fsdp_err *err)
{
    if (!comm || !lane)
        return fsdp_err_set(err, FSDP_EINVAL, "%s: the %s is NULL", op,
                            comm ? "lane" : "communicator");
    if ((unsigned)dtype >= FSDP_NDTYPES)
        return fsdp_err_set(err, FSDP_EINVAL, "comm %s: %s: unknown dtype %d", comm->name, op,
                            (int)dtype);
    bool no_sum = dtype == FSDP_BOOL || dtype == FSDP_F8_E4M3 || dtype == FSDP_F8_E5M2 ||
                  dtype == FSDP_C64 || dtype == FSDP_F8_E8M0;
    if ((flags & NEEDS_SUM) && no_sum)
        return fsdp_err_set(err, FSDP_EINVAL, "comm %s: %s: %s cannot be summed", comm->name, op,
                            fsdp_dtype_name(dtype));
    if (fsdp_lane_device(lane) != comm->device)
        return fsdp_err_set(err, FSDP_EINVAL, "comm %s: %s: lane '%s' is of another device",
                            comm->name, op, fsdp_lane_name(lane));
    return fsdp_comm_status(comm, err);
}

static int check_buffer(const struct fsdp_comm *comm, const char *op, const char *what,
                        const void *ptr, size_t nelem, size_t times, enum fsdp_dtype dtype,
                        struct fsdp_err *err)
{
    size_t elem_nbytes = fsdp_dtype_nbytes(dtype), total;

    if (__builtin_mul_overflow(nelem, times * elem_nbytes, &total) || total > PTRDIFF_MAX)
        return fsdp_err_set(err, FSDP_EINVAL, "comm %s: %s: %zu x %zu elements overflow memory",
                            comm->name, op, times, nelem);
    if (!ptr && nelem)
        return fsdp_err_set(err, FSDP_EINVAL, "comm %s: %s: %s is NULL", comm->name, op, what);
    if ((uintptr_t)ptr % elem_nbytes)
        return fsdp_err_set(err, FSDP_EINVAL, "comm %s: %s: %s is not aligned to %s", comm->name,
                            op, what, fsdp_dtype_name(dtype));
    return FSDP_OK;
}

/* small lies at small_at within large (in place), or they do not meet. */
static int check_overlap(const struct fsdp_comm *comm, const char *op, const void *large,
                         size_t large_nbytes, const void *small, size_t small_nbytes,
                         size_t small_at, struct fsdp_err *err)
{
    uintptr_t a = (uintptr_t)large, b = (uintptr_t)small;

    if (b == a + small_at || b + small_nbytes <= a || a + large_nbytes <= b)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "comm %s: %s: send and recv overlap, but are not in place as documented",
                        comm->name, op);
}

int fsdp_comm_all_gather(struct fsdp_comm *comm, void *recv, const void *send, size_t nelem,
                         enum fsdp_dtype dtype, struct fsdp_lane *lane, struct fsdp_err *err)
{
    FSDP_TRY(begin_call(comm, "all_gather", dtype, 0, lane, err));
    size_t size = (size_t)comm->group.size, part = nelem * fsdp_dtype_nbytes(dtype);
    FSDP_TRY(check_buffer(comm, "all_gather", "send", send, nelem, 1, dtype, err));
    FSDP_TRY(check_buffer(comm, "all_gather", "recv", recv, nelem, size, dtype, err));
    FSDP_TRY(check_overlap(comm, "all_gather", recv, size * part, send, part,
                           (size_t)comm->group.rank * part, err));
    const struct fsdp_comm_call call = {FSDP_COMM_ALL_GATHER, recv, send, nelem, dtype, 0};
    return comm->ops->collective(comm->state, &call, lane, err);
}

int fsdp_comm_reduce_scatter(struct fsdp_comm *comm, void *recv, const void *send, size_t nelem,
                             enum fsdp_dtype dtype, struct fsdp_lane *lane, struct fsdp_err *err)
{
    FSDP_TRY(begin_call(comm, "reduce_scatter", dtype, NEEDS_SUM, lane, err));
    size_t size = (size_t)comm->group.size, part = nelem * fsdp_dtype_nbytes(dtype);
    FSDP_TRY(check_buffer(comm, "reduce_scatter", "send", send, nelem, size, dtype, err));
    FSDP_TRY(check_buffer(comm, "reduce_scatter", "recv", recv, nelem, 1, dtype, err));
    FSDP_TRY(check_overlap(comm, "reduce_scatter", send, size * part, recv, part,
                           (size_t)comm->group.rank * part, err));
    const struct fsdp_comm_call call = {FSDP_COMM_REDUCE_SCATTER, recv, send, nelem, dtype, 0};
    return comm->ops->collective(comm->state, &call, lane, err);
}

int fsdp_comm_all_reduce(struct fsdp_comm *comm, void *recv, const void *send, size_t nelem,
                         enum fsdp_dtype dtype, struct fsdp_lane *lane, struct fsdp_err *err)
{
    FSDP_TRY(begin_call(comm, "all_reduce", dtype, NEEDS_SUM, lane, err));
    size_t nbytes = nelem * fsdp_dtype_nbytes(dtype);
    FSDP_TRY(check_buffer(comm, "all_reduce", "send", send, nelem, 1, dtype, err));
    FSDP_TRY(check_buffer(comm, "all_reduce", "recv", recv, nelem, 1, dtype, err));
    FSDP_TRY(check_overlap(comm, "all_reduce", recv, nbytes, send, nbytes, 0, err));
    const struct fsdp_comm_call call = {FSDP_COMM_ALL_REDUCE, recv, send, nelem, dtype, 0};
    return comm->ops->collective(comm->state, &call, lane, err);
}

int fsdp_comm_broadcast(struct fsdp_comm *comm, void *buf, size_t nelem, enum fsdp_dtype dtype,
                        int root, struct fsdp_lane *lane, struct fsdp_err *err)
{
    FSDP_TRY(begin_call(comm, "broadcast", dtype, 0, lane, err));
    FSDP_TRY(check_buffer(comm, "broadcast", "buf", buf, nelem, 1, dtype, err));
    if (root < 0 || root >= comm->group.size)
        return fsdp_err_set(err, FSDP_EINVAL, "comm %s: broadcast: root %d of a group of %d",
                            comm->name, root, comm->group.size);
    const struct fsdp_comm_call call = {FSDP_COMM_BROADCAST, buf, buf, nelem, dtype, root};
    return comm->ops->collective(comm->state, &call, lane, err);
}

int fsdp_comm_barrier(struct fsdp_comm *comm, struct fsdp_lane *lane, struct fsdp_err *err)
{
    FSDP_TRY(begin_call(comm, "barrier", FSDP_U8, 0, lane, err));
    const struct fsdp_comm_call call = {FSDP_COMM_BARRIER, NULL, NULL, 0, FSDP_U8, 0};
    return comm->ops->collective(comm->state, &call, lane, err);
}
