/* SPDX-License-Identifier: Apache-2.0 */
/* From sets to symbols: the bounds of all sets cut the code points into intervals; each set then
 * splits the symbols of which it holds some intervals and not others. */
#include <stdlib.h>
#include <string.h>

#include "symbols.h"

enum { MAX_SYMBOLS = 256 };

struct intervals {
    uint32_t *begins; /* sorted; the last one ends with the code points */
    uint8_t *symbols;
    size_t nintervals;
};

static int by_value(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static int cut_intervals(struct intervals *out, const struct regex_program *program,
                         struct fsdp_err *err)
{
    size_t nbounds = 1, n = 0;

    for (size_t s = 0; s < program->nsets; s++)
        nbounds += 2 * program->sets[s].nranges;
    if (!(out->begins = fsdp_alloc(nbounds, sizeof *out->begins, "regular expression", err)) ||
        !(out->symbols = fsdp_alloc(nbounds, 1, "regular expression", err)))
        return FSDP_ENOMEM;
    out->begins[n++] = 0;
    for (size_t s = 0; s < program->nsets; s++)
        for (size_t r = 0; r < program->sets[s].nranges; r++) {
            out->begins[n++] = program->sets[s].ranges[r].first;
            if (program->sets[s].ranges[r].last < REGEX_LAST_CODE)
                out->begins[n++] = program->sets[s].ranges[r].last + 1;
        }
    qsort(out->begins, n, sizeof *out->begins, by_value);
    for (size_t i = 0; i < n; i++)
        if (!i || out->begins[i] != out->begins[out->nintervals - 1])
            out->begins[out->nintervals++] = out->begins[i];
    return FSDP_OK;
}

/* Calls of it ask for ascending code points. */
static bool set_holds(const struct regex_set *set, size_t *at, uint32_t code)
{
    while (*at < set->nranges && set->ranges[*at].last < code)
        ++*at;
    return *at < set->nranges && set->ranges[*at].first <= code;
}

static int split_symbols(struct intervals *in, const struct regex_set *set, size_t *nsymbols,
                         struct fsdp_err *err)
{
    int becomes[MAX_SYMBOLS][2];
    const size_t nbefore = *nsymbols;
    size_t at = 0;

    for (size_t i = 0; i < nbefore; i++)
        becomes[i][0] = becomes[i][1] = -1;
    for (size_t i = 0; i < in->nintervals; i++) {
        const bool held = set_holds(set, &at, in->begins[i]);
        int *to = becomes[in->symbols[i]];
        if (to[held] < 0 && to[!held] < 0) {
            to[held] = in->symbols[i];
        } else if (to[held] < 0) {
            if (*nsymbols == MAX_SYMBOLS)
                return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                                    "regex: more than %d kinds of characters", MAX_SYMBOLS);
            to[held] = (int)(*nsymbols)++;
        }
        in->symbols[i] = (uint8_t)to[held];
    }
    return FSDP_OK;
}

static int add_page(struct regex_symbols *out, const uint8_t page[SYMBOLS_PAGE], size_t number,
                    struct fsdp_err *err)
{
    for (size_t i = out->npages; i-- > 0;)
        if (memcmp(out->pages[i], page, SYMBOLS_PAGE) == 0) {
            out->page_of[number] = (uint16_t)i;
            return FSDP_OK;
        }
    uint8_t(*const pages)[SYMBOLS_PAGE] = fsdp_alloc_grow(out->pages, out->npages, &out->max_pages,
                                                          SYMBOLS_PAGE, "regular expression", err);
    if (!pages)
        return FSDP_ENOMEM;
    out->pages = pages;
    memcpy(pages[out->npages], page, SYMBOLS_PAGE);
    out->page_of[number] = (uint16_t)out->npages++;
    return FSDP_OK;
}

static int add_pages(struct regex_symbols *out, const struct intervals *in, struct fsdp_err *err)
{
    uint8_t page[SYMBOLS_PAGE];
    size_t at = 0;

    for (size_t number = 0; number < SYMBOLS_NPAGES; number++) {
        for (size_t i = 0; i < SYMBOLS_PAGE; i++) {
            const uint32_t code = (uint32_t)(number * SYMBOLS_PAGE + i);
            while (at + 1 < in->nintervals && in->begins[at + 1] <= code)
                at++;
            page[i] = in->symbols[at];
        }
        FSDP_TRY(add_page(out, page, number, err));
    }
    return FSDP_OK;
}

int regex_symbols_create(struct regex_symbols *out, struct regex_members *members,
                         const struct regex_program *program, struct fsdp_err *err)
{
    struct intervals in = {0};
    int rc;

    out->nsymbols = 1;
    FSDP_TRY_GOTO(cut_intervals(&in, program, err), out);
    for (size_t s = 0; s < program->nsets; s++)
        FSDP_TRY_GOTO(split_symbols(&in, &program->sets[s], &out->nsymbols, err), out);
    memset(members, 0, program->nsets * sizeof *members);
    for (size_t s = 0; s < program->nsets; s++)
        for (size_t i = 0, at = 0; i < in.nintervals; i++)
            members[s].holds[in.symbols[i]] |= set_holds(&program->sets[s], &at, in.begins[i]);
    rc = add_pages(out, &in, err);
out:
    fsdp_free(in.begins);
    fsdp_free(in.symbols);
    return rc;
}

void regex_symbols_free(struct regex_symbols *symbols)
{
    fsdp_free(symbols->pages);
    symbols->pages = NULL;
}
