/* SPDX-License-Identifier: Apache-2.0 */
/*
 * words.h: converts prompts to tokens and tokens to output. Each kind is a struct
 * generate_words_ops: bytes and ids in words.c, tokenizers in words_tokenizer.c.
 */
#ifndef GENERATE_WORDS_H
#define GENERATE_WORDS_H

#include "fsdp/base.h"

struct generate_words;

struct generate_words_ops {
    const char *name;
    bool is_text; /* output repeats the prompt's text and continues it; else it is token ids */
    /* *out is freed by the caller. with_special: with the special tokens that the kind adds to a
     * text. FSDP_EINVAL where the text has no tokens in this vocabulary. */
    int (*encode)(int32_t **out, int *ntokens, const struct generate_words *words, const char *text,
                  size_t nbytes, bool with_special, struct fsdp_err *err);
    /* Incremental output of one sequence after a prompt. The text of a token can depend on the
     * tokens before it. */
    int (*stream_create)(void **stream, const struct generate_words *words, const int32_t *prompt,
                         int nprompt, struct fsdp_err *err);
    void (*stream_destroy)(void *stream);
    /* The bytes that one more token completes (perhaps none, never a part of a character), borrowed
     * until the next call; token -1: what is left at the end. */
    int (*stream_put)(const char **out, size_t *nbytes, void *stream, int32_t token,
                      struct fsdp_err *err);
    /* (optional) Frees words->ctx. */
    void (*close)(struct generate_words *words);
};

struct generate_words {
    const struct generate_words_ops *ops;
    void *ctx; /* the kind's own */
    int vocab; /* tokens of the model */
    int eos;   /* the kind's own end token, -1: none */
    /* Why text cannot be tokenized; an error only if there is text. NULL: it can. */
    const char *refusal;
};

/* The bytes of a text are its tokens; a token beyond 255 is printed as <id>. */
extern const struct generate_words_ops generate_words_bytes;
/* "1,2,3" is the text of three tokens. */
extern const struct generate_words_ops generate_words_ids;

/* The tokens of a tokenizer's file, or of the one in a folder: tokenizer_open's rules and errors.
 * A prompt gets the special tokens that the file adds; special tokens are not printed. If its
 * tokens are the bytes, the kind is generate_words_bytes. */
int generate_words_tokenizer(struct generate_words *words, const char *path, struct fsdp_err *err);

void generate_words_close(struct generate_words *words);

/* A copy of a text as UTF-8, freed by the caller: every byte that is none becomes U+FFFD. */
int generate_words_utf8(char **out, size_t *out_nbytes, const char *text, size_t nbytes,
                        struct fsdp_err *err);

#endif
