/* SPDX-License-Identifier: Apache-2.0 */
/* carried.h: the tensors of a model's folder that the model does not compute with, such as those of
 * its images, and that its checkpoints have nevertheless. */
#ifndef TRAIN_CARRIED_H
#define TRAIN_CARRIED_H

#include "config/config.h"
#include "family/model.h"

struct ckpt;

struct train_carried {
    struct ckpt *ckpt; /* whose names the tensors have; NULL: not open */
    struct fsdp_tensor *tensors;
    int ntensors;
};

/* Gives the model those of the folder of weights, until train_carried_close, which comes after its
 * describe, also after an error. A folder without weights has none; whoever reads them says so.
 * Local, blocks. */
int train_carried_open(struct train_carried *carried, const struct config *config,
                       const char *weights, const struct model_ops *ops, struct model *model,
                       struct fsdp_err *err);
void train_carried_close(struct train_carried *carried);

#endif
