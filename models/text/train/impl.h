/* SPDX-License-Identifier: Apache-2.0 */
/* impl.h: what a training consists of: count.c fills the words, learn.c the tokens and merges,
 * write.c writes them. */
#ifndef VOCAB_TRAIN_IMPL_H
#define VOCAB_TRAIN_IMPL_H

#include <jansson.h>

#include "text/tokenizer/byte_names.h"
#include "text/tokenizer/tokenizer.h"
#include "texts.h"
#include "vocab_train.h"

/* A token is its name, as the files spell it, its id the number of this text. */
struct merge {
    uint32_t left, right;
};

struct vocab_train {
    int vocab_size;
    uint64_t min_frequency;
    char *pattern; /* NULL: GPT-2's */
    bool add_prefix_space;
    char **special;
    int nspecial;
    int bos, eos;             /* of the special tokens; -1: none */
    struct tokenizer *cutter; /* the tokenizer that is made, before its first merge */
    struct tokenizer_encoder *encoder;
    struct texts words;
    uint64_t ntexts, nbytes, nwords;
    /* What is learned. The special tokens and the bytes are there from the beginning. */
    struct texts tokens;
    uint32_t units[256]; /* tokens of the bytes */
    struct merge *merges;
    int nmerges;
    uint64_t last_frequency;
    bool finished;
};

/* tokenizer.json, of which the vocabulary and merges are those learned so far; NULL: no memory. The
 * caller has a reference. */
json_t *vocab_train_json(const struct vocab_train *train);

#endif
