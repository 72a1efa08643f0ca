/* SPDX-License-Identifier: Apache-2.0 */
/* Normal forms. utf8proc has the decompositions, but of its own Unicode version. What the
 * original's table does not know (the class Form_Late) stands for itself here: it neither
 * decomposes, nor composes, nor moves, and nothing moves past it. What both know never changes:
 * Unicode promises it. */
#include <string.h>
#include <utf8proc.h>

#include "tables.h"

enum {
    RUN_NCODES = 4096, /* a run ends where it can after so many */
    ROOM_OF_ONE = 64   /* the longest decomposition has 18 code points */
};

struct normalizer {
    const struct unicode_range *late;
    size_t nlate;
    int options; /* utf8proc's */
    bool compose;
    utf8proc_int32_t *codes; /* a run: decomposed, not yet in order */
    size_t ncodes, room;
    struct unicode_text *out;
};

static unsigned combining_class(utf8proc_int32_t code)
{
    return code < 0x300 ? 0 : (unsigned)utf8proc_get_property(code)->combining_class;
}

/* Sorts marks by their combining class and keeps the order of equals. */
static int sort_marks(utf8proc_int32_t *codes, size_t ncodes, struct fsdp_err *err)
{
    size_t begin[257] = {0};
    utf8proc_int32_t *const sorted = fsdp_alloc_unset(ncodes, sizeof *sorted, "marks", err);

    if (!sorted)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < ncodes; i++)
        begin[combining_class(codes[i]) + 1]++;
    for (int c = 1; c <= 256; c++)
        begin[c] += begin[c - 1];
    for (size_t i = 0; i < ncodes; i++)
        sorted[begin[combining_class(codes[i])]++] = codes[i];
    memcpy(codes, sorted, ncodes * sizeof *sorted);
    fsdp_free(sorted);
    return FSDP_OK;
}

static int order_marks(struct normalizer *n, struct fsdp_err *err)
{
    for (size_t i = 0, end; i < n->ncodes; i = end) {
        bool sorted = true;
        end = i + 1;
        if (!combining_class(n->codes[i]))
            continue;
        for (; end < n->ncodes && combining_class(n->codes[end]); end++)
            sorted &= combining_class(n->codes[end - 1]) <= combining_class(n->codes[end]);
        if (!sorted)
            FSDP_TRY(sort_marks(n->codes + i, end - i, err));
    }
    return FSDP_OK;
}

static int end_run(struct normalizer *n, struct fsdp_err *err)
{
    char bytes[4];

    FSDP_TRY(order_marks(n, err));
    if (n->compose && n->ncodes) {
        const utf8proc_ssize_t ncodes = utf8proc_normalize_utf32(
            n->codes, (utf8proc_ssize_t)n->ncodes, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        if (ncodes < 0)
            return fsdp_err_set(err, FSDP_EINTERNAL, "cannot compose: %s", utf8proc_errmsg(ncodes));
        n->ncodes = (size_t)ncodes;
    }
    for (size_t i = 0; i < n->ncodes; i++)
        FSDP_TRY(
            unicode_text_add(n->out, bytes, unicode_encode(bytes, (uint32_t)n->codes[i]), err));
    n->ncodes = 0;
    return FSDP_OK;
}

static int add_code(struct normalizer *n, uint32_t code, struct fsdp_err *err)
{
    int boundary = 0;

    if (n->room - n->ncodes < ROOM_OF_ONE) {
        utf8proc_int32_t *const codes =
            fsdp_alloc_reserve(n->codes, n->ncodes, &n->room,
                               n->room ? 2 * n->room : 2 * RUN_NCODES, sizeof *codes, "marks", err);
        if (!codes)
            return FSDP_ENOMEM;
        n->codes = codes;
    }
    const utf8proc_ssize_t ncodes = utf8proc_decompose_char(
        (utf8proc_int32_t)code, n->codes + n->ncodes, (utf8proc_ssize_t)(n->room - n->ncodes),
        (utf8proc_option_t)n->options, &boundary);
    if (ncodes < 0 || (size_t)ncodes > n->room - n->ncodes)
        return fsdp_err_set(err, FSDP_EINTERNAL, "cannot decompose U+%04X", (unsigned)code);
    n->ncodes += (size_t)ncodes;
    return FSDP_OK;
}

/* Before ASCII and before an ideograph nothing moves or composes with what stands ahead of it. */
static bool begins_run(uint32_t code)
{
    return code < 0x80 || (code >= 0x4e00 && code <= 0x9fa5);
}

/* The stretch from `at` on that no form changes: ASCII, and ideographs, which may be the base of a
 * mark only as the last of them. */
static size_t plain_end(const char *text, size_t at, size_t nbytes)
{
    size_t last = at, n;

    while (at < nbytes) {
        const uint32_t code = unicode_decode(text + at, &n);
        if (!begins_run(code))
            return last;
        last = at;
        at += n;
    }
    return at;
}

static int normalize_text(struct normalizer *n, const char *text, size_t nbytes,
                          struct fsdp_err *err)
{
    for (size_t at = 0, length; at < nbytes; at += length) {
        const uint32_t code = unicode_decode(text + at, &length);
        if (begins_run(code)) {
            const size_t end = plain_end(text, at, nbytes);
            if (end > at) {
                FSDP_TRY(end_run(n, err));
                FSDP_TRY(unicode_text_add(n->out, text + at, end - at, err));
                length = end - at;
                continue;
            }
            if (n->ncodes > RUN_NCODES)
                FSDP_TRY(end_run(n, err));
        }
        if (code >= 0x300 && unicode_in(n->late, n->nlate, code)) {
            FSDP_TRY(end_run(n, err));
            FSDP_TRY(unicode_text_add(n->out, text + at, length, err));
            continue;
        }
        FSDP_TRY(add_code(n, code, err));
    }
    return end_run(n, err);
}

int unicode_normalize(struct unicode_text *out, const char *text, size_t nbytes,
                      enum unicode_form form, struct fsdp_err *err)
{
    struct normalizer n = {.out = out, .compose = form == UNICODE_NFC || form == UNICODE_NFKC};

    n.late = unicode_class("Form_Late", 9, &n.nlate);
    n.options = UTF8PROC_DECOMPOSE | UTF8PROC_STABLE |
                (form == UNICODE_NFKC || form == UNICODE_NFKD ? UTF8PROC_COMPAT : 0);
    const int rc = normalize_text(&n, text, nbytes, err);
    fsdp_free(n.codes);
    return rc;
}
