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

/* ---- losses ---- */

static struct fsdp_err loss_of(const struct boot_tree *tree, int peer, int why)
{
    char name[FSDP_HOST_NBYTES + 32];
    struct fsdp_err loss = FSDP_ERR_INIT;

    fsdp_err_set(&loss, FSDP_EPEER, "%s is lost: its connection ended without goodbye%s%s",
                 tree_name(tree, peer, name, sizeof name), why ? ": " : "",
                 why ? strerror(why) : "");
    loss.kind = FSDP_ERR_LOST;
    loss.rank = loss.culprit = peer;
    return loss;
}

/* why: errno of the connection, 0: none. */
static void parent_gone(struct boot_tree *tree, int peer, bool bye, int why)
{
    const struct fsdp_err loss = loss_of(tree, peer, why);

    tree->up = -1;
    if (peer == 0 && bye) {
        tree->root_left = true;
        pthread_cond_broadcast(&tree->changed);
    } else if (peer == 0) {
        /* Nobody is left to decide. Those below learn it from this rank. */
        tree_decide(tree, &loss);
    } else if (tree->root_left) {
        if (!bye)
            tree_set_verdict(tree, &loss);
    } else if (!atomic_load(&tree->lost)) { /* after a verdict nothing is left to exchange */
        tree->orphaned_by = bye ? -1 : peer;
        tree->attach = true;
    }
}

static void link_gone(struct boot_tree *tree, int peer, int why)
{
    struct tree_link *link = &tree->links[peer];
    const bool bye = link->bye;

    boot_link_close(&link->io);
    pthread_cond_broadcast(&tree->changed);
    if (peer == tree->up) {
        parent_gone(tree, peer, bye, why);
    } else if (!bye) {
        const struct fsdp_err loss = loss_of(tree, peer, why);
        tree_report(tree, &loss);
    }
}

/* ---- routing ---- */

static void from_above(struct boot_tree *tree, int peer, const struct boot_frame *f)
{
    struct fsdp_err loss;

    switch (f->type) {
    case TREE_VERDICT:
        tree_words_read(&loss, tree, f);
        tree_set_verdict(tree, &loss);
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
            parent_gone(tree, peer, true, 0);
        }
        break;
    default:
        tree_deliver(tree, f);
        tree_flood(tree, f);
    }
}

static void from_below(struct boot_tree *tree, int peer, const struct boot_frame *f)
{
    struct fsdp_err loss;

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
    else if (f->type == TREE_BYE)
        root_bye(tree, f->rank);
    else if (f->type == TREE_LOST) {
        tree_words_read(&loss, tree, f);
        tree_decide(tree, &loss);
    }
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
            struct tree_words words;
            const struct boot_frame verdict =
                tree_words_frame(&words, TREE_VERDICT, &tree->verdict);
            tree_send(tree, hello.rank, &verdict);
        }
    }
}

/* Without its leader a rank continues below the root. Called without the lock: dialling blocks. */
static void attach_to_root(struct boot_tree *tree)
{
    enum { ATTACH_S = 4 };
    char name[FSDP_HOST_NBYTES + 32];
    struct fsdp_err err = FSDP_ERR_INIT, loss;
    int fd, leader = tree->orphaned_by;
    int rc = boot_dial(&fd, &tree->root_contact, &tree->secret,
                       (struct boot_hello){BOOT_FOR_TREE, tree->rank, 0},
                       tree_name(tree, 0, name, sizeof name), fsdp_time_now() + ATTACH_S, &err);

    pthread_mutex_lock(&tree->lock);
    tree->attach = false;
    if (rc == FSDP_OK && tree_link_add(tree, 0, fd, NULL) == FSDP_OK) {
        tree->up = 0;
        if (leader >= 0) {
            loss = loss_of(tree, leader, 0);
            tree_report(tree, &loss);
        }
        tree_resend(tree);
        struct boot_frame bye = {.type = TREE_BYE, .rank = tree->rank};
        if (tree->closing)
            tree_send(tree, 0, &bye);
        pthread_cond_broadcast(&tree->changed);
    } else if (leader >= 0) {
        loss = loss_of(tree, leader, 0);
        tree_set_verdict(tree, &loss);
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
        tree_flush(tree, (int)id);
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
