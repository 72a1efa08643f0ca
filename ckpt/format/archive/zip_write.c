/* SPDX-License-Identifier: Apache-2.0 */
/* The format: PKWARE's APPNOTE 6.3. Numbers that do not fit 32 bits are in 64-bit extra fields.
 * Headers, padding and descriptors have the places that miniz, torch's writer, gives them: torch
 * computes where a storage lies. */
#include <string.h>

#include "zip_write.h"

enum { LOCAL_NBYTES = 30, DESCRIBED = 1 << 3, EXTRA_ZIP64 = 1 };
#define FROM_ZIP64 UINT64_C(0xffffffff)

static void le(struct ckpt_text *text, uint64_t value, int nbytes)
{
    char raw[8];
    for (int i = 0; i < nbytes; i++)
        raw[i] = (char)(value >> (8 * i) & 0xff);
    ckpt_text_add(text, raw, (size_t)nbytes);
}

/* A number's 32 bits, or the sign that the extra field has it. */
static uint64_t short_of(uint64_t value)
{
    return value >= FROM_ZIP64 ? FROM_ZIP64 : value;
}

static size_t name_nbytes(const struct ckpt_zip_member *m)
{
    return strlen(m->folder) + 1 + strlen(m->file);
}

static bool is_large(const struct ckpt_zip_member *m)
{
    return m->nbytes >= FROM_ZIP64 || m->pos >= FROM_ZIP64;
}

/* Nothing follows a file without bytes. */
static bool is_described(const struct ckpt_zip_member *m)
{
    return m->later && m->nbytes;
}

static size_t zip64_nbytes(const struct ckpt_zip_member *m)
{
    return is_large(m) ? 4 + (m->nbytes >= FROM_ZIP64 ? 16u : 0) + (m->pos >= FROM_ZIP64 ? 8u : 0)
                       : 0;
}

static void zip64_add(struct ckpt_text *text, const struct ckpt_zip_member *m, uint64_t nbytes)
{
    if (!is_large(m))
        return;
    le(text, EXTRA_ZIP64, 2);
    le(text, zip64_nbytes(m) - 4, 2);
    if (m->nbytes >= FROM_ZIP64) {
        le(text, nbytes, 8);
        le(text, nbytes, 8);
    }
    if (m->pos >= FROM_ZIP64)
        le(text, m->pos, 8);
}

static size_t padding_of(const struct ckpt_zip_member *m)
{
    const uint64_t end = m->pos + LOCAL_NBYTES + name_nbytes(m) + zip64_nbytes(m) + 4;
    return (size_t)((CKPT_ZIP_ALIGN - end % CKPT_ZIP_ALIGN) % CKPT_ZIP_ALIGN);
}

size_t ckpt_zip_local_nbytes(const struct ckpt_zip_member *m)
{
    return LOCAL_NBYTES + name_nbytes(m) + zip64_nbytes(m) + (m->later ? 4 + padding_of(m) : 0);
}

void ckpt_zip_add_local(struct ckpt_text *text, const struct ckpt_zip_member *m)
{
    const bool described = is_described(m);
    size_t pad = m->later ? padding_of(m) : 0;
    const uint64_t shown = described && m->nbytes < FROM_ZIP64 ? 0 : short_of(m->nbytes);
    le(text, 0x04034b50, 4);
    le(text, is_large(m) ? 45 : 20, 2);
    le(text, described ? DESCRIBED : 0, 2);
    le(text, 0, 2 + 2);
    le(text, 0x0021, 2); /* 1 January 1980: nothing here depends on the clock */
    le(text, described ? 0 : m->crc32, 4);
    le(text, shown, 4);
    le(text, shown, 4);
    le(text, name_nbytes(m), 2);
    le(text, zip64_nbytes(m) + (m->later ? 4 + pad : 0), 2);
    ckpt_text_printf(text, "%s/%s", m->folder, m->file);
    zip64_add(text, m, described ? 0 : m->nbytes);
    if (!m->later)
        return;
    ckpt_text_add(text, "FB", 2);
    le(text, pad, 2);
    while (pad--)
        ckpt_text_add(text, "Z", 1);
}

size_t ckpt_zip_descriptor_nbytes(const struct ckpt_zip_member *m)
{
    return !is_described(m) ? 0 : is_large(m) ? 24 : 16;
}

void ckpt_zip_add_descriptor(struct ckpt_text *text, const struct ckpt_zip_member *m)
{
    if (!is_described(m))
        return;
    le(text, 0x08074b50, 4);
    le(text, m->crc32, 4);
    le(text, m->nbytes, is_large(m) ? 8 : 4);
    le(text, m->nbytes, is_large(m) ? 8 : 4);
}

void ckpt_zip_add_central(struct ckpt_text *text, const struct ckpt_zip_member *m)
{
    le(text, 0x02014b50, 4);
    le(text, is_large(m) ? 45 : 20, 2);
    le(text, is_large(m) ? 45 : 20, 2);
    le(text, is_described(m) ? DESCRIBED : 0, 2);
    le(text, 0, 2 + 2);
    le(text, 0x0021, 2);
    le(text, m->crc32, 4);
    le(text, short_of(m->nbytes), 4);
    le(text, short_of(m->nbytes), 4);
    le(text, name_nbytes(m), 2);
    le(text, zip64_nbytes(m), 2);
    le(text, 0, 8);
    le(text, 0, 2);
    le(text, short_of(m->pos), 4);
    ckpt_text_printf(text, "%s/%s", m->folder, m->file);
    zip64_add(text, m, m->nbytes);
}

void ckpt_zip_add_end(struct ckpt_text *text, uint64_t nmembers, uint64_t nbytes, uint64_t pos)
{
    const uint64_t most = 0xffff;
    if (pos >= FROM_ZIP64 || nbytes >= FROM_ZIP64 || nmembers >= most) {
        le(text, 0x06064b50, 4);
        le(text, 44, 8);
        le(text, 45, 2);
        le(text, 45, 2);
        le(text, 0, 8);
        le(text, nmembers, 8);
        le(text, nmembers, 8);
        le(text, nbytes, 8);
        le(text, pos, 8);
        le(text, 0x07064b50, 4);
        le(text, 0, 4);
        le(text, pos + nbytes, 8);
        le(text, 1, 4);
    }
    le(text, 0x06054b50, 4);
    le(text, 0, 4);
    le(text, nmembers >= most ? most : nmembers, 2);
    le(text, nmembers >= most ? most : nmembers, 2);
    le(text, short_of(nbytes), 4);
    le(text, short_of(pos), 4);
    le(text, 0, 2);
}
