/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators whose making goes wrong: bad or differing options, no memory, no sockets, somebody
 * at the door who is no rank. All ranks fail alike and are told why, and nothing is left behind.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "../../libfsdp/comm/backends.h"
#include "faults.h"

/* Ranks whose options are bad or differ: all fail alike, and the channel stays in step. */
static int refused_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_node_map short_map = *nodes;
    bool odd = oob->rank == VICTIM;

    short_map.nranks--;
    if (!env_open(&env, oob, nodes, false))
        return 1;
    for (int k = 0; k < 7; k++) {
        struct fsdp_comm_opts opts = comm_opts(&env, "host", 10);
        int expected = FSDP_EINVAL;
        switch (k) {
        case 0:
            opts.backend = odd ? "carrier-pigeon" : "host";
            break;
        case 1:
            opts.timeout_s = odd ? 0 : 10;
            break;
        case 2:
            opts.color = odd ? -1 : 0;
            break;
        case 3:
            opts.version = odd ? 99 : FSDP_COMM_OPTS_VERSION;
            break;
        case 4:
            opts.nodes = odd ? &short_map : nodes;
            break;
        case 5:
            opts.backend = odd ? "auto" : "host";
            expected = FSDP_EMISMATCH;
            break;
        default:
            opts.backend = "self";
            expected = FSDP_EUNSUPPORTED;
        }
        int rc = fsdp_comm_create(&comm, &opts, oob, env.device, k % 2 ? NULL : &err);
        check(plan->board, rc == expected, "rank %d, case %d: status %d: %s", oob->rank, k, rc,
              err.text);
        if (k == 0)
            check(plan->board,
                  strstr(err.text, "carrier-pigeon") &&
                      strstr(err.text, "known: auto, self, host") &&
                      (odd || strstr(err.text, "rank 1: ")),
                  "rank %d: %s", oob->rank, err.text);
        if (k == 6)
            check(plan->board, strstr(err.text, "groups of one rank"), "%s", err.text);
    }
    struct fsdp_comm_opts opts = comm_opts(&env, "auto", 10);
    check(plan->board,
          fsdp_comm_create(&comm, &opts, oob, env.device, &err) == FSDP_OK &&
              fsdp_comm_barrier(comm, env.lane, &err) == FSDP_OK,
          "afterwards: %s", err.text);
    check(plan->board, !strcmp(fsdp_comm_backend(comm), "host"), "auto chose %s",
          fsdp_comm_backend(comm));
    finish(&env, comm);
    return 0;
}

/* Groups of unequal sizes, in reverse order, one of them alone. */
static int split_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    static const int color[] = {7, 3, 7, 5, 7, 3}, size[] = {3, 2, 3, 1, 3, 2};
    static const int rank_of[] = {2, 1, 1, 0, 0, 0};
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    int me = oob->rank, seen[6];

    if (!env_open(&env, oob, nodes, false))
        return 1;
    struct fsdp_comm_opts opts = comm_opts(&env, "auto", 60);
    opts.color = color[me];
    opts.key = -me;
    if (!check(plan->board, fsdp_comm_create(&comm, &opts, oob, env.device, &err) == FSDP_OK, "%s",
               err.text))
        return 1;
    check(plan->board, fsdp_comm_size(comm) == size[me] && fsdp_comm_rank(comm) == rank_of[me],
          "world rank %d is %d of %d", me, fsdp_comm_rank(comm), fsdp_comm_size(comm));
    check(plan->board, !strcmp(fsdp_comm_backend(comm), size[me] == 1 ? "self" : "host"),
          "backend %s", fsdp_comm_backend(comm));
    check(plan->board,
          fsdp_comm_all_gather(comm, seen, &me, 1, FSDP_I32, env.lane, &err) == FSDP_OK, "%s",
          err.text);
    for (int p = 0; p < size[me]; p++)
        check(plan->board, color[seen[p]] == color[me] && rank_of[seen[p]] == p,
              "group rank %d is world rank %d", p, seen[p]);
    check(plan->board, fsdp_comm_barrier(comm, env.lane, &err) == FSDP_OK, "%s", err.text);
    finish(&env, comm);
    return 0;
}

/* Too much registered memory is an error on all ranks of the node; the communicator continues. */
static int greedy_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (!begin(&env, &comm, plan, oob, nodes, FOREVER_S))
        return 1;
    check(plan->board, !fsdp_comm_mem_alloc(comm, (size_t)1 << 44, &err), "16 TiB were given");
    check(plan->board, err.status == FSDP_ENOSPC && strstr(err.text, "/dev/shm"), "status %d: %s",
          err.status, err.text);
    void *mem = fsdp_comm_mem_alloc(comm, oob->rank ? 1 << 20 : 8192, &err);
    check(plan->board, !mem && err.status == FSDP_EMISMATCH, "different sizes: status %d: %s",
          err.status, err.text);
    mem =
        oob->rank ? fsdp_comm_mem_alloc(comm, 8192, &err) : fsdp_comm_mem_common(comm, 8192, &err);
    check(plan->board, !mem && err.status == FSDP_EMISMATCH && strstr(err.text, "mem_common"),
          "different kinds: status %d: %s", err.status, err.text);
    check(plan->board, fsdp_comm_barrier(comm, env.lane, &err) == FSDP_OK, "afterwards: %s",
          err.text);
    mem = fsdp_comm_mem_alloc(comm, 8192, &err);
    check(plan->board, mem != NULL, "afterwards: %s", err.text);
    snprintf(plan->board->text[oob->rank], FSDP_ERR_TEXT_NBYTES, "%s", err.text);
    finish(&env, comm); /* takes mem along */
    return 0;
}

/* A rank gathers in another place of the memory in common, or outside of it: all are told. */
static int astray_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    const size_t part_nbytes = 4096, nbytes = part_nbytes * (size_t)oob->size;

    for (int outside = 0; outside < 2; outside++)
        for (size_t gathered = 8; gathered <= part_nbytes; gathered *= part_nbytes / 8) {
            struct env env;
            struct fsdp_comm *comm;
            struct fsdp_err err = FSDP_ERR_INIT;
            if (!begin(&env, &comm, plan, oob, nodes, FOREVER_S))
                return 1;
            char *all = fsdp_comm_mem_common(comm, 2 * nbytes, &err), *own = malloc(nbytes);
            if (!check(plan->board, all && own, "mem_common: %s", err.text))
                return 1;
            char *place = oob->rank != VICTIM ? all : outside ? own : all + part_nbytes;
            int rc = fsdp_comm_all_gather(comm, place, place + (size_t)oob->rank * gathered,
                                          gathered, FSDP_U8, env.lane, &err);
            if (rc == FSDP_OK)
                rc = fsdp_lane_sync(env.lane, &err);
            if (rc == FSDP_OK)
                rc = fsdp_comm_status(comm, &err);
            check(plan->board, rc == FSDP_EMISMATCH && strstr(err.text, "memory in common"),
                  "rank %d, %zu bytes, outside %d: status %d: %s", oob->rank, gathered, outside, rc,
                  err.text);
            finish(&env, comm);
            free(own);
        }
    return 0;
}

/* ---- a stranger at the door ----------------------------------------------------------------- */

static int stranger_fd[64], nstrangers;

/* Called by the rank while it listens: finds its listening socket and greets it wrongly. */
static int intruding_health(struct fsdp_oob *oob, struct fsdp_err *err)
{
    struct {
        uint32_t magic;
        int32_t peer, attempt;
        uint8_t token[16];
    } hello = {0x66736470, oob->rank + 1, 0, {0}};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    (void)err;
    for (int fd = 3; fd < 256 && nstrangers < 64; fd++) {
        struct sockaddr_storage sa;
        int listens = 0;
        socklen_t len = sizeof listens, sa_len = sizeof sa;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) || !listens ||
            getsockname(fd, (struct sockaddr *)&sa, &sa_len))
            continue;
        to.sin_port = sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&sa)->sin6_port
                                               : ((struct sockaddr_in *)(void *)&sa)->sin_port;
        int s = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(s, (struct sockaddr *)&to, sizeof to) == 0 &&
            (nstrangers % 2 || write(s, &hello, sizeof hello) == sizeof hello)) /* or silent */
            stranger_fd[nstrangers++] = s;
        else
            close(s);
    }
    return FSDP_OK;
}

static int stranger_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;
    int (*healthy)(struct fsdp_oob *, struct fsdp_err *) = oob->health;

    if (!env_open(&env, oob, nodes, false))
        return 1;
    struct fsdp_comm_opts opts = comm_opts(&env, "host", FOREVER_S);
    oob->health = intruding_health;
    int rc = fsdp_comm_create(&comm, &opts, oob, env.device, &err);
    oob->health = healthy;
    if (!check(plan->board, rc == FSDP_OK, "create: %s", err.text))
        return 1;
    if (oob->rank < oob->size - 1)
        check(plan->board, nstrangers > 0, "rank %d saw no stranger", oob->rank);
    int ones = 1, sum = 0;
    rc = fsdp_comm_all_reduce(comm, &sum, &ones, 1, FSDP_I32, env.lane, &err);
    check(plan->board, rc == FSDP_OK && sum == oob->size, "sum %d: %s", sum, err.text);
    for (int i = 0; i < nstrangers; i++) {
        char byte;
        struct pollfd hangup = {stranger_fd[i], POLLIN, 0};
        check(plan->board, poll(&hangup, 1, 10000) == 1 && read(stranger_fd[i], &byte, 1) <= 0,
              "a stranger was answered");
        close(stranger_fd[i]);
    }
    finish(&env, comm);
    return 0;
}

/* A rank that cannot connect: the error of all is its cause, not that others waited for it. The
 * rank loses the right to open files when the ranks go from their segments to their connections. */
static int (*true_allgather)(struct fsdp_oob *, const void *, size_t, void *, struct fsdp_err *);
static struct rlimit file_limit;
static int nallgathers;

static int limiting_allgather(struct fsdp_oob *oob, const void *in, size_t nbytes, void *out,
                              struct fsdp_err *err)
{
    enum { SEGMENTS_AGREED = 4 };
    int rc = true_allgather(oob, in, nbytes, out, err);

    if (++nallgathers == SEGMENTS_AGREED)
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, file_limit.rlim_max});
    return rc;
}

static int unreachable_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (!env_open(&env, oob, nodes, false))
        return 1;
    getrlimit(RLIMIT_NOFILE, &file_limit);
    true_allgather = oob->allgather;
    if (oob->rank == VICTIM)
        oob->allgather = limiting_allgather;
    struct fsdp_comm_opts opts = comm_opts(&env, "host", 3);
    int rc = fsdp_comm_create(&comm, &opts, oob, env.device, &err);
    setrlimit(RLIMIT_NOFILE, &file_limit);
    check(plan->board,
          rc == FSDP_EIO && names(err.text, 0) && strstr(err.text, "Too many open files"),
          "rank %d: status %d: %s", oob->rank, rc, err.text);
    snprintf(plan->board->text[oob->rank], FSDP_ERR_TEXT_NBYTES, "%s", err.text);
    env_close(&env);
    return 0;
}

/* Every allocation of create fails once, on all ranks alike; then it works. */
static int alloc_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    int rc = FSDP_ENOMEM, nth = 0;

    if (!env_open(&env, oob, nodes, false))
        return 1;
    while (rc == FSDP_ENOMEM && nth < 100) {
        struct fsdp_comm_opts opts = comm_opts(&env, "host", 60);
        fsdp_alloc_fail_at((uint64_t)++nth);
        rc = fsdp_comm_create(&comm, &opts, oob, env.device, &err);
        fsdp_alloc_fail_at(0);
        check(plan->board, rc == FSDP_OK || (rc == FSDP_ENOMEM && strstr(err.text, "memory")),
              "allocation %d: status %d: %s", nth, rc, err.text);
        check(plan->board, named_segments(getpid()) == 0, "allocation %d: a segment is left", nth);
    }
    check(plan->board, rc == FSDP_OK && nth > 8, "%d allocations failed, then %s", nth - 1,
          err.text);
    if (rc == FSDP_OK)
        check(plan->board, fsdp_comm_barrier(comm, env.lane, &err) == FSDP_OK, "%s", err.text);
    if (rc == FSDP_OK)
        finish(&env, comm);
    return 0;
}

static void test_words(void)
{
    char words[200] = "auto";

    for (int i = 0; i < comm_backends_count(); i++)
        snprintf(words + strlen(words), sizeof words - strlen(words), "|%s", comm_backends[i].name);
    ok(!strcmp(words, fsdp_comm_backend_words), "the configuration knows all backends: %s", words);
}

int main(void)
{
    test_words();
    test_simple(refused_main, 3, 1, false, "refused options");
    test_simple(split_main, 6, 2, false, "split");
    test_simple(greedy_main, 2, 1, false, "too much memory");
    test_simple(astray_main, 3, 1, false, "different places");
    test_simple(unreachable_main, 2, 2, false, "no sockets");
    test_simple(alloc_main, 1, 1, false, "allocations");
    test_simple(alloc_main, 4, 2, false, "allocations");
    test_simple(stranger_main, 3, 3, false, "strangers");
    return tap_done();
}
