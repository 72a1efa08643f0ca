/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAT_FILTERS_H
#define CHAT_FILTERS_H

#include "text/chat/builtin/builtin.h"

/* NULL: there is none of this name. */
const struct chat_builtin *chat_filter_find(const struct chat_str *name);
const struct chat_builtin *chat_test_find(const struct chat_str *name);

/* Filters by what they work on. */
extern const struct chat_builtin chat_text_filters[], chat_list_filters[], chat_choice_filters[],
    chat_order_filters[], chat_value_filters[];

/* An attribute by path, such as "function.name" or 0: MISSING or NONE is the value itself. What is
 * undefined on the way becomes *otherwise, unless that is NULL, MISSING or NONE. */
int chat_attribute_path(struct chat_run *r, struct chat_val *out, const struct chat_val *of,
                        const struct chat_val *path, const struct chat_val *otherwise);
/* Lower case where v is a text, for comparisons. */
int chat_ignore_case(struct chat_run *r, struct chat_val *out, const struct chat_val *v);

#endif
