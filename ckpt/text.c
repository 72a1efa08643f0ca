/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "text.h"

static bool grow(struct ckpt_text *text, size_t max)
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
    return grow(text, (text->nbytes + more) * 2 + 64);
}

void ckpt_text_reserve(struct ckpt_text *text, size_t more)
{
    if (!text->failed && text->nbytes + more >= text->max)
        grow(text, text->nbytes + more + 1);
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

void ckpt_text_json(struct ckpt_text *text, const char *value)
{
    ckpt_text_add(text, "\"", 1);
    for (const char *p = value; *p; p++) {
        if (*p == '"' || *p == '\\')
            ckpt_text_printf(text, "\\%c", *p);
        else if ((unsigned char)*p < 0x20)
            ckpt_text_printf(text, "\\u%04x", (unsigned)(unsigned char)*p);
        else
            ckpt_text_add(text, p, 1);
    }
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

uint64_t ckpt_hash(uint64_t seed, const char *data, size_t nbytes)
{
    uint64_t hash = seed;
    for (; nbytes; data += nbytes < 8 ? nbytes : 8, nbytes -= nbytes < 8 ? nbytes : 8) {
        uint64_t word = 0;
        memcpy(&word, data, nbytes < 8 ? nbytes : 8);
        hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return hash;
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
