/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a command line: its rows in order. */
#include "cli.h"

const char *const fsdp_cli_shells[] = {"bash", "zsh", "fish", NULL};
const char *const fsdp_cli_devices[] = {"auto", "cpu", "cuda", NULL};

static const struct fsdp_cli_option every_rows[] = {
    {"help", 'h', .help = "print this help"},
    {"version", .help = "print the version"},
    {"completion", .arg = "SHELL", .kind = FSDP_CLI_OWN, .words = fsdp_cli_shells,
     .help = "print a completion script for bash, zsh or fish"},
    {.help = NULL}};
static const struct fsdp_cli_group every = {"Help", every_rows};

const struct fsdp_cli_group *cli_group_at(const struct fsdp_cli_program *program, int i)
{
    int ngroups = 0;
    while (program->groups[ngroups].title)
        ngroups++;
    return i < ngroups ? &program->groups[i] : i == ngroups ? &every : NULL;
}

const struct fsdp_cli_option *cli_option_at(const struct fsdp_cli_program *program, int i)
{
    const struct fsdp_cli_group *group;

    for (int g = 0; (group = cli_group_at(program, g)); g++)
        for (const struct fsdp_cli_option *row = group->rows; row->help; row++)
            if (i-- == 0)
                return row;
    return NULL;
}
