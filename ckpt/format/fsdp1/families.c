/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order is that of torch's named_parameters: modules as their constructors make them, in
 * transformers. Norms of equal sizes can be told apart by nothing else, so that each list is
 * compared with the models themselves (tests/interop/fsdp1.sh).
 */
#include <stdio.h>
#include <string.h>

#include "families.h"

typedef struct ckpt_fsdp1_row row;

#define END                                                                                        \
    {                                                                                              \
        NULL, NULL, NULL                                                                           \
    }
#define ALWAYS(name, dims)                                                                         \
    {                                                                                              \
        name, dims, NULL                                                                           \
    }
#define QKV                                                                                        \
    ALWAYS("self_attn.q_proj.weight", "QD"), ALWAYS("self_attn.k_proj.weight", "KD"),              \
        ALWAYS("self_attn.v_proj.weight", "KD"), ALWAYS("self_attn.o_proj.weight", "DQ")
#define QKV_BIASED                                                                                 \
    ALWAYS("self_attn.q_proj.weight", "QD"), {"self_attn.q_proj.bias", "Q", "attention_bias"},     \
        ALWAYS("self_attn.k_proj.weight", "KD"), {"self_attn.k_proj.bias", "K", "attention_bias"}, \
        ALWAYS("self_attn.v_proj.weight", "KD"), {"self_attn.v_proj.bias", "K", "attention_bias"}, \
        ALWAYS("self_attn.o_proj.weight", "DQ"),                                                   \
    {                                                                                              \
        "self_attn.o_proj.bias", "D", "attention_bias"                                             \
    }
#define MLP                                                                                        \
    ALWAYS("mlp.gate_proj.weight", "FD"), ALWAYS("mlp.up_proj.weight", "FD"),                      \
        ALWAYS("mlp.down_proj.weight", "DF")
#define MLP_BIASED                                                                                 \
    ALWAYS("mlp.gate_proj.weight", "FD"), {"mlp.gate_proj.bias", "F", "mlp_bias"},                 \
        ALWAYS("mlp.up_proj.weight", "FD"), {"mlp.up_proj.bias", "F", "mlp_bias"},                 \
        ALWAYS("mlp.down_proj.weight", "DF"),                                                      \
    {                                                                                              \
        "mlp.down_proj.bias", "D", "mlp_bias"                                                      \
    }
#define BEFORE ALWAYS("input_layernorm.weight", "D"), ALWAYS("post_attention_layernorm.weight", "D")
#define AROUND                                                                                     \
    BEFORE, ALWAYS("pre_feedforward_layernorm.weight", "D"),                                       \
        ALWAYS("post_feedforward_layernorm.weight", "D")
#define BEHIND                                                                                     \
    ALWAYS("post_attention_layernorm.weight", "D"), ALWAYS("post_feedforward_layernorm.weight", "D")
#define NORMS(q, k) ALWAYS("self_attn.q_norm.weight", q), ALWAYS("self_attn.k_norm.weight", k)

static const row front[] = {ALWAYS("model.embed_tokens.weight", "VD"), END};
static const row back[] = {ALWAYS("model.norm.weight", "D"), ALWAYS("lm_head.weight", "VD"), END};

static const row llama[] = {QKV_BIASED, MLP_BIASED, BEFORE, END};
static const row mistral[] = {QKV, MLP, BEFORE, END};
static const row qwen2[] = {ALWAYS("self_attn.q_proj.weight", "QD"),
                            ALWAYS("self_attn.q_proj.bias", "Q"),
                            ALWAYS("self_attn.k_proj.weight", "KD"),
                            ALWAYS("self_attn.k_proj.bias", "K"),
                            ALWAYS("self_attn.v_proj.weight", "KD"),
                            ALWAYS("self_attn.v_proj.bias", "K"),
                            ALWAYS("self_attn.o_proj.weight", "DQ"),
                            MLP,
                            BEFORE,
                            END};
static const row qwen3[] = {QKV_BIASED, NORMS("H", "H"), MLP, BEFORE, END};
static const row phi3[] = {ALWAYS("self_attn.o_proj.weight", "DQ"),
                           ALWAYS("self_attn.qkv_proj.weight", "UD"),
                           ALWAYS("mlp.gate_up_proj.weight", "GD"),
                           ALWAYS("mlp.down_proj.weight", "DF"),
                           BEFORE,
                           END};
static const row gemma[] = {QKV_BIASED, MLP, BEFORE, END};
static const row gemma2[] = {QKV_BIASED, MLP, AROUND, END};
static const row gemma3[] = {QKV_BIASED, NORMS("H", "H"), MLP, AROUND, END};
static const row olmo2[] = {QKV_BIASED, NORMS("Q", "K"), MLP, BEHIND, END};

static const row gpt2_front[] = {ALWAYS("transformer.wte.weight", "VD"),
                                 ALWAYS("transformer.wpe.weight", "PD"), END};
static const row gpt2[] = {ALWAYS("ln_1.weight", "D"),
                           ALWAYS("ln_1.bias", "D"),
                           ALWAYS("attn.c_attn.weight", "DT"),
                           ALWAYS("attn.c_attn.bias", "T"),
                           ALWAYS("attn.c_proj.weight", "DD"),
                           ALWAYS("attn.c_proj.bias", "D"),
                           ALWAYS("ln_2.weight", "D"),
                           ALWAYS("ln_2.bias", "D"),
                           ALWAYS("mlp.c_fc.weight", "DF"),
                           ALWAYS("mlp.c_fc.bias", "F"),
                           ALWAYS("mlp.c_proj.weight", "FD"),
                           ALWAYS("mlp.c_proj.bias", "D"),
                           END};
static const row gpt2_back[] = {ALWAYS("transformer.ln_f.weight", "D"),
                                ALWAYS("transformer.ln_f.bias", "D"),
                                ALWAYS("lm_head.weight", "VD"), END};

static const row neox_front[] = {ALWAYS("gpt_neox.embed_in.weight", "VD"), END};
static const row neox[] = {ALWAYS("input_layernorm.weight", "D"),
                           ALWAYS("input_layernorm.bias", "D"),
                           ALWAYS("post_attention_layernorm.weight", "D"),
                           ALWAYS("post_attention_layernorm.bias", "D"),
                           ALWAYS("attention.query_key_value.weight", "TD"),
                           {"attention.query_key_value.bias", "T", "attention_bias"},
                           ALWAYS("attention.dense.weight", "DD"),
                           {"attention.dense.bias", "D", "attention_bias"},
                           ALWAYS("mlp.dense_h_to_4h.weight", "FD"),
                           ALWAYS("mlp.dense_h_to_4h.bias", "F"),
                           ALWAYS("mlp.dense_4h_to_h.weight", "DF"),
                           ALWAYS("mlp.dense_4h_to_h.bias", "D"),
                           END};
static const row neox_back[] = {ALWAYS("gpt_neox.final_layer_norm.weight", "D"),
                                ALWAYS("gpt_neox.final_layer_norm.bias", "D"),
                                ALWAYS("embed_out.weight", "VD"), END};

#define LLAMA_LIKE(name, block)                                                                    \
    {                                                                                              \
        name, "model.layers.", front, block, back, "model.embed_tokens.weight", "lm_head.weight",  \
            NULL, false                                                                            \
    }

static const struct ckpt_fsdp1_family families[] = {
    LLAMA_LIKE("llama", llama),
    LLAMA_LIKE("mistral", mistral),
    LLAMA_LIKE("qwen2", qwen2),
    LLAMA_LIKE("qwen3", qwen3),
    LLAMA_LIKE("smollm3", llama),
    LLAMA_LIKE("granite", llama),
    LLAMA_LIKE("phi3", phi3),
    LLAMA_LIKE("gemma", gemma),
    LLAMA_LIKE("gemma2", gemma2),
    LLAMA_LIKE("gemma3_text", gemma3),
    LLAMA_LIKE("olmo2", olmo2),
    LLAMA_LIKE("olmo3", olmo2),
    {"gpt2", "transformer.h.", gpt2_front, gpt2, gpt2_back, "transformer.wte.weight",
     "lm_head.weight", NULL, false},
    {"gpt_neox", "gpt_neox.layers.", neox_front, neox, neox_back, "gpt_neox.embed_in.weight",
     "embed_out.weight", "lm_head.weight", true},
};
enum { NFAMILIES = sizeof families / sizeof families[0] };

const struct ckpt_fsdp1_family *ckpt_fsdp1_family_find(const char *type)
{
    for (int i = 0; i < NFAMILIES; i++)
        if (!strcmp(families[i].type, type))
            return &families[i];
    return NULL;
}

const char *ckpt_fsdp1_family_list(char *out, unsigned long nbytes)
{
    size_t used = 0;
    for (int i = 0; i < NFAMILIES && used < nbytes; i++)
        used +=
            (size_t)snprintf(out + used, nbytes - used, "%s%s", i ? ", " : "", families[i].type);
    return out;
}
