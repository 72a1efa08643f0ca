/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#if HAVE_ZSTD
#include <zstd.h>
#endif

#include "list.h"
#include "remote.h"
#include "stream.h"

enum { INPUT_NBYTES = 1 << 20, MAX_INFLATE = 1 << 30 };

struct unpacker;

struct data_stream {
    char *path;
    int fd;
    bool own_fd, at_end;             /* of the file */
    bool inside;                     /* of a member or frame */
    bool more;                       /* decompressed bytes are pending */
    const struct unpacker *unpacker; /* NULL: as it is */
    uint64_t file_nbytes, nread;
    const struct data_remote *remote; /* with far, or NULL */
    void *far;
    unsigned char *input; /* [INPUT_NBYTES], of which [used, filled) is to be unpacked */
    size_t used, filled;
    z_stream gz;
#if HAVE_ZSTD
    ZSTD_DCtx *zst;
#endif
};

struct unpacker {
    const char *end, *unit; /* of the name; what the file is a row of */
    int (*open)(struct data_stream *s, struct fsdp_err *err);
    /* Unpacks [used, filled), and what had no room before, to out; tells whether it is inside. */
    int (*step)(struct data_stream *s, void *out, size_t nbytes, size_t *got, struct fsdp_err *err);
    void (*close)(struct data_stream *s);
};

/* The next byte of the file to decompress. */
static uint64_t place(const struct data_stream *s)
{
    return s->nread - (s->filled - s->used);
}

static int damaged(const struct data_stream *s, const char *why, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_ECORRUPT, "%s: damaged at or before byte %" PRIu64 ": %s",
                        s->path, place(s), why);
}

/* ---- gzip ----------------------------------------------------------------------------------- */

static int gz_open(struct data_stream *s, struct fsdp_err *err)
{
    enum { GZIP_ONLY = 16 };
    if (inflateInit2(&s->gz, MAX_WBITS + GZIP_ONLY) == Z_OK)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_ENOMEM, "%s: out of memory", s->path);
}

/* Zero bytes behind the last member are padding. */
static bool is_padding(const struct data_stream *s)
{
    return !s->inside && s->used < s->filled && !s->input[s->used];
}

static int gz_step(struct data_stream *s, void *out, size_t nbytes, size_t *got,
                   struct fsdp_err *err)
{
    *got = 0;
    if (is_padding(s)) {
        s->used++;
        return FSDP_OK;
    }
    s->inside = true;
    s->gz.next_in = s->input + s->used;
    s->gz.avail_in = (uInt)(s->filled - s->used);
    s->gz.next_out = out;
    s->gz.avail_out = (uInt)(nbytes < MAX_INFLATE ? nbytes : MAX_INFLATE);
    const uInt room = s->gz.avail_out;
    const int rc = inflate(&s->gz, Z_NO_FLUSH);
    s->used = s->filled - s->gz.avail_in;
    *got = room - s->gz.avail_out;
    if (rc == Z_STREAM_END) {
        s->inside = false;
        return inflateReset(&s->gz) == Z_OK ? FSDP_OK : damaged(s, "inflate", err);
    }
    if (rc == Z_OK || (rc == Z_BUF_ERROR && s->gz.avail_in == 0))
        return FSDP_OK;
    if (rc == Z_MEM_ERROR)
        return fsdp_err_set(err, FSDP_ENOMEM, "%s: out of memory", s->path);
    return damaged(s, s->gz.msg ? s->gz.msg : "not gzip", err);
}

static void gz_close(struct data_stream *s)
{
    inflateEnd(&s->gz);
}

/* ---- zstd ----------------------------------------------------------------------------------- */

#if HAVE_ZSTD
static int zst_open(struct data_stream *s, struct fsdp_err *err)
{
    s->zst = ZSTD_createDCtx();
    return s->zst ? FSDP_OK : fsdp_err_set(err, FSDP_ENOMEM, "%s: out of memory", s->path);
}

static int zst_step(struct data_stream *s, void *out, size_t nbytes, size_t *got,
                    struct fsdp_err *err)
{
    ZSTD_inBuffer in = {s->input, s->filled, s->used};
    ZSTD_outBuffer to = {out, nbytes, 0};
    const size_t rc = ZSTD_decompressStream(s->zst, &to, &in);

    s->used = in.pos;
    *got = to.pos;
    if (ZSTD_isError(rc))
        return damaged(s, ZSTD_getErrorName(rc), err);
    s->inside = rc != 0;
    return FSDP_OK;
}

static void zst_close(struct data_stream *s)
{
    ZSTD_freeDCtx(s->zst);
}
#else
static int zst_open(struct data_stream *s, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                        "%s: this build has no zstd (it was made with WITH_ZSTD=0, or "
                        "libzstd was not there)",
                        s->path);
}
#endif

static const struct unpacker unpackers[] = {
    {.end = ".gz", .unit = "gzip member", .open = gz_open, .step = gz_step, .close = gz_close},
#if HAVE_ZSTD
    {.end = ".zst", .unit = "zstd frame", .open = zst_open, .step = zst_step, .close = zst_close},
#else
    {.end = ".zst", .unit = "zstd frame", .open = zst_open},
#endif
};

static const struct unpacker *find_unpacker(const char *path)
{
    for (size_t i = 0; i < sizeof unpackers / sizeof unpackers[0]; i++)
        if (data_name_ends(path, unpackers[i].end))
            return &unpackers[i];
    return NULL;
}

bool data_stream_is_packed(const char *path)
{
    return find_unpacker(path) != NULL;
}

/* ---- any ------------------------------------------------------------------------------------ */

static int open_near(struct data_stream *s, const char *path, bool is_stdin, struct fsdp_err *err)
{
    struct stat st;

    s->fd = STDIN_FILENO;
    if (!is_stdin) {
        FSDP_TRY(fsdp_file_open(&s->fd, path, O_RDONLY, err));
        s->own_fd = true;
    }
    if (fstat(s->fd, &st) == 0 && S_ISREG(st.st_mode))
        s->file_nbytes = (uint64_t)st.st_size;
    return FSDP_OK;
}

static int open_far(struct data_stream *s, const char *path, const struct data_remote *remote,
                    struct fsdp_err *err)
{
    if (!remote)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s: addresses are not read here", path);
    FSDP_TRY(remote->open(&s->far, &s->file_nbytes, path, err));
    s->remote = remote;
    return FSDP_OK;
}

static int open_file(struct data_stream *s, const char *path, const struct data_remote *remote,
                     struct fsdp_err *err)
{
    const bool is_stdin = !strcmp(path, "-");

    if (!(s->path = fsdp_strdup(is_stdin ? "standard input" : path, err)))
        return FSDP_ENOMEM;
    FSDP_TRY(data_is_remote(path) ? open_far(s, path, remote, err)
                                  : open_near(s, path, is_stdin, err));
    const struct unpacker *unpacker = is_stdin ? NULL : find_unpacker(path);
    if (!unpacker)
        return FSDP_OK;
    if (!(s->input = fsdp_alloc(INPUT_NBYTES, 1, "packed bytes", err)))
        return FSDP_ENOMEM;
    FSDP_TRY(unpacker->open(s, err));
    s->unpacker = unpacker;
    s->inside = true; /* an empty file is not a valid archive */
    return FSDP_OK;
}

int data_stream_open(struct data_stream **out, const char *path, struct fsdp_err *err)
{
    return data_stream_open_at(out, path, NULL, err);
}

int data_stream_open_at(struct data_stream **out, const char *path,
                        const struct data_remote *remote, struct fsdp_err *err)
{
    struct data_stream *s = fsdp_alloc(1, sizeof *s, "stream", err);

    if (!s)
        return FSDP_ENOMEM;
    const int rc = open_file(s, path, remote, err);
    if (rc == FSDP_OK)
        *out = s;
    else
        data_stream_close(s);
    return rc;
}

void data_stream_close(struct data_stream *s)
{
    if (!s)
        return;
    if (s->unpacker)
        s->unpacker->close(s);
    if (s->own_fd)
        close(s->fd);
    if (s->remote)
        s->remote->close(s->far);
    fsdp_free(s->input);
    fsdp_free(s->path);
    fsdp_free(s);
}

static int read_far(struct data_stream *s, void *out, size_t nbytes, size_t *got,
                    struct fsdp_err *err)
{
    const uint64_t left = s->file_nbytes - s->nread;
    const size_t here = left < nbytes ? (size_t)left : nbytes;

    if (here)
        FSDP_TRY(s->remote->pread(s->far, out, here, s->nread, err));
    *got = here;
    s->nread += here;
    s->at_end = here == 0;
    return FSDP_OK;
}

static int read_file(struct data_stream *s, void *out, size_t nbytes, size_t *got,
                     struct fsdp_err *err)
{
    if (s->remote)
        return read_far(s, out, nbytes, got, err);
    for (;;) {
        const ssize_t n = read(s->fd, out, nbytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fsdp_err_sys(err, errno, "%s: byte %" PRIu64, s->path, s->nread);
        *got = (size_t)n;
        s->nread += (size_t)n;
        s->at_end = n == 0;
        return FSDP_OK;
    }
}

static int fill_input(struct data_stream *s, struct fsdp_err *err)
{
    s->used = s->filled = 0;
    FSDP_TRY(read_file(s, s->input, INPUT_NBYTES, &s->filled, err));
    if (!s->at_end || !s->inside)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_ECORRUPT,
                        "%s: truncated: it ends at byte %" PRIu64 ", inside of a %s", s->path,
                        s->nread, s->unpacker->unit);
}

int data_stream_read(struct data_stream *s, void *out, size_t nbytes, size_t *got,
                     struct fsdp_err *err)
{
    *got = 0;
    if (!nbytes)
        return FSDP_OK;
    if (!s->unpacker)
        return read_file(s, out, nbytes, got, err);
    while (*got == 0 && !s->at_end) {
        if (s->used == s->filled && !s->more) {
            FSDP_TRY(fill_input(s, err));
            continue;
        }
        FSDP_TRY(s->unpacker->step(s, out, nbytes, got, err));
        s->more = s->inside && *got == nbytes;
    }
    return FSDP_OK;
}

int data_stream_seek(struct data_stream *s, uint64_t offset, bool *found, struct fsdp_err *err)
{
    *found = !s->unpacker && !s->remote && s->own_fd && offset <= s->file_nbytes;
    if (!*found)
        return FSDP_OK;
    if (lseek(s->fd, (off_t)offset, SEEK_SET) < 0)
        return fsdp_err_sys(err, errno, "%s", s->path);
    s->nread = offset;
    return FSDP_OK;
}

uint64_t data_stream_position(const struct data_stream *s, uint64_t *nbytes)
{
    *nbytes = s->file_nbytes;
    return s->nread;
}
