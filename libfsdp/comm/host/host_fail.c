/* SPDX-License-Identifier: Apache-2.0 */
/* Failures: what ended a communicator here, and what ranks tell each other of it. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "host.h"
#include "host_shm.h"

bool host_is_transient(int errnum)
{
    return errnum == EAGAIN || errnum == EWOULDBLOCK || errnum == EINTR;
}

/* A failed peer's own account follows its frame; it was sent with it, so the wait is short. */
void host_fail_recv(const struct host_comm *h, struct host_conn *conn, struct comm_fail *fail)
{
    char *at = (char *)fail;
    size_t left = sizeof *fail;
    double end = fsdp_time_now() + 1;

    while (left && fsdp_time_now() < end) {
        ssize_t got = recv(conn->fd, at, left, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && !host_is_transient(errno)))
            break;
        if (got < 0) {
            struct pollfd wait = {conn->fd, POLLIN, 0};
            poll(&wait, 1, HOST_SLICE_MS);
            continue;
        }
        at += got;
        left -= (size_t)got;
    }
    if (left || fail->status >= 0) {
        comm_fail_peer(h->group, fail, FSDP_EPEER, conn->peer, " failed without saying why");
    }
    comm_fail_received(fail);
}

/* Does a frame come next in a direction of which that much of frame and payload is left? No payload
 * being posted proves nothing: another round of the operation may bring one. */
static bool between_ops(const struct host_comm *h, size_t frame_left, size_t payload_left)
{
    if (!h->tcp.in_op || frame_left == sizeof(struct comm_op))
        return true;
    return h->tcp.in_final && !frame_left && !payload_left;
}

/* Looks at a peer's next frame without taking it, unless it is a failure. */
static bool peek_fail(const struct host_comm *h, struct host_conn *conn, struct comm_fail *fail)
{
    struct comm_op frame;

    if (conn->fd < 0 || !between_ops(h, conn->frame_in_left, conn->in_left) ||
        recv(conn->fd, &frame, sizeof frame, MSG_PEEK | MSG_DONTWAIT) != sizeof frame ||
        frame.kind != HOST_FAIL)
        return false;
    if (recv(conn->fd, &frame, sizeof frame, MSG_DONTWAIT) != sizeof frame)
        return false;
    host_fail_recv(h, conn, fail);
    return true;
}

bool host_tcp_told(struct host_comm *h, struct comm_fail *fail)
{
    for (int c = 0; h->tcp.conns && c < h->tcp.nconns; c++)
        if (peek_fail(h, &h->tcp.conns[c], fail))
            return true;
    return false;
}

void host_tcp_tell(struct host_comm *h, const struct comm_fail *fail)
{
    struct {
        struct comm_op frame;
        struct comm_fail fail;
    } words = {.frame.kind = fail ? HOST_FAIL : HOST_BYE};
    size_t nbytes = fail ? sizeof words : sizeof words.frame;

    if (fail)
        words.fail = *fail;
    for (int c = 0; h->tcp.conns && c < h->tcp.nconns; c++) {
        struct host_conn *conn = &h->tcp.conns[c];
        if (conn->fd < 0)
            continue;
        if (between_ops(h, conn->frame_out_left, conn->out_left))
            send(conn->fd, &words, nbytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        shutdown(conn->fd, SHUT_WR);
    }
}

void host_shm_wake(struct host_comm *h)
{
    for (int id = 0; h->shm.control && id < HOST_NBARRIERS; id++)
        host_futex(&h->shm.control->barrier[id].generation, FUTEX_WAKE, INT_MAX, NULL);
}

void host_shm_tell(struct host_comm *h, const struct comm_fail *fail)
{
    struct host_control *control = h->shm.control;
    int none = FAIL_NONE;

    if (control && atomic_compare_exchange_strong(&control->fail_state, &none, FAIL_WRITING)) {
        control->fail = *fail;
        atomic_store(&control->fail_state, FAIL_SET);
        host_shm_wake(h);
    }
}

bool host_shm_told(struct host_comm *h, struct comm_fail *fail)
{
    if (!h->shm.control || atomic_load(&h->shm.control->fail_state) != FAIL_SET)
        return false;
    *fail = h->shm.control->fail;
    comm_fail_received(fail);
    return true;
}

bool host_interrupted(struct host_comm *h, struct comm_fail *fail)
{
    if (!atomic_load(&h->interrupted))
        return false;
    pthread_mutex_lock(&h->status_lock);
    *fail = h->pending;
    pthread_mutex_unlock(&h->status_lock);
    return true;
}

/* Ends the communicator: keeps the first failure and tells the peers. Under op_lock. op: NULL
 * outside of one. */
void host_break_down(struct host_comm *h, const struct comm_op *op, const struct comm_fail *fail)
{
    pthread_mutex_lock(&h->status_lock);
    if (!h->sticky.status)
        comm_fail_error(&h->sticky, h->group, fail, op);
    pthread_mutex_unlock(&h->status_lock);
    if (!h->told) {
        h->told = true;
        host_shm_tell(h, fail);
        host_tcp_tell(h, fail);
    }
}

void host_fail_async(struct host_comm *h, const struct comm_fail *fail)
{
    struct comm_fail first;
    uint64_t one = 1;

    pthread_mutex_lock(&h->status_lock);
    if (!atomic_load(&h->interrupted))
        h->pending = *fail;
    atomic_store(&h->interrupted, true);
    pthread_mutex_unlock(&h->status_lock);
    host_shm_wake(h);
    if (write(h->wake_fd, &one, sizeof one) < 0)
        one = 0; /* it counts already, so poll wakes */
    /* An operation in progress sees it and tells the peers itself. */
    if (pthread_mutex_trylock(&h->op_lock) == 0) {
        host_interrupted(h, &first);
        host_break_down(h, NULL, &first);
        pthread_mutex_unlock(&h->op_lock);
    }
}
