/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "sizes.h"
#include "util/family.h"
#include "util/text.h"

static bool bias_of(const json_t *sizes, enum ckpt_check_bias bias, const char *key)
{
    return bias == CKPT_BIAS_ALWAYS ||
           (bias == CKPT_BIAS_IF_SET && ckpt_json_flag(sizes, key, false)) ||
           (bias == CKPT_BIAS_UNLESS_UNSET && ckpt_json_flag(sizes, key, true));
}

static bool experts_read(struct ckpt_check_model *m, const struct ckpt_sizes_source *from)
{
    const struct ckpt_check_family *f = m->family;
    uint64_t *size = m->sizes.size;
    m->sparse_step = 1;
    if (!f->expert_key)
        return f->mlp_key && (size['F'] || ckpt_size_need(&size['F'], from, f->mlp_key));
    m->nexperts = ckpt_family_experts(f->type);
    if (!ckpt_size_need(&size['M'], from, f->expert_key) ||
        !ckpt_size_read(&m->nexperts, from, "num_experts") ||
        !ckpt_size_read(&m->nexperts, from, "num_local_experts") ||
        !ckpt_size_read(&m->sparse_step, from, "decoder_sparse_step"))
        return false;
    m->mlp_only = json_object_get(from->config, "mlp_only_layers");
    size['X'] = 2 * size['M'];
    size['E'] = m->nexperts;
    if (m->nexperts && m->nexperts <= CKPT_CHECK_MOST_EXPERTS && m->sparse_step)
        return true;
    snprintf(from->why, 256, "its number of experts is not one of 1 to %d",
             CKPT_CHECK_MOST_EXPERTS);
    return false;
}

bool ckpt_check_model_read(struct ckpt_check_model *m, char why[256], const json_t *config,
                           const struct ckpt_check_family *f)
{
    const json_t *section = f->section ? json_object_get(config, f->section) : config;
    const struct ckpt_sizes_source from = {section, f->type, why};
    *m = (struct ckpt_check_model){.family = f, .sizes = f->sizes};
    if (!json_is_object(section)) {
        snprintf(why, 256, "it has no %s", f->section);
        return false;
    }
    if (!ckpt_sizes_read(&m->sizes, &from, f->mlp_key))
        return false;
    if (m->sizes.nlayers > CKPT_CHECK_MOST_LAYERS) {
        snprintf(why, 256, "it has more than %d layers", CKPT_CHECK_MOST_LAYERS);
        return false;
    }
    m->qkv_bias = bias_of(section, f->qkv_bias, "attention_bias");
    m->o_bias = bias_of(section, f->o_bias, "attention_bias");
    m->mlp_bias = bias_of(section, f->mlp_bias, "mlp_bias");
    m->tied = ckpt_json_flag(section, "tie_word_embeddings", ckpt_family_tied(f->type));
    m->tied = ckpt_json_flag(config, "tie_word_embeddings", m->tied);
    return experts_read(m, &from);
}

static bool has_experts(const struct ckpt_check_model *m, int64_t layer)
{
    for (size_t i = 0; i < json_array_size(m->mlp_only); i++)
        if (json_integer_value(json_array_get(m->mlp_only, i)) == layer)
            return false;
    return ((uint64_t)layer + 1) % m->sparse_step == 0;
}

bool ckpt_check_model_has(const struct ckpt_check_model *m, const struct ckpt_check_row *row,
                          int64_t layer)
{
    const unsigned when = row->when;
    return (!(when & CKPT_IF_QKV_BIAS) || m->qkv_bias) && (!(when & CKPT_IF_O_BIAS) || m->o_bias) &&
           (!(when & CKPT_IF_MLP_BIAS) || m->mlp_bias) && (!(when & CKPT_IF_HEAD) || !m->tied) &&
           (!(when & CKPT_IF_MLP) || m->sizes.size['F']) &&
           (!(when & CKPT_IF_EXPERTS) || has_experts(m, layer)) &&
           (!(when & CKPT_IF_DENSE) || !has_experts(m, layer));
}
