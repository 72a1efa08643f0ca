/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "stays.h"

#include "fsdp/base.h"

void train_stays_tell(void *ctx, const char *path, const char *why)
{
    struct train_stays *s = ctx;
    uint64_t hash = fsdp_hash(FSDP_HASH_SEED, path, strlen(path));
    for (size_t i = 0; i < s->ntold; i++)
        if (s->told[i] == hash)
            return;
    uint64_t *told =
        fsdp_alloc_grow(s->told, s->ntold, &s->max, sizeof *told, "checkpoints that stay", NULL);
    if (told) {
        s->told = told;
        s->told[s->ntold++] = hash;
    }
    fsdp_log(FSDP_LOG_WARN, "an old checkpoint stays: %s", why);
}

void train_stays_free(struct train_stays *stays)
{
    fsdp_free(stays->told);
    *stays = (struct train_stays){0};
}
