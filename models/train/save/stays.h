/* SPDX-License-Identifier: Apache-2.0 */
/* stays.h: checkpoints that retention leaves in place, warned of once for each folder. */
#ifndef TRAIN_STAYS_H
#define TRAIN_STAYS_H

#include <stddef.h>
#include <stdint.h>

/* Zeroed at the beginning. */
struct train_stays {
    uint64_t *told; /* hashes of their paths */
    size_t ntold, max;
};

/* A ckpt_stays_f; ctx: a struct train_stays. */
void train_stays_tell(void *ctx, const char *path, const char *why);
void train_stays_free(struct train_stays *stays);

#endif
