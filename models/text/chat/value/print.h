/* SPDX-License-Identifier: Apache-2.0 */
/* Values as text: Python's str() and repr(), and JSON as Python's json.dumps writes it. */
#ifndef CHAT_PRINT_H
#define CHAT_PRINT_H

#include "run.h"

int chat_print(struct chat_run *r, struct chat_buf *b, const struct chat_val *v);
int chat_repr(struct chat_run *r, struct chat_buf *b, const struct chat_val *v);
/* str() as a value; of a text itself, it stays as it is. */
int chat_to_str(struct chat_run *r, struct chat_val *out, const struct chat_val *v);
int chat_print_int(struct chat_run *r, struct chat_buf *b, chat_int i);
int chat_print_float(struct chat_run *r, struct chat_buf *b, double f);

struct chat_json_style {
    bool ascii, sort_keys;
    bool indents;
    const struct chat_str *indent; /* of one level */
    const struct chat_str *between, *colon;
};
int chat_print_json(struct chat_run *r, struct chat_buf *b, const struct chat_val *v,
                    const struct chat_json_style *style);

/* HTML's special characters. */
int chat_escape_html(struct chat_run *r, struct chat_val *out, const struct chat_val *v);

#endif
