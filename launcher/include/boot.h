/* SPDX-License-Identifier: Apache-2.0 */
/*
 * boot.h: how a rank learns who it is and meets the others.
 *
 * boot_open tries methods in order; each says why it does not apply:
 *   pmix    a PMIx server is there (srun --mpi=pmix, mpirun, prterun)
 *   slurm   a task of a Slurm step (srun --mpi=none or pmi2)
 *   local   fsdp-launch on this machine started the rank and serves the rendezvous
 *   single  nothing says that there are more ranks
 *
 * A method only introduces: rank, size, node and a put/get/fence of small values. The control
 * channel behind the fsdp_oob is this library's own tree of TCP connections (node leaders, then
 * their ranks), authenticated by the job's secret. It stays open for the life of the job and
 * notices a dead peer by hang-up; a rank's last words travel over it.
 *
 * Environment: BOOT_METHODS replaces the order; BOOT_INTERFACE chooses network interfaces by the
 * beginning of their name. The slurm method also heeds BOOT_KEY_FILE (the user's key, by default
 * ~/.config/fsdp/key, made at first use) and BOOT_PORT (the first of the ports that rank 0 may
 * serve the rendezvous on).
 */
#ifndef BOOT_H
#define BOOT_H

#include "fsdp/base.h"
#include "fsdp/comm.h"

struct boot;

typedef void boot_trace_f(void *ctx, const char *method, const char *text);

struct boot_opts {
    uint32_t version;
    const char
        *methods;     /* comma-separated order, NULL: BOOT_METHODS or "pmix,slurm,local,single" */
    double timeout_s; /* for the whole bootstrap */
    double wait_s;    /* deadline of every later wait on the channel */
    boot_trace_f *trace; /* (optional) one line per method tried */
    void *trace_ctx;
    bool keep;    /* the method's connection stays until boot_close: MPI will share it */
    bool count;   /* fill boot_info.cost; rank 0's counts */
    bool reorder; /* number the ranks of each node consecutively, however they were started; rank
                   * 0's counts
                   */
};
#define BOOT_OPTS_VERSION 1
#define BOOT_OPTS_INIT                                                                             \
    {                                                                                              \
        .version = BOOT_OPTS_VERSION, .timeout_s = 60, .wait_s = 600                               \
    }

struct boot_info {
    int rank, size;
    int local_rank, local_size; /* within the node */
    int node, nnodes;
    char host[FSDP_HOST_NBYTES];
    char method[16];
    char job[64]; /* unique name of the job on its machines: part of segment names */
    struct {
        double seconds;      /* that boot_open took on this rank */
        uint64_t root, most; /* messages that rank 0, and the busiest other rank, have sent and
                                received by then: handshakes, rendezvous, tree */
        int ncalls;          /* of the method by this rank: put, fence, get */
    } cost;                  /* boot_opts.count; else zeros */
};

/* Meets all ranks. Collective, blocks; FSDP_ETIMEDOUT names the ranks that did not come. */
int boot_open(struct boot **out, const struct boot_opts *opts, struct fsdp_err *err);
/* A clean goodbye: the others do not take it for a death. Collective in effect, not blocking. */
void boot_close(struct boot *boot);

const struct boot_info *boot_info(const struct boot *boot);
/* Node index and host of every rank; lives as long as boot. */
const struct fsdp_node_map *boot_nodes(const struct boot *boot);
/* The job's channel; lives as long as boot, closed by boot_close. */
struct fsdp_oob *boot_oob(struct boot *boot);

#endif
