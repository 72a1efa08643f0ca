/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of every group meet, and how they part.
 *
 * The first communicator of all ranks begins with unique ids, which travel over the job's channel;
 * those that come after are split off it, which takes no new meeting place and no new connections
 * of bootstrap. All calls return at once and are waited for with a deadline.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nccl.h"

static const double CONNECT_S = 300; /* at most; a group's deadline may be less */
static const double LEAVE_S = 5;     /* for peers to part, too; then without them */

/* What every rank shows the others. */
struct card {
    int32_t status, splits; /* splits: it has a communicator of all ranks */
    int32_t version;        /* of its NCCL */
    int32_t variables;      /* nccl_share_variables */
    int32_t port, naddrs;
    struct comm_addr addr[COMM_MAX_ADDRS];
    uint64_t machine;
    uint8_t token[NCCL_TOKEN_NBYTES];
    ncclUniqueId id; /* of those that give one */
    char text[256];
};

/* ---- communicators that others are split off ------------------------------------------------- */

static pthread_mutex_t parents_lock = PTHREAD_MUTEX_INITIALIZER;
static struct nccl_comm *parents; /* of all ranks of a channel, one each */

static struct nccl_comm *parent_of(const struct fsdp_oob *oob)
{
    pthread_mutex_lock(&parents_lock);
    struct nccl_comm *p = parents;
    while (p && p->oob != oob)
        p = p->next_parent;
    pthread_mutex_unlock(&parents_lock);
    return p;
}

static void parent_add(struct nccl_comm *h)
{
    pthread_mutex_lock(&parents_lock);
    h->next_parent = parents;
    parents = h;
    pthread_mutex_unlock(&parents_lock);
}

static void parent_remove(const struct nccl_comm *h)
{
    pthread_mutex_lock(&parents_lock);
    struct nccl_comm **at = &parents;
    while (*at && *at != h)
        at = &(*at)->next_parent;
    if (*at)
        *at = h->next_parent;
    pthread_mutex_unlock(&parents_lock);
}

/* ---- make and free --------------------------------------------------------------------------- */

static void comm_free(struct nccl_comm *h)
{
    if (!h)
        return;
    nccl_watch_stop(h);
    nccl_peers_close(h);
    nccl_mem_free_all(h);
    for (int i = 0; i < NCCL_NPENDING; i++) {
        fsdp_event_destroy(h->pending[i].begin);
        fsdp_event_destroy(h->pending[i].end);
    }
    fsdp_lane_destroy(h->lane);
    fsdp_device_free(h->device, h->scratch);
    pthread_mutex_destroy(&h->issue);
    pthread_mutex_destroy(&h->lock);
    pthread_mutex_destroy(&h->blocks_lock);
    fsdp_free(h->peers);
    fsdp_free(h);
}

static int comm_new(struct nccl_comm **out, const struct fsdp_comm_group *group,
                    struct fsdp_oob *oob, struct fsdp_device *device, struct fsdp_err *err)
{
    struct nccl_comm *h = fsdp_alloc(1, sizeof *h, "comm nccl", err);
    int rc = FSDP_OK;

    if (!h)
        return FSDP_ENOMEM;
    h->group = group;
    h->oob = oob;
    h->device = device;
    h->socket = h->wake_fd = -1;
    pthread_mutex_init(&h->issue, NULL);
    pthread_mutex_init(&h->lock, NULL);
    pthread_mutex_init(&h->blocks_lock, NULL);
    h->peers = fsdp_alloc((size_t)group->size, sizeof *h->peers, "comm peers", err);
    h->scratch = fsdp_device_alloc(device, sizeof(int32_t), "comm barrier", err);
    if (!h->peers || !h->scratch)
        rc = FSDP_ENOMEM;
    if (rc == FSDP_OK)
        rc = fsdp_lane_create(&h->lane, device, group->name, err);
    for (int i = 0; i < NCCL_NPENDING && rc == FSDP_OK; i++) {
        rc = fsdp_event_create(&h->pending[i].begin, device, err);
        if (rc == FSDP_OK)
            rc = fsdp_event_create(&h->pending[i].end, device, err);
    }
    if (rc) {
        comm_free(h);
        return rc;
    }
    *out = h;
    return FSDP_OK;
}

/* ---- cards ----------------------------------------------------------------------------------- */

/* Ranks of a large group meet at several places. */
static int id_count(int size)
{
    return (size + NCCL_IDS_EVERY - 1) / NCCL_IDS_EVERY;
}

static int id_giver(int i, int size)
{
    return (int)((int64_t)i * size / id_count(size));
}

static int card_fill(struct nccl_comm *h, struct card *card, struct fsdp_err *err)
{
    const struct fsdp_comm_group *group = h->group;
    struct nccl_comm *parent = parent_of(h->oob);
    ncclResult_t rc = ncclGetVersion(&card->version);
    char text[COMM_WHAT_NBYTES];

    FSDP_TRY(nccl_peers_open(h, &card->port, err));
    FSDP_TRY(comm_addrs_list(card->addr, &card->naddrs, err));
    card->machine = comm_machine_id();
    card->variables = nccl_share_variables();
    memcpy(card->token, h->token, sizeof card->token);
    card->splits = parent && parent->comm && !atomic_load(&parent->failed);
    for (int i = 0; i < id_count(group->size) && rc == ncclSuccess && !card->splits; i++)
        if (id_giver(i, group->size) == group->rank)
            rc = ncclGetUniqueId(&card->id);
    if (rc == ncclSuccess)
        return FSDP_OK;
    return fsdp_err_set(err, nccl_lib_status(rc), "comm %s: unique id: %s", group->name,
                        nccl_lib_error(text, NULL, rc));
}

static int cards_compare(const struct nccl_comm *h, const struct card *cards, struct fsdp_err *err)
{
    const struct fsdp_oob *oob = h->oob;

    for (int r = 0; r < oob->size; r++)
        if (cards[r].status && r != oob->rank) {
            fsdp_err_set(err, cards[r].status, "%.*s", (int)sizeof cards[r].text - 1,
                         cards[r].text);
            return fsdp_err_of_rank(err, cards[r].status, r);
        }
    for (int r = 0; r < oob->size; r++) {
        if (cards[r].variables != cards[0].variables)
            return fsdp_err_set(
                err, FSDP_EMISMATCH,
                "comm %s: rank 0 and rank %d differ in which of these variables are set: "
                "NCCL_CTA_POLICY, NCCL_MIN_CTAS, NCCL_MAX_CTAS, NCCL_MIN_NCHANNELS, "
                "NCCL_MAX_NCHANNELS; set the same ones on all nodes",
                h->group->name, r);
        if (cards[r].version != cards[0].version)
            return fsdp_err_set(err, FSDP_EMISMATCH,
                                "comm %s: rank 0 has NCCL %d, rank %d has %d: the same libraries "
                                "must be found on all nodes (LD_LIBRARY_PATH)",
                                h->group->name, cards[0].version, r, cards[r].version);
        if (cards[r].splits != cards[0].splits)
            return fsdp_err_set(err, FSDP_EPEER,
                                "comm %s: the communicator of all ranks has ended on rank %d",
                                h->group->name, cards[r].splits ? 0 : r);
    }
    return FSDP_OK;
}

/* Every rank shows its card, also one that failed, so that all fail alike. */
static int cards_exchange(struct nccl_comm *h, int status, struct card *cards, struct fsdp_oob *oob,
                          struct fsdp_err *own)
{
    struct card mine;

    memset(&mine, 0, sizeof mine); /* travels whole, padding too */
    if (status == FSDP_OK)
        status = card_fill(h, &mine, own);
    mine.status = status;
    snprintf(mine.text, sizeof mine.text, "%.*s", (int)sizeof mine.text - 1, own->text);
    FSDP_TRY(oob->allgather(oob, &mine, sizeof mine, cards, own));
    if (status)
        return status;
    FSDP_TRY(cards_compare(h, cards, own));
    for (int p = 0; p < h->group->size; p++) {
        const struct card *card = &cards[h->group->world_rank[p]];
        struct nccl_peer *peer = &h->peers[p];
        memcpy(peer->addr, card->addr, sizeof peer->addr);
        memcpy(peer->token, card->token, sizeof peer->token);
        peer->naddrs = card->naddrs < COMM_MAX_ADDRS ? card->naddrs : COMM_MAX_ADDRS;
        peer->port = card->port;
        peer->here = card->machine == cards[oob->rank].machine;
    }
    return FSDP_OK;
}

/* ---- create ---------------------------------------------------------------------------------- */

/* The child is there when the parent is done with it. Where it never is, NCCL may still write to
 * where it was told, so that place is not given back. */
static ncclResult_t split_parent(struct nccl_comm *h, ncclConfig_t *config, double deadline,
                                 struct fsdp_err *lost)
{
    struct nccl_comm *parent = parent_of(h->oob);
    ncclComm_t *child = fsdp_alloc(1, sizeof *child, "comm child", lost);

    if (!child)
        return ncclSystemError;
    pthread_mutex_lock(&parent->issue);
    ncclResult_t rc = ncclCommSplit(parent->comm, h->group->color, h->group->rank, child, config);
    rc = nccl_lib_settle(parent->comm, rc, &parent->failed, deadline, h->oob, lost);
    parent->unsettled = rc == ncclInProgress || rc == ncclRemoteError;
    parent->held |= rc != ncclInProgress && rc != ncclSuccess;
    pthread_mutex_unlock(&parent->issue);
    if (rc == ncclSuccess)
        h->comm = *child;
    if (rc != ncclInProgress && rc != ncclRemoteError)
        fsdp_free(child);
    return rc;
}

static ncclResult_t meet_with_ids(struct nccl_comm *h, const struct card *cards,
                                  ncclConfig_t *config)
{
    const struct fsdp_comm_group *group = h->group;
    int nids = id_count(group->size);
    ncclUniqueId *ids = fsdp_alloc((size_t)nids, sizeof *ids, "unique ids", NULL);

    if (!ids)
        return ncclSystemError;
    for (int i = 0; i < nids; i++)
        ids[i] = cards[group->world_rank[id_giver(i, group->size)]].id;
    ncclResult_t rc = nccl_lib_init(&h->comm, group->size, group->rank, nids, ids, config);
    fsdp_free(ids);
    return rc;
}

static int connect(struct nccl_comm *h, const struct card *cards, struct fsdp_err *err)
{
    const struct fsdp_comm_group *group = h->group;
    double wait = group->timeout_s < CONNECT_S ? group->timeout_s : CONNECT_S;
    double deadline = fsdp_time_now() + wait;
    struct fsdp_err lost = FSDP_ERR_INIT;
    char text[COMM_WHAT_NBYTES];
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = 0;
    config.splitShare = 0; /* children that share may not work at the same time */
    config.commName = group->name;
    nccl_share_choose(h, &config, cards[0].version);
    ncclResult_t rc = cards[0].splits ? split_parent(h, &config, deadline, &lost)
                                      : meet_with_ids(h, cards, &config);
    if (h->comm)
        rc = nccl_lib_settle(h->comm, rc, NULL, deadline, h->oob, &lost);
    if (rc == ncclSuccess && h->comm)
        return FSDP_OK;
    if (lost.status) {
        fsdp_err_prefix(&lost, lost.status, "comm %s: ", group->name);
        return fsdp_err_pass(err, lost.status, &lost);
    }
    if (rc == ncclInProgress)
        return fsdp_err_set(err, FSDP_ETIMEDOUT,
                            "comm %s: host %s: NCCL did not connect the group's %d ranks within "
                            "%g s (NCCL_SOCKET_IFNAME chooses interfaces, NCCL_NVLS_ENABLE=0 does "
                            "without the switch's multicast, NCCL_DEBUG=INFO shows what it waits "
                            "for)",
                            group->name, group->host[group->rank], group->size, wait);
    return fsdp_err_set(err, nccl_lib_status(rc), "comm %s: host %s: %s", group->name,
                        group->host[group->rank], nccl_lib_error(text, h->comm, rc));
}

int nccl_create(void **out, const struct fsdp_comm_group *group, struct fsdp_oob *oob,
                struct fsdp_device *device, struct fsdp_err *err)
{
    struct nccl_comm *h = NULL;
    struct fsdp_err own = FSDP_ERR_INIT; /* agreed upon, so needed without err too */
    struct card *cards = fsdp_alloc((size_t)oob->size, sizeof *cards, "comm cards", &own);
    int rc = cards ? comm_new(&h, group, oob, device, &own) : FSDP_ENOMEM;

    if (cards)
        rc = cards_exchange(h, rc, cards, oob, &own);
    if (rc == FSDP_OK)
        rc = comm_agree_on_cause(oob, connect(h, cards, &own), &own);
    if (rc == FSDP_OK)
        rc = fsdp_oob_agree(oob, nccl_watch_start(h, &own), &own);
    if (rc == FSDP_OK) {
        if (group->size == oob->size && !cards[0].splits)
            parent_add(h);
        *out = h;
    } else {
        if (h && h->comm)
            ncclCommAbort(h->comm);
        if (h)
            h->comm = NULL;
        comm_free(h);
        if (err)
            *err = own;
    }
    fsdp_free(cards);
    return rc;
}

/* ---- destroy --------------------------------------------------------------------------------- */

static void leave_group(struct nccl_comm *h)
{
    nccl_peers_say(h, -1, NCCL_BYE, NULL);
    nccl_mem_free_all(h);
    ncclResult_t rc = ncclCommFinalize(h->comm);
    rc = nccl_lib_settle(h->comm, rc, NULL, fsdp_time_now() + LEAVE_S, NULL, NULL);
    if (rc == ncclSuccess)
        ncclCommDestroy(h->comm);
    else
        ncclCommAbort(h->comm);
}

void nccl_destroy(void *state, bool healthy)
{
    struct nccl_comm *h = state;

    parent_remove(h);
    nccl_watch_stop(h);
    if (h->comm && healthy && !h->unsettled && !h->held && !atomic_load(&h->failed))
        leave_group(h);
    else if (h->comm)
        ncclCommAbort(h->comm);
    h->comm = NULL;
    comm_free(h);
}
