/* SPDX-License-Identifier: Apache-2.0 */
/* fit.h: what makes a run fit that has too little memory. */
#ifndef TRAIN_FIT_H
#define TRAIN_FIT_H

#include "train/setup/setup.h"

/* Logs the settings that make the run of these arguments fit, with what they cost in time and where
 * the run has them, and the command that plans more. For one rank, after FSDP_ENOMEM. Local, takes
 * some seconds. */
void train_fit_tell(const struct train_parts *parts, const struct fsdp_node_map *nodes,
                    const char *config, int noverrides, char *const *overrides);

#endif
