/* SPDX-License-Identifier: Apache-2.0 */
/* The rank that makes registered memory is killed while it has a name: the others remove it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>

#include "comm_test.h"

enum { RUN_S = 60, NRANKS = 3 };
enum place { CREATING = 1, RESERVING }; /* where the maker dies */

static struct board *board;
static enum place dies;

/* These stand in for the C library's, and look at what the name's maker does. */
static void at(enum place place)
{
    if (dies == place) {
        atomic_store(&board->counter[0], named_segments(getpid()));
        raise(SIGKILL);
    }
}

int ftruncate(int fd, off_t nbytes)
{
    at(CREATING);
    return (int)syscall(SYS_ftruncate, fd, nbytes);
}

int posix_fallocate(int fd, off_t offset, off_t nbytes)
{
    at(RESERVING);
    return syscall(SYS_fallocate, fd, 0, offset, nbytes) ? errno : 0;
}

static int leak_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;

    atomic_store(&board->pid[oob->rank], (int)getpid());
    if (!env_open(&env, oob, nodes, false))
        return 1;
    struct fsdp_comm_opts opts = comm_opts(&env, "host", RUN_S);
    if (!check(board, fsdp_comm_create(&comm, &opts, oob, env.device, &err) == FSDP_OK, "%s",
               err.text))
        return 1;
    check(board, fsdp_comm_mem_alloc(comm, 5000, &err) != NULL, "at first: %s", err.text);
    check(board, named_segments(getpid()) == 0, "a name stays after success");
    if (oob->rank == 0)
        dies = *(const enum place *)arg;
    void *mem = fsdp_comm_mem_alloc(comm, 1 << 20, &err);
    check(board, !mem && err.status == FSDP_EPEER, "rank %d: status %d: %s", oob->rank, err.status,
          err.text);
    check(board, named_segments(atomic_load(&board->pid[0])) == 0,
          "rank %d: the dead rank's memory is still there", oob->rank);
    fsdp_comm_destroy(comm);
    env_close(&env);
    return 0;
}

static void test(enum place place, const char *what)
{
    board = board_make();
    int bad = ranks_run(NRANKS, 1, RUN_S, leak_main, &place, NULL);
    int pid = atomic_load(&board->pid[0]);
    ok(bad == 1 && atomic_load(&board->counter[0]) == 1 && atomic_load(&board->nbad) == 0 &&
           named_segments(pid) == 0,
       "killed while %s the memory: %d bad%s%s", what, atomic_load(&board->nbad),
       board->first_bad[0] ? ": " : "", board->first_bad);
    munmap(board, sizeof *board);
}

int main(void)
{
    test(CREATING, "creating");
    test(RESERVING, "reserving");
    return tap_done();
}
