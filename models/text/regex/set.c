/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of code points. */
#include <stdlib.h>
#include <string.h>

#include "set.h"

void regex_set_free(struct regex_set *set)
{
    fsdp_free(set->ranges);
    *set = (struct regex_set){0};
}

static int by_first(const void *a, const void *b)
{
    const uint32_t x = ((const struct unicode_range *)a)->first,
                   y = ((const struct unicode_range *)b)->first;
    return x < y ? -1 : x > y;
}

static void merge_ranges(struct regex_set *set)
{
    size_t kept = 0;

    qsort(set->ranges, set->nranges, sizeof *set->ranges, by_first);
    for (size_t i = 1; i < set->nranges; i++) {
        struct unicode_range *last = &set->ranges[kept];
        if (set->ranges[i].first > last->last + 1)
            set->ranges[++kept] = set->ranges[i];
        else if (set->ranges[i].last > last->last)
            last->last = set->ranges[i].last;
    }
    if (set->nranges)
        set->nranges = kept + 1;
}

int regex_set_add(struct regex_set *set, const struct unicode_range *ranges, size_t nranges,
                  struct fsdp_err *err)
{
    if (!nranges)
        return FSDP_OK;
    if (set->nranges + nranges > set->room) {
        const size_t want = 2 * (set->nranges + nranges);
        struct unicode_range *const grown = fsdp_alloc_reserve(
            set->ranges, set->nranges, &set->room, want, sizeof *grown, "class of characters", err);
        if (!grown)
            return FSDP_ENOMEM;
        set->ranges = grown;
    }
    memcpy(set->ranges + set->nranges, ranges, nranges * sizeof *ranges);
    set->nranges += nranges;
    merge_ranges(set);
    return FSDP_OK;
}

int regex_set_add_range(struct regex_set *set, uint32_t first, uint32_t last, struct fsdp_err *err)
{
    return regex_set_add(set, &(struct unicode_range){first, last}, 1, err);
}

int regex_set_negate(struct regex_set *set, struct fsdp_err *err)
{
    struct unicode_range *const out =
        fsdp_alloc(set->nranges + 1, sizeof *out, "class of characters", err);
    uint32_t next = 0;
    size_t nout = 0;

    if (!out)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < set->nranges; i++) {
        if (set->ranges[i].first > next)
            out[nout++] = (struct unicode_range){next, set->ranges[i].first - 1};
        next = set->ranges[i].last + 1;
    }
    if (next <= REGEX_LAST_CODE)
        out[nout++] = (struct unicode_range){next, REGEX_LAST_CODE};
    fsdp_free(set->ranges);
    set->room = set->nranges + 1;
    set->ranges = out;
    set->nranges = nout;
    return FSDP_OK;
}

/* a ∩ b = not (not a ∪ not b) */
int regex_set_intersect(struct regex_set *set, const struct regex_set *other, struct fsdp_err *err)
{
    struct regex_set without = {0};
    int rc;

    FSDP_TRY_GOTO(regex_set_add(&without, other->ranges, other->nranges, err), out);
    FSDP_TRY_GOTO(regex_set_negate(&without, err), out);
    FSDP_TRY_GOTO(regex_set_negate(set, err), out);
    FSDP_TRY_GOTO(regex_set_add(set, without.ranges, without.nranges, err), out);
    rc = regex_set_negate(set, err);
out:
    regex_set_free(&without);
    return rc;
}
