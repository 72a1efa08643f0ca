/* SPDX-License-Identifier: Apache-2.0 */
/* families.h: what the parameters of a family are called, in the order of its modules. */
#ifndef CKPT_FSDP1_FAMILIES_H
#define CKPT_FSDP1_FAMILIES_H

#include <stdbool.h>

/* A parameter. dims: a letter for each dimension (util/sizes.h). */
struct ckpt_fsdp1_row {
    const char *name;
    const char *dims;
    const char *when; /* it exists where config.json has this key true; NULL: always */
};

struct ckpt_fsdp1_family {
    const char *type;  /* model_type */
    const char *layer; /* what the names of a layer begin with, before its number */
    /* Each ends with a row without a name: before the layers, of each layer, after them. */
    const struct ckpt_fsdp1_row *front, *block, *back;
    const char *embed, *head; /* the parameters that may be tied */
    const char *other_head;   /* the head's name in other code of the family; NULL: none */
    bool biased;              /* where config.json has no attention_bias */
};

/* NULL: none of this type. */
const struct ckpt_fsdp1_family *ckpt_fsdp1_family_find(const char *type);
/* "llama, mistral, ..." */
const char *ckpt_fsdp1_family_list(char *out, unsigned long nbytes);

#endif
