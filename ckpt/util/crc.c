/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC-64/XZ, CRC-32C and zip's CRC-32: the bytes by ISA-L, the algebra here.
 *
 * A reflected CRC register is a polynomial over GF(2) modulo P with x^0 in the highest bit.
 * Appending nbytes zero bytes multiplies it by x^(8*nbytes), and with the usual inversion at both
 * ends crc(A B) = crc(A) * x^(8|B|) + crc(B). So the CRC of a whole is the sum (xor) of each
 * piece's CRC times x^(8 * bytes behind it), whatever the order in which the pieces come.
 */
#include <pthread.h>
#include <string.h>

#include <isa-l/crc.h>
#include <isa-l/crc64.h>

#include "crc.h"

#define POLY64 UINT64_C(0xc96c5795d7870f42)
#define POLY32 UINT64_C(0x82f63b78)
#define POLYZIP UINT64_C(0xedb88320)

enum { NPOWERS = 67 }; /* x^(2^k); a length in bits has at most 67 */

struct field {
    uint64_t poly, one; /* one: the highest bit */
    uint64_t power[NPOWERS];
};

static struct field field64 = {.poly = POLY64, .one = UINT64_C(1) << 63};
static struct field field32 = {.poly = POLY32, .one = UINT64_C(1) << 31};
static struct field field_zip = {.poly = POLYZIP, .one = UINT64_C(1) << 31};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint64_t multiply(const struct field *f, uint64_t a, uint64_t b)
{
    uint64_t product = 0;
    for (uint64_t bit = f->one; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1 ? b >> 1 ^ f->poly : b >> 1;
    }
    return product;
}

static void fill_tables(struct field *f)
{
    f->power[0] = f->one >> 1;
    for (int k = 1; k < NPOWERS; k++)
        f->power[k] = multiply(f, f->power[k - 1], f->power[k - 1]);
}

static void fill_all(void)
{
    fill_tables(&field64);
    fill_tables(&field32);
    fill_tables(&field_zip);
}

/* crc * x^(8 * nbytes) */
static uint64_t shift(const struct field *f, uint64_t crc, uint64_t nbytes)
{
    pthread_once(&once, fill_all);
    for (int k = 3; nbytes; nbytes >>= 1, k++)
        if (nbytes & 1)
            crc = multiply(f, crc, f->power[k]);
    return crc;
}

uint64_t ckpt_crc64(uint64_t crc, const void *data, size_t nbytes)
{
    /* ISA-L inverts at both ends itself. */
    return nbytes ? crc64_ecma_refl(crc, data, nbytes) : crc;
}

uint32_t ckpt_crc32c(uint32_t crc, const void *data, size_t nbytes)
{
    enum { MOST = 1 << 30 }; /* ISA-L's length is an int, and it leaves the inversion to us */
    unsigned char *p = (unsigned char *)(uintptr_t)data;

    crc = ~crc;
    while (nbytes) {
        size_t part = nbytes < MOST ? nbytes : MOST;
        crc = crc32_iscsi(p, (int)part, crc);
        p += part;
        nbytes -= part;
    }
    return ~crc;
}

uint32_t ckpt_crc32(uint32_t crc, const void *data, size_t nbytes)
{
    return nbytes ? crc32_gzip_refl(crc, data, nbytes) : crc; /* inverts at both ends itself */
}

uint32_t ckpt_crc32_shift(uint32_t crc, uint64_t nbytes)
{
    return (uint32_t)shift(&field_zip, crc, nbytes);
}

uint64_t ckpt_crc64_shift(uint64_t crc, uint64_t nbytes)
{
    return shift(&field64, crc, nbytes);
}

uint32_t ckpt_crc32c_shift(uint32_t crc, uint64_t nbytes)
{
    return (uint32_t)shift(&field32, crc, nbytes);
}

uint64_t ckpt_crc64_combine(uint64_t crc_a, uint64_t crc_b, uint64_t nbytes_b)
{
    return ckpt_crc64_shift(crc_a, nbytes_b) ^ crc_b;
}

uint32_t ckpt_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t nbytes_b)
{
    return ckpt_crc32c_shift(crc_a, nbytes_b) ^ crc_b;
}

/* An error of e(x) with k bytes behind it leaves e(x) x^(64 + 8k) in the register. Backwards over
 * one byte after the other, the register becomes the error itself where it began. */
bool ckpt_crc64_locate(uint64_t *pos, uint16_t *error, uint64_t difference, uint64_t nbytes)
{
    uint64_t table[256];
    unsigned char by_top[256]; /* the entry with this highest byte */
    for (unsigned i = 0; i < 256; i++) {
        uint64_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ POLY64 : crc >> 1;
        table[i] = crc;
        by_top[crc >> 56] = (unsigned char)i;
    }
    uint64_t crc = difference;
    for (uint64_t at = nbytes; crc && at-- > 0;) {
        unsigned char byte = by_top[crc >> 56];
        crc = (crc ^ table[byte]) << 8 | byte;
        if (crc >> 16 || (at + 1 == nbytes && crc >> 8))
            continue;
        *pos = at;
        *error = (uint16_t)crc;
        return true;
    }
    return false;
}

/* Both over a part that the second finds in the cache still. */
static uint64_t crc_both(uint32_t *crc32c, const unsigned char *p, size_t nbytes)
{
    enum { CACHED = 128 << 10 };
    uint64_t crc64 = 0;
    if (!crc32c)
        return ckpt_crc64(0, p, nbytes);
    for (size_t part; nbytes; p += part, nbytes -= part) {
        part = nbytes < CACHED ? nbytes : CACHED;
        crc64 = ckpt_crc64(crc64, p, part);
        *crc32c = ckpt_crc32c(*crc32c, p, part);
    }
    return crc64;
}

uint64_t ckpt_fingerprint_part(const struct fsdp_tensor *tensor, const struct fsdp_box *box,
                               const void *data)
{
    return ckpt_fingerprint_part_summed(NULL, tensor, box, data);
}

uint64_t ckpt_fingerprint_part_summed(uint32_t *crc32c, const struct fsdp_tensor *tensor,
                                      const struct fsdp_box *box, const void *data)
{
    size_t elem_nbytes = fsdp_dtype_nbytes(tensor->dtype);
    uint64_t total = fsdp_tensor_nelem(tensor), sum = 0, run = 1;
    int d = tensor->ndim;

    if (fsdp_box_nelem(box, tensor->ndim) == 0)
        return 0;
    /* Trailing dimensions that the box spans whole are one run with the dimension before them. */
    while (d > 0) {
        d--;
        run *= box->length[d];
        if (box->length[d] != tensor->shape[d])
            break;
    }
    uint64_t index[FSDP_MAX_DIMS] = {0}, behind = 1;
    const unsigned char *p = data;
    for (;;) {
        uint64_t at = 0;
        for (int k = 0; k < tensor->ndim; k++)
            at = at * tensor->shape[k] + box->offset[k] + (k < d ? index[k] : 0);
        behind = (total - at - run) * elem_nbytes;
        sum ^= ckpt_crc64_shift(crc_both(crc32c, p, run * elem_nbytes), behind);
        p += run * elem_nbytes;
        int k = d - 1;
        while (k >= 0 && ++index[k] == box->length[k])
            index[k--] = 0;
        if (k < 0)
            return sum;
    }
}
