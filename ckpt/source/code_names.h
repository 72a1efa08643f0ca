/* SPDX-License-Identifier: Apache-2.0 */
/* code_names.h: the tensors next to codes, by their names (codes.c says what they hold). */
#ifndef CKPT_CODE_NAMES_H
#define CKPT_CODE_NAMES_H

#include "format_ops.h"

/* The tensor that is called like this one, without "_packed", and with another end. */
const struct ckpt_tensor *ckpt_part_near(const struct ckpt *ckpt, const char *name,
                                         const char *end);
/* The scales that a tensor needs, which are next to it; NULL: it is none of codes. */
const struct ckpt_tensor *ckpt_scales_of(const struct ckpt *ckpt, const struct fsdp_tensor *tensor);
/* Is it a tensor of scales, or another that belongs to codes? */
bool ckpt_codes_is_part(const struct ckpt *ckpt, const char *name);
bool ckpt_codes_is_packed(const char *name);

#endif
