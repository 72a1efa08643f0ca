/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent: one of several processes that a resource manager or the user started, usually one on
 * each node, each of which starts ranks. The agents meet as ranks would; agent 0 serves the ranks'
 * rendezvous, and all keep their channel open, so that they know of each other's end.
 */
#include <stdio.h>

#include "impl.h"

static void print_warning(void *ctx, enum fsdp_log_level level, const char *text)
{
    (void)ctx, (void)level;
    launch_say("%s", text);
}

int launch_run_agent(const struct launch_args *args)
{
    struct boot *boot;

    if (args->by_hand)
        fsdp_log_set(print_warning, NULL, FSDP_LOG_WARN);
    int code = launch_open_boot(&boot, args, NULL);

    if (code) {
        launch_requeue_unmet(args, code);
        return code;
    }
    code = launch_supervise(args, boot_oob(boot), boot_nodes(boot));
    launch_requeue(args, code, boot_oob(boot));
    boot_close(boot);
    return code;
}
