/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAT_EXEC_H
#define CHAT_EXEC_H

#include "eval.h"

struct chat_macro {
    const struct chat_macro_node *node;
    struct chat_frame *frame; /* where it was defined */
};

/* Runs a whole template. The caller frees r->out's arrays. */
int chat_exec(struct chat_run *r, const struct chat_tree *tree);
/* Calls whatever can be called. */
int chat_exec_call(struct chat_run *r, struct chat_val *out, const struct chat_val *callee,
                   const struct chat_args *args);

#endif
