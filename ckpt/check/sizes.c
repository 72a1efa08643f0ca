/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "sizes.h"
#include "util/family.h"
#include "util/text.h"

enum { MOST_SIZE = 1 << 28 };

struct reader {
    const json_t *sizes; /* the file, or its section */
    char *why;
};

/* False: it is there, and is no such number. *out stays where it is not there. */
static bool count_read(uint64_t *out, const struct reader *r, const char *key)
{
    const json_t *value = json_object_get(r->sizes, key);
    if (!value || json_is_null(value))
        return true;
    if (ckpt_json_u64(out, value) && *out <= MOST_SIZE)
        return true;
    snprintf(r->why, 256, "%s is not a whole number up to %d", key, MOST_SIZE);
    return false;
}

/* `value` where it is not there; 0: it must be. */
static bool count_need(uint64_t *out, const struct reader *r, const char *key, uint64_t value)
{
    *out = value;
    if (!count_read(out, r, key))
        return false;
    if (!*out)
        snprintf(r->why, 256, "it has no %s", key);
    return *out;
}

static bool flag_of(const json_t *object, const char *key, bool otherwise)
{
    const json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

static bool bias_of(const struct reader *r, enum ckpt_check_bias bias, const char *key)
{
    return bias == CKPT_BIAS_ALWAYS ||
           (bias == CKPT_BIAS_IF_SET && flag_of(r->sizes, key, false)) ||
           (bias == CKPT_BIAS_UNLESS_UNSET && flag_of(r->sizes, key, true));
}

static bool heads_read(struct ckpt_check_model *m, const struct reader *r)
{
    const struct ckpt_check_family *f = m->family;
    uint64_t *size = m->size, nkv_heads = 0, head_dim = 0;
    if (!count_need(&size['N'], r, f->gpt2_keys ? "n_head" : "num_attention_heads", f->nheads) ||
        !count_read(&nkv_heads, r, "num_key_value_heads") || !count_read(&head_dim, r, "head_dim"))
        return false;
    if (!nkv_heads)
        nkv_heads = ckpt_family_key_heads(f->type, r->sizes, size['N']);
    if (!head_dim)
        head_dim = ckpt_family_head_dim(f->type, r->sizes, size['N'], size['D']);
    size['H'] = head_dim;
    size['Q'] = size['N'] * head_dim;
    size['K'] = nkv_heads * head_dim;
    size['U'] = size['Q'] + 2 * size['K'];
    return true;
}

static bool experts_read(struct ckpt_check_model *m, const struct reader *r)
{
    const struct ckpt_check_family *f = m->family;
    uint64_t *size = m->size;
    m->sparse_step = 1;
    size['F'] = f->ffn;
    if (f->mlp_key && !count_read(&size['F'], r, f->mlp_key))
        return false;
    if (f->gpt2_keys && !size['F'])
        size['F'] = 4 * size['D'];
    size['G'] = 2 * size['F'];
    if (!f->expert_key)
        return f->mlp_key && (size['F'] || count_need(&size['F'], r, f->mlp_key, 0));
    m->nexperts = ckpt_family_experts(f->type);
    if (!count_need(&size['M'], r, f->expert_key, 0) ||
        !count_read(&m->nexperts, r, "num_experts") ||
        !count_read(&m->nexperts, r, "num_local_experts") ||
        !count_read(&m->sparse_step, r, "decoder_sparse_step"))
        return false;
    m->mlp_only = json_object_get(r->sizes, "mlp_only_layers");
    size['X'] = 2 * size['M'];
    size['E'] = m->nexperts;
    if (m->nexperts && m->nexperts <= CKPT_CHECK_MOST_EXPERTS && m->sparse_step)
        return true;
    snprintf(r->why, 256, "its number of experts is not one of 1 to %d", CKPT_CHECK_MOST_EXPERTS);
    return false;
}

bool ckpt_check_model_read(struct ckpt_check_model *m, char why[256], const json_t *config,
                           const struct ckpt_check_family *f)
{
    const json_t *section = f->section ? json_object_get(config, f->section) : config;
    const struct reader r = {section, why};
    *m = (struct ckpt_check_model){.family = f};
    if (!json_is_object(section)) {
        snprintf(why, 256, "it has no %s", f->section);
        return false;
    }
    if (!count_need(&m->size['V'], &r, "vocab_size", f->vocab) ||
        !count_need(&m->size['D'], &r, f->gpt2_keys ? "n_embd" : "hidden_size", f->dim) ||
        !count_need(&m->nlayers, &r, f->gpt2_keys ? "n_layer" : "num_hidden_layers", f->nlayers))
        return false;
    if (f->gpt2_keys && !count_need(&m->size['P'], &r, "n_positions", 0))
        return false;
    if (m->nlayers > CKPT_CHECK_MOST_LAYERS) {
        snprintf(why, 256, "it has more than %d layers", CKPT_CHECK_MOST_LAYERS);
        return false;
    }
    m->size['T'] = 3 * m->size['D'];
    m->qkv_bias = bias_of(&r, f->qkv_bias, "attention_bias");
    m->o_bias = bias_of(&r, f->o_bias, "attention_bias");
    m->mlp_bias = bias_of(&r, f->mlp_bias, "mlp_bias");
    m->tied = flag_of(section, "tie_word_embeddings", ckpt_family_tied(f->type));
    m->tied = flag_of(config, "tie_word_embeddings", m->tied);
    return heads_read(m, &r) && experts_read(m, &r);
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
           (!(when & CKPT_IF_MLP) || m->size['F']) &&
           (!(when & CKPT_IF_EXPERTS) || has_experts(m, layer)) &&
           (!(when & CKPT_IF_DENSE) || !has_experts(m, layer));
}
