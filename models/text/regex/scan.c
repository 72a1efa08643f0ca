/* SPDX-License-Identifier: Apache-2.0 */
/* Matches in a text. A window of the text is held as symbols, one a character. While text follows
 * the window, PCRE2 is asked for partial matches, hard: a match that it then gives has not looked
 * beyond the window's end, and where it would have, the window grows. */
#include <string.h>

#include "compiled.h"

enum {
    WINDOW_NSYMBOLS = 4096,
    STACK_FIRST_NBYTES = 32 << 10,
    STACK_MAX_NBYTES = 64 << 20 /* address space: pages come as they are touched */
};

struct regex_scan {
    const struct regex *re;
    pcre2_match_data *found;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    const char *text;
    size_t nbytes;
    uint8_t *symbols;
    size_t nsymbols, room;
    size_t nascii;   /* so many at the front are ASCII: a symbol is a byte there */
    size_t at;       /* where the search continues in the window ... */
    size_t at_byte;  /* ... and in the text */
    size_t end_byte; /* of the window in the text */
};

int regex_scan_create(struct regex_scan **out, const struct regex *re, struct fsdp_err *err)
{
    struct regex_scan *scan = fsdp_alloc(1, sizeof *scan, "scan", err);

    if (!scan)
        return FSDP_ENOMEM;
    scan->re = re;
    scan->found = pcre2_match_data_create(1, NULL);
    scan->context = pcre2_match_context_create(NULL);
    if (re->jit)
        scan->stack = pcre2_jit_stack_create(STACK_FIRST_NBYTES, STACK_MAX_NBYTES, NULL);
    if (!scan->found || !scan->context || (re->jit && !scan->stack)) {
        regex_scan_destroy(scan);
        return fsdp_err_set(err, FSDP_ENOMEM, "regex: no memory for a scan");
    }
    /* What a pattern may cost is the caller's choice of pattern; no text fails for its length. */
    pcre2_set_match_limit(scan->context, UINT32_MAX);
    pcre2_set_depth_limit(scan->context, UINT32_MAX);
    pcre2_set_heap_limit(scan->context, UINT32_MAX);
    if (scan->stack)
        pcre2_jit_stack_assign(scan->context, NULL, scan->stack);
    *out = scan;
    return FSDP_OK;
}

void regex_scan_destroy(struct regex_scan *scan)
{
    if (!scan)
        return;
    pcre2_match_data_free(scan->found);
    pcre2_match_context_free(scan->context);
    pcre2_jit_stack_free(scan->stack);
    fsdp_free(scan->symbols);
    fsdp_free(scan);
}

/* ---- the window ----------------------------------------------------------------------------- */

/* Adds up to nsymbols characters, for which there is room. */
static void add_symbols(struct regex_scan *scan, size_t nsymbols)
{
    const struct regex_symbols *symbols = &scan->re->symbols;
    const uint8_t *ascii = symbols->pages[symbols->page_of[0]];
    const char *s = scan->text + scan->end_byte, *const end = scan->text + scan->nbytes;
    uint8_t *to = scan->symbols + scan->nsymbols, *const to_end = to + nsymbols;
    size_t n;

    if (scan->nascii == scan->nsymbols) {
        const uint8_t *const begin = to;
        for (; s < end && to < to_end && (unsigned char)*s < 0x80; s++)
            *to++ = ascii[(unsigned char)*s];
        scan->nascii += (size_t)(to - begin);
    }
    for (; s < end && to < to_end; s += n)
        *to++ = regex_symbol(symbols, unicode_decode(s, &n));
    scan->nsymbols = (size_t)(to - scan->symbols);
    scan->end_byte = (size_t)(s - scan->text);
}

/* Drops what lies before scan->at and adds as much text as is held then, at least a window's. */
static int grow_window(struct regex_scan *scan, struct fsdp_err *err)
{
    const size_t held = scan->nsymbols - scan->at,
                 more = held > WINDOW_NSYMBOLS ? held : WINDOW_NSYMBOLS;

    if (held + more > scan->room) {
        uint8_t *const grown = fsdp_alloc_unset(held + more, 1, "symbols of a text", err);
        if (!grown)
            return FSDP_ENOMEM;
        if (held)
            memcpy(grown, scan->symbols + scan->at, held);
        fsdp_free(scan->symbols);
        scan->symbols = grown;
        scan->room = held + more;
    } else if (held) {
        memmove(scan->symbols, scan->symbols + scan->at, held);
    }
    scan->nascii = scan->nascii > scan->at ? scan->nascii - scan->at : 0;
    scan->nsymbols = held;
    scan->at = 0;
    add_symbols(scan, more);
    return FSDP_OK;
}

/* Moves the search on to a symbol of the window. */
static void move_to(struct regex_scan *scan, size_t at)
{
    if (at <= scan->nascii) {
        scan->at_byte += at - scan->at;
        scan->at = at;
    }
    for (; scan->at < at; scan->at++) {
        const unsigned char c = (unsigned char)scan->text[scan->at_byte];
        scan->at_byte += c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    }
}

static void begin_at(struct regex_scan *scan, const char *text, size_t nbytes, size_t from)
{
    if (from && text == scan->text && nbytes == scan->nbytes && from >= scan->at_byte &&
        from <= scan->end_byte) {
        while (scan->at_byte < from)
            move_to(scan, scan->at + 1);
        return;
    }
    scan->text = text;
    scan->nbytes = nbytes;
    scan->nsymbols = scan->nascii = scan->at = 0;
    scan->at_byte = scan->end_byte = from;
}

/* ---- matching ------------------------------------------------------------------------------- */

static int match_window(struct regex_scan *scan)
{
    const uint32_t options = scan->end_byte < scan->nbytes ? PCRE2_PARTIAL_HARD : 0;
    const struct regex *re = scan->re;
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;

    if (re->jit)
        rc = pcre2_jit_match(re->code, scan->symbols, scan->nsymbols, scan->at, options,
                             scan->found, scan->context);
    /* The interpreter's stack is the heap. */
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(re->code, scan->symbols, scan->nsymbols, scan->at, options | PCRE2_NO_JIT,
                         scan->found, scan->context);
    return rc;
}

int regex_next(struct regex_scan *scan, const char *text, size_t nbytes, size_t from, size_t *first,
               size_t *end, struct fsdp_err *err)
{
    begin_at(scan, text, nbytes, from);
    for (;;) {
        const bool last = scan->end_byte == scan->nbytes;
        if (scan->at == scan->nsymbols && last)
            return 0;
        const int rc = scan->at < scan->nsymbols ? match_window(scan) : PCRE2_ERROR_NOMATCH;
        const PCRE2_SIZE *found = pcre2_get_ovector_pointer(scan->found);
        if (rc > 0) {
            move_to(scan, found[0]);
            *first = scan->at_byte;
            move_to(scan, found[1]);
            *end = scan->at_byte;
            return 1;
        }
        if (rc != PCRE2_ERROR_NOMATCH && rc != PCRE2_ERROR_PARTIAL)
            return regex_pcre2_error(rc, "match", err);
        move_to(scan, rc == PCRE2_ERROR_PARTIAL ? found[0] : scan->nsymbols);
        if (last)
            return 0;
        FSDP_TRY(grow_window(scan, err));
    }
}
