/* SPDX-License-Identifier: Apache-2.0 */
/* compiled.h: what a regular expression is made of. */
#ifndef TEXT_REGEX_COMPILED_H
#define TEXT_REGEX_COMPILED_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "symbols.h"

struct regex {
    pcre2_code *code; /* over symbols */
    bool jit;
    struct regex_symbols symbols;
};

/* Fails with what PCRE2 says of its code. */
int regex_pcre2_error(int code, const char *doing, struct fsdp_err *err);

#endif
