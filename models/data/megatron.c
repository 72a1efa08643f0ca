/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/source/list.h"
#include "megatron.h"

enum { HEADER_NBYTES = 34, VERSION = 1, CHUNK = 4096, MAX_TYPE = 8 };
static const char MAGIC[9] = "MMIDIDX\0";

static uint64_t le64(const unsigned char *p)
{
    uint64_t x = 0;
    for (int i = 7; i >= 0; i--)
        x = x << 8 | p[i];
    return x;
}

static uint32_t le32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* ---- names ---------------------------------------------------------------------------------- */

int data_megatron_bin(char **out, const char *path, struct fsdp_err *err)
{
    struct stat st;
    const bool of_index = data_name_ends(path, ".idx");
    const size_t len = strlen(path) - (of_index ? strlen(".idx") : 0);
    char *bin = fsdp_sprintf(err, "%.*s.bin", (int)len, path);

    if (!bin)
        return FSDP_ENOMEM;
    if (!of_index && (stat(path, &st) == 0 || stat(bin, &st) != 0)) {
        fsdp_free(bin);
        bin = fsdp_strdup(path, err); /* whose name is in an error */
    }
    *out = bin;
    return bin ? FSDP_OK : FSDP_ENOMEM;
}

static char *index_path(const char *bin, struct fsdp_err *err)
{
    const size_t len = strlen(bin) - (data_name_ends(bin, ".bin") ? strlen(".bin") : 0);
    return fsdp_sprintf(err, "%.*s.idx", (int)len, bin);
}

/* ---- checking ------------------------------------------------------------------------------- */

struct index {
    char *path;
    int fd;
    uint64_t nbytes, nsequences, ndocuments, ntokens;
    int token_nbytes;
    unsigned char lengths[4 * CHUNK], places[8 * CHUNK];
};

static uint64_t places_at(const struct index *x)
{
    return HEADER_NBYTES + 4 * x->nsequences;
}

static uint64_t documents_at(const struct index *x)
{
    return HEADER_NBYTES + 12 * x->nsequences;
}

static int read_at(int fd, const char *path, void *out, size_t nbytes, uint64_t offset,
                   struct fsdp_err *err)
{
    for (size_t have = 0; have < nbytes;) {
        const ssize_t got = pread(fd, (char *)out + have, nbytes - have, (off_t)(offset + have));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fsdp_err_sys(err, errno, "%s: byte %" PRIu64, path, offset + have);
        if (got == 0)
            return fsdp_err_set(err, FSDP_ECORRUPT, "%s: truncated: it has no byte %" PRIu64, path,
                                offset + have);
        have += (size_t)got;
    }
    return FSDP_OK;
}

static int check_type(struct index *x, int code, struct fsdp_err *err)
{
    static const char *const types[MAX_TYPE + 1] = {
        [1] = "uint8", [2] = "int8",    [3] = "int16",   [4] = "int32",
        [5] = "int64", [6] = "float64", [7] = "float32", [8] = "uint16"};

    x->token_nbytes = code == 8 ? 2 : code == 4 ? 4 : 0;
    if (x->token_nbytes)
        return FSDP_OK;
    if (code > MAX_TYPE || !types[code])
        return fsdp_err_set(err, FSDP_ECORRUPT, "%s: its ids have the unknown type %d", x->path,
                            code);
    return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s: its ids are %s; uint16 and int32 are read",
                        x->path, types[code]);
}

/* The numbers in the header must be those of the index's size. */
static int check_header(struct index *x, struct fsdp_err *err)
{
    unsigned char header[HEADER_NBYTES];

    FSDP_TRY(read_at(x->fd, x->path, header, sizeof header, 0, err));
    if (memcmp(header, MAGIC, sizeof MAGIC) != 0)
        return fsdp_err_set(err, FSDP_EINVAL, "%s: not an index of Megatron-LM (MMIDIDX)", x->path);
    const uint64_t version = le64(header + 9), ndocuments = le64(header + 26);
    if (version != VERSION)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s: version %" PRIu64 "; version %d is read",
                            x->path, version, VERSION);
    FSDP_TRY(check_type(x, header[17], err));
    x->nsequences = le64(header + 18);
    if (x->nsequences > x->nbytes / 12 || ndocuments < 1 || ndocuments > x->nbytes / 8 ||
        documents_at(x) + 8 * ndocuments > x->nbytes)
        return fsdp_err_set(err, FSDP_ECORRUPT,
                            "%s: truncated or damaged: %" PRIu64 " sequences and %" PRIu64
                            " documents do not fit its %" PRIu64 " bytes",
                            x->path, x->nsequences, ndocuments ? ndocuments - 1 : 0, x->nbytes);
    x->ndocuments = ndocuments - 1;
    const uint64_t rest = x->nbytes - documents_at(x) - 8 * ndocuments;
    if (rest == 0)
        return FSDP_OK;
    return rest == x->nsequences
               ? fsdp_err_set(err, FSDP_EUNSUPPORTED,
                              "%s: its sequences have modes (multimodal data)", x->path)
               : fsdp_err_set(err, FSDP_ECORRUPT, "%s: %" PRIu64 " bytes are left over at its end",
                              x->path, rest);
}

/* Sequences lie back to back. */
static int check_sequences(struct index *x, struct fsdp_err *err)
{
    for (uint64_t first = 0; first < x->nsequences; first += CHUNK) {
        const uint64_t left = x->nsequences - first;
        const size_t here = left < CHUNK ? (size_t)left : CHUNK;
        FSDP_TRY(read_at(x->fd, x->path, x->lengths, 4 * here, HEADER_NBYTES + 4 * first, err));
        FSDP_TRY(read_at(x->fd, x->path, x->places, 8 * here, places_at(x) + 8 * first, err));
        for (size_t i = 0; i < here; i++) {
            const uint32_t length = le32(x->lengths + 4 * i);
            if (length > INT32_MAX ||
                le64(x->places + 8 * i) != x->ntokens * (uint64_t)x->token_nbytes)
                return fsdp_err_set(err, FSDP_ECORRUPT,
                                    "%s: damaged: sequence %" PRIu64
                                    " does not begin where the one before ends",
                                    x->path, first + i);
            x->ntokens += length;
        }
    }
    return FSDP_OK;
}

/* Documents are sequences in order, from the first to the last. */
static int check_documents(struct index *x, struct fsdp_err *err)
{
    uint64_t last = 0;

    for (uint64_t first = 0; first <= x->ndocuments; first += CHUNK) {
        const uint64_t left = x->ndocuments + 1 - first;
        const size_t here = left < CHUNK ? (size_t)left : CHUNK;
        FSDP_TRY(read_at(x->fd, x->path, x->places, 8 * here, documents_at(x) + 8 * first, err));
        for (size_t i = 0; i < here; i++) {
            const uint64_t sequence = le64(x->places + 8 * i);
            if (sequence < last || sequence > x->nsequences || (first + i == 0 && sequence))
                return fsdp_err_set(err, FSDP_ECORRUPT,
                                    "%s: damaged: document %" PRIu64 " begins at sequence %" PRIu64
                                    " of %" PRIu64 ", and the one before at %" PRIu64,
                                    x->path, first + i, sequence, x->nsequences, last);
            last = sequence;
        }
    }
    if (last == x->nsequences)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_ECORRUPT,
                        "%s: damaged: its documents end at sequence %" PRIu64 " of %" PRIu64,
                        x->path, last, x->nsequences);
}

static int check_index(struct index *x, const char *bin, uint64_t bin_nbytes, struct fsdp_err *err)
{
    struct stat st;

    if (fstat(x->fd, &st) != 0)
        return fsdp_err_sys(err, errno, "%s", x->path);
    x->nbytes = (uint64_t)st.st_size;
    FSDP_TRY(check_header(x, err));
    FSDP_TRY(check_sequences(x, err));
    FSDP_TRY(check_documents(x, err));
    const uint64_t want = x->ntokens * (uint64_t)x->token_nbytes;
    if (bin_nbytes == want)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_ECORRUPT,
                        "%s: %s: %s promises %" PRIu64 " tokens, %" PRIu64
                        " bytes in all, and the file has %" PRIu64,
                        bin, bin_nbytes < want ? "truncated" : "too long", x->path, x->ntokens,
                        want, bin_nbytes);
}

int data_megatron_measure(struct data_file *file, uint64_t nbytes, struct fsdp_err *err)
{
    struct index *x = fsdp_alloc(1, sizeof *x, "index", err);
    int rc = FSDP_ENOMEM;

    if (!x)
        return FSDP_ENOMEM;
    x->fd = -1;
    if (!(x->path = index_path(file->path, err)))
        goto out;
    FSDP_TRY_GOTO(fsdp_file_open(&x->fd, x->path, O_RDONLY, err), out);
    FSDP_TRY_GOTO(check_index(x, file->path, nbytes, err), out);
    file->token_nbytes = x->token_nbytes;
    file->ntokens = x->ntokens;
    file->ndocuments = x->ndocuments;
    file->places_at = places_at(x);
    file->documents_at = documents_at(x);
out:
    if (x->fd >= 0)
        close(x->fd);
    fsdp_free(x->path);
    fsdp_free(x);
    return rc;
}

/* ---- documents ------------------------------------------------------------------------------ */

static int open_index(struct data_files *files, int i, struct fsdp_err *err)
{
    char *path;
    int rc;

    if (files->index_fd >= 0 && files->index_file == i)
        return FSDP_OK;
    if (files->index_fd >= 0)
        close(files->index_fd);
    files->index_fd = -1;
    if (!(path = index_path(files->files[i].path, err)))
        return FSDP_ENOMEM;
    rc = fsdp_file_open(&files->index_fd, path, O_RDONLY, err);
    if (rc != FSDP_OK)
        files->index_fd = -1;
    files->index_file = i;
    fsdp_free(path);
    return rc;
}

/* The first token of a document among those of all files. */
static int begin_of(uint64_t *out, struct data_files *files, int i, uint64_t document,
                    struct fsdp_err *err)
{
    const struct data_file *file = &files->files[i];
    unsigned char number[8];

    *out = file->first + file->ntokens;
    if (document >= file->ndocuments)
        return FSDP_OK;
    FSDP_TRY(open_index(files, i, err));
    FSDP_TRY(
        read_at(files->index_fd, file->path, number, 8, file->documents_at + 8 * document, err));
    const uint64_t sequence = le64(number), at = file->places_at + 8 * sequence;
    if (sequence > file->documents_at / 12 || at >= file->documents_at)
        return FSDP_OK; /* an empty document at the end */
    FSDP_TRY(read_at(files->index_fd, file->path, number, 8, at, err));
    *out = file->first + le64(number) / (uint64_t)file->token_nbytes;
    return FSDP_OK;
}

int data_megatron_find(struct data_megatron_at *out, struct data_files *files, int file,
                       uint64_t token, struct fsdp_err *err)
{
    struct data_megatron_at at = {.file = file};
    uint64_t lo = 0, hi = files->files[at.file].ndocuments, begin;

    /* Document lo begins at or before the token, document hi behind it. */
    while (hi - lo > 1) {
        const uint64_t mid = lo + (hi - lo) / 2;
        FSDP_TRY(begin_of(&begin, files, at.file, mid, err));
        if (begin <= token)
            lo = mid;
        else
            hi = mid;
    }
    at.document = lo;
    FSDP_TRY(begin_of(&at.end, files, at.file, lo + 1, err));
    *out = at;
    return FSDP_OK;
}

int data_megatron_next(struct data_megatron_at *at, struct data_files *files, struct fsdp_err *err)
{
    for (const uint64_t before = at->end; at->end == before;) {
        if (++at->document >= files->files[at->file].ndocuments) {
            at->document = 0;
            if (++at->file == files->nfiles) {
                at->file--;
                at->end = UINT64_MAX;
                return FSDP_OK;
            }
        }
        FSDP_TRY(begin_of(&at->end, files, at->file, at->document + 1, err));
    }
    return FSDP_OK;
}
