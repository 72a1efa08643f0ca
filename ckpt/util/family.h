/* SPDX-License-Identifier: Apache-2.0 */
/*
 * family.h: what transformers takes where a model's config.json leaves a key out, by model family
 * (model_type). tests/interop/check.sh compares it with models that transformers makes so.
 */
#ifndef CKPT_FAMILY_H
#define CKPT_FAMILY_H

#include <jansson.h>

#include "fsdp/base.h"

/* config has the sizes, of nheads query heads and dim elements. A null says that the number follows
 * from these, as it does where the family has no number of its own. */
uint64_t ckpt_family_key_heads(const char *type, const json_t *config, uint64_t nheads);
uint64_t ckpt_family_head_dim(const char *type, const json_t *config, uint64_t nheads,
                              uint64_t dim);
/* 0: the family has none. */
uint64_t ckpt_family_experts(const char *type);
uint64_t ckpt_family_experts_per_token(const char *type);
/* Added to the mean of squares, or to the variance, in norms. */
double ckpt_family_eps(const char *type);
/* Is the head's weight the embedding's? */
bool ckpt_family_tied(const char *type);

/* Is a tensor of this name a buffer of old files that follows from the configuration? */
bool ckpt_is_derived_buffer(const char *name);

#endif
