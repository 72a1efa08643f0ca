/* SPDX-License-Identifier: Apache-2.0 */
/* binding.h: what a job's environment gives a rank of its node. */
#ifndef BINDING_H
#define BINDING_H

#include <stdbool.h>
#include <stddef.h>

/* Each rank of a node sees one GPU alone because Slurm was told to divide them (--gpus-per-task):
 * it can use its own, but not reach those of its neighbours directly. `out` gets a line with the
 * mend. get: getenv. Pure. */
bool binding_gpus_hidden(char *out, size_t out_nbytes, int local_size,
                         char *(*get)(const char *name));

#endif
