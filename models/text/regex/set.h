/* SPDX-License-Identifier: Apache-2.0 */
/* set.h: sets of code points as sorted ranges that neither meet nor touch. Begin with zeros. */
#ifndef TEXT_REGEX_SET_H
#define TEXT_REGEX_SET_H

#include "text/unicode/unicode.h"

#define REGEX_LAST_CODE 0x10ffffu

struct regex_set {
    struct unicode_range *ranges;
    size_t nranges, room;
};

void regex_set_free(struct regex_set *set);
/* set = set ∪ what is given. */
int regex_set_add(struct regex_set *set, const struct unicode_range *ranges, size_t nranges,
                  struct fsdp_err *err);
int regex_set_add_range(struct regex_set *set, uint32_t first, uint32_t last, struct fsdp_err *err);
/* set = all code points without set. */
int regex_set_negate(struct regex_set *set, struct fsdp_err *err);
/* set = set ∩ other. */
int regex_set_intersect(struct regex_set *set, const struct regex_set *other, struct fsdp_err *err);

#endif
