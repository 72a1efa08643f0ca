/* SPDX-License-Identifier: Apache-2.0 */
/* fit.h: what makes a run fit that has too little memory. */
#ifndef TRAIN_FIT_H
#define TRAIN_FIT_H

#include "train/setup/setup.h"

/* Plans the run of these arguments for its ranks and its device. Where it does not fit, prints the
 * settings that make it fit, with what they cost in time and where the run has them, and the
 * command that plans more. Returns whether it fits; true where that cannot be told. parts: config
 * and device alone are used. For one rank. Local, takes some seconds. */
bool train_fit_tell(const struct train_parts *parts, const struct fsdp_node_map *nodes,
                    const char *config, int noverrides, char *const *overrides);

struct boot;
/* train_check_nodes, and then whether the run's memory fits. Returns an exit code. Collective. */
int train_check_job(struct boot *boot, const char *config, int noverrides, char *const *overrides,
                    bool verbose);

#endif
