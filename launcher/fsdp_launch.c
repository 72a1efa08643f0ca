/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "launch_impl.h"
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

int launch_main(int argc, char **argv, const struct launch_program *program)
{
    struct launch_args args;
    int code = launch_args_parse(&args, argc, argv);

    if (code)
        return code;
    if (args.help) {
        launch_print_help();
        return LAUNCH_DONE;
    }
    if (args.version) {
        printf("fsdp-launch %s\n", FSDP_VERSION_STRING);
        return LAUNCH_DONE;
    }
    if (args.print_config)
        return program->print_config(args.config, args.noverrides, args.overrides);
    if (!starts_ranks(&args))
        return launch_run_rank(&args, program);
    if (args.config && (code = launch_check(&args, program)))
        return code;
    if ((code = refuse_many_singles(&args)))
        return code;
    return launch_supervise(&args);
}
