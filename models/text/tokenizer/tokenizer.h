/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer.h: encodes text as token ids and decodes them, with the ids of the model's own
 * tokenizer.
 *
 * Supported files: Hugging Face's tokenizer.json (BPE and Unigram), Mistral's tekken.json, ranks of
 * tiktoken, and SentencePiece's tokenizer.model. A file with an unsupported feature is refused; the
 * error names the feature. Ids are never silently different.
 *
 * An open tokenizer is constant, and threads may share it. Each thread needs an encoder of its own:
 * scratch memory and a cache of words.
 */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include "fsdp/base.h"

struct tokenizer;

/* path: a tokenizer's file, or a model folder, in which tokenizer.json, tekken.json,
 * tokenizer.model or *.tiktoken is looked for, in this order; tokenizer_config.json next to the
 * file is read for the special tokens. FSDP_ENOTFOUND: the folder has none. FSDP_EINVAL and
 * FSDP_EUNSUPPORTED name the file and what is wrong or not supported. Local, blocks. */
int tokenizer_open(struct tokenizer **out, const char *path, struct fsdp_err *err);
/* The same for the text of a tokenizer.json; `name` stands for its path. */
int tokenizer_open_json(struct tokenizer **out, const char *name, const char *text, size_t nbytes,
                        struct fsdp_err *err);
/* The tokenizer whose tokens are the 256 bytes. */
int tokenizer_open_bytes(struct tokenizer **out, struct fsdp_err *err);
void tokenizer_close(struct tokenizer *tokenizer);
/* Are its tokens exactly the 256 bytes, each with its value as id? A file may also describe such a
 * tokenizer. It accepts texts that are not UTF-8. */
bool tokenizer_is_bytes(const struct tokenizer *tokenizer);

/* One more than the largest id. */
int tokenizer_vocab_size(const struct tokenizer *tokenizer);
/* The same of the tokens that text becomes; added ones, special tokens among them, may be above. */
int tokenizer_plain_size(const struct tokenizer *tokenizer);
/* Equal for equal files. Two tokenizers with one hash give the same ids. */
uint64_t tokenizer_hash(const struct tokenizer *tokenizer);
/* The file that it was read from; "bytes" for the bytes. */
const char *tokenizer_path(const struct tokenizer *tokenizer);
/* The special tokens that the files name; -1: none. */
int32_t tokenizer_bos(const struct tokenizer *tokenizer);
int32_t tokenizer_eos(const struct tokenizer *tokenizer);
/* Number of special tokens that the post-processor adds before a text, or after it. Pure. */
int tokenizer_post(const struct tokenizer *tokenizer, bool behind, const int32_t **ids);
/* The id of a token by its content, as the file spells it; -1: there is none. */
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *token, size_t nbytes);
/* Bytes of text that a token stands for; 0 for a special token or an unknown id. */
size_t tokenizer_nbytes(const struct tokenizer *tokenizer, int32_t id);

/* ---- text to ids ----------------------------------------------------------------------------- */

struct tokenizer_ids {
    int32_t *at;
    size_t nids, room;
    /* With `with_ends`: ends[i] is the number of bytes that the first i + 1 tokens cover. */
    size_t *ends, ends_room;
    bool with_ends;
};
void tokenizer_ids_free(struct tokenizer_ids *ids);

struct tokenizer_encoder;
int tokenizer_encoder_create(struct tokenizer_encoder **out, const struct tokenizer *tokenizer,
                             struct fsdp_err *err);
void tokenizer_encoder_destroy(struct tokenizer_encoder *encoder);

/* Appends the ids of a text. Special tokens in the text are recognized, as in the original. With
 * add_special, the special tokens of the file's post-processor are added. FSDP_EINVAL: the text is
 * not valid UTF-8; the error names the byte. Local. */
int tokenizer_encode(struct tokenizer_encoder *encoder, const char *text, size_t nbytes,
                     bool add_special, struct tokenizer_ids *ids, struct fsdp_err *err);

/* Cuts a text into words, which tokens never cross, with the normalizer and the pre-tokenizer;
 * added tokens are ignored. `word` receives the words in order; a status other than FSDP_OK ends
 * the call. FSDP_EINVAL: the text is not valid UTF-8, and `word` was not called. Local. */
typedef int tokenizer_word_f(void *ctx, const char *word, size_t nbytes, struct fsdp_err *err);
int tokenizer_split(struct tokenizer_encoder *encoder, const char *text, size_t nbytes,
                    tokenizer_word_f *word, void *ctx, struct fsdp_err *err);

/* ---- ids to text ----------------------------------------------------------------------------- */

/* Decodes token by token, and never gives a part of a character. */
struct tokenizer_stream;
int tokenizer_stream_create(struct tokenizer_stream **out, const struct tokenizer *tokenizer,
                            bool skip_special, struct fsdp_err *err);
void tokenizer_stream_destroy(struct tokenizer_stream *stream);
/* The text that this token completes; *text is valid until the next call on the stream.
 * FSDP_EINVAL: an id outside the vocabulary. */
int tokenizer_stream_put(struct tokenizer_stream *stream, int32_t id, const char **text,
                         size_t *nbytes, struct fsdp_err *err);
/* The remaining text, with U+FFFD for incomplete characters. Resets the stream. */
int tokenizer_stream_end(struct tokenizer_stream *stream, const char **text, size_t *nbytes,
                         struct fsdp_err *err);

#endif
