/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary positions. */
#include <math.h>
#include <string.h>

#include "family.h"

#ifndef M_PI
#define M_PI 3.14159265358979323846
#endif

/* One kind of rotary positions: config.json's object, as transformers 5 (rope_parameters) and 4
 * (rope_scaling, rope_theta next to it) write it. */
struct rope {
    const json_t *object; /* NULL: none */
    const char *key;      /* of config.json, for errors */
};

static const json_t *object_of(const json_t *parent, const char *key)
{
    const json_t *found = json_object_get(parent, key);
    return json_is_object(found) ? found : NULL;
}

static struct rope find_rope(const struct gguf_config *config)
{
    struct rope rope = {object_of(config->root, "rope_parameters"), "rope_parameters"};
    if (!rope.object)
        rope = (struct rope){object_of(config->root, "rope_scaling"), "rope_scaling"};
    return rope;
}

static double number_in(const json_t *object, const char *key, double value)
{
    const json_t *found = json_object_get(object, key);
    return json_is_number(found) ? json_number_value(found) : value;
}

static const char *type_of(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "rope_type"));
    type = type ? type : json_string_value(json_object_get(object, "type"));
    return type ? type : "default";
}

static bool has(const json_t *object, const char *key)
{
    const json_t *found = json_object_get(object, key);
    return found && !json_is_null(found);
}

static int need_number(double *out, const struct gguf_model *model, const struct rope *rope,
                       const char *key, struct fsdp_err *err)
{
    *out = number_in(rope->object, key, 0);
    return *out > 0 ? FSDP_OK
                    : fsdp_err_set(err, FSDP_EINVAL, "'%s': %s has no positive %s",
                                   model->config->path, rope->key, key);
}

/* Elements of a head that turn. */
static uint64_t rope_dim(const struct gguf_model *model, const json_t *object)
{
    double part = number_in(object, "partial_rotary_factor", 0);
    const char *key = "partial_rotary_factor";
    if (part <= 0)
        gguf_config_number(&part, model->config, key, 0, NULL);
    if (part <= 0 && !strcmp(model->family->type, "gpt_neox"))
        gguf_config_number(&part, model->config, "rotary_pct", 0.25, NULL);
    return part > 0 ? (uint64_t)((double)model->head_dim * part) : model->head_dim;
}

/* Room for the values of a tensor that follows from the configuration; the model owns it. */
static float *add_constant(struct gguf_model *model, const char *name, size_t nvalues,
                           struct fsdp_err *err)
{
    struct gguf_constant *constant = &model->constants[model->nconstants];
    *constant = (struct gguf_constant){name, NULL, nvalues};
    constant->values = fsdp_alloc(nvalues, sizeof *constant->values, "factors", err);
    model->nconstants += constant->values != NULL;
    return constant->values;
}

/* ---- kinds of scaling ------------------------------------------------------------------------ */

static int linear_keys(struct gguf_model *model, const struct rope *rope, struct fsdp_err *err)
{
    double factor;
    FSDP_TRY(need_number(&factor, model, rope, "factor", err));
    gguf_key_text(model->keys, "%.rope.scaling.type", "linear");
    gguf_key_f32(model->keys, "%.rope.scaling.factor", factor);
    return FSDP_OK;
}

static int yarn_keys(struct gguf_model *model, const struct rope *rope, struct fsdp_err *err)
{
    static const char *const others[] = {"mscale", "mscale_all_dim", "attention_factor",
                                         "llama_4_scaling_beta"};
    double factor, original;
    FSDP_TRY(need_number(&factor, model, rope, "factor", err));
    FSDP_TRY(need_number(&original, model, rope, "original_max_position_embeddings", err));
    if (json_is_false(json_object_get(rope->object, "truncate")))
        return gguf_refuse(model->config, rope->key, err,
                           "has truncate false: llama.cpp rounds the bounds of YaRN's correction, "
                           "and GGUF has no key for it");
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (has(rope->object, others[i]))
            return gguf_refuse(model->config, rope->key, err,
                               "has %s, which is not written as GGUF", others[i]);
    gguf_key_text(model->keys, "%.rope.scaling.type", "yarn");
    gguf_key_f32(model->keys, "%.rope.scaling.factor", factor);
    gguf_key_u32(model->keys, "%.rope.scaling.original_context_length", (uint64_t)original);
    gguf_key_f32(model->keys, "%.rope.scaling.yarn_beta_fast",
                 number_in(rope->object, "beta_fast", 32));
    gguf_key_f32(model->keys, "%.rope.scaling.yarn_beta_slow",
                 number_in(rope->object, "beta_slow", 1));
    return FSDP_OK;
}

/* Llama 3.1's scaling by wave length: as factors that frequencies are divided by. */
static int llama3_factors(struct gguf_model *model, const struct rope *rope, double theta,
                          struct fsdp_err *err)
{
    double factor, low, high, original;
    FSDP_TRY(need_number(&factor, model, rope, "factor", err));
    FSDP_TRY(need_number(&low, model, rope, "low_freq_factor", err));
    FSDP_TRY(need_number(&high, model, rope, "high_freq_factor", err));
    FSDP_TRY(need_number(&original, model, rope, "original_max_position_embeddings", err));
    const size_t half = (size_t)model->head_dim / 2;
    float *values = add_constant(model, "rope_freqs.weight", half, err);
    if (!values)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < half; i++) {
        const double waves =
            original / (2 * M_PI * pow(theta, (double)(2 * i) / (double)model->head_dim));
        const double smooth = (waves - low) / (high - low);
        values[i] = (float)(waves < low    ? factor
                            : waves > high ? 1
                                           : 1 / ((1 - smooth) / factor + smooth));
    }
    return FSDP_OK;
}

static int copy_factors(struct gguf_model *model, const struct rope *rope, const char *key,
                        const char *name, size_t half, struct fsdp_err *err)
{
    const json_t *list = json_object_get(rope->object, key);
    if (json_array_size(list) != half)
        return fsdp_err_set(err, FSDP_EINVAL, "'%s': %s: %s has %zu numbers instead of %zu",
                            model->config->path, rope->key, key, json_array_size(list), half);
    float *values = add_constant(model, name, half, err);
    for (size_t i = 0; values && i < half; i++)
        values[i] = (float)json_number_value(json_array_get(list, i));
    return values ? FSDP_OK : FSDP_ENOMEM;
}

static int long_keys(struct gguf_model *model, const struct rope *rope, struct fsdp_err *err)
{
    double original = number_in(rope->object, "original_max_position_embeddings", 0);
    const size_t half = (size_t)rope_dim(model, rope->object) / 2;
    if (original <= 0)
        FSDP_TRY(gguf_config_number(&original, model->config, "original_max_position_embeddings", 0,
                                    err));
    if (original <= 1)
        return fsdp_err_set(err, FSDP_EINVAL, "'%s': %s has no original_max_position_embeddings",
                            model->config->path, rope->key);
    const double scale = (double)model->max_seq_len / original;
    const double attn = scale > 1 ? sqrt(1 + log(scale) / log(original)) : 1;
    if (has(rope->object, "attention_factor") || has(rope->object, "short_mscale"))
        return gguf_refuse(model->config, rope->key, err,
                           "has an attention_factor, which is not written as GGUF");
    FSDP_TRY(copy_factors(model, rope, "long_factor", "rope_factors_long.weight", half, err));
    FSDP_TRY(copy_factors(model, rope, "short_factor", "rope_factors_short.weight", half, err));
    gguf_key_text(model->keys, "%.rope.scaling.type", "longrope");
    gguf_key_u32(model->keys, "%.rope.scaling.original_context_length", (uint64_t)original);
    gguf_key_f32(model->keys, "%.rope.scaling.attn_factor", attn);
    return FSDP_OK;
}

static int scaling_keys(struct gguf_model *model, const struct rope *rope, double theta,
                        struct fsdp_err *err)
{
    const char *type = type_of(rope->object);
    if (!strcmp(type, "default"))
        return FSDP_OK;
    if (!strcmp(type, "linear"))
        return linear_keys(model, rope, err);
    if (!strcmp(type, "yarn"))
        return yarn_keys(model, rope, err);
    if (!strcmp(type, "llama3") && !strcmp(model->family->arch, "llama"))
        return llama3_factors(model, rope, theta, err);
    if ((!strcmp(type, "longrope") || !strcmp(type, "su")) && model->family->long_rope)
        return long_keys(model, rope, err);
    return gguf_refuse(model->config, rope->key, err,
                       "has rope_type '%.32s', which GGUF's architecture '%s' cannot carry", type,
                       model->family->arch);
}

/* ---- all ------------------------------------------------------------------------------------- */

/* Of layers with a window. */
static int sliding_keys(struct gguf_model *model, const json_t *sliding, struct fsdp_err *err)
{
    double theta;
    if (sliding && strcmp(type_of(sliding), "default"))
        return gguf_refuse(model->config, "rope_parameters", err,
                           "scales the positions of layers with a window, which GGUF cannot carry");
    FSDP_TRY(gguf_config_number(&theta, model->config, "rope_local_base_freq", 1e4, err));
    gguf_key_f32(model->keys, "%.rope.freq_base_swa", number_in(sliding, "rope_theta", theta));
    return FSDP_OK;
}

int gguf_keys_rope(struct gguf_model *model, struct fsdp_err *err)
{
    struct rope rope = find_rope(model->config);
    const json_t *sliding = object_of(rope.object, "sliding_attention");
    const json_t *full = object_of(rope.object, "full_attention");
    const double usual = model->family->rope_theta > 0 ? model->family->rope_theta : 1e4;
    double theta;
    rope.object = full ? full : rope.object;
    FSDP_TRY(gguf_config_number(&theta, model->config, "rope_theta", usual, err));
    theta = number_in(rope.object, "rope_theta", theta);
    const uint64_t dim = rope_dim(model, rope.object);
    if (dim != model->head_dim && !model->family->partial_rope)
        return gguf_refuse(model->config, "partial_rotary_factor", err,
                           "turns %llu of %llu elements, which GGUF's architecture '%s' cannot "
                           "carry",
                           (unsigned long long)dim, (unsigned long long)model->head_dim,
                           model->family->arch);
    gguf_key_u32(model->keys, "%.rope.dimension_count", dim);
    gguf_key_f32(model->keys, "%.rope.freq_base", theta);
    if (sliding || !strcmp(model->family->arch, "gemma3"))
        FSDP_TRY(sliding_keys(model, sliding, err));
    return scaling_keys(model, &rope, theta, err);
}
