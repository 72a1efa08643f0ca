/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.h: the list of tensors of a GGUF file, from those under Hugging Face's names. Private to
 * the folder. */
#ifndef CKPT_GGUF_TENSORS_H
#define CKPT_GGUF_TENSORS_H

#include "family.h"
#include "gguf.h"

/* Fills out->tensors and out->parts, but for types and places. */
int gguf_tensors_list(struct ckpt_gguf *out, const struct gguf_model *model,
                      const struct ckpt_gguf_args *args, struct fsdp_err *err);

#endif
