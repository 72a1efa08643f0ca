/* SPDX-License-Identifier: Apache-2.0 */
/* Known values; pieces combine; boxes in any order add up to the fingerprint. */
#include <stdlib.h>
#include <string.h>

#include "../../ckpt/util/crc.h"
#include "../../ckpt/layout/layout.h"
#include "tap.h"

/* Bit by bit, from the definition. */
static uint64_t slow(uint64_t poly, uint64_t ones, const unsigned char *data, size_t nbytes)
{
    uint64_t crc = ones;
    for (size_t i = 0; i < nbytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ poly : crc >> 1;
    }
    return crc ^ ones;
}

static void test_values(void)
{
    static const char check[] = "123456789";
    unsigned char data[300];
    bool same = true;

    ok(ckpt_crc64(0, check, 9) == UINT64_C(0x995DC9BBDF1939FA), "CRC-64/XZ of 123456789");
    ok(ckpt_crc32c(0, check, 9) == 0xE3069283u, "CRC-32C of 123456789");
    ok(ckpt_crc64(0, NULL, 0) == 0 && ckpt_crc32c(0, NULL, 0) == 0, "of nothing: 0");
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 37 + 11);
    for (size_t len = 0; len <= sizeof data; len += 7) {
        same &=
            ckpt_crc64(0, data, len) == slow(UINT64_C(0xc96c5795d7870f42), UINT64_MAX, data, len);
        same &= ckpt_crc32c(0, data, len) == slow(0x82f63b78u, 0xffffffffu, data, len);
    }
    ok(same, "all lengths equal the definition");
}

static void test_combine(void)
{
    unsigned char *data = malloc(100000);
    bool good64 = true, good32 = true, streamed = true;
    for (size_t i = 0; i < 100000; i++)
        data[i] = (unsigned char)(i * 2654435761u >> 13);
    static const size_t cuts[] = {0, 1, 7, 64, 4095, 4096, 65537, 99999, 100000};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        size_t a = cuts[i], b = 100000 - a;
        uint64_t all = ckpt_crc64(0, data, 100000);
        uint32_t all32 = ckpt_crc32c(0, data, 100000);
        good64 &= ckpt_crc64_combine(ckpt_crc64(0, data, a), ckpt_crc64(0, data + a, b), b) == all;
        good32 &=
            ckpt_crc32c_combine(ckpt_crc32c(0, data, a), ckpt_crc32c(0, data + a, b), b) == all32;
        streamed &= ckpt_crc64(ckpt_crc64(0, data, a), data + a, b) == all &&
                    ckpt_crc32c(ckpt_crc32c(0, data, a), data + a, b) == all32;
    }
    ok(good64, "CRC-64 combines at every cut");
    ok(good32, "CRC-32C combines at every cut");
    ok(streamed, "fed in pieces");
    /* 2^40 zero bytes, never made: appending 2^20 zeros 2^20 times must equal one step. */
    uint64_t crc = ckpt_crc64(0, "x", 1), steps = crc;
    for (int i = 0; i < 1 << 10; i++)
        steps = ckpt_crc64_shift(steps, UINT64_C(1) << 30);
    ok(steps == ckpt_crc64_shift(crc, UINT64_C(1) << 40), "huge distances");
    free(data);
}

/* Cuts a box in two at random until it is small; adds what each part contributes. */
static uint64_t add_parts(const struct fsdp_tensor *t, struct fsdp_box box, const uint16_t *data,
                          unsigned *seed)
{
    int d = t->ndim ? (int)((unsigned)rand_r(seed) % (unsigned)t->ndim) : 0;
    if (t->ndim && box.length[d] > 1 && fsdp_box_nelem(&box, t->ndim) > 20) {
        struct fsdp_box low = box, high = box;
        low.length[d] = 1 + (uint64_t)rand_r(seed) % (box.length[d] - 1);
        high.offset[d] += low.length[d];
        high.length[d] -= low.length[d];
        uint64_t second = add_parts(t, high, data, seed); /* the later part first */
        return second ^ add_parts(t, low, data, seed);
    }
    uint64_t nelem = fsdp_box_nelem(&box, t->ndim);
    uint16_t *part = malloc(nelem * sizeof *part);
    for (uint64_t i = 0; i < nelem; i++) {
        uint64_t left = i, at = 0, index[FSDP_MAX_DIMS];
        for (int k = t->ndim - 1; k >= 0; k--) {
            index[k] = box.offset[k] + left % box.length[k];
            left /= box.length[k];
        }
        for (int k = 0; k < t->ndim; k++)
            at = at * t->shape[k] + index[k];
        part[i] = data[at];
    }
    uint64_t sum = ckpt_fingerprint_part(t, &box, part);
    free(part);
    return sum;
}

static void test_fingerprint(void)
{
    static const struct fsdp_tensor tensors[] = {
        {"scalar", FSDP_BF16, 0, {0}},        {"vector", FSDP_BF16, 1, {513}},
        {"matrix", FSDP_BF16, 2, {37, 29}},   {"cube", FSDP_BF16, 3, {11, 9, 13}},
        {"four", FSDP_BF16, 4, {5, 1, 6, 7}},
    };
    unsigned seed = 42;
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        uint64_t nelem = fsdp_tensor_nelem(&tensors[i]);
        uint16_t *data = malloc(nelem * sizeof *data);
        bool same = true;
        for (uint64_t k = 0; k < nelem; k++)
            data[k] = (uint16_t)rand_r(&seed);
        uint64_t whole = ckpt_crc64(0, data, nelem * sizeof *data);
        for (int round = 0; round < 20; round++)
            same &= add_parts(&tensors[i], ckpt_box_whole(&tensors[i]), data, &seed) == whole;
        ok(same, "%s: any boxes add up to its fingerprint", tensors[i].name);
        free(data);
    }
}

/* Both checksums of one pass, on boxes of one run and of many, more than a pass takes at once. */
static void test_summed(void)
{
    static const struct fsdp_tensor t = {"large", FSDP_BF16, 2, {300, 1000}};
    static const struct fsdp_box boxes[] = {
        {{0, 0}, {300, 1000}}, {{1, 0}, {299, 1000}}, {{7, 3}, {290, 997}}, {{9, 9}, {0, 9}}};
    uint16_t *data = malloc(300 * 1000 * sizeof *data);
    bool same = true;
    for (size_t i = 0; i < 300 * 1000; i++)
        data[i] = (uint16_t)(i * 2654435761u >> 13);
    for (size_t i = 0; i < sizeof boxes / sizeof boxes[0]; i++) {
        uint32_t crc32c = 7;
        uint64_t sum = ckpt_fingerprint_part_summed(&crc32c, &t, &boxes[i], data);
        same &= sum == ckpt_fingerprint_part(&t, &boxes[i], data) &&
                crc32c == ckpt_crc32c(7, data, fsdp_box_nelem(&boxes[i], 2) * sizeof *data);
    }
    same &= ckpt_fingerprint_part(&t, &boxes[0], data) == ckpt_crc64(0, data, 600000);
    ok(same, "fingerprint and CRC-32C in one pass");
    free(data);
}

/* A wrong byte, or two, is found from two checksums alone; other damage is not taken for one. */
static void test_locate(void)
{
    unsigned char data[3000];
    bool found = true, quiet = true;
    uint64_t pos;
    uint16_t error;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 37 >> 2);
    uint64_t right = ckpt_crc64(0, data, sizeof data);
    for (size_t at = 0; at < sizeof data; at++) {
        unsigned wrong = 1 + (unsigned)at * 7919 % 255, next = at % 2 ? 0 : (unsigned)at % 251;
        if (at + 1 == sizeof data)
            next = 0;
        data[at] ^= (unsigned char)wrong;
        if (next)
            data[at + 1] ^= (unsigned char)next;
        uint64_t difference = right ^ ckpt_crc64(0, data, sizeof data);
        found &= ckpt_crc64_locate(&pos, &error, difference, sizeof data) && pos == at &&
                 error == (wrong | next << 8);
        data[at] ^= (unsigned char)wrong;
        if (next)
            data[at + 1] ^= (unsigned char)next;
        if (at < 100) { /* two bytes far apart */
            data[at] ^= 1, data[at + 2000] ^= 1;
            difference = right ^ ckpt_crc64(0, data, sizeof data);
            quiet &= !ckpt_crc64_locate(&pos, &error, difference, sizeof data);
            data[at] ^= 1, data[at + 2000] ^= 1;
        }
    }
    ok(found, "each byte of 3000, and pairs, found by what they do to the checksum");
    ok(quiet, "two bytes far apart are not taken for one");
    ok(!ckpt_crc64_locate(&pos, &error, 0, sizeof data), "nothing is wrong: nothing is found");
}

int main(void)
{
    test_locate();
    test_values();
    test_combine();
    test_fingerprint();
    test_summed();
    return tap_done();
}
