/* SPDX-License-Identifier: Apache-2.0 */
/* tokens.h: tokenizes a run's text into token files of the cache, once for all ranks. */
#ifndef TRAIN_TOKENS_H
#define TRAIN_TOKENS_H

#include "setup.h"

/* Is the source text that a tokenizer encodes? Such text goes through the cache. */
bool train_tokens_needed(const struct data_text *text, int format);
/* Finds the token files of all text sources and of held-out text in the cache. Rank 0 writes
 * missing ones; so does the first rank of each node that does not see rank 0's cache. parts->tokens
 * gets the paths. Collective, blocks, agreed. */
int train_tokens_prepare(struct train_parts *parts, struct fsdp_oob *oob,
                         const struct fsdp_node_map *nodes, struct fsdp_err *err);
void train_tokens_close(struct train_parts *parts);

#endif
