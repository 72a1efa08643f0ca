/* SPDX-License-Identifier: Apache-2.0 */
/* Pre-tokenizers that llama.cpp knows by name, by what tokenizer.json has of them. */
#include <string.h>

#include "tokenizer.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define ENDS "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define BEFORE "[^\\r\\n\\p{L}\\p{N}]?"

/* A split by one expression, before bytes become letters. */
static const struct {
    const char *pattern, *pre;
    const char *pre_splitting; /* (optional) where merges are not ignored */
} splits[] = {
    {CONTRACTIONS "|" BEFORE "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" ENDS, "llama-bpe",
     "dbrx"},
    {CONTRACTIONS "|" BEFORE "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" ENDS, "qwen2", NULL},
    {CONTRACTIONS "|" BEFORE "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" ENDS,
     "qwen35", NULL},
    {BEFORE "[" UPPER "]*[" LOWER "]+" CONTRACTIONS "?|" BEFORE "[" UPPER "]+[" LOWER
            "]*" CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" ENDS,
     "gpt-4o", NULL},
    {BEFORE "[" UPPER "]*[" LOWER "]+|" BEFORE "[" UPPER "]+[" LOWER
            "]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" ENDS,
     "tekken", NULL},
};

static bool has_type(const json_t *object, const char *type)
{
    const char *found = json_string_value(json_object_get(object, "type"));
    return found && !strcmp(found, type);
}

/* Bytes become letters, and nothing else changes; use_regex: words are split as GPT-2 does. */
static bool is_byte_level(const json_t *object, bool use_regex)
{
    const json_t *regex = json_object_get(object, "use_regex");
    const bool uses = !json_is_false(regex);
    return has_type(object, "ByteLevel") && uses == use_regex &&
           json_is_false(json_object_get(object, "add_prefix_space"));
}

static const char *split_pattern(const json_t *object)
{
    const char *behavior = json_string_value(json_object_get(object, "behavior"));
    if (!has_type(object, "Split") || !behavior || strcmp(behavior, "Isolated") ||
        json_is_true(json_object_get(object, "invert")))
        return NULL;
    return json_string_value(json_object_get(json_object_get(object, "pattern"), "Regex"));
}

const char *gguf_pre_of(const json_t *pre, const struct gguf_bpe_traits *bpe)
{
    const json_t *list = json_object_get(pre, "pretokenizers");
    if (has_type(pre, "Sequence") && json_array_size(list) == 1)
        return gguf_pre_of(json_array_get(list, 0), bpe);
    if (is_byte_level(pre, true) || (!bpe->has_merges && is_byte_level(pre, false)))
        return "gpt-2";
    if (!has_type(pre, "Sequence") || json_array_size(list) != 2)
        return NULL;
    const json_t *first = json_array_get(list, 0), *last = json_array_get(list, 1);
    if (has_type(first, "Digits") && json_is_true(json_object_get(first, "individual_digits")) &&
        is_byte_level(last, true))
        return "smollm";
    const char *pattern = split_pattern(first);
    for (size_t i = 0; pattern && i < sizeof splits / sizeof splits[0]; i++)
        if (!strcmp(pattern, splits[i].pattern) && is_byte_level(last, false))
            return splits[i].pre_splitting && !bpe->ignores_merges ? splits[i].pre_splitting
                                                                   : splits[i].pre;
    return NULL;
}
