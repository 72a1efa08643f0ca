/* SPDX-License-Identifier: Apache-2.0 */
/* From a pattern to PCRE2's program over symbols. */
#include <stdio.h>
#include <string.h>

#include "compiled.h"

int regex_pcre2_error(int code, const char *doing, struct fsdp_err *err)
{
    PCRE2_UCHAR text[256] = "";

    pcre2_get_error_message(code, text, sizeof text);
    return fsdp_err_set(err, code == PCRE2_ERROR_NOMEMORY ? FSDP_ENOMEM : FSDP_EINTERNAL,
                        "regex: cannot %s: %s", doing, (const char *)text);
}

/* A class of symbols as PCRE2 writes it. */
static int render_set(struct unicode_text *out, const struct regex_members *members,
                      struct fsdp_err *err)
{
    char text[16];
    bool any = false;

    for (int first = 0, last; first < 256; first = last + 1) {
        last = first;
        if (!members->holds[first])
            continue;
        while (last < 255 && members->holds[last + 1])
            last++;
        const int n = snprintf(text, sizeof text, "%s\\x%02x-\\x%02x", any ? "" : "[",
                               (unsigned)first, (unsigned)last);
        FSDP_TRY(unicode_text_add(out, text, (size_t)n, err));
        any = true;
    }
    /* What holds nothing never matches. */
    return any ? unicode_text_add(out, "]", 1, err) : unicode_text_add(out, "(?!)", 4, err);
}

static int compile_symbols(struct regex *re, const struct regex_program *program,
                           const struct regex_members *members, struct fsdp_err *err)
{
    struct unicode_text text = {0};
    int rc = FSDP_OK, code;
    PCRE2_SIZE at;

    for (size_t i = 0; i < program->npieces && !rc; i++) {
        const struct regex_piece *piece = &program->pieces[i];
        rc = *piece->text ? unicode_text_add(&text, piece->text, strlen(piece->text), err)
                          : render_set(&text, &members[piece->set], err);
    }
    if (!rc) {
        re->code = pcre2_compile((PCRE2_SPTR)text.at, text.nbytes, PCRE2_DOTALL, &code, &at, NULL);
        rc = re->code ? FSDP_OK : regex_pcre2_error(code, "compile the pattern", err);
    }
    /* Where the system forbids it, the interpreter does the same, more slowly. */
    if (!rc)
        re->jit = pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
    unicode_text_free(&text);
    return rc;
}

int regex_create(struct regex **out, const char *pattern, size_t nbytes, enum regex_engine engine,
                 struct fsdp_err *err)
{
    struct regex_program program = {0};
    struct regex_members *members = NULL;
    struct regex *re = NULL;
    int rc;

    FSDP_TRY_GOTO(regex_parse(&program, pattern, nbytes, engine, err), out);
    rc = FSDP_ENOMEM;
    if (!(re = fsdp_alloc(1, sizeof *re, "regular expression", err)) ||
        !(members = fsdp_alloc(program.nsets, sizeof *members, "regular expression", err)))
        goto out;
    FSDP_TRY_GOTO(regex_symbols_create(&re->symbols, members, &program, err), out);
    FSDP_TRY_GOTO(compile_symbols(re, &program, members, err), out);
    *out = re;
    re = NULL;
out:
    regex_destroy(re);
    fsdp_free(members);
    regex_program_free(&program);
    return rc;
}

void regex_destroy(struct regex *re)
{
    if (!re)
        return;
    pcre2_code_free(re->code);
    regex_symbols_free(&re->symbols);
    fsdp_free(re);
}
