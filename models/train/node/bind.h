/* SPDX-License-Identifier: Apache-2.0 */
/* bind.h: cores for the ranks, near their GPUs, and the table that says which. */
#ifndef TRAIN_BIND_H
#define TRAIN_BIND_H

#include "binding.h"
#include "train_gpu.h"
#include "train/report/report.h"

/* What a rank gets (binding.h) by the GPU that it has. Collective. */
int train_bind(struct binding *out, const struct train_gpu *gpu, bool off, struct fsdp_oob *oob,
               const struct fsdp_node_map *nodes, struct fsdp_err *err);
/* The table "binding" of all ranks; nodes like the first one are counted. Collective. */
int train_bind_show(struct report *report, const struct binding *mine, struct fsdp_oob *oob,
                    const struct fsdp_node_map *nodes, struct fsdp_err *err);

#endif
