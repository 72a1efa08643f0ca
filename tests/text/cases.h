/* SPDX-License-Identifier: Apache-2.0 */
/* cases.h: the tokenizers of tests/text/data/tokenizer/cases.json as files. */
#ifndef TEXT_CASES_H
#define TEXT_CASES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NULL: it is not there; *why says so. */
static inline json_t *cases_load(json_error_t *why)
{
    char path[1000];

    snprintf(path, sizeof path, "%s/tests/text/data/tokenizer/cases.json",
             getenv("TOP") ? getenv("TOP") : ".");
    return json_load_file(path, JSON_ALLOW_NUL, why);
}

static inline size_t cases_from_base64(unsigned char *out, const char *text)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned bits = 0;
    size_t n = 0;

    for (int nbits = 0; *text && *text != '='; text++) {
        bits = bits << 6 | (unsigned)(strchr(digits, *text) - digits);
        nbits += 6;
        if (nbits >= 8) {
            nbits -= 8;
            out[n++] = (unsigned char)(bits >> nbits);
        }
    }
    return n;
}

/* A file holds only what its model has of its own. */
static inline json_t *cases_file(const json_t *models, const json_t *one)
{
    json_t *file = json_deep_copy(json_object_get(one, "file"));
    const json_t *base =
        json_object_get(models, json_string_value(json_object_get(one, "model")) ?: "");

    if (base) {
        json_t *model = json_deep_copy(base);
        json_object_update(model, json_object_get(file, "model"));
        json_object_set_new(file, "model", model);
    }
    return file;
}

static inline bool cases_write(const char *path, const json_t *models, const json_t *one)
{
    const char *base64 = json_string_value(json_object_get(one, "base64"));
    FILE *out = fopen(path, "w");
    bool good = out != NULL;

    if (out && base64) {
        unsigned char *bytes = malloc(strlen(base64));
        const size_t n = cases_from_base64(bytes, base64);
        good = fwrite(bytes, 1, n, out) == n;
        free(bytes);
    } else if (out) {
        json_t *file = cases_file(models, one);
        good = json_dumpf(file, out, JSON_ENSURE_ASCII) == 0;
        json_decref(file);
    }
    return out && fclose(out) == 0 && good;
}

#endif
