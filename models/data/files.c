/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a data set as one run of tokens. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data.h"
#include "index.h"
#include "data/source/list.h"
#include "megatron.h"
#include "data/source/stream.h"

/* llm.c's files: 256 little-endian 32-bit numbers (magic, version, tokens), then the tokens. */
enum { LLMC_HEADER_NBYTES = 1024, LLMC_MAGIC_U16 = 20240520, LLMC_MAGIC_U32 = 20240801 };
enum { LLMC_VERSION_U16 = 1, LLMC_VERSION_U32 = 7 };

static uint32_t le32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* ---- sizes and headers ----------------------------------------------------------------------- */

static int read_header(unsigned char out[LLMC_HEADER_NBYTES], const char *path,
                       struct fsdp_err *err)
{
    int rc = FSDP_OK, fd;

    FSDP_TRY(fsdp_file_open(&fd, path, O_RDONLY, err));
    ssize_t got = pread(fd, out, LLMC_HEADER_NBYTES, 0);
    if (got < 0)
        rc = fsdp_err_sys(err, errno, "%s", path);
    else if (got < LLMC_HEADER_NBYTES)
        rc = fsdp_err_set(err, FSDP_ECORRUPT,
                          "%s: truncated: %zd bytes, and the header of format llmc alone has "
                          "%d",
                          path, got, LLMC_HEADER_NBYTES);
    close(fd);
    return rc;
}

static int measure_llmc(struct data_file *file, uint64_t nbytes, struct fsdp_err *err)
{
    unsigned char header[LLMC_HEADER_NBYTES];

    FSDP_TRY(read_header(header, file->path, err));
    uint32_t magic = le32(header), version = le32(header + 4);
    if (magic == LLMC_MAGIC_U16 && version == LLMC_VERSION_U16)
        file->token_nbytes = 2;
    else if (magic == LLMC_MAGIC_U32 && version == LLMC_VERSION_U32)
        file->token_nbytes = 4;
    else
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: not one of llm.c's .bin files: magic %" PRIu32 " version %" PRIu32
                            ", known are %d version %d and %d version %d",
                            file->path, magic, version, LLMC_MAGIC_U16, LLMC_VERSION_U16,
                            LLMC_MAGIC_U32, LLMC_VERSION_U32);
    file->offset = LLMC_HEADER_NBYTES;
    file->ntokens = le32(header + 8);
    uint64_t want = file->offset + file->ntokens * (uint64_t)file->token_nbytes;
    if (nbytes != want)
        return fsdp_err_set(err, FSDP_ECORRUPT,
                            "%s: %s: the header promises %" PRIu64 " tokens, %" PRIu64
                            " bytes in all, and the file has %" PRIu64,
                            file->path, nbytes < want ? "truncated" : "too long", file->ntokens,
                            want, nbytes);
    return FSDP_OK;
}

/* A file that is packed or far comes to lie in the temporary file. */
static int unpack_file(struct data_files *files, struct data_file *file, enum data_format format,
                       uint64_t *nbytes, struct fsdp_err *err)
{
    if (format == DATA_LLMC || format == DATA_MEGATRON)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "%s: packed files and addresses are not read in this format; "
                            "unpack or copy it first",
                            file->path);
    FSDP_TRY(data_unpack(&files->unpacked, file->path, files->remote, &file->offset, nbytes, err));
    file->unpacked = true;
    return FSDP_OK;
}

static int file_nbytes(uint64_t *out, const char *path, struct fsdp_err *err)
{
    struct stat st;

    if (stat(path, &st) != 0)
        return fsdp_err_sys(err, errno, "%s", path);
    if (!S_ISREG(st.st_mode))
        return fsdp_err_set(err, FSDP_EINVAL, "%s: neither a file nor a folder", path);
    *out = (uint64_t)st.st_size;
    return FSDP_OK;
}

/* Files whose bytes are read where they lie, at an address, too. */
static bool is_read_far(const struct data_file *file, enum data_format format)
{
    return data_is_remote(file->path) && !data_stream_is_packed(file->path) &&
           (format == DATA_TEXT || format == DATA_U16 || format == DATA_U32);
}

static int open_far(struct data_files *files, struct data_file *file, uint64_t *nbytes,
                    struct fsdp_err *err)
{
    const struct data_far_opts opts = {.remote = files->remote,
                                       .room_nbytes = files->remote_nbytes};

    if (!files->far)
        FSDP_TRY(data_far_create(&files->far, &opts, err));
    return data_far_open(files->far, file->path, &file->far, nbytes, err);
}

/* The index of a token file, where it has one. */
static int open_index(const struct data_files *files, struct data_file *file, uint64_t nbytes,
                      enum data_format format, struct fsdp_err *err)
{
    bool exists = false;

    if ((format != DATA_U16 && format != DATA_U32) || file->unpacked)
        return FSDP_OK;
    if (file->far >= 0)
        FSDP_TRY(data_index_fetch(&file->index, file->path, nbytes, files->remote, err));
    else
        FSDP_TRY(tokens_exist(&exists, file->path, err));
    if (exists)
        FSDP_TRY(tokens_open(&file->index, file->path, err));
    if (!file->index)
        return FSDP_OK;
    if (tokens_info(file->index)->token_nbytes != file->token_nbytes)
        return fsdp_err_set(
            err, FSDP_EINVAL, "%s: by its index, tokens have %d bytes: set data.format to %s",
            file->path, tokens_info(file->index)->token_nbytes, format == DATA_U16 ? "u32" : "u16");
    return FSDP_OK;
}

static int measure_file(struct data_files *files, struct data_file *file, enum data_format format,
                        struct fsdp_err *err)
{
    uint64_t nbytes;

    file->far = -1;
    if (is_read_far(file, format))
        FSDP_TRY(open_far(files, file, &nbytes, err));
    else if (data_is_remote(file->path) || data_stream_is_packed(file->path))
        FSDP_TRY(unpack_file(files, file, format, &nbytes, err));
    else
        FSDP_TRY(file_nbytes(&nbytes, file->path, err));
    if (format == DATA_LLMC)
        return measure_llmc(file, nbytes, err);
    if (format == DATA_MEGATRON)
        return data_megatron_measure(file, nbytes, err);
    file->token_nbytes = format == DATA_U16 ? 2 : format == DATA_U32 ? 4 : 1;
    uint64_t rest = nbytes % (uint64_t)file->token_nbytes;
    if (rest)
        return fsdp_err_set(err, FSDP_ECORRUPT,
                            "%s: truncated: %" PRIu64 " bytes are not a whole number of "
                            "%d-byte tokens (%" PRIu64 " left over)",
                            file->path, nbytes, file->token_nbytes, rest);
    file->ntokens = nbytes / (uint64_t)file->token_nbytes;
    return open_index(files, file, nbytes, format, err);
}

/* The paths of the list become those of the files. */
static int take_list(struct data_files *files, struct data_list *list, struct fsdp_err *err)
{
    if (list->npaths > INT_MAX)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "data: %zu files are too many", list->npaths);
    files->files = fsdp_alloc(list->npaths, sizeof *files->files, "list of files", err);
    if (!files->files)
        return FSDP_ENOMEM;
    files->nfiles = (int)list->npaths;
    for (size_t i = 0; i < list->npaths; i++)
        files->files[i].path = list->paths[i];
    list->npaths = 0;
    return FSDP_OK;
}

static int list_path(struct data_list *list, const char *path, enum data_format format,
                     struct fsdp_err *err)
{
    char *bin;

    if (format != DATA_MEGATRON)
        return data_list_add(list, path, err);
    FSDP_TRY(data_megatron_bin(&bin, path, err));
    int rc = data_list_add(list, bin, err);
    fsdp_free(bin);
    return rc;
}

static int list_files(struct data_files *files, const char *const *paths, int npaths,
                      enum data_format format, struct fsdp_err *err)
{
    static const char *const companions[] = {".index", ".learned", NULL};
    const bool pairs = format == DATA_MEGATRON;
    struct data_list list = {
        .only = pairs ? ".bin" : NULL,
        .partner = pairs ? ".idx" : NULL,
        .skipped = format == DATA_U16 || format == DATA_U32 ? companions : NULL,
        .remote = files->remote,
    };
    int rc = FSDP_OK;

    for (int i = 0; rc == FSDP_OK && i < npaths; i++)
        rc = list_path(&list, paths[i], format, err);
    if (rc == FSDP_OK && (format == DATA_TEXT || format == DATA_JSONL))
        rc = data_list_refuse_tokens(&list, err);
    if (rc == FSDP_OK)
        rc = take_list(files, &list, err);
    data_list_free(&list);
    return rc;
}

int data_files_open(struct data_files *out, const struct data_opts *opts, struct fsdp_err *err)
{
    struct data_files files = {.buffer_ntokens = (size_t)opts->seq_len + 1,
                               .remote = opts->remote,
                               .remote_nbytes = opts->remote_nbytes,
                               .index_fd = -1,
                               .unpacked = {.fd = -1}};
    int rc = FSDP_OK;

    for (int i = 0; i < DATA_OPEN_FILES; i++)
        files.open[i].fd = -1;
    FSDP_TRY_GOTO(list_files(&files, opts->paths, opts->npaths, opts->format, err), out);
    for (int i = 0; i < files.nfiles; i++) {
        files.files[i].first = files.ntokens;
        FSDP_TRY_GOTO(measure_file(&files, &files.files[i], opts->format, err), out);
        files.ntokens += files.files[i].ntokens;
    }
    if (!files.ntokens) {
        rc = fsdp_err_set(err, FSDP_EINVAL, "%s%s: empty, no tokens at all", opts->paths[0],
                          opts->npaths > 1 ? " and the others" : "");
        goto out;
    }
    files.buffer = fsdp_alloc(files.buffer_ntokens, 4, "data row", err);
    rc = files.buffer ? FSDP_OK : FSDP_ENOMEM;
out:
    if (rc == FSDP_OK)
        *out = files;
    else
        data_files_close(&files);
    return rc;
}

void data_files_close(struct data_files *files)
{
    if (files->index_fd >= 0)
        close(files->index_fd);
    data_unpacked_close(&files->unpacked);
    data_far_destroy(files->far);
    for (int i = 0; i < DATA_OPEN_FILES; i++)
        if (files->open[i].fd >= 0)
            close(files->open[i].fd);
    for (int i = 0; i < files->nfiles; i++) {
        tokens_close(files->files[i].index);
        fsdp_free(files->files[i].path);
    }
    fsdp_free(files->files);
    fsdp_free(files->buffer);
}

/* ---- reading --------------------------------------------------------------------------------- */

static int file_fd(int *out, struct data_files *files, int i, struct fsdp_err *err)
{
    int slot = i % DATA_OPEN_FILES;

    if (files->files[i].unpacked) {
        *out = files->unpacked.fd;
        return FSDP_OK;
    }
    if (files->open[slot].fd < 0 || files->open[slot].file != i) {
        int fd;
        FSDP_TRY(fsdp_file_open(&fd, files->files[i].path, O_RDONLY, err));
        if (files->open[slot].fd >= 0)
            close(files->open[slot].fd);
        files->open[slot].file = i;
        files->open[slot].fd = fd;
    }
    *out = files->open[slot].fd;
    return FSDP_OK;
}

int data_files_stream(FILE **out, struct data_files *files, int i, struct fsdp_err *err)
{
    const struct data_file *file = &files->files[i];

    if (!file->unpacked)
        return fsdp_file_stream(out, file->path, err);
    const int fd = dup(files->unpacked.fd);
    *out = fd >= 0 && lseek(fd, (off_t)file->offset, SEEK_SET) >= 0 ? fdopen(fd, "r") : NULL;
    if (*out)
        return FSDP_OK;
    const int errnum = errno;
    if (fd >= 0)
        close(fd);
    return fsdp_err_sys(err, errnum, "%s: unpacked", file->path);
}

static int read_bytes(struct data_files *files, int i, uint64_t token, size_t ntokens, char *to,
                      struct fsdp_err *err)
{
    const struct data_file *file = &files->files[i];
    size_t nbytes = ntokens * (size_t)file->token_nbytes, have = 0;
    uint64_t offset = file->offset + token * (uint64_t)file->token_nbytes;
    int fd = -1;

    if (file->far >= 0)
        return data_far_read(files->far, file->far, offset, nbytes, to, err);
    FSDP_TRY(file_fd(&fd, files, i, err));
    while (have < nbytes) {
        ssize_t got = pread(fd, to + have, nbytes - have, (off_t)(offset + have));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fsdp_err_sys(err, errno, "%s: byte %" PRIu64, file->path, offset + have);
        if (got == 0)
            return fsdp_err_set(err, FSDP_ECORRUPT,
                                "%s: truncated: it has no byte %" PRIu64 ", and had %" PRIu64
                                " bytes when the run began",
                                file->path, offset + have,
                                file->offset + file->ntokens * (uint64_t)file->token_nbytes);
        have += (size_t)got;
    }
    return FSDP_OK;
}

/* The file that holds a token: the last one that begins at or before it. */
int data_files_find(const struct data_files *files, uint64_t token)
{
    int lo = 0, hi = files->nfiles - 1;
    while (lo < hi) {
        int mid = lo + (hi - lo + 1) / 2;
        if (files->files[mid].first <= token)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

static int decode(int32_t *out, const struct data_files *files, const struct data_file *file,
                  uint64_t token, size_t ntokens, int vocab_size, struct fsdp_err *err)
{
    const unsigned char *p = files->buffer;

    for (size_t i = 0; i < ntokens; i++, p += file->token_nbytes) {
        uint32_t id = file->token_nbytes == 1   ? p[0]
                      : file->token_nbytes == 2 ? (uint32_t)(p[0] | p[1] << 8)
                                                : le32(p);
        if (id > INT32_MAX || (vocab_size > 0 && id >= (uint32_t)vocab_size))
            return fsdp_err_set(err, FSDP_EINVAL,
                                "%s: token %" PRIu64 " is %" PRIu32
                                ", not below the model's vocabulary of %d",
                                file->path, token + i, id, vocab_size);
        out[i] = (int32_t)id;
    }
    return FSDP_OK;
}

int data_files_read(struct data_files *files, uint64_t first, size_t ntokens, int32_t *out,
                    int vocab_size, struct fsdp_err *err)
{
    for (int i = data_files_find(files, first); ntokens > 0 && i < files->nfiles; i++) {
        const struct data_file *file = &files->files[i];
        uint64_t token = first - file->first, left = file->ntokens - token;
        size_t here = left < ntokens ? (size_t)left : ntokens;
        if (!here)
            continue; /* an empty file */
        FSDP_TRY(read_bytes(files, i, token, here, (char *)files->buffer, err));
        FSDP_TRY(decode(out, files, file, token, here, vocab_size, err));
        out += here;
        first += here;
        ntokens -= here;
    }
    return FSDP_OK;
}

void data_files_ahead(struct data_files *files, uint64_t first, size_t ntokens)
{
    for (int i = data_files_find(files, first); ntokens > 0 && i < files->nfiles; i++) {
        const struct data_file *file = &files->files[i];
        const uint64_t token = first - file->first, left = file->ntokens - token;
        const size_t here = left < ntokens ? (size_t)left : ntokens,
                     width = (size_t)file->token_nbytes;
        if (file->far >= 0)
            data_far_ahead(files->far, file->far, file->offset + token * width, here * width);
        first += here;
        ntokens -= here;
    }
}

int data_files_bytes(struct data_files *files, uint64_t first, size_t nbytes, char *out,
                     struct fsdp_err *err)
{
    const int i = data_files_find(files, first);
    return read_bytes(files, i, first - files->files[i].first, nbytes, out, err);
}

const char *data_files_path(const struct data_files *files, uint64_t token)
{
    return files->files[data_files_find(files, token)].path;
}

bool data_files_begins(const struct data_files *files, uint64_t token)
{
    return files->files[data_files_find(files, token)].first == token;
}
