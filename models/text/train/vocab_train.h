/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vocab_train.h: learns a byte-level BPE vocabulary from texts, with the tokens, ids and merges of
 * `tokenizers`: BpeTrainer(vocab_size, min_frequency, special_tokens,
 * initial_alphabet=ByteLevel.alphabet()).
 *
 * Call create, then add for each text, finish and write. Memory grows with the distinct words of
 * the texts, and with the longest text. Threads can count in parallel, each with its own
 * vocab_train; merge then adds their counts, with the same result as one thread.
 *
 * The original counts pairs in 32 bits, which can overflow; counts here cannot.
 */
#ifndef VOCAB_TRAIN_H
#define VOCAB_TRAIN_H

#include "fsdp/base.h"

struct vocab_train;

enum { VOCAB_TRAIN_VERSION = 1 };
struct vocab_train_opts {
    uint32_t version;
    /* Number of all tokens: the special ones, the 256 bytes, and one per merge. */
    int vocab_size;
    /* A pair that occurs less often never becomes a token; 0 is 1, as BpeTrainer's default is. */
    uint64_t min_frequency;
    /* The regular expression whose matches are cut out of a text, as by Split(Regex(pattern),
     * "isolated"), in the syntax of `tokenizers`; NULL: GPT-2's, as by ByteLevel(use_regex=True).
     */
    const char *pattern;
    /* A text (with `pattern`, each of its words) that begins without a space gets one. */
    bool add_prefix_space;
    /* They get the first ids, in this order. Texts are not searched for them. */
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
 * not UTF-8 or given twice. Local. */
int vocab_train_create(struct vocab_train **out, const struct vocab_train_opts *opts,
                       struct fsdp_err *err);
void vocab_train_destroy(struct vocab_train *train);

/* Counts the words of a text of at most 2 GiB. No word crosses the boundary of two texts, so the
 * division into texts affects the result. The original's train_from_iterator uses its items as
 * texts; its train(files) uses lines with their ends. FSDP_EINVAL: the text is not valid UTF-8; the
 * error names the byte, and nothing is counted. After FSDP_ENOMEM a part of the text is counted.
 * Local. */
int vocab_train_add(struct vocab_train *train, const char *text, size_t nbytes,
                    struct fsdp_err *err);
/* Adds the counts of `from`, which does not change. FSDP_EINVAL: its pattern differs. */
int vocab_train_merge(struct vocab_train *into, const struct vocab_train *from,
                      struct fsdp_err *err);

/* Called at intervals while merges are learned, and at the end. A status other than FSDP_OK stops
 * learning and is returned. */
typedef int vocab_train_progress_f(void *ctx, int nmerges, int nwanted, struct fsdp_err *err);

/* Learns the merges. progress may be NULL. If the texts have too few pairs, there are fewer tokens
 * than vocab_size; see the stats. A failure leaves the counts unchanged. FSDP_EUNSUPPORTED: a token
 * would be longer than a tokenizer's file allows. Local, blocks. */
int vocab_train_finish(struct vocab_train *train, vocab_train_progress_f *progress, void *ctx,
                       struct fsdp_err *err);

struct vocab_train_stats {
    uint64_t ntexts, nbytes; /* of what was added */
    uint64_t nwords;         /* words of the texts */
    uint64_t ndistinct;      /* distinct words */
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
 * is created if necessary. Each file replaces an existing one atomically. Local, blocks. */
int vocab_train_write(const struct vocab_train *train, const char *folder, struct fsdp_err *err);

#endif
