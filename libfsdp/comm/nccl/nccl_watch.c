/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread per communicator, because an abort of one may wait for the kernels of another. It sees
 * when operations are done, and ends the communicator where NCCL reports an error, the job has lost
 * a rank, peers differ or left, or the deadline of the oldest operation has passed.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "nccl.h"

enum { POLL_MS = 50 };
static const double ASK_FIRST_S = 1;      /* peers are asked when an operation takes as long, */
static const double ASK_EVERY_MAX_S = 32; /* then after twice as long, and so on up to this */
static const double ASK_LAST_S = 5;       /* how long the last question waits for answers, */
static const double ASK_AGAIN_S = 0.3;    /* and how often it is sent */
static const double GRACE_S = 0.5;        /* an error waits so long for a better account of it */
static const double REVOKE_S = 5;

struct watch {
    struct nccl_comm *h;
    uint64_t asked; /* number of the operation that is asked about, 0: none */
    double next_ask, every;
    double last_ask;    /* when the last question began, 0: not yet */
    double error_since; /* NCCL reports an error, 0: none */
    ncclResult_t error;
    bool ended;
};

/* ---- who is late ----------------------------------------------------------------------------- */

/* An answer that shows another operation in this one's place. */
static bool find_mismatch(struct nccl_comm *h, const struct comm_op *op, struct comm_fail *fail)
{
    for (int p = 0; p < h->group->size; p++) {
        const struct nccl_peer *peer = &h->peers[p];
        if (peer->heard && peer->op.seq == op->seq && peer->op.kind &&
            comm_op_match(h->group, op, p, &peer->op, fail) != FSDP_OK)
            return true;
    }
    return false;
}

static bool find_left(struct nccl_comm *h, const struct comm_op *op, struct comm_fail *fail)
{
    for (int p = 0; p < h->group->size; p++)
        if (h->peers[p].left && h->peers[p].enqueued < op->seq) {
            comm_fail_peer(h->group, fail, FSDP_EPEER, p, " left");
            return true;
        }
    return false;
}

static void late_fail(struct nccl_comm *h, const struct comm_op *op, struct comm_fail *fail)
{
    struct comm_late late = {0};
    char how[96];

    for (int p = 0; p < h->group->size; p++) {
        const struct nccl_peer *peer = &h->peers[p];
        if (p == h->group->rank)
            continue;
        if (!peer->heard) {
            comm_late_add(&late, h->group, p, "does not answer");
        } else if (!peer->op.kind && peer->enqueued < op->seq) {
            snprintf(how, sizeof how, "has called %llu operations, this is #%llu",
                     (unsigned long long)peer->enqueued, (unsigned long long)op->seq);
            comm_late_add(&late, h->group, p, how);
        } else if (peer->op.kind && !peer->begun) {
            comm_late_add(&late, h->group, p, "has called it, its lane has not come there");
        }
    }
    if (late.npeers)
        comm_fail_late(h->group, fail, &late);
    else
        comm_fail_set(h->group, fail, FSDP_ETIMEDOUT,
                      "all ranks are in it, and NCCL did not complete it within %g s "
                      "(NCCL_DEBUG=INFO shows which links it uses)",
                      h->group->timeout_s);
}

static void ask_peers(struct watch *w, const struct comm_op *op, bool anew)
{
    for (int p = 0; p < w->h->group->size; p++) {
        if (anew)
            w->h->peers[p].heard = false;
        if (p != w->h->group->rank && !w->h->peers[p].heard)
            nccl_peers_say(w->h, p, NCCL_ASK, op);
    }
}

static bool all_heard(const struct nccl_comm *h)
{
    for (int p = 0; p < h->group->size; p++)
        if (p != h->group->rank && !h->peers[p].heard)
            return false;
    return true;
}

/* The oldest operation is on the GPU since `began`. */
static void watch_waiting(struct watch *w, const struct comm_op *op, double began, double now)
{
    struct nccl_comm *h = w->h;
    struct comm_fail fail;
    double deadline = began + h->group->timeout_s;

    if (w->asked != op->seq) {
        w->asked = op->seq;
        w->next_ask = began + ASK_FIRST_S;
        w->every = 2 * ASK_FIRST_S;
        w->last_ask = 0;
        for (int p = 0; p < h->group->size; p++)
            h->peers[p].heard = false;
    }
    if (find_mismatch(h, op, &fail) || find_left(h, op, &fail)) {
        nccl_fail(h, &fail);
    } else if (now < deadline && now >= w->next_ask) {
        ask_peers(w, op, true);
        w->next_ask = now + w->every;
        w->every = w->every < ASK_EVERY_MAX_S ? 2 * w->every : ASK_EVERY_MAX_S;
    } else if (now >= deadline && !w->last_ask) {
        ask_peers(w, op, true);
        w->last_ask = now;
        w->next_ask = now + ASK_AGAIN_S;
    } else if (now >= deadline && (all_heard(h) || now >= w->last_ask + ASK_LAST_S)) {
        late_fail(h, op, &fail);
        nccl_fail(h, &fail);
    } else if (now >= deadline && now >= w->next_ask) {
        ask_peers(w, op, false);
        w->next_ask = now + ASK_AGAIN_S;
    }
}

static void watch_oldest(struct watch *w, double now)
{
    struct nccl_comm *h = w->h;
    struct comm_op op = {0};
    struct comm_fail fail;
    struct fsdp_err gpu = FSDP_ERR_INIT;
    double began = 0;

    pthread_mutex_lock(&h->lock);
    int rc = nccl_retire(h, &gpu);
    if (rc == FSDP_OK && h->done < h->enqueued) {
        struct nccl_pending *p = &h->pending[(h->done + 1) % NCCL_NPENDING];
        bool begun = p->began != 0;
        if (!begun)
            rc = fsdp_event_done(p->begin, &begun, &gpu);
        if (begun && !p->began)
            p->began = now;
        op = p->op;
        began = p->began;
    }
    pthread_mutex_unlock(&h->lock);
    if (rc) { /* its kernels are dead, NCCL's too: the others would wait for the deadline */
        comm_fail_peer(h->group, &fail, rc, h->group->rank, ": %.400s", gpu.text);
        nccl_fail(h, &fail);
    } else if (began) {
        watch_waiting(w, &op, began, now);
    }
}

/* ---- errors that come later ------------------------------------------------------------------ */

/* Who is in a call of NCCL's sees errors itself; a call that never ended is its caller's, too. */
static ncclResult_t state_of(struct nccl_comm *h)
{
    if (pthread_mutex_trylock(&h->issue))
        return (ncclResult_t)atomic_load(&h->told);
    ncclResult_t state = h->unsettled ? ncclInProgress : nccl_lib_state(h->comm);
    pthread_mutex_unlock(&h->issue);
    return state;
}

/* A peer that died closes its connections first and is missed by the job moments later. */
static void watch_errors(struct watch *w, double now)
{
    struct nccl_comm *h = w->h;
    struct comm_fail fail;
    struct fsdp_err lost = FSDP_ERR_INIT;
    char text[COMM_WHAT_NBYTES];

    pthread_mutex_lock(&h->lock);
    bool waiting = h->done < h->enqueued;
    pthread_mutex_unlock(&h->lock);
    if (!w->error_since) {
        ncclResult_t state = state_of(h);
        if (state != ncclSuccess && state != ncclInProgress) {
            w->error = state;
            w->error_since = now;
        }
    }
    if ((waiting || w->error_since) && h->oob->health(h->oob, &lost)) {
        comm_fail_pass(h->group, &fail, &lost);
        nccl_fail(h, &fail);
    } else if (w->error_since && now > w->error_since + GRACE_S) {
        comm_fail_peer(h->group, &fail, nccl_lib_status(w->error), h->group->rank, ": %.400s",
                       nccl_lib_error(text, h->comm, w->error));
        nccl_fail(h, &fail);
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Revoking stops what is on the GPU and frees nothing; an abort frees, too, and so may wait for the
 * work of other communicators. destroy does it then. Where a call is under way, or ended with an
 * error, NCCL (2.28.7 to 2.30.7) forgets, when it revokes, that it has freed that call's job. */
static void end_work(struct nccl_comm *h)
{
    pthread_mutex_lock(&h->issue);
    ncclResult_t rc = ncclInProgress;
    if (nccl_lib_can_revoke() && !h->unsettled && !h->held) {
        rc = nccl_lib_revoke(h->comm);
        rc = nccl_lib_settle(h->comm, rc, NULL, fsdp_time_now() + REVOKE_S, NULL, NULL);
    }
    if (rc != ncclSuccess) {
        ncclCommAbort(h->comm);
        h->comm = NULL;
    }
    pthread_mutex_unlock(&h->issue);
}

static void *watch_main(void *arg)
{
    struct watch w = {.h = arg};
    struct nccl_comm *h = w.h;
    struct pollfd polls[2] = {{.fd = h->socket, .events = POLLIN},
                              {.fd = h->wake_fd, .events = POLLIN}};
    uint64_t count;

    for (bool last = false; !last;) {
        poll(polls, 2, POLL_MS);
        if (polls[1].revents && read(h->wake_fd, &count, sizeof count) < 0)
            count = 0; /* somebody else's wake-up: look anyway */
        last = atomic_load(&h->stop);
        nccl_peers_listen(h);
        if (!atomic_load(&h->failed)) {
            watch_oldest(&w, fsdp_time_now());
            watch_errors(&w, fsdp_time_now());
        }
        if (atomic_load(&h->failed) && !w.ended) {
            w.ended = true;
            /* What a peer saw it has told the others; who did not hear it will ask. */
            if (h->fail.reporter == h->group->world_rank[h->group->rank])
                nccl_peers_say(h, -1, NCCL_FAILED, NULL);
            end_work(h);
        }
    }
    return NULL;
}

int nccl_watch_start(struct nccl_comm *h, struct fsdp_err *err)
{
    h->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->wake_fd < 0)
        return fsdp_err_sys(err, errno, "comm %s: eventfd", h->group->name);
    int errnum = pthread_create(&h->thread, NULL, watch_main, h);
    if (errnum)
        return fsdp_err_sys(err, errnum, "comm %s: cannot start its watch thread", h->group->name);
    h->watched = true;
    return FSDP_OK;
}

void nccl_watch_stop(struct nccl_comm *h)
{
    if (h->watched) {
        atomic_store(&h->stop, true);
        nccl_wake(h);
        pthread_join(h->thread, NULL);
        h->watched = false;
    }
    if (h->wake_fd >= 0)
        close(h->wake_fd);
    h->wake_fd = -1;
}
