/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "gpu.h"
#include "options.h"
#include "sys/boot_ops.h"

/* With -n the ranks are started here, unless whoever started this process has done so already;
 * fsdp-launch -n inside a rank of fsdp-launch begins a job of its own. */
static bool starts_ranks(const struct launch_args *args)
{
    if (getenv("BOOT_RENDEZVOUS") && args->nranks)
        return true;
    if (launch_is_rank())
        return false;
    return args->nranks || args->program;
}

/* A program alone, while something says that there are more ranks, would be one of many singles. */
static int refuse_many_singles(const struct launch_args *args)
{
    char why[BOOT_WHY_NBYTES];
    if (args->nranks || boot_single_ops.probe(why, sizeof why))
        return 0;
    launch_say("%s", why);
    return LAUNCH_USAGE;
}

/* --trace FILE is short for a setting. The option itself has left room for it behind the overrides
 * (launch_args_parse). */
static int set_trace(struct launch_args *args, const struct launch_program *program)
{
    static char text[4200];

    if (!program->trace_key) {
        launch_say("--trace: %s has no such setting", program->name);
        return LAUNCH_USAGE;
    }
    if ((size_t)snprintf(text, sizeof text, "%s=%s", program->trace_key, args->trace) >=
        sizeof text) {
        launch_say("--trace: the file's name is too long");
        return LAUNCH_USAGE;
    }
    args->overrides[args->noverrides++] = text;
    return 0;
}

/* Of ranks that need not be there, in one process. */
static int dump_schedule(const struct launch_args *args, const struct launch_program *program)
{
    if (!program->dump_schedule) {
        launch_say("--dump-schedule: %s has no schedule", program->name);
        return LAUNCH_USAGE;
    }
    if (launch_is_rank()) {
        launch_say("--dump-schedule starts nothing: call it without mpirun or srun, with -n N");
        return LAUNCH_USAGE;
    }
    return program->dump_schedule(args->config, args->noverrides, args->overrides,
                                  args->nranks ? args->nranks : 1, args->nnodes, args->dump_file);
}

/* Ranks find it in their environment, whoever starts them. */
static int set_ranks_per_gpu(int n)
{
    char text[16];

    snprintf(text, sizeof text, "%d", n);
    if (setenv(GPU_ENV_RANKS_PER_GPU, text, 1) == 0)
        return 0;
    launch_say("--ranks-per-gpu %d: no memory for it", n);
    return LAUNCH_FAILED;
}

/* --help and the like, with the keys of the program's configuration. */
static int print_answer(const struct launch_args *args, const struct launch_program *program)
{
    const struct fsdp_cli_line line = {.request = (enum fsdp_cli_request)args->request,
                                       .shell = args->shell};
    struct fsdp_cli_program options = launch_options;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (program->keys)
        options.keys = program->keys(&options.nkeys);
    if (fsdp_cli_answer(stdout, &options, &line, &err) == FSDP_OK)
        return LAUNCH_DONE;
    launch_say("%s", err.text);
    return LAUNCH_FAILED;
}

int launch_main(int argc, char **argv, const struct launch_program *program)
{
    struct launch_args args;

    fsdp_std_fill();
    int code = launch_args_parse(&args, argc, argv);

    if (code)
        return code;
    args.speaks = program->speaks;
    if (args.request != FSDP_CLI_RUN)
        return print_answer(&args, program);
    if (args.print_metrics && !program->print_metrics) {
        launch_say("--print-metrics: %s reports nothing", program->name);
        return LAUNCH_USAGE;
    }
    if (args.print_metrics)
        return program->print_metrics();
    if (args.from && program->convert)
        return program->convert(args.from, args.out);
    if (args.from) {
        launch_say("--from: %s has no such conversion", program->name);
        return LAUNCH_USAGE;
    }
    if (args.trace && (code = set_trace(&args, program)))
        return code;
    if (args.ranks_per_gpu && (code = set_ranks_per_gpu(args.ranks_per_gpu)))
        return code;
    if (args.check && !program->check_nodes) {
        launch_say("--check: %s has no check of nodes", program->name);
        return LAUNCH_USAGE;
    }
    args.uses_mpi = args.config && program->uses_mpi &&
                    program->uses_mpi(args.config, args.noverrides, args.overrides);
    if (args.print_config)
        return program->print_config(args.config, args.noverrides, args.overrides);
    if (args.dump_schedule)
        return dump_schedule(&args, program);
    if (args.sbatch.wanted)
        return launch_sbatch(&args, program);
    if (args.by_hand && (code = launch_nodes_prepare(&args)))
        return code;
    if (args.by_hand > 1 || (args.ranks_per_task && launch_is_rank())) {
        if (args.config && (code = launch_check(&args, program)))
            return code;
        return launch_run_agent(&args);
    }
    if (args.ranks_per_task) /* a task alone */
        args.nranks = args.ranks_per_task;
    if (!starts_ranks(&args))
        return launch_run_rank(&args, program);
    if (args.config && (code = launch_check(&args, program)))
        return code;
    if ((code = refuse_many_singles(&args)))
        return code;
    code = launch_supervise(&args, NULL, NULL);
    launch_requeue(&args, code, NULL);
    return code;
}
