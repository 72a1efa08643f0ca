/* SPDX-License-Identifier: Apache-2.0 */
/* count.h: the words of texts, counted by several threads, for a vocabulary. */
#ifndef ENCODE_COUNT_H
#define ENCODE_COUNT_H

#include "encode.h"

struct vocab_train;
struct vocab_train_opts;

/* Adds what the sources hold to `into`, which was made with the options `vocab`. Of a file of text,
 * each line with its end is a text; of JSON Lines, each document. Of opts, paths, format, remote,
 * text_key, skip_bad_lines, nthreads, progress count, and of its text what renders messages. *nbad:
 * lines that were left out. Local, blocks. */
int encode_count(struct vocab_train *into, const struct vocab_train_opts *vocab,
                 const struct encode_opts *opts, uint64_t *nbad, struct fsdp_err *err);

#endif
