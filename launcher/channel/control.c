/* SPDX-License-Identifier: Apache-2.0 */
/* The control thread: reads, routes, and notices who is lost. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tree_impl.h"

const char *tree_name(const struct boot_tree *tree, int rank, char *buf, size_t nbytes)
{
    const char *host =
        tree->nodes->host && rank >= 0 && rank < tree->size ? tree->nodes->host[rank] : NULL;
    snprintf(buf, nbytes, "rank %d%s%s", rank, host ? " on " : "", host ? host : "");
    return buf;
}

/* ---- sending ---- */

static void watch(struct boot_tree *tree, int peer, int op)
{
    struct boot_link *io = &tree->links[peer].io;
    struct epoll_event ev = {.events = EPOLLIN | (boot_link_pending(io) ? EPOLLOUT : 0),
                             .data.u32 = (uint32_t)peer};
    epoll_ctl(tree->ep_fd, op, io->fd, &ev);
}

int tree_link_add(struct boot_tree *tree, int peer, int fd, struct fsdp_err *err)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = (uint32_t)peer};
    struct tree_link *link = &tree->links[peer];
    if (epoll_ctl(tree->ep_fd, EPOLL_CTL_ADD, fd, &ev)) {
        int why = errno;
        close(fd);
        return fsdp_err_sys(err, why, "epoll");
    }
    boot_link_close(&link->io);
    boot_link_init(&link->io, fd);
    link->bye = false;
    return FSDP_OK;
}

static void flush(struct boot_tree *tree, int peer)
{
    struct boot_link *io = &tree->links[peer].io;
    if (io->fd < 0)
        return;
    boot_link_flush(io);
    watch(tree, peer, EPOLL_CTL_MOD);
}

static void send_packet(struct boot_tree *tree, int peer, struct boot_packet *packet)
{
    if (peer < 0 || tree->links[peer].io.fd < 0)
        return;
    /* A frame that cannot be queued would leave the other end waiting for ever: hang up instead,
     * which it notices. The control thread sees the same end of the connection. */
    if (!packet || boot_link_send(&tree->links[peer].io, packet, NULL))
        boot_link_shutdown(&tree->links[peer].io);
    flush(tree, peer);
}

void tree_send(struct boot_tree *tree, int peer, const struct boot_frame *frame)
{
    struct boot_packet *packet = boot_packet_create(frame, NULL);
    send_packet(tree, peer, packet);
    boot_packet_unref(packet);
}

void tree_flood(struct boot_tree *tree, const struct boot_frame *frame)
{
    struct boot_packet *packet = boot_packet_create(frame, NULL);
    for (int peer = 0; peer < tree->size; peer++)
        if (peer != tree->up)
            send_packet(tree, peer, packet);
    boot_packet_unref(packet);
}

/* ---- losses ---- */

void tree_set_verdict(struct boot_tree *tree, int rank, const char *text)
{
    if (atomic_load(&tree->lost))
        return;
    tree->lost_rank = rank;
    snprintf(tree->lost_text, sizeof tree->lost_text, "%s", text);
    atomic_store(&tree->lost, true);
    pthread_cond_broadcast(&tree->changed);
}

/* The root's verdict is everybody's, so that all name the same first loss. */
static void decide(struct boot_tree *tree, int rank, const char *text)
{
    if (atomic_load(&tree->lost))
        return;
    struct boot_frame verdict = {.type = TREE_VERDICT,
                                 .rank = rank,
                                 .nbytes = strlen(text) + 1,
                                 .data = (unsigned char *)(uintptr_t)text};
    tree_set_verdict(tree, rank, text);
    tree_flood(tree, &verdict);
}

void tree_report(struct boot_tree *tree, int rank, int code, const char *text)
{
    struct boot_frame lost = {.type = TREE_LOST,
                              .rank = rank,
                              .seq = (uint64_t)(int64_t)code,
                              .nbytes = strlen(text) + 1,
                              .data = (unsigned char *)(uintptr_t)text};
    if (tree->rank == 0)
        decide(tree, rank, text);
    else
        tree_send(tree, tree->up, &lost);
}

static void lost_text(const struct boot_tree *tree, int peer, int why, char *text, size_t nbytes)
{
    char name[FSDP_HOST_NBYTES + 32];
    snprintf(text, nbytes, "%s is lost: its connection ended without goodbye%s%s",
             tree_name(tree, peer, name, sizeof name), why ? ": " : "", why ? strerror(why) : "");
}

static void parent_gone(struct boot_tree *tree, int peer, bool bye, const char *text)
{
    tree->up = -1;
    if (peer == 0 && bye) {
        tree->root_left = true;
        pthread_cond_broadcast(&tree->changed);
    } else if (peer == 0) {
        /* Nobody is left to decide. Those below learn it from this rank. */
        decide(tree, 0, text);
    } else if (tree->root_left) {
        if (!bye)
            tree_set_verdict(tree, peer, text);
    } else {
        tree->orphaned_by = bye ? -1 : peer;
        tree->attach = true;
    }
}

static void link_gone(struct boot_tree *tree, int peer, int why)
{
    struct tree_link *link = &tree->links[peer];
    bool bye = link->bye;
    char text[512];

    lost_text(tree, peer, why, text, sizeof text);
    boot_link_close(&link->io);
    pthread_cond_broadcast(&tree->changed);
    if (peer == tree->up)
        parent_gone(tree, peer, bye, text);
    else if (!bye)
        tree_report(tree, peer, 0, text);
}

/* ---- routing ---- */

static void from_above(struct boot_tree *tree, int peer, const struct boot_frame *f)
{
    switch (f->type) {
    case TREE_VERDICT:
        tree_set_verdict(tree, f->rank, (const char *)f->data);
        tree_flood(tree, f);
        break;
    case TREE_BYE:
        if (f->rank == 0) {
            tree->root_left = true;
            tree_flood(tree, f);
            pthread_cond_broadcast(&tree->changed);
        }
        if (f->rank == peer)
            tree->links[peer].bye = true;
        if (f->rank == peer && peer != 0) {
            boot_link_close(&tree->links[peer].io);
            parent_gone(tree, peer, true, "");
        }
        break;
    default:
        tree_deliver(tree, f);
        tree_flood(tree, f);
    }
}

static void from_below(struct boot_tree *tree, int peer, const struct boot_frame *f)
{
    if (f->rank < 0 || f->rank >= tree->size)
        return;
    if (f->type == TREE_BYE && f->rank == peer) {
        tree->links[peer].bye = true;
        pthread_cond_broadcast(&tree->changed);
    }
    if (tree->rank != 0)
        tree_send(tree, tree->up, f);
    else if (f->type == TREE_PIECE)
        root_piece(tree, f);
    else if (f->type == TREE_WHO)
        root_who(tree, f);
    else if (f->type == TREE_LOST)
        decide(tree, f->rank, (const char *)f->data);
    else if (f->type == TREE_BYE)
        root_bye(tree, f->rank);
}

static void read_link(struct boot_tree *tree, int peer)
{
    struct boot_link *io = &tree->links[peer].io;
    struct boot_frame *f;
    int why, got;

    while (io->fd >= 0 && (got = boot_link_recv(io, &f, &why)) != 0) {
        if (got < 0)
            link_gone(tree, peer, why);
        else if (peer == tree->up)
            from_above(tree, peer, f);
        else
            from_below(tree, peer, f);
    }
}

/* ---- orphans ---- */

/* Root: a rank without its leader connects here. */
static void take_in(struct boot_tree *tree)
{
    struct boot_hello hello;
    int fd;
    while (boot_acceptor_step(tree->acceptor, &fd, &hello)) {
        if (hello.purpose != BOOT_FOR_TREE || hello.rank <= 0 || hello.rank >= tree->size) {
            close(fd);
            continue;
        }
        if (tree_link_add(tree, hello.rank, fd, NULL) == FSDP_OK && atomic_load(&tree->lost)) {
            struct boot_frame verdict = {.type = TREE_VERDICT,
                                         .rank = tree->lost_rank,
                                         .nbytes = strlen(tree->lost_text) + 1,
                                         .data = (unsigned char *)tree->lost_text};
            tree_send(tree, hello.rank, &verdict);
        }
    }
}

/* Without its leader a rank goes on below the root. Called without the lock: dialling blocks. */
static void attach_to_root(struct boot_tree *tree)
{
    enum { ATTACH_S = 4 };
    char name[FSDP_HOST_NBYTES + 32], text[512];
    struct fsdp_err err = FSDP_ERR_INIT;
    int fd, leader = tree->orphaned_by;
    int rc = boot_dial(&fd, &tree->root_contact, &tree->secret,
                       (struct boot_hello){BOOT_FOR_TREE, tree->rank, 0},
                       tree_name(tree, 0, name, sizeof name), fsdp_time_now() + ATTACH_S, &err);

    pthread_mutex_lock(&tree->lock);
    tree->attach = false;
    if (rc == FSDP_OK && tree_link_add(tree, 0, fd, NULL) == FSDP_OK) {
        tree->up = 0;
        if (leader >= 0) {
            lost_text(tree, leader, 0, text, sizeof text);
            tree_report(tree, leader, 0, text);
        }
        tree_resend(tree);
        struct boot_frame bye = {.type = TREE_BYE, .rank = tree->rank};
        if (tree->closing)
            tree_send(tree, 0, &bye);
        pthread_cond_broadcast(&tree->changed);
    } else if (leader >= 0) {
        lost_text(tree, leader, 0, text, sizeof text);
        tree_set_verdict(tree, leader, text);
    } else {
        tree->root_left = true;
        pthread_cond_broadcast(&tree->changed);
    }
    pthread_mutex_unlock(&tree->lock);
}

/* ---- the thread ---- */

static void handle(struct boot_tree *tree, const struct epoll_event *ev)
{
    uint32_t id = ev->data.u32;
    if (id == (uint32_t)tree->size) {
        uint64_t count;
        ssize_t got = read(tree->wake_fd, &count, sizeof count);
        (void)got;
    } else if (id == (uint32_t)tree->size + 1) {
        take_in(tree);
    } else {
        bool had = boot_link_pending(&tree->links[id].io);
        flush(tree, (int)id);
        if (had && !boot_link_pending(&tree->links[id].io))
            pthread_cond_broadcast(&tree->changed);
        read_link(tree, (int)id);
    }
}

void *tree_thread(void *arg)
{
    struct boot_tree *tree = arg;
    struct epoll_event evs[64];
    bool stop = false;

    prctl(PR_SET_NAME, "boot-control");
    while (!stop) {
        int nevs = epoll_wait(tree->ep_fd, evs, 64, 1000);
        pthread_mutex_lock(&tree->lock);
        for (int i = 0; i < nevs; i++)
            handle(tree, &evs[i]);
        stop = tree->stop;
        bool attach = tree->attach;
        pthread_mutex_unlock(&tree->lock);
        if (attach && !stop)
            attach_to_root(tree);
    }
    return NULL;
}
