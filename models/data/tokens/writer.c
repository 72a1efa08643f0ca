/* SPDX-License-Identifier: Apache-2.0 */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <string.h>
#include <unistd.h>

#include "writer.h"

enum { BUFFER_NBYTES = 1 << 18 };

struct part {
    char *path;    /* with .part */
    int fd;        /* -1: not open */
    size_t nbytes; /* in the buffer */
    unsigned char *buffer;
};

struct tokens_writer {
    char *path;
    struct tokens_state state;
    struct part parts[TOKENS_NPARTS];
};

char *tokens_part_path(const char *path, enum tokens_part part, struct fsdp_err *err)
{
    return fsdp_sprintf(err, "%s%s" TOKENS_PART, path, tokens_ends[part]);
}

const struct tokens_info *tokens_writer_info(const struct tokens_writer *w)
{
    return &w->state.header.info;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static int write_all(const struct part *part, const unsigned char *from, size_t nbytes,
                     struct fsdp_err *err)
{
    for (size_t have = 0; have < nbytes;) {
        const ssize_t n = write(part->fd, from + have, nbytes - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fsdp_err_sys(err, errno, "cannot write '%s'", part->path);
        have += (size_t)n;
    }
    return FSDP_OK;
}

static int flush_part(struct tokens_writer *w, enum tokens_part i, struct fsdp_err *err)
{
    struct part *part = &w->parts[i];

    FSDP_TRY(write_all(part, part->buffer, part->nbytes, err));
    w->state.header.crc[i] = tokens_crc(w->state.header.crc[i], part->buffer, part->nbytes);
    part->nbytes = 0;
    return FSDP_OK;
}

static int put_bytes(struct tokens_writer *w, enum tokens_part i, const void *bytes, size_t nbytes,
                     struct fsdp_err *err)
{
    struct part *part = &w->parts[i];

    if (nbytes > BUFFER_NBYTES - part->nbytes)
        FSDP_TRY(flush_part(w, i, err));
    memcpy(part->buffer + part->nbytes, bytes, nbytes);
    part->nbytes += nbytes;
    return FSDP_OK;
}

/* ---- the three parts ------------------------------------------------------------------------- */

static int open_part(struct tokens_writer *w, enum tokens_part i, bool resume, struct fsdp_err *err)
{
    struct part *part = &w->parts[i];
    const uint64_t nbytes = i == TOKENS_LEARNED ? w->state.header.info.ntokens / 8
                                                : tokens_part_nbytes(&w->state.header, i);

    if (!(part->buffer = fsdp_alloc_unset(BUFFER_NBYTES, 1, "buffer of a token file", err)))
        return FSDP_ENOMEM;
    FSDP_TRY(fsdp_file_open(&part->fd, part->path,
                            O_WRONLY | O_NOFOLLOW | (resume ? 0 : O_CREAT | O_EXCL), err));
    const off_t end = lseek(part->fd, 0, SEEK_END);
    if (resume && (end < 0 || (uint64_t)end < nbytes))
        return fsdp_err_set(err, FSDP_ECORRUPT,
                            "'%s' is shorter than the %" PRIu64
                            " bytes that its journal names; begin anew (--overwrite)",
                            part->path, nbytes);
    if (ftruncate(part->fd, (off_t)nbytes) || lseek(part->fd, (off_t)nbytes, SEEK_SET) < 0)
        return fsdp_err_sys(err, errno, "'%s'", part->path);
    return FSDP_OK;
}

static int open_all(struct tokens_writer *w, const char *path, bool resume, struct fsdp_err *err)
{
    if (!(w->path = fsdp_strdup(path, err)))
        return FSDP_ENOMEM;
    for (int i = 0; i < TOKENS_NPARTS; i++) {
        if (!(w->parts[i].path = tokens_part_path(path, (enum tokens_part)i, err)))
            return FSDP_ENOMEM;
        if (i != TOKENS_LEARNED || w->state.header.info.has_learned)
            FSDP_TRY(open_part(w, (enum tokens_part)i, resume, err));
        else if (resume && unlink(w->parts[i].path) && errno != ENOENT)
            return fsdp_err_sys(err, errno, "cannot remove '%s'", w->parts[i].path);
    }
    return FSDP_OK;
}

int tokens_writer_open(struct tokens_writer **out, const char *path,
                       const struct tokens_state *state, bool resume, struct fsdp_err *err)
{
    struct tokens_writer *w = fsdp_alloc(1, sizeof *w, "token file", err);

    if (!w)
        return FSDP_ENOMEM;
    w->state = *state;
    for (int i = 0; i < TOKENS_NPARTS; i++)
        w->parts[i].fd = -1;
    const int rc = open_all(w, path, resume, err);
    if (rc == FSDP_OK)
        *out = w;
    else
        tokens_writer_close(w);
    return rc;
}

void tokens_writer_close(struct tokens_writer *w)
{
    if (!w)
        return;
    for (int i = 0; i < TOKENS_NPARTS; i++) {
        if (w->parts[i].fd >= 0)
            close(w->parts[i].fd);
        fsdp_free(w->parts[i].path);
        fsdp_free(w->parts[i].buffer);
    }
    fsdp_free(w->path);
    fsdp_free(w);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static int put_id(struct tokens_writer *w, int32_t id, struct fsdp_err *err)
{
    const uint16_t narrow = htole16((uint16_t)id);
    const uint32_t wide = htole32((uint32_t)id);

    if (w->state.header.info.token_nbytes == 4)
        return put_bytes(w, TOKENS_IDS, &wide, sizeof wide, err);
    if (id > UINT16_MAX)
        return fsdp_err_set(err, FSDP_EINVAL, "'%s' has tokens of 16 bits, and token %d needs more",
                            w->path, id);
    return put_bytes(w, TOKENS_IDS, &narrow, sizeof narrow, err);
}

static int put_bit(struct tokens_writer *w, bool learned, struct fsdp_err *err)
{
    const unsigned place = w->state.header.info.ntokens % 8;

    w->state.bits |= (unsigned char)(learned << place);
    if (place < 7)
        return FSDP_OK;
    FSDP_TRY(put_bytes(w, TOKENS_LEARNED, &w->state.bits, 1, err));
    w->state.bits = 0;
    return FSDP_OK;
}

/* All tokens so far are learned. */
static int begin_learned(struct tokens_writer *w, struct fsdp_err *err)
{
    static const unsigned char all = 0xff;
    const uint64_t ntokens = w->state.header.info.ntokens;

    w->state.header.info.ntokens = 0;
    const int rc = open_part(w, TOKENS_LEARNED, false, err);
    w->state.header.info.ntokens = ntokens;
    FSDP_TRY(rc);
    w->state.header.info.has_learned = true;
    for (uint64_t i = 0; i < ntokens / 8; i++)
        FSDP_TRY(put_bytes(w, TOKENS_LEARNED, &all, 1, err));
    w->state.bits = (unsigned char)((1U << ntokens % 8) - 1);
    return FSDP_OK;
}

/* Tokens of 16 bits that are all learned, as many as the buffer has room for. */
static size_t put_narrow(struct tokens_writer *w, const int32_t *ids, size_t ntokens)
{
    struct part *part = &w->parts[TOKENS_IDS];
    const size_t room = (BUFFER_NBYTES - part->nbytes) / sizeof(uint16_t);
    const size_t most = ntokens < room ? ntokens : room;
    size_t n = 0;

    for (; n < most && ids[n] <= UINT16_MAX; n++) {
        const uint16_t id = htole16((uint16_t)ids[n]);
        memcpy(part->buffer + part->nbytes + n * sizeof id, &id, sizeof id);
    }
    part->nbytes += n * sizeof(uint16_t);
    w->state.header.info.ntokens += n;
    return n;
}

int tokens_writer_put(struct tokens_writer *w, const int32_t *ids, const bool *learned,
                      size_t ntokens, struct fsdp_err *err)
{
    struct tokens_info *info = &w->state.header.info;

    if (!learned && !info->has_learned && info->token_nbytes == 2) {
        const size_t n = put_narrow(w, ids, ntokens);
        ids += n;
        ntokens -= n;
    }
    for (size_t i = 0; i < ntokens; i++) {
        if (learned && !learned[i] && !info->has_learned)
            FSDP_TRY(begin_learned(w, err));
        FSDP_TRY(put_id(w, ids[i], err));
        if (info->has_learned)
            FSDP_TRY(put_bit(w, !learned || learned[i], err));
        info->ntokens++;
    }
    return FSDP_OK;
}

int tokens_writer_end_document(struct tokens_writer *w, struct fsdp_err *err)
{
    const uint64_t end = htole64(w->state.header.info.ntokens);

    FSDP_TRY(put_bytes(w, TOKENS_INDEX, &end, sizeof end, err));
    w->state.header.info.ndocuments++;
    return FSDP_OK;
}

/* ---- on disk --------------------------------------------------------------------------------- */

int tokens_writer_sync(struct tokens_writer *w, struct tokens_state *state, struct fsdp_err *err)
{
    for (int i = 0; i < TOKENS_NPARTS; i++) {
        if (w->parts[i].fd < 0)
            continue;
        FSDP_TRY(flush_part(w, (enum tokens_part)i, err));
        if (fdatasync(w->parts[i].fd))
            return fsdp_err_sys(err, errno, "cannot write '%s'", w->parts[i].path);
    }
    *state = w->state;
    return FSDP_OK;
}

/* The folder's entries, of which some became others. */
static int sync_folder(const char *path, struct fsdp_err *err)
{
    char *copy = fsdp_strdup(path, err);

    if (!copy)
        return FSDP_ENOMEM;
    const char *folder = dirname(copy);
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = FSDP_OK;
    if (fd < 0 || (fsync(fd) && errno != EINVAL))
        rc = fsdp_err_sys(err, errno, "folder '%s'", folder);
    if (fd >= 0)
        close(fd);
    fsdp_free(copy);
    return rc;
}

static char *name_of(const char *path, enum tokens_part i, struct fsdp_err *err)
{
    return fsdp_sprintf(err, "%s%s", path, tokens_ends[i]);
}

/* *found: it was there. */
static int name_part(const char *path, enum tokens_part i, bool *found, struct fsdp_err *err)
{
    char *to = name_of(path, i, err), *from = to ? tokens_part_path(path, i, err) : NULL;
    int rc = from ? FSDP_OK : FSDP_ENOMEM;

    *found = rc == FSDP_OK && !rename(from, to);
    if (rc == FSDP_OK && !*found && (errno != ENOENT || access(to, F_OK)))
        rc = fsdp_err_sys(err, errno, "cannot rename '%s' to '%s'", from, to);
    fsdp_free(from);
    fsdp_free(to);
    return rc;
}

static int drop(const char *path, enum tokens_part i, struct fsdp_err *err)
{
    char *name = name_of(path, i, err);
    int rc = name ? FSDP_OK : FSDP_ENOMEM;

    if (rc == FSDP_OK && unlink(name) && errno != ENOENT)
        rc = fsdp_err_sys(err, errno, "cannot remove '%s'", name);
    fsdp_free(name);
    return rc;
}

/* An older index is never next to newer ids: it goes first, and the new one comes last. */
int tokens_give_names(const char *path, bool has_learned, struct fsdp_err *err)
{
    char *index = tokens_part_path(path, TOKENS_INDEX, err);
    bool found;

    if (!index)
        return FSDP_ENOMEM;
    const bool is_named = access(index, F_OK) != 0;
    fsdp_free(index);
    if (is_named)
        return sync_folder(path, err);
    FSDP_TRY(drop(path, TOKENS_INDEX, err));
    if (!has_learned)
        FSDP_TRY(drop(path, TOKENS_LEARNED, err));
    FSDP_TRY(name_part(path, TOKENS_IDS, &found, err));
    if (has_learned)
        FSDP_TRY(name_part(path, TOKENS_LEARNED, &found, err));
    FSDP_TRY(sync_folder(path, err));
    FSDP_TRY(name_part(path, TOKENS_INDEX, &found, err));
    return sync_folder(path, err);
}

static int write_header(struct tokens_writer *w, struct fsdp_err *err)
{
    const struct part *index = &w->parts[TOKENS_INDEX];
    unsigned char header[TOKENS_HEADER_NBYTES];

    tokens_header_put(header, &w->state.header);
    if (pwrite(index->fd, header, sizeof header, 0) != (ssize_t)sizeof header ||
        fdatasync(index->fd))
        return fsdp_err_sys(err, errno, "cannot write '%s'", index->path);
    return FSDP_OK;
}

int tokens_writer_seal(struct tokens_writer *w, const struct tokens_info *info,
                       struct tokens_state *state, struct fsdp_err *err)
{
    struct tokens_info *mine = &w->state.header.info;

    mine->nbytes = info->nbytes;
    mine->nbad = info->nbad;
    mine->source_hash = info->source_hash;
    if (mine->has_learned && mine->ntokens % 8)
        FSDP_TRY(put_bytes(w, TOKENS_LEARNED, &w->state.bits, 1, err));
    FSDP_TRY(tokens_writer_sync(w, state, err));
    return write_header(w, err);
}
