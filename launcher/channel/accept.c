/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The acceptor: a listening socket and the connections that have not proved themselves yet, in one
 * epoll set, which makes the whole acceptor one pollable descriptor.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "handshake.h"

enum { NPENDING = 128, PENDING_S = 20, SILENT_S = 1, PAUSE_MS = 20, BACKLOG = 1024 };

struct pending {
    int fd; /* -1: free slot */
    bool answered;
    size_t have;
    double deadline;
    struct boot_hello_msg hello;
    struct boot_answer_msg answer;
    unsigned char proof[BOOT_MAC_NBYTES];
};

struct boot_acceptor {
    int listen_fd, ep_fd;
    bool loopback;
    uint16_t port;
    int32_t rank; /* whom diallers must mean */
    struct boot_secret secret;
    struct pending pending[NPENDING];
};

/* Returns a socket that listens on `sa`, or -errno. A port that was asked for may have connections
 * of a job that has just ended; only somebody who listens there keeps it. */
static int listen_at(const struct sockaddr *sa, socklen_t len)
{
    int on = 1, off = 0, fd = socket(sa->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if ((sa->sa_family == AF_INET6 &&
         setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off)) ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) || bind(fd, sa, len) ||
        listen(fd, BACKLOG)) {
        int why = errno;
        close(fd);
        return -why;
    }
    return fd;
}

static int listen_on(bool loopback, uint16_t *port, struct fsdp_err *err)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(*port)};
    struct sockaddr_in v4 = {.sin_family = AF_INET,
                             .sin_port = htons(*port),
                             .sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY)};
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;
    /* One socket serves both families, where the kernel has both. */
    int fd = loopback ? -EAFNOSUPPORT : listen_at((struct sockaddr *)&v6, sizeof v6);

    if (fd < 0 && fd != -EADDRINUSE)
        fd = listen_at((struct sockaddr *)&v4, sizeof v4);
    if (fd == -EADDRINUSE)
        return fsdp_err_set(err, FSDP_EEXIST, "TCP port %u is in use", *port);
    if (fd < 0)
        return fsdp_err_sys(err, -fd, "cannot listen on a TCP port of %s",
                            loopback ? "127.0.0.1" : "this machine");
    if (getsockname(fd, (struct sockaddr *)&bound, &len)) {
        int why = errno;
        close(fd);
        return fsdp_err_sys(err, why, "getsockname");
    }
    *port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                              : ((struct sockaddr_in *)&bound)->sin_port);
    return fd;
}

int boot_acceptor_create(struct boot_acceptor **out, const struct boot_secret *secret,
                         bool loopback, uint16_t port, struct fsdp_err *err)
{
    struct boot_acceptor *acceptor = fsdp_alloc(1, sizeof *acceptor, "boot acceptor", err);
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = NPENDING};
    int rc;

    if (!acceptor)
        return FSDP_ENOMEM;
    acceptor->ep_fd = -1;
    acceptor->loopback = loopback;
    acceptor->port = port;
    acceptor->secret = *secret;
    acceptor->rank = BOOT_TO_SERVER;
    for (int i = 0; i < NPENDING; i++)
        acceptor->pending[i].fd = -1;
    acceptor->listen_fd = rc = listen_on(loopback, &acceptor->port, err);
    if (rc < 0)
        goto out;
    acceptor->ep_fd = epoll_create1(EPOLL_CLOEXEC);
    if (acceptor->ep_fd < 0 ||
        epoll_ctl(acceptor->ep_fd, EPOLL_CTL_ADD, acceptor->listen_fd, &ev)) {
        rc = fsdp_err_sys(err, errno, "epoll");
        goto out;
    }
    *out = acceptor;
    return FSDP_OK;
out:
    boot_acceptor_destroy(acceptor);
    return rc;
}

void boot_acceptor_destroy(struct boot_acceptor *acceptor)
{
    if (!acceptor)
        return;
    for (int i = 0; i < NPENDING; i++)
        if (acceptor->pending[i].fd >= 0)
            close(acceptor->pending[i].fd);
    if (acceptor->listen_fd >= 0)
        close(acceptor->listen_fd);
    if (acceptor->ep_fd >= 0)
        close(acceptor->ep_fd);
    fsdp_free(acceptor);
}

void boot_acceptor_set_secret(struct boot_acceptor *acceptor, const struct boot_secret *secret)
{
    acceptor->secret = *secret;
}

void boot_acceptor_set_rank(struct boot_acceptor *acceptor, int rank)
{
    acceptor->rank = rank;
}

int boot_acceptor_fd(const struct boot_acceptor *acceptor)
{
    return acceptor->ep_fd;
}

static bool interface_wanted(const struct ifaddrs *ifa, int family)
{
    const char *only = getenv("BOOT_INTERFACE"); /* a name or the beginning of one */
    return ifa->ifa_addr && ifa->ifa_addr->sa_family == family && (ifa->ifa_flags & IFF_UP) &&
           !(ifa->ifa_flags & IFF_LOOPBACK) &&
           (!only || strncmp(ifa->ifa_name, only, strlen(only)) == 0);
}

/* A link-local address means nothing without an interface, which differs from node to node. */
static const void *address_of(const struct ifaddrs *ifa)
{
    const struct sockaddr_in6 *v6 = (const void *)ifa->ifa_addr;
    if (ifa->ifa_addr->sa_family == AF_INET)
        return &((const struct sockaddr_in *)(const void *)ifa->ifa_addr)->sin_addr;
    return IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) ? NULL : &v6->sin6_addr;
}

static void list_addresses(struct boot_contact *out, const struct ifaddrs *all, int family)
{
    for (const struct ifaddrs *ifa = all; ifa && out->naddrs < BOOT_MAX_ADDRS - 1;
         ifa = ifa->ifa_next) {
        const void *addr = interface_wanted(ifa, family) ? address_of(ifa) : NULL;
        if (addr && inet_ntop(family, addr, out->addr[out->naddrs], BOOT_ADDR_NBYTES))
            out->naddrs++;
    }
}

void boot_acceptor_contact(const struct boot_acceptor *acceptor, struct boot_contact *out)
{
    struct ifaddrs *all = NULL;

    memset(out, 0, sizeof *out);
    out->port = acceptor->port;
    if (!acceptor->loopback && getifaddrs(&all) == 0) {
        list_addresses(out, all, AF_INET);
        list_addresses(out, all, AF_INET6);
        freeifaddrs(all);
    }
    /* Last: it serves a machine without a network. Elsewhere another rank may answer there, which
     * drops a dial that does not mean it. */
    snprintf(out->addr[out->naddrs++], BOOT_ADDR_NBYTES, "127.0.0.1");
}

static void pending_drop(struct pending *p)
{
    close(p->fd);
    p->fd = -1;
}

static struct pending *free_slot(struct boot_acceptor *acceptor)
{
    for (int i = 0; i < NPENDING; i++)
        if (acceptor->pending[i].fd < 0)
            return &acceptor->pending[i];
    return NULL;
}

/* No slot or no descriptor is left. Whoever waits to be accepted keeps the listening socket
 * readable, so that callers would spin: the slot of somebody who has been silent for a while is
 * freed, else it is a pause until others get on. */
static void make_room(struct boot_acceptor *acceptor)
{
    double latest = fsdp_time_now() + PENDING_S - SILENT_S;
    struct pending *oldest = NULL;
    for (int i = 0; i < NPENDING; i++) {
        struct pending *p = &acceptor->pending[i];
        if (p->fd >= 0 && p->deadline < latest && (!oldest || p->deadline < oldest->deadline))
            oldest = p;
    }
    if (oldest)
        pending_drop(oldest);
    else
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * 1000000L}, NULL);
}

static void accept_all(struct boot_acceptor *acceptor)
{
    for (;;) {
        struct pending *p = free_slot(acceptor);
        if (!p) { /* the others wait in the backlog */
            make_room(acceptor);
            return;
        }
        int fd = accept4(acceptor->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                make_room(acceptor);
            return;
        }
        boot_socket_tune(fd);
        struct epoll_event ev = {.events = EPOLLIN, .data.u32 = (uint32_t)(p - acceptor->pending)};
        *p = (struct pending){.fd = fd, .deadline = fsdp_time_now() + PENDING_S};
        if (epoll_ctl(acceptor->ep_fd, EPOLL_CTL_ADD, fd, &ev))
            pending_drop(p);
    }
}

/* The socket is fresh, so an answer of this size fits its buffer or the connection is dead. */
static bool send_small(int fd, const void *data, size_t nbytes)
{
    return send(fd, data, nbytes, MSG_NOSIGNAL) == (ssize_t)nbytes;
}

/* 1: proved, 0: not yet, -1: drop it. */
static int pending_step(struct boot_acceptor *acceptor, struct pending *p)
{
    for (;;) {
        size_t want = p->answered ? sizeof p->proof : sizeof p->hello;
        char *to = p->answered ? (char *)p->proof : (char *)&p->hello;
        ssize_t got = recv(p->fd, to + p->have, want - p->have, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return 0;
        if (got <= 0)
            return -1;
        p->have += (size_t)got;
        if (p->have < want)
            continue;
        p->have = 0;
        if (p->answered)
            return boot_handshake_check(p->proof, &acceptor->secret, "dialler", &p->hello,
                                        p->answer.nonce) &&
                           (int32_t)le32toh(p->hello.to) == acceptor->rank
                       ? 1
                       : -1;
        if (le32toh(p->hello.magic) != BOOT_MAGIC ||
            boot_random(p->answer.nonce, sizeof p->answer.nonce, NULL) ||
            !boot_handshake_mac(p->answer.mac, &acceptor->secret, "acceptor", &p->hello,
                                p->answer.nonce) ||
            !send_small(p->fd, &p->answer, sizeof p->answer))
            return -1;
        p->answered = true;
    }
}

static void drop_overdue(struct boot_acceptor *acceptor)
{
    double now = fsdp_time_now();
    for (int i = 0; i < NPENDING; i++)
        if (acceptor->pending[i].fd >= 0 && acceptor->pending[i].deadline < now)
            pending_drop(&acceptor->pending[i]);
}

bool boot_acceptor_step(struct boot_acceptor *acceptor, int *fd, struct boot_hello *hello)
{
    struct epoll_event evs[16];
    uint32_t welcome = htole32(BOOT_MAGIC);

    drop_overdue(acceptor);
    int nevs = epoll_wait(acceptor->ep_fd, evs, 16, 0);
    for (int i = 0; i < nevs; i++) {
        if (evs[i].data.u32 == NPENDING) {
            accept_all(acceptor);
            continue;
        }
        struct pending *p = &acceptor->pending[evs[i].data.u32];
        if (p->fd < 0)
            continue;
        int verdict = pending_step(acceptor, p);
        if (verdict < 0 || (verdict > 0 && !send_small(p->fd, &welcome, sizeof welcome))) {
            pending_drop(p);
        } else if (verdict > 0) {
            epoll_ctl(acceptor->ep_fd, EPOLL_CTL_DEL, p->fd, NULL);
            *fd = p->fd;
            *hello = (struct boot_hello){le32toh(p->hello.purpose), (int32_t)le32toh(p->hello.rank),
                                         acceptor->rank};
            p->fd = -1;
            boot_message_count(BOOT_HANDSHAKE_NMESSAGES);
            return true;
        }
    }
    return false;
}
