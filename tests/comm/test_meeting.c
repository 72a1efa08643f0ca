/* SPDX-License-Identifier: Apache-2.0 */
/* Making connections: a crowd of strangers behind a peer does not cost it its place, and an address
 * where somebody listens but never answers is left for the next one. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "comm_test.h"

enum { CROWD = 100, RUN_S = 60 };

static struct board *board;
static bool crowded, deaf; /* this rank's listener gets a crowd; its first dial meets silence */
static int ndials, stranger[CROWD];

static int loopback_connect(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = (in_port_t)port,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    return syscall(SYS_connect, fd, &to, sizeof to) ? -1 : fd;
}

/* Stand in for the C library's. The crowd comes when the peer waits at the door. */
int accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
    union {
        struct sockaddr sa;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
    } me;
    socklen_t me_len = sizeof me;
    struct pollfd wait = {fd, POLLIN, 0};

    if (crowded && poll(&wait, 1, RUN_S * 1000) == 1 && !getsockname(fd, &me.sa, &me_len)) {
        crowded = false;
        for (int i = 0; i < CROWD; i++)
            stranger[i] =
                loopback_connect(me.sa.sa_family == AF_INET6 ? me.in6.sin6_port : me.in.sin_port);
    }
    return (int)syscall(SYS_accept4, fd, addr, len, flags);
}

int connect(int fd, const struct sockaddr *addr, socklen_t len)
{
    struct sockaddr_in silent = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t silent_len = sizeof silent;

    if (ndials++ || !deaf)
        return (int)syscall(SYS_connect, fd, addr, len);
    int door = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(door, (struct sockaddr *)&silent, sizeof silent) || listen(door, 1) ||
        getsockname(door, (struct sockaddr *)&silent, &silent_len))
        return -1;
    return (int)syscall(SYS_connect, fd, &silent, sizeof silent);
}

static int meeting_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;
    bool silence = *(const bool *)arg;
    int ones = 1, sum = 0;

    crowded = !silence && oob->rank == 0;
    deaf = silence && oob->rank == 1;
    if (!env_open(&env, oob, nodes, false))
        return 1;
    struct fsdp_comm_opts opts = comm_opts(&env, "host", RUN_S);
    if (!check(board, fsdp_comm_create(&comm, &opts, oob, env.device, &err) == FSDP_OK, "%s",
               err.text))
        return 1;
    if (oob->rank == 0)
        check(board, !crowded && (silence || stranger[CROWD - 1] > 0), "there was no crowd");
    else
        check(board, ndials == (silence ? 2 : 1), "%d dials", ndials);
    int rc = fsdp_comm_all_reduce(comm, &sum, &ones, 1, FSDP_I32, env.lane, &err);
    check(board, rc == FSDP_OK && sum == 2, "sum %d: %s", sum, err.text);
    fsdp_comm_destroy(comm);
    env_close(&env);
    return 0;
}

static void test(bool silence, const char *what)
{
    board = board_make();
    int bad = ranks_run(2, 2, RUN_S, meeting_main, &silence, NULL);
    ok(bad == 0 && atomic_load(&board->nbad) == 0 && atomic_load(&board->nchecks) == 6,
       "%s: %d checks, %d bad%s%s", what, atomic_load(&board->nchecks), atomic_load(&board->nbad),
       board->first_bad[0] ? ": " : "", board->first_bad);
    munmap(board, sizeof *board);
}

int main(void)
{
    test(false, "a crowd of strangers behind a peer");
    test(true, "an address that never answers");
    return tap_done();
}
