/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "families.h"
#include "model.h"
#include "util/family.h"
#include "util/limits.h"

enum { MOST_DIM = INT32_MAX };

/* What config.json says, and who asks. */
struct config {
    const json_t *root;
    const char *path;
    const struct ckpt_fsdp1_family *family;
    uint64_t dims[256]; /* by their letters in the table */
    uint64_t nlayers;
    struct fsdp_err *err;
};

/* A count under one of two keys (GPT-2 has its own); `value` where there is neither, refused if
 * that is 0. */
static uint64_t count_of(struct config *c, const char *key, const char *other, uint64_t value)
{
    const json_t *found = json_object_get(c->root, key);

    if (!found)
        found = json_object_get(c->root, other);
    const json_int_t count = json_integer_value(found);
    if (json_is_integer(found) && count > 0 && count <= MOST_DIM)
        return (uint64_t)count;
    if (value && (!found || json_is_null(found)))
        return value;
    fsdp_err_set(c->err, FSDP_EINVAL, "'%s': %s is missing, or not a whole number from 1 to %d",
                 c->path, key, MOST_DIM);
    return 0;
}

static int read_dims(struct config *c)
{
    uint64_t *d = c->dims;
    const bool gpt2 = !strcmp(c->family->type, "gpt2");

    if (!(d['V'] = count_of(c, "vocab_size", "vocab_size", 0)) ||
        !(d['C'] = count_of(c, "hidden_size", "n_embd", 0)) ||
        !(c->nlayers = count_of(c, "num_hidden_layers", "n_layer", 0)))
        return FSDP_EINVAL;
    const uint64_t heads = count_of(c, "num_attention_heads", "n_head", 0);
    if (!heads)
        return FSDP_EINVAL;
    const char *type = c->family->type;
    const uint64_t keys =
        count_of(c, "num_key_value_heads", "n_head", ckpt_family_key_heads(type, c->root, heads));
    const uint64_t head_dim = ckpt_family_head_dim(type, c->root, heads, d['C']);
    if (!(d['F'] = count_of(c, "intermediate_size", "n_inner", gpt2 ? 4 * d['C'] : 0)) || !keys)
        return FSDP_EINVAL;
    if (gpt2 && !(d['P'] = count_of(c, "n_positions", "n_ctx", 0)))
        return FSDP_EINVAL;
    if (!(d['H'] = count_of(c, "head_dim", "head_dim", head_dim ? head_dim : 1)))
        return FSDP_EINVAL;
    d['Q'] = heads * d['H'];
    d['K'] = keys * d['H'];
    d['A'] = d['Q'] + 2 * d['K'];
    d['G'] = 2 * d['F'];
    d['T'] = 3 * d['C'];
    return FSDP_OK;
}

static bool flag_of(const struct config *c, const char *key, bool value)
{
    const json_t *found = json_object_get(c->root, key);
    return json_is_boolean(found) ? json_is_true(found) : value;
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
        param->shape[i] = c->dims[(unsigned char)row->dims[i]];
    FSDP_TRY(fsdp_tensor_check(param, c->err));
    out->nparams++;
    return FSDP_OK;
}

static int add_rows(struct ckpt_fsdp1_model *out, const struct config *c,
                    const struct ckpt_fsdp1_row *rows, int64_t layer)
{
    for (const struct ckpt_fsdp1_row *row = rows; row->name; row++)
        if (!row->when || flag_of(c, row->when, c->family->biased))
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
    FSDP_TRY(read_dims(&c));
    if (flag_of(&c, "tie_word_embeddings", ckpt_family_tied(out->type))) {
        out->tied = c.family->head;
        out->tied_to = c.family->embed;
    }
    int rc = add_rows(out, &c, c.family->front, -1);
    for (uint64_t i = 0; rc == FSDP_OK && i < c.nlayers; i++)
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
