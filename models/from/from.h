/* SPDX-License-Identifier: Apache-2.0 */
/* from.h: configurations of other programs, said in ours. Pure but for reading files. */
#ifndef FROM_H
#define FROM_H

#include "fsdp/base.h"

/* Both are the caller's (fsdp_free). yaml: a whole run.yaml with remarks as comments; what cannot
 * be known is in capitals. summary: lines for the terminal, each of which ends in a newline.
 * FSDP_EINVAL: the file is no configuration that one of the tables knows. */
int from_convert(char **yaml, char **summary, const char *path, struct fsdp_err *err);

/* A source's table as rows of Markdown, "" for a name that is none; the caller's. The names:
 * accelerate, deepspeed. */
int from_table(char **out, const char *name, struct fsdp_err *err);

#endif
