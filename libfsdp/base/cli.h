/* SPDX-License-Identifier: Apache-2.0 */
/* cli.h: what the files of fsdp/sys/cli.h share. */
#ifndef BASE_CLI_H
#define BASE_CLI_H

#include "fsdp/sys/cli.h"

/* The program's groups, then the one that all programs have. NULL past the end. */
const struct fsdp_cli_group *cli_group_at(const struct fsdp_cli_program *program, int i);
/* Row i of all groups; NULL past the end. */
const struct fsdp_cli_option *cli_option_at(const struct fsdp_cli_program *program, int i);

static inline bool cli_may_omit(const struct fsdp_cli_option *row)
{
    return row->arg && row->arg[0] == '[';
}
static inline bool cli_takes_file(const struct fsdp_cli_option *row)
{
    return row->kind == FSDP_CLI_FILE || row->is_file;
}

#endif
