/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h: the parameters of a model that config.json describes, in the order in which torch walks
 * over its modules: that of the parts of a flat parameter. Pure, but for the table of families.
 */
#ifndef CKPT_FSDP1_MODEL_H
#define CKPT_FSDP1_MODEL_H

#include <jansson.h>

#include "util/pool.h"

struct ckpt_fsdp1_model {
    const char *type; /* model_type; static */
    size_t nparams, max_params;
    struct fsdp_tensor *params; /* their dtype says nothing */
    struct ckpt_pool names;
    const char *tied, *tied_to; /* another name of a parameter; NULL: none */
    /* The head's name in files and its name in other code, as transformers 5 has modules; NULL:
     * none. */
    const char *head, *other_head;
};

/* root: of config.json, which `path` names in errors. FSDP_EUNSUPPORTED lists the families. */
int ckpt_fsdp1_model_read(struct ckpt_fsdp1_model *out, const json_t *root, const char *path,
                          struct fsdp_err *err);
/* Zeroed is allowed. */
void ckpt_fsdp1_model_free(struct ckpt_fsdp1_model *model);

#endif
