/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of architectures, a function for each trait that some of them share. */
#include <math.h>
#include <string.h>

#include "family.h"
#include "util/family.h"

static int put_eps(const struct gguf_model *model, const char *key, const char *name,
                   struct fsdp_err *err)
{
    double eps;
    const double usual = ckpt_family_eps(model->family->type);
    FSDP_TRY(gguf_config_number(&eps, model->config, name, usual, err));
    if (!(eps > 0))
        return fsdp_err_set(err, FSDP_EINVAL, "'%s': %s is not positive", model->config->path,
                            name);
    gguf_key_f32(model->keys, key, eps);
    return FSDP_OK;
}

/* Names of one function; llama.cpp has but one GELU, that by tanh. */
static bool is_same_act(const char *one, const char *other)
{
    static const char *const acts[][9] = {{"silu", "swish"},
                                          {"gelu", "gelu_new", "gelu_fast", "gelu_accurate",
                                           "gelu_python", "gelu_python_tanh", "gelu_pytorch_tanh"}};
    if (!strcmp(one, other))
        return true;
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        int found = 0;
        for (const char *const *name = acts[i]; *name; name++)
            found += !strcmp(*name, one) || !strcmp(*name, other);
        if (found == 2)
            return true;
    }
    return false;
}

static int check_act(const struct gguf_model *model, struct fsdp_err *err)
{
    const struct gguf_family *family = model->family;
    const char *act =
        family->act ? gguf_config_text(model->config, family->act_key, family->act) : NULL;
    if (!act || is_same_act(act, family->act))
        return FSDP_OK;
    return gguf_refuse(model->config, family->act_key, err,
                       "is '%.32s': GGUF's architecture '%s' has '%s' alone", act, family->arch,
                       family->act);
}

static void size_keys(const struct gguf_model *model, uint64_t ffn)
{
    gguf_key_u32(model->keys, "%.context_length", model->max_seq_len);
    gguf_key_u32(model->keys, "%.embedding_length", model->dim);
    gguf_key_u32(model->keys, "%.block_count", model->nlayers);
    gguf_key_u32(model->keys, "%.feed_forward_length", ffn);
    gguf_key_u32(model->keys, "%.attention.head_count", model->nheads);
    gguf_key_u32(model->keys, "%.attention.head_count_kv", model->nkv_heads);
}

int gguf_keys_llama(struct gguf_model *model, struct fsdp_err *err)
{
    uint64_t ffn;
    FSDP_TRY(check_act(model, err));
    FSDP_TRY(gguf_config_need(&ffn, model->config, "intermediate_size", err));
    size_keys(model, ffn);
    FSDP_TRY(put_eps(model, "%.attention.layer_norm_rms_epsilon", "rms_norm_eps", err));
    return gguf_keys_rope(model, err);
}

int gguf_keys_vocab(struct gguf_model *model, struct fsdp_err *err)
{
    uint64_t vocab;
    FSDP_TRY(gguf_config_need(&vocab, model->config, "vocab_size", err));
    gguf_key_u32(model->keys, "%.vocab_size", vocab);
    return FSDP_OK;
}

int gguf_keys_head_dim(struct gguf_model *model, struct fsdp_err *err)
{
    (void)err;
    gguf_key_u32(model->keys, "%.attention.key_length", model->head_dim);
    gguf_key_u32(model->keys, "%.attention.value_length", model->head_dim);
    return FSDP_OK;
}

/* llama.cpp takes heads of width / heads elements for these. */
int gguf_keys_even_heads(struct gguf_model *model, struct fsdp_err *err)
{
    if (model->head_dim * model->nheads == model->dim)
        return FSDP_OK;
    return gguf_refuse(model->config, "head_dim", err,
                       "is %llu: %llu heads of it are not hidden_size, which GGUF's architecture "
                       "'%s' cannot carry",
                       (unsigned long long)model->head_dim, (unsigned long long)model->nheads,
                       model->family->arch);
}

/* ---- GPT ------------------------------------------------------------------------------------- */

int gguf_keys_gpt2(struct gguf_model *model, struct fsdp_err *err)
{
    uint64_t ffn;
    FSDP_TRY(check_act(model, err));
    if (!gguf_config_flag(model->config, "scale_attn_weights", true))
        return gguf_refuse(model->config, "scale_attn_weights", err,
                           "is false, which GGUF cannot carry");
    if (gguf_config_flag(model->config, "scale_attn_by_inverse_layer_idx", false))
        return gguf_refuse(model->config, "scale_attn_by_inverse_layer_idx", err,
                           "is true, which GGUF cannot carry");
    FSDP_TRY(gguf_config_count(&ffn, model->config, "n_inner", err));
    size_keys(model, ffn ? ffn : 4 * model->dim);
    return put_eps(model, "%.attention.layer_norm_epsilon", "layer_norm_epsilon", err);
}

int gguf_keys_gpt_neox(struct gguf_model *model, struct fsdp_err *err)
{
    uint64_t ffn;
    FSDP_TRY(check_act(model, err));
    FSDP_TRY(gguf_config_need(&ffn, model->config, "intermediate_size", err));
    size_keys(model, ffn);
    gguf_key_bool(model->keys, "%.use_parallel_residual",
                  gguf_config_flag(model->config, "use_parallel_residual", true));
    FSDP_TRY(put_eps(model, "%.attention.layer_norm_epsilon", "layer_norm_eps", err));
    return gguf_keys_rope(model, err);
}

/* ---- windows --------------------------------------------------------------------------------- */

/* llama.cpp lets all layers of these see all tokens: the same within the window. */
int gguf_keys_window(struct gguf_model *model, struct fsdp_err *err)
{
    uint64_t window;
    const bool qwen =
        !strncmp(model->family->type, "qwen", 4) || !strcmp(model->family->type, "smollm3");
    FSDP_TRY(gguf_config_count(&window, model->config, "sliding_window", err));
    if (!json_object_get(model->config->root, "sliding_window"))
        window = model->family->window;
    if (qwen && !gguf_config_flag(model->config, "use_sliding_window", false))
        return FSDP_OK;
    if (!window || window >= model->max_seq_len)
        return FSDP_OK;
    fsdp_log(FSDP_LOG_WARN,
             "'%s': sliding_window %llu is not carried: in llama.cpp all layers of '%s' see all "
             "tokens, so that texts of more tokens than that give other logits",
             model->config->path, (unsigned long long)window, model->family->arch);
    return FSDP_OK;
}

/* llama.cpp takes a file without a window for one. For others some layer must have one. */
static bool can_lack_windows(const struct gguf_model *model)
{
    return !strcmp(model->family->arch, "gemma3") || !strcmp(model->family->arch, "olmo2");
}

/* window 0: no layer has one. Then all have one of the longest text. */
static void window_keys(struct gguf_model *model, bool *slides, uint64_t window)
{
    gguf_key_u32(model->keys, "%.attention.sliding_window", window ? window : model->max_seq_len);
    for (size_t i = 0; !window && i < model->nlayers; i++)
        slides[i] = true;
    gguf_key_bools(model->keys, "%.attention.sliding_window_pattern", slides,
                   (size_t)model->nlayers);
}

/* Which layers have a window: by layer_types, else all but each nth. */
int gguf_keys_layer_types(struct gguf_model *model, struct fsdp_err *err)
{
    const json_t *types = json_object_get(model->config->root, "layer_types");
    uint64_t window = 0, every = 2;
    bool *slides = fsdp_alloc((size_t)model->nlayers, sizeof *slides, "layer types", err);
    int rc =
        slides ? gguf_config_count(&window, model->config, "sliding_window", err) : FSDP_ENOMEM;
    if (!json_object_get(model->config->root, "sliding_window"))
        window = model->family->window;
    if (!strcmp(model->family->arch, "gemma3"))
        every = 6;
    if (!strcmp(model->family->arch, "olmo2"))
        every = 4;
    if (!strcmp(model->family->arch, "mimo2"))
        every = UINT64_MAX; /* all */
    if (rc == FSDP_OK && !strcmp(model->family->arch, "gemma3")) {
        uint64_t pattern;
        rc = gguf_config_count(&pattern, model->config, "sliding_window_pattern", err);
        every = pattern ? pattern : every;
    }
    if (rc == FSDP_OK && json_is_array(types) && json_array_size(types) != model->nlayers)
        rc = fsdp_err_set(err, FSDP_EINVAL, "'%s': layer_types has %zu entries for %llu layers",
                          model->config->path, json_array_size(types),
                          (unsigned long long)model->nlayers);
    bool any = false;
    for (size_t i = 0; rc == FSDP_OK && i < model->nlayers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        slides[i] = type ? !strcmp(type, "sliding_attention") : (i + 1) % every != 0;
        any |= slides[i] && window;
    }
    if (rc == FSDP_OK && (any || !can_lack_windows(model)))
        window_keys(model, slides, any ? window : 0);
    fsdp_free(slides);
    return rc;
}

/* ---- traits of families ---------------------------------------------------------------------- */

/* llama.cpp divides scores by the root of head_dim, in the 27B models of another number. */
int gguf_keys_gemma(struct gguf_model *model, struct fsdp_err *err)
{
    const uint64_t layers_27b = !strcmp(model->family->arch, "gemma2") ? 46 : 62;
    const double expected =
        (double)(model->nlayers == layers_27b ? model->dim / model->nheads : model->head_dim);
    double scalar;
    FSDP_TRY(gguf_config_number(&scalar, model->config, "query_pre_attn_scalar", 256, err));
    if (scalar != expected)
        return gguf_refuse(model->config, "query_pre_attn_scalar", err,
                           "is %g: GGUF has no key for it, and llama.cpp takes %g", scalar,
                           expected);
    return FSDP_OK;
}

/* A null is none; a key that is absent has transformers' value. */
static int read_softcap(double *out, const struct gguf_model *model, const char *key, double usual,
                        struct fsdp_err *err)
{
    const bool absent = !json_object_get(model->config->root, key);
    return gguf_config_number(out, model->config, key, absent ? usual : 0, err);
}

int gguf_keys_softcaps(struct gguf_model *model, struct fsdp_err *err)
{
    static const char attn_key[] = "attn_logit_softcapping",
                      final_key[] = "final_logit_softcapping";
    const bool both = !strcmp(model->family->arch, "gemma2");
    double attn, final;
    FSDP_TRY(read_softcap(&attn, model, attn_key, both ? 50 : 0, err));
    FSDP_TRY(read_softcap(&final, model, final_key, both ? 30 : 0, err));
    if (both && !(attn > 0 && final > 0))
        return gguf_refuse(model->config, attn > 0 ? final_key : attn_key, err,
                           "is none, and llama.cpp's 'gemma2' always caps");
    if (!both && attn > 0)
        return gguf_refuse(model->config, "attn_logit_softcapping", err,
                           "cannot be carried by GGUF's architecture '%s'", model->family->arch);
    if (attn > 0)
        gguf_key_f32(model->keys, "%.attn_logit_softcapping", attn);
    if (final > 0)
        gguf_key_f32(model->keys, "%.final_logit_softcapping", final);
    return FSDP_OK;
}

/* Each fourth layer has no rotary positions, by llama.cpp's own count. */
int gguf_keys_smollm3(struct gguf_model *model, struct fsdp_err *err)
{
    const json_t *list = json_object_get(model->config->root, "no_rope_layers");
    uint64_t every;
    FSDP_TRY(gguf_config_count(&every, model->config, "no_rope_layer_interval", err));
    bool fits = json_is_array(list) || !every || every == 4;
    for (size_t i = 0; fits && i < json_array_size(list); i++)
        fits = (json_integer_value(json_array_get(list, i)) == 0) == ((i + 1) % 4 == 0);
    return fits ? FSDP_OK
                : gguf_refuse(model->config, "no_rope_layers", err,
                              "leaves out other layers than each fourth, which GGUF cannot carry");
}

int gguf_keys_phi3(struct gguf_model *model, struct fsdp_err *err)
{
    double original;
    FSDP_TRY(gguf_config_number(&original, model->config, "original_max_position_embeddings",
                                model->family->original, err));
    if (!model->has_original)
        gguf_key_u32(model->keys, "%.rope.scaling.original_context_length", (uint64_t)original);
    return FSDP_OK;
}

/* Written as Xiaomi's MiMo 2, which llama.cpp has with a window for some layers, and, where its
 * files have no experts and no sinks, computes as Mistral's models are. */
int gguf_keys_ministral(struct gguf_model *model, struct fsdp_err *err)
{
    uint64_t ffn;
    FSDP_TRY(gguf_keys_llama(model, err));
    FSDP_TRY(gguf_config_need(&ffn, model->config, "intermediate_size", err));
    gguf_key_u32(model->keys, "%.expert_feed_forward_length", ffn);
    return gguf_keys_layer_types(model, err);
}

/* What transformers takes where config.json says nothing of positions. */
static int set_ministral3_rope(const struct gguf_model *model, struct fsdp_err *err)
{
    json_t *root = model->config->root;
    if (json_is_object(json_object_get(root, "rope_parameters")) ||
        json_is_object(json_object_get(root, "rope_scaling")))
        return FSDP_OK;
    json_t *rope =
        json_pack("{s:s, s:f, s:f, s:i, s:f, s:f, s:f}", "rope_type", "yarn", "rope_theta", 1e6,
                  "factor", 16.0, "original_max_position_embeddings", 16384, "mscale", 1.0,
                  "mscale_all_dim", 1.0, "llama_4_scaling_beta", 0.1);
    return json_object_set_new(root, "rope_parameters", rope)
               ? fsdp_err_set(err, FSDP_ENOMEM, "'%s': out of memory", model->config->path)
               : FSDP_OK;
}

int gguf_keys_ministral3(struct gguf_model *model, struct fsdp_err *err)
{
    FSDP_TRY(set_ministral3_rope(model, err));
    FSDP_TRY(gguf_keys_llama(model, err));
    return gguf_keys_temperature(model, err);
}

int gguf_keys_granite(struct gguf_model *model, struct fsdp_err *err)
{
    static const struct {
        const char *key, *name;
    } scales[] = {{"%.attention.scale", "attention_multiplier"},
                  {"%.embedding_scale", "embedding_multiplier"},
                  {"%.residual_scale", "residual_multiplier"},
                  {"%.logit_scale", "logits_scaling"}};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        double value;
        FSDP_TRY(gguf_config_number(&value, model->config, scales[i].name, 1, err));
        gguf_key_f32(model->keys, scales[i].key, value);
    }
    return FSDP_OK;
}

/* ---- experts --------------------------------------------------------------------------------- */

int gguf_keys_experts(struct gguf_model *model, struct fsdp_err *err)
{
    uint64_t used, ffn;
    FSDP_TRY(gguf_config_count(&used, model->config, "num_experts_per_tok", err));
    if (!used)
        used = ckpt_family_experts_per_token(model->family->type);
    FSDP_TRY(gguf_config_count(&ffn, model->config, "moe_intermediate_size", err));
    gguf_key_u32(model->keys, "%.expert_count", model->nexperts);
    gguf_key_u32(model->keys, "%.expert_used_count", used);
    if (ffn)
        gguf_key_u32(model->keys, "%.expert_feed_forward_length", ffn);
    return FSDP_OK;
}

int gguf_keys_shared_expert(struct gguf_model *model, struct fsdp_err *err)
{
    uint64_t ffn;
    FSDP_TRY(gguf_config_need(&ffn, model->config, "shared_intermediate_size", err));
    gguf_key_u32(model->keys, "%.expert_shared_feed_forward_length", ffn);
    return FSDP_OK;
}

/* The weights of a token's experts sum to 1 there. */
int gguf_keys_routing(struct gguf_model *model, struct fsdp_err *err)
{
    const json_t *dense = json_object_get(model->config->root, "mlp_only_layers");
    uint64_t step;
    FSDP_TRY(gguf_config_count(&step, model->config, "decoder_sparse_step", err));
    if (!gguf_config_flag(model->config, "norm_topk_prob", false))
        return gguf_refuse(model->config, "norm_topk_prob", err,
                           "is false: llama.cpp's '%s' makes the weights of experts sum to 1",
                           model->family->arch);
    if (json_array_size(dense) || step > 1)
        return gguf_refuse(model->config, "mlp_only_layers", err,
                           "or decoder_sparse_step gives some layers no experts, which GGUF's "
                           "architecture '%s' cannot carry",
                           model->family->arch);
    return FSDP_OK;
}

int gguf_keys_olmoe(struct gguf_model *model, struct fsdp_err *err)
{
    if (gguf_config_flag(model->config, "norm_topk_prob", false))
        return gguf_refuse(
            model->config, "norm_topk_prob", err,
            "is true: llama.cpp's 'olmoe' leaves the weights of experts as they are");
    if (model->nkv_heads != model->nheads)
        return gguf_refuse(model->config, "num_key_value_heads", err,
                           "is not num_attention_heads, which GGUF's architecture 'olmoe' cannot "
                           "carry");
    return FSDP_OK;
}

int gguf_keys_gpt_oss(struct gguf_model *model, struct fsdp_err *err)
{
    uint64_t ffn;
    double limit;
    FSDP_TRY(gguf_config_need(&ffn, model->config, "intermediate_size", err));
    FSDP_TRY(gguf_config_number(&limit, model->config, "swiglu_limit", 7, err));
    if (limit != 7)
        return gguf_refuse(model->config, "swiglu_limit", err,
                           "is %g: GGUF has no key for it, and llama.cpp takes 7", limit);
    gguf_key_u32(model->keys, "%.expert_feed_forward_length", ffn);
    return FSDP_OK;
}
