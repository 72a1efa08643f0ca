/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsdp-launch as one of several that the user starts, one on each node (--nnodes). --nnodes itself
 * has no default in the environment: it decides who starts ranks, and job scripts export a variable
 * of that name for reasons of their own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boot/boot_env.h"
#include "impl.h"

enum { DEFAULT_PORT = 29500 };

static const char *variable(const char *name)
{
    const char *text = getenv(name);
    return text && text[0] ? text : NULL;
}

static int env_number(int *out, const char *name)
{
    const char *text = variable(name);
    char *end;
    long value = text ? strtol(text, &end, 10) : 0;

    if (!text)
        return 0;
    if (value < 0 || value > 1 << 20 || *end) {
        launch_say("%s=%.40s in the environment: expected a number", name, text);
        return LAUNCH_USAGE;
    }
    *out = (int)value;
    return 0;
}

/* "[fd00::1]" is how addresses with colons are often written. */
static const char *without_brackets(const char *host)
{
    static char text[FSDP_HOST_NBYTES * 4];
    size_t len = strlen(host);
    if (host[0] != '[' || host[len - 1] != ']' || len >= sizeof text)
        return host;
    snprintf(text, sizeof text, "%.*s", (int)len - 2, host + 1);
    return text;
}

static int fill_in(struct launch_args *args)
{
    int code;

    if (args->node_rank < 0 && (code = env_number(&args->node_rank, "NODE_RANK")))
        return code;
    if (!args->master_port && (code = env_number(&args->master_port, "MASTER_PORT")))
        return code;
    if (!args->master_port)
        args->master_port = DEFAULT_PORT;
    if (!args->master_addr)
        args->master_addr = variable("MASTER_ADDR");
    if (args->master_addr)
        args->master_addr = without_brackets(args->master_addr);
    return 0;
}

static int check_nodes(const struct launch_args *args)
{
    if (args->node_rank < 0)
        launch_say("--nnodes %d: which of them is this? Give --node-rank, from 0 to %d, or set "
                   "NODE_RANK",
                   args->by_hand, args->by_hand - 1);
    else if (args->node_rank >= args->by_hand)
        launch_say("--node-rank %d of --nnodes %d: they are numbered from 0 to %d", args->node_rank,
                   args->by_hand, args->by_hand - 1);
    else if (!args->master_addr)
        launch_say("--nnodes %d: where is node 0? Give --master-addr, its name or address, or set "
                   "MASTER_ADDR",
                   args->by_hand);
    else if (args->master_port > 65535)
        launch_say("--master-port %d: expected a port number, up to 65535", args->master_port);
    else if (args->uses_mpi)
        launch_say("--nnodes %d: fsdp.backend=mpi needs ranks that mpirun or srun --mpi=pmix "
                   "started. Type fsdp.backend=host behind the configuration, or mpirun in place "
                   "of --nnodes",
                   args->by_hand);
    else
        return 0;
    return LAUNCH_USAGE;
}

static bool tell_boot(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    return setenv(name, text, 1) == 0;
}

int launch_nodes_prepare(struct launch_args *args)
{
    int code;

    if (args->by_hand == 1 && args->node_rank <= 0)
        return 0; /* one node needs nobody to meet */
    if ((code = fill_in(args)) || (code = check_nodes(args)))
        return code;
    args->ranks_per_task = args->nranks ? args->nranks : 1;
    args->nranks = 0;
    if (tell_boot(BOOT_ENV_NNODES, args->by_hand) &&
        tell_boot(BOOT_ENV_NODE_RANK, args->node_rank) &&
        tell_boot(BOOT_ENV_MASTER_PORT, args->master_port) &&
        setenv(BOOT_ENV_MASTER_ADDR, args->master_addr, 1) == 0)
        return 0;
    launch_say("--nnodes %d: no memory for it", args->by_hand);
    return LAUNCH_FAILED;
}
