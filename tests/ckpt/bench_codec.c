/* SPDX-License-Identifier: Apache-2.0 */
/* What one core compresses, decompresses and sums, on values as weights have them. Prints a table;
 * asserts nothing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../ckpt/file/zst.h"
#include "ckpt/ckpt.h"

enum { NCHUNKS = 64, NROUNDS = 3 };

static double gb_per_s(double seconds)
{
    return NCHUNKS * (double)CKPT_CODEC_CHUNK_NBYTES / 1e9 / seconds;
}

static void row(const char *what, double seconds, double baseline)
{
    printf("%-34s %8.2f GB/s a core", what, gb_per_s(seconds));
    if (baseline > 0)
        printf("   %5.1f %% of its size", baseline);
    printf("\n");
}

/* Normally distributed, as initial weights are; the first half of fp32 or all of bf16. */
static void fill(uint8_t *dst, size_t nbytes, uint32_t planes)
{
    for (size_t i = 0; i < nbytes / planes; i++) {
        double u = drand48() + 1e-300, v = drand48();
        float x = (float)(0.02 * sqrt(-2 * log(u)) * cos(2 * M_PI * v));
        uint16_t half = fsdp_f32_to_bf16(x);
        memcpy(dst + i * planes, planes == 2 ? (void *)&half : (void *)&x, planes);
    }
}

static double best(double best_so_far, double seconds)
{
    return best_so_far == 0 || seconds < best_so_far ? seconds : best_so_far;
}

static int measure(const char *dtype, uint32_t planes, uint8_t *src, uint8_t *frames,
                   struct ckpt_codec_worker *worker)
{
    static uint8_t back[CKPT_CODEC_CHUNK_NBYTES];
    size_t bound = ckpt_codec_bound(CKPT_CODEC_CHUNK_NBYTES), stored = 0;
    struct ckpt_codec_chunk chunks[NCHUNKS];
    double packing = 0, unpacking = 0;
    struct fsdp_err err;
    char what[64];

    fill(src, (size_t)NCHUNKS * CKPT_CODEC_CHUNK_NBYTES, planes);
    for (int round = 0; round < NROUNDS; round++) {
        double began = fsdp_time_now();
        for (size_t i = 0; i < NCHUNKS; i++) {
            chunks[i] =
                (struct ckpt_codec_chunk){.nbytes = CKPT_CODEC_CHUNK_NBYTES, .planes = planes};
            FSDP_TRY(ckpt_codec_encode(frames + i * bound, bound, &chunks[i],
                                       src + i * CKPT_CODEC_CHUNK_NBYTES, worker, &err));
        }
        double between = fsdp_time_now();
        for (size_t i = 0; i < NCHUNKS; i++)
            FSDP_TRY(
                ckpt_codec_decode(back, &chunks[i], frames + i * bound, "bench", worker, &err));
        packing = best(packing, between - began);
        unpacking = best(unpacking, fsdp_time_now() - between);
    }
    for (size_t i = 0; i < NCHUNKS; i++)
        for (uint32_t k = 0; k < planes; k++)
            stored += chunks[i].stored[k];
    snprintf(what, sizeof what, "%s, compressing", dtype);
    row(what, packing, 100.0 * (double)stored / NCHUNKS / CKPT_CODEC_CHUNK_NBYTES);
    snprintf(what, sizeof what, "%s, decompressing", dtype);
    row(what, unpacking, 0);
    return FSDP_OK;
}

int main(void)
{
    size_t bound = ckpt_codec_bound(CKPT_CODEC_CHUNK_NBYTES);
    uint8_t *src = malloc((size_t)NCHUNKS * CKPT_CODEC_CHUNK_NBYTES);
    uint8_t *frames = malloc(NCHUNKS * bound);
    struct ckpt_codec_worker *worker = NULL;
    struct fsdp_err err;
    double sums = 0, prints = 0;
    volatile uint64_t sink = 0;

    if (!src || !frames || ckpt_codec_worker_create(&worker, &err)) {
        fprintf(stderr, "%s\n", worker ? "out of memory" : err.text);
        return 1;
    }
    int rc = measure("bf16", 2, src, frames, worker);
    rc = rc ? rc : measure("fp32", 4, src, frames, worker);
    for (int round = 0; round < NROUNDS; round++) {
        double began = fsdp_time_now();
        sink = ckpt_crc32c(0, src, (size_t)NCHUNKS * CKPT_CODEC_CHUNK_NBYTES);
        double between = fsdp_time_now();
        sink ^= ckpt_crc64(0, src, (size_t)NCHUNKS * CKPT_CODEC_CHUNK_NBYTES);
        sums = best(sums, between - began);
        prints = best(prints, fsdp_time_now() - between);
    }
    (void)sink;
    row("CRC-32C", sums, 0);
    row("CRC-64/XZ", prints, 0);
    ckpt_codec_worker_destroy(worker);
    free(frames);
    free(src);
    return rc != FSDP_OK;
}
