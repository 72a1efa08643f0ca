/* SPDX-License-Identifier: Apache-2.0 */
/* unicode.h: classes, normal forms and lower case of Unicode, as in tokenizers and tiktoken. The
 * tables come from PyPI's tokenizers and tiktoken, independent of the system's libraries. All
 * functions are thread safe. */
#ifndef TEXT_UNICODE_H
#define TEXT_UNICODE_H

#include "fsdp/base.h"

/* Both ends belong to it. */
struct unicode_range {
    uint32_t first, last;
};

/* The code points of a class, sorted, static: general categories by their short and long names
 * (L, Lu, Letter, ...), scripts (Han, Latin, ...), Alphabetic, and
 *   White_Space (\s), Digit (\d), Word (\w), Word:tiktoken (\w of tiktoken and of Rust),
 *   Word:brackets ([\w] of Oniguruma, which is not its \w),
 *   Numeric (what the pre-tokenizer Digits splits off), Punctuation:split (what Punctuation does),
 *   Accent (what StripAccents removes).
 * Case, blanks, - and _ of the name do not count. NULL: not known. A range may pass over the
 * surrogates, which no text has. */
const struct unicode_range *unicode_class(const char *name, size_t nbytes, size_t *nranges);
bool unicode_in(const struct unicode_range *ranges, size_t nranges, uint32_t code);

enum unicode_set {
    UNICODE_SPACE,
    UNICODE_ACCENT,
    UNICODE_NUMERIC,
    UNICODE_PUNCTUATION, /* as the pre-tokenizer Punctuation has it */
    UNICODE_WORD,        /* \w of Rust, by which added tokens find words */
    UNICODE_HAN,
    UNICODE_NSETS
};
bool unicode_is(uint32_t code, enum unicode_set set);

/* ---- UTF-8 -------------------------------------------------------------------------------- */

/* The code point at `at` of valid UTF-8, and the number of its bytes. */
uint32_t unicode_decode(const char *at, size_t *nbytes);
/* Returns the number of bytes written, 1 to 4. */
size_t unicode_encode(char out[4], uint32_t code);
/* Is the text valid UTF-8? If not, *bad (optional) is the offset of the first invalid byte. */
bool unicode_valid(const char *text, size_t nbytes, size_t *bad);

/* A text that grows. Begins as zeros. */
struct unicode_text {
    char *at;
    size_t nbytes, room;
};
void unicode_text_free(struct unicode_text *text);
int unicode_text_add(struct unicode_text *text, const char *bytes, size_t nbytes,
                     struct fsdp_err *err);

/* ---- normalizers ---------------------------------------------------------------------------- */

enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };

/* These append the result to *out. The text is valid UTF-8 and not part of *out. On failure
 * (FSDP_ENOMEM) *out may hold a part of the result. */
int unicode_normalize(struct unicode_text *out, const char *text, size_t nbytes,
                      enum unicode_form form, struct fsdp_err *err);
/* Rust's full mapping of each code point by itself: no final sigma, as in tokenizers. */
int unicode_lower(struct unicode_text *out, const char *text, size_t nbytes, struct fsdp_err *err);
int unicode_strip_accents(struct unicode_text *out, const char *text, size_t nbytes,
                          struct fsdp_err *err);
/* Narrows [*first, *end) of the text to what lies between white space. */
void unicode_strip(const char *text, size_t *first, size_t *end, bool left, bool right);

#endif
