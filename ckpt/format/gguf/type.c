/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "quant.h"
#include "type.h"

/* ---- tables ---------------------------------------------------------------------------------- */

const struct ckpt_gguf_type ckpt_gguf_f32 = {0, FSDP_F32, NULL, NULL};
const struct ckpt_gguf_type ckpt_gguf_f16 = {1, FSDP_F16, NULL, NULL};
const struct ckpt_gguf_type ckpt_gguf_bf16 = {30, FSDP_BF16, NULL, NULL};
const struct ckpt_gguf_type ckpt_gguf_q4_0 = {2, FSDP_F32, &ckpt_quant_q4_0, NULL};
const struct ckpt_gguf_type ckpt_gguf_q5_0 = {6, FSDP_F32, &ckpt_quant_q5_0, NULL};
const struct ckpt_gguf_type ckpt_gguf_q5_1 = {7, FSDP_F32, &ckpt_quant_q5_1, NULL};
const struct ckpt_gguf_type ckpt_gguf_q8_0 = {8, FSDP_F32, &ckpt_quant_q8_0, NULL};
const struct ckpt_gguf_type ckpt_gguf_q4_k = {12, FSDP_F32, &ckpt_quant_q4_k, &ckpt_gguf_q5_0};
const struct ckpt_gguf_type ckpt_gguf_q5_k = {13, FSDP_F32, &ckpt_quant_q5_k, &ckpt_gguf_q5_1};
const struct ckpt_gguf_type ckpt_gguf_q6_k = {14, FSDP_F32, &ckpt_quant_q6_k, &ckpt_gguf_q8_0};

static const struct ckpt_gguf_file_type file_types[] = {
    {"f32", 0, &ckpt_gguf_f32, false},    {"f16", 1, &ckpt_gguf_f16, false},
    {"bf16", 32, &ckpt_gguf_bf16, false}, {"q8_0", 7, &ckpt_gguf_q8_0, false},
    {"q4_0", 2, &ckpt_gguf_q4_0, false},  {"q4_k_m", 15, &ckpt_gguf_q4_k, true},
    {"q6_k", 18, &ckpt_gguf_q6_k, false},
};
enum { NFILE_TYPES = sizeof file_types / sizeof file_types[0] };

uint32_t ckpt_gguf_block_nelem(const struct ckpt_gguf_type *type)
{
    return type->encoding ? type->encoding->block_nelem : 1;
}

int ckpt_gguf_file_type_of(const struct ckpt_gguf_file_type **out, const char *name,
                           struct fsdp_err *err)
{
    char known[128] = "";
    for (int i = 0; i < NFILE_TYPES; i++) {
        if (!strcmp(name, file_types[i].name)) {
            *out = &file_types[i];
            return FSDP_OK;
        }
        const size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", file_types[i].name);
    }
    return fsdp_err_set(err, FSDP_EINVAL, "'%.64s' is no type of a GGUF file: give one of %s", name,
                        known);
}

const struct ckpt_gguf_file_type *ckpt_gguf_file_type_like(enum fsdp_dtype dtype)
{
    for (int i = 0; i < NFILE_TYPES; i++)
        if (!file_types[i].base->encoding && file_types[i].base->dtype == dtype)
            return &file_types[i];
    return &file_types[0];
}

/* ---- the mix --------------------------------------------------------------------------------- */

/* Tensors that stay F32: small ones, and those that a rounding would hurt most. */
static bool stays_f32(const char *name, int ndim)
{
    return ndim < 2 || !fsdp_text_ends(name, ".weight") || fsdp_text_ends(name, "_norm.weight") ||
           fsdp_text_ends(name, "ffn_gate_inp.weight") || !strcmp(name, "position_embd.weight");
}

/* The first and the last eighth of the layers, and each third of the others. */
static bool gets_more_bits(int layer, int nlayers)
{
    const int eighth = nlayers / 8;
    return layer < eighth || layer >= 7 * nlayers / 8 || (layer - eighth) % 3 == 2;
}

/* A model of 70 billion parameters, where eight heads share each value, which is small then. */
static bool is_70b(const struct ckpt_gguf_mix *mix)
{
    return mix->nlayers == 80 && mix->shares_kv &&
           (!strcmp(mix->arch, "llama") || !strcmp(mix->arch, "qwen2"));
}

/* Of a layer's tensor. */
static const struct ckpt_gguf_type *type_in_layer(const struct ckpt_gguf_mix *mix, const char *name)
{
    const struct ckpt_gguf_type *type = mix->type->base;
    int layer = 0;
    if (sscanf(name, "blk.%d.", &layer) != 1)
        return type;
    const bool more = mix->type->more_bits && gets_more_bits(layer, mix->nlayers);
    const bool value = strstr(name, "attn_v.weight") || strstr(name, "attn_qkv.weight");
    if (value && more)
        type = &ckpt_gguf_q6_k;
    if (value && type == &ckpt_gguf_q4_k && is_70b(mix))
        type = &ckpt_gguf_q5_k;
    if ((value || strstr(name, "attn_k.weight")) && mix->nexperts == 8)
        type = &ckpt_gguf_q8_0;
    if (strstr(name, "attn_output.weight") && mix->nexperts == 8 && mix->type->more_bits)
        type = &ckpt_gguf_q5_k;
    if (strstr(name, "ffn_down") && more)
        type = &ckpt_gguf_q6_k;
    return type;
}

const struct ckpt_gguf_type *ckpt_gguf_type_of(const struct ckpt_gguf_mix *mix, const char *name,
                                               int ndim, uint64_t row_nelem)
{
    const struct ckpt_gguf_type *base = mix->type->base, *type;
    if (stays_f32(name, ndim))
        return &ckpt_gguf_f32;
    if (!base->encoding)
        return base;
    if (!strcmp(name, "output.weight") || (mix->tied && !strcmp(name, "token_embd.weight")))
        type = base == &ckpt_gguf_q8_0 || row_nelem % ckpt_gguf_block_nelem(base) ? &ckpt_gguf_q8_0
                                                                                  : &ckpt_gguf_q6_k;
    else
        type = type_in_layer(mix, name);
    if (row_nelem % ckpt_gguf_block_nelem(type))
        type = type->narrow ? type->narrow : &ckpt_gguf_f16;
    return row_nelem % ckpt_gguf_block_nelem(type) ? &ckpt_gguf_f16 : type;
}
