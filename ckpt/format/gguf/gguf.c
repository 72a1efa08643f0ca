/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "tensors.h"
#include "source/format_ops.h"
#include "util/family.h"

enum { VERSION = 3, QUANTIZATION_VERSION = 2 };

/* ---- the model ------------------------------------------------------------------------------- */

/* The first of these that config.json has; 0: it has none. */
static int first_count(uint64_t *out, const struct gguf_config *config, const char *const *keys,
                       struct fsdp_err *err)
{
    *out = 0;
    for (; !*out && *keys; keys++)
        FSDP_TRY(gguf_config_count(out, config, *keys, err));
    return FSDP_OK;
}

static int need_first(uint64_t *out, const struct gguf_config *config, const char *const *keys,
                      struct fsdp_err *err)
{
    FSDP_TRY(first_count(out, config, keys, err));
    return *out ? FSDP_OK
                : fsdp_err_set(err, FSDP_ENOTFOUND, "'%s' has no %s", config->path, keys[0]);
}

static int read_model(struct gguf_model *model, struct fsdp_err *err)
{
    static const char *const layers[] = {"num_hidden_layers", "n_layer", NULL};
    static const char *const dims[] = {"hidden_size", "n_embd", NULL};
    static const char *const heads[] = {"num_attention_heads", "n_head", NULL};
    static const char *const kv_heads[] = {"num_key_value_heads", NULL};
    static const char *const head_dims[] = {"head_dim", NULL};
    static const char *const lengths[] = {"max_position_embeddings", "n_positions", "n_ctx", NULL};
    static const char *const experts[] = {"num_experts", "num_local_experts", NULL};
    const struct gguf_config *config = model->config;
    FSDP_TRY(gguf_family_of(&model->family, config, err));
    FSDP_TRY(need_first(&model->nlayers, config, layers, err));
    FSDP_TRY(need_first(&model->dim, config, dims, err));
    FSDP_TRY(need_first(&model->nheads, config, heads, err));
    FSDP_TRY(need_first(&model->max_seq_len, config, lengths, err));
    FSDP_TRY(first_count(&model->nkv_heads, config, kv_heads, err));
    FSDP_TRY(first_count(&model->head_dim, config, head_dims, err));
    FSDP_TRY(first_count(&model->nexperts, config, experts, err));
    const char *type = model->family->type;
    if (!model->nkv_heads)
        model->nkv_heads = ckpt_family_key_heads(type, config->root, model->nheads);
    if (!model->head_dim)
        model->head_dim = ckpt_family_head_dim(type, config->root, model->nheads, model->dim);
    if (!model->nexperts)
        model->nexperts = ckpt_family_experts(type);
    model->tied = gguf_config_flag(config, "tie_word_embeddings", ckpt_family_tied(type));
    return FSDP_OK;
}

/* ---- types and places ------------------------------------------------------------------------ */

static uint64_t row_nelem(const struct ckpt_gguf_tensor *t)
{
    return t->dims[t->ndim - 1];
}

static uint64_t nbytes_of(const struct ckpt_gguf_tensor *t)
{
    const struct ckpt_encoding *encoding = t->type->encoding;
    uint64_t nelem = 1;
    for (int i = 0; i < t->ndim; i++)
        nelem *= t->dims[i];
    return encoding ? nelem / encoding->block_nelem * encoding->block_nbytes
                    : nelem * fsdp_dtype_nbytes(t->type->dtype);
}

static uint64_t align(uint64_t pos)
{
    return (pos + CKPT_GGUF_ALIGN - 1) / CKPT_GGUF_ALIGN * CKPT_GGUF_ALIGN;
}

static bool has_output(const struct ckpt_gguf *out)
{
    for (int i = 0; i < out->ntensors; i++)
        if (!strcmp(out->tensors[i].name, "output.weight"))
            return true;
    return false;
}

static int choose_types(struct ckpt_gguf *out, const struct gguf_model *model,
                        const struct ckpt_gguf_args *args, const struct ckpt_gguf_file_type **type,
                        struct fsdp_err *err)
{
    *type = ckpt_gguf_file_type_like(args->inputs[out->parts[0].input].dtype);
    if (args->type)
        FSDP_TRY(ckpt_gguf_file_type_of(type, args->type, err));
    const struct ckpt_gguf_mix mix = {.type = *type,
                                      .arch = model->family->arch,
                                      .nlayers = (int)model->nlayers,
                                      .nexperts = (int)model->nexperts,
                                      .shares_kv = model->nheads != model->nkv_heads,
                                      .tied = !has_output(out)};
    for (int i = 0; i < out->ntensors; i++) {
        struct ckpt_gguf_tensor *t = &out->tensors[i];
        t->type = ckpt_gguf_type_of(&mix, t->name, t->ndim, row_nelem(t));
        t->nbytes = nbytes_of(t);
    }
    return FSDP_OK;
}

/* ---- the header ------------------------------------------------------------------------------ */

static void put_info(struct ckpt_text *to, const char *name, const uint64_t *dims, int ndim,
                     uint32_t type, uint64_t pos)
{
    gguf_put_text(to, name, strlen(name));
    gguf_put_u32(to, (uint32_t)ndim);
    for (int i = ndim - 1; i >= 0; i--) /* innermost first */
        gguf_put_u64(to, dims[i]);
    gguf_put_u32(to, type);
    gguf_put_u64(to, pos);
}

static void pad(struct ckpt_text *to)
{
    static const char zeros[CKPT_GGUF_ALIGN];
    ckpt_text_add(to, zeros, (size_t)(align(to->nbytes) - to->nbytes));
}

/* All that is before the first tensor's bytes. Positions count from the first constant's. */
static void put_header(struct ckpt_text *to, struct ckpt_gguf *out, const struct gguf_model *model)
{
    uint64_t pos = 0;
    ckpt_text_add(to, "GGUF", 4);
    gguf_put_u32(to, VERSION);
    gguf_put_u64(to, (uint64_t)(out->ntensors + model->nconstants));
    gguf_put_u64(to, model->keys->count);
    ckpt_text_add(to, model->keys->bytes.data, model->keys->bytes.nbytes);
    for (int i = 0; i < model->nconstants; i++) {
        const struct gguf_constant *constant = &model->constants[i];
        const uint64_t nvalues = constant->nvalues;
        put_info(to, constant->name, &nvalues, 1, ckpt_gguf_f32.id, pos);
        pos = align(pos + nvalues * sizeof(float));
    }
    for (int i = 0; i < out->ntensors; i++) {
        struct ckpt_gguf_tensor *t = &out->tensors[i];
        put_info(to, t->name, t->dims, t->ndim, t->type->id, pos);
        t->pos = pos;
        pos = align(pos + t->nbytes);
    }
    pad(to);
    const uint64_t begin = to->nbytes;
    for (int i = 0; i < model->nconstants; i++) {
        const struct gguf_constant *constant = &model->constants[i];
        for (size_t k = 0; k < constant->nvalues; k++) {
            uint32_t bits;
            memcpy(&bits, &constant->values[k], sizeof bits);
            gguf_put_u32(to, bits);
        }
        pad(to);
    }
    for (int i = 0; i < out->ntensors; i++)
        out->tensors[i].pos += begin;
    out->nbytes = begin + pos;
}

/* ---- all ------------------------------------------------------------------------------------- */

static int add_keys(struct ckpt_gguf *out, struct gguf_model *model,
                    const struct ckpt_gguf_args *args, struct fsdp_err *err)
{
    const struct ckpt_gguf_file_type *type;
    struct gguf_keys *keys = model->keys;
    gguf_key_text(keys, "general.architecture", model->family->arch);
    gguf_key_text(keys, "general.type", "model");
    for (int i = 0; model->family->keys[i]; i++)
        FSDP_TRY(model->family->keys[i](model, err));
    FSDP_TRY(gguf_tensors_list(out, model, args, err));
    FSDP_TRY(choose_types(out, model, args, &type, err));
    gguf_key_u32(keys, "general.file_type", type->id);
    gguf_key_u32(keys, "general.quantization_version", QUANTIZATION_VERSION);
    return gguf_keys_tokenizer(keys, args->ckpt, model->config, out->tensors[0].dims[0], err);
}

int ckpt_gguf_plan(struct ckpt_gguf *out, const struct ckpt_gguf_args *args, struct fsdp_err *err)
{
    struct gguf_config config;
    struct gguf_keys keys = {.count = 0};
    struct gguf_model model = {.config = &config, .keys = &keys};
    struct ckpt_text header = {0};
    *out = (struct ckpt_gguf){.embedding = -1, .tied_head = -1};
    FSDP_TRY(gguf_config_open(&config, args->ckpt, err));
    int rc = read_model(&model, err);
    keys.arch = rc == FSDP_OK ? model.family->arch : "";
    if (rc == FSDP_OK)
        rc = add_keys(out, &model, args, err);
    if (rc == FSDP_OK)
        put_header(&header, out, &model);
    if (rc == FSDP_OK && (header.failed || keys.bytes.failed))
        rc = fsdp_err_set(err, FSDP_ENOMEM, "GGUF header: out of memory");
    if (rc == FSDP_OK) {
        out->header = header.data;
        out->header_nbytes = header.nbytes;
    } else {
        ckpt_text_free(&header);
        ckpt_gguf_free(out);
    }
    for (int i = 0; i < model.nconstants; i++)
        fsdp_free(model.constants[i].values);
    ckpt_text_free(&keys.bytes);
    gguf_config_close(&config);
    return rc;
}

void ckpt_gguf_free(struct ckpt_gguf *gguf)
{
    for (int i = 0; i < gguf->ntensors; i++)
        fsdp_free(gguf->tensors[i].name);
    fsdp_free(gguf->tensors);
    fsdp_free(gguf->parts);
    fsdp_free(gguf->header);
    *gguf = (struct ckpt_gguf){0};
}
