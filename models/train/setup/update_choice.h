/* SPDX-License-Identifier: Apache-2.0 */
/* update_choice.h: what fsdp.offload_update auto means. */
#ifndef TRAIN_UPDATE_CHOICE_H
#define TRAIN_UPDATE_CHOICE_H

#include "setup.h"

/* Replaces FSDP_OFFLOAD_UPDATE_AUTO by where a step takes less time under parts->clock: HOST only
 * where gradients are offloaded. The model is described. Every rank comes to the same. Local. */
void train_choose_update(struct fsdp_opts *opts, const struct train_parts *parts,
                         const struct fsdp_node_map *nodes, struct fsdp_mesh_shape shape);

#endif
