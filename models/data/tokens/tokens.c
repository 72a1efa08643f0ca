/* SPDX-License-Identifier: Apache-2.0 */
/* Token files as they are read. */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "format.h"
#include "tokens.h"

enum { BUFFER_NBYTES = 1 << 20 };

struct tokens {
    struct tokens_header header;
    struct tokens_file {
        char *path;
        int fd; /* -1: not open */
        uint64_t nbytes;
    } parts[TOKENS_NPARTS];
    unsigned char *map; /* the index */
    const uint64_t *ends;
};

int tokens_exist(bool *out, const char *path, struct fsdp_err *err)
{
    struct stat st;
    char *index = fsdp_sprintf(err, "%s%s", path, tokens_ends[TOKENS_INDEX]);

    if (!index)
        return FSDP_ENOMEM;
    *out = stat(index, &st) == 0;
    const int rc = *out || errno == ENOENT || errno == ENOTDIR
                       ? FSDP_OK
                       : fsdp_err_sys(err, errno, "%s", index);
    fsdp_free(index);
    return rc;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int open_part(struct tokens *t, const char *path, enum tokens_part part,
                     struct fsdp_err *err)
{
    struct tokens_file *file = &t->parts[part];
    struct stat st;

    if (!(file->path = fsdp_sprintf(err, "%s%s", path, tokens_ends[part])))
        return FSDP_ENOMEM;
    FSDP_TRY(fsdp_file_open(&file->fd, file->path, O_RDONLY, err));
    if (fstat(file->fd, &st))
        return fsdp_err_sys(err, errno, "'%s'", file->path);
    file->nbytes = (uint64_t)st.st_size;
    return FSDP_OK;
}

static int check_size(const struct tokens *t, enum tokens_part part, struct fsdp_err *err)
{
    const struct tokens_file *file = &t->parts[part];
    const uint64_t want = tokens_part_nbytes(&t->header, part);

    if (file->nbytes == want)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_ECORRUPT,
                        "'%s' has %" PRIu64 " bytes, and %" PRIu64 " by %s: it is %s", file->path,
                        file->nbytes, want,
                        part == TOKENS_INDEX ? "its header" : t->parts[TOKENS_INDEX].path,
                        file->nbytes < want ? "truncated" : "another file, or was added to");
}

static int check_ends(const struct tokens *t, struct fsdp_err *err)
{
    const struct tokens_file *file = &t->parts[TOKENS_INDEX];
    const uint64_t n = t->header.info.ndocuments;
    uint64_t last = 0;
    bool rises = true;

    for (uint64_t i = 0; i < n; i++) {
        const uint64_t end = le64toh(t->ends[i]);
        rises &= end >= last;
        last = end;
    }
    if (rises && last == t->header.info.ntokens &&
        tokens_crc(0, t->ends, n * TOKENS_END_NBYTES) == t->header.crc[TOKENS_INDEX])
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_ECORRUPT,
                        "'%s' is damaged: its documents do not have its checksum", file->path);
}

static int map_index(struct tokens *t, struct fsdp_err *err)
{
    const struct tokens_file *file = &t->parts[TOKENS_INDEX];

    if (file->nbytes < TOKENS_HEADER_NBYTES)
        return fsdp_err_set(err, FSDP_ECORRUPT,
                            "'%s' has %" PRIu64
                            " bytes: it is truncated, or no index of a token file",
                            file->path, file->nbytes);
    void *map = mmap(NULL, file->nbytes, PROT_READ, MAP_SHARED, file->fd, 0);
    if (map == MAP_FAILED)
        return fsdp_err_sys(err, errno, "cannot map '%s'", file->path);
    t->map = map;
    FSDP_TRY(tokens_header_get(&t->header, t->map, file->path, err));
    FSDP_TRY(check_size(t, TOKENS_INDEX, err));
    t->ends = (const uint64_t *)(const void *)(t->map + TOKENS_HEADER_NBYTES);
    return check_ends(t, err);
}

static int open_all(struct tokens *t, const char *path, struct fsdp_err *err)
{
    FSDP_TRY(open_part(t, path, TOKENS_INDEX, err));
    FSDP_TRY(map_index(t, err));
    FSDP_TRY(open_part(t, path, TOKENS_IDS, err));
    FSDP_TRY(check_size(t, TOKENS_IDS, err));
    if (!t->header.info.has_learned)
        return FSDP_OK;
    FSDP_TRY(open_part(t, path, TOKENS_LEARNED, err));
    return check_size(t, TOKENS_LEARNED, err);
}

int tokens_open(struct tokens **out, const char *path, struct fsdp_err *err)
{
    struct tokens *t = fsdp_alloc(1, sizeof *t, "token file", err);

    if (!t)
        return FSDP_ENOMEM;
    for (int i = 0; i < TOKENS_NPARTS; i++)
        t->parts[i].fd = -1;
    const int rc = open_all(t, path, err);
    if (rc == FSDP_OK)
        *out = t;
    else
        tokens_close(t);
    return rc;
}

void tokens_close(struct tokens *t)
{
    if (!t)
        return;
    if (t->map)
        munmap(t->map, t->parts[TOKENS_INDEX].nbytes);
    for (int i = 0; i < TOKENS_NPARTS; i++) {
        if (t->parts[i].fd >= 0)
            close(t->parts[i].fd);
        fsdp_free(t->parts[i].path);
    }
    fsdp_free(t);
}

/* ---- what is there --------------------------------------------------------------------------- */

const struct tokens_info *tokens_info(const struct tokens *t)
{
    return &t->header.info;
}

uint64_t tokens_begin(const struct tokens *t, uint64_t document)
{
    return document ? le64toh(t->ends[document - 1]) : 0;
}

uint64_t tokens_find(const struct tokens *t, uint64_t token)
{
    uint64_t first = 0, end = t->header.info.ndocuments;

    while (first < end) { /* the first document that ends behind the token */
        const uint64_t middle = first + (end - first) / 2;
        if (le64toh(t->ends[middle]) > token)
            end = middle;
        else
            first = middle + 1;
    }
    return first;
}

static int read_at(const struct tokens_file *file, void *out, size_t nbytes, uint64_t at,
                   struct fsdp_err *err)
{
    for (size_t have = 0; have < nbytes;) {
        const ssize_t n = pread(file->fd, (char *)out + have, nbytes - have, (off_t)(at + have));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fsdp_err_sys(err, errno, "cannot read '%s' at byte %" PRIu64, file->path,
                                at + have);
        if (n == 0)
            return fsdp_err_set(err, FSDP_ECORRUPT,
                                "'%s' ends at byte %" PRIu64 ": it was cut after it was opened",
                                file->path, at + have);
        have += (size_t)n;
    }
    return FSDP_OK;
}

int tokens_learned(const struct tokens *t, uint64_t first, size_t ntokens, bool *learned,
                   struct fsdp_err *err)
{
    unsigned char bits[4096];

    if (!t->header.info.has_learned) {
        for (size_t i = 0; i < ntokens; i++)
            learned[i] = true;
        return FSDP_OK;
    }
    for (size_t done = 0; done < ntokens;) {
        const uint64_t at = first + done, byte = at / 8;
        const size_t skip = at % 8, room = 8 * sizeof bits - skip;
        const size_t n = ntokens - done < room ? ntokens - done : room;
        FSDP_TRY(read_at(&t->parts[TOKENS_LEARNED], bits, (skip + n + 7) / 8, byte, err));
        for (size_t i = 0; i < n; i++)
            learned[done + i] = bits[(skip + i) / 8] >> (skip + i) % 8 & 1;
        done += n;
    }
    return FSDP_OK;
}

static int verify_part(const struct tokens *t, enum tokens_part part, void *buffer,
                       struct fsdp_err *err)
{
    const struct tokens_file *file = &t->parts[part];
    uint64_t crc = 0;

    for (uint64_t at = 0; at < file->nbytes;) {
        const uint64_t left = file->nbytes - at;
        const size_t n = left < BUFFER_NBYTES ? (size_t)left : BUFFER_NBYTES;
        FSDP_TRY(read_at(file, buffer, n, at, err));
        crc = tokens_crc(crc, buffer, n);
        at += n;
    }
    return crc == t->header.crc[part]
               ? FSDP_OK
               : fsdp_err_set(err, FSDP_ECORRUPT,
                              "'%s' is damaged: it does not have the checksum that %s names",
                              file->path, t->parts[TOKENS_INDEX].path);
}

int tokens_verify(const struct tokens *t, struct fsdp_err *err)
{
    void *buffer = fsdp_alloc_unset(BUFFER_NBYTES, 1, "buffer of a token file", err);

    if (!buffer)
        return FSDP_ENOMEM;
    int rc = verify_part(t, TOKENS_IDS, buffer, err);
    if (rc == FSDP_OK && t->header.info.has_learned)
        rc = verify_part(t, TOKENS_LEARNED, buffer, err);
    fsdp_free(buffer);
    return rc;
}
