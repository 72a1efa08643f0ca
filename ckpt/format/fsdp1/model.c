/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "families.h"
#include "model.h"
#include "util/family.h"
#include "util/limits.h"
#include "util/sizes.h"
#include "util/text.h"

/* What config.json says, and who asks. */
struct config {
    const json_t *root;
    const char *path;
    const struct ckpt_fsdp1_family *family;
    struct ckpt_sizes sizes;
    struct fsdp_err *err;
};

static int read_sizes(struct config *c)
{
    static const char mlp_key[] = "intermediate_size";
    char why[256];
    const struct ckpt_sizes_source from = {c->root, c->family->type, why};

    return ckpt_sizes_read(&c->sizes, &from, mlp_key) &&
                   (c->sizes.size['F'] || ckpt_size_need(&c->sizes.size['F'], &from, mlp_key))
               ? FSDP_OK
               : fsdp_err_set(c->err, FSDP_EINVAL, "'%s': %s", c->path, why);
}

static int add_param(struct ckpt_fsdp1_model *out, const struct config *c,
                     const struct ckpt_fsdp1_row *row, int64_t layer)
{
    char name[CKPT_MAX_NAME_NBYTES];

    if (out->nparams == CKPT_MAX_TENSORS)
        return fsdp_err_set(c->err, FSDP_EINVAL, "'%s': its model has over %d parameters", c->path,
                            CKPT_MAX_TENSORS);
    struct fsdp_tensor *params = fsdp_alloc_grow(out->params, out->nparams, &out->max_params,
                                                 sizeof *params, "parameters", c->err);
    if (!params)
        return FSDP_ENOMEM;
    out->params = params;
    const int nbytes = layer < 0 ? snprintf(name, sizeof name, "%s", row->name)
                                 : snprintf(name, sizeof name, "%s%lld.%s", c->family->layer,
                                            (long long)layer, row->name);
    char *kept = ckpt_pool_text(&out->names, (size_t)nbytes + 1, c->err);
    if (!kept)
        return FSDP_ENOMEM;
    memcpy(kept, name, (size_t)nbytes + 1);
    struct fsdp_tensor *param = &params[out->nparams];
    *param = (struct fsdp_tensor){.name = kept, .dtype = FSDP_F32, .ndim = (int)strlen(row->dims)};
    for (int i = 0; i < param->ndim; i++)
        param->shape[i] = c->sizes.size[(unsigned char)row->dims[i]];
    FSDP_TRY(fsdp_tensor_check(param, c->err));
    out->nparams++;
    return FSDP_OK;
}

static int add_rows(struct ckpt_fsdp1_model *out, const struct config *c,
                    const struct ckpt_fsdp1_row *rows, int64_t layer)
{
    for (const struct ckpt_fsdp1_row *row = rows; row->name; row++)
        if (!row->when || ckpt_json_flag(c->root, row->when, c->family->biased))
            if (!out->tied || strcmp(row->name, out->tied) != 0)
                FSDP_TRY(add_param(out, c, row, layer));
    return FSDP_OK;
}

int ckpt_fsdp1_model_read(struct ckpt_fsdp1_model *out, const json_t *root, const char *path,
                          struct fsdp_err *err)
{
    struct config c = {.root = root, .path = path, .err = err};
    const char *type = json_string_value(json_object_get(root, "model_type"));
    char known[400];

    *out = (struct ckpt_fsdp1_model){0};
    c.family = type ? ckpt_fsdp1_family_find(type) : NULL;
    if (!c.family)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "'%s': the order of the parameters of model_type '%.64s' is not known, "
                            "which flat parameters need; it is of %s",
                            path, type ? type : "", ckpt_fsdp1_family_list(known, sizeof known));
    out->type = c.family->type;
    out->head = c.family->head;
    out->other_head = c.family->other_head;
    FSDP_TRY(read_sizes(&c));
    if (ckpt_json_flag(root, "tie_word_embeddings", ckpt_family_tied(out->type))) {
        out->tied = c.family->head;
        out->tied_to = c.family->embed;
    }
    int rc = add_rows(out, &c, c.family->front, -1);
    for (uint64_t i = 0; rc == FSDP_OK && i < c.sizes.nlayers; i++)
        rc = add_rows(out, &c, c.family->block, (int64_t)i);
    if (rc == FSDP_OK)
        rc = add_rows(out, &c, c.family->back, -1);
    if (rc)
        ckpt_fsdp1_model_free(out);
    return rc;
}

void ckpt_fsdp1_model_free(struct ckpt_fsdp1_model *model)
{
    fsdp_free(model->params);
    ckpt_pool_free(&model->names);
    *model = (struct ckpt_fsdp1_model){0};
}
