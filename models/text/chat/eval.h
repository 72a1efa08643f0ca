/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAT_EVAL_H
#define CHAT_EVAL_H

#include "text/chat/builtin/builtin.h"
#include "text/chat/syntax/tree.h"

struct chat_var {
    int symbol;
    struct chat_val value;
};

/* A scope inside of the outermost one, whose variables are r->root. */
struct chat_frame {
    struct chat_frame *parent; /* NULL: the outermost scope */
    struct chat_var *vars;
    size_t nvars, max;
};

/* frame NULL: the outermost scope. */
int chat_set_var(struct chat_run *r, struct chat_frame *frame, int symbol,
                 const struct chat_val *v);
int chat_eval(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
              struct chat_frame *frame);
int chat_eval_args(struct chat_run *r, struct chat_args *out, const struct chat_call *call,
                   struct chat_frame *frame);
/* A filter of a block, applied to *v. */
int chat_eval_filter(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                     const struct chat_val *v, struct chat_frame *frame);

#endif
