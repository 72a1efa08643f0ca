/* SPDX-License-Identifier: Apache-2.0 */
/* impl.h: the state of learning a vocabulary. count.c fills the words, learn.c the tokens and
 * merges; write.c writes the files. */
#ifndef VOCAB_TRAIN_IMPL_H
#define VOCAB_TRAIN_IMPL_H

#include <jansson.h>

#include "text/tokenizer/byte_names.h"
#include "text/tokenizer/tokenizer.h"
#include "texts.h"
#include "vocab_train.h"

/* A token is stored as its name in the files; its id is the number of this text. */
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
    /* The learned vocabulary. It begins with the special tokens and the bytes. */
    struct texts tokens;
    uint32_t units[256]; /* tokens of the bytes */
    struct merge *merges;
    int nmerges;
    uint64_t last_frequency;
    bool finished;
};

/* tokenizer.json with the vocabulary and merges learned so far; NULL: no memory. The caller owns
 * the reference. */
json_t *vocab_train_json(const struct vocab_train *train);

#endif
