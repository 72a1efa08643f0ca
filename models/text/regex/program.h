/* SPDX-License-Identifier: Apache-2.0 */
/* program.h: a parsed pattern: text of PCRE2's syntax, between which stand sets of code points. */
#ifndef TEXT_REGEX_PROGRAM_H
#define TEXT_REGEX_PROGRAM_H

#include "regex.h"
#include "set.h"

struct regex_piece {
    char text[28]; /* "": a set */
    size_t set;
};

struct regex_program {
    struct regex_piece *pieces;
    size_t npieces, max_pieces;
    struct regex_set *sets;
    size_t nsets, max_sets;
};

void regex_program_free(struct regex_program *program);
/* Puts text before piece `at`. */
int regex_program_insert(struct regex_program *program, size_t at, const char *text,
                         struct fsdp_err *err);
int regex_program_text(struct regex_program *program, const char *text, struct fsdp_err *err);
/* Takes the set over, which is then empty; on failure, too. */
int regex_program_set(struct regex_program *program, struct regex_set *set, struct fsdp_err *err);

/* Fills *out, which is zeros; the caller frees it, after a failure as well. */
int regex_parse(struct regex_program *out, const char *pattern, size_t nbytes,
                enum regex_engine engine, struct fsdp_err *err);

#endif
