/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "posix_file.h"

enum {
    ALIGN = 4096, /* of memory, offset and length past the cache */
    LARGE_NBYTES = POSIX_FILE_CACHED_NBYTES + 1,
    GATHER_NBYTES = 4 << 20,
    MAX_CALL_NBYTES = 1 << 30,
};

/* In huge pages, where there are any: the kernel looks up each page of what passes the cache. */
static char *buffer_alloc(void)
{
    enum { HUGE = 2 << 20 };
    char *buffer = aligned_alloc(HUGE, GATHER_NBYTES);
    if (buffer)
        madvise(buffer, GATHER_NBYTES, MADV_HUGEPAGE); /* advice only */
    return buffer;
}

/* May this file be reached past the cache? Known once somebody tried. */
enum bypass { BYPASS_UNTRIED, BYPASS_ON, BYPASS_OFF };

/* Buffers that transfers go through where memory is not aligned as the file is. Idle ones are kept
 * while any file is open: a new one costs more page faults than the copy costs time. There are
 * never more than transfers at once. */
static struct {
    pthread_mutex_t lock;
    int nfiles;
    struct idle {
        struct idle *next;
    } * idle;
} bounce = {.lock = PTHREAD_MUTEX_INITIALIZER};

static char *bounce_take(void)
{
    pthread_mutex_lock(&bounce.lock);
    struct idle *taken = bounce.idle;
    if (taken)
        bounce.idle = taken->next;
    pthread_mutex_unlock(&bounce.lock);
    return taken ? (char *)taken : buffer_alloc();
}

static void bounce_put(char *buffer)
{
    struct idle *put = (struct idle *)(void *)buffer;
    if (!put)
        return;
    pthread_mutex_lock(&bounce.lock);
    put->next = bounce.idle;
    bounce.idle = put;
    pthread_mutex_unlock(&bounce.lock);
}

static void bounce_count(int nfiles)
{
    pthread_mutex_lock(&bounce.lock);
    bounce.nfiles += nfiles;
    struct idle *idle = bounce.nfiles ? NULL : bounce.idle;
    if (!bounce.nfiles)
        bounce.idle = NULL;
    pthread_mutex_unlock(&bounce.lock);
    while (idle) {
        struct idle *next = idle->next;
        free(idle);
        idle = next;
    }
}

struct posix_file {
    int fd, direct; /* the same file; direct: with O_DIRECT, once bypass is ON */
    atomic_int bypass;
    pthread_mutex_t lock; /* opening of direct */
    /* Appending: bytes [end - filled, end) are in gather, aligned in the file, not yet written. */
    uint64_t end;
    char *gather;
    size_t filled;
};

int posix_file_create(struct posix_file **out, int fd, bool may_bypass, struct fsdp_err *err)
{
    struct posix_file *f = fsdp_alloc(1, sizeof *f, "open file", err);
    if (!f) {
        close(fd);
        return FSDP_ENOMEM;
    }
    bounce_count(1);
    f->fd = fd;
    f->direct = -1;
    atomic_init(&f->bypass, may_bypass ? BYPASS_UNTRIED : BYPASS_OFF);
    pthread_mutex_init(&f->lock, NULL);
    *out = f;
    return FSDP_OK;
}

struct ckpt_store_stat posix_file_stat_of(const struct stat *st)
{
    const int64_t second = 1000000000;
    return (struct ckpt_store_stat){
        .is_folder = S_ISDIR(st->st_mode),
        .nbytes = (uint64_t)st->st_size,
        .mtime = st->st_mtime,
        .device = st->st_dev,
        .inode = st->st_ino,
        .mtime_ns = st->st_mtim.tv_sec * second + st->st_mtim.tv_nsec,
        .ctime_ns = st->st_ctim.tv_sec * second + st->st_ctim.tv_nsec,
    };
}

int posix_file_stat(struct ckpt_store_stat *out, struct posix_file *f, const char *path,
                    struct fsdp_err *err)
{
    struct stat st;
    if (fstat(f->fd, &st))
        return fsdp_err_sys(err, errno, "'%s'", path);
    *out = posix_file_stat_of(&st);
    return FSDP_OK;
}

/* Opens the file once more, unless its path leads to another one by now. */
static int open_direct(const struct posix_file *f, const char *path)
{
    struct stat mine, other;
    int flags = fcntl(f->fd, F_GETFL) & O_ACCMODE;
    int fd = open(path, flags | O_DIRECT | O_CLOEXEC | O_NONBLOCK);
    bool same = fd >= 0 && !fstat(f->fd, &mine) && !fstat(fd, &other) &&
                mine.st_dev == other.st_dev && mine.st_ino == other.st_ino;
    if (fd >= 0 && !same)
        close(fd);
    return same ? fd : -1;
}

static bool can_bypass(struct posix_file *f, const char *path)
{
    int state = atomic_load(&f->bypass);
    if (state != BYPASS_UNTRIED)
        return state == BYPASS_ON;
    pthread_mutex_lock(&f->lock);
    if (atomic_load(&f->bypass) == BYPASS_UNTRIED) {
        f->direct = open_direct(f, path);
        atomic_store(&f->bypass, f->direct >= 0 ? BYPASS_ON : BYPASS_OFF);
    }
    pthread_mutex_unlock(&f->lock);
    return atomic_load(&f->bypass) == BYPASS_ON;
}

/* Some file systems open a file so and then refuse to read or write it. */
static void give_up(struct posix_file *f)
{
    atomic_store(&f->bypass, BYPASS_OFF);
}

/* ---- all of a range, through one descriptor; 0 or the errno ---------------------------------- */

enum { ENDS_EARLY = -1 };

static int read_all(int fd, char *p, size_t nbytes, uint64_t offset, size_t *done)
{
    for (*done = 0; *done < nbytes;) {
        size_t most = nbytes - *done < MAX_CALL_NBYTES ? nbytes - *done : MAX_CALL_NBYTES;
        ssize_t got = pread(fd, p + *done, most, (off_t)(offset + *done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got ? errno : ENDS_EARLY;
        *done += (size_t)got;
    }
    return 0;
}

static int write_all(int fd, const char *p, size_t nbytes, uint64_t offset)
{
    while (nbytes) {
        size_t most = nbytes < MAX_CALL_NBYTES ? nbytes : MAX_CALL_NBYTES;
        ssize_t put = pwrite(fd, p, most, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put ? errno : ENOSPC;
        p += put;
        offset += (uint64_t)put;
        nbytes -= (size_t)put;
    }
    return 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Is most of the range in the page cache? Where the kernel (before 6.5) cannot tell: no. */
static bool is_cached(int fd, uint64_t offset, size_t nbytes)
{
    enum { CACHESTAT = 451 }; /* on every processor; C libraries do not have it yet */
    struct {
        uint64_t off, len;
    } range = {offset, nbytes};
    struct {
        uint64_t cache, dirty, writeback, evicted, recently_evicted;
    } pages;
    return syscall(CACHESTAT, fd, &range, &pages, 0) == 0 && pages.cache * ALIGN > nbytes / 2;
}

/* By way of a buffer that is aligned as the file is. */
static int read_bounced(struct posix_file *f, char *dst, size_t nbytes, uint64_t offset,
                        size_t *done)
{
    char *buffer = bounce_take();
    int errnum = buffer ? 0 : EINVAL;

    while (!errnum && *done < nbytes) {
        uint64_t from = (offset + *done) / ALIGN * ALIGN;
        size_t skip = (size_t)(offset + *done - from), want = skip + nbytes - *done, got;
        want = want < GATHER_NBYTES ? (want + ALIGN - 1) / ALIGN * ALIGN : GATHER_NBYTES;
        errnum = read_all(f->direct, buffer, want, from, &got);
        size_t part = got > skip ? got - skip : 0;
        part = part < nbytes - *done ? part : nbytes - *done;
        memcpy(dst + *done, buffer + skip, part);
        *done += part;
        if (errnum == ENDS_EARLY && *done == nbytes) /* the file's last page */
            errnum = 0;
    }
    bounce_put(buffer);
    return errnum;
}

/* Past the cache; straight to where it is wanted if that is aligned, a last piece of a page through
 * the cache. EINVAL if it cannot be done. */
static int read_direct(struct posix_file *f, char *dst, size_t nbytes, uint64_t offset,
                       size_t *done)
{
    size_t whole = nbytes / ALIGN * ALIGN, rest = 0;

    *done = 0;
    if (offset % ALIGN || (uintptr_t)dst % ALIGN)
        return read_bounced(f, dst, nbytes, offset, done);
    int errnum = read_all(f->direct, dst, whole, offset, done);
    if (!errnum)
        errnum = read_all(f->fd, dst + whole, nbytes - whole, offset + whole, &rest);
    *done += rest;
    return errnum;
}

int posix_file_pread(struct posix_file *f, const char *path, void *dst, size_t nbytes,
                     uint64_t offset, struct fsdp_err *err)
{
    size_t done = 0;

    if (offset > INT64_MAX || nbytes > INT64_MAX - offset)
        return fsdp_err_set(err, FSDP_ECORRUPT, "'%s': offset %llu is beyond any file", path,
                            (unsigned long long)offset);
    bool direct =
        nbytes >= LARGE_NBYTES && can_bypass(f, path) && !is_cached(f->fd, offset, nbytes);
    int errnum = direct ? read_direct(f, dst, nbytes, offset, &done) : EINVAL;
    if (errnum == EINVAL) {
        if (direct)
            give_up(f);
        errnum = read_all(f->fd, dst, nbytes, offset, &done);
    }
    if (errnum == ENDS_EARLY)
        return fsdp_err_set(err, FSDP_ECORRUPT,
                            "'%s' ends at byte %llu, %zu bytes before it should: truncated", path,
                            (unsigned long long)(offset + done), nbytes - done);
    return errnum ? fsdp_err_sys(err, errnum, "cannot read '%s'", path) : FSDP_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Aligned offset and length, past the cache. */
static int write_direct(struct posix_file *f, const char *src, size_t nbytes, uint64_t offset)
{
    if ((uintptr_t)src % ALIGN == 0)
        return write_all(f->direct, src, nbytes, offset);
    char *buffer = bounce_take();
    int errnum = buffer ? 0 : EINVAL;
    for (size_t done = 0, part; !errnum && done < nbytes; done += part) {
        part = nbytes - done < GATHER_NBYTES ? nbytes - done : GATHER_NBYTES;
        memcpy(buffer, src + done, part);
        errnum = write_all(f->direct, buffer, part, offset + done);
    }
    bounce_put(buffer);
    return errnum;
}

/* Through the cache, but on its way to the disk at once, so that a sync has little left to do. */
static int write_cached(const struct posix_file *f, const char *src, size_t nbytes, uint64_t offset)
{
    int errnum = write_all(f->fd, src, nbytes, offset);
    if (!errnum && nbytes >= LARGE_NBYTES)
        sync_file_range(f->fd, (off_t)offset, (off_t)nbytes, SYNC_FILE_RANGE_WRITE);
    return errnum;
}

/* The whole pages of a large range past the cache, its ends through it. */
static int write_range(struct posix_file *f, const char *path, const char *src, size_t nbytes,
                       uint64_t offset)
{
    size_t head = (ALIGN - offset % ALIGN) % ALIGN;

    if (nbytes < LARGE_NBYTES || !can_bypass(f, path))
        return write_cached(f, src, nbytes, offset);
    size_t middle = (nbytes - head) / ALIGN * ALIGN, tail = nbytes - head - middle;
    int errnum = write_direct(f, src + head, middle, offset + head);
    if (errnum == EINVAL) {
        give_up(f);
        return write_cached(f, src, nbytes, offset);
    }
    if (!errnum && head)
        errnum = write_all(f->fd, src, head, offset);
    if (!errnum && tail)
        errnum = write_all(f->fd, src + head + middle, tail, offset + head + middle);
    return errnum;
}

static int write_error(int errnum, const char *path, struct fsdp_err *err)
{
    return errnum ? fsdp_err_sys(err, errnum, "cannot write '%s'", path) : FSDP_OK;
}

int posix_file_pwrite(struct posix_file *f, const char *path, const void *src, size_t nbytes,
                      uint64_t offset, struct fsdp_err *err)
{
    return write_error(write_range(f, path, src, nbytes, offset), path, err);
}

static int flush(struct posix_file *f, const char *path)
{
    int errnum = write_range(f, path, f->gather, f->filled, f->end - f->filled);
    f->filled = 0;
    return errnum;
}

/* Appends gather in a buffer that begins on a page of the file, once the file is a large one. */
static int append_bytes(struct posix_file *f, const char *path, const char *src, size_t nbytes)
{
    if (!f->gather) {
        size_t head = (ALIGN - f->end % ALIGN) % ALIGN;
        if (f->end + nbytes < LARGE_NBYTES || nbytes < head || !can_bypass(f, path) ||
            !(f->gather = bounce_take()))
            head = nbytes;
        int errnum = write_cached(f, src, head, f->end);
        if (errnum)
            return errnum;
        f->end += head;
        src += head;
        nbytes -= head;
    }
    while (nbytes) {
        size_t room = GATHER_NBYTES - f->filled, part = nbytes < room ? nbytes : room;
        memcpy(f->gather + f->filled, src, part);
        f->filled += part;
        f->end += part;
        src += part;
        nbytes -= part;
        int errnum = f->filled == GATHER_NBYTES ? flush(f, path) : 0;
        if (errnum)
            return errnum;
    }
    return 0;
}

int posix_file_write(struct posix_file *f, const char *path, const void *src, size_t nbytes,
                     struct fsdp_err *err)
{
    return write_error(append_bytes(f, path, src, nbytes), path, err);
}

int posix_file_sync(struct posix_file *f, const char *path, struct fsdp_err *err)
{
    int rc = f->filled ? write_error(flush(f, path), path, err) : FSDP_OK;
    while (rc == FSDP_OK && fsync(f->fd)) {
        if (errno != EINTR)
            rc = fsdp_err_sys(err, errno, "cannot sync '%s'", path);
    }
    return rc;
}

int posix_file_close(struct posix_file *f, const char *path, struct fsdp_err *err)
{
    int rc = f->filled ? write_error(flush(f, path), path, err) : FSDP_OK;
    if (f->direct >= 0)
        close(f->direct);
    /* Linux has closed the descriptor even where it reports EINTR. */
    if (close(f->fd) && errno != EINTR && rc == FSDP_OK)
        rc = fsdp_err_sys(err, errno, "cannot close '%s'", path);
    pthread_mutex_destroy(&f->lock);
    bounce_put(f->gather);
    bounce_count(-1);
    fsdp_free(f);
    return rc;
}
