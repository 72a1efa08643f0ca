/* SPDX-License-Identifier: Apache-2.0 */
/* Weights to 4 bits and back, against what bitsandbytes 0.50.2 wrote on a CPU
 * (tests/data/bnb-nf4). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsdp/device.h"
#include "tap.h"

#include "../../libfsdp/core/state/nf4_encode.h"

enum { ROWS = 48, COLS = 130, NELEM = ROWS * COLS, NBLOCKS = 98 };

/* ---- the sample ------------------------------------------------------------------------------ */

static char *read_sample(const char *file)
{
    char path[4096], *bytes = NULL;
    size_t nbytes;

    snprintf(path, sizeof path, "%s/tests/data/bnb-nf4/double-48x130-bf16/%s.safetensors",
             getenv("TOP") ? getenv("TOP") : ".", file);
    if (fsdp_file_read(&bytes, &nbytes, path, 1 << 20, NULL))
        printf("Bail out! %s cannot be read\n", path);
    return bytes;
}

/* Where the tensor's data begins: behind 8 bytes, the length of the header, and the header. */
static const void *tensor_in(const char *bytes, const char *name)
{
    uint64_t header;
    char key[64];

    memcpy(&header, bytes, sizeof header);
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *at = strstr(bytes + 8, key);
    at = at ? strstr(at, "\"data_offsets\":[") : NULL;
    return at ? bytes + 8 + header + strtoull(at + 16, NULL, 10) : NULL;
}

static float offset_in(const char *bytes)
{
    const char *json = tensor_in(bytes, "weight.quant_state.bitsandbytes__nf4");
    return strtof(strstr(json, "\"nested_offset\": ") + 17, NULL);
}

/* ---- encoding -------------------------------------------------------------------------------- */

static float original[NELEM], absmax[NBLOCKS], scales[1], offset;
static uint8_t codes[NELEM / 2], scale_codes[NBLOCKS];

static void test_encode(const char *quantized)
{
    char *bytes = read_sample("original");
    const uint16_t *bf16 = tensor_in(bytes, "weight");

    for (int i = 0; i < NELEM; i++)
        original[i] = fsdp_bf16_to_f32(bf16[i]);
    fsdp_free(bytes);
    nf4_encode(codes, absmax, original, NELEM);
    ok(!memcmp(codes, tensor_in(quantized, "weight"), sizeof codes), "codes are bitsandbytes'");
    nf4_encode_tensor(scales, &offset, absmax, NBLOCKS);
    ok(offset == offset_in(quantized), "so is the offset");
    ok(!memcmp(scales, tensor_in(quantized, "weight.nested_absmax"), sizeof scales),
       "so is what scales are scaled by");
    nf4_encode_scales(scale_codes, absmax, 0, NBLOCKS, scales, offset);
    ok(!memcmp(scale_codes, tensor_in(quantized, "weight.absmax"), sizeof scale_codes),
       "so are the scales' codes");
}

/* Ranks encode what they hold of a tensor. */
static void test_parts(void)
{
    static const size_t cut = 64 * 31;
    uint8_t part[NELEM / 2], part_scales[NBLOCKS];
    float part_absmax[NBLOCKS];

    nf4_encode(part, part_absmax, original, cut);
    nf4_encode(part + cut / 2, part_absmax + 31, original + cut, NELEM - cut);
    ok(!memcmp(part, codes, sizeof codes) && !memcmp(part_absmax, absmax, sizeof absmax),
       "two parts have the codes of the whole");
    nf4_encode_scales(part_scales, absmax, 0, 31, scales, offset);
    nf4_encode_scales(part_scales + 31, absmax + 31, 31, NBLOCKS - 31, scales, offset);
    ok(!memcmp(part_scales, scale_codes, sizeof scale_codes), "and its scales");
}

static void test_corners(void)
{
    float x[64 + 3] = {0}, most[2], scale[1], mean;
    uint8_t code[34], scale_code[2];

    nf4_encode(code, most, x, 64);
    nf4_encode_tensor(scale, &mean, most, 1);
    nf4_encode_scales(scale_code, most, 0, 1, scale, mean);
    ok(code[0] == 0x77 && code[31] == 0x77 && most[0] == 0 && mean == 0 && scale[0] == 0 &&
           scale_code[0] == 0,
       "zeros are zeros");
    x[64] = -2;
    x[65] = 1;
    x[66] = 2;
    nf4_encode(code, most, x, 67);
    ok(most[1] == 2 && code[32] == 0x0c && code[33] == 0xf7, "an odd end is filled with zero");
    for (int i = 0; i < 64; i++)
        x[i] = i % 2 ? -3.0f : 3.0f;
    nf4_encode(code, most, x, 64);
    nf4_encode_tensor(scale, &mean, most, 1);
    nf4_encode_scales(scale_code, most, 0, 1, scale, mean);
    ok(mean == 3 && scale[0] == 0 && scale_code[0] == 0 && code[5] == 0xf0,
       "blocks that are alike: the offset says all");
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* Of the blocks from `first` on. */
static int decode(void *dst, enum fsdp_dtype dtype, uint64_t first)
{
    struct fsdp_device *device;
    struct fsdp_lane *lane;
    const struct fsdp_nf4_args args = {.dst = dst,
                                       .dst_dtype = dtype,
                                       .codes = codes + first * 32,
                                       .scale_codes = scale_codes + first,
                                       .scales = scales,
                                       .offset = &offset,
                                       .first_block = first,
                                       .nelem = NELEM - first * 64};

    if (fsdp_device_open(&device, "cpu", 0, NULL) || fsdp_lane_create(&lane, device, "test", NULL))
        return -1;
    int rc = fsdp_nf4_decode(lane, &args, NULL);
    rc = rc ? rc : fsdp_lane_sync(lane, NULL);
    fsdp_lane_destroy(lane);
    fsdp_device_close(device);
    return rc;
}

static void test_decode(void)
{
    static uint16_t bf16[NELEM];
    static float f32[NELEM];
    char *bytes = read_sample("expected");
    const uint16_t *want = tensor_in(bytes, "weight");
    int bad = 0;

    ok(decode(bf16, FSDP_BF16, 0) == FSDP_OK && !memcmp(bf16, want, sizeof bf16),
       "decoded to bf16: bitsandbytes' values");
    bad = decode(f32, FSDP_F32, 0) != FSDP_OK;
    for (int i = 0; i < NELEM; i++)
        bad += fsdp_f32_to_bf16(f32[i]) != want[i];
    ok(bad == 0, "decoded to fp32: the same before they are rounded");
    ok(decode(bf16, FSDP_BF16, 41) == FSDP_OK &&
           !memcmp(bf16, want + 41 * 64, (NELEM - 41 * 64) * sizeof *want),
       "a part of it");
    fsdp_free(bytes);
}

int main(void)
{
    char *quantized = read_sample("quantized");

    test_encode(quantized);
    test_parts();
    test_decode();
    test_corners();
    fsdp_free(quantized);
    return tap_done();
}
