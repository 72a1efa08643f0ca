/* SPDX-License-Identifier: Apache-2.0 */
/* Classes of code points by name. */
#include <string.h>

#include "tables.h"

static const struct {
    const char *name, *table_name;
} long_names[] = {
    {"Letter", "L"},
    {"Uppercase_Letter", "Lu"},
    {"Lowercase_Letter", "Ll"},
    {"Titlecase_Letter", "Lt"},
    {"Modifier_Letter", "Lm"},
    {"Other_Letter", "Lo"},
    {"Mark", "M"},
    {"Nonspacing_Mark", "Mn"},
    {"Spacing_Mark", "Mc"},
    {"Enclosing_Mark", "Me"},
    {"Number", "N"},
    {"Decimal_Number", "Nd"},
    {"Letter_Number", "Nl"},
    {"Other_Number", "No"},
    {"Punctuation", "P"},
    {"Connector_Punctuation", "Pc"},
    {"Dash_Punctuation", "Pd"},
    {"Open_Punctuation", "Ps"},
    {"Close_Punctuation", "Pe"},
    {"Initial_Punctuation", "Pi"},
    {"Final_Punctuation", "Pf"},
    {"Other_Punctuation", "Po"},
    {"Symbol", "S"},
    {"Math_Symbol", "Sm"},
    {"Currency_Symbol", "Sc"},
    {"Modifier_Symbol", "Sk"},
    {"Other_Symbol", "So"},
    {"Separator", "Z"},
    {"Space_Separator", "Zs"},
    {"Line_Separator", "Zl"},
    {"Paragraph_Separator", "Zp"},
    {"Other", "C"},
    {"Control", "Cc"},
    {"Format", "Cf"},
    {"Unassigned", "Cn"},
    {"Private_Use", "Co"},
    /* As patterns of models/text/tokenizer name them. */
    {"Digits_Step", "Numeric"},
    {"Punctuation_Step", "Punctuation:split"},
};

/* The next character that counts, in lower case; 0 at the end. */
static int next_counting(const char *name, size_t nbytes, size_t *at)
{
    while (*at < nbytes && (name[*at] == ' ' || name[*at] == '_' || name[*at] == '-'))
        ++*at;
    if (*at == nbytes)
        return 0;
    const int c = (unsigned char)name[(*at)++];
    return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
}

static bool same_name(const char *a, size_t anbytes, const char *b, size_t bnbytes)
{
    size_t i = 0, j = 0;
    int c;

    do {
        c = next_counting(a, anbytes, &i);
        if (c != next_counting(b, bnbytes, &j))
            return false;
    } while (c);
    return true;
}

const struct unicode_range *unicode_class(const char *name, size_t nbytes, size_t *nranges)
{
    const struct unicode_table *const tables[] = {unicode_table_letters, unicode_table_categories,
                                                  unicode_table_scripts, unicode_table_properties};

    for (size_t i = 0; i < sizeof long_names / sizeof *long_names; i++)
        if (same_name(name, nbytes, long_names[i].name, strlen(long_names[i].name))) {
            name = long_names[i].table_name;
            nbytes = strlen(name);
            break;
        }
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const struct unicode_table *row = tables[t]; row->name; row++)
            if (same_name(name, nbytes, row->name, strlen(row->name))) {
                *nranges = row->nranges;
                return row->ranges;
            }
    *nranges = 0;
    return NULL;
}

bool unicode_in(const struct unicode_range *ranges, size_t nranges, uint32_t code)
{
    size_t low = 0, high = nranges;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (code > ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < nranges && ranges[low].first <= code;
}

bool unicode_is(uint32_t code, enum unicode_set set)
{
    static const char *const names[UNICODE_NSETS] = {
        [UNICODE_SPACE] = "White_Space",  [UNICODE_ACCENT] = "Accent",
        [UNICODE_NUMERIC] = "Numeric",    [UNICODE_PUNCTUATION] = "Punctuation:split",
        [UNICODE_WORD] = "Word:tiktoken", [UNICODE_HAN] = "Han",
    };
    const struct unicode_table *row = unicode_table_properties;

    if (set == UNICODE_HAN)
        row = unicode_table_scripts;
    while (row->name && strcmp(row->name, names[set]) != 0)
        row++;
    return row->name && unicode_in(row->ranges, row->nranges, code);
}
