/* SPDX-License-Identifier: Apache-2.0 */
/* symbols.h: code points that no set of a program tells apart share a symbol, which is a byte. */
#ifndef TEXT_REGEX_SYMBOLS_H
#define TEXT_REGEX_SYMBOLS_H

#include "program.h"

enum { SYMBOLS_PAGE = 256, SYMBOLS_NPAGES = 0x110000 / SYMBOLS_PAGE };

struct regex_symbols {
    uint16_t page_of[SYMBOLS_NPAGES];
    uint8_t (*pages)[SYMBOLS_PAGE];
    size_t npages, max_pages, nsymbols;
};

/* The symbols that a set holds. */
struct regex_members {
    bool holds[256];
};

/* Fills *out, which is zeros, and members[program->nsets]. The caller frees *out. */
int regex_symbols_create(struct regex_symbols *out, struct regex_members *members,
                         const struct regex_program *program, struct fsdp_err *err);
void regex_symbols_free(struct regex_symbols *symbols);

static inline uint8_t regex_symbol(const struct regex_symbols *symbols, uint32_t code)
{
    return symbols->pages[symbols->page_of[code / SYMBOLS_PAGE]][code % SYMBOLS_PAGE];
}

#endif
