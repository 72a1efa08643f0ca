/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAT_FORMAT_H
#define CHAT_FORMAT_H

#include "text/chat/value/run.h"

/* [[fill]align][sign][#][0][width][,][.precision][type] */
struct chat_spec {
    char fill[4];
    int nfill;
    char align, sign, type;
    bool alternate, zero, comma, has_precision;
    size_t width, precision;
};

/* Python's format(v, spec): spec is at[0] to end. */
int chat_format_value(struct chat_run *r, struct chat_buf *b, const struct chat_val *v,
                      const char *at, const char *end);
/* The same for a specification that was read. */
int chat_format_spec(struct chat_run *r, struct chat_buf *b, const struct chat_val *v,
                     const struct chat_spec *spec);

#endif
