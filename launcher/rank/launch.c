/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp/launch.h: a program's own ranks, by the bootstrap that fsdp-launch uses. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fsdp/launch.h"
#include "gpu.h"
#include "rank.h"

struct fsdp_launch {
    struct boot *boot;
    struct fsdp_launch_info info;
    struct rank_watchdog *dog; /* NULL where fsdp-launch watches, or there is one rank */
};

static int check_opts(const struct fsdp_launch_opts *opts, struct fsdp_err *err)
{
    if (opts->version == FSDP_LAUNCH_OPTS_VERSION)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL, "fsdp_launch_open: options of version %u, expected %d",
                        opts->version, FSDP_LAUNCH_OPTS_VERSION);
}

static void fill_info(struct fsdp_launch_info *out, const struct boot_info *in)
{
    *out = (struct fsdp_launch_info){.rank = in->rank,
                                     .size = in->size,
                                     .local_rank = in->local_rank,
                                     .local_size = in->local_size,
                                     .node = in->node,
                                     .nnodes = in->nnodes,
                                     .host = in->host,
                                     .method = in->method,
                                     .job = in->job};
}

int fsdp_launch_open(struct fsdp_launch **out, const struct fsdp_launch_opts *opts,
                     struct fsdp_err *err)
{
    static const struct fsdp_launch_opts defaults = FSDP_LAUNCH_OPTS_INIT;
    struct boot_opts boot = BOOT_OPTS_INIT;
    struct fsdp_launch *launch;

    *out = NULL;
    opts = opts ? opts : &defaults;
    FSDP_TRY(check_opts(opts, err));
    if (!(launch = fsdp_alloc(1, sizeof *launch, "launch", err)))
        return FSDP_ENOMEM;
    boot.methods = opts->methods;
    boot.timeout_s = opts->timeout_s;
    boot.wait_s = opts->wait_s;
    int rc = boot_open(&launch->boot, &boot, err);
    if (rc) {
        fsdp_free(launch);
        return rc;
    }
    fill_info(&launch->info, boot_info(launch->boot));
    signal(SIGPIPE, SIG_IGN); /* a peer that is gone is an error of a call */
    if (opts->signals)
        rank_stop_install(launch->info.size == 1 && !rank_is_watched());
    if (launch->info.size > 1 && !rank_is_watched())
        launch->dog =
            rank_watchdog_start(boot_oob(launch->boot), program_invocation_short_name, true);
    *out = launch;
    return FSDP_OK;
}

const struct fsdp_launch_info *fsdp_launch_info(const struct fsdp_launch *launch)
{
    return &launch->info;
}

const struct fsdp_node_map *fsdp_launch_nodes(const struct fsdp_launch *launch)
{
    return boot_nodes(launch->boot);
}

struct fsdp_oob *fsdp_launch_oob(struct fsdp_launch *launch)
{
    return boot_oob(launch->boot);
}

int fsdp_launch_gpu(const struct fsdp_launch *launch, int ngpus, int *gpu, struct fsdp_err *err)
{
    enum { MAX_GPUS = 64 };
    int order[MAX_GPUS];
    const char *text;

    bool known = gpu_order_read(order, MAX_GPUS, ngpus, &text);
    return gpu_assign(gpu, boot_info(launch->boot), ngpus, gpu_ranks_per_gpu(),
                      known ? order : NULL, err);
}

bool fsdp_launch_stop_requested(const struct fsdp_launch *launch)
{
    (void)launch;
    return rank_stop_requested();
}

static int code_of(const struct fsdp_launch *launch, int status)
{
    if (status == FSDP_EPEER || status == FSDP_ECANCELED)
        return FSDP_LAUNCH_PEER_LOST;
    if (launch)
        return FSDP_LAUNCH_FAILED;
    return status == FSDP_ETIMEDOUT ? FSDP_LAUNCH_PEER_LOST
           : status == FSDP_EINVAL  ? FSDP_LAUNCH_USAGE
                                    : FSDP_LAUNCH_FAILED;
}

/* In one write: ranks share their stderr. */
static void print_error(const struct fsdp_launch *launch, const char *text)
{
    const struct fsdp_launch_info *info = launch ? &launch->info : NULL;
    if (info && info->size > 1)
        fprintf(stderr, "%s: rank %d on %s: %s\n", program_invocation_short_name, info->rank,
                info->host, text);
    else
        fprintf(stderr, "%s: %s\n", program_invocation_short_name, text);
}

/* Of an error that all ranks found alike, rank 0 speaks; of another rank's own, that rank. */
static bool speaks(const struct fsdp_launch *launch, const struct fsdp_err *err)
{
    if (err->status == FSDP_EMISMATCH && launch)
        return launch->info.rank == 0;
    return !err->of_other;
}

/* The channel knows best who died, a moment later than the mesh. Where it does not, ranks 0 and 1
 * both speak: one of them may be the lost one. */
static void print_loss(const struct fsdp_launch *launch, const char *text)
{
    enum { AWAIT_MS = 500, STEP_MS = 10 };
    struct fsdp_oob *oob = boot_oob(launch->boot);
    int ms = 0;

    while (ms < AWAIT_MS && oob->health(oob, NULL) == FSDP_OK) {
        usleep(STEP_MS * 1000);
        ms += STEP_MS;
    }
    if (ms < AWAIT_MS)
        rank_print_loss(oob, program_invocation_short_name, true);
    else if (oob->rank < 2)
        print_error(launch, text);
}

int fsdp_launch_fail(struct fsdp_launch *launch, const struct fsdp_err *err)
{
    const int code = code_of(launch, err->status);
    const bool lost = launch && code == FSDP_LAUNCH_PEER_LOST;

    fflush(stdout);
    if (!lost && speaks(launch, err))
        print_error(launch, err->text);
    if (!launch)
        return code;
    struct fsdp_oob *oob = boot_oob(launch->boot);
    if (lost && !rank_is_watched() && !err->of_other)
        print_loss(launch, err->text);
    if (!err->of_other) {
        struct fsdp_err why = *err;
        if (!lost && why.culprit < 0)
            why.culprit = oob->rank;
        oob->abort(oob, code, &why);
    }
    return code;
}

void fsdp_launch_close(struct fsdp_launch *launch)
{
    if (!launch)
        return;
    rank_watchdog_stop(launch->dog);
    boot_close(launch->boot);
    fsdp_free(launch);
}
