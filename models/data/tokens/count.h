/* SPDX-License-Identifier: Apache-2.0 */
/* count.h: counts the words of texts with several threads, to learn a vocabulary. */
#ifndef ENCODE_COUNT_H
#define ENCODE_COUNT_H

#include "encode.h"

struct vocab_train;
struct vocab_train_opts;

/* Adds the words of the sources to `into`, which was created with the options `vocab`. Each line of
 * a text file, with its line end, is a text; so is each document of JSON Lines. Of opts, paths,
 * format, remote, text_key, skip_bad_lines, nthreads, progress count, and of its text what renders
 * messages. *nbad: lines that were left out. Local, blocks. */
int encode_count(struct vocab_train *into, const struct vocab_train_opts *vocab,
                 const struct encode_opts *opts, uint64_t *nbad, struct fsdp_err *err);

#endif
