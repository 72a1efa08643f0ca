/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp-launch: the launcher, running the training program or any other. */
#include "launch.h"
#include "train.h"

static const struct launch_program program = {
    .name = "train",
    .check = train_check,
    .print_config = train_print_config,
    .run = train_run,
};

int main(int argc, char **argv)
{
    return launch_main(argc, argv, &program);
}
