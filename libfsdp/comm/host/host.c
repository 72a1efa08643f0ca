/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU backend: shared memory inside a node, TCP between nodes. Create and destroy, the way of
 * an operation onto its lane, and what happens when one fails.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "host.h"

enum { SPIN_NS = 20000 };

/* ---- create --------------------------------------------------------------------------------- */

static bool host_usable(const struct fsdp_comm_group *group, const struct fsdp_device *device,
                        char *why, size_t why_nbytes)
{
    (void)group;
    if (!strcmp(fsdp_device_name(device), "cpu"))
        return true;
    snprintf(why, why_nbytes, "it moves CPU memory, and the device is '%s'",
             fsdp_device_name(device));
    return false;
}

static void host_free(struct host_comm *h)
{
    if (!h)
        return;
    host_tcp_close(h);
    host_shm_unlink(h);
    host_shm_close(h);
    if (h->wake_fd >= 0)
        close(h->wake_fd);
    pthread_mutex_destroy(&h->op_lock);
    pthread_mutex_destroy(&h->status_lock);
    pthread_mutex_destroy(&h->shm.mem_lock);
    fsdp_free(h->seat_peer);
    fsdp_free(h->peer_seat);
    fsdp_free(h->peer_conn);
    fsdp_free(h->src);
    fsdp_free(h);
}

static int seats_make(struct host_comm *h, struct fsdp_err *err)
{
    const struct fsdp_comm_group *group = h->group;
    size_t size = (size_t)group->size;

    h->seat_peer = fsdp_alloc(size, sizeof *h->seat_peer, "comm seats", err);
    h->peer_seat = fsdp_alloc(size, sizeof *h->peer_seat, "comm seats", err);
    h->peer_conn = fsdp_alloc(size, sizeof *h->peer_conn, "comm seats", err);
    h->src = fsdp_alloc(size, sizeof *h->src, "comm sources", err);
    if (!h->seat_peer || !h->peer_seat || !h->peer_conn || !h->src)
        return FSDP_ENOMEM;
    for (int p = 0; p < group->size; p++) {
        h->peer_conn[p] = -1;
        h->peer_seat[p] = -1;
        if (group->node[p] != group->node[group->rank])
            continue;
        if (p == group->rank)
            h->seat = h->nseats;
        h->peer_seat[p] = h->nseats;
        h->seat_peer[h->nseats++] = p;
    }
    return FSDP_OK;
}

static int host_new(struct host_comm **out, const struct fsdp_comm_group *group,
                    struct fsdp_oob *oob, struct fsdp_err *err)
{
    struct host_comm *h = fsdp_alloc(1, sizeof *h, "comm host", err);
    int rc;

    if (!h)
        return FSDP_ENOMEM;
    h->group = group;
    h->oob = oob;
    h->shm.fd = h->tcp.listener = -1;
    pthread_mutex_init(&h->op_lock, NULL);
    pthread_mutex_init(&h->status_lock, NULL);
    pthread_mutex_init(&h->shm.mem_lock, NULL);
    h->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = h->wake_fd >= 0 ? FSDP_OK : fsdp_err_sys(err, errno, "comm %s: eventfd", group->name);
    if (rc == FSDP_OK)
        rc = seats_make(h, err);
    if (rc == FSDP_OK)
        rc = host_tcp_alloc(h, err);
    if (rc) {
        host_free(h);
        return rc;
    }
    *out = h;
    return FSDP_OK;
}

static int card_fill(struct host_comm *h, struct host_card *card, struct fsdp_err *err)
{
    cpu_set_t cpus;

    CPU_ZERO(&cpus);
    if (getrandom(card->token, sizeof card->token, 0) != sizeof card->token)
        return fsdp_err_sys(err, errno, "comm %s: getrandom", h->group->name);
    card->machine = comm_machine_id();
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) {
        card->ncpus = CPU_COUNT(&cpus);
        card->affinity = fsdp_hash(FSDP_HASH_SEED, &cpus, sizeof cpus);
    }
    FSDP_TRY(host_shm_prepare(h, card->token, err));
    snprintf(card->segment, sizeof card->segment, "%s", h->shm.name);
    return h->tcp.nconns ? host_listen(h, card, err) : FSDP_OK;
}

/* Spinning pays only where every rank has a core of its own. */
static long spin_choose(const struct host_card *cards, int nranks, int rank)
{
    int here = 0;
    bool same_cpus = true;

    for (int r = 0; r < nranks; r++) {
        if (cards[r].machine != cards[rank].machine)
            continue;
        here++;
        same_cpus &= cards[r].affinity == cards[rank].affinity;
    }
    long ncpus = same_cpus ? cards[rank].ncpus : sysconf(_SC_NPROCESSORS_ONLN);
    return here <= ncpus ? SPIN_NS : 0;
}

/* Every rank shows its card, also one that failed, so that all fail alike. own holds the text where
 * status says that this one did. *cards is the caller's. */
static int cards_exchange(struct host_card **cards, struct host_comm *h, int status,
                          struct host_card *mine, struct fsdp_oob *oob, struct fsdp_err *own)
{
    *cards = fsdp_alloc((size_t)oob->size, sizeof **cards, "comm cards", own);
    if (!*cards)
        return FSDP_ENOMEM;
    if (status == FSDP_OK)
        status = card_fill(h, mine, own);
    mine->status = status;
    snprintf(mine->text, sizeof mine->text, "%.*s", (int)sizeof mine->text - 1, own->text);
    FSDP_TRY(oob->allgather(oob, mine, sizeof *mine, *cards, own));
    if (status)
        return status;
    for (int r = 0; r < oob->size; r++) {
        const struct host_card *card = &(*cards)[r];
        if (card->status) {
            fsdp_err_set(own, card->status, "%.*s", (int)sizeof card->text - 1, card->text);
            return fsdp_err_of_rank(own, card->status, r);
        }
    }
    return FSDP_OK;
}

static int host_create(void **out, const struct fsdp_comm_group *group, struct fsdp_oob *oob,
                       struct fsdp_device *device, struct fsdp_err *err)
{
    struct host_comm *h = NULL;
    struct host_card mine, *cards = NULL;
    struct fsdp_err own = FSDP_ERR_INIT; /* agreed upon, so needed without err too */
    int rc;

    (void)device;
    memset(&mine, 0, sizeof mine); /* travels whole, padding too */
    rc = host_new(&h, group, oob, &own);
    FSDP_TRY_GOTO(cards_exchange(&cards, h, rc, &mine, oob, &own), out);
    h->spin_ns = spin_choose(cards, oob->size, oob->rank);
    FSDP_TRY_GOTO(fsdp_oob_agree(oob, host_shm_attach(h, cards, &own), &own), out);
    host_shm_unlink(h); /* all have it mapped: no crash can leave it behind */
    FSDP_TRY_GOTO(comm_agree_on_cause(oob, host_connect(h, cards, &own), &own), out);
    *out = h;
    h = NULL;
out:
    if (rc && err)
        *err = own;
    host_free(h);
    fsdp_free(cards);
    return rc;
}

/* ---- failure -------------------------------------------------------------------------------- */

static int host_status(void *state, struct fsdp_err *err)
{
    struct host_comm *h = state;

    pthread_mutex_lock(&h->status_lock);
    int rc = h->sticky.status;
    if (rc && err)
        *err = h->sticky;
    pthread_mutex_unlock(&h->status_lock);
    return rc;
}

static void host_abort(void *state, const struct fsdp_err *why)
{
    struct host_comm *h = state;
    struct comm_fail fail;

    comm_fail_abort(h->group, &fail, why);
    host_fail_async(h, &fail);
}

static void host_destroy(void *state, bool healthy)
{
    struct host_comm *h = state;

    (void)healthy; /* what peers are told follows from what happened here */
    if (!h->told)
        host_tcp_tell(h, NULL);
    host_free(h);
}

/* ---- operations ----------------------------------------------------------------------------- */

struct host_call {
    struct host_comm *h;
    struct comm_op op;
    void *recv;
    const void *send;
};
_Static_assert(sizeof(struct host_call) <= FSDP_LANE_ARG_NBYTES, "a call fits a lane's argument");

static int host_run(void *arg, struct fsdp_err *err)
{
    struct host_call *call = arg;
    struct host_comm *h = call->h;
    struct comm_fail fail = {0};
    int rc;

    pthread_mutex_lock(&h->op_lock);
    rc = host_status(h, NULL);
    if (rc == FSDP_OK) {
        rc = comm_op_is_next(h->group, &call->op, h->done, &fail);
        if (rc == FSDP_OK && host_shm_told(h, &fail))
            rc = fail.status;
        if (rc == FSDP_OK)
            rc = host_collective(h, &call->op, call->recv, call->send, &fail);
        if (rc == FSDP_OK && host_interrupted(h, &fail))
            rc = fail.status;
        if (rc == FSDP_OK)
            h->done++;
        else
            host_break_down(h, &call->op, &fail);
    }
    pthread_mutex_unlock(&h->op_lock);
    return rc ? host_status(h, err) : FSDP_OK;
}

static int run_collective(void *state, const struct fsdp_comm_call *args, struct fsdp_lane *lane,
                          struct fsdp_err *err)
{
    struct host_comm *h = state;
    struct host_call call = {.h = h, .recv = args->recv, .send = args->send};
    struct fsdp_err own = FSDP_ERR_INIT;

    call.op = (struct comm_op){.seq = atomic_fetch_add(&h->enqueued, 1) + 1,
                               .nelem = args->nelem,
                               .kind = args->kind,
                               .dtype = (int32_t)args->dtype,
                               .root = args->root};
    int rc = fsdp_lane_call(lane, host_run, &call, sizeof call, &own);
    if (rc == FSDP_OK)
        return FSDP_OK;
    /* A lane that failed before takes no more work, and the peers must not wait for this rank. */
    if (host_status(h, NULL) == FSDP_OK) {
        struct fsdp_err why = own;
        fsdp_err_prefix(&why, rc, "lane %s takes no work: ", fsdp_lane_name(lane));
        host_abort(h, &why);
    }
    if (err)
        *err = own;
    return rc;
}

static void *mem_alloc(void *state, size_t nbytes, struct fsdp_err *err)
{
    return host_mem_alloc(state, nbytes, err);
}

static void *mem_common(void *state, size_t nbytes, struct fsdp_err *err)
{
    return host_mem_common(state, nbytes, err);
}

static bool has_common(const void *state)
{
    const struct host_comm *h = state;
    return h->nseats == h->group->size;
}

static void mem_free(void *state, void *ptr)
{
    host_mem_free(state, ptr);
}

const struct fsdp_comm_ops fsdp_comm_host_ops = {
    .abi = FSDP_COMM_OPS_ABI,
    .name = "host",
    .usable = host_usable,
    .create = host_create,
    .destroy = host_destroy,
    .abort = host_abort,
    .collective = run_collective,
    .status = host_status,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .mem_common = mem_common,
    .has_common = has_common,
};
