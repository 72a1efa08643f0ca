/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAT_FUNCTIONS_H
#define CHAT_FUNCTIONS_H

#include "builtin.h"

/* The time of the rendering, as Python's strftime writes it. */
int chat_strftime(struct chat_run *r, struct chat_val *out, const struct chat_str *format);

/* Functions that every template has; NULL: there is none of this name. */
const struct chat_builtin *chat_function_find(const struct chat_str *name);

#endif
