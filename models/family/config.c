/* SPDX-License-Identifier: Apache-2.0 */
/* From the keys of config.json, as transformers 4 and 5 write them, to traits. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "family.h"

void traits_free(struct traits *t)
{
    for (int i = 0; i < TRAITS_NROPES; i++) {
        fsdp_free(t->rope[i].inv_freq);
        fsdp_free(t->rope[i].long_inv_freq);
    }
    fsdp_free(t->layers);
    *t = (struct traits){0};
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* An absent key is the family's own number, and null as many as there are heads. */
static int read_kv_heads(struct traits *t, const struct family_keys *k, const struct hf_config *hf,
                         struct fsdp_err *err)
{
    FSDP_TRY(hf_int(hf, k->nheads, true, 1, TRAITS_MAX_DIM, &t->nheads, err));
    if (!t->nkv_heads || hf_is_null(hf, k->nkv_heads))
        t->nkv_heads = t->nheads;
    if (k->nkv_heads)
        FSDP_TRY(hf_int(hf, k->nkv_heads, false, 1, t->nheads, &t->nkv_heads, err));
    if (t->nheads % t->nkv_heads)
        return hf_refuse(hf, FSDP_EINVAL, err, k->nkv_heads,
                         "is %d%s, which does not divide %s (%d)", t->nkv_heads,
                         hf_has(hf, k->nkv_heads) ? "" : " where the file does not say", k->nheads,
                         t->nheads);
    return FSDP_OK;
}

static int read_heads(struct traits *t, const struct family_keys *k, const struct hf_config *hf,
                      struct fsdp_err *err)
{
    FSDP_TRY(read_kv_heads(t, k, hf, err));
    const bool given = k->head_dim && hf_has(hf, k->head_dim);
    if (k->head_dim && hf_is_null(hf, k->head_dim))
        t->head_dim = 0;
    if (!given && !t->head_dim && t->dim % t->nheads)
        return hf_refuse(hf, FSDP_EINVAL, err, k->dim, "is %d, not a multiple of %s (%d)", t->dim,
                         k->nheads, t->nheads);
    if (!t->head_dim)
        t->head_dim = t->dim / t->nheads;
    if (given)
        FSDP_TRY(hf_int(hf, k->head_dim, false, 1, 4096, &t->head_dim, err));
    if ((int64_t)t->nheads * t->head_dim > TRAITS_MAX_DIM)
        return hf_refuse(hf, FSDP_EINVAL, err, k->nheads, "times head_dim is over %d",
                         TRAITS_MAX_DIM);
    return FSDP_OK;
}

static int read_sizes(struct traits *t, const struct family_keys *k, const struct hf_config *hf,
                      struct fsdp_err *err)
{
    FSDP_TRY(hf_int(hf, "vocab_size", true, 2, TRAITS_MAX_VOCAB, &t->vocab, err));
    FSDP_TRY(hf_int(hf, k->dim, true, 1, TRAITS_MAX_DIM, &t->dim, err));
    FSDP_TRY(hf_int(hf, k->nlayers, true, 1, TRAITS_MAX_LAYERS, &t->nlayers, err));
    FSDP_TRY(read_heads(t, k, hf, err));
    if (!k->ffn || k->expert_ffn) /* an MLP besides experts need not be */
        t->ffn = 0;
    else if (!hf_has(hf, k->ffn) && t->dim <= TRAITS_MAX_DIM / 4)
        t->ffn = 4 * t->dim; /* GPT-2's, which need not say so */
    if (k->ffn)
        FSDP_TRY(hf_int(hf, k->ffn, t->gated && !k->expert_ffn, k->expert_ffn ? 0 : 1,
                        TRAITS_MAX_DIM, &t->ffn, err));
    return hf_int(hf, k->max_seq_len, !t->max_seq_len, 1, TRAITS_MAX_SEQ, &t->max_seq_len, err);
}

/* ---- what most families have ----------------------------------------------------------------- */

static int read_act(struct traits *t, const struct family_keys *k, const struct hf_config *hf,
                    struct fsdp_err *err)
{
    static const struct {
        const char *name;
        enum nn_act act;
    } acts[] = {{"silu", NN_SILU},
                {"swish", NN_SILU},
                {"gelu", NN_GELU},
                {"gelu_new", NN_GELU_TANH},
                {"gelu_pytorch_tanh", NN_GELU_TANH},
                {"gelu_fast", NN_GELU_TANH},
                {"gelu_accurate", NN_GELU_TANH},
                {"gelu_python", NN_GELU},
                {"relu", NN_RELU}};
    enum { NACTS = sizeof acts / sizeof acts[0] };
    const char *name = NULL;

    if (k->act)
        FSDP_TRY(hf_text(hf, k->act, false, &name, err));
    for (int i = 0; name && i < NACTS; i++)
        if (!strcmp(name, acts[i].name)) {
            t->act = acts[i].act;
            return FSDP_OK;
        }
    if (name)
        return hf_refuse(hf, FSDP_EUNSUPPORTED, err, k->act,
                         "is '%.64s'; supported are silu, gelu, gelu_new, gelu_pytorch_tanh and "
                         "relu",
                         name);
    return FSDP_OK;
}

static int read_experts(struct traits *t, const struct family_keys *k, const struct hf_config *hf,
                        struct fsdp_err *err)
{
    if (!k->expert_ffn)
        return FSDP_OK;
    /* transformers 5 writes the second name in families that published files have with the first */
    FSDP_TRY(hf_int(hf, "num_experts", false, 1, TRAITS_MAX_EXPERTS, &t->experts, err));
    FSDP_TRY(hf_int(hf, "num_local_experts", false, 1, TRAITS_MAX_EXPERTS, &t->experts, err));
    FSDP_TRY(hf_int(hf, k->expert_ffn, true, 1, TRAITS_MAX_DIM, &t->expert_ffn, err));
    return hf_int(hf, "num_experts_per_tok", false, 1, t->experts, &t->experts_per_token, err);
}

static int read_dropouts(struct traits *t, const struct family_keys *k, const struct hf_config *hf,
                         struct fsdp_err *err)
{
    const struct {
        const char *key;
        double *out;
    } all[] = {{k->embed_drop, &t->embed_drop},
               {k->attn_drop, &t->attn_drop},
               {k->resid_drop, &t->resid_drop}};
    for (int i = 0; i < 3; i++)
        if (all[i].key)
            FSDP_TRY(hf_float(hf, all[i].key, false, 0, 1, all[i].out, err));
    return FSDP_OK;
}

/* Of bitsandbytes the 4 bits of QLoRA; the tensors say more. */
static int read_quantization(struct model_info *info, const struct hf_config *hf,
                             struct fsdp_err *err)
{
    const char *method = "", *type = "";

    if (!hf_has(hf, "quantization_config"))
        return FSDP_OK;
    FSDP_TRY(hf_text(hf, "quantization_config.quant_method", false, &method, err));
    FSDP_TRY(hf_text(hf, "quantization_config.bnb_4bit_quant_type", false, &type, err));
    info->packed = !strcmp(method, "bitsandbytes") && !strcmp(type, "nf4");
    if (info->packed)
        return FSDP_OK;
    return hf_refuse(
        hf, FSDP_EUNSUPPORTED, err, "quantization_config",
        "is set; of quantized models those of bitsandbytes in NF4 are read, for QLoRA: "
        "load the model in transformers with the weights dequantized (of MXFP4: "
        "quantization_config=Mxfp4Config(dequantize=True)), and save it with "
        "save_pretrained");
}

static int read_info(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    const char *key = hf_has(hf, "dtype") ? "dtype" : "torch_dtype", *text = "float32";
    struct model_info *info = &t->info;
    int eos[MODEL_MAX_EOS], bos = -1;

    t->init_std = 0.02;
    FSDP_TRY(hf_float(hf, "initializer_range", false, 0, 100, &t->init_std, err));
    FSDP_TRY(hf_bool(hf, "tie_word_embeddings", &t->tied, err));
    FSDP_TRY(read_quantization(info, hf, err));
    FSDP_TRY(hf_text(hf, key, false, &text, err));
    if (fsdp_dtype_parse(&info->dtype, text, NULL) || !fsdp_dtype_is_float(info->dtype))
        return hf_refuse(hf, FSDP_EINVAL, err, key,
                         "is '%.64s', not a floating type (float32, bfloat16, float16)", text);
    FSDP_TRY(
        hf_ints(hf, "eos_token_id", -1, TRAITS_MAX_VOCAB, eos, MODEL_MAX_EOS, &info->neos, err));
    for (int i = 0; i < info->neos; i++)
        info->eos[i] = eos[i];
    FSDP_TRY(hf_int(hf, "bos_token_id", false, -1, TRAITS_MAX_VOCAB, &bos, err));
    info->bos = bos;
    return FSDP_OK;
}

int family_read(struct traits *t, const struct family *family, const struct hf_config *hf,
                struct fsdp_err *err)
{
    const struct family_keys *k = family->keys;

    *t = family->traits;
    t->embed_scale = t->residual_scale = t->logit_scale = 1;
    FSDP_TRY(read_sizes(t, k, hf, err));
    if (!(t->layers = fsdp_alloc((size_t)t->nlayers, 1, "kinds of layers", err)))
        return FSDP_ENOMEM;
    FSDP_TRY(hf_float(hf, k->norm_eps, false, 0, 1, &t->norm_eps, err));
    FSDP_TRY(read_act(t, k, hf, err));
    FSDP_TRY(read_experts(t, k, hf, err));
    FSDP_TRY(read_dropouts(t, k, hf, err));
    FSDP_TRY(read_info(t, hf, err));
    for (int i = 0; i < t->nlayers; i++)
        t->layers[i] = family->no_rope ? 0 : TRAITS_ROTARY;
    for (int i = 0; i < FAMILY_MAX_READERS && family->read[i]; i++)
        FSDP_TRY(family->read[i](t, hf, err));
    if (family->rope_parameters)
        FSDP_TRY(hf_default(hf, "rope_parameters", "rope_scaling", family->rope_parameters, err));
    if (!family->no_rope)
        FSDP_TRY(family_read_rope(t, family, hf, err));
    return family_refuse_unknown(family, hf, err);
}

/* ---- readers --------------------------------------------------------------------------------- */

int family_attention_bias(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    FSDP_TRY(hf_bool(hf, "attention_bias", &t->qkv_bias, err));
    t->o_bias = t->qkv_bias;
    return FSDP_OK;
}

int family_mlp_bias(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    return hf_bool(hf, "mlp_bias", &t->mlp_bias, err);
}

/* null is no window, and an absent key the family's own. */
static int read_window(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    if (hf_is_null(hf, "sliding_window"))
        t->window = 0;
    return hf_int(hf, "sliding_window", false, 1, TRAITS_MAX_SEQ, &t->window, err);
}

int family_window(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    FSDP_TRY(read_window(t, hf, err));
    for (int i = 0; t->window > 0 && i < t->nlayers; i++)
        t->layers[i] |= TRAITS_SLIDING;
    return FSDP_OK;
}

/* Whether a layer has a window, as layer_types says, else `sliding`. */
static int read_layer_type(struct traits *t, int layer, bool sliding, const struct hf_config *hf,
                           struct fsdp_err *err)
{
    const char *type = sliding ? "sliding_attention" : "full_attention";

    FSDP_TRY(hf_text_at(hf, "layer_types", layer, t->nlayers, &type, err));
    sliding = !strcmp(type, "sliding_attention");
    if (!sliding && strcmp(type, "full_attention"))
        return hf_refuse(hf, FSDP_EUNSUPPORTED, err, "layer_types",
                         "has '%.64s'; supported are full_attention and sliding_attention", type);
    if (sliding && t->window == 0)
        return hf_refuse(hf, FSDP_EINVAL, err, "sliding_window",
                         "is not in use, but layer %d is of type sliding_attention; give the "
                         "window, or make the layer full_attention in layer_types",
                         layer);
    if (sliding)
        t->layers[layer] |= TRAITS_SLIDING;
    return FSDP_OK;
}

/* Gemma 3's, before layer_types. */
int family_window_pattern(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    FSDP_TRY(
        hf_int(hf, "sliding_window_pattern", false, 1, TRAITS_MAX_LAYERS, &t->window_every, err));
    return family_layer_types(t, hf, err);
}

int family_layer_types(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    const int every = t->window_every;

    FSDP_TRY(read_window(t, hf, err));
    /* Where no layer of a family sees all by itself, all do without a window. */
    const bool some = every > 0 && (t->window > 0 || every <= TRAITS_MAX_LAYERS);
    for (int i = 0; i < t->nlayers; i++)
        FSDP_TRY(read_layer_type(t, i, some && (i + 1) % every, hf, err));
    return FSDP_OK;
}

/* A window only where use_sliding_window says so, from layer max_window_layers on. */
int family_qwen_window(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    bool used = false;
    int first = 28;

    FSDP_TRY(hf_bool(hf, "use_sliding_window", &used, err));
    FSDP_TRY(hf_int(hf, "max_window_layers", false, 0, INT32_MAX, &first, err));
    FSDP_TRY(read_window(t, hf, err));
    if (!used)
        t->window = 0;
    for (int i = 0; i < t->nlayers; i++)
        FSDP_TRY(read_layer_type(t, i, t->window > 0 && i >= first, hf, err));
    return FSDP_OK;
}

/* Layers without rotary positions, which may have a window. */
int family_smollm3_layers(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    int every = 4, rotary[TRAITS_MAX_LAYERS], count;
    bool used = false;

    FSDP_TRY(hf_int(hf, "no_rope_layer_interval", false, 1, TRAITS_MAX_LAYERS, &every, err));
    FSDP_TRY(hf_ints(hf, "no_rope_layers", 0, 1, rotary, TRAITS_MAX_LAYERS, &count, err));
    if (count && count < t->nlayers)
        return hf_refuse(hf, FSDP_EINVAL, err, "no_rope_layers",
                         "has %d values, but the model has %d layers", count, t->nlayers);
    FSDP_TRY(hf_bool(hf, "use_sliding_window", &used, err));
    FSDP_TRY(read_window(t, hf, err));
    for (int i = 0; i < t->nlayers; i++) {
        const bool turns = count ? rotary[i] : (i + 1) % every != 0;
        if (!turns)
            t->layers[i] &= (uint8_t)~TRAITS_ROTARY;
        FSDP_TRY(read_layer_type(t, i, used && t->window > 0 && !turns, hf, err));
    }
    return FSDP_OK;
}

int family_parallel_residual(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    return hf_bool(hf, "use_parallel_residual", &t->parallel, err);
}

int family_multipliers(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    double logits = 1;

    t->attn_scale = 1;
    FSDP_TRY(hf_float(hf, "embedding_multiplier", false, 1e-6, 1e6, &t->embed_scale, err));
    FSDP_TRY(hf_float(hf, "residual_multiplier", false, 1e-6, 1e6, &t->residual_scale, err));
    FSDP_TRY(hf_float(hf, "attention_multiplier", false, 1e-9, 1e6, &t->attn_scale, err));
    FSDP_TRY(hf_float(hf, "logits_scaling", false, 1e-6, 1e6, &logits, err));
    t->logit_scale = 1 / logits;
    return FSDP_OK;
}

int family_gemma_scales(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    double scalar = 0;
    bool bidirectional = false;

    t->embed_scale = sqrt(t->dim);
    t->rounds_embed_scale = true;
    FSDP_TRY(hf_bool(hf, "use_bidirectional_attention", &bidirectional, err));
    if (bidirectional)
        return hf_refuse(hf, FSDP_EUNSUPPORTED, err, "use_bidirectional_attention",
                         "is true; only causal attention is supported");
    FSDP_TRY(hf_float(hf, "query_pre_attn_scalar", false, 1e-6, 1e9, &scalar, err));
    if (scalar > 0)
        t->attn_scale = 1 / sqrt(scalar);
    return FSDP_OK;
}

/* transformers reads "gelu" as the tanh approximation here, which the models were trained with. */
int family_gemma_act(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    (void)err;
    (void)hf_has(hf, "hidden_activation"); /* of older files; of no effect */
    if (t->act == NN_GELU)
        t->act = NN_GELU_TANH;
    return FSDP_OK;
}

static int read_softcap(double *out, const char *key, const struct hf_config *hf,
                        struct fsdp_err *err)
{
    if (hf_is_null(hf, key))
        *out = 0;
    return hf_float(hf, key, false, 1e-3, 1e6, out, err);
}

int family_logit_softcap(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    return read_softcap(&t->logit_softcap, "final_logit_softcapping", hf, err);
}

int family_softcaps(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    FSDP_TRY(read_softcap(&t->attn_softcap, "attn_logit_softcapping", hf, err));
    return family_logit_softcap(t, hf, err);
}

int family_gpt2_flags(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    static const struct {
        const char *key;
        bool wanted;
    } flags[] = {{"scale_attn_weights", true},
                 {"scale_attn_by_inverse_layer_idx", false},
                 {"add_cross_attention", false}};

    (void)t;
    for (int i = 0; i < 3; i++) {
        bool value = flags[i].wanted;
        FSDP_TRY(hf_bool(hf, flags[i].key, &value, err));
        if (value != flags[i].wanted)
            return hf_refuse(hf, FSDP_EUNSUPPORTED, err, flags[i].key,
                             "is %s; only %s is supported", value ? "true" : "false",
                             value ? "false" : "true");
    }
    return FSDP_OK;
}

/* transformers adds the loss where output_router_logits is true. */
int family_experts(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    double coef = t->router_aux_loss_coef, jitter = 0;
    bool added = false;

    FSDP_TRY(hf_bool(hf, "output_router_logits", &added, err));
    FSDP_TRY(hf_float(hf, "router_aux_loss_coef", false, 0, 1e6, &coef, err));
    FSDP_TRY(hf_float(hf, "router_jitter_noise", false, 0, 1, &jitter, err));
    if (jitter > 0)
        return hf_refuse(hf, FSDP_EUNSUPPORTED, err, "router_jitter_noise",
                         "is %g; noise in routing is not supported (set 0)", jitter);
    t->router_aux_loss_coef = added ? coef : 0;
    return FSDP_OK;
}

/* The numbers of its activation, which is an operator's. */
int family_gpt_oss_act(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    double alpha = 1.702, limit = NN_CLAMPED_SWISH_LIMIT;

    (void)t;
    (void)hf_has(hf, "experts_per_token"); /* of published files; of no effect */
    FSDP_TRY(hf_float(hf, "swiglu_alpha", false, 0, 1e6, &alpha, err));
    FSDP_TRY(hf_float(hf, "swiglu_limit", false, 0, 1e6, &limit, err));
    if (alpha != 1.702)
        return hf_refuse(hf, FSDP_EUNSUPPORTED, err, "swiglu_alpha",
                         "is %g; only 1.702 is supported", alpha);
    if (limit != NN_CLAMPED_SWISH_LIMIT)
        return hf_refuse(hf, FSDP_EUNSUPPORTED, err, "swiglu_limit", "is %g; only %g is supported",
                         limit, NN_CLAMPED_SWISH_LIMIT);
    return FSDP_OK;
}

int family_normalized_routing(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    return hf_bool(hf, "norm_topk_prob", &t->normalized_routing, err);
}

/* Some layers may have an MLP instead, and all of them a window. */
int family_qwen3_moe_layers(struct traits *t, const struct hf_config *hf, struct fsdp_err *err)
{
    int every = 1, dense[TRAITS_MAX_LAYERS], count;
    bool windows = false;

    FSDP_TRY(hf_int(hf, "decoder_sparse_step", false, 0, TRAITS_MAX_LAYERS, &every, err));
    FSDP_TRY(hf_ints(hf, "mlp_only_layers", 0, TRAITS_MAX_LAYERS, dense, TRAITS_MAX_LAYERS, &count,
                     err));
    if (every != 1)
        return hf_refuse(hf, FSDP_EUNSUPPORTED, err, "decoder_sparse_step",
                         "is %d; only models with experts in every layer are supported", every);
    if (count)
        return hf_refuse(hf, FSDP_EUNSUPPORTED, err, "mlp_only_layers",
                         "names layers; only models with experts in every layer are supported");
    FSDP_TRY(hf_bool(hf, "use_sliding_window", &windows, err));
    (void)hf_has(hf, "sliding_window");
    return windows ? family_window(t, hf, err) : FSDP_OK;
}

/* ---- keys that nobody read ------------------------------------------------------------------- */

int family_refuse_unknown(const struct family *family, const struct hf_config *hf,
                          struct fsdp_err *err)
{
    static const char *const arithmetic[] = {
        "scal", "multiplier", "softcap",    "clip",        "window",   "rope",      "rotary",
        "norm", "bias",       "activation", "_act",        "attn",     "attention", "mlp",
        "ffn",  "expert",     "router",     "moe",         "residual", "alibi",     "sparse",
        "conv", "mamba",      "ssm",        "temperature", "parallel", "sink",      "lora"};
    /* In published files, and read by no implementation of the family. */
    static const char *const harmless[] = {
        "attn_implementation", "output_attentions", "reorder_and_upcast_attn", "summary_activation",
        "hidden_act",          "max_window_layers", "sliding_window_size",     "full_attn_mod"};
    size_t place = 0;
    const char *key;
    bool causal = true;

    FSDP_TRY(hf_bool(hf, "is_causal", &causal, err));
    if (!causal)
        return hf_refuse(hf, FSDP_EUNSUPPORTED, err, "is_causal",
                         "is false; only causal attention is supported");

    while ((key = hf_next_unread(hf, &place))) {
        bool known = false, doubtful = false;
        for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++)
            known = known || strstr(key, harmless[i]);
        for (size_t i = 0; i < sizeof arithmetic / sizeof arithmetic[0]; i++)
            doubtful = doubtful || strstr(key, arithmetic[i]);
        if (doubtful && !known && key[0] != '_')
            return hf_refuse(hf, FSDP_EUNSUPPORTED, err, key,
                             "is not known for model_type %s, and may change what the model "
                             "computes; remove the key if transformers ignores it",
                             family->type);
    }
    return FSDP_OK;
}
