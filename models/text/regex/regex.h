/* SPDX-License-Identifier: Apache-2.0 */
/* regex.h: the regular expressions of tokenizers. Syntax and semantics are those of the original
 * engine; the Unicode tables are those of models/text/unicode. A construct whose result may differ
 * is refused by name. */
#ifndef TEXT_REGEX_H
#define TEXT_REGEX_H

#include "fsdp/base.h"

enum regex_engine {
    REGEX_TOKENIZERS, /* Oniguruma, as in tokenizers: Split, ByteLevel, Replace */
    REGEX_TIKTOKEN    /* fancy-regex, as in tiktoken */
};

struct regex;
struct regex_scan;

/* *out is constant: threads may share it. FSDP_EUNSUPPORTED names a construct and its
 * offset in the pattern; FSDP_EINVAL: no valid pattern. */
int regex_create(struct regex **out, const char *pattern, size_t nbytes, enum regex_engine engine,
                 struct fsdp_err *err);
void regex_destroy(struct regex *re);

/* One per thread. Borrows re. */
int regex_scan_create(struct regex_scan **out, const struct regex *re, struct fsdp_err *err);
void regex_scan_destroy(struct regex_scan *scan);

/* The next match at or after `from`, a boundary of characters, of text (valid UTF-8): 1 and
 * [*first, *end), 0 where there is none, or a negative status. A match is never empty. A scan
 * remembers what it has seen of a text: call with from = 0 where the text is another one. */
int regex_next(struct regex_scan *scan, const char *text, size_t nbytes, size_t from, size_t *first,
               size_t *end, struct fsdp_err *err);

#endif
