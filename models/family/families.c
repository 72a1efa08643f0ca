/* SPDX-License-Identifier: Apache-2.0 */
/* The model families. A new one is a row: its names, its keys, its traits. */
#include <stdio.h>
#include <string.h>

#include "family.h"

/* ---- names of weights ------------------------------------------------------------------------ */

#define LLAMA_NAMES LLAMA_ATTENTION_NAMES, LLAMA_MLP_NAMES
#define LLAMA_MLP_NAMES                                                                            \
    .mlp = ".mlp", .gate = ".mlp.gate_proj", .up = ".mlp.up_proj", .down = ".mlp.down_proj"
#define LLAMA_ATTENTION_NAMES                                                                      \
    .embed = "model.embed_tokens", .layers = "model.layers", .norm = "model.norm",                 \
    .head = "lm_head", LLAMA_LAYER_NAMES
#define LLAMA_LAYER_NAMES                                                                          \
    .attention = ".self_attn", .norm1 = ".input_layernorm", .q = ".self_attn.q_proj",              \
    .k = ".self_attn.k_proj", .v = ".self_attn.v_proj", .o = ".self_attn.o_proj",                  \
    .q_norm = ".self_attn.q_norm", .k_norm = ".self_attn.k_norm"

static const struct traits_names llama_names = {
    LLAMA_NAMES,
    .norm2 = ".post_attention_layernorm",
};

static const struct traits_names olmo2_names = {
    LLAMA_NAMES,
    .post1 = ".post_attention_layernorm",
    .post2 = ".post_feedforward_layernorm",
};

#define GEMMA2_NORM_NAMES                                                                          \
    .post1 = ".post_attention_layernorm", .norm2 = ".pre_feedforward_layernorm",                   \
    .post2 = ".post_feedforward_layernorm"
static const struct traits_names gemma2_names = {LLAMA_NAMES, GEMMA2_NORM_NAMES};

static const struct traits_names gemma3_names = {
    .embed = "language_model.model.embed_tokens",
    .layers = "language_model.model.layers",
    .norm = "language_model.model.norm",
    .head = "language_model.lm_head",
    LLAMA_LAYER_NAMES,
    LLAMA_MLP_NAMES,
    GEMMA2_NORM_NAMES,
};

static const struct traits_names phi3_names = {
    LLAMA_NAMES,
    .norm2 = ".post_attention_layernorm",
    .qkv = ".self_attn.qkv_proj",
    .gate_up = ".mlp.gate_up_proj",
    .fusion = TRAITS_FUSED_ROWS,
};

#define MLP_EXPERTS_PARAMETERS                                                                     \
    .parameter_gate_up = ".mlp.experts.gate_up_proj", .parameter_down = ".mlp.experts.down_proj"
static const struct traits_names mixtral_names = {
    LLAMA_ATTENTION_NAMES,
    .norm2 = ".post_attention_layernorm",
    .mlp = ".block_sparse_moe",
    .router = ".block_sparse_moe.gate",
    .router_parameter = ".mlp.gate.weight",
    .expert_gate = ".block_sparse_moe.experts.%d.w1",
    .expert_up = ".block_sparse_moe.experts.%d.w3",
    .expert_down = ".block_sparse_moe.experts.%d.w2",
    MLP_EXPERTS_PARAMETERS,
};

static const struct traits_names qwen3_moe_names = {
    LLAMA_ATTENTION_NAMES,
    .mlp = ".mlp",
    .norm2 = ".post_attention_layernorm",
    .router = ".mlp.gate",
    .router_parameter = ".mlp.gate.weight",
    .expert_gate = ".mlp.experts.%d.gate_proj",
    .expert_up = ".mlp.experts.%d.up_proj",
    .expert_down = ".mlp.experts.%d.down_proj",
    MLP_EXPERTS_PARAMETERS,
};

#define GRANITE_MOE_NAMES                                                                          \
    LLAMA_ATTENTION_NAMES, .mlp = ".block_sparse_moe", .norm2 = ".post_attention_layernorm",       \
                           .router = ".block_sparse_moe.router.layer",                             \
                           .router_parameter = ".block_sparse_moe.router.weight",                  \
                           .experts_gate_up = ".block_sparse_moe.input_linear.weight",             \
                           .experts_down = ".block_sparse_moe.output_linear.weight",               \
                           .parameter_gate_up = ".block_sparse_moe.experts.gate_up_proj",          \
                           .parameter_down = ".block_sparse_moe.experts.down_proj"
static const struct traits_names granitemoe_names = {GRANITE_MOE_NAMES};
static const struct traits_names granitemoeshared_names = {
    GRANITE_MOE_NAMES,
    .gate_up = ".shared_mlp.input_linear",
    .down = ".shared_mlp.output_linear",
};

static const struct traits_names gpt_oss_names = {
    LLAMA_ATTENTION_NAMES,
    .sinks = ".self_attn.sinks",
    .mlp = ".mlp",
    .norm2 = ".post_attention_layernorm",
    .router = ".mlp.router",
    .router_parameter = ".mlp.router.weight",
    .experts_gate_up = ".mlp.experts.gate_up_proj",
    .experts_down = ".mlp.experts.down_proj",
    .experts_gate_up_bias = ".mlp.experts.gate_up_proj_bias",
    .experts_down_bias = ".mlp.experts.down_proj_bias",
    MLP_EXPERTS_PARAMETERS,
};

static const struct traits_names gpt2_names = {
    .embed = "transformer.wte",
    .positions = "transformer.wpe",
    .layers = "transformer.h",
    .norm = "transformer.ln_f",
    .head = "lm_head",
    .attention = ".attn",
    .mlp = ".mlp",
    .norm1 = ".ln_1",
    .norm2 = ".ln_2",
    .qkv = ".attn.c_attn",
    .o = ".attn.c_proj",
    .up = ".mlp.c_fc",
    .down = ".mlp.c_proj",
    .fusion = TRAITS_TRANSPOSED,
};

static const struct traits_names gpt_neox_names = {
    .embed = "gpt_neox.embed_in",
    .layers = "gpt_neox.layers",
    .norm = "gpt_neox.final_layer_norm",
    .head = "embed_out",
    .head_module = "lm_head",
    .attention = ".attention",
    .mlp = ".mlp",
    .norm1 = ".input_layernorm",
    .norm2 = ".post_attention_layernorm",
    .qkv = ".attention.query_key_value",
    .o = ".attention.dense",
    .up = ".mlp.dense_h_to_4h",
    .down = ".mlp.dense_4h_to_h",
    .fusion = TRAITS_FUSED_HEADS,
};

/* ---- names of keys --------------------------------------------------------------------------- */

#define LLAMA_KEYS                                                                                 \
    .dim = "hidden_size", .ffn = "intermediate_size", .nlayers = "num_hidden_layers",              \
    .nheads = "num_attention_heads", .nkv_heads = "num_key_value_heads", .head_dim = "head_dim",   \
    .max_seq_len = "max_position_embeddings", .norm_eps = "rms_norm_eps",                          \
    .attn_drop = "attention_dropout"

static const struct family_keys llama_keys = {LLAMA_KEYS, .act = "hidden_act"};
static const struct family_keys gemma2_keys = {LLAMA_KEYS, .act = "hidden_activation"};
static const struct family_keys phi3_keys = {LLAMA_KEYS, .act = "hidden_act",
                                             .resid_drop = "resid_pdrop"};

/* Experts of intermediate_size elements, and no MLP. */
#define EXPERT_KEYS                                                                                \
    .dim = "hidden_size", .nlayers = "num_hidden_layers", .nheads = "num_attention_heads",         \
    .nkv_heads = "num_key_value_heads", .head_dim = "head_dim",                                    \
    .max_seq_len = "max_position_embeddings", .norm_eps = "rms_norm_eps",                          \
    .attn_drop = "attention_dropout"
static const struct family_keys mixtral_keys = {EXPERT_KEYS, .act = "hidden_act",
                                                .expert_ffn = "intermediate_size"};
static const struct family_keys gpt_oss_keys = {EXPERT_KEYS, .expert_ffn = "intermediate_size"};

static const struct family_keys qwen3_moe_keys = {EXPERT_KEYS, .act = "hidden_act",
                                                  .expert_ffn = "moe_intermediate_size"};
static const struct family_keys granitemoeshared_keys = {EXPERT_KEYS, .act = "hidden_act",
                                                         .expert_ffn = "intermediate_size",
                                                         .ffn = "shared_intermediate_size"};

static const struct family_keys gpt2_keys = {.dim = "n_embd",
                                             .ffn = "n_inner",
                                             .nlayers = "n_layer",
                                             .nheads = "n_head",
                                             .max_seq_len = "n_positions",
                                             .norm_eps = "layer_norm_epsilon",
                                             .act = "activation_function",
                                             .embed_drop = "embd_pdrop",
                                             .attn_drop = "attn_pdrop",
                                             .resid_drop = "resid_pdrop"};

static const struct family_keys gpt_neox_keys = {.dim = "hidden_size",
                                                 .ffn = "intermediate_size",
                                                 .nlayers = "num_hidden_layers",
                                                 .nheads = "num_attention_heads",
                                                 .max_seq_len = "max_position_embeddings",
                                                 .norm_eps = "layer_norm_eps",
                                                 .act = "hidden_act",
                                                 .embed_drop = "hidden_dropout",
                                                 .attn_drop = "attention_dropout",
                                                 .resid_drop = "hidden_dropout"};

/* ---- the rows -------------------------------------------------------------------------------- */

#define CLASSES(prefix, layer_suffix)                                                              \
    .class_name = {prefix "ForCausalLM", "Embedding",        prefix "Head",                        \
                   prefix layer_suffix,  prefix "Attention", prefix "MLP"}
#define CLASSES_OF_EXPERTS(prefix)                                                                 \
    .class_name = {prefix "ForCausalLM",  "Embedding",        prefix "Head",                       \
                   prefix "DecoderLayer", prefix "Attention", prefix "SparseMoeBlock"}
#define SWIGLU .pre_norm = true, .gated = true, .act = NN_SILU
#define GRANITE_MOE                                                                                \
    SWIGLU, .norm_eps = 1e-6, .max_seq_len = 2048, .experts = 8, .experts_per_token = 2,           \
            .normalized_routing = true, .router_aux_loss_coef = 0.001
#define GEMMA                                                                                      \
    .norm_offset = 1, .norm_eps = 1e-6, .gated = true, .act = NN_GELU_TANH, .tied = true,          \
    .head_dim = 256, .pre_norm = true

#define GEMMA3                                                                                     \
    CLASSES("Gemma3", "DecoderLayer"),                                                             \
        .keys = &gemma2_keys, .rope_theta = 1e6, .sliding_rope_theta = 1e4,                        \
        .sliding_rope_key = "rope_local_base_freq", .rope_by_layer = true,                         \
        .traits = {                                                                                \
            GEMMA,          .nkv_heads = 4,    .post_norm = true,      .max_seq_len = 131072,      \
            .window = 4096, .window_every = 6, .attn_scale = 1.0 / 16, .qk_norm = TRAITS_QK_HEAD}

static const struct family families[] = {
    {.type = "gemma",
     CLASSES("Gemma", "DecoderLayer"),
     .names = &llama_names,
     .keys = &llama_keys,
     .traits = {GEMMA, .nkv_heads = 16, .max_seq_len = 8192},
     .read = {family_attention_bias, family_gemma_scales, family_gemma_act}},
    {.type = "gemma2",
     CLASSES("Gemma2", "DecoderLayer"),
     .names = &gemma2_names,
     .keys = &gemma2_keys,
     .traits = {GEMMA, .nkv_heads = 4, .post_norm = true, .max_seq_len = 8192, .window = 4096,
                .window_every = 2, .attn_scale = 1.0 / 16, .attn_softcap = 50, .logit_softcap = 30},
     .read = {family_attention_bias, family_gemma_scales, family_softcaps, family_layer_types}},
    /* Images do not come in: the weights of their model and its projector are carried along. The
     * class of transformers for both has no soft cap of logits. */
    {.type = "gemma3",
     GEMMA3,
     .names = &gemma3_names,
     .read = {family_attention_bias, family_gemma_scales, family_window_pattern},
     .section = "text_config",
     .defaults = "{\"vocab_size\": 262208, \"hidden_size\": 2304, \"intermediate_size\": 9216, "
                 "\"num_hidden_layers\": 26, \"num_attention_heads\": 8}",
     .carries = "language_model."},
    {.type = "gemma3_text",
     GEMMA3,
     .names = &gemma2_names,
     .read = {family_attention_bias, family_gemma_scales, family_logit_softcap,
              family_window_pattern}},
    {.type = "gpt2",
     .class_name = {"GPT2LMHeadModel", "GPT2Embedding", "GPT2Head", "GPT2Block", "GPT2Attention",
                    "GPT2MLP"},
     .names = &gpt2_names,
     .keys = &gpt2_keys,
     .traits = {.norm = TRAITS_LAYER,
                .norm_eps = 1e-5,
                .pre_norm = true,
                .qkv_bias = true,
                .o_bias = true,
                .mlp_bias = true,
                .act = NN_GELU_TANH,
                .tied = true,
                .small_last = true,
                .embed_drop = 0.1,
                .attn_drop = 0.1,
                .resid_drop = 0.1},
     .read = {family_gpt2_flags},
     .no_rope = true,
     .drops_stream = true},
    {.type = "gpt_neox",
     CLASSES("GPTNeoX", "Layer"),
     .names = &gpt_neox_names,
     .keys = &gpt_neox_keys,
     .traits = {.norm = TRAITS_LAYER,
                .norm_eps = 1e-5,
                .pre_norm = true,
                .qkv_bias = true,
                .o_bias = true,
                .mlp_bias = true,
                .act = NN_GELU,
                .parallel = true,
                .max_seq_len = 2048},
     .read = {family_attention_bias, family_parallel_residual},
     .rotary_fraction = 0.25,
     .partial_rotary = true,
     .drops_stream = true},
    {.type = "gpt_oss",
     CLASSES("GptOss", "DecoderLayer"),
     .names = &gpt_oss_names,
     .keys = &gpt_oss_keys,
     .traits = {.pre_norm = true,
                .gated = true,
                .act = NN_CLAMPED_SWISH,
                .qkv_bias = true,
                .o_bias = true,
                .sinks = true,
                .nkv_heads = 8,
                .head_dim = 64,
                .norm_eps = 1e-5,
                .max_seq_len = 131072,
                .window = 128,
                .window_every = 2,
                .experts = 128,
                .experts_per_token = 4,
                .normalized_routing = true,
                .router_aux_loss_coef = 0.001},
     .read = {family_attention_bias, family_layer_types, family_experts, family_gpt_oss_act},
     .rope_theta = 150000,
     .rope_parameters = "{\"rope_type\": \"yarn\", \"factor\": 32, \"beta_fast\": 32, "
                        "\"beta_slow\": 1, \"truncate\": false, "
                        "\"original_max_position_embeddings\": 4096}"},
    {.type = "granite",
     CLASSES("Granite", "DecoderLayer"),
     .names = &llama_names,
     .keys = &llama_keys,
     .traits = {SWIGLU, .norm_eps = 1e-6, .max_seq_len = 2048},
     .read = {family_attention_bias, family_mlp_bias, family_multipliers}},
    {.type = "granitemoe",
     CLASSES_OF_EXPERTS("GraniteMoe"),
     .names = &granitemoe_names,
     .keys = &mixtral_keys,
     .traits = {GRANITE_MOE},
     .read = {family_attention_bias, family_multipliers, family_experts}},
    {.type = "granitemoeshared",
     CLASSES_OF_EXPERTS("GraniteMoeShared"),
     .names = &granitemoeshared_names,
     .keys = &granitemoeshared_keys,
     .traits = {GRANITE_MOE},
     .read = {family_attention_bias, family_multipliers, family_experts}},
    {.type = "llama",
     CLASSES("Llama", "DecoderLayer"),
     .names = &llama_names,
     .keys = &llama_keys,
     .traits = {SWIGLU, .norm_eps = 1e-6, .max_seq_len = 2048},
     .read = {family_attention_bias, family_mlp_bias}},
    {.type = "ministral",
     CLASSES("Ministral", "DecoderLayer"),
     .names = &llama_names,
     .keys = &llama_keys,
     .traits = {SWIGLU, .nkv_heads = 8, .norm_eps = 1e-6, .max_seq_len = 131072, .window = 4096,
                .window_every = TRAITS_MAX_LAYERS + 1},
     .read = {family_layer_types}},
    {.type = "ministral3",
     CLASSES("Ministral3", "DecoderLayer"),
     .names = &llama_names,
     .keys = &llama_keys,
     .traits = {SWIGLU, .nkv_heads = 8, .head_dim = 128, .norm_eps = 1e-5, .max_seq_len = 262144},
     .read = {family_window},
     .rope_parameters = "{\"type\": \"yarn\", \"rope_theta\": 1e6, \"factor\": 16, "
                        "\"original_max_position_embeddings\": 16384, \"mscale\": 1, "
                        "\"mscale_all_dim\": 1, \"llama_4_scaling_beta\": 0.1}"},
    {.type = "mistral",
     CLASSES("Mistral", "DecoderLayer"),
     .names = &llama_names,
     .keys = &llama_keys,
     .traits = {SWIGLU, .nkv_heads = 8, .norm_eps = 1e-6, .max_seq_len = 131072, .window = 4096},
     .read = {family_window}},
    {.type = "mixtral",
     CLASSES_OF_EXPERTS("Mixtral"),
     .names = &mixtral_names,
     .keys = &mixtral_keys,
     .traits = {SWIGLU, .nkv_heads = 8, .norm_eps = 1e-5, .max_seq_len = 131072, .experts = 8,
                .experts_per_token = 2, .normalized_routing = true, .router_aux_loss_coef = 0.001},
     .read = {family_window, family_experts},
     .rope_theta = 1e6},
    {.type = "olmo2",
     CLASSES("Olmo2", "DecoderLayer"),
     .names = &olmo2_names,
     .keys = &llama_keys,
     .traits = {.post_norm = true,
                .gated = true,
                .act = NN_SILU,
                .qk_norm = TRAITS_QK_WHOLE,
                .norm_eps = 1e-5,
                .max_seq_len = 2048},
     .read = {family_attention_bias}},
    {.type = "olmo3",
     CLASSES("Olmo3", "DecoderLayer"),
     .names = &olmo2_names,
     .keys = &llama_keys,
     .traits = {.post_norm = true,
                .gated = true,
                .act = NN_SILU,
                .qk_norm = TRAITS_QK_WHOLE,
                .norm_eps = 1e-5,
                .max_seq_len = 2048,
                .window = 4096,
                .window_every = 4},
     .read = {family_attention_bias, family_layer_types},
     .rope_theta = 5e5,
     .rope_by_layer = true},
    {.type = "olmoe",
     CLASSES_OF_EXPERTS("Olmoe"),
     .names = &qwen3_moe_names,
     .keys = &mixtral_keys,
     .traits = {SWIGLU, .qk_norm = TRAITS_QK_WHOLE, .norm_eps = 1e-5, .max_seq_len = 4096,
                .experts = 64, .experts_per_token = 8, .router_aux_loss_coef = 0.01},
     .read = {family_attention_bias, family_experts, family_normalized_routing}},
    {.type = "phi3",
     CLASSES("Phi3", "DecoderLayer"),
     .names = &phi3_names,
     .keys = &phi3_keys,
     .traits = {SWIGLU, .norm_eps = 1e-5, .max_seq_len = 4096},
     .read = {family_window},
     .partial_rotary = true,
     .drops_stream = true},
    {.type = "qwen2",
     CLASSES("Qwen2", "DecoderLayer"),
     .names = &llama_names,
     .keys = &llama_keys,
     .traits = {SWIGLU, .nkv_heads = 32, .norm_eps = 1e-6, .max_seq_len = 32768, .window = 4096,
                .qkv_bias = true},
     .read = {family_qwen_window}},
    {.type = "qwen3",
     CLASSES("Qwen3", "DecoderLayer"),
     .names = &llama_names,
     .keys = &llama_keys,
     .traits = {SWIGLU, .nkv_heads = 32, .norm_eps = 1e-6, .max_seq_len = 32768, .window = 4096,
                .head_dim = 128, .qk_norm = TRAITS_QK_HEAD},
     .read = {family_attention_bias, family_qwen_window}},
    {.type = "qwen3_moe",
     CLASSES_OF_EXPERTS("Qwen3Moe"),
     .names = &qwen3_moe_names,
     .keys = &qwen3_moe_keys,
     .traits = {SWIGLU, .nkv_heads = 4, .qk_norm = TRAITS_QK_HEAD, .norm_eps = 1e-6,
                .max_seq_len = 32768, .window = 4096, .experts = 128, .experts_per_token = 8,
                .router_aux_loss_coef = 0.001},
     .read = {family_attention_bias, family_qwen3_moe_layers, family_experts,
              family_normalized_routing}},
    {.type = "smollm3",
     CLASSES("SmolLM3", "DecoderLayer"),
     .names = &llama_names,
     .keys = &llama_keys,
     .traits = {SWIGLU, .nkv_heads = 4, .norm_eps = 1e-6, .max_seq_len = 32768, .tied = true},
     .read = {family_attention_bias, family_mlp_bias, family_smollm3_layers},
     .rope_theta = 2e6},
};
enum { NFAMILIES = sizeof families / sizeof families[0] };

/* ---- finding one ----------------------------------------------------------------------------- */

/* Known model types that are not supported yet, and what is missing. */
static const struct {
    const char *type, *missing;
} refused[] = {
    {"deepseek_v2", "multi-head latent attention (MLA)"},
    {"deepseek_v3", "multi-head latent attention (MLA)"},
    {"kimi_k2", "multi-head latent attention (MLA)"},
    {"qwen3_next", "linear attention"},
    {"kimi_linear", "linear attention"},
    {"minimax", "linear attention"},
    {"granitemoehybrid", "state-space layers"},
    {"jamba", "state-space layers"},
    {"bamba", "state-space layers"},
    {"mamba", "state-space layers"},
    {"mamba2", "state-space layers"},
    {"falcon_h1", "state-space layers"},
    {"gemma3n", "per-layer embeddings and AltUp"},
    {"gemma4", "its attention and per-layer embeddings"},
    {"qwen2_moe", "shared experts with a gate of their own"},
    {"phimoe", "sparse-mixer routing"},
};

static int refuse_type(const struct hf_config *hf, const char *type, struct fsdp_err *err)
{
    char known[512] = "";

    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (!strcmp(type, refused[i].type))
            return hf_refuse(hf, FSDP_EUNSUPPORTED, err, "model_type",
                             "'%s' is not supported: it needs %s", type, refused[i].missing);
    for (int i = 0; i < NFAMILIES; i++) {
        const size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", families[i].type);
    }
    return hf_refuse(hf, FSDP_EUNSUPPORTED, err, "model_type",
                     "'%.64s' is not a known model family (known: %s)", type, known);
}

int family_enter(const struct family *family, struct hf_config *hf, struct fsdp_err *err)
{
    /* Of the whole model, whose values a section need not repeat. */
    static const char *const outer[] = {"dtype",
                                        "torch_dtype",
                                        "bos_token_id",
                                        "eos_token_id",
                                        "tie_word_embeddings",
                                        "quantization_config",
                                        NULL};

    return family->section ? hf_enter(hf, family->section, outer, family->defaults, err) : FSDP_OK;
}

int family_of(const struct family **out, const struct hf_config *hf, struct fsdp_err *err)
{
    const char *type = NULL;

    FSDP_TRY(hf_text(hf, "model_type", true, &type, err));
    for (int i = 0; i < NFAMILIES; i++)
        if (!strcmp(type, families[i].type)) {
            *out = &families[i];
            return FSDP_OK;
        }
    return refuse_type(hf, type, err);
}
