/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "text.h"

static bool grow_text(struct ckpt_text *text, size_t max)
{
    char *grown = fsdp_alloc_unset(max, 1, "text", NULL);
    if (!grown) {
        text->failed = true;
        return false;
    }
    if (text->nbytes)
        memcpy(grown, text->data, text->nbytes);
    fsdp_free(text->data);
    text->data = grown;
    text->max = max;
    return true;
}

static bool reserve(struct ckpt_text *text, size_t more)
{
    if (text->failed || text->nbytes + more < text->max)
        return !text->failed;
    return grow_text(text, (text->nbytes + more) * 2 + 64);
}

void ckpt_text_reserve(struct ckpt_text *text, size_t more)
{
    if (!text->failed && text->nbytes + more >= text->max)
        grow_text(text, text->nbytes + more + 1);
}

void ckpt_text_add(struct ckpt_text *text, const char *data, size_t nbytes)
{
    if (!reserve(text, nbytes + 1))
        return;
    memcpy(text->data + text->nbytes, data, nbytes);
    text->nbytes += nbytes;
    text->data[text->nbytes] = 0;
}

void ckpt_text_printf(struct ckpt_text *text, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (len < 0 || !reserve(text, (size_t)len + 1))
        return;
    va_start(ap, fmt);
    vsnprintf(text->data + text->nbytes, (size_t)len + 1, fmt, ap);
    va_end(ap);
    text->nbytes += (size_t)len;
}

void ckpt_text_escape(struct ckpt_text *text, const char *value)
{
    for (const char *p = value; *p; p++) {
        if (*p == '"' || *p == '\\')
            ckpt_text_printf(text, "\\%c", *p);
        else if ((unsigned char)*p < 0x20)
            ckpt_text_printf(text, "\\u%04x", (unsigned)(unsigned char)*p);
        else
            ckpt_text_add(text, p, 1);
    }
}

void ckpt_text_json(struct ckpt_text *text, const char *value)
{
    ckpt_text_add(text, "\"", 1);
    ckpt_text_escape(text, value);
    ckpt_text_add(text, "\"", 1);
}

void ckpt_text_dims(struct ckpt_text *text, const uint64_t *dims, int ndim)
{
    ckpt_text_add(text, "[", 1);
    for (int d = 0; d < ndim; d++)
        ckpt_text_printf(text, "%s%llu", d ? "," : "", (unsigned long long)dims[d]);
    ckpt_text_add(text, "]", 1);
}

void ckpt_text_free(struct ckpt_text *text)
{
    fsdp_free(text->data);
    memset(text, 0, sizeof *text);
}

static uint64_t rotate(uint64_t x, int nbits)
{
    return x << nbits | x >> (64 - nbits);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] = rotate(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] = rotate(v[2], 32);
}

/* SipHash-1-3 (Aumasson, Bernstein 2012; rounds as in Python and Rust). A cheaper hash lets a file
 * hold names that collide under every seed. */
uint64_t ckpt_hash(uint64_t seed, const char *data, size_t nbytes)
{
    uint64_t v[4] = {seed ^ UINT64_C(0x736f6d6570736575), ~seed ^ UINT64_C(0x646f72616e646f6d),
                     seed ^ UINT64_C(0x6c7967656e657261), ~seed ^ UINT64_C(0x7465646279746573)};
    uint64_t word, last = (uint64_t)nbytes << 56;
    for (; nbytes >= 8; data += 8, nbytes -= 8) {
        memcpy(&word, data, 8);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    word = 0;
    if (nbytes)
        memcpy(&word, data, nbytes);
    last |= word;
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

bool ckpt_utf8_check(const char *text)
{
    const char *end = text + strlen(text);
    uint32_t code;
    int nbytes = 1;
    for (; text < end && nbytes; text += nbytes)
        nbytes = fsdp_utf8_decode(&code, text, end);
    return nbytes > 0;
}

int ckpt_json_parse(json_t **out, const char *data, size_t nbytes, const char *what,
                    struct fsdp_err *err)
{
    json_error_t why;
    json_t *value = json_loadb(data, nbytes, JSON_REJECT_DUPLICATES, &why);
    if (!value)
        return fsdp_err_set(err, FSDP_ECORRUPT, "%s is not valid JSON: %s (line %d, column %d)",
                            what, why.text, why.line, why.column);
    if (!json_is_object(value)) {
        json_decref(value);
        return fsdp_err_set(err, FSDP_ECORRUPT, "%s is not a JSON object", what);
    }
    *out = value;
    return FSDP_OK;
}

bool ckpt_json_u64(uint64_t *out, const json_t *value)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

bool ckpt_json_flag(const json_t *object, const char *key, bool otherwise)
{
    const json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

bool ckpt_json_hex(uint64_t *out, const json_t *value, int ndigits)
{
    const char *text = json_string_value(value);
    if (!text || strlen(text) != (size_t)ndigits ||
        strspn(text, "0123456789abcdef") != (size_t)ndigits)
        return false;
    *out = 0;
    for (; *text; text++)
        *out = *out << 4 | (uint64_t)(*text <= '9' ? *text - '0' : *text - 'a' + 10);
    return true;
}
