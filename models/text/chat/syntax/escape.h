/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAT_ESCAPE_H
#define CHAT_ESCAPE_H

#include "text/chat/value/run.h"

/* What a text between quotes stands for: Python's escapes. */
int chat_unescape(struct chat_run *r, struct chat_val *out, const char *at, const char *end);
/* The number whose digits, in base 2, 8, 10 or 16, may be parted by underscores. */
int chat_parse_int(struct chat_run *r, struct chat_val *out, const char *at, const char *end,
                   int base);
int chat_parse_float(struct chat_run *r, struct chat_val *out, const char *at, const char *end);

#endif
