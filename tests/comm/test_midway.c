/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failures and frames amid an operation of several rounds over TCP: last words must not be taken
 * for data, nor data for last words. Two nodes of two ranks reduce a vector whose last window is
 * 400 elements; this program's sendmsg holds one rank at a known place of that window.
 */
#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

#include "comm_test.h"
#include "why.h"

/* A window is 512 KiB; the parts of the last one have 448, 448, 448 and 256 bytes. */
enum {
    WINDOW = 131072,
    LAST = 400,
    NELEM = WINDOW + LAST,
    PART = 448,
    LAST_PART = 256,
    RUN_S = 60
};

enum { COME, ABORTED }; /* counters of the board */

static struct board *board;
static void (*hold)(void);
static size_t held_nbytes;
static int nheld;

static void nap(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, (ms % 1000) * 1000000L}, NULL);
}

/* Stands in for the C library's: after the nheld-th message of held_nbytes it calls hold. */
ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
    ssize_t got = syscall(SYS_sendmsg, fd, msg, flags);
    size_t nbytes = 0;

    for (size_t i = 0; i < msg->msg_iovlen; i++)
        nbytes += msg->msg_iov[i].iov_len;
    if (hold && got == (ssize_t)nbytes && nbytes == held_nbytes && --nheld == 0)
        hold();
    return got;
}

static void await(int counter)
{
    for (int i = 0; i < 24000 && !atomic_load(&board->counter[counter]); i++)
        nap(5);
}

/* ---- data that looks like a failure --------------------------------------------------------- */

/* Its peers continue to the window's sums while its neighbour awaits it at a barrier. */
static void late(void)
{
    nap(400);
}

static int lookalike_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    static int x[NELEM];
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;
    int wrong = 0;

    (void)arg;
    if (!env_open(&env, oob, nodes, false))
        return 1;
    struct fsdp_comm_opts opts = comm_opts(&env, "host", RUN_S);
    if (!check(board, fsdp_comm_create(&comm, &opts, oob, env.device, &err) == FSDP_OK, "%s",
               err.text))
        return 1;
    for (int i = 0; i < NELEM; i++)
        x[i] = oob->rank ? 2 : 1; /* 7 in all, the number of a failure's frame */
    if (oob->rank == 1) {
        held_nbytes = LAST_PART;
        nheld = 1;
        hold = late;
    }
    int rc = fsdp_comm_all_reduce(comm, x, x, NELEM, FSDP_I32, env.lane, &err);
    check(board, rc == FSDP_OK, "rank %d: %s", oob->rank, err.text);
    for (int i = 0; i < NELEM; i++)
        wrong += x[i] != 7;
    check(board, wrong == 0, "rank %d: %d wrong elements", oob->rank, wrong);
    if (oob->rank == 1)
        check(board, nheld == 0, "the rank was not held");
    fsdp_comm_destroy(comm);
    env_close(&env);
    return 0;
}

/* ---- a failure that looks like data --------------------------------------------------------- */

static void until_aborted(void)
{
    nap(200); /* its neighbour comes to the barrier */
    atomic_store(&board->counter[COME], 1);
    await(ABORTED);
    nap(200);
}

static int words_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    static float x[NELEM];
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;
    int wrong = 0;

    (void)arg;
    if (!env_open(&env, oob, nodes, true))
        return 1;
    struct fsdp_comm_opts opts = comm_opts(&env, "host", RUN_S);
    if (!check(board, fsdp_comm_create(&comm, &opts, oob, env.device, &err) == FSDP_OK, "%s",
               err.text))
        return 1;
    for (int i = 0; i < NELEM; i++)
        x[i] = 1;
    if (oob->rank == 3) {
        held_nbytes = PART;
        nheld = 2; /* both of the other node have its contribution */
        hold = until_aborted;
    }
    int rc = fsdp_comm_all_reduce(comm, x, x, NELEM, FSDP_F32, env.lane, &err);
    if (oob->rank == 2) {
        await(COME);
        fsdp_comm_abort(comm, why("the test says so"));
        atomic_store(&board->counter[ABORTED], 1);
    }
    if (rc == FSDP_OK)
        rc = fsdp_lane_sync(env.lane, &err);
    for (int i = 0; i < NELEM; i++)
        wrong += x[i] != 4;
    check(board, rc != FSDP_OK || !wrong, "rank %d: success with %d wrong elements", oob->rank,
          wrong);
    check(board, oob->rank != 2 || rc == FSDP_ECANCELED, "rank 2: status %d: %s", rc, err.text);
    check(board, oob->rank > 1 || rc == FSDP_EPEER || rc == FSDP_ECANCELED,
          "rank %d: status %d: %s", oob->rank, rc, err.text);
    fsdp_comm_destroy(comm);
    env_close(&env);
    return 0;
}

static void test(rank_main_f *fn, const char *what)
{
    board = board_make();
    int bad = ranks_run(4, 2, RUN_S, fn, NULL, NULL);
    ok(bad == 0 && atomic_load(&board->nbad) == 0 && atomic_load(&board->nchecks) >= 8,
       "%s: %d checks, %d bad%s%s", what, atomic_load(&board->nchecks), atomic_load(&board->nbad),
       board->first_bad[0] ? ": " : "", board->first_bad);
    munmap(board, sizeof *board);
}

int main(void)
{
    test(lookalike_main, "data is not taken for a failure");
    test(words_main, "last words are not taken for data");
    return tap_done();
}
