/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAT_ATTRIBUTE_H
#define CHAT_ATTRIBUTE_H

#include "builtin.h"

/* of.name: what Python has under this name, else the item. What is missing is undefined; the
 * attribute of an undefined value is an error. */
int chat_attribute(struct chat_run *r, struct chat_val *out, const struct chat_val *of,
                   const struct chat_str *name);
/* of[key]: the item, else what Python has under this name. */
int chat_item(struct chat_run *r, struct chat_val *out, const struct chat_val *of,
              const struct chat_val *key);
/* of[first:end:step]; NONE where left out. */
int chat_slice(struct chat_run *r, struct chat_val *out, const struct chat_val *of,
               const struct chat_val bounds[3]);

#endif
