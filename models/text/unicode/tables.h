/* SPDX-License-Identifier: Apache-2.0 */
/* tables.h: the generated tables of tables.c. */
#ifndef UNICODE_TABLES_H
#define UNICODE_TABLES_H

#include "unicode.h"

struct unicode_table {
    const char *name;
    const struct unicode_range *ranges;
    size_t nranges;
};
struct unicode_pair {
    uint32_t from, to;
};

/* General categories of two letters, scripts, White_Space, Word; name NULL ends them. */
extern const struct unicode_table unicode_tables[];
/* What StripAccents removes. */
extern const struct unicode_table unicode_accents;
/* What utf8proc decomposes or reorders, and the original leaves as it is. */
extern const struct unicode_table unicode_unknown;
/* Lower-case letters, by code point. */
extern const struct unicode_pair unicode_lowers[];
extern const size_t unicode_nlowers;

#endif
