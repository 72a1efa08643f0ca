/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of other nodes. There is one connection to each, and one operation at a time on it:
 *
 *     [ frame: struct comm_op ][ payload as both sides computed it from the operation ] ...
 *
 * host_tcp_run moves all frames and payloads of all peers at once, without blocking in any one, so
 * no size and no order of ranks can make a cycle of waits. All ranks of a job run the same build on
 * the same architecture, so frames and payloads travel as they lie in memory.
 *
 * A failed rank's last words travel as a frame too, so they go only where the peer reads a frame
 * next, and are looked for only there (between_ops). Amid the payloads of an operation of several
 * rounds, they would be taken for data, and data for them; there the hang-up must do.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "host.h"

enum { GONE = 1 }; /* of conn_send and conn_recv: the peer hung up */

int host_tcp_alloc(struct host_comm *h, struct fsdp_err *err)
{
    struct host_tcp *tcp = &h->tcp;
    size_t nconns = (size_t)(h->group->size - h->nseats), share;

    tcp->nconns = (int)nconns;
    if (!nconns)
        return FSDP_OK;
    share = (size_t)HOST_SLOTS_NBYTES / nconns / 4096 * 4096;
    tcp->chunk_nbytes = share < HOST_TCP_NBYTES ? share : HOST_TCP_NBYTES;
    if (tcp->chunk_nbytes < HOST_SMALL_NBYTES)
        tcp->chunk_nbytes = HOST_SMALL_NBYTES;
    tcp->conns = fsdp_alloc(nconns, sizeof *tcp->conns, "comm connections", err);
    tcp->polls = fsdp_alloc(nconns + 1, sizeof *tcp->polls, "comm polls", err);
    tcp->buffers = fsdp_alloc(nconns, tcp->chunk_nbytes, "comm receive buffers", err);
    for (size_t c = 0; tcp->conns && c < nconns; c++)
        tcp->conns[c].fd = -1;
    if (!tcp->conns || !tcp->polls || !tcp->buffers)
        return FSDP_ENOMEM;
    int c = 0;
    for (int p = 0; p < h->group->size; p++) {
        if (h->peer_seat[p] >= 0)
            continue;
        tcp->conns[c].peer = p;
        tcp->conns[c].sum_buffer = tcp->buffers + (size_t)c * tcp->chunk_nbytes;
        h->peer_conn[p] = c++;
    }
    return FSDP_OK;
}

void host_tcp_close(struct host_comm *h)
{
    char sink[4096];

    for (int c = 0; h->tcp.conns && c < h->tcp.nconns; c++) {
        int fd = h->tcp.conns[c].fd;
        if (fd < 0)
            continue;
        /* Closing with unread data resets the connection, and the peer may lose this rank's last
         * frame. */
        shutdown(fd, SHUT_WR);
        for (int i = 0; i < 1024 && recv(fd, sink, sizeof sink, MSG_DONTWAIT) > 0; i++)
            ;
        close(fd);
    }
    if (h->tcp.listener >= 0)
        close(h->tcp.listener);
    fsdp_free(h->tcp.conns);
    fsdp_free(h->tcp.polls);
    fsdp_free(h->tcp.buffers);
}

void host_tcp_begin(struct host_comm *h, const struct comm_op *op)
{
    for (int c = 0; c < h->tcp.nconns; c++) {
        struct host_conn *conn = &h->tcp.conns[c];
        conn->frame_out = *op;
        conn->frame_out_left = conn->frame_in_left = sizeof *op;
        conn->out_left = conn->in_left = 0;
    }
    h->tcp.in_op = true;
    h->tcp.in_final = false;
}

void host_tcp_final(struct host_comm *h)
{
    h->tcp.in_final = true;
}

void host_tcp_end(struct host_comm *h)
{
    h->tcp.in_op = false;
}

void host_tcp_post(struct host_comm *h, int peer, const void *out, size_t out_nbytes, void *in,
                   size_t in_nbytes)
{
    struct host_conn *conn = &h->tcp.conns[h->peer_conn[peer]];
    conn->out = out;
    conn->out_left = out_nbytes;
    conn->in = in;
    conn->in_left = in_nbytes;
}

/* ---- one connection ------------------------------------------------------------------------- */

static int conn_send(struct host_conn *conn, bool *moved)
{
    while (conn->frame_out_left || conn->out_left) {
        size_t frame = conn->frame_out_left;
        struct iovec iov[2] = {
            {(char *)&conn->frame_out + sizeof conn->frame_out - frame, frame},
            {(void *)(uintptr_t)conn->out, conn->out_left},
        };
        struct msghdr msg = {.msg_iov = frame ? iov : iov + 1,
                             .msg_iovlen = (frame != 0) + (conn->out_left != 0)};
        ssize_t got = sendmsg(conn->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (got < 0)
            return host_is_transient(errno) ? FSDP_OK : GONE;
        size_t nbytes = (size_t)got, of_frame = nbytes < frame ? nbytes : frame;
        conn->frame_out_left -= of_frame;
        conn->out += nbytes - of_frame;
        conn->out_left -= nbytes - of_frame;
        *moved = true;
    }
    return FSDP_OK;
}

static int frame_check(struct host_comm *h, struct host_conn *conn, const struct comm_op *op,
                       struct comm_fail *fail)
{
    if (conn->frame_in.kind == HOST_FAIL) {
        host_fail_recv(h, conn, fail);
        return fail->status;
    }
    if (conn->frame_in.kind == HOST_BYE)
        return comm_fail_peer(h->group, fail, FSDP_EPEER, conn->peer, " left the communicator");
    return comm_op_match(h->group, op, conn->peer, &conn->frame_in, fail);
}

static int conn_recv(struct host_comm *h, struct host_conn *conn, const struct comm_op *op,
                     bool *moved, struct comm_fail *fail)
{
    while (conn->frame_in_left || conn->in_left) {
        size_t frame = conn->frame_in_left;
        char *to = frame ? (char *)&conn->frame_in + sizeof conn->frame_in - frame : conn->in;
        ssize_t got = recv(conn->fd, to, frame ? frame : conn->in_left, MSG_DONTWAIT);
        if (got == 0)
            return GONE;
        if (got < 0)
            return host_is_transient(errno) ? FSDP_OK : GONE;
        *moved = true;
        if (!frame) {
            conn->in += got;
            conn->in_left -= (size_t)got;
            continue;
        }
        conn->frame_in_left -= (size_t)got;
        if (!conn->frame_in_left)
            FSDP_TRY(frame_check(h, conn, op, fail));
    }
    return FSDP_OK;
}

/* ---- all of them ---------------------------------------------------------------------------- */

static bool conn_pending(const struct host_conn *conn)
{
    return conn->frame_out_left || conn->frame_in_left || conn->out_left || conn->in_left;
}

static void tcp_late(const struct host_comm *h, const void *ctx, struct comm_late *late)
{
    (void)ctx;
    for (int c = 0; c < h->tcp.nconns; c++)
        if (conn_pending(&h->tcp.conns[c]))
            comm_late_add(late, h->group, h->tcp.conns[c].peer, NULL);
}

static int tcp_dead(struct host_comm *h, const void *ctx, struct comm_fail *fail)
{
    /* A hang-up shows in send and recv. */
    (void)h;
    (void)ctx;
    (void)fail;
    return FSDP_OK;
}

static int hung_up(struct host_comm *h, struct host_conn *conn, struct comm_fail *fail)
{
    comm_fail_peer(h->group, fail, FSDP_EPEER, conn->peer, " died or left (its connection closed)");
    return host_explain(h, true, fail);
}

/* Moves what can be moved now; *left: connections that still have something to do. */
static int tcp_sweep(struct host_comm *h, const struct comm_op *op, struct host_watch *watch,
                     int *left, struct comm_fail *fail)
{
    struct host_conn *gone = NULL;
    bool moved = false;

    *left = 0;
    for (int c = 0; c < h->tcp.nconns; c++) {
        struct host_conn *conn = &h->tcp.conns[c];
        struct pollfd *wait = &h->tcp.polls[c];
        int sent = conn_send(conn, &moved);
        /* What the peer said before it went is still there to read, so receive first. */
        int rc = conn_recv(h, conn, op, &moved, fail);
        if (rc < 0)
            return rc;
        if ((rc == GONE || sent == GONE) && !gone)
            gone = conn;
        *wait = (struct pollfd){-1, 0, 0};
        if (conn_pending(conn)) {
            ++*left;
            wait->fd = conn->fd;
            wait->events = (short)((conn->frame_out_left || conn->out_left ? POLLOUT : 0) |
                                   (conn->frame_in_left || conn->in_left ? POLLIN : 0));
        }
    }
    if (moved)
        comm_wait_progress(&watch->wait);
    /* Last, because another peer may have said why that one left. */
    return gone ? hung_up(h, gone, fail) : FSDP_OK;
}

int host_tcp_run(struct host_comm *h, const struct comm_op *op, struct comm_fail *fail)
{
    struct host_watch watch = {.h = h, .late = tcp_late, .dead = tcp_dead, .owns_tcp = true};
    int left = 0;

    if (!h->tcp.nconns)
        return FSDP_OK;
    for (;;) {
        FSDP_TRY(tcp_sweep(h, op, &watch, &left, fail));
        if (!left)
            return FSDP_OK;
        FSDP_TRY(host_watch_check(&watch, fail));
        h->tcp.polls[h->tcp.nconns] = (struct pollfd){h->wake_fd, POLLIN, 0};
        poll(h->tcp.polls, (nfds_t)h->tcp.nconns + 1, HOST_SLICE_MS);
    }
}

/* ---- last words ----------------------------------------------------------------------------- */
