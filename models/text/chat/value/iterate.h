/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAT_ITERATE_H
#define CHAT_ITERATE_H

#include "run.h"

/* Begins to iterate over a value; an iterator resumes where it is. An undefined one is empty. */
int chat_iterate(struct chat_run *r, struct chat_iter **out, const struct chat_val *v);
/* *more is false at the end. */
int chat_next(struct chat_run *r, struct chat_iter *it, struct chat_val *out, bool *more);
/* All elements that are left, as a list. */
int chat_collect(struct chat_run *r, struct chat_val *out, const struct chat_val *v);
/* len(); FSDP_OK with *out < 0 where a value has none. */
int chat_length(struct chat_run *r, chat_int *out, const struct chat_val *v);
/* `item in v`. */
int chat_contains(struct chat_run *r, bool *out, const struct chat_val *v,
                  const struct chat_val *item);
int chat_iter_new(struct chat_run *r, struct chat_val *out,
                  int (*next)(struct chat_run *, struct chat_iter *, struct chat_val *, bool *),
                  void *state);
bool chat_can_iterate(const struct chat_val *v);
chat_int chat_range_length(const struct chat_range *range);

#endif
