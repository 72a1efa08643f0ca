/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bandwidth and latency of the communication backend on this machine: bench_comm [RANKS [NODES
 * [MB]]].
 *
 * GB/s are those of nccl-tests' "algorithm bandwidth": bytes of the whole (gathered, unreduced)
 * buffer per second, the slowest rank counting. Ranks are forked, nodes are emulated.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

struct plan {
    size_t nbytes;
};

enum op { ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, NOPS };
static const char *const op_names[NOPS] = {"all_gather", "reduce_scatter", "all_reduce"};

struct bench {
    struct fsdp_comm *comm;
    struct fsdp_lane *lane;
    struct fsdp_oob *oob;
    int rank, size;
};

static int issue(struct bench *b, enum op op, char *large, char *small, size_t nbytes,
                 struct fsdp_err *err)
{
    size_t nelem = nbytes / 4, part = nelem / (size_t)b->size;

    switch (op) {
    case ALL_GATHER:
        return fsdp_comm_all_gather(b->comm, large, small, part, FSDP_F32, b->lane, err);
    case REDUCE_SCATTER:
        return fsdp_comm_reduce_scatter(b->comm, small, large, part, FSDP_F32, b->lane, err);
    default:
        return fsdp_comm_all_reduce(b->comm, large, large, nelem, FSDP_F32, b->lane, err);
    }
}

/* Seconds per operation of the slowest rank; best of three. */
static double measure(struct bench *b, enum op op, char *large, char *small, size_t nbytes,
                      int rounds)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    double all[64], best = 1e30;

    for (int t = 0; t < 4; t++) {
        fsdp_comm_barrier(b->comm, b->lane, &err);
        double begin = fsdp_time_now(), worst = 0;
        for (int i = 0; i < rounds; i++) {
            if (issue(b, op, large, small, nbytes, &err)) {
                fprintf(stderr, "bench_comm: %s\n", err.text);
                exit(1);
            }
        }
        double mine = (fsdp_time_now() - begin) / rounds;
        if (b->oob->allgather(b->oob, &mine, sizeof mine, all, &err))
            exit(1);
        for (int r = 0; r < b->size; r++)
            worst = all[r] > worst ? all[r] : worst;
        if (t && worst < best)
            best = worst;
    }
    return best;
}

static void report(struct bench *b, const char *memory, char *large, char *small, size_t nbytes)
{
    for (int op = 0; op < NOPS; op++) {
        double s = measure(b, (enum op)op, large, small, nbytes, 5);
        if (b->rank == 0)
            printf("%-15s %-11s %8.1f MB %8.2f ms %7.2f GB/s\n", op_names[op], memory,
                   (double)nbytes * 1e-6, s * 1e3, (double)nbytes / s * 1e-9);
    }
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct bench b = {.oob = oob, .rank = oob->rank, .size = oob->size};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_device *device;
    struct fsdp_comm_opts opts = FSDP_COMM_OPTS_INIT;
    size_t nbytes = plan->nbytes;

    opts.nodes = nodes;
    if (fsdp_device_open(&device, "cpu", 0, &err) ||
        fsdp_lane_create(&b.lane, device, "bench", &err) ||
        fsdp_comm_create(&b.comm, &opts, oob, device, &err)) {
        fprintf(stderr, "bench_comm: %s\n", err.text);
        return 1;
    }
    char *large = malloc(nbytes), *small = malloc(nbytes);
    char *large_reg = fsdp_comm_mem_alloc(b.comm, nbytes, &err);
    char *small_reg = fsdp_comm_mem_alloc(b.comm, nbytes, &err);
    if (!large || !small || !large_reg || !small_reg) {
        fprintf(stderr, "bench_comm: %s\n", err.text);
        return 1;
    }
    memset(large, 0, nbytes);
    memset(small, 0, nbytes);
    memset(large_reg, 0, nbytes);
    memset(small_reg, 0, nbytes);
    report(&b, "registered", large_reg, small_reg, nbytes);
    report(&b, "plain", large, small, nbytes);
    double s = measure(&b, ALL_REDUCE, large, small, 64, 2000);
    if (b.rank == 0)
        printf("%-15s %-11s %8d B  %8.1f us\n", "all_reduce", "plain", 64, s * 1e6);
    free(large);
    free(small);
    fsdp_comm_destroy(b.comm);
    fsdp_lane_destroy(b.lane);
    fsdp_device_close(device);
    return 0;
}

int main(int argc, char **argv)
{
    int nranks = argc > 1 ? atoi(argv[1]) : 2, nnodes = argc > 2 ? atoi(argv[2]) : 1;
    double mbytes = argc > 3 ? atof(argv[3]) : 64;
    struct plan plan = {(size_t)(mbytes * 1e6) / 8192 * 8192};

    if (nranks < 1 || nranks > 64 || nnodes < 1 || nnodes > nranks || mbytes <= 0) {
        fprintf(stderr, "usage: bench_comm [RANKS [NODES [MB]]]\n");
        return 2;
    }
    printf("%d ranks on %d node%s\n", nranks, nnodes, nnodes == 1 ? "" : "s");
    return ranks_run(nranks, nnodes, 300, rank_main, &plan, NULL) ? 1 : 0;
}
