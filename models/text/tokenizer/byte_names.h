/* SPDX-License-Identifier: Apache-2.0 */
/* byte_names.h: how ByteLevel spells bytes: each as a printable character. */
#ifndef TOKENIZER_BYTE_NAMES_H
#define TOKENIZER_BYTE_NAMES_H

#include <stddef.h>
#include <stdint.h>

enum { BYTE_NAMES_CODES = 0x144 }; /* code points of names are below it */
struct byte_names {
    int16_t bytes[BYTE_NAMES_CODES]; /* by code point; -1: none */
};
void byte_names_make(struct byte_names *names);
/* The bytes of a token that is spelled so: how many, or -1 where it is not. out has room for
 * nbytes. */
int byte_names_read(char *out, const struct byte_names *names, const char *name, size_t nbytes);

#endif
