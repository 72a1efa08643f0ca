/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "door.h"

enum { NSPARE = 32, PATIENCE_S = 20 };

struct answer {
    int32_t status; /* FSDP_OK, FSDP_EINVAL: no, FSDP_EPEER: not now */
    char text[500];
};

struct slot {
    int fd; /* -1: free */
    size_t have;
    bool in, answered;
    double deadline; /* to have said who it is, or to have gone after a refusal */
    struct boot_guest guest;
};

struct boot_door {
    int ep_fd, nslots;
    struct boot_guest me;
    boot_refused_f *refused;
    void *ctx;
    atomic_bool begun;
    struct slot *slots;
};

int boot_door_create(struct boot_door **out, const struct boot_guest *me, boot_refused_f *refused,
                     void *ctx, struct fsdp_err *err)
{
    struct boot_door *door = fsdp_alloc(1, sizeof *door, "door", err);
    if (!door)
        return FSDP_ENOMEM;
    *door = (struct boot_door){.ep_fd = epoll_create1(EPOLL_CLOEXEC), .me = *me};
    door->nslots = me->nnodes + NSPARE;
    door->refused = refused;
    door->ctx = ctx;
    door->slots = fsdp_alloc((size_t)door->nslots, sizeof *door->slots, "door", err);
    int rc = door->slots ? FSDP_OK : FSDP_ENOMEM;
    if (rc == FSDP_OK && door->ep_fd < 0)
        rc = fsdp_err_sys(err, errno, "epoll");
    for (int i = 0; door->slots && i < door->nslots; i++)
        door->slots[i].fd = -1;
    if (rc)
        boot_door_destroy(door);
    else
        *out = door;
    return rc;
}

void boot_door_destroy(struct boot_door *door)
{
    if (!door)
        return;
    for (int i = 0; door->slots && i < door->nslots; i++)
        if (door->slots[i].fd >= 0)
            close(door->slots[i].fd);
    if (door->ep_fd >= 0)
        close(door->ep_fd);
    fsdp_free(door->slots);
    fsdp_free(door);
}

int boot_door_fd(const struct boot_door *door)
{
    return door->ep_fd;
}

void boot_door_begin(struct boot_door *door)
{
    atomic_store(&door->begun, true);
}

static const struct slot *holder_of(const struct boot_door *door, int rank)
{
    for (int i = 0; i < door->nslots; i++)
        if (door->slots[i].fd >= 0 && door->slots[i].in && door->slots[i].guest.rank == rank)
            return &door->slots[i];
    return NULL;
}

const char *boot_door_host_of(void *ctx, int rank)
{
    const struct slot *holder = holder_of(ctx, rank);
    return holder ? holder->guest.host : NULL;
}

/* Node 0 listens on IPv6, which shows an IPv4 address behind ::ffff: */
static void name_peer(char *out, size_t out_nbytes, int fd)
{
    static const char mapped[] = "::ffff:";
    struct sockaddr_storage at;
    socklen_t nbytes = sizeof at;
    char text[FSDP_HOST_NBYTES] = "at an unknown address";

    if (getpeername(fd, (struct sockaddr *)&at, &nbytes) == 0)
        getnameinfo((struct sockaddr *)&at, nbytes, text, sizeof text, NULL, 0, NI_NUMERICHOST);
    const bool v4 = !strncmp(text, mapped, strlen(mapped)) && strchr(text, '.');
    snprintf(out, out_nbytes, "%s", v4 ? text + strlen(mapped) : text);
}

void boot_door_take(void *ctx, int fd, const struct boot_hello *hello)
{
    struct boot_door *door = ctx;
    int i = 0;

    while (i < door->nslots && door->slots[i].fd >= 0)
        i++;
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
    if (i == door->nslots || epoll_ctl(door->ep_fd, EPOLL_CTL_ADD, fd, &ev)) {
        close(fd); /* it tries again */
        return;
    }
    door->slots[i] = (struct slot){.fd = fd, .deadline = fsdp_time_now() + PATIENCE_S};
    /* What it says itself replaces these; of a guest of another version they are all there is. */
    door->slots[i].guest.rank = hello->rank;
    name_peer(door->slots[i].guest.host, sizeof door->slots[i].guest.host, fd);
}

/* ---- deciding ---- */

static int say(struct answer *out, int status, const char *fmt, ...) FSDP_PRINTF(3, 4);
static int say(struct answer *out, int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out->text, sizeof out->text, fmt, ap);
    va_end(ap);
    return out->status = status;
}

static int decide(const struct boot_door *door, const struct boot_guest *guest, struct answer *out)
{
    const struct boot_guest *me = &door->me;
    const struct slot *holder;

    if (guest->nbytes != me->nbytes || strcmp(guest->version, me->version) != 0)
        return say(
            out, FSDP_EINVAL,
            "version %s of this program here, %s on node 0 (%s)%s; install the same on all nodes",
            guest->version, me->version, me->host,
            strcmp(guest->version, me->version) ? "" : " of another build");
    if (guest->nnodes != me->nnodes)
        return say(out, FSDP_EINVAL, "--nnodes %d here, --nnodes %d on node 0 (%s)", guest->nnodes,
                   me->nnodes, me->host);
    if ((holder = holder_of(door, guest->rank)))
        return say(out, FSDP_EINVAL,
                   "--node-rank %d is taken by %s; every node needs a number of its own",
                   guest->rank, holder->guest.host);
    if (atomic_load(&door->begun))
        return say(out, FSDP_EPEER, "the job there has begun, and its node %d has gone",
                   guest->rank);
    return out->status = FSDP_OK;
}

static void slot_free(struct slot *slot)
{
    close(slot->fd);
    slot->fd = -1;
}

static void slot_answer(struct boot_door *door, struct slot *slot)
{
    struct answer answer = {0};
    char text[sizeof answer.text + FSDP_HOST_NBYTES + 80];

    slot->guest.version[sizeof slot->guest.version - 1] = 0;
    slot->guest.host[sizeof slot->guest.host - 1] = 0;
    slot->in = decide(door, &slot->guest, &answer) == FSDP_OK;
    slot->answered = true;
    /* The socket is fresh: an answer of this size fits its buffer, or the connection is dead. */
    if (send(slot->fd, &answer, sizeof answer, MSG_NOSIGNAL) != (ssize_t)sizeof answer) {
        slot_free(slot);
        return;
    }
    if (answer.status != FSDP_EINVAL)
        return;
    snprintf(text, sizeof text, "refused node %d, %s: %s", slot->guest.rank, slot->guest.host,
             answer.text);
    door->refused(door->ctx, text);
}

/* A guest of another version may say more or less than this one reads: its first members do. */
static size_t slot_wants(const struct boot_door *door, const struct slot *slot)
{
    const size_t first = offsetof(struct boot_guest, rank);
    if (slot->have >= first && (slot->guest.nbytes != door->me.nbytes ||
                                strncmp(slot->guest.version, door->me.version, 28) != 0))
        return first;
    return slot->have < first ? first : sizeof slot->guest;
}

static void slot_step(struct boot_door *door, struct slot *slot)
{
    char rest[64];
    while (slot->fd >= 0) {
        const size_t want = slot->answered ? 0 : slot_wants(door, slot);
        char *to = slot->answered ? rest : (char *)&slot->guest + slot->have;
        size_t room = slot->answered ? sizeof rest : want - slot->have;
        ssize_t got = recv(slot->fd, to, room, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return;
        if (got <= 0) {
            slot_free(slot);
            return;
        }
        if (slot->answered)
            continue;
        slot->have += (size_t)got;
        if (slot->have == slot_wants(door, slot))
            slot_answer(door, slot);
    }
}

void boot_door_step(void *ctx)
{
    enum { NEVS = 32 };
    struct boot_door *door = ctx;
    struct epoll_event evs[NEVS];
    double now = fsdp_time_now();
    int nevs = epoll_wait(door->ep_fd, evs, NEVS, 0);

    for (int i = 0; i < nevs; i++)
        slot_step(door, &door->slots[evs[i].data.u32]);
    for (int i = 0; i < door->nslots; i++)
        if (door->slots[i].fd >= 0 && !door->slots[i].in && door->slots[i].deadline < now)
            slot_free(&door->slots[i]);
}

/* ---- the other side ---- */

int boot_door_knock(int *fd, const struct boot_contact *at, const struct boot_secret *secret,
                    const struct boot_guest *me, double deadline, struct fsdp_err *err)
{
    struct boot_hello hello = {BOOT_FOR_JOIN, me->rank, BOOT_TO_SERVER};
    struct boot_guest guest = *me;
    struct answer answer;
    int rc, why, sock;

    FSDP_TRY(boot_dial(&sock, at, secret, hello, "node 0", deadline, err));
    if ((why = boot_move(sock, true, &guest, sizeof guest, deadline)) ||
        (why = boot_move(sock, false, &answer, sizeof answer, deadline))) {
        rc = fsdp_err_set(err, why == ETIMEDOUT ? FSDP_ETIMEDOUT : FSDP_EPEER,
                          "node 0 does not answer: %s", strerror(why));
    } else {
        answer.text[sizeof answer.text - 1] = 0;
        rc = answer.status ? fsdp_err_set(err, answer.status, "%s", answer.text) : FSDP_OK;
    }
    if (rc)
        close(sock);
    else
        *fd = sock;
    return rc;
}
