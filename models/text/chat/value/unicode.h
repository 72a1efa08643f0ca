/* SPDX-License-Identifier: Apache-2.0 */
/* Classes and cases of characters, as Python's str has them. */
#ifndef CHAT_UNICODE_H
#define CHAT_UNICODE_H

#include "run.h"

/* The character at `at`, which is valid UTF-8; *nbytes is its length. */
uint32_t chat_decode(const char *at, int *nbytes);

bool chat_is_space(uint32_t code);
bool chat_is_word(uint32_t code); /* \w */
bool chat_is_alpha(uint32_t code);
bool chat_is_decimal(uint32_t code);
bool chat_is_digit(uint32_t code);
bool chat_is_numeric(uint32_t code);
bool chat_is_printable(uint32_t code);
bool chat_is_lower(uint32_t code);
bool chat_is_upper(uint32_t code);
bool chat_is_title(uint32_t code);

/* White space removed from the ends that are asked for. */
void chat_trim_space(const char **at, const char **end, bool left, bool right);

enum chat_case { CHAT_UPPER, CHAT_LOWER, CHAT_TITLE, CHAT_CAPITALIZE, CHAT_SWAP, CHAT_FOLD };
int chat_change_case(struct chat_run *r, struct chat_val *out, const struct chat_str *s,
                     enum chat_case to);
/* Adds one character, changed; a sigma at a word's end is not seen. */
int chat_add_case(struct chat_run *r, struct chat_buf *b, uint32_t code, enum chat_case to);

#endif
