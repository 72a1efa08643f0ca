/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One chunk: its elements' bytes are dealt into planes, each plane is a zstd frame.
 *
 *      elements (bf16)   a0 b0 | a1 b1 | a2 b2 ...
 *      plane 0, low      a0 a1 a2 ...               mantissas: noise, stored as they are
 *      plane 1, high     b0 b1 b2 ...               signs and exponents: a third of their size
 *
 * Level 1 with ZSTD_fast, minMatch 7 and hashLog 6 looks for hardly any matches and spends its time
 * on Huffman codes, which is all there is to gain in weights: smaller and faster than levels 1 to 9
 * are. Planes that look like noise are not even tried: their frames hold raw blocks, from which a
 * reader takes the bytes without a copy.
 */
#include <string.h>

#if HAVE_ZSTD
#include <zstd.h>
#endif

#include "ckpt/ckpt.h"
#include "zst.h"

bool ckpt_codec_is_name(const char *path)
{
    static const char end[] = ".safetensors" CKPT_CODEC_SUFFIX;
    size_t len = strlen(path);
    return len >= sizeof end - 1 && !strcmp(path + len - (sizeof end - 1), end);
}

#if !HAVE_ZSTD

int ckpt_codec_check(const char *path, struct fsdp_err *err)
{
    return fsdp_err_set(
        err, FSDP_EUNSUPPORTED,
        "'%s': this build has no zstd (it was made with WITH_ZSTD=0, or libzstd was "
        "missing), so it neither reads nor writes compressed files",
        path);
}

int ckpt_codec_worker_create(struct ckpt_codec_worker **out, struct fsdp_err *err)
{
    *out = NULL;
    return ckpt_codec_check("a compressed file", err);
}

void ckpt_codec_worker_destroy(struct ckpt_codec_worker *worker)
{
    (void)worker;
}

size_t ckpt_codec_bound(size_t nbytes)
{
    return nbytes;
}

int ckpt_codec_encode(void *dst, size_t dst_nbytes, struct ckpt_codec_chunk *chunk, const void *src,
                      struct ckpt_codec_worker *worker, struct fsdp_err *err)
{
    (void)dst, (void)dst_nbytes, (void)chunk, (void)src, (void)worker;
    return ckpt_codec_check("a compressed file", err);
}

int ckpt_codec_decode(void *dst, const struct ckpt_codec_chunk *chunk, const void *src,
                      const char *path, struct ckpt_codec_worker *worker, struct fsdp_err *err)
{
    (void)dst, (void)chunk, (void)src, (void)worker;
    return ckpt_codec_check(path, err);
}

#else

int ckpt_codec_check(const char *path, struct fsdp_err *err)
{
    (void)path, (void)err;
    return FSDP_OK;
}

struct ckpt_codec_worker {
    ZSTD_CCtx *compressor; /* made when first needed */
    ZSTD_DCtx *decompressor;
    uint8_t *planes; /* [CKPT_CODEC_CHUNK_NBYTES] */
};

int ckpt_codec_worker_create(struct ckpt_codec_worker **out, struct fsdp_err *err)
{
    struct ckpt_codec_worker *w = fsdp_alloc(1, sizeof *w, "codec", err);
    if (w && (w->planes = fsdp_alloc(CKPT_CODEC_CHUNK_NBYTES, 1, "codec planes", err))) {
        *out = w;
        return FSDP_OK;
    }
    fsdp_free(w);
    return FSDP_ENOMEM;
}

void ckpt_codec_worker_destroy(struct ckpt_codec_worker *w)
{
    if (!w)
        return;
    ZSTD_freeCCtx(w->compressor);
    ZSTD_freeDCtx(w->decompressor);
    fsdp_free(w->planes);
    fsdp_free(w);
}

/* Bytes of a plane: the last one has what does not fill an element. */
static size_t plane_nbytes(const struct ckpt_codec_chunk *chunk, uint32_t plane)
{
    size_t each = chunk->nbytes / chunk->planes;
    return plane + 1 == chunk->planes ? each + chunk->nbytes % chunk->planes : each;
}

/* ---- planes ---------------------------------------------------------------------------------- */

/* The loops have the number of planes as a constant, so that the compiler makes shuffles of them.
 */
#define SPLIT(NPLANES)                                                                             \
    for (size_t i = 0; i < nelem; i++)                                                             \
        for (int k = 0; k < (NPLANES); k++)                                                        \
    dst[(size_t)k * nelem + i] = src[i * (NPLANES) + (size_t)k]

static void split_planes(uint8_t *restrict dst, const uint8_t *restrict src, size_t nelem,
                         uint32_t planes)
{
    switch (planes) {
    case 2:
        SPLIT(2);
        break;
    case 4:
        SPLIT(4);
        break;
    default:
        SPLIT(8);
    }
}

#define JOIN(NPLANES)                                                                              \
    for (size_t i = 0; i < nelem; i++)                                                             \
        for (int k = 0; k < (NPLANES); k++)                                                        \
    dst[i * (NPLANES) + (size_t)k] = src[k][i]

static void join2(uint8_t *restrict dst, const uint8_t *restrict low, const uint8_t *restrict high,
                  size_t nelem)
{
    for (size_t i = 0; i < nelem; i++) {
        dst[2 * i] = low[i];
        dst[2 * i + 1] = high[i];
    }
}

static void join4(uint8_t *restrict dst, const uint8_t *restrict a, const uint8_t *restrict b,
                  const uint8_t *restrict c, const uint8_t *restrict d, size_t nelem)
{
    for (size_t i = 0; i < nelem; i++) {
        dst[4 * i] = a[i];
        dst[4 * i + 1] = b[i];
        dst[4 * i + 2] = c[i];
        dst[4 * i + 3] = d[i];
    }
}

static void join(uint8_t *restrict dst, const uint8_t *const *src, size_t nelem, uint32_t planes)
{
    if (planes == 2)
        join2(dst, src[0], src[1], nelem);
    else if (planes == 4)
        join4(dst, src[0], src[1], src[2], src[3], nelem);
    else
        JOIN(8);
}

/* ---- frames of raw blocks -------------------------------------------------------------------- */

/* RFC 8878: magic, descriptor (single segment, 4 bytes of content size), content size; then blocks
 * of at most 128 KiB, each with a header of 3 bytes: last | type << 1 | nbytes << 3. */
enum { RAW_HEADER = 9, RAW_BLOCK_HEADER = 3, RAW_BLOCK = 128 << 10 };
static const uint8_t raw_magic[5] = {0x28, 0xb5, 0x2f, 0xfd, 0xa0};

static size_t raw_frame_nbytes(size_t nbytes)
{
    size_t nblocks = nbytes ? (nbytes + RAW_BLOCK - 1) / RAW_BLOCK : 1;
    return RAW_HEADER + nblocks * RAW_BLOCK_HEADER + nbytes;
}

static uint32_t raw_block_header(size_t left)
{
    size_t nbytes = left < RAW_BLOCK ? left : RAW_BLOCK;
    return (uint32_t)(left <= RAW_BLOCK) | (uint32_t)nbytes << 3;
}

static size_t raw_frame_make(uint8_t *dst, const uint8_t *src, size_t nbytes)
{
    uint8_t *p = dst;
    memcpy(p, raw_magic, sizeof raw_magic);
    for (int i = 0; i < 4; i++)
        p[5 + i] = (uint8_t)(nbytes >> 8 * i);
    p += RAW_HEADER;
    for (size_t left = nbytes; left || p == dst + RAW_HEADER;) {
        size_t part = left < RAW_BLOCK ? left : RAW_BLOCK;
        uint32_t header = raw_block_header(left);
        for (int i = 0; i < RAW_BLOCK_HEADER; i++)
            *p++ = (uint8_t)(header >> 8 * i);
        memcpy(p, src, part);
        p += part;
        src += part;
        left -= part;
    }
    return (size_t)(p - dst);
}

/* Is this a frame as raw_frame_make makes it, of nbytes of content? */
static bool raw_frame_is(const uint8_t *frame, size_t frame_nbytes, size_t nbytes)
{
    if (frame_nbytes != raw_frame_nbytes(nbytes) || memcmp(frame, raw_magic, sizeof raw_magic))
        return false;
    for (int i = 0; i < 4; i++)
        if (frame[5 + i] != (uint8_t)(nbytes >> 8 * i))
            return false;
    const uint8_t *p = frame + RAW_HEADER;
    for (size_t left = nbytes, part; left; left -= part, p += RAW_BLOCK_HEADER + part) {
        uint32_t header = raw_block_header(left);
        part = left < RAW_BLOCK ? left : RAW_BLOCK;
        for (int i = 0; i < RAW_BLOCK_HEADER; i++)
            if (p[i] != (uint8_t)(header >> 8 * i))
                return false;
    }
    return nbytes > 0;
}

/* Does a sample of the bytes use all 256 values about equally? The sum of the squared counts of N
 * bytes of noise is N + N^2/256; 4 % more means about 7.95 bits a byte, nothing worth the time. */
static bool looks_like_noise(const uint8_t *src, size_t nbytes)
{
    enum { NSAMPLES = 16, SAMPLE = 1024 };
    uint32_t counts[4][256] = {{0}};
    uint64_t sum = 0, total = NSAMPLES * SAMPLE;

    if (nbytes < total)
        return false;
    size_t stride = (nbytes - SAMPLE) / (NSAMPLES - 1);
    for (size_t s = 0; s < NSAMPLES; s++) {
        const uint8_t *p = src + s * stride;
        for (size_t i = 0; i < SAMPLE; i += 4)
            for (size_t k = 0; k < 4; k++)
                counts[k][p[i + k]]++;
    }
    for (int v = 0; v < 256; v++) {
        uint64_t count = counts[0][v] + counts[1][v] + counts[2][v] + counts[3][v];
        sum += count * count;
    }
    return sum * 100 < (total + total * total / 256) * 104;
}

/* ---- compressing ----------------------------------------------------------------------------- */

size_t ckpt_codec_bound(size_t nbytes)
{
    /* Of the planes together; small ones have an overhead each. */
    return ZSTD_COMPRESSBOUND(nbytes) + CKPT_CODEC_MAX_PLANES * (ZSTD_COMPRESSBOUND(8) + 64);
}

static int compressor_make(struct ckpt_codec_worker *w, struct fsdp_err *err)
{
    static const struct {
        ZSTD_cParameter parameter;
        int value;
    } set[] = {{ZSTD_c_compressionLevel, 1},
               {ZSTD_c_strategy, ZSTD_fast},
               {ZSTD_c_minMatch, 7},
               {ZSTD_c_hashLog, 6}};

    if (!(w->compressor = ZSTD_createCCtx()))
        return fsdp_err_set(err, FSDP_ENOMEM, "codec: out of memory");
    for (size_t i = 0; i < sizeof set / sizeof set[0]; i++) {
        size_t rc = ZSTD_CCtx_setParameter(w->compressor, set[i].parameter, set[i].value);
        if (ZSTD_isError(rc))
            return fsdp_err_set(err, FSDP_EINTERNAL, "zstd: %s", ZSTD_getErrorName(rc));
    }
    return FSDP_OK;
}

int ckpt_codec_encode(void *dst, size_t dst_nbytes, struct ckpt_codec_chunk *chunk, const void *src,
                      struct ckpt_codec_worker *w, struct fsdp_err *err)
{
    const uint8_t *plane = src;
    uint8_t *out = dst;
    size_t nelem = chunk->nbytes / chunk->planes, tail = chunk->nbytes % chunk->planes;

    if (!w->compressor)
        FSDP_TRY(compressor_make(w, err));
    if (chunk->planes > 1) {
        split_planes(w->planes, src, nelem, chunk->planes);
        memcpy(w->planes + nelem * chunk->planes, (const char *)src + nelem * chunk->planes, tail);
        plane = w->planes;
    }
    chunk->crc32c = ckpt_crc32c(0, src, chunk->nbytes);
    for (uint32_t k = 0; k < chunk->planes; k++) {
        size_t nbytes = plane_nbytes(chunk, k), made = raw_frame_nbytes(nbytes);
        if (looks_like_noise(plane, nbytes) && made <= dst_nbytes)
            raw_frame_make(out, plane, nbytes);
        else if (ZSTD_isError(made = ZSTD_compress2(w->compressor, out, dst_nbytes, plane, nbytes)))
            return fsdp_err_set(err, FSDP_EINTERNAL, "zstd: %s", ZSTD_getErrorName(made));
        chunk->stored[k] = (uint32_t)made;
        out += made;
        dst_nbytes -= made;
        plane += nbytes;
    }
    return FSDP_OK;
}

/* ---- decompressing --------------------------------------------------------------------------- */

static int decompress(uint8_t *dst, size_t nbytes, const uint8_t *frame, size_t frame_nbytes,
                      const struct ckpt_codec_chunk *chunk, const char *path,
                      struct ckpt_codec_worker *w, struct fsdp_err *err)
{
    if (!w->decompressor && !(w->decompressor = ZSTD_createDCtx()))
        return fsdp_err_set(err, FSDP_ENOMEM, "codec: out of memory");
    size_t got = ZSTD_decompressDCtx(w->decompressor, dst, nbytes, frame, frame_nbytes);
    if (ZSTD_isError(got))
        return fsdp_err_set(err, FSDP_ECORRUPT, "'%s': bytes from %llu cannot be decompressed: %s",
                            path, (unsigned long long)chunk->stored_pos, ZSTD_getErrorName(got));
    if (got != nbytes)
        return fsdp_err_set(err, FSDP_ECORRUPT,
                            "'%s': bytes from %llu decompress to %zu bytes instead of %zu", path,
                            (unsigned long long)chunk->stored_pos, got, nbytes);
    return FSDP_OK;
}

/* A plane whose bytes can be taken in steps of RAW_BLOCK. */
struct plane {
    const uint8_t *data;
    size_t stride; /* from one step to the next */
};

static void join_planes(uint8_t *dst, const struct plane *planes, size_t nelem, uint32_t nplanes)
{
    for (size_t begin = 0, step = 0; begin < nelem; begin += RAW_BLOCK, step++) {
        const uint8_t *src[CKPT_CODEC_MAX_PLANES];
        for (uint32_t k = 0; k < nplanes; k++)
            src[k] = planes[k].data + step * planes[k].stride;
        join(dst + begin * nplanes, src, nelem - begin < RAW_BLOCK ? nelem - begin : RAW_BLOCK,
             nplanes);
    }
}

static int decode_planes(uint8_t *dst, const struct ckpt_codec_chunk *chunk, const uint8_t *src,
                         const char *path, struct ckpt_codec_worker *w, struct fsdp_err *err)
{
    struct plane planes[CKPT_CODEC_MAX_PLANES];
    uint32_t nplanes = chunk->planes;
    size_t nelem = chunk->nbytes / nplanes, tail = chunk->nbytes % nplanes;
    uint8_t *room = w->planes;

    for (uint32_t k = 0; k < nplanes; k++) {
        size_t nbytes = plane_nbytes(chunk, k);
        /* Not for one with a tail, which may not lie in one step. */
        if ((!tail || k + 1 < nplanes) && raw_frame_is(src, chunk->stored[k], nbytes)) {
            planes[k] =
                (struct plane){src + RAW_HEADER + RAW_BLOCK_HEADER, RAW_BLOCK + RAW_BLOCK_HEADER};
        } else {
            FSDP_TRY(decompress(room, nbytes, src, chunk->stored[k], chunk, path, w, err));
            planes[k] = (struct plane){room, RAW_BLOCK};
            room += nbytes;
        }
        src += chunk->stored[k];
    }
    join_planes(dst, planes, nelem, nplanes);
    if (tail)
        memcpy(dst + nelem * nplanes, planes[nplanes - 1].data + nelem, tail);
    return FSDP_OK;
}

int ckpt_codec_decode(void *dst, const struct ckpt_codec_chunk *chunk, const void *src,
                      const char *path, struct ckpt_codec_worker *w, struct fsdp_err *err)
{
    if (chunk->planes == 1)
        FSDP_TRY(decompress(dst, chunk->nbytes, src, chunk->stored[0], chunk, path, w, err));
    else
        FSDP_TRY(decode_planes(dst, chunk, src, path, w, err));
    uint32_t crc = ckpt_crc32c(0, dst, chunk->nbytes);
    if (crc != chunk->crc32c)
        return fsdp_err_set(err, FSDP_ECORRUPT,
                            "'%s': bytes from %llu were changed: what they decompress to has "
                            "checksum %08x instead of %08x",
                            path, (unsigned long long)chunk->stored_pos, (unsigned)crc,
                            (unsigned)chunk->crc32c);
    return FSDP_OK;
}

#endif
