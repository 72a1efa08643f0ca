/* SPDX-License-Identifier: Apache-2.0 */
/* tables.h: what scripts/unicode_tables.py writes. A table ends with a row whose name is NULL. */
#ifndef TEXT_UNICODE_TABLES_H
#define TEXT_UNICODE_TABLES_H

#include "unicode.h"

struct unicode_table {
    const char *name;
    const struct unicode_range *ranges;
    size_t nranges;
};

extern const struct unicode_table unicode_table_letters[], unicode_table_categories[],
    unicode_table_scripts[], unicode_table_properties[];

/* first, first + step, ... last become one other code point each, which lies at a distance. */
struct unicode_lower_run {
    uint32_t first, last;
    int32_t step, difference;
};

extern const struct unicode_lower_run unicode_lower_runs[];
extern const size_t unicode_lower_nruns;

#endif
