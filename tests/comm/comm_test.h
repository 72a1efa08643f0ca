/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the communication tests: a board on which forked ranks leave verdicts, and openings. */
#ifndef COMM_TEST_H
#define COMM_TEST_H

#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fsdp/comm.h"
#include "ranks.h"
#include "tap.h"

enum { MAX_RANKS = 8 };

/* Shared among the ranks of one run and the test. */
struct board {
    atomic_int nchecks, nbad, counter[4];
    atomic_int pid[MAX_RANKS];
    char first_bad[400];
    char text[MAX_RANKS][FSDP_ERR_TEXT_NBYTES];
};

static inline struct board *board_make(void)
{
    struct board *board =
        mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return board == MAP_FAILED ? NULL : board;
}

/* The same in a file, for ranks that are not children of one process. */
static inline struct board *board_map(const char *path)
{
    struct board *board = MAP_FAILED;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    if (fd >= 0 && ftruncate(fd, sizeof *board) == 0)
        board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    return board == MAP_FAILED ? NULL : board;
}

/* A check within a rank; the first failed one is told. */
__attribute__((format(printf, 3, 4))) static inline bool check(struct board *board, bool cond,
                                                               const char *fmt, ...)
{
    atomic_fetch_add(&board->nchecks, 1);
    if (!cond && atomic_fetch_add(&board->nbad, 1) == 0) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(board->first_bad, sizeof board->first_bad, fmt, ap);
        va_end(ap);
    }
    return cond;
}

/* Segments of this process that have a name. */
static inline int named_segments(long pid)
{
    char prefix[48];
    int count = 0;
    DIR *dir = opendir("/dev/shm");

    snprintf(prefix, sizeof prefix, "fsdp-%ld-", pid);
    for (struct dirent *e; dir && (e = readdir(dir));)
        count += !strncmp(e->d_name, prefix, strlen(prefix));
    if (dir)
        closedir(dir);
    return count;
}

/* What a rank works with. */
struct env {
    struct fsdp_oob *oob;
    const struct fsdp_node_map *nodes;
    struct fsdp_device *device;
    struct fsdp_lane *lane;
};

static inline bool env_open(struct env *env, struct fsdp_oob *oob,
                            const struct fsdp_node_map *nodes, bool threaded)
{
    *env = (struct env){.oob = oob, .nodes = nodes};
    return fsdp_device_open(&env->device, "cpu", threaded ? FSDP_DEVICE_THREADED : 0, NULL) == 0 &&
           fsdp_lane_create(&env->lane, env->device, "comm", NULL) == 0;
}

/* A GPU (FSDP_TEST_GPU=1: scripts/check_gpu.sh), or the library that stands in for one. */
static inline bool on_gpu(void)
{
    static int on = -1; /* asked for every element that a test fills */
    const char *asked = on < 0 ? getenv("FSDP_TEST_GPU") : NULL;

    if (on < 0)
        on = asked && *asked == '1';
    return on;
}

static inline bool env_open_cuda(struct env *env, struct fsdp_oob *oob,
                                 const struct fsdp_node_map *nodes)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    char path[4096] = "", id[32];
    const char *bin = getenv("BIN");

    *env = (struct env){.oob = oob, .nodes = nodes};
    snprintf(path, sizeof path, "%s/tests/simt/libfsdp-nccl-sim.so", bin ? bin : "build/bin");
    if (!on_gpu())
        setenv("FSDP_CUDA_LIBRARY", path, 1);
    /* NCCL refuses ranks of one host on one GPU: each is a host of its own. */
    snprintf(id, sizeof id, "test-rank-%d", oob->rank);
    setenv("NCCL_HOSTID", id, 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    setenv("NCCL_MAX_CTAS", "2", 0);
    if (fsdp_device_open(&env->device, "cuda", 0, &err) ||
        fsdp_lane_create(&env->lane, env->device, "comm", &err)) {
        fprintf(stderr, "# %s\n", err.text);
        return false;
    }
    return true;
}

static inline void env_close(struct env *env)
{
    fsdp_lane_destroy(env->lane);
    fsdp_device_close(env->device);
}

static inline struct fsdp_comm_opts comm_opts(const struct env *env, const char *backend,
                                              double timeout_s)
{
    struct fsdp_comm_opts opts = FSDP_COMM_OPTS_INIT;
    opts.backend = backend;
    opts.name = "gather";
    opts.key = env->oob->rank;
    opts.timeout_s = timeout_s;
    opts.nodes = env->nodes;
    return opts;
}

#endif
