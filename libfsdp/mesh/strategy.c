/* SPDX-License-Identifier: Apache-2.0 */
/* What each sharding strategy means: a row of a table, and nothing elsewhere. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "fsdp/mesh.h"

static const struct fsdp_strategy_info strategies[FSDP_NSTRATEGIES] = {
    [FSDP_FULL_SHARD] = {.name = "FULL_SHARD",
                         .group = FSDP_SHARD_OVER_WORLD,
                         .reshard_after_forward = true,
                         .reshard_after_backward = true},
    [FSDP_SHARD_GRAD_OP] = {.name = "SHARD_GRAD_OP",
                            .group = FSDP_SHARD_OVER_WORLD,
                            .reshard_after_backward = true},
    [FSDP_NO_SHARD] = {.name = "NO_SHARD", .group = FSDP_SHARD_OVER_NOBODY},
    [FSDP_HYBRID_SHARD] = {.name = "HYBRID_SHARD",
                           .group = FSDP_SHARD_OVER_NODE,
                           .reshard_after_forward = true,
                           .reshard_after_backward = true},
    [FSDP_HYBRID_SHARD_ZERO2] = {.name = "HYBRID_SHARD_ZERO2",
                                 .group = FSDP_SHARD_OVER_NODE,
                                 .reshard_after_backward = true},
    [FSDP_ZERO1] = {.name = "ZERO1", .group = FSDP_SHARD_OVER_WORLD, .reduce_last = true},
};

const struct fsdp_strategy_info *fsdp_strategy_info(enum fsdp_strategy strategy)
{
    return (unsigned)strategy < FSDP_NSTRATEGIES ? &strategies[strategy] : NULL;
}

const char *fsdp_strategy_name(enum fsdp_strategy strategy)
{
    const struct fsdp_strategy_info *info = fsdp_strategy_info(strategy);
    return info ? info->name : "?";
}

int fsdp_strategy_parse(enum fsdp_strategy *out, const char *text, struct fsdp_err *err)
{
    char known[256] = "";

    for (int i = 0; i < FSDP_NSTRATEGIES; i++) {
        if (text && !strcasecmp(text, strategies[i].name)) {
            *out = (enum fsdp_strategy)i;
            return FSDP_OK;
        }
        size_t len = strlen(known);
        snprintf(known + len, sizeof known - len, "%s%s", i ? ", " : "", strategies[i].name);
    }
    return fsdp_err_set(err, FSDP_EINVAL, "unknown sharding strategy '%s' (known: %s)",
                        text ? text : "", known);
}
