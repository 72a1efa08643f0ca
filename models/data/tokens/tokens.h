/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokens.h: token files with an index of their documents, as fsdp-tokenize and the cache of a run
 * make them. For NAME.u16 or NAME.u32, which is token ids, little-endian, and nothing else:
 *
 *      NAME.u16.index   a header of 128 bytes; then for each document where it ends among the
 *                       tokens, a u64
 *      NAME.u16.learned (of chats, prompts and labels) a bit per token, the lowest of a byte first:
 *                       is it learned?
 *
 * The header, little-endian:
 *
 *      char[8] "fsdptoks"   u32 version, 1         u32 bytes of a token id
 *      u32 vocabulary       u32 special            u32 has NAME.learned   u32 0
 *      u64 tokenizer_hash   u64 source_hash        u64 documents   u64 tokens
 *      u64 bytes of text    u64 lines left out     u64 CRC-64 of the ids
 *      u64 CRC-64 of NAME.learned                  u64 CRC-64 of the index behind the header
 *      u64 CRC-64 of the header's bytes before
 */
#ifndef DATA_TOKENS_H
#define DATA_TOKENS_H

#include "fsdp/base.h"

struct tokens_info {
    int token_nbytes; /* 2 or 4 */
    int vocab_size;   /* of the tokenizer: ids are below it */
    int special;      /* enum data_special */
    bool has_learned;
    uint64_t tokenizer_hash; /* tokenizer_hash */
    uint64_t source_hash;    /* of the sources' bytes: encode_source_hash */
    uint64_t ndocuments, ntokens;
    uint64_t nbytes; /* of text that became tokens */
    uint64_t nbad;   /* lines that were left out */
};

struct tokens;

/* Does `path` have an index? FSDP_OK and *out; errors are those of looking. Local, blocks. */
int tokens_exist(bool *out, const char *path, struct fsdp_err *err);
/* path: NAME.u16 or NAME.u32. Maps the index and checks it against itself and against the sizes of
 * the files. The caller closes it. FSDP_ENOTFOUND; FSDP_ECORRUPT, FSDP_EUNSUPPORTED (another
 * version) name the file. Local, blocks. */
int tokens_open(struct tokens **out, const char *path, struct fsdp_err *err);
void tokens_close(struct tokens *tokens);
const struct tokens_info *tokens_info(const struct tokens *tokens);
/* Document i's tokens are [tokens_begin(i), tokens_begin(i + 1)), for i up to ndocuments. Pure. */
uint64_t tokens_begin(const struct tokens *tokens, uint64_t document);
/* The document that a token is in. Pure. */
uint64_t tokens_find(const struct tokens *tokens, uint64_t token);
/* learned[i]: is token first + i learned? All are where there is no NAME.learned. Blocks. */
int tokens_learned(const struct tokens *tokens, uint64_t first, size_t ntokens, bool *learned,
                   struct fsdp_err *err);
/* Reads both files and compares their checksums. FSDP_ECORRUPT names the file. Blocks. */
int tokens_verify(const struct tokens *tokens, struct fsdp_err *err);

#endif
