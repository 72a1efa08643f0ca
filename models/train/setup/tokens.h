/* SPDX-License-Identifier: Apache-2.0 */
/* tokens.h: text of a run's data becomes token files of the cache, once for all ranks. */
#ifndef TRAIN_TOKENS_H
#define TRAIN_TOKENS_H

#include "setup.h"

/* Is the source text that a tokenizer makes tokens of, so that it goes through the cache? */
bool train_tokens_needed(const struct data_text *text, int format);
/* The token files of all sources of text and of held-out text in the cache, made where they are not
 * there yet: by rank 0, and by the first rank of each node that does not see what rank 0 made.
 * Paths come into parts->tokens. Collective, blocks, agreed. */
int train_tokens_prepare(struct train_parts *parts, struct fsdp_oob *oob,
                         const struct fsdp_node_map *nodes, struct fsdp_err *err);
void train_tokens_close(struct train_parts *parts);

#endif
