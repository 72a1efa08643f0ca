/* SPDX-License-Identifier: Apache-2.0 */
/*
 * impl.h: what a tokenizer consists of, in the order of the steps from text to ids:
 *
 *   added tokens that are matched as they stand       added.c
 *   normalizer                                        normalize.c
 *   added tokens that are matched after it            added.c
 *   pre-tokenizer, which cuts text into pieces        split.c
 *   words: BPE or Unigram, of each piece              bpe.c, unigram.c
 *   post-processor, which adds special tokens         encode.c
 *
 * The readers (json.c, json_added.c, tekken.c, spm.c) fill a struct tokenizer; encode.c runs it.
 */
#ifndef TOKENIZER_IMPL_H
#define TOKENIZER_IMPL_H

#include <jansson.h>

#include "byte_names.h"
#include "text/regex/regex.h"
#include "text/unicode/unicode.h"
#include "words.h"

/* ---- text with its origin -------------------------------------------------------------------- */

/* Text in a buffer that is used again and again. Where ends are wanted, origin[i] is the place in
 * the original text from which byte i stems. */
struct run {
    struct unicode_text text;
    uint32_t *origin;
    size_t max_origin;
    bool with_origin;
};
void run_clear(struct run *run, bool with_origin);
void run_free(struct run *run);
/* Appends bytes whose origin is `from` on, byte by byte, or where origins is given, those. */
int run_add(struct run *run, const char *text, size_t nbytes, size_t from, const uint32_t *origins,
            struct fsdp_err *err);
/* Appends bytes that stand for the bytes `from` to `last` of the original. */
int run_insert(struct run *run, const char *text, size_t nbytes, size_t from, size_t last,
               struct fsdp_err *err);

struct piece {
    uint32_t first, nbytes;
    bool at_start; /* it begins where the whole text begins */
};
struct pieces {
    struct piece *at;
    size_t npieces, max;
};
int pieces_add(struct pieces *pieces, size_t first, size_t nbytes, bool at_start,
               struct fsdp_err *err);

/* ---- matchers -------------------------------------------------------------------------------- */

enum { MAX_REGEXES = 32, MAX_STEPS = 16 };

/* A literal text, or regular expression number `regex` of the tokenizer. */
struct matcher {
    char *literal; /* NULL: the expression */
    size_t nliteral;
    int regex;
};
struct tokenizer;
int matcher_literal(struct matcher *out, const char *text, size_t nbytes, struct fsdp_err *err);
int matcher_regex(struct matcher *out, struct tokenizer *t, const char *pattern, size_t nbytes,
                  enum regex_engine engine, struct fsdp_err *err);
/* As regex_next. */
int matcher_next(const struct matcher *matcher, struct regex_scan *const *scans, const char *text,
                 size_t nbytes, size_t *first, size_t *end, struct fsdp_err *err);

/* ---- normalizer ------------------------------------------------------------------------------ */

struct normal_step;
typedef int normal_f(const struct normal_step *step, struct regex_scan *const *scans,
                     const struct run *in, struct run *out, struct fsdp_err *err);
struct normal_step {
    normal_f *apply; /* out is empty */
    enum unicode_form form;
    bool left, right; /* Strip */
    bool moves_start; /* what begins a text afterwards may not have begun it before */
    struct matcher matcher;
    char *content; /* Replace, Prepend; owned */
    size_t ncontent;
};
struct normalizer {
    struct normal_step steps[MAX_STEPS];
    int nsteps;
};
int normalizer_parse(struct tokenizer *t, const json_t *json, struct fsdp_err *err);
/* The steps that the readers of other files need. */
int normalizer_add_prepend(struct tokenizer *t, const char *content, struct fsdp_err *err);
int normalizer_add_replace(struct tokenizer *t, const char *from, const char *to,
                           struct fsdp_err *err);
/* in -> *result, which is in or one of the two others. */
int normalizer_apply(const struct normalizer *normalizer, struct regex_scan *const *scans,
                     struct run *in, struct run others[2], struct run **result,
                     struct fsdp_err *err);

/* ---- pre-tokenizer --------------------------------------------------------------------------- */

enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS
};
enum prefix_when { PREFIX_NEVER, PREFIX_FIRST, PREFIX_ALWAYS };
/* Cuts at matches, or (prefix) replaces spaces and puts a prefix before pieces. */
struct split_step {
    bool is_prefix;
    struct matcher matcher;
    enum split_behavior behavior;
    bool invert;
    enum prefix_when when;
    char space[8];  /* what spaces become; empty: they stay */
    char prefix[8]; /* put before a piece that does not begin with it */
};
struct splitter {
    struct split_step steps[MAX_STEPS];
    int nsteps;
    bool bytes; /* ByteLevel: tokens are bytes */
};
int splitter_parse(struct tokenizer *t, const json_t *json, struct fsdp_err *err);
int splitter_add_regex(struct tokenizer *t, const char *pattern, size_t nbytes,
                       enum split_behavior behavior, enum regex_engine engine,
                       struct fsdp_err *err);
/* Cuts a run, of which pieces has one piece, the whole. The result is in *run and *pieces, which
 * may be exchanged with the others. */
struct split_work {
    struct run *run, *other_run;
    struct pieces *pieces, *other_pieces;
};
int splitter_apply(const struct splitter *splitter, struct regex_scan *const *scans,
                   struct split_work *work, struct fsdp_err *err);

/* ---- added tokens ---------------------------------------------------------------------------- */

struct added_token {
    int32_t id;
    char *content; /* owned */
    size_t nbytes;
    bool special, single_word, lstrip, rstrip, normalized;
    bool is_normal; /* the content is its own normal form */
    char *match;    /* what text is compared with: the content, or its normal form; owned */
    size_t nmatch;
    char *shown; /* what it is decoded to; owned */
    size_t nshown;
};
/* Tokens of one kind, in the order in which they are tried at a byte: the longest first. */
struct added_set {
    const struct added_token **tokens;
    size_t ntokens, begin[257]; /* of those with this first byte */
};
struct added {
    struct added_token *tokens;
    size_t ntokens, max_tokens;
    struct added_set sets[2]; /* as they stand; after normalizing */
    const struct added_token **by_id;
    size_t nids;
    int space, word; /* regular expressions: [\s] and [\w] */
};
int added_add(struct tokenizer *t, const struct added_token *token, struct fsdp_err *err);
/* After all are there. */
int added_index(struct tokenizer *t, struct fsdp_err *err);
void added_free(struct added *added);
struct added_match {
    const struct added_token *token;
    size_t first, end; /* with the white space that it takes */
    size_t token_end;  /* where the search continues */
};
/* Finds the next token of a set in a text. The search begins at token_end of *match, and white
 * space before its `end` is not taken again. False: there is none. */
bool added_next(const struct tokenizer *t, const struct added_set *set,
                struct regex_scan *const *scans, const char *text, size_t nbytes,
                struct added_match *match);
static inline const struct added_token *added_by_id(const struct added *added, int32_t id)
{
    return id >= 0 && (size_t)id < added->nids ? added->by_id[id] : NULL;
}

/* ---- decoder --------------------------------------------------------------------------------- */

enum { MAX_REPLACES = 4 };
/* The decoders that files have, in the only order in which they have a meaning token by token. */
struct decoder {
    bool bytes;      /* ByteLevel: tokens are bytes */
    bool byte_names; /* and added tokens are spelled byte by byte too, where they can be */
    struct {
        char *from, *to; /* in each token; owned */
    } replaces[MAX_REPLACES];
    int nreplaces;
    bool byte_fallback;   /* <0xE2> is a byte */
    char metaspace[8];    /* Metaspace: becomes a space, or in the first token ... */
    bool drop_first;      /* ... nothing */
    bool each_byte;       /* an invalid byte does not spoil the valid ones around it */
    char strip[8];        /* taken from the start of the text, ... */
    int strip_start;      /* ... at most so many times */
    bool special_apart;   /* special tokens do not count as the start */
    bool join_with_space; /* no decoder: tokens are words */
    bool fused;           /* while reading: Fuse has been seen, and the last stage */
    int stage;
};
int decoder_parse(struct decoder *decoder, const json_t *json, struct fsdp_err *err);

/* ---- all of it ------------------------------------------------------------------------------- */

enum { MAX_SPECIAL = 16 };

struct tokenizer {
    char *path;
    uint64_t hash;
    struct vocab vocab;
    double *scores;      /* of Unigram */
    uint32_t *ranks;     /* of SentencePiece's BPE */
    struct words *words; /* NULL: bytes are tokens */
    struct regex *regexes[MAX_REGEXES];
    int nregexes;
    struct normalizer normalizer;
    struct splitter splitter;
    struct added added;
    struct decoder decoder;
    int32_t before[MAX_SPECIAL], after[MAX_SPECIAL]; /* the post-processor's */
    int nbefore, nafter;
    int32_t bos, eos;
    bool skip_special; /* special tokens are not looked for in text */
    json_t *config;    /* tokenizer_config.json, while the files are read; NULL: none */
};

/* The readers. text: the whole file, nbytes long, with a 0 byte after it. */
int tokenizer_read_json(struct tokenizer *t, const char *text, size_t nbytes, struct fsdp_err *err);
/* A part of it. root: the file. */
int tokenizer_read_added(struct tokenizer *t, const json_t *root, struct fsdp_err *err);
int tokenizer_read_tekken(struct tokenizer *t, const char *text, size_t nbytes,
                          struct fsdp_err *err);
int tokenizer_read_tiktoken(struct tokenizer *t, const char *text, size_t nbytes,
                            struct fsdp_err *err);
int tokenizer_read_spm(struct tokenizer *t, const char *text, size_t nbytes, struct fsdp_err *err);

/* base64 of a token's bytes: how many, or -1. out has room for nbytes. */
int tokenizer_base64(char *out, const char *text, size_t nbytes);

#endif
