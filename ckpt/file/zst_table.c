/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frame table: the last thing in a compressed file, inside a skippable frame, so that any zstd
 * decoder passes over it. All numbers little-endian.
 *
 *      u32 0x184d2a5c, u32 bytes that follow           the skippable frame
 *      u64 nbytes, u64 header_nbytes, u64 nchunks      of the safetensors file
 *      per chunk: u32 nbytes, u32 crc32c, u32 planes, u32 stored[planes]
 *      u64 table_nbytes, u32 crc32c, u32 1, "FSDPZSTD" the tail; crc32c of all before it
 */
#include <string.h>

#include "ckpt/ckpt.h"
#include "zst.h"
#include "util/limits.h"

enum { FRAME_NBYTES = 8, FIXED_NBYTES = 24, ROW_NBYTES = 12, VERSION = 1 };
static const uint32_t skippable_magic = 0x184d2a5c;
static const char tail_magic[8] = {'F', 'S', 'D', 'P', 'Z', 'S', 'T', 'D'};

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)

static uint64_t get(const uint8_t *p, int nbytes)
{
    uint64_t value = 0;
    while (nbytes-- > 0)
        value = value << 8 | p[nbytes];
    return value;
}

static uint8_t *put_number(uint8_t *p, uint64_t value, int nbytes)
{
    for (int i = 0; i < nbytes; i++)
        *p++ = (uint8_t)(value >> 8 * i);
    return p;
}

void ckpt_codec_table_free(struct ckpt_codec_table *table)
{
    fsdp_free(table->chunks);
    memset(table, 0, sizeof *table);
}

size_t ckpt_codec_chunk_at(const struct ckpt_codec_table *table, uint64_t pos)
{
    size_t low = 0, high = table->nchunks;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (table->chunks[middle].pos <= pos)
            low = middle;
        else
            high = middle;
    }
    return low;
}

int ckpt_codec_tail_parse(uint64_t *table_nbytes, const void *tail, uint64_t file_nbytes,
                          const char *path, struct fsdp_err *err)
{
    const uint8_t *p = tail;
    enum { LEAST = FRAME_NBYTES + FIXED_NBYTES + CKPT_CODEC_TAIL_NBYTES };

    if (memcmp(p + 16, tail_magic, sizeof tail_magic))
        return BAD("'%s' does not end with a frame table: truncated, or not a compressed "
                   "safetensors file of this toolkit",
                   path);
    if (get(p + 12, 4) != VERSION)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "'%s': frame table of version %llu", path,
                            (unsigned long long)get(p + 12, 4));
    *table_nbytes = get(p, 8);
    if (*table_nbytes < LEAST || *table_nbytes > file_nbytes ||
        *table_nbytes > CKPT_MAX_FRAME_TABLE_NBYTES)
        return BAD("'%s': a frame table of %llu bytes in a file of %llu", path,
                   (unsigned long long)*table_nbytes, (unsigned long long)file_nbytes);
    return FSDP_OK;
}

/* The row at p, with `left` bytes of rows from there; its length, 0 if it is damaged. */
static size_t row_parse(struct ckpt_codec_chunk *out, const uint8_t *p, size_t left)
{
    if (left < ROW_NBYTES)
        return 0;
    out->nbytes = (uint32_t)get(p, 4);
    out->crc32c = (uint32_t)get(p + 4, 4);
    out->planes = (uint32_t)get(p + 8, 4);
    if (!out->nbytes || out->nbytes > CKPT_CODEC_CHUNK_NBYTES || !out->planes ||
        out->planes > CKPT_CODEC_MAX_PLANES || (out->planes & (out->planes - 1)) ||
        left < ROW_NBYTES + 4 * (size_t)out->planes)
        return 0;
    p += ROW_NBYTES;
    for (uint32_t k = 0; k < out->planes; k++, p += 4) {
        out->stored[k] = (uint32_t)get(p, 4);
        if (!out->stored[k] || out->stored[k] > ckpt_codec_bound(CKPT_CODEC_CHUNK_NBYTES))
            return 0;
    }
    return ROW_NBYTES + 4 * (size_t)out->planes;
}

static int rows_parse(struct ckpt_codec_table *out, const uint8_t *p, size_t nbytes,
                      const char *path, struct fsdp_err *err)
{
    uint64_t pos = 0, stored_pos = 0;

    for (size_t i = 0; i < out->nchunks; i++) {
        struct ckpt_codec_chunk *chunk = &out->chunks[i];
        size_t row = row_parse(chunk, p, nbytes);
        if (!row)
            return BAD("'%s': row %zu of its frame table is damaged", path, i);
        chunk->pos = pos;
        chunk->stored_pos = stored_pos;
        pos += chunk->nbytes; /* at most 2^24 rows of 2^20 bytes */
        for (uint32_t k = 0; k < chunk->planes; k++)
            stored_pos += chunk->stored[k];
        p += row;
        nbytes -= row;
    }
    if (nbytes || pos != out->nbytes || stored_pos != out->stored_nbytes)
        return BAD("'%s': its frame table does not fit: chunks of %llu bytes in %llu instead of "
                   "%llu in %llu",
                   path, (unsigned long long)pos, (unsigned long long)stored_pos,
                   (unsigned long long)out->nbytes, (unsigned long long)out->stored_nbytes);
    return FSDP_OK;
}

int ckpt_codec_table_parse(struct ckpt_codec_table *out, const void *data, size_t nbytes,
                           uint64_t file_nbytes, const char *path, struct fsdp_err *err)
{
    const uint8_t *p = data;
    uint64_t table_nbytes;

    memset(out, 0, sizeof *out);
    if (nbytes < CKPT_CODEC_TAIL_NBYTES)
        return BAD("'%s' has too few bytes for a frame table", path);
    const uint8_t *tail = p + nbytes - CKPT_CODEC_TAIL_NBYTES;
    FSDP_TRY(ckpt_codec_tail_parse(&table_nbytes, tail, file_nbytes, path, err));
    if (table_nbytes != nbytes || get(p, 4) != skippable_magic ||
        get(p + 4, 4) != nbytes - FRAME_NBYTES)
        return BAD("'%s': its frame table does not begin where its end says", path);
    if (ckpt_crc32c(0, p, nbytes - CKPT_CODEC_TAIL_NBYTES) != get(tail + 8, 4))
        return BAD("'%s': the checksum of its frame table is wrong", path);
    size_t rows_nbytes = nbytes - FRAME_NBYTES - FIXED_NBYTES - CKPT_CODEC_TAIL_NBYTES;
    out->nbytes = get(p + 8, 8);
    out->header_nbytes = get(p + 16, 8);
    uint64_t nchunks = get(p + 24, 8);
    out->stored_nbytes = file_nbytes - nbytes;
    if (out->header_nbytes > out->nbytes || nchunks > rows_nbytes / (ROW_NBYTES + 4))
        return BAD("'%s': its frame table contradicts itself", path);
    out->nchunks = (size_t)nchunks;
    out->chunks = fsdp_alloc(out->nchunks, sizeof *out->chunks, "frame table", err);
    if (!out->chunks)
        return FSDP_ENOMEM;
    int rc = rows_parse(out, p + FRAME_NBYTES + FIXED_NBYTES, rows_nbytes, path, err);
    if (rc)
        ckpt_codec_table_free(out);
    return rc;
}

int ckpt_codec_table_format(char **out, size_t *out_nbytes, const struct ckpt_codec_table *table,
                            struct fsdp_err *err)
{
    size_t nbytes = FRAME_NBYTES + FIXED_NBYTES + CKPT_CODEC_TAIL_NBYTES;
    for (size_t i = 0; i < table->nchunks; i++)
        nbytes += ROW_NBYTES + 4 * (size_t)table->chunks[i].planes;
    if (nbytes > CKPT_MAX_FRAME_TABLE_NBYTES)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "%zu chunks are too many for one compressed file", table->nchunks);
    uint8_t *data = fsdp_alloc(nbytes, 1, "frame table", err), *p = data;
    if (!data)
        return FSDP_ENOMEM;
    p = put_number(put_number(p, skippable_magic, 4), nbytes - FRAME_NBYTES, 4);
    p = put_number(put_number(put_number(p, table->nbytes, 8), table->header_nbytes, 8),
                   table->nchunks, 8);
    for (size_t i = 0; i < table->nchunks; i++) {
        const struct ckpt_codec_chunk *chunk = &table->chunks[i];
        p = put_number(put_number(put_number(p, chunk->nbytes, 4), chunk->crc32c, 4), chunk->planes,
                       4);
        for (uint32_t k = 0; k < chunk->planes; k++)
            p = put_number(p, chunk->stored[k], 4);
    }
    uint32_t crc = ckpt_crc32c(0, data, (size_t)(p - data));
    p = put_number(put_number(put_number(p, nbytes, 8), crc, 4), VERSION, 4);
    memcpy(p, tail_magic, sizeof tail_magic);
    *out = (char *)data;
    *out_nbytes = nbytes;
    return FSDP_OK;
}
