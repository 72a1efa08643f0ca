/* SPDX-License-Identifier: Apache-2.0 */
/* The format: PKWARE's APPNOTE 6.3. An archive ends with the central directory and a record that
 * says where it begins; sizes of 0xffffffff are found in a 64-bit extra field. */
#include <stdlib.h>
#include <string.h>

#include "util/limits.h"
#include "zip.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)

enum {
    LOCAL_SIGNATURE = 0x04034b50,
    CENTRAL_SIGNATURE = 0x02014b50,
    END_SIGNATURE = 0x06054b50,
    END64_SIGNATURE = 0x06064b50,
    LOCATOR64_SIGNATURE = 0x07064b50,
    LOCAL_NBYTES = 30,
    CENTRAL_NBYTES = 46,
    END_NBYTES = 22,
    END64_NBYTES = 56,
    LOCATOR64_NBYTES = 20,
    EXTRA_ZIP64 = 1,
    FLAG_ENCRYPTED = 1 << 0,
    FLAG_DESCRIPTOR = 1 << 3, /* the local header's sizes are 0 */
};

static uint64_t le(const void *data, int nbytes)
{
    const unsigned char *p = data;
    uint64_t value = 0;
    for (int i = nbytes - 1; i >= 0; i--)
        value = value << 8 | p[i];
    return value;
}

/* Where the central directory is. */
struct end {
    uint64_t nentries, nbytes, pos;
};

static int end64_read(struct end *out, const struct ckpt_zip *zip, const unsigned char *locator,
                      uint64_t locator_pos, struct fsdp_err *err)
{
    unsigned char raw[END64_NBYTES];
    uint64_t pos = le(locator + 8, 8);
    if (le(locator, 4) != LOCATOR64_SIGNATURE || le(locator + 4, 4) != 0)
        return BAD("%s: its zip64 end is not where it should be", zip->what);
    if (locator_pos < END64_NBYTES || pos > locator_pos - END64_NBYTES)
        return BAD("%s: its zip64 end lies outside of it", zip->what);
    FSDP_TRY(zip->pread(zip->ctx, raw, sizeof raw, pos, err));
    if (le(raw, 4) != END64_SIGNATURE)
        return BAD("%s: its zip64 end is damaged", zip->what);
    *out = (struct end){le(raw + 32, 8), le(raw + 40, 8), le(raw + 48, 8)};
    return FSDP_OK;
}

static int end_read(struct end *out, const struct ckpt_zip *zip, uint64_t nbytes,
                    struct fsdp_err *err)
{
    unsigned char raw[LOCATOR64_NBYTES + END_NBYTES];
    if (nbytes < END_NBYTES)
        return BAD("%s: its %llu bytes are too few for a zip archive", zip->what,
                   (unsigned long long)nbytes);
    size_t have = nbytes < sizeof raw ? (size_t)nbytes : sizeof raw;
    FSDP_TRY(zip->pread(zip->ctx, raw, have, nbytes - have, err));
    const unsigned char *end = raw + have - END_NBYTES;
    if (le(end, 4) != END_SIGNATURE || le(end + 4, 4) != 0 || le(end + 20, 2) != 0)
        return BAD("%s: it does not end as a zip archive does: truncated or overwritten",
                   zip->what);
    *out = (struct end){le(end + 10, 2), le(end + 12, 4), le(end + 16, 4)};
    if (out->nentries == 0xffff || out->nbytes == 0xffffffff || out->pos == 0xffffffff) {
        if (have < sizeof raw)
            return BAD("%s: its zip64 end is missing", zip->what);
        FSDP_TRY(end64_read(out, zip, raw, nbytes - sizeof raw, err));
    }
    if (out->pos > nbytes - END_NBYTES || out->nbytes > nbytes - END_NBYTES - out->pos)
        return BAD("%s: its directory lies outside of it", zip->what);
    if (out->nbytes > CKPT_MAX_ZIP_NBYTES || out->nentries > out->nbytes / CENTRAL_NBYTES)
        return BAD("%s: its directory claims %llu files in %llu bytes", zip->what,
                   (unsigned long long)out->nentries, (unsigned long long)out->nbytes);
    return FSDP_OK;
}

/* The fields that a central header left to its zip64 extra field, in their order. */
static int extra_read(uint64_t *const *fields, int nfields, const unsigned char *extra,
                      size_t nbytes)
{
    int next = 0;
    for (size_t at = 0; at + 4 <= nbytes;) {
        size_t size = (size_t)le(extra + at + 2, 2), from = at + 4;
        if (size > nbytes - from)
            return FSDP_ECORRUPT;
        if (le(extra + at, 2) == EXTRA_ZIP64) {
            for (size_t used = 0; next < nfields && used + 8 <= size; used += 8)
                *fields[next++] = le(extra + from + used, 8);
            break;
        }
        at = from + size;
    }
    return next == nfields ? FSDP_OK : FSDP_ECORRUPT;
}

static int entry_read(struct ckpt_zip_entry *out, size_t *next, const struct ckpt_zip *zip,
                      size_t nbytes, struct fsdp_err *err)
{
    const unsigned char *raw = (const unsigned char *)zip->directory + *next;
    size_t left = nbytes - *next;
    if (left < CENTRAL_NBYTES || le(raw, 4) != CENTRAL_SIGNATURE)
        return BAD("%s: its directory is damaged", zip->what);
    size_t name = (size_t)le(raw + 28, 2), extra = (size_t)le(raw + 30, 2);
    size_t all = CENTRAL_NBYTES + name + extra + (size_t)le(raw + 32, 2);
    if (all > left)
        return BAD("%s: its directory is damaged", zip->what);
    uint64_t stored = le(raw + 20, 4), *fields[3];
    int nfields = 0;
    *out = (struct ckpt_zip_entry){.name = (const char *)raw + CENTRAL_NBYTES,
                                   .name_nbytes = name,
                                   .header_pos = le(raw + 42, 4),
                                   .nbytes = le(raw + 24, 4),
                                   .crc32 = (uint32_t)le(raw + 16, 4)};
    if (le(raw + 8, 2) & FLAG_ENCRYPTED || le(raw + 10, 2) != 0)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "%s: '%.*s' in it is compressed or encrypted: only stored files are "
                            "read",
                            zip->what, (int)(name < 200 ? name : 200), out->name);
    if (out->nbytes == 0xffffffff)
        fields[nfields++] = &out->nbytes;
    if (stored == 0xffffffff)
        fields[nfields++] = &stored;
    if (out->header_pos == 0xffffffff)
        fields[nfields++] = &out->header_pos;
    if (nfields && extra_read(fields, nfields, raw + CENTRAL_NBYTES + name, extra))
        return BAD("%s: a 64-bit size in its directory is missing", zip->what);
    if (stored != out->nbytes)
        return BAD("%s: its directory contradicts itself about a size", zip->what);
    *next += all;
    return FSDP_OK;
}

static int compare_bytes(const struct ckpt_zip_entry *a, const char *name, size_t nbytes)
{
    const size_t least = a->name_nbytes < nbytes ? a->name_nbytes : nbytes;
    const int order = memcmp(a->name, name, least);
    return order ? order : a->name_nbytes < nbytes ? -1 : a->name_nbytes > nbytes;
}

static int compare_names(const void *a, const void *b, void *ctx)
{
    const struct ckpt_zip_entry *entries = ctx, *x = &entries[*(const size_t *)a],
                                *y = &entries[*(const size_t *)b];
    return compare_bytes(x, y->name, y->name_nbytes);
}

static int sort_names(struct ckpt_zip *zip, struct fsdp_err *err)
{
    zip->by_name = fsdp_alloc(zip->nentries, sizeof *zip->by_name, "zip directory", err);
    if (!zip->by_name)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < zip->nentries; i++)
        zip->by_name[i] = i;
    qsort_r(zip->by_name, zip->nentries, sizeof *zip->by_name, compare_names, zip->entries);
    return FSDP_OK;
}

int ckpt_zip_open(struct ckpt_zip *out, ckpt_zip_pread_f *pread, void *ctx, uint64_t nbytes,
                  const char *what, struct fsdp_err *err)
{
    struct end end = {0, 0, 0};
    size_t next = 0;
    int rc;

    *out = (struct ckpt_zip){.pread = pread, .ctx = ctx, .what = what};
    FSDP_TRY(end_read(&end, out, nbytes, err));
    out->directory_pos = end.pos;
    out->directory = fsdp_alloc((size_t)end.nbytes, 1, "zip directory", err);
    out->entries = fsdp_alloc((size_t)end.nentries, sizeof *out->entries, "zip directory", err);
    rc = out->directory && out->entries ? FSDP_OK : FSDP_ENOMEM;
    if (rc == FSDP_OK && end.nbytes)
        rc = pread(ctx, out->directory, (size_t)end.nbytes, end.pos, err);
    while (rc == FSDP_OK && out->nentries < end.nentries) {
        rc = entry_read(&out->entries[out->nentries], &next, out, (size_t)end.nbytes, err);
        out->nentries += rc == FSDP_OK;
    }
    if (rc == FSDP_OK)
        rc = sort_names(out, err);
    if (rc)
        ckpt_zip_close(out);
    return rc;
}

void ckpt_zip_close(struct ckpt_zip *zip)
{
    fsdp_free(zip->directory);
    fsdp_free(zip->entries);
    fsdp_free(zip->by_name);
    memset(zip, 0, sizeof *zip);
}

int ckpt_zip_find(const struct ckpt_zip_entry **out, const struct ckpt_zip *zip, const char *name,
                  struct fsdp_err *err)
{
    const size_t nbytes = strlen(name);
    size_t low = 0, high = zip->nentries;
    *out = NULL;
    while (low < high) { /* the first that is not before it */
        const size_t mid = low + (high - low) / 2;
        if (compare_bytes(&zip->entries[zip->by_name[mid]], name, nbytes) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    for (; low < zip->nentries; low++) {
        const struct ckpt_zip_entry *entry = &zip->entries[zip->by_name[low]];
        if (compare_bytes(entry, name, nbytes))
            break;
        if (*out)
            return BAD("%s holds '%s' twice", zip->what, name);
        *out = entry;
    }
    return FSDP_OK;
}

int ckpt_zip_locate(uint64_t *pos, const struct ckpt_zip *zip, const struct ckpt_zip_entry *entry,
                    struct fsdp_err *err)
{
    unsigned char raw[LOCAL_NBYTES];
    uint64_t end = zip->directory_pos;
    if (end < LOCAL_NBYTES || entry->header_pos > end - LOCAL_NBYTES)
        return BAD("%s: a file in it begins behind its directory", zip->what);
    FSDP_TRY(zip->pread(zip->ctx, raw, sizeof raw, entry->header_pos, err));
    if (le(raw, 4) != LOCAL_SIGNATURE || le(raw + 26, 2) != entry->name_nbytes)
        return BAD("%s: a file in it is not where the directory says: damaged", zip->what);
    if (le(raw + 6, 2) & FLAG_ENCRYPTED || le(raw + 8, 2) != 0)
        return BAD("%s: a file in it contradicts the directory: damaged", zip->what);
    uint64_t size = le(raw + 22, 4), crc = le(raw + 14, 4);
    bool described = le(raw + 6, 2) & FLAG_DESCRIPTOR;
    if ((size != entry->nbytes && size != 0xffffffff && !described) ||
        (crc && entry->crc32 && crc != entry->crc32))
        return BAD("%s: a file in it contradicts the directory about its size or checksum",
                   zip->what);
    *pos = entry->header_pos + LOCAL_NBYTES + le(raw + 26, 2) + le(raw + 28, 2);
    if (*pos > end || entry->nbytes > end - *pos)
        return BAD("%s: a file in it reaches into its directory", zip->what);
    return FSDP_OK;
}
