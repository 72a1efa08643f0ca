/* SPDX-License-Identifier: Apache-2.0 */
#include "offload_file.h"

#include "offload_io.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { BLOCK = OFFLOAD_FILE_BLOCK, BOUNCE_NBYTES = 1 << 20, CALL_NBYTES = 1 << 30 };

struct offload_file {
    int fd, rank;
    char *path;  /* that it had */
    bool direct; /* positions, lengths and memory are multiples of BLOCK */
    char *base;  /* of reserved addresses */
    uint64_t nbytes;
    struct offload_io *io; /* its threads */
    pthread_mutex_t lock;  /* below */
    char *bounce;          /* [BOUNCE_NBYTES], for what is not aligned */
};

static int fail_file(const struct offload_file *file, const char *what, int errnum, const char *fix,
                     struct fsdp_err *err)
{
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    return fsdp_err_set(err, FSDP_EIO, "offloaded state of rank %d on %s, in %s: %s: %s; %s",
                        file->rank, host, file->path, what, strerror(errnum), fix);
}

/* ---- create and destroy ---------------------------------------------------------------------- */

/* Allocated at once, so that a disk that is too small is found before the first step. */
static int take_room(const struct offload_file *file, uint64_t nbytes, struct fsdp_err *err)
{
    struct statvfs fs;
    char what[160];
    int errnum;

    do
        errnum = posix_fallocate(file->fd, 0, (off_t)nbytes);
    while (errnum == EINTR);
    if (!errnum)
        return FSDP_OK;
    const bool known = !ftruncate(file->fd, 0) && !fstatvfs(file->fd, &fs);
    snprintf(what, sizeof what, "room for %llu bytes, of which %llu are free",
             (unsigned long long)nbytes,
             known ? (unsigned long long)fs.f_bavail * fs.f_frsize : 0ULL);
    return fail_file(file, what, errnum,
                     "free as much there for each rank of the node, or set offload_dir to another "
                     "folder",
                     err);
}

/* Bypasses the page cache if the file system takes what is aligned to BLOCK. */
static bool go_direct(const struct offload_file *file)
{
    int flags = fcntl(file->fd, F_GETFL);
    if (flags < 0 || fcntl(file->fd, F_SETFL, flags | O_DIRECT))
        return false;
    if (pread(file->fd, file->bounce, BLOCK, 0) == BLOCK)
        return true;
    fcntl(file->fd, F_SETFL, flags);
    return false;
}

static int open_unnamed(struct offload_file *file, struct fsdp_err *err)
{
    file->fd = mkostemp(file->path, O_CLOEXEC);
    if (file->fd < 0)
        return fail_file(file, "it cannot be made", errno,
                         "offload_dir must be a folder on this host that can be written to", err);
    if (unlink(file->path))
        return fail_file(file, "its name cannot be removed", errno,
                         "set offload_dir to another folder", err);
    return FSDP_OK;
}

static int move_piece(void *ctx, const struct offload_range *piece, struct fsdp_err *err);

int offload_file_create(struct offload_file **out, const char *dir, uint64_t nbytes, int rank,
                        struct fsdp_err *err)
{
    struct offload_file *file = fsdp_alloc(1, sizeof *file, "offload file", err);
    void *base;
    int rc = FSDP_ENOMEM;

    if (!file)
        return rc;
    file->fd = -1;
    file->rank = rank;
    pthread_mutex_init(&file->lock, NULL);
    if (!(file->path = fsdp_sprintf(err, "%s/fsdp-offload-%d.XXXXXX", dir, rank)))
        goto out;
    base = mmap(NULL, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED || posix_memalign((void **)&file->bounce, BLOCK, BOUNCE_NBYTES)) {
        rc = fsdp_err_set(err, FSDP_ENOMEM, "offload file: out of memory");
        if (base != MAP_FAILED)
            munmap(base, nbytes);
        goto out;
    }
    file->base = base;
    file->nbytes = nbytes;
    FSDP_TRY_GOTO(open_unnamed(file, err), out);
    FSDP_TRY_GOTO(take_room(file, nbytes, err), out);
    file->direct = go_direct(file);
    FSDP_TRY_GOTO(offload_io_create(&file->io, move_piece, file, err), out);
out:
    if (rc)
        offload_file_destroy(file);
    else
        *out = file;
    return rc;
}

void offload_file_destroy(struct offload_file *file)
{
    if (!file)
        return;
    offload_io_destroy(file->io);
    if (file->fd >= 0)
        close(file->fd);
    if (file->base)
        munmap(file->base, file->nbytes);
    pthread_mutex_destroy(&file->lock);
    free(file->bounce);
    fsdp_free(file->path);
    fsdp_free(file);
}

char *offload_file_base(const struct offload_file *file)
{
    return file->base;
}

bool offload_file_holds(const struct offload_file *file, const void *at)
{
    uintptr_t base = file ? (uintptr_t)file->base : 0;
    return file && (uintptr_t)at >= base && (uintptr_t)at - base < file->nbytes;
}

/* ---- on a lane ------------------------------------------------------------------------------- */

#define MEND "see to the disk, or set offload_dir to another folder, and resume from a checkpoint"

static int transfer(const struct offload_file *file, bool write, char *mem, uint64_t pos,
                    size_t nbytes, struct fsdp_err *err)
{
    while (nbytes) {
        size_t most = nbytes < CALL_NBYTES ? nbytes : CALL_NBYTES;
        ssize_t n = write ? pwrite(file->fd, mem, most, (off_t)pos)
                          : pread(file->fd, mem, most, (off_t)pos);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_file(file, write ? "it cannot be written" : "it cannot be read", errno,
                             MEND, err);
        if (file->direct && (size_t)n < most) /* what is left must be aligned, too */
            n -= n % BLOCK;
        if (n == 0)
            return fail_file(file, "it is shorter than it was made", EIO, MEND, err);
        mem += n;
        pos += (uint64_t)n;
        nbytes -= (size_t)n;
    }
    return FSDP_OK;
}

static int move_piece(void *ctx, const struct offload_range *piece, struct fsdp_err *err)
{
    return transfer(ctx, piece->write, piece->mem, piece->pos, piece->nbytes, err);
}

/* Whole blocks around [pos, pos + nbytes), through the bounce buffer; nbytes fit into it. */
static int transfer_around(struct offload_file *file, bool write, char *mem, uint64_t pos,
                           size_t nbytes, struct fsdp_err *err)
{
    uint64_t first = pos / BLOCK * BLOCK, end = (pos + nbytes + BLOCK - 1) / BLOCK * BLOCK;
    size_t around = (size_t)(end - first);
    char *at = file->bounce + (pos - first);

    if (!write) {
        FSDP_TRY(transfer(file, false, file->bounce, first, around, err));
        memcpy(mem, at, nbytes);
        return FSDP_OK;
    }
    if (pos != first) /* what is next to it stays */
        FSDP_TRY(transfer(file, false, file->bounce, first, BLOCK, err));
    if (pos + nbytes != end && (pos == first || around > BLOCK))
        FSDP_TRY(transfer(file, false, file->bounce + around - BLOCK, end - BLOCK, BLOCK, err));
    memcpy(at, mem, nbytes);
    return transfer(file, true, file->bounce, first, around, err);
}

struct job {
    struct offload_file *file;
    struct offload_range range;
    bool behind; /* the lane does not wait for it */
};

static int run_unaligned(struct offload_file *file, const struct offload_range *r,
                         struct fsdp_err *err)
{
    int rc = offload_io_settle(file->io, err);

    pthread_mutex_lock(&file->lock);
    for (size_t at = 0, n; at < r->nbytes && !rc; at += n) {
        size_t most = BOUNCE_NBYTES - (r->pos + at) % BLOCK;
        n = r->nbytes - at < most ? r->nbytes - at : most;
        rc = transfer_around(file, r->write, r->mem + at, r->pos + at, n, err);
    }
    pthread_mutex_unlock(&file->lock);
    return rc;
}

static int run_job(void *arg, struct fsdp_err *err)
{
    const struct job *j = arg;
    const struct offload_range *r = &j->range;
    bool aligned = r->pos % BLOCK == 0 && r->nbytes % BLOCK == 0 && (uintptr_t)r->mem % BLOCK == 0;

    if (j->file->direct && !aligned)
        return run_unaligned(j->file, r, err);
    return j->behind ? offload_io_begin(j->file->io, r, err) : offload_io_run(j->file->io, r, err);
}

static int enqueue(struct offload_file *file, struct fsdp_lane *lane, bool write, bool behind,
                   char *mem, const char *at, size_t nbytes, struct fsdp_err *err)
{
    struct job job = {file, {mem, (uint64_t)(at - file->base), nbytes, write}, behind};
    return fsdp_lane_call(lane, run_job, &job, sizeof job, err);
}

int offload_file_read(struct offload_file *file, struct fsdp_lane *lane, void *to, const void *from,
                      size_t nbytes, struct fsdp_err *err)
{
    return enqueue(file, lane, false, false, to, from, nbytes, err);
}

int offload_file_write(struct offload_file *file, struct fsdp_lane *lane, void *to,
                       const void *from, size_t nbytes, struct fsdp_err *err)
{
    return enqueue(file, lane, true, false, (char *)(uintptr_t)from, to, nbytes, err);
}

int offload_file_write_behind(struct offload_file *file, struct fsdp_lane *lane, void *to,
                              const void *from, size_t nbytes, struct fsdp_err *err)
{
    return enqueue(file, lane, true, true, (char *)(uintptr_t)from, to, nbytes, err);
}

static int run_wait(void *arg, struct fsdp_err *err)
{
    const struct job *j = arg;
    return offload_io_wait(j->file->io, j->range.mem, j->range.nbytes, err);
}

int offload_file_wait(struct offload_file *file, struct fsdp_lane *lane, const void *mem,
                      size_t nbytes, struct fsdp_err *err)
{
    struct job job = {file, {.mem = (char *)(uintptr_t)mem, .nbytes = nbytes}, false};
    return fsdp_lane_call(lane, run_wait, &job, sizeof job, err);
}

static int run_settle(void *arg, struct fsdp_err *err)
{
    struct offload_file *const *file = arg;
    return offload_io_settle((*file)->io, err);
}

int offload_file_settle(struct offload_file *file, struct fsdp_lane *lane, struct fsdp_err *err)
{
    return fsdp_lane_call(lane, run_settle, &file, sizeof file, err);
}
