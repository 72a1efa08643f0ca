/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regex.h: the regular expressions of tokenizers, on PCRE2. A pattern is written for another
 * engine, with its own Unicode version: classes become explicit ranges (translate.c), so that
 * PCRE2's version never matters, and what the two engines read differently is rewritten or refused.
 */
#ifndef TEXT_REGEX_H
#define TEXT_REGEX_H

#include "fsdp/base.h"

/* Whose pattern it is: Oniguruma's with Ruby's syntax, or that of Rust's fancy-regex. */
enum regex_engine { REGEX_TOKENIZERS, REGEX_TIKTOKEN };

struct regex;
/* FSDP_EINVAL and FSDP_EUNSUPPORTED name the construct and its place. */
int regex_create(struct regex **out, const char *pattern, size_t nbytes, enum regex_engine engine,
                 struct fsdp_err *err);
void regex_destroy(struct regex *regex);

/* A thread's memory for matching. */
struct regex_scan;
int regex_scan_create(struct regex_scan **out, const struct regex *regex, struct fsdp_err *err);
void regex_scan_destroy(struct regex_scan *scan);
/* The next match at or after `from` of a text of valid UTF-8: 1 and [*first, *end), 0: there is
 * none, or an error. A text's first call has from 0. */
int regex_next(struct regex_scan *scan, const char *text, size_t nbytes, size_t from, size_t *first,
               size_t *end, struct fsdp_err *err);

/* ---- private: translate.c -------------------------------------------------------------------- */

struct regex_source {
    char *text; /* for PCRE2; freed by the caller */
    size_t nbytes;
    bool looks_back; /* it depends on text before the match */
};
/* ascii: for text of ASCII alone, of one byte a character. */
int regex_translate(struct regex_source *out, const char *pattern, size_t nbytes,
                    enum regex_engine engine, bool ascii, struct fsdp_err *err);

#endif
