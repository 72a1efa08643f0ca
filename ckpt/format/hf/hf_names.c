/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "hf_names.h"

bool ckpt_hf_is_weights(const char *name)
{
    return name[0] != '.' &&
           (fsdp_text_ends(name, ".safetensors") || fsdp_text_ends(name, ".safetensors.zst"));
}

bool ckpt_hf_names_file(const char *path)
{
    const char *end = strrchr(path, '.');
    return end && !strcasecmp(end, ".safetensors");
}

bool ckpt_hf_is_index(const char *name)
{
    return fsdp_text_ends(name, ".safetensors.index.json");
}

bool ckpt_hf_is_whole(const char *name)
{
    static const char front[] = "pytorch_model";
    const size_t n = sizeof front - 1;
    return ckpt_hf_is_weights(name) || ckpt_hf_is_index(name) ||
           (!strncmp(name, front, n) && (name[n] == '-' || name[n] == '.') &&
            (fsdp_text_ends(name, ".bin") || fsdp_text_ends(name, ".bin.index.json")));
}

bool ckpt_hf_is_sharded(const char *name)
{
    return !strncmp(name, "pytorch_model_fsdp", 18) || !strncmp(name, "global_step", 11);
}

bool ckpt_hf_is_companion(const char *name)
{
    static const char *const names[] = {"config.json",
                                        "generation_config.json",
                                        "added_tokens.json",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "merges.txt",
                                        "processor_config.json",
                                        "preprocessor_config.json",
                                        "special_tokens_map.json",
                                        "params.json",
                                        "spiece.model",
                                        "sentencepiece.bpe.model",
                                        "tekken.json",
                                        "vocab.json",
                                        "vocab.txt"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(name, names[i]))
            return true;
    return !strncmp(name, "tokenizer", 9) && ckpt_hf_is_extra(name);
}

bool ckpt_hf_is_extra(const char *name)
{
    static const char *const ends[] = {".json", ".txt", ".model", ".jinja", ".tiktoken"};
    if (name[0] == '.' || fsdp_text_ends(name, ".index.json") ||
        !strcmp(name, "trainer_state.json")) /* of a run of transformers, not of its model */
        return false;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (fsdp_text_ends(name, ends[i]))
            return true;
    return false;
}

const char *ckpt_hf_dtype_name(enum fsdp_dtype dtype)
{
    static const char *const names[FSDP_NDTYPES] = {
        [FSDP_F32] = "float32", [FSDP_BF16] = "bfloat16",         [FSDP_F16] = "float16",
        [FSDP_F64] = "float64", [FSDP_F8_E4M3] = "float8_e4m3fn", [FSDP_F8_E5M2] = "float8_e5m2",
    };
    return names[dtype];
}
