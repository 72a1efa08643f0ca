/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAT_ARITH_H
#define CHAT_ARITH_H

#include "text/chat/syntax/tree.h"

/* a op b, of CHAT_N_ADD to CHAT_N_POW. */
int chat_binary(struct chat_run *r, struct chat_val *out, enum chat_op op, const struct chat_val *a,
                const struct chat_val *b);
/* -a or +a. */
int chat_unary(struct chat_run *r, struct chat_val *out, enum chat_op op, const struct chat_val *a);
/* a + b of texts. */
int chat_concat(struct chat_run *r, struct chat_val *out, const struct chat_val *a,
                const struct chat_val *b);
int chat_compare(struct chat_run *r, bool *out, enum chat_compare how, const struct chat_val *a,
                 const struct chat_val *b);

#endif
