/* SPDX-License-Identifier: Apache-2.0 */
/* A growing text, and checked access to parsed JSON. */
#ifndef CKPT_TEXT_H
#define CKPT_TEXT_H

#include <jansson.h>

#include "fsdp/base.h"

struct ckpt_text {
    char *data; /* followed by a 0 byte */
    size_t nbytes, max;
    bool failed; /* out of memory; sticky, later additions do nothing */
};
/* Room for `more` bytes: what is not used is not touched. */
void ckpt_text_reserve(struct ckpt_text *text, size_t more);
void ckpt_text_add(struct ckpt_text *text, const char *data, size_t nbytes);
void ckpt_text_printf(struct ckpt_text *text, const char *fmt, ...) FSDP_PRINTF(2, 3);
/* What stands between the quotes of a JSON string. */
void ckpt_text_escape(struct ckpt_text *text, const char *value);
/* A quoted JSON string. */
void ckpt_text_json(struct ckpt_text *text, const char *value);
/* "[1,2,3]" */
void ckpt_text_dims(struct ckpt_text *text, const uint64_t *dims, int ndim);
void ckpt_text_free(struct ckpt_text *text);
bool ckpt_utf8_check(const char *text);
/* For tables in memory. The table's address is a seed that nobody who makes a file can foresee. */
uint64_t ckpt_hash(uint64_t seed, const char *data, size_t nbytes);

/* Parses an object, refusing duplicate keys, bad UTF-8 and text behind it. `what` names it in
 * errors. */
int ckpt_json_parse(json_t **out, const char *data, size_t nbytes, const char *what,
                    struct fsdp_err *err);
/* False if absent, not an integer, or negative. */
bool ckpt_json_u64(uint64_t *out, const json_t *value);
/* `otherwise` where the object has no such key, or another value. */
bool ckpt_json_flag(const json_t *object, const char *key, bool otherwise);
/* A string of exactly ndigits lower-case hexadecimal digits. */
bool ckpt_json_hex(uint64_t *out, const json_t *value, int ndigits);

#endif
