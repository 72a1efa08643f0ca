/* SPDX-License-Identifier: Apache-2.0 */
/* sizes.h: what config.json says of a model, as far as its tensors follow from it. */
#ifndef CKPT_CHECK_SIZES_H
#define CKPT_CHECK_SIZES_H

#include <jansson.h>

#include "families.h"

enum { CKPT_CHECK_MOST_LAYERS = 4096, CKPT_CHECK_MOST_EXPERTS = 1024 };

struct ckpt_check_model {
    const struct ckpt_check_family *family;
    struct ckpt_sizes sizes; /* by the letters of families.h, too */
    uint64_t nexperts;
    bool tied, qkv_bias, o_bias, mlp_bias;
    const json_t *mlp_only; /* layers without experts; NULL or an array */
    uint64_t sparse_step;   /* each such layer has experts */
};

/* Of a known family. On failure *why is the text: what config.json lacks or has wrong. */
bool ckpt_check_model_read(struct ckpt_check_model *out, char why[256], const json_t *config,
                           const struct ckpt_check_family *family);
/* Has the model this tensor, in this layer or (-1) outside of layers? */
bool ckpt_check_model_has(const struct ckpt_check_model *model, const struct ckpt_check_row *row,
                          int64_t layer);

#endif
