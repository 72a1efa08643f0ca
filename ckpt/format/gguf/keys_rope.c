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
    const json_t *whole;  /* where `object` is of some layers alone: what it lies in */
    const char *key;      /* of config.json, for errors */
};

static const json_t *object_of(const json_t *parent, const char *key)
{
    const json_t *found = json_object_get(parent, key);
    return json_is_object(found) ? found : NULL;
}

static struct rope find_rope(const struct gguf_config *config)
{
    struct rope rope = {.object = object_of(config->root, "rope_parameters"),
                        .key = "rope_parameters"};
    if (!rope.object)
        rope =
            (struct rope){.object = object_of(config->root, "rope_scaling"), .key = "rope_scaling"};
    rope.whole = rope.object;
    const json_t *full = object_of(rope.object, "full_attention");
    rope.object = full ? full : rope.object;
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

/* The length that a model was trained with, before its positions were scaled. */
static int original_length(double *out, const struct gguf_model *model, const struct rope *rope,
                           struct fsdp_err *err)
{
    static const char key[] = "original_max_position_embeddings";
    *out = 0;
    if (rope->object == rope->whole)
        FSDP_TRY(gguf_config_number(out, model->config, key, model->family->original, err));
    if (*out > 0)
        return FSDP_OK;
    if (has(rope->object, key))
        return need_number(out, model, rope, key, err);
    *out = (double)model->max_seq_len;
    return FSDP_OK;
}

static void original_key(struct gguf_model *model, double original)
{
    gguf_key_u32(model->keys, "%.rope.scaling.original_context_length", (uint64_t)original);
    model->has_original = true;
}

/* What cosines and sines are multiplied with: llama.cpp does so in all layers. */
static int attn_factor_key(struct gguf_model *model, const struct rope *rope, double factor,
                           struct fsdp_err *err)
{
    if (fabs(factor - 1) < 1e-9)
        return FSDP_OK;
    if (!strcmp(model->family->arch, "gemma3"))
        return gguf_refuse(model->config, rope->key, err,
                           "has an attention factor of some layers alone, which GGUF's "
                           "architecture 'gemma3' cannot carry");
    gguf_key_f32(model->keys, "%.rope.scaling.attn_factor", factor);
    return FSDP_OK;
}

static int linear_keys(struct gguf_model *model, const struct rope *rope, struct fsdp_err *err)
{
    double factor;
    FSDP_TRY(need_number(&factor, model, rope, "factor", err));
    gguf_key_text(model->keys, "%.rope.scaling.type", "linear");
    gguf_key_f32(model->keys, "%.rope.scaling.factor", factor);
    return FSDP_OK;
}

/* ---- YaRN: Peng et al. 2023, as transformers computes it ------------------------------------- */

struct yarn {
    double factor, original, beta_fast, beta_slow, attn;
};

static double magnitude(double factor, double scale)
{
    return factor > 1 ? 0.1 * scale * log(factor) + 1 : 1;
}

/* 0 stands for the usual value, too. */
static double number_or(const json_t *object, const char *key, double usual)
{
    const double value = number_in(object, key, usual);
    return value != 0 ? value : usual;
}

static int read_yarn(struct yarn *yarn, const struct gguf_model *model, const struct rope *rope,
                     struct fsdp_err *err)
{
    const double mscale = number_in(rope->object, "mscale", 0);
    const double all_dim = number_in(rope->object, "mscale_all_dim", 0);
    FSDP_TRY(original_length(&yarn->original, model, rope, err));
    if (json_is_null(json_object_get(rope->object, "factor")))
        yarn->factor = (double)model->max_seq_len / yarn->original;
    else
        FSDP_TRY(need_number(&yarn->factor, model, rope, "factor", err));
    yarn->beta_fast = number_or(rope->object, "beta_fast", 32);
    yarn->beta_slow = number_or(rope->object, "beta_slow", 1);
    yarn->attn = magnitude(yarn->factor, 1);
    if (mscale != 0 && all_dim != 0)
        yarn->attn = magnitude(yarn->factor, mscale) / magnitude(yarn->factor, all_dim);
    yarn->attn = number_in(rope->object, "attention_factor", yarn->attn);
    return FSDP_OK;
}

/* The pair of a head that turns so often within the original length. */
static double pair_of_turns(const struct yarn *yarn, double turns, double dim, double theta)
{
    return dim * log(yarn->original / (turns * 2 * M_PI)) / (2 * log(theta));
}

/* llama.cpp rounds the bounds between which the scaling begins. Where they are not rounded, its
 * factors of frequencies say the same. */
static int yarn_factors(struct gguf_model *model, const struct rope *rope, const struct yarn *yarn,
                        double theta, struct fsdp_err *err)
{
    const double dim = (double)model->head_dim;
    const double low = fmax(pair_of_turns(yarn, yarn->beta_fast, dim, theta), 0);
    const double high = fmin(pair_of_turns(yarn, yarn->beta_slow, dim, theta), dim - 1);
    const double width = high != low ? high - low : 0.001;
    const size_t half = (size_t)model->head_dim / 2;
    float *values = add_constant(model, "rope_freqs.weight", half, err);
    if (!values)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < half; i++) {
        const double ramp = fmin(fmax(((double)i - low) / width, 0), 1);
        values[i] = (float)(1 / (ramp / yarn->factor + 1 - ramp));
    }
    return attn_factor_key(model, rope, yarn->attn, err);
}

static int yarn_keys(struct gguf_model *model, const struct rope *rope, double theta,
                     struct fsdp_err *err)
{
    struct yarn yarn;
    const double all_dim = number_in(rope->object, "mscale_all_dim", 0);
    FSDP_TRY(read_yarn(&yarn, model, rope, err));
    if (json_is_false(json_object_get(rope->whole, "truncate"))) {
        if (model->family->any_factors)
            return yarn_factors(model, rope, &yarn, theta, err);
        return gguf_refuse(model->config, rope->key, err,
                           "has truncate false: llama.cpp rounds the bounds of YaRN's correction, "
                           "so that its logits differ; take truncate out of config.json for a file "
                           "as llama.cpp's own converter writes it");
    }
    gguf_key_text(model->keys, "%.rope.scaling.type", "yarn");
    gguf_key_f32(model->keys, "%.rope.scaling.factor", yarn.factor);
    original_key(model, yarn.original);
    gguf_key_f32(model->keys, "%.rope.scaling.yarn_beta_fast", yarn.beta_fast);
    gguf_key_f32(model->keys, "%.rope.scaling.yarn_beta_slow", yarn.beta_slow);
    /* llama.cpp's own factor follows from `factor`; for this architecture it has another key. */
    double own = magnitude(yarn.factor, 1);
    if (!strcmp(model->family->arch, "mistral3") && all_dim != 0) {
        gguf_key_f32(model->keys, "%.rope.scaling.yarn_log_multiplier", all_dim);
        own /= magnitude(yarn.factor, all_dim);
    }
    return attn_factor_key(model, rope, yarn.attn / own, err);
}

/* ---- factors of frequencies ------------------------------------------------------------------ */

/* Llama 3.1's scaling by wave length: as factors that frequencies are divided by. */
static int llama3_factors(struct gguf_model *model, const struct rope *rope, double theta,
                          struct fsdp_err *err)
{
    double factor, low, high, original;
    FSDP_TRY(need_number(&factor, model, rope, "factor", err));
    FSDP_TRY(need_number(&low, model, rope, "low_freq_factor", err));
    FSDP_TRY(need_number(&high, model, rope, "high_freq_factor", err));
    FSDP_TRY(original_length(&original, model, rope, err));
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
    double original;
    const size_t half = (size_t)rope_dim(model, rope->object) / 2;
    FSDP_TRY(original_length(&original, model, rope, err));
    if (original <= 1)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "'%s': %s has an original_max_position_embeddings of %g",
                            model->config->path, rope->key, original);
    const double scale = number_in(rope->object, "factor", (double)model->max_seq_len / original);
    const double attn = scale > 1 ? sqrt(1 + log(scale) / log(original)) : 1;
    FSDP_TRY(copy_factors(model, rope, "long_factor", "rope_factors_long.weight", half, err));
    FSDP_TRY(copy_factors(model, rope, "short_factor", "rope_factors_short.weight", half, err));
    gguf_key_text(model->keys, "%.rope.scaling.type", "longrope");
    original_key(model, original);
    gguf_key_f32(model->keys, "%.rope.scaling.attn_factor",
                 number_in(rope->object, "attention_factor", attn));
    return FSDP_OK;
}

/* ---- the kind -------------------------------------------------------------------------------- */

/* transformers scales them anew for each longer text. */
static int keep_dynamic(const struct gguf_model *model, const struct rope *rope)
{
    fsdp_log(FSDP_LOG_WARN,
             "'%s': %s of type 'dynamic' is not carried: it is of texts of more than %llu tokens, "
             "which get other logits in llama.cpp",
             model->config->path, rope->key, (unsigned long long)model->max_seq_len);
    return FSDP_OK;
}

static bool is_long(const struct gguf_model *model, const char *type)
{
    if (!strcmp(model->family->type, "phi3") && !strcmp(type, "yarn"))
        return true; /* so Microsoft's first files call it */
    return !strcmp(type, "longrope") || !strcmp(type, "su");
}

static int scaling_keys(struct gguf_model *model, const struct rope *rope, double theta,
                        struct fsdp_err *err)
{
    const char *type = type_of(rope->object);
    if (!strcmp(type, "default"))
        return FSDP_OK;
    if (!strcmp(type, "dynamic"))
        return keep_dynamic(model, rope);
    if (!strcmp(model->family->arch, "mimo2"))
        return gguf_refuse(model->config, rope->key, err,
                           "has rope_type '%.32s': llama.cpp's 'mimo2' scales the positions of "
                           "layers without a window alone",
                           type);
    if (is_long(model, type) && model->family->long_rope)
        return long_keys(model, rope, err);
    if (!strcmp(type, "linear"))
        return linear_keys(model, rope, err);
    if (!strcmp(type, "yarn"))
        return yarn_keys(model, rope, theta, err);
    if (!strcmp(type, "llama3") && model->family->any_factors)
        return llama3_factors(model, rope, theta, err);
    return gguf_refuse(model->config, rope->key, err,
                       "has rope_type '%.32s', which GGUF's architecture '%s' cannot carry", type,
                       model->family->arch);
}

/* ---- all ------------------------------------------------------------------------------------- */

/* Of layers with a window. theta: of those without. */
static int sliding_keys(struct gguf_model *model, const json_t *sliding, double theta,
                        struct fsdp_err *err)
{
    const char *arch = model->family->arch;
    double own = theta;
    if (sliding && strcmp(type_of(sliding), "default"))
        return gguf_refuse(model->config, "rope_parameters", err,
                           "scales the positions of layers with a window, which GGUF cannot carry");
    if (!strcmp(arch, "gemma3"))
        FSDP_TRY(gguf_config_number(&own, model->config, "rope_local_base_freq", 1e4, err));
    own = number_in(sliding, "rope_theta", own);
    if (!strcmp(arch, "olmo2") && own != theta)
        return gguf_refuse(model->config, "rope_parameters", err,
                           "has a rope_theta of %g for layers with a window and of %g for others, "
                           "and GGUF's architecture 'olmo2' has one",
                           own, theta);
    gguf_key_f32(model->keys, "%.rope.freq_base_swa", own);
    return FSDP_OK;
}

int gguf_keys_rope(struct gguf_model *model, struct fsdp_err *err)
{
    const struct rope rope = find_rope(model->config);
    const json_t *sliding = object_of(rope.whole, "sliding_attention");
    const char *arch = model->family->arch;
    const double usual = model->family->rope_theta > 0 ? model->family->rope_theta : 1e4;
    double theta;
    FSDP_TRY(gguf_config_number(&theta, model->config, "rope_theta", usual, err));
    theta = number_in(rope.object, "rope_theta", theta);
    const uint64_t dim = rope_dim(model, rope.object);
    if (dim != model->head_dim && !model->family->partial_rope)
        return gguf_refuse(model->config, "partial_rotary_factor", err,
                           "turns %llu of %llu elements, which GGUF's architecture '%s' cannot "
                           "carry",
                           (unsigned long long)dim, (unsigned long long)model->head_dim, arch);
    gguf_key_u32(model->keys, "%.rope.dimension_count", dim);
    gguf_key_f32(model->keys, "%.rope.freq_base", theta);
    if (sliding || !strcmp(arch, "gemma3") || !strcmp(arch, "mimo2") ||
        !strcmp(model->family->type, "olmo3"))
        FSDP_TRY(sliding_keys(model, sliding, theta, err));
    return scaling_keys(model, &rope, theta, err);
}

int gguf_keys_temperature(struct gguf_model *model, struct fsdp_err *err)
{
    static const char key[] = "llama_4_scaling_beta";
    const struct rope rope = find_rope(model->config);
    double original;
    if (!json_is_number(json_object_get(rope.object, key)))
        return fsdp_err_set(err, FSDP_EINVAL, "'%s': %s has no %s", model->config->path, rope.key,
                            key);
    FSDP_TRY(original_length(&original, model, &rope, err));
    if (!model->has_original)
        original_key(model, original);
    gguf_key_f32(model->keys, "%.attention.temperature_scale", number_in(rope.object, key, 0));
    return FSDP_OK;
}
