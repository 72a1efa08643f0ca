/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAT_METHODS_H
#define CHAT_METHODS_H

#include "builtin.h"

/* A method of this value's type; NULL: there is none. */
const struct chat_builtin *chat_method_find(const struct chat_val *of, const struct chat_str *name);

/* Methods of text by what they do. */
extern const struct chat_builtin chat_text_methods[], chat_find_methods[], chat_case_methods[],
    chat_format_methods[];

/* str.strip and its kin; chars NULL: white space. */
int chat_strip(struct chat_run *r, struct chat_val *out, const struct chat_str *s,
               const struct chat_str *chars, int sides);
enum { CHAT_LEFT = 1, CHAT_RIGHT = 2 };
/* max < 0: all. */
int chat_replace(struct chat_run *r, struct chat_val *out, const struct chat_str *s,
                 const struct chat_str *old, const struct chat_str *new, chat_int max);
int chat_split_lines(struct chat_run *r, struct chat_val *out, const struct chat_str *s,
                     bool keep_ends);
int chat_center(struct chat_run *r, struct chat_val *out, const struct chat_str *s, size_t width);
/* Joins texts; each element must be one. */
int chat_join(struct chat_run *r, struct chat_val *out, const struct chat_str *between,
              const struct chat_val *items);
/* `text % values`. */
int chat_percent(struct chat_run *r, struct chat_val *out, const struct chat_str *s,
                 const struct chat_val *values);

#endif
