/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp-launch: the launcher, running the training program or any other. */
#include "launch.h"
#include "train/train.h"

static const struct launch_program program = {
    .name = "train",
    .check = train_check,
    .keys = train_keys,
    .print_config = train_print_config,
    .print_metrics = train_print_metrics,
    .speaks = true,
    .dump_schedule = train_dump_schedule,
    .trace_key = "log.trace",
    .uses_mpi = train_uses_mpi,
    .setting = train_setting,
    .check_ranks = train_check_ranks,
    .begin_mpi = train_begin_mpi,
    .run = train_run,
    .check_nodes = train_check_nodes,
};

int main(int argc, char **argv)
{
    return launch_main(argc, argv, &program);
}
