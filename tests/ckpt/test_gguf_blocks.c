/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF's blocks against those of gguf-py and ggml (tests/data/gguf-blocks): equal, or no farther
 * from the weights; and numbers that are none. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../ckpt/format/gguf/quant.h"
#include "../../ckpt/util/convert.h"
#include "ckpt/ckpt.h"
#include "tap.h"

enum { ROWS = 6, WIDTH = 256 };

static float rows[ROWS][WIDTH];

static int take(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *err)
{
    (void)err;
    memcpy((unsigned char *)ctx + pos, src, nbytes);
    return FSDP_OK;
}

/* A tensor of the reference, owned by the caller. */
static unsigned char *reference(struct ckpt *ckpt, const char *name)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    const struct fsdp_tensor *t = &ckpt_tensor_find(ckpt, name)->tensor;
    unsigned char *data = calloc((size_t)fsdp_tensor_nelem(t), fsdp_dtype_nbytes(t->dtype));
    struct fsdp_slice slice = {.tensor = *t, .nreplica = 1};
    const struct fsdp_slice_io io = {.ctx = data, .write = take};
    memcpy(slice.box.length, t->shape, sizeof t->shape);
    if (!data || ckpt_read_slice(ckpt, &slice, &io, &err))
        diag("%s", err.text);
    return data;
}

static void test_exact(struct ckpt *ckpt, const char *name, const struct ckpt_encoding *encoding)
{
    unsigned char *want = reference(ckpt, name), out[2 * WIDTH];
    const size_t nbytes = WIDTH / encoding->block_nelem * encoding->block_nbytes;
    for (int r = 0; r < ROWS; r++) {
        encoding->encode(out, rows[r], WIDTH);
        ok(!memcmp(out, want + (size_t)r * nbytes, nbytes), "%s: row %d is gguf-py's", name, r);
    }
    free(want);
}

/* ---- decoding, as ggml's formats are documented
 * ---------------------------------------------------- */

static float f16_at(const unsigned char *at)
{
    float value;
    ckpt_convert(&value, FSDP_F32, at, FSDP_F16, 1);
    return value;
}

/* Scale and minimum of part p: 6 bits each in 12 bytes. */
static void part_integers(int *scale, int *under, const unsigned char *in, int p)
{
    *scale = p < 4 ? in[p] & 63 : (in[p + 4] & 15) | in[p - 4] >> 6 << 4;
    *under = p < 4 ? in[p + 4] & 63 : in[p + 4] >> 4 | in[p] >> 6 << 4;
}

static void decode_lines(float *out, const unsigned char *in, bool five)
{
    const unsigned char *fifth = in + 16, *nibbles = in + (five ? 48 : 16);
    for (int i = 0; i < WIDTH; i++) {
        const int p = i / 32, at = i / 64 * 32 + i % 32;
        int scale, under, q = p % 2 ? nibbles[at] >> 4 : nibbles[at] & 15;
        part_integers(&scale, &under, in + 4, p);
        if (five)
            q += (fifth[i % 32] >> p & 1) * 16;
        out[i] = f16_at(in) * (float)scale * (float)q - f16_at(in + 2) * (float)under;
    }
}

static void decode_q4_k(float *out, const unsigned char *in)
{
    decode_lines(out, in, false);
}

static void decode_q5_k(float *out, const unsigned char *in)
{
    decode_lines(out, in, true);
}

static void decode_q6_k(float *out, const unsigned char *in)
{
    for (int i = 0; i < WIDTH; i++) {
        const int half = i / 128, at = i % 128;
        const int low = in[half * 64 + at % 64], high = in[128 + half * 32 + at % 32];
        const int q = (at < 64 ? low & 15 : low >> 4) | (high >> at / 32 * 2 & 3) << 4;
        out[i] = f16_at(in + 208) * (float)(signed char)in[192 + i / 16] * (float)(q - 32);
    }
}

static double error_of(const float *got, const float *want)
{
    double sum = 0;
    for (int i = 0; i < WIDTH; i++)
        sum += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
    return sqrt(sum / WIDTH);
}

static void test_near(struct ckpt *ckpt, const char *name, const struct ckpt_encoding *encoding,
                      void (*decode)(float *out, const unsigned char *in))
{
    unsigned char *peer = reference(ckpt, name), out[2 * WIDTH];
    float decoded[WIDTH];
    for (int r = 0; r < ROWS; r++) {
        decode(decoded, peer + (size_t)r * encoding->block_nbytes);
        const double theirs = error_of(decoded, rows[r]);
        encoding->encode(out, rows[r], WIDTH);
        decode(decoded, out);
        const double ours = error_of(decoded, rows[r]);
        ok(ours <= 1.01 * theirs, "%s: row %d is off by %.3g, ggml's by %.3g", name, r, ours,
           theirs);
    }
    free(peer);
}

/* They give some bytes, and neither a trap nor what the sanitizer calls undefined. */
static void test_no_numbers(void)
{
    static const struct ckpt_encoding *const all[] = {
        &ckpt_quant_q8_0, &ckpt_quant_q4_0, &ckpt_quant_q5_0, &ckpt_quant_q5_1,
        &ckpt_quant_q4_k, &ckpt_quant_q5_k, &ckpt_quant_q6_k};
    float bad[WIDTH];
    unsigned char out[2 * WIDTH];
    for (int i = 0; i < WIDTH; i++)
        bad[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const size_t nbytes = WIDTH / all[i]->block_nelem * all[i]->block_nbytes;
        memset(out, 0xa5, sizeof out);
        all[i]->encode(out, bad, WIDTH);
        ok(out[nbytes] == 0xa5, "%s of NaN and infinity fills its blocks alone", all[i]->name);
    }
}

int main(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *ckpt = NULL;
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/data/gguf-blocks/blocks.safetensors", getenv("TOP"));
    if (!ok(ckpt_open(&ckpt, path, &err) == FSDP_OK, "the reference opens: %s", err.text))
        return tap_done();
    unsigned char *f32 = reference(ckpt, "f32");
    memcpy(rows, f32, sizeof rows);
    free(f32);
    test_exact(ckpt, "Q8_0", &ckpt_quant_q8_0);
    test_exact(ckpt, "Q4_0", &ckpt_quant_q4_0);
    test_exact(ckpt, "Q5_0", &ckpt_quant_q5_0);
    test_exact(ckpt, "Q5_1", &ckpt_quant_q5_1);
    test_near(ckpt, "Q4_K", &ckpt_quant_q4_k, decode_q4_k);
    test_near(ckpt, "Q5_K", &ckpt_quant_q5_k, decode_q5_k);
    test_near(ckpt, "Q6_K", &ckpt_quant_q6_k, decode_q6_k);
    test_no_numbers();
    ckpt_close(ckpt);
    return tap_done();
}
