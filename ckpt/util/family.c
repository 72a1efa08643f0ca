/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "family.h"

/* 0: it follows from the model's other sizes, and of eps that it is 1e-6. A family that is not here
 * has none of these. */
static const struct defaults {
    const char *type;
    uint64_t nkv_heads, head_dim, nexperts, experts_per_token;
    double eps;
    bool tied;
} families[] = {
    {"gemma", 16, 256, 0, 0, 0, true},          {"gemma2", 4, 256, 0, 0, 0, true},
    {"gemma3", 4, 256, 0, 0, 0, true},          {"gemma3_text", 4, 256, 0, 0, 0, true},
    {"gpt2", 0, 0, 0, 0, 1e-5, true},           {"gpt_neox", 0, 0, 0, 0, 1e-5, false},
    {"gpt_oss", 8, 64, 128, 4, 1e-5, false},    {"granitemoe", 0, 0, 8, 2, 0, false},
    {"granitemoeshared", 0, 0, 8, 2, 0, false}, {"ministral", 8, 0, 0, 0, 0, false},
    {"ministral3", 8, 128, 0, 0, 1e-5, false},  {"mistral", 8, 0, 0, 0, 0, false},
    {"mixtral", 8, 0, 8, 2, 1e-5, false},       {"olmo2", 0, 0, 0, 0, 1e-5, false},
    {"olmo3", 0, 0, 0, 0, 1e-5, false},         {"olmoe", 0, 0, 64, 8, 1e-5, false},
    {"phi3", 0, 0, 0, 0, 1e-5, false},          {"qwen2", 32, 0, 0, 0, 0, false},
    {"qwen3", 32, 128, 0, 0, 0, false},         {"qwen3_moe", 4, 0, 128, 8, 0, false},
    {"smollm3", 4, 0, 0, 0, 0, true},
};

static struct defaults defaults_of(const char *type)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (!strcmp(families[i].type, type))
            return families[i];
    return (struct defaults){.type = type};
}

/* A key that is absent, not null. */
static bool is_absent(const json_t *config, const char *key)
{
    return !json_object_get(config, key);
}

uint64_t ckpt_family_key_heads(const char *type, const json_t *config, uint64_t nheads)
{
    const uint64_t own = defaults_of(type).nkv_heads;
    return own && is_absent(config, "num_key_value_heads") ? own : nheads;
}

uint64_t ckpt_family_head_dim(const char *type, const json_t *config, uint64_t nheads, uint64_t dim)
{
    const uint64_t own = defaults_of(type).head_dim;
    return own && is_absent(config, "head_dim") ? own : dim / nheads;
}

uint64_t ckpt_family_experts(const char *type)
{
    return defaults_of(type).nexperts;
}

uint64_t ckpt_family_experts_per_token(const char *type)
{
    return defaults_of(type).experts_per_token;
}

double ckpt_family_eps(const char *type)
{
    const double eps = defaults_of(type).eps;
    return eps > 0 ? eps : 1e-6;
}

bool ckpt_family_tied(const char *type)
{
    return defaults_of(type).tied;
}

bool ckpt_is_derived_buffer(const char *name)
{
    static const char *const ends[] = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                                       ".attention.bias", ".attention.masked_bias"};

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (fsdp_text_ends(name, ends[i]) && strlen(name) > strlen(ends[i]))
            return true;
    return false;
}
