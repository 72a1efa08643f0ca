/* SPDX-License-Identifier: Apache-2.0 */
/* config.h: values of config.json and of tokenizer files. Errors name the key and the file. */
#ifndef CKPT_GGUF_CONFIG_H
#define CKPT_GGUF_CONFIG_H

#include <jansson.h>

#include "source/source.h"

struct gguf_config {
    const char *path; /* of config.json; borrowed */
    json_t *root;
    const char *prefix; /* of the names of the tensors that it is of; "": of all */
};
/* Of a model of images and texts (gemma3) the root is what describes its text model.
 * FSDP_ENOTFOUND: the checkpoint has no such file next to it. */
int gguf_config_open(struct gguf_config *out, const struct ckpt *ckpt, struct fsdp_err *err);
void gguf_config_close(struct gguf_config *config);

/* A whole number from 1 to 2^31 - 1; 0 where it is absent or null. */
int gguf_config_count(uint64_t *out, const struct gguf_config *config, const char *key,
                      struct fsdp_err *err);
/* The same, where it must be there. */
int gguf_config_need(uint64_t *out, const struct gguf_config *config, const char *key,
                     struct fsdp_err *err);
/* A number; otherwise (absent or null) `value`. */
int gguf_config_number(double *out, const struct gguf_config *config, const char *key, double value,
                       struct fsdp_err *err);
bool gguf_config_flag(const struct gguf_config *config, const char *key, bool value);
const char *gguf_config_text(const struct gguf_config *config, const char *key, const char *value);
/* "'config.json': KEY ...": what GGUF cannot carry. Returns FSDP_EUNSUPPORTED. */
int gguf_refuse(const struct gguf_config *config, const char *key, struct fsdp_err *err,
                const char *fmt, ...) FSDP_PRINTF(4, 5);

#endif
