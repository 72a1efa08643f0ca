/* SPDX-License-Identifier: Apache-2.0 */
/* The variable `loop` of a for statement. */
#ifndef CHAT_LOOP_H
#define CHAT_LOOP_H

#include "builtin.h"

struct chat_loop {
    struct chat_iter *it;
    struct chat_val before, current, after; /* after: MISSING, or looked at in advance */
    struct chat_val changed;                /* the last arguments of changed() */
    chat_int index0, length;                /* length: -1, not known */
    int depth0;
    bool ended;
    const void *node, *frame; /* of a recursive loop; NULL: it is none */
};

int chat_loop_new(struct chat_run *r, struct chat_val *out, const struct chat_val *over,
                  int depth0);
/* Moves to the next element. */
int chat_loop_next(struct chat_run *r, struct chat_loop *loop, bool *more);
int chat_loop_attribute(struct chat_run *r, struct chat_val *out, struct chat_loop *loop,
                        const struct chat_str *name, bool *found);

#endif
