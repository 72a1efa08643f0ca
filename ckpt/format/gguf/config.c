/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "config.h"
#include "source/format_ops.h"
#include "util/limits.h"
#include "util/text.h"

/* Its own values, those that transformers has for what the published files leave out, and the
 * special tokens, which lie around it. The cap on the logits is gemma3_text's alone. */
static json_t *text_of(const json_t *root, const json_t *section)
{
    static const char *const around[] = {"bos_token_id", "eos_token_id", "pad_token_id",
                                         "tie_word_embeddings"};
    json_t *text = json_pack("{s:i, s:i, s:i, s:i, s:i, s:i}", "vocab_size", 262208, "hidden_size",
                             2304, "intermediate_size", 9216, "num_hidden_layers", 26,
                             "num_attention_heads", 8, "max_position_embeddings", 131072);
    int bad = json_object_update(text, (json_t *)(uintptr_t)section);
    for (size_t i = 0; i < sizeof around / sizeof around[0]; i++)
        if (json_object_get(root, around[i]))
            bad |= json_object_set(text, around[i], json_object_get(root, around[i]));
    bad |= json_object_set_new(text, "model_type", json_string("gemma3_text"));
    json_object_del(text, "final_logit_softcapping");
    if (!bad)
        return text;
    json_decref(text);
    return NULL;
}

int gguf_config_open(struct gguf_config *out, const struct ckpt *ckpt, struct fsdp_err *err)
{
    static const char name[] = "config.json";
    json_t *root;
    *out = (struct gguf_config){.path = ckpt_extra_path(ckpt, name), .prefix = ""};
    FSDP_TRY(ckpt_extra_json(&root, ckpt, name, err));
    if (!root)
        return fsdp_err_set(err, FSDP_ENOTFOUND,
                            "'%s' has no config.json, which says what model a GGUF file is of: "
                            "copy the model's there",
                            ckpt->path);
    out->root = root;
    const char *type = json_string_value(json_object_get(root, "model_type"));
    const json_t *section = json_object_get(root, "text_config");
    if (!type || strcmp(type, "gemma3") || !json_is_object(section))
        return FSDP_OK;
    out->prefix = "language_model.";
    out->root = text_of(root, section);
    json_decref(root);
    return out->root ? FSDP_OK : fsdp_err_set(err, FSDP_ENOMEM, "'%s': out of memory", out->path);
}

void gguf_config_close(struct gguf_config *config)
{
    json_decref(config->root);
    config->root = NULL;
}

int gguf_refuse(const struct gguf_config *config, const char *key, struct fsdp_err *err,
                const char *fmt, ...)
{
    char why[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    return fsdp_err_set(err, FSDP_EUNSUPPORTED, "'%s': %s %s", config->path, key, why);
}

int gguf_config_count(uint64_t *out, const struct gguf_config *config, const char *key,
                      struct fsdp_err *err)
{
    const json_t *value = json_object_get(config->root, key);
    *out = 0;
    if (!value || json_is_null(value))
        return FSDP_OK;
    if (ckpt_json_u64(out, value) && *out > 0 && *out <= INT32_MAX)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL, "'%s': %s is not a whole number from 1 to %d",
                        config->path, key, INT32_MAX);
}

int gguf_config_need(uint64_t *out, const struct gguf_config *config, const char *key,
                     struct fsdp_err *err)
{
    FSDP_TRY(gguf_config_count(out, config, key, err));
    return *out ? FSDP_OK : fsdp_err_set(err, FSDP_ENOTFOUND, "'%s' has no %s", config->path, key);
}

int gguf_config_number(double *out, const struct gguf_config *config, const char *key, double value,
                       struct fsdp_err *err)
{
    const json_t *found = json_object_get(config->root, key);
    *out = json_is_number(found) ? json_number_value(found) : value;
    return !found || json_is_null(found) || json_is_number(found)
               ? FSDP_OK
               : fsdp_err_set(err, FSDP_EINVAL, "'%s': %s is not a number", config->path, key);
}

bool gguf_config_flag(const struct gguf_config *config, const char *key, bool value)
{
    return ckpt_json_flag(config->root, key, value);
}

const char *gguf_config_text(const struct gguf_config *config, const char *key, const char *value)
{
    const json_t *found = json_object_get(config->root, key);
    return json_is_string(found) ? json_string_value(found) : value;
}
