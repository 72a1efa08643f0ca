/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent: one of several processes that a resource manager started, usually one on each node,
 * each of which starts ranks. The agents meet as ranks would; agent 0 serves the ranks' rendezvous,
 * and all keep their channel open, so that they know of each other's end.
 */
#include <stdio.h>

#include "impl.h"

int launch_run_agent(const struct launch_args *args)
{
    struct boot *boot;
    int code = launch_open_boot(&boot, args);

    if (code) {
        launch_requeue_unmet(args, code);
        return code;
    }
    code = launch_supervise(args, boot_oob(boot), boot_nodes(boot));
    launch_requeue(args, code, boot_oob(boot));
    boot_close(boot);
    return code;
}
