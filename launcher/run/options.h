/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: the options of fsdp-launch as a table over struct launch_args. */
#ifndef LAUNCH_OPTIONS_H
#define LAUNCH_OPTIONS_H

#include <limits.h>
#include <stddef.h>

#include "fsdp/sys/cli.h"
#include "impl.h"

extern const struct fsdp_cli_program launch_options;

#endif
