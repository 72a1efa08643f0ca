/* SPDX-License-Identifier: Apache-2.0 */
/* Who is let in, what happens without free descriptors, and answers that are sent again. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../launcher/channel/tree_impl.h"
#include "tap.h"

static struct boot_secret secret;
static struct boot_acceptor *acceptor;
static struct boot_contact at;
static atomic_bool stop;
static atomic_int nsteps;

static void *serve(void *arg)
{
    struct boot_hello *hello = arg;
    int fd;
    while (!atomic_load(&stop)) {
        boot_wait_fd(boot_acceptor_fd(acceptor), POLLIN, fsdp_time_now() + 0.02);
        nsteps++;
        if (boot_acceptor_step(acceptor, &fd, hello))
            close(fd);
    }
    return NULL;
}

static void start(pthread_t *thread, struct boot_hello *hello, int rank)
{
    if (boot_secret_create(&secret, NULL) ||
        boot_acceptor_create(&acceptor, &secret, true, 0, NULL))
        abort();
    boot_acceptor_set_rank(acceptor, rank);
    boot_acceptor_contact(acceptor, &at);
    atomic_store(&stop, false);
    pthread_create(thread, NULL, serve, hello);
}

static void end(pthread_t thread)
{
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    boot_acceptor_destroy(acceptor);
}

static int dial(int to, struct fsdp_err *err)
{
    int fd = -1;
    int rc = boot_dial(&fd, &at, &secret, (struct boot_hello){BOOT_FOR_TREE, 5, to}, "somebody",
                       fsdp_time_now() + 20, err);
    if (rc == FSDP_OK)
        close(fd);
    return rc;
}

static void check_target(void)
{
    struct boot_hello hello = {0};
    struct fsdp_err err = FSDP_ERR_INIT;
    pthread_t thread;

    start(&thread, &hello, 3);
    ok(dial(2, &err) == FSDP_EPEER, "who means another rank is not let in: %s", err.text);
    ok(dial(BOOT_TO_SERVER, &err) == FSDP_EPEER, "nor who means the rendezvous");
    int rc = dial(3, &err);
    end(thread);
    ok(rc == FSDP_OK && hello.rank == 5 && hello.to == 3, "who means this one is");
}

static void check_next_address(void)
{
    struct boot_hello hello = {0};
    struct fsdp_err err = FSDP_ERR_INIT;
    pthread_t thread;

    start(&thread, &hello, 3);
    snprintf(at.addr[0], sizeof at.addr[0], "127.0.0.77"); /* nobody */
    snprintf(at.addr[1], sizeof at.addr[1], "127.0.0.1");
    at.naddrs = 2;
    ok(dial(3, &err) == FSDP_OK, "the next address is tried: %s", err.text);
    end(thread);
}

static void *dial_late(void *arg)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    *(int *)arg = dial(3, &err);
    return NULL;
}

/* The dialler has its socket, the acceptor gets none for a while. */
static void check_no_descriptors(void)
{
    struct boot_hello hello = {0};
    struct rlimit old, none;
    pthread_t thread, dialler;
    int rc = -1, fill[1024], nfill = 0;

    start(&thread, &hello, 3);
    getrlimit(RLIMIT_NOFILE, &old);
    none = (struct rlimit){64, old.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    while (nfill < 1024 && (fill[nfill] = dup(2)) >= 0)
        nfill++;
    bool full = nfill < 1024 && errno == EMFILE;
    close(fill[--nfill]); /* one, for the dialler */
    pthread_create(&dialler, NULL, dial_late, &rc);
    usleep(100000);
    int before = nsteps;
    double began = fsdp_time_now();
    usleep(500000);
    double rate = (nsteps - before) / (fsdp_time_now() - began);
    while (nfill)
        close(fill[--nfill]);
    setrlimit(RLIMIT_NOFILE, &old);
    pthread_join(dialler, NULL);
    end(thread);
    ok(full && rate < 400, "without a free descriptor the acceptor does not spin (%.0f steps/s)",
       rate);
    ok(rc == FSDP_OK, "and lets in who waited, when there is one");
}

/* ---- a refused collective ---- */

static bool refused(struct boot_link *link, const char *text)
{
    struct boot_frame *f;
    int why, got = 0;
    double until = fsdp_time_now() + 10;
    while (fsdp_time_now() < until && (got = boot_link_recv(link, &f, &why)) == 0)
        boot_wait_fd(link->fd, POLLIN, until);
    return got == 1 && f->type == TREE_REFUSE && f->rank == FSDP_EMISMATCH &&
           strstr((const char *)f->data, text);
}

static void check_refused_again(void)
{
    int node_of[3] = {0, 0, 0}, ends[2];
    struct fsdp_node_map nodes = {3, 1, node_of, NULL, FSDP_STARTED_HERE};
    struct tree_link links[3] = {{.bye = false}};
    struct boot_link other;
    bool left[3] = {false};
    struct boot_tree tree = {.size = 3, .up = -1, .nodes = &nodes, .links = links, .left = left};
    struct boot_frame a = {TREE_PIECE, 1, 7, 1, 4, (unsigned char[4]){0}};
    struct boot_frame b = {TREE_PIECE, 2, 7, 1, 8, (unsigned char[8]){0}};

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends))
        abort();
    pthread_mutex_init(&tree.lock, NULL);
    pthread_cond_init(&tree.changed, NULL);
    tree.ep_fd = epoll_create1(0);
    for (int r = 0; r < 3; r++)
        boot_link_init(&links[r].io, r == 1 ? ends[0] : -1);
    boot_link_init(&other, ends[1]);
    root_piece(&tree, &a);
    root_piece(&tree, &b);
    ok(refused(&other, "rank 2 gives 8"), "different sizes are refused");
    root_piece(&tree, &a);
    ok(refused(&other, "rank 2 gives 8"), "and again, when the piece comes again");
    root_free_ops(&tree);
    boot_link_close(&links[1].io);
    boot_link_close(&other);
    close(tree.ep_fd);
}

int main(void)
{
    check_target();
    check_next_address();
    check_no_descriptors();
    check_refused_again();
    return tap_done();
}
