/* SPDX-License-Identifier: Apache-2.0 */
/* keys.h: GGUF's key-values as they lie in the file, in the order in which they are added. */
#ifndef CKPT_GGUF_KEYS_H
#define CKPT_GGUF_KEYS_H

#include "util/text.h"

struct gguf_keys {
    struct ckpt_text bytes;
    uint64_t count;
    const char *arch; /* that "%" at the begin of a key stands for */
};
void gguf_key_u32(struct gguf_keys *keys, const char *key, uint64_t value);
void gguf_key_f32(struct gguf_keys *keys, const char *key, double value);
void gguf_key_bool(struct gguf_keys *keys, const char *key, bool value);
void gguf_key_text(struct gguf_keys *keys, const char *key, const char *value);
void gguf_key_i32s(struct gguf_keys *keys, const char *key, const int32_t *values, size_t count);
void gguf_key_f32s(struct gguf_keys *keys, const char *key, const float *values, size_t count);
void gguf_key_bools(struct gguf_keys *keys, const char *key, const bool *values, size_t count);
/* An array of texts: begin, then `count` times text. */
void gguf_key_texts(struct gguf_keys *keys, const char *key, size_t count);
/* Numbers, and a text with its length before it. */
void gguf_put_u32(struct ckpt_text *to, uint32_t value);
void gguf_put_u64(struct ckpt_text *to, uint64_t value);
void gguf_put_text(struct ckpt_text *to, const char *data, size_t nbytes);

#endif
