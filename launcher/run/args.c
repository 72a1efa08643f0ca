/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "options.h"

static int bad(const char *fmt, ...) FSDP_PRINTF(1, 2);
static int bad(const char *fmt, ...)
{
    char text[FSDP_ERR_TEXT_NBYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    launch_say("%s\nTry 'fsdp-launch --help'.", text);
    return LAUNCH_USAGE;
}

/* More ranks than this on one machine are a slip of the finger. */
static int most_ranks(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores * 8 > 64 ? (int)(cores * 8) : 64;
}

static int check_overrides(const struct launch_args *args)
{
    for (int i = 0; i < args->noverrides; i++) {
        const char *eq = strchr(args->overrides[i], '=');
        if (!eq || eq == args->overrides[i])
            return bad("'%s' after the configuration: expected section.key=value",
                       args->overrides[i]);
    }
    return 0;
}

static int check_counts(const struct launch_args *args)
{
    if (args->nranks > most_ranks() && !args->dump_schedule)
        return bad("-n %d: this machine has %ld cores, at most %d ranks make sense", args->nranks,
                   sysconf(_SC_NPROCESSORS_ONLN), most_ranks());
    if (args->ranks_per_task && args->nranks)
        return bad("-n says how many ranks there are here, --ranks-per-task how many each task "
                   "starts; give one of them");
    if (args->ranks_per_task > most_ranks())
        return bad("--ranks-per-task %d: this machine has %ld cores, at most %d ranks make sense",
                   args->ranks_per_task, sysconf(_SC_NPROCESSORS_ONLN), most_ranks());
    if (args->by_hand && args->ranks_per_task)
        return bad("with --nnodes, -n says how many ranks this node starts; leave out "
                   "--ranks-per-task");
    if (args->by_hand && args->nnodes > 1)
        return bad("--nodes emulates nodes on one machine, --nnodes counts real ones; give one of "
                   "them");
    if (!args->by_hand && (args->node_rank >= 0 || args->master_addr || args->master_port))
        return bad("%s belongs to --nnodes, which is missing", args->node_rank >= 0 ? "--node-rank"
                                                               : args->master_addr
                                                                   ? "--master-addr"
                                                                   : "--master-port");
    if (args->nnodes > 1 && !args->nranks && !args->sbatch.wanted)
        return bad("--nodes %d presents the ranks of -n as nodes; -n is missing, or "
                   "--sbatch for a job on %d nodes",
                   args->nnodes, args->nnodes);
    if (args->nranks && args->nnodes > args->nranks)
        return bad("--nodes %d: more nodes than the %d ranks of -n", args->nnodes, args->nranks);
    if (args->nranks && args->nranks % args->nnodes != 0)
        return bad("--nodes %d does not divide the %d ranks of -n", args->nnodes, args->nranks);
    return 0;
}

static int check_what(const struct launch_args *args)
{
    if (args->out && !args->from)
        return bad("-o belongs to --from");
    if (args->from && (args->config || args->program || args->noverrides))
        return bad("--from FILE starts nothing; leave out what follows it");
    if (args->program && !args->program[0])
        return bad("no program after --");
    if (args->config && args->program)
        return bad("a configuration (%s) and a program (%s) at once", args->config,
                   args->program[0]);
    if (args->program && args->print_config)
        return bad("--print-config belongs to a configuration, not to a program");
    if (args->program && (args->dump_schedule || args->trace))
        return bad("%s belongs to a configuration, not to a program",
                   args->dump_schedule ? "--dump-schedule" : "--trace");
    if (args->program && args->ranks_per_gpu)
        return bad("--ranks-per-gpu belongs to a configuration, not to a program");
    if (args->program && args->check)
        return bad("--check starts no program");
    if (!args->config && !args->program && !args->print_config && !args->check && !args->from)
        return bad("nothing to run: give a configuration, CONFIG.yaml, or -- PROGRAM");
    return 0;
}

int launch_args_parse(struct launch_args *out, int argc, char **argv)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_cli_line line;
    int code;

    *out = (struct launch_args){
        .nnodes = 1, .node_rank = -1, .timeout_s = 60, .sbatch = SBATCH_REQUEST_INIT};
    if (fsdp_cli_parse(&line, &launch_options, out, argc, argv, &err))
        return bad("%s", err.text);
    out->request = line.request;
    out->shell = line.shell;
    out->program = line.program;
    if (out->request != FSDP_CLI_RUN || out->print_metrics)
        return 0;
    char **words = line.operands;
    int nwords = line.noperands;
    if (nwords && !(out->print_config && strchr(words[0], '='))) {
        out->config = words[0];
        words++;
        nwords--;
    }
    out->overrides = words;
    out->noverrides = nwords;
    if (out->config && strchr(out->config, '=') && access(out->config, F_OK))
        return bad("'%s': name the configuration first: fsdp-launch CONFIG.yaml %s", out->config,
                   out->config);
    out->sbatch.nodes = out->nnodes;
    if ((code = launch_sbatch_check(out)) || (code = check_what(out)) ||
        (code = check_overrides(out)))
        return code;
    return check_counts(out);
}
