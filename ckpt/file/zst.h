/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed data files, `.safetensors.zst`: the bytes of a safetensors file in pieces ("chunks")
 * of at most 1 MiB. The bytes of a chunk's elements are dealt into planes (all lowest bytes, ...,
 * all highest bytes) and every plane is a zstd frame of its own, so that chunks can be made and
 * read in any order, by several threads, and a range is read without the rest of the file. The
 * frame table at the end says where they are. docs/ckpt-format.md describes the bytes.
 *
 *      [planes of chunk 0][planes of chunk 1] ...  [frame table: a skippable frame]
 *
 * Positions and counts are those of the safetensors file unless they are called `stored`.
 */
#ifndef CKPT_CODEC_H
#define CKPT_CODEC_H

#include "store/store.h"

#define CKPT_CODEC_SUFFIX ".zst"
#define CKPT_CODEC_CHUNK_NBYTES (1u << 20)
#define CKPT_CODEC_MAX_PLANES 8

/* Does the name end with ".safetensors.zst"? */
bool ckpt_codec_is_name(const char *path);
/* FSDP_EUNSUPPORTED in a build without zstd, naming path and what to do. */
int ckpt_codec_check(const char *path, struct fsdp_err *err);

/* ---- reading --------------------------------------------------------------------------------- */

/* Buffers and decoders that the files of one reader share, and the last chunk that each decoded.
 * One for every thread that reads at a time; CKPT_CODEC_POOL_NBYTES each. */
struct ckpt_codec_pool;
#define CKPT_CODEC_POOL_NBYTES (6u << 20)
int ckpt_codec_pool_create(struct ckpt_codec_pool **out, struct fsdp_err *err);
void ckpt_codec_pool_destroy(struct ckpt_codec_pool *pool);

/* A data file of either kind, told apart by its name, read as the safetensors file that it is. */
struct ckpt_data;
/* Reads the frame table of a compressed file, no chunk. The pool outlives the file. */
int ckpt_data_open(struct ckpt_data **out, const struct ckpt_store_ops *ops, const char *path,
                   struct ckpt_codec_pool *pool, struct fsdp_err *err);
/* What the opened file is. */
int ckpt_data_stat(struct ckpt_store_stat *out, struct ckpt_data *data, struct fsdp_err *err);
/* NULL is allowed. */
void ckpt_data_close(struct ckpt_data *data);
/* Of the safetensors file. */
uint64_t ckpt_data_nbytes(const struct ckpt_data *data);
/* Of the file as it is stored. */
uint64_t ckpt_data_stored_nbytes(const struct ckpt_data *data);
/* Exactly nbytes from pos; FSDP_ECORRUPT where a chunk is not what was written (each has a
 * checksum) or the file ends before. Thread safe. */
int ckpt_data_pread(struct ckpt_data *data, void *dst, size_t nbytes, uint64_t pos,
                    struct fsdp_err *err);
/* The same of a header, which is read again and again. */
int ckpt_data_pread_header(struct ckpt_data *data, void *dst, size_t nbytes, uint64_t pos,
                           struct fsdp_err *err);
/* The same for who reads all of the file in order: *crc32c, 0 at first, is in the end that of the
 * file as it is stored. */
int ckpt_data_pread_summed(uint32_t *crc32c, struct ckpt_data *data, void *dst, size_t nbytes,
                           uint64_t pos, struct fsdp_err *err);
/* The file itself, whose bytes are those of the safetensors file; NULL where it is compressed. */
struct ckpt_store_file *ckpt_data_plain_file(struct ckpt_data *data);
/* The file's own bytes, compressed or not. Thread safe. */
int ckpt_data_pread_stored(struct ckpt_data *data, void *dst, size_t nbytes, uint64_t pos,
                           struct fsdp_err *err);

/* ---- writing --------------------------------------------------------------------------------- */

struct ckpt_encoder_result {
    uint64_t stored_nbytes;
    uint32_t stored_crc32c; /* of the file as it is stored */
    uint32_t crc32c;        /* of the safetensors file */
};

/* Writes one compressed file. Bytes may be put in any order and from several threads; they are
 * gathered into chunks, and whoever completes a chunk compresses it, unless `nhelpers` threads of
 * the encoder's own do (for a caller that has one thread). Chunks are appended to the file in
 * order; at most `window` are in memory (2 MiB each), so a put that is too far ahead of the first
 * missing byte waits. Where blocks are handed out in order, as a plan has them, the one furthest
 * behind never waits. */
struct ckpt_encoder;
struct ckpt_encoder_args {
    const char *header; /* of the safetensors file, its length field included; it is put too */
    size_t header_nbytes;
    uint64_t nbytes; /* of the whole safetensors file */
    int window;      /* at least 2 */
    int nhelpers;
};
/* file: created, empty; it stays the caller's, who syncs and closes it after ckpt_encoder_finish.
 */
int ckpt_encoder_create(struct ckpt_encoder **out, struct ckpt_store_file *file, const char *path,
                        const struct ckpt_encoder_args *args, struct fsdp_err *err);
/* Every byte after the header exactly once. Thread safe. After a failure all calls fail. */
int ckpt_encoder_put(struct ckpt_encoder *encoder, const void *src, size_t nbytes, uint64_t pos,
                     struct fsdp_err *err);
/* When all bytes were put: the frame table. */
int ckpt_encoder_finish(struct ckpt_encoder_result *out, struct ckpt_encoder *encoder,
                        struct fsdp_err *err);
/* Lets waiting puts fail, so that other threads can end; for when something else failed. */
void ckpt_encoder_stop(struct ckpt_encoder *encoder);
/* No thread is in a call any more. NULL is allowed. */
void ckpt_encoder_destroy(struct ckpt_encoder *encoder);

/* ---- zst_table.c, zst_chunk.c: pure, for the two above and for tests --------------------- */

/* One row of the frame table. */
struct ckpt_codec_chunk {
    uint64_t pos, stored_pos; /* sums over the rows before */
    uint32_t nbytes;
    uint32_t crc32c;                        /* of the chunk's bytes */
    uint32_t planes;                        /* 1, 2, 4, 8: bytes of an element */
    uint32_t stored[CKPT_CODEC_MAX_PLANES]; /* of each plane's frame */
};

struct ckpt_codec_table {
    uint64_t nbytes, header_nbytes, stored_nbytes; /* stored_nbytes: of all chunks */
    size_t nchunks;
    struct ckpt_codec_chunk *chunks;
};

/* The file's end tells where the table begins. tail: the last CKPT_CODEC_TAIL_NBYTES. */
#define CKPT_CODEC_TAIL_NBYTES 24
int ckpt_codec_tail_parse(uint64_t *table_nbytes, const void *tail, uint64_t file_nbytes,
                          const char *path, struct fsdp_err *err);
/* data: the last table_nbytes of the file. Proves what it returns: the chunks tile both files. */
int ckpt_codec_table_parse(struct ckpt_codec_table *out, const void *data, size_t nbytes,
                           uint64_t file_nbytes, const char *path, struct fsdp_err *err);
/* *out is freed with fsdp_free. */
int ckpt_codec_table_format(char **out, size_t *out_nbytes, const struct ckpt_codec_table *table,
                            struct fsdp_err *err);
void ckpt_codec_table_free(struct ckpt_codec_table *table);
/* The chunk that holds byte pos of the safetensors file, which has one. */
size_t ckpt_codec_chunk_at(const struct ckpt_codec_table *table, uint64_t pos);

/* One thread's compressor or decompressor. */
struct ckpt_codec_worker;
int ckpt_codec_worker_create(struct ckpt_codec_worker **out, struct fsdp_err *err);
void ckpt_codec_worker_destroy(struct ckpt_codec_worker *worker);
/* Room for the frames of a chunk of nbytes. */
size_t ckpt_codec_bound(size_t nbytes);
/* The frames of chunk->planes planes, back to back; sets chunk->stored and ->crc32c. The last
 * nbytes % planes bytes belong to the last plane. */
int ckpt_codec_encode(void *dst, size_t dst_nbytes, struct ckpt_codec_chunk *chunk, const void *src,
                      struct ckpt_codec_worker *worker, struct fsdp_err *err);
/* src: the chunk's frames. path: for error texts. */
int ckpt_codec_decode(void *dst, const struct ckpt_codec_chunk *chunk, const void *src,
                      const char *path, struct ckpt_codec_worker *worker, struct fsdp_err *err);

#endif
