/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.h: a program's own ranks. Links with libfsdp-launch (pkg-config fsdp-launch).
 *
 * A program that is started as several processes, by `fsdp-launch -n N`, `srun` or `mpirun`, opens
 * a launch in each of them. It learns its rank and meets the others; nodes and channel are what
 * fsdp_mesh_create asks for:
 *
 *     struct fsdp_launch *launch = NULL;
 *     int code = 0, rc = fsdp_launch_open(&launch, NULL, &err);
 *     if (rc == FSDP_OK)
 *         rc = work(fsdp_launch_nodes(launch), fsdp_launch_oob(launch), &err);
 *     if (rc)
 *         code = fsdp_launch_fail(launch, &err);
 *     ...                                              destroy engine and mesh
 *     fsdp_launch_close(launch);
 *     return code;
 *
 * A process that nobody started as one of several is rank 0 of 1. PMIx is opened at run time, where
 * the environment names a PMIx server; linking does not need it.
 *
 * Functions return FSDP_OK or a negative status of enum fsdp_status with a text in err. A launch is
 * used by one thread at a time, except where a function says otherwise.
 */
#ifndef FSDP_LAUNCH_H
#define FSDP_LAUNCH_H

#include <fsdp/base.h>
#include <fsdp/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Exit codes of a rank, which fsdp-launch and its --requeue understand. */
enum fsdp_launch_code {
    FSDP_LAUNCH_DONE = 0,
    FSDP_LAUNCH_FAILED = 1,    /* a requeued job would fail again */
    FSDP_LAUNCH_USAGE = 2,     /* a bad command line, configuration or environment */
    FSDP_LAUNCH_REQUEUE = 75,  /* stopped on request with its state saved: requeue the job */
    FSDP_LAUNCH_PEER_LOST = 76 /* another rank failed or died: a requeued job may succeed */
};

/* One rank's place in its job. */
struct fsdp_launch;

struct fsdp_launch_opts {
    uint32_t version;
    /* (optional) How to find the other ranks: a comma-separated list of pmix, slurm, local and
     * single, tried in this order. NULL: BOOT_METHODS of the environment, or all four. */
    const char *methods;
    double timeout_s; /* within which all ranks must have come, in seconds */
    double wait_s;    /* of each later wait on the channel, in seconds */
    /* Let SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 request a stop (fsdp_launch_stop_requested) instead
     * of ending the process. A second SIGINT or SIGTERM ends a rank that no launcher watches. */
    bool signals;
};
#define FSDP_LAUNCH_OPTS_VERSION 1
#define FSDP_LAUNCH_OPTS_INIT                                                                      \
    {                                                                                              \
        FSDP_LAUNCH_OPTS_VERSION, NULL, 60, 600, false                                             \
    }

struct fsdp_launch_info {
    int rank, size;             /* 0 <= rank < size */
    int local_rank, local_size; /* within the node */
    int node, nnodes;
    const char *host;   /* this node's name, as errors name it */
    const char *method; /* that found the other ranks: pmix, slurm, local or single */
    const char *job;    /* a name of the job, unique on its machines */
};

/* Meets the other ranks. Collective, blocks. *out is NULL after a failure, else closed by the
 * caller. opts NULL: FSDP_LAUNCH_OPTS_INIT. FSDP_ETIMEDOUT and FSDP_EPEER name the ranks that did
 * not come; FSDP_EINVAL: no method applies, and why. */
int fsdp_launch_open(struct fsdp_launch **out, const struct fsdp_launch_opts *opts,
                     struct fsdp_err *err);

/* Owned by the launch. */
const struct fsdp_launch_info *fsdp_launch_info(const struct fsdp_launch *launch);
/* The node and host of each rank. Owned by the launch. */
const struct fsdp_node_map *fsdp_launch_nodes(const struct fsdp_launch *launch);
/* The job's control channel: barriers, small values, news of dead ranks. Owned by the launch, which
 * closes it. */
struct fsdp_oob *fsdp_launch_oob(struct fsdp_launch *launch);

/* *gpu = which of the ngpus GPUs that this process sees is this rank's, as fsdp_device_open numbers
 * them: neighbours by NVLink go to neighbouring ranks, as fsdp-launch gives them. FSDP_EINVAL: the
 * node has more ranks than GPUs. Local. */
int fsdp_launch_gpu(const struct fsdp_launch *launch, int ngpus, int *gpu, struct fsdp_err *err);

/* Has a signal requested a stop? For opts.signals. Any thread. Ranks may see it at different steps:
 * agree on it, for instance in a sum of fsdp_step_args.control. */
bool fsdp_launch_stop_requested(const struct fsdp_launch *launch);

/* This rank gives up because of err. Tells the others, so that they end too, and prints the error
 * on stderr: a local error with rank and host, the loss of a rank once for the job. Returns the
 * exit code. Call it before what waits for other ranks is destroyed. launch may be NULL, after a
 * failure of fsdp_launch_open. */
int fsdp_launch_fail(struct fsdp_launch *launch, const struct fsdp_err *err);

/* Leaves the job; the others do not take it for a death. After engine and mesh are destroyed. NULL
 * is allowed. */
void fsdp_launch_close(struct fsdp_launch *launch);

#ifdef __cplusplus
}
#endif

#endif
