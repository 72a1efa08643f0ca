/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "families.h"

#define END                                                                                        \
    {                                                                                              \
        NULL, NULL, 0                                                                              \
    }
#define LINEAR(name, dims, bias_dim, bias)                                                         \
    {name ".weight", dims, 0},                                                                     \
    {                                                                                              \
        name ".bias", bias_dim, bias                                                               \
    }

/* ---- names and shapes ------------------------------------------------------------------------ */

static const struct ckpt_check_row llama_outside[] = {
    {"model.embed_tokens.weight", "VD", 0},
    {"model.norm.weight", "D", 0},
    {"lm_head.weight", "VD", CKPT_IF_HEAD},
    END,
};
static const struct ckpt_check_row gemma3_outside[] = {
    {"language_model.model.embed_tokens.weight", "VD", 0},
    {"language_model.model.norm.weight", "D", 0},
    {"language_model.lm_head.weight", "VD", CKPT_IF_HEAD},
    END,
};
static const struct ckpt_check_row pre_norms[] = {
    {".input_layernorm.weight", "D", 0},
    {".post_attention_layernorm.weight", "D", 0},
    END,
};
static const struct ckpt_check_row post_norms[] = {
    {".post_attention_layernorm.weight", "D", 0},
    {".post_feedforward_layernorm.weight", "D", 0},
    END,
};
static const struct ckpt_check_row gemma2_norms[] = {
    {".input_layernorm.weight", "D", 0},
    {".pre_feedforward_layernorm.weight", "D", 0},
    END,
};
static const struct ckpt_check_row head_norms[] = {
    {".self_attn.q_norm.weight", "H", 0},
    {".self_attn.k_norm.weight", "H", 0},
    END,
};
static const struct ckpt_check_row whole_norms[] = {
    {".self_attn.q_norm.weight", "Q", 0},
    {".self_attn.k_norm.weight", "K", 0},
    END,
};
static const struct ckpt_check_row attention[] = {
    LINEAR(".self_attn.q_proj", "QD", "Q", CKPT_IF_QKV_BIAS),
    LINEAR(".self_attn.k_proj", "KD", "K", CKPT_IF_QKV_BIAS),
    LINEAR(".self_attn.v_proj", "KD", "K", CKPT_IF_QKV_BIAS),
    LINEAR(".self_attn.o_proj", "DQ", "D", CKPT_IF_O_BIAS),
    END,
};
static const struct ckpt_check_row mlp[] = {
    LINEAR(".mlp.gate_proj", "FD", "F", CKPT_IF_MLP_BIAS),
    LINEAR(".mlp.up_proj", "FD", "F", CKPT_IF_MLP_BIAS),
    LINEAR(".mlp.down_proj", "DF", "D", CKPT_IF_MLP_BIAS),
    END,
};
static const struct ckpt_check_row phi3[] = {
    {".self_attn.qkv_proj.weight", "UD", 0},
    {".self_attn.o_proj.weight", "DQ", 0},
    {".mlp.gate_up_proj.weight", "GD", 0},
    {".mlp.down_proj.weight", "DF", 0},
    END,
};
static const struct ckpt_check_row mixtral_experts[] = {
    {".block_sparse_moe.gate.weight", "ED", 0},
    {".block_sparse_moe.experts.%d.w1.weight", "MD", CKPT_EACH_EXPERT},
    {".block_sparse_moe.experts.%d.w2.weight", "DM", CKPT_EACH_EXPERT},
    {".block_sparse_moe.experts.%d.w3.weight", "MD", CKPT_EACH_EXPERT},
    END,
};
/* Qwen has layers without experts. */
static const struct ckpt_check_row qwen_experts[] = {
    {".mlp.gate.weight", "ED", CKPT_IF_EXPERTS},
    {".mlp.experts.%d.gate_proj.weight", "MD", CKPT_IF_EXPERTS | CKPT_EACH_EXPERT},
    {".mlp.experts.%d.up_proj.weight", "MD", CKPT_IF_EXPERTS | CKPT_EACH_EXPERT},
    {".mlp.experts.%d.down_proj.weight", "DM", CKPT_IF_EXPERTS | CKPT_EACH_EXPERT},
    {".mlp.gate_proj.weight", "FD", CKPT_IF_DENSE},
    {".mlp.up_proj.weight", "FD", CKPT_IF_DENSE},
    {".mlp.down_proj.weight", "DF", CKPT_IF_DENSE},
    END,
};
static const struct ckpt_check_row granite_experts[] = {
    {".block_sparse_moe.router.layer.weight", "ED", 0},
    {".block_sparse_moe.input_linear.weight", "EXD", 0},
    {".block_sparse_moe.output_linear.weight", "EDM", 0},
    {".shared_mlp.input_linear.weight", "GD", CKPT_IF_MLP},
    {".shared_mlp.output_linear.weight", "DF", CKPT_IF_MLP},
    END,
};
static const struct ckpt_check_row gpt_oss_experts[] = {
    {".self_attn.sinks", "N", 0},
    {".mlp.router.weight", "ED", 0},
    {".mlp.router.bias", "E", 0},
    {".mlp.experts.gate_up_proj", "EDX", 0},
    {".mlp.experts.gate_up_proj_bias", "EX", 0},
    {".mlp.experts.down_proj", "EMD", 0},
    {".mlp.experts.down_proj_bias", "ED", 0},
    END,
};
static const struct ckpt_check_row gpt2_outside[] = {
    {"transformer.wte.weight", "VD", 0},
    {"transformer.wpe.weight", "PD", 0},
    LINEAR("transformer.ln_f", "D", "D", 0),
    {"lm_head.weight", "VD", CKPT_IF_HEAD},
    END,
};
/* Its matrices are (in, out). */
static const struct ckpt_check_row gpt2_inside[] = {
    LINEAR(".ln_1", "D", "D", 0),
    LINEAR(".ln_2", "D", "D", 0),
    LINEAR(".attn.c_attn", "DT", "T", 0),
    LINEAR(".attn.c_proj", "DD", "D", 0),
    LINEAR(".mlp.c_fc", "DF", "F", 0),
    LINEAR(".mlp.c_proj", "FD", "D", 0),
    END,
};
static const struct ckpt_check_row neox_outside[] = {
    {"gpt_neox.embed_in.weight", "VD", 0},
    LINEAR("gpt_neox.final_layer_norm", "D", "D", 0),
    {"embed_out.weight", "VD", CKPT_IF_HEAD},
    END,
};
static const struct ckpt_check_row neox_inside[] = {
    LINEAR(".input_layernorm", "D", "D", 0),
    LINEAR(".post_attention_layernorm", "D", "D", 0),
    LINEAR(".attention.query_key_value", "TD", "T", CKPT_IF_QKV_BIAS),
    LINEAR(".attention.dense", "DD", "D", CKPT_IF_O_BIAS),
    LINEAR(".mlp.dense_h_to_4h", "FD", "F", 0),
    LINEAR(".mlp.dense_4h_to_h", "DF", "D", 0),
    END,
};

/* ---- the rows -------------------------------------------------------------------------------- */

#define LLAMA .layers = "model.layers", .outside = llama_outside
#define DENSE LLAMA, .mlp_key = "intermediate_size"
#define EXPERTS LLAMA, .expert_key = "intermediate_size"
#define ATTENTION_BIAS .qkv_bias = CKPT_BIAS_IF_SET, .o_bias = CKPT_BIAS_IF_SET
#define MLP_BIAS .mlp_bias = CKPT_BIAS_IF_SET
#define GEMMA3_LISTS                                                                               \
    {                                                                                              \
        gemma2_norms, post_norms, head_norms, attention, mlp                                       \
    }

static const struct ckpt_check_family families[] = {
    {"gemma", DENSE, ATTENTION_BIAS, .inside = {pre_norms, attention, mlp}},
    {"gemma2", DENSE, ATTENTION_BIAS, .inside = {gemma2_norms, post_norms, attention, mlp}},
    {"gemma3", .section = "text_config", .prefix = "language_model.",
     .layers = "language_model.model.layers", .outside = gemma3_outside, ATTENTION_BIAS,
     .mlp_key = "intermediate_size",
     .sizes = {26, {['V'] = 262208, ['D'] = 2304, ['N'] = 8, ['F'] = 9216}},
     .inside = GEMMA3_LISTS},
    {"gemma3_text", DENSE, ATTENTION_BIAS, .inside = GEMMA3_LISTS},
    {"gpt2", .layers = "transformer.h", .outside = gpt2_outside, .mlp_key = "intermediate_size",
     .inside = {gpt2_inside}},
    {"gpt_neox", .layers = "gpt_neox.layers", .outside = neox_outside,
     .other_head = "lm_head.weight", .mlp_key = "intermediate_size",
     .qkv_bias = CKPT_BIAS_UNLESS_UNSET, .o_bias = CKPT_BIAS_UNLESS_UNSET, .inside = {neox_inside}},
    {"gpt_oss", EXPERTS, .qkv_bias = CKPT_BIAS_UNLESS_UNSET, .o_bias = CKPT_BIAS_UNLESS_UNSET,
     .inside = {pre_norms, attention, gpt_oss_experts}},
    {"granite", DENSE, ATTENTION_BIAS, MLP_BIAS, .inside = {pre_norms, attention, mlp}},
    {"granitemoe", EXPERTS, ATTENTION_BIAS, .inside = {pre_norms, attention, granite_experts}},
    {"granitemoeshared", EXPERTS, ATTENTION_BIAS, .mlp_key = "shared_intermediate_size",
     .inside = {pre_norms, attention, granite_experts}},
    {"llama", DENSE, ATTENTION_BIAS, MLP_BIAS, .inside = {pre_norms, attention, mlp}},
    {"ministral", DENSE, .inside = {pre_norms, attention, mlp}},
    {"ministral3", DENSE, .inside = {pre_norms, attention, mlp}},
    {"mistral", DENSE, .inside = {pre_norms, attention, mlp}},
    {"mixtral", EXPERTS, .inside = {pre_norms, attention, mixtral_experts}},
    {"olmo2", DENSE, ATTENTION_BIAS, .inside = {post_norms, whole_norms, attention, mlp}},
    {"olmo3", DENSE, ATTENTION_BIAS, .inside = {post_norms, whole_norms, attention, mlp}},
    {"olmoe", EXPERTS, ATTENTION_BIAS, .inside = {pre_norms, whole_norms, attention, qwen_experts}},
    {"phi3", DENSE, .inside = {pre_norms, phi3}},
    {"qwen2", DENSE, .qkv_bias = CKPT_BIAS_ALWAYS, .inside = {pre_norms, attention, mlp}},
    {"qwen3", DENSE, ATTENTION_BIAS, .inside = {pre_norms, head_norms, attention, mlp}},
    {"qwen3_moe", LLAMA, ATTENTION_BIAS, .mlp_key = "intermediate_size",
     .sizes = {.size = {['F'] = 6144}}, .expert_key = "moe_intermediate_size",
     .inside = {pre_norms, head_norms, attention, qwen_experts}},
    {"smollm3", DENSE, ATTENTION_BIAS, MLP_BIAS, .inside = {pre_norms, attention, mlp}},
};

const struct ckpt_check_family *ckpt_check_family_of(const char *type)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (!strcmp(families[i].type, type))
            return &families[i];
    return NULL;
}
