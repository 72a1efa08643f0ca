/* SPDX-License-Identifier: Apache-2.0 */
/* Sending along the tree, and what is known of losses. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "tree_impl.h"

const char *tree_name(const struct boot_tree *tree, int rank, char *buf, size_t nbytes)
{
    const char *host =
        tree->nodes->host && rank >= 0 && rank < tree->size ? tree->nodes->host[rank] : NULL;
    snprintf(buf, nbytes, "rank %d%s%s", rank, host ? " on " : "", host ? host : "");
    return buf;
}

static void watch_peer(struct boot_tree *tree, int peer, int op)
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

void tree_flush(struct boot_tree *tree, int peer)
{
    struct boot_link *io = &tree->links[peer].io;
    if (io->fd < 0)
        return;
    boot_link_flush(io);
    watch_peer(tree, peer, EPOLL_CTL_MOD);
}

static void send_packet(struct boot_tree *tree, int peer, struct boot_packet *packet)
{
    if (peer < 0 || tree->links[peer].io.fd < 0)
        return;
    /* A frame that cannot be queued would leave the other end waiting for ever: hang up instead,
     * which it notices. The control thread sees the same end of the connection. */
    if (!packet || boot_link_send(&tree->links[peer].io, packet, NULL))
        boot_link_shutdown(&tree->links[peer].io);
    tree_flush(tree, peer);
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

void tree_set_verdict(struct boot_tree *tree, const struct fsdp_err *loss)
{
    if (atomic_load(&tree->lost))
        return;
    tree->verdict = *loss;
    atomic_store(&tree->lost, true);
    pthread_cond_broadcast(&tree->changed);
}

void tree_decide(struct boot_tree *tree, const struct fsdp_err *loss)
{
    struct tree_words words;

    if (atomic_load(&tree->lost))
        return;
    const struct boot_frame verdict = tree_words_frame(&words, TREE_VERDICT, loss);
    tree_set_verdict(tree, loss);
    tree_flood(tree, &verdict);
}

void tree_report(struct boot_tree *tree, const struct fsdp_err *loss)
{
    struct tree_words words;

    if (tree->rank == 0) {
        tree_decide(tree, loss);
    } else {
        const struct boot_frame lost = tree_words_frame(&words, TREE_LOST, loss);
        tree_send(tree, tree->up, &lost);
    }
}
