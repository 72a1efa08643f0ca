/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matching. Classes of explicit ranges are slow beyond ASCII, and most text is ASCII: each pattern
 * is compiled twice, for any text and for ASCII alone. The second runs on a stretch of ASCII with
 * PCRE2_PARTIAL_HARD: a complete match has then not looked beyond the stretch, and is the match
 * that the first would find. Where the stretch is too short to tell, the first one runs.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "regex.h"

struct regex {
    pcre2_code *any, *ascii; /* ascii NULL: the pattern looks back */
};

struct regex_scan {
    const struct regex *regex;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    size_t ascii_end; /* of the stretch of ASCII that was measured last */
};

enum { STACK_LEAST = 32 << 10, STACK_MOST = 64 << 20 };

static int refuse_pcre(int code, const char *what, struct fsdp_err *err)
{
    PCRE2_UCHAR text[160];

    pcre2_get_error_message(code, text, sizeof text);
    return fsdp_err_set(err, code == PCRE2_ERROR_NOMEMORY ? FSDP_ENOMEM : FSDP_EINVAL, "%s: %s",
                        what, (const char *)text);
}

/* ---- compiling ------------------------------------------------------------------------------- */

static int compile(pcre2_code **out, const struct regex_source *source, enum regex_engine engine,
                   bool ascii, struct fsdp_err *err)
{
    const uint32_t options = (ascii ? 0 : PCRE2_UTF) | PCRE2_NEVER_BACKSLASH_C |
                             (engine == REGEX_TIKTOKEN ? PCRE2_DOLLAR_ENDONLY : PCRE2_MULTILINE);
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    PCRE2_SIZE at;
    int code;

    if (!context)
        return fsdp_err_set(err, FSDP_ENOMEM, "regular expression: out of memory");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    *out = pcre2_compile((PCRE2_SPTR)source->text, source->nbytes, options, &code, &at, context);
    pcre2_compile_context_free(context);
    if (!*out)
        return refuse_pcre(code, "regular expression", err);
    /* Without JIT it runs too, more slowly. */
    pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE | (ascii ? PCRE2_JIT_PARTIAL_HARD : 0));
    return FSDP_OK;
}

int regex_create(struct regex **out, const char *pattern, size_t nbytes, enum regex_engine engine,
                 struct fsdp_err *err)
{
    struct regex_source any = {0}, ascii = {0};
    struct regex *regex = fsdp_alloc(1, sizeof *regex, "regular expression", err);
    int rc = FSDP_ENOMEM;

    if (!regex)
        return rc;
    FSDP_TRY_GOTO(regex_translate(&any, pattern, nbytes, engine, false, err), out);
    FSDP_TRY_GOTO(compile(&regex->any, &any, engine, false, err), out);
    if (!any.looks_back) {
        FSDP_TRY_GOTO(regex_translate(&ascii, pattern, nbytes, engine, true, err), out);
        FSDP_TRY_GOTO(compile(&regex->ascii, &ascii, engine, true, err), out);
    }
    *out = regex;
    regex = NULL;
out:
    fsdp_free(any.text);
    fsdp_free(ascii.text);
    regex_destroy(regex);
    return rc;
}

void regex_destroy(struct regex *regex)
{
    if (regex) {
        pcre2_code_free(regex->any);
        pcre2_code_free(regex->ascii);
    }
    fsdp_free(regex);
}

/* ---- matching -------------------------------------------------------------------------------- */

int regex_scan_create(struct regex_scan **out, const struct regex *regex, struct fsdp_err *err)
{
    struct regex_scan *scan = fsdp_alloc(1, sizeof *scan, "regular expression", err);

    if (!scan)
        return FSDP_ENOMEM;
    scan->regex = regex;
    scan->match = pcre2_match_data_create(1, NULL);
    scan->context = pcre2_match_context_create(NULL);
    scan->stack = pcre2_jit_stack_create(STACK_LEAST, STACK_MOST, NULL);
    if (!scan->match || !scan->context || !scan->stack) {
        regex_scan_destroy(scan);
        return fsdp_err_set(err, FSDP_ENOMEM, "regular expression: out of memory");
    }
    pcre2_jit_stack_assign(scan->context, NULL, scan->stack);
    pcre2_set_match_limit(scan->context, UINT32_MAX);
    *out = scan;
    return FSDP_OK;
}

void regex_scan_destroy(struct regex_scan *scan)
{
    if (scan) {
        pcre2_match_data_free(scan->match);
        pcre2_match_context_free(scan->context);
        pcre2_jit_stack_free(scan->stack);
    }
    fsdp_free(scan);
}

static size_t find_ascii_end(const char *text, size_t nbytes, size_t at)
{
    uint64_t word;

    while (at + 8 <= nbytes &&
           (memcpy(&word, text + at, 8), !(word & UINT64_C(0x8080808080808080))))
        at += 8;
    while (at < nbytes && !((unsigned char)text[at] & 0x80))
        at++;
    return at;
}

static int match_at(struct regex_scan *scan, const pcre2_code *code, const char *text,
                    size_t nbytes, size_t from, uint32_t options)
{
    return pcre2_match(code, (PCRE2_SPTR)text, nbytes, from, options | PCRE2_NO_UTF_CHECK,
                       scan->match, scan->context);
}

int regex_next(struct regex_scan *scan, const char *text, size_t nbytes, size_t from, size_t *first,
               size_t *end, struct fsdp_err *err)
{
    const struct regex *regex = scan->regex;
    int code = PCRE2_ERROR_PARTIAL;

    if (from > nbytes)
        return 0;
    if (from == 0 || from >= scan->ascii_end || scan->ascii_end > nbytes)
        scan->ascii_end = find_ascii_end(text, nbytes, from);
    if (regex->ascii && scan->ascii_end > from)
        code = match_at(scan, regex->ascii, text, scan->ascii_end, from,
                        scan->ascii_end < nbytes ? PCRE2_PARTIAL_HARD : 0);
    if (code == PCRE2_ERROR_PARTIAL ||
        (code == PCRE2_ERROR_NOMATCH && !(regex->ascii && scan->ascii_end == nbytes)))
        code = match_at(scan, regex->any, text, nbytes, from, 0);
    if (code == PCRE2_ERROR_NOMATCH)
        return 0;
    if (code < 0)
        return refuse_pcre(code, "regular expression", err);
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(scan->match);
    *first = range[0];
    *end = range[1];
    return 1;
}
