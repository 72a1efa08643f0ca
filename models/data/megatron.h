/* SPDX-License-Identifier: Apache-2.0 */
/*
 * megatron.h: Megatron-LM's indexed data sets: NAME.bin is token ids, back to back, and NAME.idx
 * says where documents begin. Of the index, little-endian:
 *
 *      9 bytes  "MMIDIDX\0\0"
 *      u64      version, 1
 *      u8       type of the ids: 4 int32, 8 uint16
 *      u64      S, number of sequences
 *      u64      D + 1, where D is the number of documents
 *      S i32    tokens of each sequence
 *      S i64    where each begins in NAME.bin, in bytes
 *      D+1 i64  first sequence of each document, and S
 */
#ifndef DATA_MEGATRON_H
#define DATA_MEGATRON_H

#include "data.h"

/* *out: path of the .bin, from its own path, that of the .idx, or the common part of both. Any
 * other path is copied unchanged. The caller frees it with fsdp_free. */
int data_megatron_bin(char **out, const char *path, struct fsdp_err *err);
/* Sets a .bin's ntokens, token_nbytes and index, after a check of the whole index against itself
 * and against the file's nbytes. FSDP_ECORRUPT, FSDP_EUNSUPPORTED (other types). Local, blocks. */
int data_megatron_measure(struct data_file *file, uint64_t nbytes, struct fsdp_err *err);

/* The document of a token, and the first token after that document. */
struct data_megatron_at {
    int file;
    uint64_t document; /* of the file */
    uint64_t end;      /* among the tokens of all files; UINT64_MAX after the last document */
};
int data_megatron_find(struct data_megatron_at *out, struct data_files *files, int file,
                       uint64_t token, struct fsdp_err *err);
/* Moves to the next document that is not empty. */
int data_megatron_next(struct data_megatron_at *at, struct data_files *files, struct fsdp_err *err);

#endif
