/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "keys.h"

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, TEXT = 8, ARRAY = 9 };

void gguf_put_u32(struct ckpt_text *to, uint32_t value)
{
    const unsigned char bytes[] = {(unsigned char)value, (unsigned char)(value >> 8),
                                   (unsigned char)(value >> 16), (unsigned char)(value >> 24)};
    ckpt_text_add(to, (const char *)bytes, sizeof bytes);
}

void gguf_put_u64(struct ckpt_text *to, uint64_t value)
{
    gguf_put_u32(to, (uint32_t)value);
    gguf_put_u32(to, (uint32_t)(value >> 32));
}

void gguf_put_text(struct ckpt_text *to, const char *data, size_t nbytes)
{
    gguf_put_u64(to, nbytes);
    ckpt_text_add(to, data, nbytes);
}

static void put_f32(struct ckpt_text *to, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    gguf_put_u32(to, bits);
}

static void begin_key(struct gguf_keys *keys, const char *key, uint32_t type)
{
    const char *rest = *key == '%' ? key + 1 : key;
    const size_t arch = rest > key ? strlen(keys->arch) : 0;
    gguf_put_u64(&keys->bytes, arch + strlen(rest));
    ckpt_text_add(&keys->bytes, keys->arch, arch);
    ckpt_text_add(&keys->bytes, rest, strlen(rest));
    gguf_put_u32(&keys->bytes, type);
    keys->count++;
}

static void begin_array(struct gguf_keys *keys, const char *key, uint32_t type, size_t count)
{
    begin_key(keys, key, ARRAY);
    gguf_put_u32(&keys->bytes, type);
    gguf_put_u64(&keys->bytes, count);
}

void gguf_key_u32(struct gguf_keys *keys, const char *key, uint64_t value)
{
    begin_key(keys, key, U32);
    gguf_put_u32(&keys->bytes, (uint32_t)value);
}

void gguf_key_f32(struct gguf_keys *keys, const char *key, double value)
{
    begin_key(keys, key, F32);
    put_f32(&keys->bytes, (float)value);
}

void gguf_key_bool(struct gguf_keys *keys, const char *key, bool value)
{
    begin_key(keys, key, BOOL);
    ckpt_text_add(&keys->bytes, value ? "\1" : "\0", 1);
}

void gguf_key_text(struct gguf_keys *keys, const char *key, const char *value)
{
    begin_key(keys, key, TEXT);
    gguf_put_text(&keys->bytes, value, strlen(value));
}

void gguf_key_i32s(struct gguf_keys *keys, const char *key, const int32_t *values, size_t count)
{
    begin_array(keys, key, I32, count);
    for (size_t i = 0; i < count; i++)
        gguf_put_u32(&keys->bytes, (uint32_t)values[i]);
}

void gguf_key_f32s(struct gguf_keys *keys, const char *key, const float *values, size_t count)
{
    begin_array(keys, key, F32, count);
    for (size_t i = 0; i < count; i++)
        put_f32(&keys->bytes, values[i]);
}

void gguf_key_bools(struct gguf_keys *keys, const char *key, const bool *values, size_t count)
{
    begin_array(keys, key, BOOL, count);
    for (size_t i = 0; i < count; i++)
        ckpt_text_add(&keys->bytes, values[i] ? "\1" : "\0", 1);
}

void gguf_key_texts(struct gguf_keys *keys, const char *key, size_t count)
{
    begin_array(keys, key, TEXT, count);
}
