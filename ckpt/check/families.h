/* SPDX-License-Identifier: Apache-2.0 */
/*
 * families.h: the tensors of model families, as transformers stores them. A new family is a row in
 * families.c. tests/interop/check.sh compares the rows with what transformers writes.
 */
#ifndef CKPT_CHECK_FAMILIES_H
#define CKPT_CHECK_FAMILIES_H

#include "util/sizes.h"

/* When a model has it. */
enum {
    CKPT_IF_QKV_BIAS = 1,
    CKPT_IF_O_BIAS = 2,
    CKPT_IF_MLP_BIAS = 4,
    CKPT_IF_HEAD = 8,       /* the head's weight is not the embedding's */
    CKPT_IF_MLP = 16,       /* an MLP of elements (next to experts) */
    CKPT_IF_EXPERTS = 32,   /* in layers with experts */
    CKPT_IF_DENSE = 64,     /* in layers without */
    CKPT_EACH_EXPERT = 128, /* its number stands for %d */
};

/* A tensor: a layer's name follows the layer's own. A size is a letter (util/sizes.h), of experts E
 * (their number), M (one's MLP) and X (2 M). */
struct ckpt_check_row {
    const char *name; /* NULL: the list ends */
    const char *dims;
    unsigned when;
};

enum { CKPT_CHECK_LISTS = 6 };
/* A key of config.json that says whether there are biases. */
enum ckpt_check_bias {
    CKPT_BIAS_NEVER,
    CKPT_BIAS_ALWAYS,
    CKPT_BIAS_IF_SET,
    CKPT_BIAS_UNLESS_UNSET
};
struct ckpt_check_family {
    const char *type;    /* model_type */
    const char *section; /* of config.json that has the sizes; NULL: the file itself */
    const char *prefix;  /* of the names that are known; others belong to models next to it. NULL */
    const char *layers;  /* "model.layers" */
    const char *other_head; /* a second name of the head's weight, which transformers reads; NULL */
    const struct ckpt_check_row *outside, *inside[CKPT_CHECK_LISTS];
    enum ckpt_check_bias qkv_bias, o_bias, mlp_bias;
    /* Where a section leaves them out; 0: they must be there. */
    struct ckpt_sizes sizes;
    /* Keys of the sizes of MLP and experts; NULL: there is none. */
    const char *mlp_key, *expert_key;
};

/* NULL: none that is known. */
const struct ckpt_check_family *ckpt_check_family_of(const char *type);

#endif
