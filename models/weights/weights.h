/* SPDX-License-Identifier: Apache-2.0 */
/* weights.h: what happens between opening a folder and reading a model's weights from it. Private
 * to models/. */
#ifndef WEIGHTS_H
#define WEIGHTS_H

#include "ckpt/ckpt.h"
#include "fsdp/fsdp.h"

/* Finds the weights of tree whose names the checkpoint does not have under those that transformers
 * reads, too: without the model's prefix (`transformer.`, `model.`), the head as `lm_head`, and a
 * tied weight under its other name. What is not found stays so. Local. */
int weights_find(struct ckpt *ckpt, const struct fsdp_module_tree *tree, struct fsdp_err *err);

/* FSDP_EINVAL where the checkpoint stores both names of a tied weight, with different values: the
 * error names file, tensors and the setting. Reads them; call it on one rank. Local, blocks. */
int weights_check_tied(struct ckpt *ckpt, const struct fsdp_module_tree *tree,
                       struct fsdp_err *err);

#endif
