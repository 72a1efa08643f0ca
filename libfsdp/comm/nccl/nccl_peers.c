/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Datagrams between the ranks of a group: few, small, and only where something is wrong or over.
 * There is no connection to set up or to lose, and a group of thousands costs one socket a rank.
 * Each carries the receiver's secret, which came over the job's channel; a lost one is asked for
 * again, and a failure that was not heard is the answer to the next question.
 */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "nccl.h"

enum { MAGIC = 0x6673646e };

int nccl_peers_open(struct nccl_comm *h, int32_t *port, struct fsdp_err *err)
{
    if (getrandom(h->token, sizeof h->token, 0) != sizeof h->token)
        return fsdp_err_sys(err, errno, "comm %s: getrandom", h->group->name);
    int errnum = comm_bind_any(&h->socket, &h->family, SOCK_DGRAM, port);
    if (errnum)
        return fsdp_err_sys(err, errnum, "comm %s: opening a datagram socket", h->group->name);
    return FSDP_OK;
}

void nccl_peers_close(struct nccl_comm *h)
{
    if (h->socket >= 0)
        close(h->socket);
    h->socket = -1;
}

static void send_to(const struct nccl_comm *h, const struct nccl_message *m,
                    const struct comm_addr *addr, int port)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    memcpy(&in.sin_addr, addr->bytes, 4);
    if (addr->family == AF_INET) {
        memcpy(in6.sin6_addr.s6_addr, mapped, sizeof mapped);
        memcpy(in6.sin6_addr.s6_addr + sizeof mapped, addr->bytes, 4);
    } else {
        memcpy(&in6.sin6_addr, addr->bytes, 16);
    }
    if (h->family == AF_INET6)
        sendto(h->socket, m, sizeof *m, MSG_NOSIGNAL, (struct sockaddr *)&in6, sizeof in6);
    else if (addr->family == AF_INET)
        sendto(h->socket, m, sizeof *m, MSG_NOSIGNAL, (struct sockaddr *)&in, sizeof in);
}

/* To all addresses of the peer: which of them is reached from here is not known, and a second copy
 * does no harm. */
static void send_peer(const struct nccl_comm *h, struct nccl_message *m, int p)
{
    static const struct comm_addr loopback = {AF_INET, {127, 0, 0, 1}};
    const struct nccl_peer *peer = &h->peers[p];

    memcpy(m->token, peer->token, sizeof m->token);
    if (peer->here)
        send_to(h, m, &loopback, peer->port);
    for (int i = 0; !peer->here && i < peer->naddrs; i++)
        send_to(h, m, &peer->addr[i], peer->port);
}

static struct nccl_message message_make(struct nccl_comm *h, enum nccl_word word,
                                        const struct comm_op *op)
{
    struct nccl_message m;

    memset(&m, 0, sizeof m); /* travels whole, padding too */
    m.magic = MAGIC;
    m.word = word;
    m.from = h->group->rank;
    if (op)
        m.op = *op;
    pthread_mutex_lock(&h->lock);
    m.enqueued = h->enqueued;
    m.fail = h->fail;
    pthread_mutex_unlock(&h->lock);
    return m;
}

void nccl_peers_say(struct nccl_comm *h, int peer, enum nccl_word word, const struct comm_op *op)
{
    struct nccl_message m = message_make(h, word, op);

    for (int p = 0; p < h->group->size; p++)
        if (p != h->group->rank && (peer < 0 || p == peer) && !h->peers[p].left)
            send_peer(h, &m, p);
}

/* ---- listening ------------------------------------------------------------------------------- */

static void answer(struct nccl_comm *h, const struct nccl_message *question)
{
    const struct nccl_pending *at = &h->pending[question->op.seq % NCCL_NPENDING];
    struct comm_op op = {.seq = question->op.seq};
    bool begun = false;

    pthread_mutex_lock(&h->lock);
    if (at->op.seq == op.seq && op.seq <= h->enqueued) {
        op = at->op;
        begun = op.seq <= h->done;
        if (!begun)
            fsdp_event_done(at->begin, &begun, NULL);
    }
    bool failed = h->fail.status != 0;
    pthread_mutex_unlock(&h->lock);
    struct nccl_message m = message_make(h, failed ? NCCL_FAILED : NCCL_ANSWER, &op);
    m.begun = begun;
    send_peer(h, &m, question->from);
}

static void note_answer(struct nccl_comm *h, const struct nccl_message *m)
{
    struct nccl_peer *peer = &h->peers[m->from];

    pthread_mutex_lock(&h->lock);
    if (m->op.seq == h->done + 1) { /* else of a question that is no longer open */
        peer->heard = true;
        peer->begun = m->begun;
        peer->op = m->op;
        peer->enqueued = m->enqueued;
    }
    pthread_mutex_unlock(&h->lock);
}

void nccl_peers_listen(struct nccl_comm *h)
{
    struct nccl_message m;
    ssize_t len;

    while ((len = recv(h->socket, &m, sizeof m, MSG_DONTWAIT)) >= 0 || errno == ECONNREFUSED) {
        if (len != sizeof m || m.magic != MAGIC || memcmp(m.token, h->token, sizeof m.token) ||
            m.from < 0 || m.from >= h->group->size)
            continue;
        comm_fail_received(&m.fail);
        if (m.word == NCCL_ASK)
            answer(h, &m);
        else if (m.word == NCCL_ANSWER)
            note_answer(h, &m);
        else if (m.word == NCCL_FAILED && m.fail.status)
            nccl_fail(h, &m.fail);
        else if (m.word == NCCL_BYE) {
            h->peers[m.from].left = true;
            h->peers[m.from].enqueued = m.enqueued;
        }
    }
}
