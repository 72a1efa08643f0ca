/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostlist.h: Slurm's compressed lists. Node names: "n[0-3,7],gpu[001-004]-ib,login"; several
 * brackets in a name multiply, the left one slowest. Counts by node: "4(x3),2" is 4 4 4 2. Pure.
 * Source: srun(1), OUTPUT ENVIRONMENT VARIABLES; hostlist_create(3).
 */
#ifndef HOSTLIST_H
#define HOSTLIST_H

#include "fsdp/base.h"

enum { HOSTLIST_MAX = 1 << 17 };

/* Calls fn for each name in order until it returns false. FSDP_EINVAL for a list that is none, or
 * of more than HOSTLIST_MAX names, or with a name of FSDP_HOST_NBYTES or more. */
typedef bool hostlist_f(void *ctx, const char *name);
int hostlist_each(const char *list, hostlist_f *fn, void *ctx, struct fsdp_err *err);

/* Name `index` of the list, 0 is the first. FSDP_ENOTFOUND past the last. */
int hostlist_get(char *out, size_t nbytes, const char *list, int index, struct fsdp_err *err);

/* counts[nnodes] of "4(x3),2". FSDP_EINVAL unless it says exactly nnodes counts. */
int hostlist_counts(int *counts, int nnodes, const char *text, struct fsdp_err *err);

#endif
