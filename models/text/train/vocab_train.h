/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vocab_train.h: learns a byte-level BPE vocabulary from texts, with the tokens, ids and merges of
 * `tokenizers`: BpeTrainer(vocab_size, min_frequency, special_tokens,
 * initial_alphabet=ByteLevel.alphabet()).
 *
 * Call create, then add for each text, finish and write. Memory follows the distinct words of the
 * texts, and one text. Threads count at the same time if each has its own vocab_train; merge then
 * adds one's counts to another's, and the result is that of one thread.
 *
 * The original counts pairs in 32 bits, which wrap; here no count does.
 */
#ifndef VOCAB_TRAIN_H
#define VOCAB_TRAIN_H

#include "fsdp/base.h"

struct vocab_train;

enum { VOCAB_TRAIN_VERSION = 1 };
struct vocab_train_opts {
    uint32_t version;
    /* Of all tokens: the special ones, the 256 bytes, one a merge. */
    int vocab_size;
    /* A pair that occurs less often never becomes a token; 0 is 1, as BpeTrainer's default is. */
    uint64_t min_frequency;
    /* The regular expression whose matches are cut out of a text, as by Split(Regex(pattern),
     * "isolated"), in the syntax of `tokenizers`; NULL: GPT-2's, as by ByteLevel(use_regex=True).
     */
    const char *pattern;
    /* A text (with `pattern`, each of its words) that begins without a space gets one. */
    bool add_prefix_space;
    /* These have the first ids, in their order. Texts are not searched for them. */
    int nspecial;
    const char *const *special;
    /* For tokenizer_config.json: two of `special`; NULL: the first, or none where there is none. */
    const char *bos, *eos;
};
#define VOCAB_TRAIN_OPTS_INIT                                                                      \
    {                                                                                              \
        VOCAB_TRAIN_VERSION, 0, 0, NULL, false, 0, NULL, NULL, NULL                                \
    }

/* Copies the options. FSDP_EINVAL, FSDP_EUNSUPPORTED: a vocab_size without room for the special
 * tokens and the bytes, a pattern that the tokenizer would refuse, a special token that is empty,
 * no UTF-8 or there twice. Local. */
int vocab_train_create(struct vocab_train **out, const struct vocab_train_opts *opts,
                       struct fsdp_err *err);
void vocab_train_destroy(struct vocab_train *train);

/* Counts the words of a text, of at most 2 GiB. No word reaches from one text into the next: where
 * texts are cut decides what can be learned. train_from_iterator takes its items as texts, too;
 * train(files) takes lines with their ends. FSDP_EINVAL: the text is not valid UTF-8; names the
 * byte and counts nothing of it. After FSDP_ENOMEM a part of the text is counted. Local. */
int vocab_train_add(struct vocab_train *train, const char *text, size_t nbytes,
                    struct fsdp_err *err);
/* Adds the counts of `from`, which stay. FSDP_EINVAL: they were made with another pattern. */
int vocab_train_merge(struct vocab_train *into, const struct vocab_train *from,
                      struct fsdp_err *err);

/* Called from time to time while merges are learned, and at the end. A status that is not FSDP_OK
 * ends the learning and is passed on. */
typedef int vocab_train_progress_f(void *ctx, int nmerges, int nwanted, struct fsdp_err *err);

/* Learns the merges. progress: may be NULL. Where the texts have too few pairs there are fewer
 * tokens than asked for, which the stats tell. A failure leaves the counts as they were.
 * FSDP_EUNSUPPORTED: a token would become longer than a tokenizer's file may have it. Local,
 * blocks.
 */
int vocab_train_finish(struct vocab_train *train, vocab_train_progress_f *progress, void *ctx,
                       struct fsdp_err *err);

struct vocab_train_stats {
    uint64_t ntexts, nbytes; /* of what was added */
    uint64_t nwords;         /* in it */
    uint64_t ndistinct;      /* of these */
    int ntokens;             /* vocab_size, or fewer; 0 before the finish */
    int nmerges;             /* likewise */
    uint64_t last_frequency; /* of the last pair that became a token */
};
void vocab_train_stats(struct vocab_train_stats *out, const struct vocab_train *train);

/* The left and the right half of a merge, as the files spell them, without a 0 byte after them. */
struct vocab_train_name {
    const char *at; /* borrowed */
    size_t nbytes;
};
void vocab_train_merge_at(struct vocab_train_name halves[2], const struct vocab_train *train,
                          int merge);

/* Writes tokenizer.json, as the original saves it, and tokenizer_config.json into a folder, which
 * is made if it is not there; each replaces what has its name in one step. Local, blocks. */
int vocab_train_write(const struct vocab_train *train, const char *folder, struct fsdp_err *err);

#endif
