/* SPDX-License-Identifier: Apache-2.0 */
/* parse.h: what the parts of the parser share. */
#ifndef TEXT_REGEX_PARSE_H
#define TEXT_REGEX_PARSE_H

#include "program.h"

struct regex_parser {
    const char *pattern;
    size_t nbytes, at;
    enum regex_engine engine;
    struct regex_program *out;
    int depth, brackets; /* how deep it is in groups and classes, and in classes alone */
    uint32_t folded;     /* the caseless letter that stands directly ahead; 0: none */
    struct fsdp_err *err;
};

enum { REGEX_MAX_DEPTH = 100 };

/* FSDP_EUNSUPPORTED: the construct at a byte of the pattern. */
int regex_refuse(struct regex_parser *p, size_t at, const char *what);
bool regex_starts(const struct regex_parser *p, const char *text);
/* The byte at p->at + ahead; 0 behind the end. */
char regex_peek(const struct regex_parser *p, size_t ahead);
/* Takes one character. */
uint32_t regex_take(struct regex_parser *p);

/* Parses an escape, whose backslash is next: a code point (*is_code), or a class added to *set. */
int regex_parse_escape(struct regex_parser *p, bool caseless, struct regex_set *set, bool *is_code,
                       uint32_t *code);
/* Parses a class, whose bracket is next, into *set, which is empty. */
int regex_parse_class(struct regex_parser *p, bool caseless, struct regex_set *set);
/* set ∪ [first, last], and the other case of its letters; `at` is its place in the pattern. */
int regex_add_codes(struct regex_parser *p, size_t at, bool caseless, struct regex_set *set,
                    const struct unicode_range *codes);

#endif
