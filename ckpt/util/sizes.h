/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sizes.h: the sizes that a model's config.json has, each under the letter that stands for it where
 * a family's tensors are listed:
 *
 *     V vocabulary      D width           P positions
 *     Q all query heads K all key heads   H a head        N query heads   U Q + 2 K   T 3 D
 *     F MLP             G 2 F
 */
#ifndef CKPT_SIZES_H
#define CKPT_SIZES_H

#include <jansson.h>

#include "fsdp/base.h"

struct ckpt_sizes {
    uint64_t nlayers, size[128];
};

/* Where counts are read from. */
struct ckpt_sizes_source {
    const json_t *config; /* the object that has the keys: the file, or a section of it */
    const char *type;     /* model_type */
    char *why;            /* of 256 bytes: on failure, which key is absent or wrong, and how */
};

/* *out stays where the key is absent or null. */
bool ckpt_size_read(uint64_t *out, const struct ckpt_sizes_source *from, const char *key);
/* And must not be 0 then. */
bool ckpt_size_need(uint64_t *out, const struct ckpt_sizes_source *from, const char *key);
/* *sizes: in, what V, D, N, F and nlayers are where they are absent, which are refused if that is
 * 0, but for F. mlp_key: of F; NULL: there is none. Keys are named as those of most families: of a
 * GPT-2 its own are read. */
bool ckpt_sizes_read(struct ckpt_sizes *sizes, const struct ckpt_sizes_source *from,
                     const char *mlp_key);

#endif
