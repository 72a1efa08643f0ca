/* SPDX-License-Identifier: Apache-2.0 */
/* update_choice.h: what fsdp.offload_update auto means. */
#ifndef TRAIN_UPDATE_CHOICE_H
#define TRAIN_UPDATE_CHOICE_H

#include "setup.h"

/* Replaces FSDP_OFFLOAD_UPDATE_AUTO: by HOST where gradients are offloaded, the plan fits the host
 * and a step takes less time by a tenth under parts->clock, else by DEVICE. The model is described.
 * Local. */
void train_choose_update(struct fsdp_opts *opts, const struct train_parts *parts,
                         const struct fsdp_node_map *nodes, struct fsdp_mesh_shape shape);
/* What rank 0 has chosen holds for all: ranks may have different GPUs. Collective, blocks. */
int train_agree_update(struct fsdp_opts *opts, struct fsdp_oob *oob, struct fsdp_err *err);

#endif
