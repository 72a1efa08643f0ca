/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of different nodes meet. Every rank listens on a port of the system's choice and
 * tells all addresses of its host over the job's channel; of each pair, the higher group rank
 * connects. Both sides show the other's secret, which also came over the job's channel, so a
 * stranger that connects is dropped, and a stranger that answers is left:
 *
 *     connector -> listener   struct hello { magic, its group rank, attempt, listener's secret }
 *     listener -> connector   struct hello { magic, its group rank, attempt, connector's secret }
 *
 * A connector that gets no answer continues to the peer's next address. The listener may have been
 * slow only and then finds several greetings of that peer: the last attempt is the one that counts.
 *
 * One loop drives all of it, so that no rank's slowness delays the other pairs.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "host.h"

enum { MAX_STRANGERS = 64 };        /* unknown connections held besides those of all peers */
static const double TRY_S = 5;      /* for one address of a peer to connect, and then to answer */
static const double SILENCE_S = 1;  /* before a guest may be dropped for another */
static const double CONNECT_S = 60; /* for all of it: ranks come here together */

struct hello {
    uint32_t magic;
    int32_t peer; /* group rank of the sender */
    int32_t attempt;
    uint8_t token[HOST_TOKEN_NBYTES];
};
enum { HELLO_MAGIC = 0x66736470 };

/* An outgoing connection in the making. */
struct dial {
    int conn, fd, addr; /* addr: candidate being tried */
    bool greeted;
    size_t got;
    struct hello answer;
    double begin;
    char why[160]; /* last refusal */
};

/* An incoming one. */
struct guest {
    int fd;
    size_t got;
    double begin; /* when it was accepted */
    struct hello hello;
};

struct meeting {
    struct host_comm *h;
    const struct host_card *cards;
    struct dial *dials;
    struct guest *guests; /* [max_guests] */
    int *attempt;         /* [nconns] of the greeting that an accepted connection began with */
    int ndials, nguests, max_guests, missing;
};

/* ---- this rank's listener -------------------------------------------------------------------- */

/* A fixed buffer size turns the kernel's own tuning off, so it is set only where it may be large.
 */
static void buffers_enlarge(int fd)
{
    int nbytes = 4 << 20, got = 0;
    socklen_t len = sizeof got;
    int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (probe < 0)
        return;
    setsockopt(probe, SOL_SOCKET, SO_RCVBUF, &nbytes, sizeof nbytes);
    getsockopt(probe, SOL_SOCKET, SO_RCVBUF, &got, &len);
    close(probe);
    if (got >= nbytes) {
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &nbytes, sizeof nbytes);
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &nbytes, sizeof nbytes);
    }
}

int host_listen(struct host_comm *h, struct host_card *card, struct fsdp_err *err)
{
    int family, errnum = comm_bind_any(&h->tcp.listener, &family, SOCK_STREAM, &card->port);

    if (!errnum) {
        buffers_enlarge(h->tcp.listener); /* accepted connections inherit them, with the window */
        errnum = listen(h->tcp.listener, SOMAXCONN) ? errno : 0;
    }
    if (errnum)
        return fsdp_err_sys(err, errnum, "comm %s: opening a listening socket", h->group->name);
    return comm_addrs_list(card->addr, &card->naddrs, err);
}

/* ---- sockets -------------------------------------------------------------------------------- */

static void socket_tune(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/* Candidate `i` of a peer: loopback first where both share a kernel, then what its card lists. */
static bool candidate(struct meeting *m, int peer, int i, struct sockaddr_storage *out,
                      socklen_t *len)
{
    const struct host_comm *h = m->h;
    const struct host_card *card = &m->cards[h->group->world_rank[peer]];
    const struct host_card *mine = &m->cards[h->group->world_rank[h->group->rank]];
    bool local = card->machine == mine->machine;
    struct sockaddr_in *in = (struct sockaddr_in *)(void *)out;
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)(void *)out;

    memset(out, 0, sizeof *out);
    if (local && i < 2) {
        struct in_addr loop4 = {htonl(INADDR_LOOPBACK)};
        *len = i == 0 ? sizeof *in : sizeof *in6;
        if (i == 0)
            *in = (struct sockaddr_in){
                .sin_family = AF_INET, .sin_port = htons((uint16_t)card->port), .sin_addr = loop4};
        else
            *in6 = (struct sockaddr_in6){.sin6_family = AF_INET6,
                                         .sin6_port = htons((uint16_t)card->port),
                                         .sin6_addr = IN6ADDR_LOOPBACK_INIT};
        return true;
    }
    i -= local ? 2 : 0;
    if (i >= card->naddrs || i >= COMM_MAX_ADDRS)
        return false;
    out->ss_family = (sa_family_t)card->addr[i].family;
    if (card->addr[i].family == AF_INET) {
        in->sin_port = htons((uint16_t)card->port);
        memcpy(&in->sin_addr, card->addr[i].bytes, 4);
        *len = sizeof *in;
    } else {
        in6->sin6_port = htons((uint16_t)card->port);
        memcpy(&in6->sin6_addr, card->addr[i].bytes, 16);
        *len = sizeof *in6;
    }
    return true;
}

/* ---- dialling ------------------------------------------------------------------------------- */

static void dial_refused(struct meeting *m, struct dial *dial, const char *why)
{
    struct sockaddr_storage sa;
    socklen_t len;
    char text[INET6_ADDRSTRLEN] = "?";

    if (candidate(m, m->h->tcp.conns[dial->conn].peer, dial->addr, &sa, &len))
        inet_ntop(sa.ss_family,
                  sa.ss_family == AF_INET
                      ? (void *)&((struct sockaddr_in *)(void *)&sa)->sin_addr
                      : (void *)&((struct sockaddr_in6 *)(void *)&sa)->sin6_addr,
                  text, sizeof text);
    snprintf(dial->why, sizeof dial->why, "%.60s: %.80s", text, why);
    if (dial->fd >= 0)
        close(dial->fd);
    dial->fd = -1;
    dial->addr++;
}

static int dial_begin(struct meeting *m, struct dial *dial, struct fsdp_err *err)
{
    struct host_comm *h = m->h;
    int peer = h->tcp.conns[dial->conn].peer;
    struct sockaddr_storage sa;
    socklen_t len;
    char name[COMM_PEER_NBYTES];

    while (dial->fd < 0) {
        if (!candidate(m, peer, dial->addr, &sa, &len))
            return fsdp_err_set(err, FSDP_EIO,
                                "comm %s: no address of %s can be reached (last tried %s); "
                                "FSDP_COMM_IFNAME chooses interfaces",
                                h->group->name, comm_peer_name(name, h->group, peer), dial->why);
        dial->begin = fsdp_time_now();
        dial->greeted = false;
        dial->got = 0;
        dial->fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (dial->fd >= 0) {
            buffers_enlarge(dial->fd); /* before connect, which fixes the window scale */
            socket_tune(dial->fd);
            if (connect(dial->fd, (struct sockaddr *)&sa, len) == 0 || errno == EINPROGRESS)
                return FSDP_OK;
        }
        dial_refused(m, dial, strerror(errno));
    }
    return FSDP_OK;
}

static struct hello hello_for(const struct meeting *m, int peer, int attempt)
{
    const struct fsdp_comm_group *group = m->h->group;
    struct hello hello = {.magic = HELLO_MAGIC, .peer = group->rank, .attempt = attempt};
    memcpy(hello.token, m->cards[group->world_rank[peer]].token, sizeof hello.token);
    return hello;
}

/* Does it come from a rank that knows this rank's secret? */
static bool hello_valid(const struct meeting *m, const struct hello *hello)
{
    const struct fsdp_comm_group *group = m->h->group;
    return hello->magic == HELLO_MAGIC &&
           !memcmp(hello->token, m->cards[group->world_rank[group->rank]].token,
                   sizeof hello->token);
}

/* Takes a step of a dial whose socket is ready. */
static void dial_step(struct meeting *m, struct dial *dial)
{
    struct host_conn *conn = &m->h->tcp.conns[dial->conn];
    int errnum = 0;
    socklen_t len = sizeof errnum;

    if (!dial->greeted) {
        struct hello hello = hello_for(m, conn->peer, dial->addr);
        getsockopt(dial->fd, SOL_SOCKET, SO_ERROR, &errnum, &len);
        if (!errnum && send(dial->fd, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello)
            errnum = errno;
        if (errnum)
            dial_refused(m, dial, strerror(errnum));
        dial->greeted = !errnum;
        dial->begin = fsdp_time_now();
        return;
    }
    ssize_t got =
        recv(dial->fd, (char *)&dial->answer + dial->got, sizeof dial->answer - dial->got, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        dial_refused(m, dial, "it hung up on this rank's greeting");
        return;
    }
    dial->got += (size_t)got;
    if (dial->got < sizeof dial->answer)
        return;
    if (!hello_valid(m, &dial->answer) || dial->answer.peer != conn->peer) {
        dial_refused(m, dial, "another program answers there");
        return;
    }
    conn->fd = dial->fd;
    dial->fd = -1;
    m->missing--;
}

/* Leaves an address that is silent for too long. Where a greeting was taken and no address is left
 * to try, the peer may just be slow, and the meeting's own limit counts. */
static void dial_expire(struct meeting *m, struct dial *dial)
{
    struct sockaddr_storage sa;
    socklen_t len;

    if (fsdp_time_now() - dial->begin <= TRY_S)
        return;
    if (!dial->greeted || candidate(m, m->h->tcp.conns[dial->conn].peer, dial->addr + 1, &sa, &len))
        dial_refused(m, dial, "no answer");
}

/* ---- listening ------------------------------------------------------------------------------ */

static void guest_drop(struct meeting *m, int i)
{
    close(m->guests[i].fd);
    m->guests[i] = m->guests[--m->nguests];
}

/* A full table makes room only by guests that had time to speak; the others wait in the backlog. */
static void guests_accept(struct meeting *m)
{
    double now = fsdp_time_now();

    for (int g = m->nguests - 1; m->nguests == m->max_guests && g >= 0; g--)
        if (now - m->guests[g].begin > SILENCE_S)
            guest_drop(m, g);
    while (m->nguests < m->max_guests) {
        int fd = accept4(m->h->tcp.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        m->guests[m->nguests++] = (struct guest){.fd = fd, .begin = now};
    }
}

/* Makes a guest that showed the secret the connection of its peer. */
static void guest_welcome(struct meeting *m, int i)
{
    struct guest *guest = &m->guests[i];
    struct host_comm *h = m->h;
    int peer = guest->hello.peer, c = h->peer_conn[peer];
    struct hello answer = hello_for(m, peer, guest->hello.attempt);
    bool again = h->tcp.conns[c].fd >= 0;

    socket_tune(guest->fd);
    if ((again && guest->hello.attempt <= m->attempt[c]) ||
        send(guest->fd, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer) {
        guest_drop(m, i);
        return;
    }
    if (again)
        close(h->tcp.conns[c].fd);
    h->tcp.conns[c].fd = guest->fd;
    m->attempt[c] = guest->hello.attempt;
    m->missing -= !again;
    m->guests[i] = m->guests[--m->nguests];
}

static void guest_step(struct meeting *m, int i)
{
    struct guest *guest = &m->guests[i];
    struct host_comm *h = m->h;
    ssize_t got =
        recv(guest->fd, (char *)&guest->hello + guest->got, sizeof guest->hello - guest->got, 0);

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got > 0)
        guest->got += (size_t)got;
    if (got > 0 && guest->got < sizeof guest->hello)
        return;
    int peer = guest->hello.peer;
    if (got <= 0 || !hello_valid(m, &guest->hello) || peer <= h->group->rank ||
        peer >= h->group->size || h->peer_conn[peer] < 0)
        guest_drop(m, i);
    else
        guest_welcome(m, i);
}

/* ---- the loop ------------------------------------------------------------------------------- */

static double connect_limit(const struct host_comm *h)
{
    return h->group->timeout_s < CONNECT_S ? h->group->timeout_s : CONNECT_S;
}

static int meeting_check(struct meeting *m, double end, struct fsdp_err *err)
{
    struct host_comm *h = m->h;
    struct fsdp_err lost = FSDP_ERR_INIT;
    struct comm_late late = {0};
    char who[COMM_LATE_NBYTES];

    if (h->oob->health(h->oob, &lost)) {
        fsdp_err_prefix(&lost, lost.status, "comm %s: ", h->group->name);
        fsdp_err_hint(&lost, lost.status, " (this rank was connecting)");
        return fsdp_err_pass(err, lost.status, &lost);
    }
    if (fsdp_time_now() < end)
        return FSDP_OK;
    for (int c = 0; c < h->tcp.nconns; c++)
        if (h->tcp.conns[c].fd < 0)
            comm_late_add(&late, h->group, h->tcp.conns[c].peer, NULL);
    fsdp_err_set(err, FSDP_ETIMEDOUT, "comm %s: no connection with %s within %g s", h->group->name,
                 comm_late_text(who, &late), connect_limit(h));
    if (err && late.npeers)
        err->culprit = h->group->world_rank[late.first];
    return FSDP_ETIMEDOUT;
}

/* One round: wait for something to happen on any socket, then let everything take a step. */
static int meeting_round(struct meeting *m, struct pollfd *polls, struct fsdp_err *err)
{
    int at = 1;

    polls[0] = (struct pollfd){m->nguests < m->max_guests ? m->h->tcp.listener : -1, POLLIN, 0};
    for (int d = 0; d < m->ndials; d++) {
        struct dial *dial = &m->dials[d];
        bool open = m->h->tcp.conns[dial->conn].fd >= 0;
        if (!open)
            FSDP_TRY(dial_begin(m, dial, err));
        polls[at++] = (struct pollfd){open ? -1 : dial->fd, dial->greeted ? POLLIN : POLLOUT, 0};
    }
    for (int g = 0; g < m->nguests; g++)
        polls[at++] = (struct pollfd){m->guests[g].fd, POLLIN, 0};
    poll(polls, (nfds_t)at, HOST_SLICE_MS);
    for (int d = 0; d < m->ndials; d++) {
        struct dial *dial = &m->dials[d];
        if (dial->fd >= 0 && polls[1 + d].revents)
            dial_step(m, dial);
        else if (dial->fd >= 0)
            dial_expire(m, dial);
    }
    for (int g = m->nguests - 1; g >= 0; g--)
        guest_step(m, g);
    guests_accept(m);
    return FSDP_OK;
}

static void meeting_free(struct meeting *m)
{
    if (!m)
        return;
    for (int d = 0; d < m->ndials; d++)
        if (m->dials[d].fd >= 0)
            close(m->dials[d].fd);
    for (int g = 0; g < m->nguests; g++)
        close(m->guests[g].fd);
    fsdp_free(m->dials);
    fsdp_free(m->guests);
    fsdp_free(m->attempt);
    fsdp_free(m);
}

static struct meeting *meeting_new(struct host_comm *h, const struct host_card *cards,
                                   struct fsdp_err *err)
{
    size_t nconns = (size_t)h->tcp.nconns, nguests = nconns + MAX_STRANGERS;
    struct meeting *m = fsdp_alloc(1, sizeof *m, "comm meeting", err);

    if (!m)
        return NULL;
    *m = (struct meeting){
        .h = h, .cards = cards, .missing = h->tcp.nconns, .max_guests = (int)nguests};
    m->dials = fsdp_alloc(nconns, sizeof *m->dials, "comm dials", err);
    m->guests = fsdp_alloc(nguests, sizeof *m->guests, "comm guests", err);
    m->attempt = fsdp_alloc(nconns, sizeof *m->attempt, "comm attempts", err);
    if (!m->dials || !m->guests || !m->attempt) {
        meeting_free(m);
        return NULL;
    }
    for (int c = 0; c < h->tcp.nconns; c++)
        if (h->tcp.conns[c].peer < h->group->rank)
            m->dials[m->ndials++] = (struct dial){.conn = c, .fd = -1};
    return m;
}

int host_connect(struct host_comm *h, const struct host_card *cards, struct fsdp_err *err)
{
    double end = fsdp_time_now() + connect_limit(h);
    struct meeting *m = NULL;
    struct pollfd *polls = NULL;
    int rc = FSDP_ENOMEM;

    if (!h->tcp.nconns)
        return FSDP_OK;
    m = meeting_new(h, cards, err);
    polls =
        fsdp_alloc(2 * (size_t)h->tcp.nconns + MAX_STRANGERS + 1, sizeof *polls, "comm polls", err);
    if (!m || !polls)
        goto out;
    while (m->missing) {
        FSDP_TRY_GOTO(meeting_round(m, polls, err), out);
        FSDP_TRY_GOTO(meeting_check(m, end, err), out);
    }
    rc = FSDP_OK;
out:
    meeting_free(m);
    fsdp_free(polls);
    close(h->tcp.listener); /* nobody else comes */
    h->tcp.listener = -1;
    return rc;
}
