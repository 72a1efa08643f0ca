/* SPDX-License-Identifier: Apache-2.0 */
/* The model families that llama.cpp knows. A new one is a row, and its model in tests/gguf. */
#include <stdio.h>
#include <string.h>

#include "family.h"

/* ---- names ----------------------------------------------------------------------------------- */

static const struct gguf_name llama_outside[] = {
    {"model.embed_tokens", "token_embd", 0},
    {"model.norm", "output_norm", GGUF_NORM},
    {"lm_head", "output", GGUF_OPTIONAL},
    {NULL, NULL, 0},
};
static const struct gguf_name pre_norms[] = {
    {".input_layernorm", "attn_norm", GGUF_NORM},
    {".post_attention_layernorm", "ffn_norm", GGUF_NORM},
    {NULL, NULL, 0},
};
static const struct gguf_name post_norms[] = {
    {".post_attention_layernorm", "post_attention_norm", GGUF_NORM},
    {".post_feedforward_layernorm", "post_ffw_norm", GGUF_NORM},
    {NULL, NULL, 0},
};
static const struct gguf_name gemma2_norms[] = {
    {".input_layernorm", "attn_norm", GGUF_NORM},
    {".pre_feedforward_layernorm", "ffn_norm", GGUF_NORM},
    {NULL, NULL, 0},
};
static const struct gguf_name gpt_oss_norms[] = {
    {".input_layernorm", "attn_norm", GGUF_NORM},
    {".post_attention_layernorm", "post_attention_norm", GGUF_NORM},
    {NULL, NULL, 0},
};
static const struct gguf_name qk_norms[] = {
    {".self_attn.q_norm", "attn_q_norm", GGUF_NORM},
    {".self_attn.k_norm", "attn_k_norm", GGUF_NORM},
    {NULL, NULL, 0},
};
/* Rotary embeddings of neighbours, and of halves of a head. */
static const struct gguf_name pair_attention[] = {
    {".self_attn.q_proj", "attn_q", GGUF_QUERY | GGUF_BIAS},
    {".self_attn.k_proj", "attn_k", GGUF_KEY | GGUF_BIAS},
    {".self_attn.v_proj", "attn_v", GGUF_BIAS},
    {NULL, NULL, 0},
};
static const struct gguf_name half_attention[] = {
    {".self_attn.q_proj", "attn_q", GGUF_BIAS},
    {".self_attn.k_proj", "attn_k", GGUF_BIAS},
    {".self_attn.v_proj", "attn_v", GGUF_BIAS},
    {NULL, NULL, 0},
};
static const struct gguf_name plain_out[] = {
    {".self_attn.o_proj", "attn_output", 0},
    {NULL, NULL, 0},
};
static const struct gguf_name biased_out[] = {
    {".self_attn.o_proj", "attn_output", GGUF_BIAS},
    {NULL, NULL, 0},
};
static const struct gguf_name plain_mlp[] = {
    {".mlp.gate_proj", "ffn_gate", 0},
    {".mlp.up_proj", "ffn_up", 0},
    {".mlp.down_proj", "ffn_down", 0},
    {NULL, NULL, 0},
};
static const struct gguf_name biased_mlp[] = {
    {".mlp.gate_proj", "ffn_gate", GGUF_BIAS},
    {".mlp.up_proj", "ffn_up", GGUF_BIAS},
    {".mlp.down_proj", "ffn_down", GGUF_BIAS},
    {NULL, NULL, 0},
};
static const struct gguf_name phi3_fused[] = {
    {".self_attn.qkv_proj", "attn_qkv", 0},
    {".mlp.gate_up_proj", "ffn_up", 0},
    {".mlp.down_proj", "ffn_down", 0},
    {NULL, NULL, 0},
};
static const struct gguf_name mixtral_experts[] = {
    {".block_sparse_moe.gate", "ffn_gate_inp", 0},
    {".block_sparse_moe.experts.%d.w1", "ffn_gate_exps", GGUF_EXPERTS},
    {".block_sparse_moe.experts.%d.w3", "ffn_up_exps", GGUF_EXPERTS},
    {".block_sparse_moe.experts.%d.w2", "ffn_down_exps", GGUF_EXPERTS},
    {NULL, NULL, 0},
};
static const struct gguf_name qwen_experts[] = {
    {".mlp.gate", "ffn_gate_inp", 0},
    {".mlp.experts.%d.gate_proj", "ffn_gate_exps", GGUF_EXPERTS},
    {".mlp.experts.%d.up_proj", "ffn_up_exps", GGUF_EXPERTS},
    {".mlp.experts.%d.down_proj", "ffn_down_exps", GGUF_EXPERTS},
    {NULL, NULL, 0},
};
static const struct gguf_name granite_experts[] = {
    {".block_sparse_moe.router.layer", "ffn_gate_inp", 0},
    {".block_sparse_moe.input_linear", "ffn_gate_exps", GGUF_FIRST_HALF},
    {".block_sparse_moe.input_linear", "ffn_up_exps", GGUF_LAST_HALF},
    {".block_sparse_moe.output_linear", "ffn_down_exps", 0},
    {NULL, NULL, 0},
};
/* An expert that all tokens pass through. */
static const struct gguf_name granite_shared[] = {
    {".shared_mlp.input_linear", "ffn_gate_shexp", GGUF_FIRST_HALF},
    {".shared_mlp.input_linear", "ffn_up_shexp", GGUF_LAST_HALF},
    {".shared_mlp.output_linear", "ffn_down_shexp", 0},
    {NULL, NULL, 0},
};
static const struct gguf_name gpt_oss_experts[] = {
    {".self_attn.sinks", "attn_sinks.weight", GGUF_BARE},
    {".mlp.router", "ffn_gate_inp", GGUF_BIAS},
    {".mlp.experts.gate_up_proj", "ffn_gate_exps.weight", GGUF_BARE | GGUF_EVEN},
    {".mlp.experts.gate_up_proj", "ffn_up_exps.weight", GGUF_BARE | GGUF_ODD},
    {".mlp.experts.down_proj", "ffn_down_exps.weight", GGUF_BARE | GGUF_ALL},
    {".mlp.experts.gate_up_proj_bias", "ffn_gate_exps.bias", GGUF_BARE | GGUF_EVEN},
    {".mlp.experts.gate_up_proj_bias", "ffn_up_exps.bias", GGUF_BARE | GGUF_ODD},
    {".mlp.experts.down_proj_bias", "ffn_down_exps.bias", GGUF_BARE},
    {NULL, NULL, 0},
};

static const struct gguf_name gpt2_outside[] = {
    {"transformer.wte", "token_embd", 0},
    {"transformer.wpe", "position_embd", 0},
    {"transformer.ln_f", "output_norm", GGUF_BIAS},
    {"lm_head", "output", GGUF_OPTIONAL},
    {NULL, NULL, 0},
};
static const struct gguf_name gpt2_inside[] = {
    {".ln_1", "attn_norm", GGUF_BIAS},
    {".ln_2", "ffn_norm", GGUF_BIAS},
    {".attn.c_attn", "attn_qkv", GGUF_TRANSPOSED | GGUF_BIAS},
    {".attn.c_proj", "attn_output", GGUF_TRANSPOSED | GGUF_BIAS},
    {".mlp.c_fc", "ffn_up", GGUF_TRANSPOSED | GGUF_BIAS},
    {".mlp.c_proj", "ffn_down", GGUF_TRANSPOSED | GGUF_BIAS},
    {NULL, NULL, 0},
};
static const struct gguf_name neox_outside[] = {
    {"gpt_neox.embed_in", "token_embd", 0},
    {"gpt_neox.final_layer_norm", "output_norm", GGUF_BIAS},
    {"embed_out", "output", GGUF_OPTIONAL},
    {NULL, NULL, 0},
};
static const struct gguf_name neox_inside[] = {
    {".input_layernorm", "attn_norm", GGUF_BIAS},
    {".post_attention_layernorm", "ffn_norm", GGUF_BIAS},
    {".attention.query_key_value", "attn_qkv", GGUF_HEADS | GGUF_BIAS},
    {".attention.dense", "attn_output", GGUF_BIAS},
    {".mlp.dense_h_to_4h", "ffn_up", GGUF_BIAS},
    {".mlp.dense_4h_to_h", "ffn_down", GGUF_BIAS},
    {NULL, NULL, 0},
};

/* ---- the rows -------------------------------------------------------------------------------- */

#define LLAMA .layers = "model.layers", .outside = llama_outside
#define SWIGLU LLAMA, .act = "silu", .act_key = "hidden_act"
#define GEMMA LLAMA, .norm_offset = 1, .act = "gelu_pytorch_tanh"
#define FACTORS .long_rope = true, .any_factors = true

static const struct gguf_family families[] = {
    {.type = "gemma",
     .arch = "gemma",
     GEMMA,
     .act_key = "hidden_act",
     .only_tied = true,
     .inside = {pre_norms, half_attention, plain_out, plain_mlp},
     .keys = {gguf_keys_llama, gguf_keys_head_dim}},
    {.type = "gemma2",
     .arch = "gemma2",
     GEMMA,
     .act_key = "hidden_activation",
     .only_tied = true,
     .inside = {gemma2_norms, post_norms, half_attention, plain_out, plain_mlp},
     .window = 4096,
     .keys = {gguf_keys_llama, gguf_keys_head_dim, gguf_keys_gemma, gguf_keys_softcaps,
              gguf_keys_layer_types}},
    {.type = "gpt2",
     .arch = "gpt2",
     .layers = "transformer.h",
     .outside = gpt2_outside,
     .inside = {gpt2_inside},
     .act = "gelu_new",
     .act_key = "activation_function",
     .no_rope = true,
     .keys = {gguf_keys_gpt2}},
    {.type = "gpt_neox",
     .arch = "gptneox",
     .layers = "gpt_neox.layers",
     .outside = neox_outside,
     .inside = {neox_inside},
     .act = "gelu",
     .act_key = "hidden_act",
     .partial_rope = true,
     .copies_tied = true,
     .keys = {gguf_keys_gpt_neox}},
    {.type = "granite",
     .arch = "granite",
     SWIGLU,
     FACTORS,
     .inside = {pre_norms, pair_attention, biased_out, biased_mlp},
     .keys = {gguf_keys_llama, gguf_keys_vocab, gguf_keys_head_dim, gguf_keys_granite}},
    {.type = "granitemoe",
     .arch = "granitemoe",
     SWIGLU,
     FACTORS,
     .inside = {pre_norms, pair_attention, biased_out, granite_experts},
     .keys = {gguf_keys_llama, gguf_keys_vocab, gguf_keys_head_dim, gguf_keys_granite,
              gguf_keys_experts}},
    {.type = "granitemoeshared",
     .arch = "granitemoe",
     SWIGLU,
     FACTORS,
     .inside = {pre_norms, pair_attention, biased_out, granite_experts, granite_shared},
     .keys = {gguf_keys_llama, gguf_keys_vocab, gguf_keys_head_dim, gguf_keys_granite,
              gguf_keys_experts, gguf_keys_shared_expert}},
    {.type = "llama",
     .arch = "llama",
     SWIGLU,
     FACTORS,
     .inside = {pre_norms, pair_attention, biased_out, biased_mlp},
     .keys = {gguf_keys_llama, gguf_keys_vocab, gguf_keys_head_dim}},
    {.type = "ministral",
     .arch = "mimo2",
     SWIGLU,
     .inside = {pre_norms, half_attention, plain_out, plain_mlp},
     .copies_tied = true,
     .window = 4096,
     .keys = {gguf_keys_ministral, gguf_keys_vocab, gguf_keys_head_dim}},
    {.type = "ministral3",
     .arch = "mistral3",
     SWIGLU,
     FACTORS,
     .inside = {pre_norms, pair_attention, biased_out, biased_mlp},
     .keys = {gguf_keys_ministral3, gguf_keys_vocab, gguf_keys_head_dim, gguf_keys_window}},
    {.type = "mistral",
     .arch = "llama",
     SWIGLU,
     FACTORS,
     .inside = {pre_norms, pair_attention, biased_out, biased_mlp},
     .window = 4096,
     .keys = {gguf_keys_llama, gguf_keys_vocab, gguf_keys_head_dim, gguf_keys_window}},
    {.type = "mixtral",
     .arch = "llama",
     SWIGLU,
     FACTORS,
     .inside = {pre_norms, pair_attention, biased_out, mixtral_experts},
     .rope_theta = 1e6,
     .keys = {gguf_keys_llama, gguf_keys_vocab, gguf_keys_head_dim, gguf_keys_window,
              gguf_keys_experts}},
    {.type = "olmo2",
     .arch = "olmo2",
     SWIGLU,
     .inside = {post_norms, qk_norms, half_attention, plain_out, plain_mlp},
     .copies_tied = true,
     .keys = {gguf_keys_llama, gguf_keys_even_heads}},
    {.type = "olmo3",
     .arch = "olmo2",
     SWIGLU,
     .inside = {post_norms, qk_norms, half_attention, plain_out, plain_mlp},
     .rope_theta = 5e5,
     .copies_tied = true,
     .window = 4096,
     .keys = {gguf_keys_llama, gguf_keys_even_heads, gguf_keys_layer_types}},
    {.type = "olmoe",
     .arch = "olmoe",
     SWIGLU,
     .inside = {pre_norms, qk_norms, half_attention, plain_out, qwen_experts},
     .copies_tied = true,
     .keys = {gguf_keys_llama, gguf_keys_even_heads, gguf_keys_experts, gguf_keys_olmoe}},
    {.type = "phi3",
     .arch = "phi3",
     SWIGLU,
     .inside = {pre_norms, plain_out, phi3_fused},
     .partial_rope = true,
     .long_rope = true,
     .original = 4096,
     .keys = {gguf_keys_llama, gguf_keys_even_heads, gguf_keys_window, gguf_keys_phi3}},
    {.type = "qwen2",
     .arch = "qwen2",
     SWIGLU,
     .inside = {pre_norms, half_attention, plain_out, plain_mlp},
     .window = 4096,
     .keys = {gguf_keys_llama, gguf_keys_even_heads, gguf_keys_window}},
    {.type = "qwen3",
     .arch = "qwen3",
     SWIGLU,
     .inside = {pre_norms, qk_norms, half_attention, plain_out, plain_mlp},
     .window = 4096,
     .keys = {gguf_keys_llama, gguf_keys_head_dim, gguf_keys_window}},
    {.type = "qwen3_moe",
     .arch = "qwen3moe",
     SWIGLU,
     .inside = {pre_norms, qk_norms, half_attention, plain_out, qwen_experts},
     .window = 4096,
     .keys = {gguf_keys_llama, gguf_keys_head_dim, gguf_keys_window, gguf_keys_experts,
              gguf_keys_routing}},
    {.type = "gemma3_text",
     .arch = "gemma3",
     GEMMA,
     .act_key = "hidden_activation",
     .inside = {gemma2_norms, post_norms, qk_norms, half_attention, plain_out, plain_mlp},
     .rope_theta = 1e6,
     .window = 4096,
     .keys = {gguf_keys_llama, gguf_keys_head_dim, gguf_keys_gemma, gguf_keys_softcaps,
              gguf_keys_layer_types}},
    {.type = "gpt_oss",
     .arch = "gpt-oss",
     LLAMA,
     .inside = {gpt_oss_norms, half_attention, biased_out, gpt_oss_experts},
     .rope_theta = 150000,
     .copies_tied = true,
     .window = 128,
     .keys = {gguf_keys_llama, gguf_keys_head_dim, gguf_keys_experts, gguf_keys_layer_types,
              gguf_keys_gpt_oss}},
    {.type = "smollm3",
     .arch = "smollm3",
     SWIGLU,
     .inside = {pre_norms, pair_attention, plain_out, plain_mlp},
     .rope_theta = 2e6,
     .keys = {gguf_keys_llama, gguf_keys_vocab, gguf_keys_head_dim, gguf_keys_smollm3,
              gguf_keys_window}},
};
enum { NFAMILIES = sizeof families / sizeof families[0] };

/* One without a shared expert is granitemoe. */
static bool has_no_shared(const struct gguf_config *config)
{
    const json_t *size = json_object_get(config->root, "shared_intermediate_size");
    return !size || json_is_null(size) || (json_is_integer(size) && !json_integer_value(size));
}

int gguf_family_of(const struct gguf_family **out, const struct gguf_config *config,
                   struct fsdp_err *err)
{
    const char *type = gguf_config_text(config, "model_type", NULL);
    char known[512] = "";
    if (!type)
        return fsdp_err_set(err, FSDP_ENOTFOUND, "'%s' has no model_type", config->path);
    if (!strcmp(type, "granitemoeshared") && has_no_shared(config))
        type = "granitemoe";
    for (int i = 0; i < NFAMILIES; i++) {
        if (!strcmp(type, families[i].type)) {
            *out = &families[i];
            return FSDP_OK;
        }
        const size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", families[i].type);
    }
    return gguf_refuse(config, "model_type", err,
                       "'%.64s' is none that is written as GGUF (these are: %s)", type, known);
}
