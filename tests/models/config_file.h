/* SPDX-License-Identifier: Apache-2.0 */
/* config_file.h: a config.json of a test, which is written with one key changed and read as a
 * model. */
#ifndef CONFIG_FILE_H
#define CONFIG_FILE_H

#include <unistd.h>

#include "family/stack.h"
#include "ref_files.h"
#include "tap.h"

static char path[] = "config-XXXXXX";

static inline void config_file_begin(void)
{
    const int fd = mkstemp(path);

    if (fd < 0)
        exit(1);
    close(fd);
}

/* A good configuration in which `key` has another value (NULL: is left out), plus `extra`. */
static inline void write_config(const char *key, const char *value, const char *extra)
{
    static const char *const base[][2] = {
        {"model_type", "\"llama\""},  {"vocab_size", "256"},      {"hidden_size", "64"},
        {"intermediate_size", "176"}, {"num_hidden_layers", "2"}, {"num_attention_heads", "4"},
        {"num_key_value_heads", "2"}, {"hidden_act", "\"silu\""}, {"max_position_embeddings", "64"},
        {"rms_norm_eps", "1e-05"},
    };
    FILE *file = fopen(path, "w");
    fprintf(file, "{");
    for (int i = 0; i < 10; i++) {
        const char *v = key && !strcmp(key, base[i][0]) ? value : base[i][1];
        if (v)
            fprintf(file, "\"%s\": %s, ", base[i][0], v);
    }
    fprintf(file, "%s%s\"end\": 0}", extra ? extra : "", extra ? ", " : "");
    fclose(file);
}

static inline void write_text(const char *text)
{
    FILE *file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
}

/* What model_find and create say about the file. */
static inline int open_config(struct model **model, struct fsdp_err *err)
{
    const struct model_ops *ops;
    *model = NULL;
    FSDP_TRY(model_find(&ops, path, err));
    return ops->create(model, path, err);
}

/* A good GPT-2 configuration in which `key` has another value (NULL: is left out). */
static inline void write_gpt2(const char *key, const char *value)
{
    static const char *const base[][2] = {
        {"vocab_size", "211"}, {"n_embd", "48"},
        {"n_layer", "2"},      {"n_head", "3"},
        {"n_positions", "64"}, {"n_inner", "null"},
        {"embd_pdrop", "0.0"}, {"attn_pdrop", "0.0"},
        {"resid_pdrop", "0"},  {"layer_norm_epsilon", "1e-06"},
    };
    bool known = false;
    FILE *file = fopen(path, "w");
    fprintf(file, "{\"model_type\": \"gpt2\"");
    for (int i = 0; i < 10; i++) {
        bool this = key && !strcmp(key, base[i][0]);
        known = known || this;
        if (!this || value)
            fprintf(file, ", \"%s\": %s", base[i][0], this ? value : base[i][1]);
    }
    if (key && !known)
        fprintf(file, ", \"%s\": %s", key, value);
    fprintf(file, "}");
    fclose(file);
}

#endif
