/* SPDX-License-Identifier: Apache-2.0 */
/* The small files next to the weights of a checkpoint that another program wrote: config.json,
 * generation_config.json, tokenizer files. */
#ifndef CKPT_EXTRAS_H
#define CKPT_EXTRAS_H

#include "source/source.h"

/* Fills ckpt->m.extras from ckpt->folder, whose entries are `names`. A torch folder that accelerate
 * or transformers saved (pytorch_model_fsdp_0) has these files one folder above. A link that leaves
 * the folder is followed only into the blobs of a Hugging Face cache; other links, and links to
 * nothing, are logged and left out: nobody must get a file of this machine copied by a link. */
int ckpt_extras_find(struct ckpt *ckpt, const struct ckpt_names *names, struct fsdp_err *err);
/* The same, with the entries of the folder read from the store. */
int ckpt_extras_find_here(struct ckpt *ckpt, struct fsdp_err *err);

#endif
