/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unicode.h: Unicode as the originals know it that tokenizer files are written for. Every library
 * knows another version; a letter that one does not know is cut from its word. The tables are those
 * of the package `tokenizers`, whose classes are also tiktoken's.
 */
#ifndef TEXT_UNICODE_H
#define TEXT_UNICODE_H

#include "fsdp/base.h"

struct unicode_range {
    uint32_t first, last;
};

/* Calls `add` for each range of a class: a general category of one or two letters, a script,
 * White_Space or Word. Ranges of a category of one letter overlap nowhere, but are not sorted.
 * False: the class is not known. Pure. */
typedef void unicode_range_f(void *ctx, struct unicode_range range);
bool unicode_class(const char *name, size_t nbytes, unicode_range_f *add, void *ctx);

/* A text that grows; freed with unicode_text_free. Zeros are an empty one. */
struct unicode_text {
    char *at;
    size_t nbytes, room;
};
int unicode_text_add(struct unicode_text *text, const char *bytes, size_t nbytes,
                     struct fsdp_err *err);
void unicode_text_free(struct unicode_text *text);

enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };
/* These append to out. The text is valid UTF-8. Local. */
int unicode_normalize(struct unicode_text *out, const char *text, size_t nbytes,
                      enum unicode_form form, struct fsdp_err *err);
int unicode_lower(struct unicode_text *out, const char *text, size_t nbytes, struct fsdp_err *err);
int unicode_strip_accents(struct unicode_text *out, const char *text, size_t nbytes,
                          struct fsdp_err *err);

bool unicode_is_space(uint32_t code);
/* Moves *first and *end over white space at the ends. */
void unicode_strip(const char *text, size_t *first, size_t *end, bool left, bool right);

#endif
