/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAT_OUT_H
#define CHAT_OUT_H

#include "text/chat/value/run.h"

struct chat_chars { /* a span, in characters */
    size_t first, end;
};

/* What was rendered. Macros and set blocks write behind the text of the template, from where their
 * text is taken away again. */
struct chat_out {
    char *at;
    size_t nbytes, max;
    int ncaptures;
    size_t text_nbytes;              /* of the template's own text, while ncaptures > 0 */
    size_t counted_nbytes, ncounted; /* the characters in its first bytes */
    struct chat_chars *spans;
    size_t nspans, max_spans;
};

int chat_write(struct chat_run *r, const char *data, size_t nbytes);
/* Writes str() of a value. */
int chat_write_value(struct chat_run *r, const struct chat_val *v);
/* What is written from here on is not the template's own text. Returns where it begins. */
size_t chat_begin_capture(struct chat_run *r);
/* Takes it away, as a value. */
int chat_end_capture(struct chat_run *r, struct chat_val *out, size_t first);
/* Leaves it where it is, as a span. */
int chat_end_span(struct chat_run *r, size_t begin);

#endif
