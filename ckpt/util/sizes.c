/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "family.h"
#include "sizes.h"
#include "text.h"

enum { MOST_SIZE = 1 << 28, WHY_NBYTES = 256 };

static bool is_gpt2(const struct ckpt_sizes_source *from)
{
    return !strcmp(from->type, "gpt2");
}

/* GPT-2's own name of a key. */
static const char *own_key(const struct ckpt_sizes_source *from, const char *key)
{
    static const char *const names[][2] = {{"hidden_size", "n_embd"},
                                           {"num_hidden_layers", "n_layer"},
                                           {"num_attention_heads", "n_head"},
                                           {"intermediate_size", "n_inner"}};

    for (size_t i = 0; is_gpt2(from) && i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(key, names[i][0]))
            return names[i][1];
    return key;
}

bool ckpt_size_read(uint64_t *out, const struct ckpt_sizes_source *from, const char *key)
{
    const json_t *value = json_object_get(from->config, own_key(from, key));

    if (!value || json_is_null(value))
        return true;
    if (ckpt_json_u64(out, value) && *out <= MOST_SIZE)
        return true;
    snprintf(from->why, WHY_NBYTES, "%s is not a whole number up to %d", own_key(from, key),
             MOST_SIZE);
    return false;
}

bool ckpt_size_need(uint64_t *out, const struct ckpt_sizes_source *from, const char *key)
{
    if (!ckpt_size_read(out, from, key))
        return false;
    if (!*out)
        snprintf(from->why, WHY_NBYTES, "it has no %s", own_key(from, key));
    return *out;
}

static bool heads_read(uint64_t *size, const struct ckpt_sizes_source *from)
{
    uint64_t nkv_heads = 0, head_dim = 0;

    if (!ckpt_size_need(&size['N'], from, "num_attention_heads") ||
        !ckpt_size_read(&nkv_heads, from, "num_key_value_heads") ||
        !ckpt_size_read(&head_dim, from, "head_dim"))
        return false;
    if (!nkv_heads)
        nkv_heads = ckpt_family_key_heads(from->type, from->config, size['N']);
    if (!head_dim)
        head_dim = ckpt_family_head_dim(from->type, from->config, size['N'], size['D']);
    size['H'] = head_dim;
    size['Q'] = size['N'] * head_dim;
    size['K'] = nkv_heads * head_dim;
    size['U'] = size['Q'] + 2 * size['K'];
    return true;
}

bool ckpt_sizes_read(struct ckpt_sizes *sizes, const struct ckpt_sizes_source *from,
                     const char *mlp_key)
{
    uint64_t *size = sizes->size;

    if (!ckpt_size_need(&size['V'], from, "vocab_size") ||
        !ckpt_size_need(&size['D'], from, "hidden_size") ||
        !ckpt_size_need(&sizes->nlayers, from, "num_hidden_layers") ||
        (is_gpt2(from) && !ckpt_size_need(&size['P'], from, "n_positions")) ||
        !heads_read(size, from) || (mlp_key && !ckpt_size_read(&size['F'], from, mlp_key)))
        return false;
    if (is_gpt2(from) && !size['F'])
        size['F'] = 4 * size['D'];
    size['G'] = 2 * size['F'];
    size['T'] = 3 * size['D'];
    return true;
}
