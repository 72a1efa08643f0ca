/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer.h: text to token ids and back, with the ids that a model's own tokenizer gives.
 *
 * What is read: Hugging Face's tokenizer.json (BPE and Unigram), Mistral's tekken.json, ranks of
 * tiktoken, and SentencePiece's tokenizer.model. A file that asks for something that is not done
 * here is refused by name: ids are never silently different.
 *
 * A tokenizer is constant once it is open, and threads share it. Each thread that encodes has an
 * encoder: scratch memory and a cache of words.
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
/* Are its tokens the 256 bytes, the id of each its value, and is there nothing else to it? A file
 * may say so, too. Such a tokenizer takes texts that are no UTF-8. */
bool tokenizer_is_bytes(const struct tokenizer *tokenizer);

/* One more than the largest id. */
int tokenizer_vocab_size(const struct tokenizer *tokenizer);
/* Equal for equal files. Two tokenizers with one hash give the same ids. */
uint64_t tokenizer_hash(const struct tokenizer *tokenizer);
/* The file that it was read from; "bytes" for the bytes. */
const char *tokenizer_path(const struct tokenizer *tokenizer);
/* The special tokens that the files name; -1: none. */
int32_t tokenizer_bos(const struct tokenizer *tokenizer);
int32_t tokenizer_eos(const struct tokenizer *tokenizer);
/* The special tokens that the post-processor adds before a text, or behind it: how many. Pure. */
int tokenizer_post(const struct tokenizer *tokenizer, bool behind, const int32_t **ids);
/* The id of a token by its content, as the file spells it; -1: there is none. */
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *token, size_t nbytes);
/* Bytes of text that a token stands for: 0 for a special one, or an id that is not there. */
size_t tokenizer_nbytes(const struct tokenizer *tokenizer, int32_t id);

/* ---- text to ids ----------------------------------------------------------------------------- */

struct tokenizer_ids {
    int32_t *at;
    size_t nids, room;
    /* Where `with_ends`: ends[i] is how many bytes of the text the first i + 1 tokens cover. */
    size_t *ends, ends_room;
    bool with_ends;
};
void tokenizer_ids_free(struct tokenizer_ids *ids);

struct tokenizer_encoder;
int tokenizer_encoder_create(struct tokenizer_encoder **out, const struct tokenizer *tokenizer,
                             struct fsdp_err *err);
void tokenizer_encoder_destroy(struct tokenizer_encoder *encoder);

/* Appends the ids of a text. Special tokens that the text spells out are recognized, as the
 * original does it. With add_special, those of the file's post-processor are added around them.
 * FSDP_EINVAL: the text is not valid UTF-8; names the byte. Local. */
int tokenizer_encode(struct tokenizer_encoder *encoder, const char *text, size_t nbytes,
                     bool add_special, struct tokenizer_ids *ids, struct fsdp_err *err);

/* Cuts a text into the words that tokens never cross: what the normalizer and the pre-tokenizer
 * leave of it, as if there were no added tokens. `word` gets each in its order; a status of it that
 * is not FSDP_OK ends the call. FSDP_EINVAL: the text is not valid UTF-8, and `word` has had
 * nothing. Local. */
typedef int tokenizer_word_f(void *ctx, const char *word, size_t nbytes, struct fsdp_err *err);
int tokenizer_split(struct tokenizer_encoder *encoder, const char *text, size_t nbytes,
                    tokenizer_word_f *word, void *ctx, struct fsdp_err *err);

/* ---- ids to text ----------------------------------------------------------------------------- */

/* A text in the making: decodes token by token, and never gives a part of a character. */
struct tokenizer_stream;
int tokenizer_stream_create(struct tokenizer_stream **out, const struct tokenizer *tokenizer,
                            bool skip_special, struct fsdp_err *err);
void tokenizer_stream_destroy(struct tokenizer_stream *stream);
/* The text that this token completes; *text is the stream's until its next call. FSDP_EINVAL: an
 * id outside the vocabulary. */
int tokenizer_stream_put(struct tokenizer_stream *stream, int32_t id, const char **text,
                         size_t *nbytes, struct fsdp_err *err);
/* The rest, with U+FFFD for what never became a character. The stream then begins anew. */
int tokenizer_stream_end(struct tokenizer_stream *stream, const char **text, size_t *nbytes,
                         struct fsdp_err *err);

#endif
