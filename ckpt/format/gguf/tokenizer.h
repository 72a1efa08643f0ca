/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.h: the tokens of a vocabulary, on the way from a tokenizer's file to GGUF. Private to
 * the folder. */
#ifndef CKPT_GGUF_TOKENIZER_H
#define CKPT_GGUF_TOKENIZER_H

#include "config.h"
#include "keys.h"
#include "util/json.h"
#include "util/pool.h"

enum gguf_token_type {
    GGUF_TOKEN_NORMAL = 1,
    GGUF_TOKEN_UNKNOWN = 2,
    GGUF_TOKEN_CONTROL = 3,
    GGUF_TOKEN_USER = 4,
    GGUF_TOKEN_UNUSED = 5,
    GGUF_TOKEN_BYTE = 6,
};

struct gguf_vocab {
    const char *path;  /* of the tokenizer's file; borrowed */
    const char *model; /* tokenizer.ggml.model: "gpt2", "llama" */
    const char *pre;
    size_t ntokens;
    struct ckpt_json_text *tokens; /* [ntokens]; data NULL: none of that number */
    int32_t *types;
    float *scores; /* NULL: none */
    bool adds_bos, adds_eos, adds_space;
    struct ckpt_text merges; /* as GGUF has them, nmerges of them */
    size_t nmerges;
    struct ckpt_pool texts;
};
/* vocab.c */
int gguf_vocab_create(struct gguf_vocab *out, size_t ntokens, struct fsdp_err *err);
void gguf_vocab_destroy(struct gguf_vocab *vocab);
/* Sets a token; the text is copied. FSDP_EINVAL beyond ntokens. */
int gguf_vocab_set(struct gguf_vocab *vocab, uint64_t id, const struct ckpt_json_text *text,
                   enum gguf_token_type type, struct fsdp_err *err);
/* One of tokenizer.json's added_tokens, or of tokenizer_config.json's. */
int gguf_vocab_set_added(struct gguf_vocab *vocab, uint64_t id, const json_t *token,
                         struct fsdp_err *err);
/* The token of this text, -1: none. */
int64_t gguf_vocab_find(const struct gguf_vocab *vocab, const char *text);

/* tokenizer_json.c: byte-level BPE. *is: it is one, and vocab is filled. FSDP_EUNSUPPORTED names a
 * pre-tokenizer that is not known, or another part that GGUF cannot carry. */
int gguf_vocab_read_json(bool *is, struct gguf_vocab *vocab, const char *data, size_t nbytes,
                         struct fsdp_err *err);
/* pre.c: the name that llama.cpp has for a pre-tokenizer; NULL: none. */
struct gguf_bpe_traits {
    bool has_merges;     /* without, how words are split does not matter */
    bool ignores_merges; /* a word that is a token is not split */
};
const char *gguf_pre_of(const json_t *pre_tokenizer, const struct gguf_bpe_traits *bpe);
/* tokenizer_spm.c: a SentencePiece model of type BPE */
int gguf_vocab_read_spm(struct gguf_vocab *vocab, const char *data, size_t nbytes,
                        struct fsdp_err *err);

#endif
