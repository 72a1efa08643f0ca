/* SPDX-License-Identifier: Apache-2.0 */
/* Building the tree and taking it down. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fsdp/sys/thread.h"
#include "tree_impl.h"

/* Who waits for the verdict of a late bootstrap waits longer than who counts the ranks. */
enum { VERDICT_S = 3 };

static int parent_of(const struct fsdp_node_map *nodes, int rank)
{
    int leader = 0;
    while (nodes->node_of[leader] != nodes->node_of[rank])
        leader++;
    return rank == 0 ? -1 : rank == leader ? 0 : leader;
}

static int tree_init(struct boot_tree *tree, const struct boot_tree_opts *opts,
                     struct fsdp_err *err)
{
    pthread_mutex_init(&tree->lock, NULL);
    fsdp_cond_init(&tree->changed);
    tree->ep_fd = tree->wake_fd = -1;
    tree->rank = opts->rank;
    tree->size = opts->nodes->nranks;
    tree->nodes = opts->nodes;
    tree->parent = tree->up = parent_of(opts->nodes, opts->rank);
    tree->root_contact = opts->contacts[0];
    tree->secret = opts->secret;
    tree->wait_s = opts->wait_s;
    tree->on_words = opts->on_words;
    tree->ctx = opts->ctx;
    tree->orphaned_by = -1;
    size_t size = (size_t)tree->size;
    if (!(tree->links = fsdp_alloc(size, sizeof *tree->links, "boot links", err)) ||
        !(tree->left = fsdp_alloc(size, sizeof *tree->left, "boot ranks", err)))
        return FSDP_ENOMEM;
    for (int r = 0; r < tree->size; r++)
        boot_link_init(&tree->links[r].io, -1);
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = (uint32_t)tree->size};
    tree->ep_fd = epoll_create1(EPOLL_CLOEXEC);
    tree->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (tree->ep_fd < 0 || tree->wake_fd < 0 ||
        epoll_ctl(tree->ep_fd, EPOLL_CTL_ADD, tree->wake_fd, &ev))
        return fsdp_err_sys(err, errno, "epoll");
    return FSDP_OK;
}

static int dial_parent(struct boot_tree *tree, const struct boot_tree_opts *opts, double deadline,
                       struct fsdp_err *err)
{
    char name[FSDP_HOST_NBYTES + 32];
    int fd;
    if (tree->parent < 0)
        return FSDP_OK;
    FSDP_TRY(boot_dial(&fd, &opts->contacts[tree->parent], &tree->secret,
                       (struct boot_hello){BOOT_FOR_TREE, tree->rank, tree->parent},
                       tree_name(tree, tree->parent, name, sizeof name), deadline, err));
    return tree_link_add(tree, tree->parent, fd, err);
}

static bool is_child(const struct boot_tree *tree, int rank)
{
    return rank > 0 && rank < tree->size && parent_of(tree->nodes, rank) == tree->rank;
}

static int name_absent(struct boot_tree *tree, double waited, struct fsdp_err *err)
{
    char text[700] = "";
    size_t len = 0;
    for (int r = 0; r < tree->size && len < sizeof text - 1; r++) {
        char name[FSDP_HOST_NBYTES + 32];
        if (!is_child(tree, r) || tree->links[r].io.fd >= 0)
            continue;
        len += (size_t)snprintf(text + len, sizeof text - len, "%s%s", len ? ", " : "",
                                tree_name(tree, r, name, sizeof name));
    }
    return fsdp_err_set(err, FSDP_ETIMEDOUT,
                        "waited %.3g s for the control connection of %.*s, which came to the "
                        "rendezvous",
                        waited, (int)sizeof text - 1, text);
}

static int accept_children(struct boot_tree *tree, struct boot_acceptor *acceptor, double deadline,
                           struct fsdp_err *err)
{
    double began = fsdp_time_now();
    int missing = 0;

    for (int r = 0; r < tree->size; r++)
        missing += is_child(tree, r);
    while (missing) {
        struct boot_hello hello;
        int fd;
        if (!boot_acceptor_step(acceptor, &fd, &hello)) {
            if (fsdp_time_now() >= deadline)
                return name_absent(tree, fsdp_time_now() - began, err);
            boot_wait_fd(boot_acceptor_fd(acceptor), POLLIN, deadline);
            continue;
        }
        if (hello.purpose != BOOT_FOR_TREE || !is_child(tree, hello.rank) ||
            tree->links[hello.rank].io.fd >= 0) {
            close(fd);
            continue;
        }
        FSDP_TRY(tree_link_add(tree, hello.rank, fd, err));
        missing--;
    }
    return FSDP_OK;
}

/* The root continues to listen, for ranks that lose their leader. */
static int keep_acceptor(struct boot_tree *tree, struct boot_acceptor *acceptor,
                         struct fsdp_err *err)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = (uint32_t)tree->size + 1};
    tree->acceptor = acceptor;
    if (epoll_ctl(tree->ep_fd, EPOLL_CTL_ADD, boot_acceptor_fd(acceptor), &ev))
        return fsdp_err_sys(err, errno, "epoll");
    return FSDP_OK;
}

static int start_thread(struct boot_tree *tree, struct fsdp_err *err)
{
    int why = fsdp_thread_start(&tree->thread, tree_thread, tree);
    if (why)
        return fsdp_err_sys(err, why, "cannot start the control thread");
    tree->running = true;
    return FSDP_OK;
}

/* All ranks leave together, or all know who did not come. */
static int meet_ranks(struct boot_tree *tree, int status, double deadline, struct fsdp_err *err)
{
    struct tree_chan *first = tree->chans;
    FSDP_TRY(start_thread(tree, err));
    if (status) {
        struct fsdp_err why = FSDP_ERR_INIT;
        if (err)
            why = *err;
        else
            fsdp_err_set(&why, status, "bootstrap failed");
        why.culprit = tree->rank;
        first->oob.abort(&first->oob, 1, &why);
        return status;
    }
    return tree_allgather(first, NULL, 0, NULL, deadline + VERDICT_S, err);
}

int boot_tree_create(struct boot_tree **out, const struct boot_tree_opts *opts,
                     struct boot_acceptor *acceptor, double deadline, struct fsdp_err *err)
{
    struct fsdp_err own = FSDP_ERR_INIT; /* the text is needed here, whatever the caller wants */
    struct tree_chan *first;
    struct boot_tree *tree = fsdp_alloc(1, sizeof *tree, "boot tree", &own);
    int rc = FSDP_ENOMEM;

    if (!tree)
        goto out;
    tree->refs = 1;
    boot_acceptor_set_rank(acceptor, opts->rank);
    FSDP_TRY_GOTO(tree_init(tree, opts, &own), out);
    FSDP_TRY_GOTO(tree_chan_create(&first, tree, "control", FSDP_HASH_SEED, &own), out);
    rc = dial_parent(tree, opts, deadline, &own);
    if (rc == FSDP_OK)
        rc = accept_children(tree, acceptor, deadline, &own);
    if (tree->rank == 0) {
        int kept = keep_acceptor(tree, acceptor, &own);
        acceptor = NULL;
        rc = rc ? rc : kept;
    }
    rc = meet_ranks(tree, rc, deadline, &own);
    if (rc == FSDP_OK) {
        *out = tree;
        tree = NULL;
    }
out:
    boot_acceptor_destroy(acceptor);
    if (tree)
        boot_tree_close(tree);
    if (rc && err)
        *err = own;
    return rc;
}

struct fsdp_oob *boot_tree_oob(struct boot_tree *tree)
{
    struct tree_chan *c = tree->chans;
    while (c->id != FSDP_HASH_SEED)
        c = c->next;
    return &c->oob;
}

/* ---- leaving ---- */

/* Up first. Down only at the end: ranks below that are not late leave through this one. */
static void say_goodbye(struct boot_tree *tree, bool down)
{
    struct boot_frame bye = {.type = TREE_BYE, .rank = tree->rank};
    if (down)
        tree_flood(tree, &bye);
    else if (tree->rank == 0)
        root_bye(tree, 0);
    else
        tree_send(tree, tree->up, &bye);
}

static bool drained(const struct boot_tree *tree)
{
    bool lost = atomic_load(&tree->lost);
    if (tree->attach && !lost)
        return false;
    for (int r = 0; r < tree->size; r++) {
        const struct tree_link *link = &tree->links[r];
        if (link->io.fd >= 0 &&
            (boot_link_pending(&link->io) || (!lost && r != tree->up && !link->bye)))
            return false;
    }
    return lost || tree->rank != 0 || tree->nleft == tree->size;
}

void boot_tree_close(struct boot_tree *tree)
{
    enum { LINGER_S = 2 };
    static const struct fsdp_node_map nobody;
    uint64_t one = 1;

    if (!tree)
        return;
    pthread_mutex_lock(&tree->lock);
    if (tree->running) {
        tree->closing = true;
        if (!atomic_load(&tree->lost))
            say_goodbye(tree, false);
        double until = fsdp_time_now() + LINGER_S;
        while (!drained(tree) && tree_wait(tree, until))
            ;
        if (!atomic_load(&tree->lost))
            say_goodbye(tree, true);
        tree->stop = true;
        ssize_t done = write(tree->wake_fd, &one, sizeof one);
        (void)done;
        pthread_mutex_unlock(&tree->lock);
        pthread_join(tree->thread, NULL);
        pthread_mutex_lock(&tree->lock);
        tree->running = false;
    }
    for (int r = 0; tree->links && r < tree->size; r++)
        boot_link_close(&tree->links[r].io);
    tree->up = -1;
    tree->nodes = &nobody;
    tree->on_words = NULL;
    tree->root_left = true; /* channels that are still open fail at once */
    boot_acceptor_destroy(tree->acceptor);
    tree->acceptor = NULL;
    for (struct tree_chan *c = tree->chans, *next; c; c = next) {
        next = c->next;
        if (c->id == FSDP_HASH_SEED) {
            tree_chan_free(c);
            tree->refs--;
        }
    }
    tree_unref(tree);
}
