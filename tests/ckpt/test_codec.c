/* SPDX-License-Identifier: Apache-2.0 */
/* Compressed data files: planes and frames, the frame table, writing from several threads, reading
 * ranges, and damage. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if HAVE_ZSTD
#include <zstd.h>
#endif

#include "../../ckpt/file/zst.h"
#include "../../ckpt/util/limits.h"
#include "../../ckpt/file/safetensors.h"
#include "../../ckpt/util/workers.h"
#include "ckpt/ckpt.h"
#include "tap.h"

static struct fsdp_err err;

#if HAVE_ZSTD

static uint64_t seed = 1;

static uint32_t noise(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 33);
}

/* About normal, as weights are: the high bytes repeat, the low ones are noise. */
static void weights(uint8_t *dst, size_t nbytes, uint32_t width)
{
    for (size_t i = 0; i < nbytes; i++)
        dst[i] = (uint8_t)noise();
    for (size_t i = 0; i + width <= nbytes; i += width) {
        float x = 0.02f * ((float)(noise() % 4096) + (float)(noise() % 4096) - 4096.0f) / 4096.0f;
        uint16_t high = fsdp_f32_to_bf16(x);
        if (width >= 2)
            memcpy(dst + i + width - 2, &high, 2);
    }
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* Every plane must be a frame for any zstd decoder, whose bytes are the plane's. */
static bool frames_are_zstd(const struct ckpt_codec_chunk *chunk, const char *frames,
                            const uint8_t *src)
{
    uint8_t *plane = malloc(CKPT_CODEC_CHUNK_NBYTES);
    bool good = true;
    size_t nelem = chunk->nbytes / chunk->planes;
    for (uint32_t k = 0; k < chunk->planes; k++) {
        size_t got = ZSTD_decompress(plane, CKPT_CODEC_CHUNK_NBYTES, frames, chunk->stored[k]);
        size_t want = k + 1 == chunk->planes ? nelem + chunk->nbytes % chunk->planes : nelem;
        good &= !ZSTD_isError(got) && got == want;
        for (size_t i = 0; good && i < nelem; i++)
            good &= plane[i] == src[i * chunk->planes + k];
        frames += chunk->stored[k];
    }
    free(plane);
    return good;
}

static void test_chunks(void)
{
    static const size_t sizes[] = {1, 2, 7, 8, 4096, 65537, 262144, 262147, 1 << 20};
    uint8_t *src = malloc(1 << 20), *back = malloc(1 << 20);
    size_t bound = ckpt_codec_bound(CKPT_CODEC_CHUNK_NBYTES);
    char *frames = malloc(bound);
    struct ckpt_codec_worker *worker = NULL;
    int rc = ckpt_codec_worker_create(&worker, &err);

    ok(rc == FSDP_OK, "a codec is made: %s", err.text);
    for (uint32_t planes = 1; planes <= CKPT_CODEC_MAX_PLANES; planes *= 2) {
        bool same = true, zstd = true;
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            for (int kind = 0; kind < 3; kind++) {
                struct ckpt_codec_chunk chunk = {.nbytes = (uint32_t)sizes[i], .planes = planes};
                if (kind == 0)
                    memset(src, 0, sizes[i]);
                else
                    weights(src, sizes[i], kind == 1 ? planes : 1);
                memset(back, 0xee, 1 << 20);
                rc = ckpt_codec_encode(frames, bound, &chunk, src, worker, &err);
                if (rc == FSDP_OK)
                    rc = ckpt_codec_decode(back, &chunk, frames, "x", worker, &err);
                if (rc || memcmp(src, back, sizes[i])) {
                    diag("%u planes, %zu bytes, kind %d: %d %s", planes, sizes[i], kind, rc,
                         err.text);
                    same = false;
                }
                zstd &= frames_are_zstd(&chunk, frames, src);
            }
        }
        ok(same, "%u planes: what is decoded is what was encoded", planes);
        ok(zstd, "%u planes: each is a zstd frame", planes);
    }

    struct ckpt_codec_chunk chunk = {.nbytes = 1 << 20, .planes = 2};
    weights(src, 1 << 20, 2);
    ckpt_codec_encode(frames, bound, &chunk, src, worker, &err);
    size_t stored = chunk.stored[0] + (size_t)chunk.stored[1];
    ok(stored < (1 << 20) * 70 / 100, "bf16 weights shrink to %zu of 1048576 bytes", stored);
    int missed = 0;
    for (size_t at = 0; at < stored; at += 997) {
        frames[at] ^= 0x10;
        missed += ckpt_codec_decode(back, &chunk, frames, "file", worker, &err) != FSDP_ECORRUPT &&
                  memcmp(back, src, 1 << 20);
        frames[at] ^= 0x10;
    }
    ok(missed == 0, "a flipped bit anywhere in the frames is noticed");
    ckpt_codec_worker_destroy(worker);
    free(src);
    free(back);
    free(frames);
}

/* ---- files ----------------------------------------------------------------------------------- */

struct sample {
    char *bytes; /* the safetensors file */
    size_t nbytes, header_nbytes;
};

static void sample_make(struct sample *s)
{
    static const struct {
        const char *name;
        enum fsdp_dtype dtype;
        uint64_t nelem;
    } tensors[] = {
        {"ids", FSDP_I64, 1000},        {"master", FSDP_F32, 700000}, {"bias", FSDP_BF16, 100},
        {"weight", FSDP_BF16, 2500000}, {"norm", FSDP_BF16, 300},     {"empty", FSDP_BF16, 0},
        {"small", FSDP_F16, 300},       {"mask", FSDP_BOOL, 1234567}, {"bytes", FSDP_U8, 3}};
    enum { NTENSORS = sizeof tensors / sizeof tensors[0] };
    struct ckpt_st_entry entries[NTENSORS];
    char *header;

    memset(entries, 0, sizeof entries);
    for (int i = 0; i < NTENSORS; i++) {
        entries[i].name = tensors[i].name;
        entries[i].dtype = (uint8_t)tensors[i].dtype;
        entries[i].ndim = 1;
        entries[i].shape = &tensors[i].nelem;
    }
    if (ckpt_st_format(&header, &s->header_nbytes, entries, NTENSORS, false, &err))
        abort();
    s->nbytes = (size_t)(entries[NTENSORS - 1].pos + entries[NTENSORS - 1].nbytes);
    s->bytes = malloc(s->nbytes);
    memcpy(s->bytes, header, s->header_nbytes);
    for (int i = 0; i < NTENSORS; i++)
        weights((uint8_t *)s->bytes + entries[i].pos, entries[i].nbytes,
                (uint32_t)fsdp_dtype_nbytes(entries[i].dtype));
    fsdp_free(header);
}

struct putter {
    const struct sample *s;
    struct ckpt_encoder *encoder;
    size_t block;
    atomic_size_t next;
};

/* Blocks in order, as a plan hands them out, of a size that fits nothing. */
static int put_blocks(struct ckpt_workers *workers, int index, struct fsdp_err *error)
{
    struct putter *p = workers->ctx;
    (void)index;
    for (;;) {
        size_t pos = p->s->header_nbytes + atomic_fetch_add(&p->next, 1) * p->block;
        if (pos >= p->s->nbytes || ckpt_workers_stopped(workers))
            return FSDP_OK;
        size_t left = p->s->nbytes - pos;
        FSDP_TRY(ckpt_encoder_put(p->encoder, p->s->bytes + pos, left < p->block ? left : p->block,
                                  pos, error));
    }
}

static int file_write(struct ckpt_encoder_result *result, const struct sample *s, const char *path,
                      size_t block, int nthreads, int window, int nhelpers)
{
    const struct ckpt_store_ops *ops;
    struct ckpt_store_file *file = NULL;
    struct ckpt_encoder_args args = {s->bytes, s->header_nbytes, s->nbytes, window, nhelpers};
    struct putter p = {.s = s, .block = block};

    FSDP_TRY(ckpt_store_of(&ops, path, &err));
    FSDP_TRY(ckpt_store_open(&file, ops, path, CKPT_STORE_CREATE, &err));
    int rc = ckpt_encoder_create(&p.encoder, file, path, &args, &err);
    if (rc == FSDP_OK)
        rc = ckpt_workers_run(nthreads, put_blocks, &p, &err);
    if (rc == FSDP_OK)
        rc = ckpt_encoder_finish(result, p.encoder, &err);
    ckpt_encoder_destroy(p.encoder);
    int rc_close = ckpt_store_close(file, rc ? NULL : &err);
    return rc ? rc : rc_close;
}

static bool ranges_equal(struct ckpt_data *data, const struct sample *s)
{
    char *got = malloc(s->nbytes);
    bool same = true;
    for (int i = 0; i < 200; i++) {
        size_t pos = noise() % (s->nbytes + 1), most = i % 3 ? 5000 : s->nbytes;
        size_t nbytes = noise() % ((s->nbytes - pos < most ? s->nbytes - pos : most) + 1);
        int rc = ckpt_data_pread(data, got, nbytes, pos, &err);
        if (rc || memcmp(got, s->bytes + pos, nbytes)) {
            diag("%zu from %zu: %d %s", nbytes, pos, rc, err.text);
            same = false;
        }
    }
    same &= ckpt_data_pread(data, got, s->nbytes, 0, &err) == FSDP_OK &&
            !memcmp(got, s->bytes, s->nbytes);
    free(got);
    return same;
}

struct reading {
    struct ckpt_data *data;
    const struct sample *s;
    atomic_int nbad;
};

static int read_ranges(struct ckpt_workers *workers, int index, struct fsdp_err *error)
{
    struct reading *r = workers->ctx;
    char got[40000];
    for (size_t pos = (size_t)index * 997; pos + sizeof got < r->s->nbytes; pos += 100003) {
        FSDP_TRY(ckpt_data_pread(r->data, got, sizeof got, pos, error));
        atomic_fetch_add(&r->nbad, memcmp(got, r->s->bytes + pos, sizeof got) != 0);
    }
    return FSDP_OK;
}

static void test_files(const struct sample *s)
{
    static const struct {
        size_t block;
        int nthreads, window, nhelpers;
    } ways[] = {{8 << 20, 1, 2, 0}, {300001, 3, 2, 0}, {3000001, 4, 6, 0}, {70001, 1, 4, 2}};
    struct ckpt_encoder_result first = {0};
    const struct ckpt_store_ops *ops;
    struct ckpt_codec_pool *pool;
    char path[64];

    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        struct ckpt_encoder_result result;
        snprintf(path, sizeof path, "way-%zu.safetensors.zst", i);
        int rc = file_write(&result, s, path, ways[i].block, ways[i].nthreads, ways[i].window,
                            ways[i].nhelpers);
        ok(rc == FSDP_OK, "%d threads, %d helpers, %d slots, blocks of %zu: %s", ways[i].nthreads,
           ways[i].nhelpers, ways[i].window, ways[i].block, rc ? err.text : "written");
        if (i == 0)
            first = result;
        ok(!memcmp(&first, &result, sizeof first), "the same bytes, however they were put");
    }
    ok(first.crc32c == ckpt_crc32c(0, s->bytes, s->nbytes), "the checksum of what was put");
    ok(ckpt_store_of(&ops, path, &err) == FSDP_OK && !ckpt_codec_pool_create(&pool, &err), "pool");

    struct ckpt_data *data = NULL;
    uint64_t nbytes;
    uint32_t crc;
    int rc = ckpt_store_copy(&nbytes, &crc, ops, path, NULL, NULL, false, &err);
    ok(rc == FSDP_OK && nbytes == first.stored_nbytes && crc == first.stored_crc32c,
       "size and checksum of the stored file");
    rc = ckpt_data_open(&data, ops, path, pool, &err);
    ok(rc == FSDP_OK && ckpt_data_nbytes(data) == s->nbytes, "opened: %s", rc ? err.text : "");
    ok(ranges_equal(data, s), "any range is read");
    struct reading reading = {data, s, 0};
    rc = ckpt_workers_run(4, read_ranges, &reading, &err);
    ok(rc == FSDP_OK && reading.nbad == 0, "by four threads at a time");
    char byte;
    ok(ckpt_data_pread(data, &byte, 1, s->nbytes, &err) == FSDP_ECORRUPT, "beyond its end: %s",
       err.text);
    ckpt_data_close(data);
    ckpt_codec_pool_destroy(pool);
}

/* A frame anywhere is skipped as the table says; the table is proved. */
static void test_table(void)
{
    const char *path = "way-0.safetensors.zst";
    FILE *f = fopen(path, "rb");
    fseek(f, 0, SEEK_END);
    size_t file_nbytes = (size_t)ftell(f);
    char *raw = malloc(file_nbytes);
    rewind(f);
    bool whole = fread(raw, 1, file_nbytes, f) == file_nbytes;
    fclose(f);

    struct ckpt_codec_table table;
    uint64_t nbytes = 0;
    char *tail = raw + file_nbytes - CKPT_CODEC_TAIL_NBYTES;
    ok(whole && !ckpt_codec_tail_parse(&nbytes, tail, file_nbytes, path, &err), "the tail is read");
    char *begin = raw + file_nbytes - nbytes;
    ok(!ckpt_codec_table_parse(&table, begin, nbytes, file_nbytes, path, &err),
       "the frame table is read: %s", err.text);
    bool cut = false;
    for (size_t i = 0; i < table.nchunks; i++)
        cut |= table.chunks[i].pos == table.header_nbytes;
    ok(cut, "data begins a chunk, so that the header is read alone");

    char *again;
    size_t again_nbytes;
    int rc = ckpt_codec_table_format(&again, &again_nbytes, &table, &err);
    ok(rc == FSDP_OK && again_nbytes == nbytes && !memcmp(again, begin, nbytes),
       "formatted again, it is the same");
    fsdp_free(again);
    ckpt_codec_table_free(&table);

    int accepted = 0;
    for (size_t at = 0; at < nbytes; at++) {
        begin[at] ^= 1;
        if (!ckpt_codec_table_parse(&table, begin, nbytes, file_nbytes, path, &err)) {
            accepted++;
            ckpt_codec_table_free(&table);
        }
        begin[at] ^= 1;
    }
    ok(accepted == 0, "a flipped bit anywhere in it is noticed");
    ok(ckpt_codec_table_parse(&table, begin, nbytes, file_nbytes + 1, path, &err) == FSDP_ECORRUPT,
       "a file of another size: %s", err.text);
    ok(ckpt_codec_tail_parse(&nbytes, raw, file_nbytes, path, &err) == FSDP_ECORRUPT,
       "no table: %s", err.text);
    free(raw);
}

static void test_damage(const struct sample *s)
{
    const struct ckpt_store_ops *ops = &ckpt_store_posix;
    struct ckpt_codec_pool *pool;
    struct ckpt_data *data = NULL;
    char *got = malloc(s->nbytes);
    const char *path = "way-1.safetensors.zst";

    FILE *f = fopen(path, "r+b");
    fseek(f, 100000, SEEK_SET);
    int was = fgetc(f);
    fseek(f, 100000, SEEK_SET);
    fputc(was ^ 4, f);
    fclose(f);
    ckpt_codec_pool_create(&pool, &err);
    ok(ckpt_data_open(&data, ops, path, pool, &err) == FSDP_OK, "a damaged frame is not opened");
    ok(ckpt_data_pread(data, got, s->nbytes, 0, &err) == FSDP_ECORRUPT, "but found in reading: %s",
       err.text);
    ok(ckpt_data_pread(data, got, 1000, s->nbytes - 1000, &err) == FSDP_OK &&
           !memcmp(got, s->bytes + s->nbytes - 1000, 1000),
       "the other chunks are read");
    ckpt_data_close(data);

    path = "way-2.safetensors.zst";
    ok(truncate(path, 1000000) == 0 &&
           ckpt_data_open(&data, ops, path, pool, &err) == FSDP_ECORRUPT,
       "a truncated file: %s", err.text);
    ckpt_codec_pool_destroy(pool);
    free(got);
}

/* The store fails at every call, memory at every allocation: an error, no hang, no crash. */
static void test_faults(const struct sample *s)
{
    struct ckpt_encoder_result result;
    int nfailed = 0, nstore = 0, nalloc = 0;
    for (uint64_t nth = 1; nth < 40; nth++) {
        unlink("fault.safetensors.zst");
        ckpt_store_fault_at(nth, nth % 2 ? CKPT_FAULT_FAIL : CKPT_FAULT_NOSPACE);
        int rc = file_write(&result, s, "fault.safetensors.zst", 500000, 2, 3, (int)(nth % 3));
        ckpt_store_fault_at(0, CKPT_FAULT_NONE);
        nstore += rc == (nth % 2 ? FSDP_EIO : FSDP_ENOSPC);
        nfailed += rc != FSDP_OK;
    }
    ok(nstore == nfailed && nfailed >= 15, "%d failing store calls give their error", nstore);
    for (uint64_t nth = 1; nth < 30; nth++) {
        unlink("fault.safetensors.zst");
        fsdp_alloc_fail_at(nth);
        int rc = file_write(&result, s, "fault.safetensors.zst", 500000, 2, 3, (int)(nth % 3));
        fsdp_alloc_fail_at(0);
        nalloc += rc == FSDP_ENOMEM;
    }
    ok(nalloc >= 20, "%d failing allocations give theirs", nalloc);

    struct ckpt_encoder *encoder;
    struct ckpt_store_file *file;
    struct ckpt_encoder_args args = {s->bytes, s->header_nbytes, s->nbytes, 2, 0};
    unlink("fault.safetensors.zst");
    ckpt_store_open(&file, &ckpt_store_posix, "fault.safetensors.zst", CKPT_STORE_CREATE, &err);
    ok(ckpt_encoder_create(&encoder, file, "fault", &args, &err) == FSDP_OK, "created");
    ok(ckpt_encoder_finish(&result, encoder, &err) == FSDP_EINTERNAL, "too early: %s", err.text);
    ckpt_encoder_stop(encoder);
    ok(ckpt_encoder_put(encoder, s->bytes, 1, s->header_nbytes, &err) == FSDP_ECANCELED,
       "after a stop: %s", err.text);
    ckpt_encoder_destroy(encoder);
    ckpt_store_close(file, NULL);
}

#endif

int main(void)
{
    ok(ckpt_codec_is_name("a/b.safetensors.zst"), "a compressed file by its name");
    ok(!ckpt_codec_is_name("b.safetensors") && !ckpt_codec_is_name("b.zst"), "and others");
#if HAVE_ZSTD
    struct sample s;
    test_chunks();
    sample_make(&s);
    test_files(&s);
    test_table();
    test_damage(&s);
    test_faults(&s);
    free(s.bytes);
#else
    struct ckpt_codec_worker *worker;
    ok(ckpt_codec_worker_create(&worker, &err) == FSDP_EUNSUPPORTED, "no zstd: %s", err.text);
    ok(ckpt_codec_check("x.safetensors.zst", &err) == FSDP_EUNSUPPORTED, "%s", err.text);
#endif
    return tap_done();
}
