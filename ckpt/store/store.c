/* SPDX-License-Identifier: Apache-2.0 */
/* The dispatcher: state of open files, sticky write errors, fault injection. */
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "store.h"

struct ckpt_store_file {
    const struct ckpt_store_ops *ops;
    void *file;
    atomic_bool failed;
    char path[];
};

static atomic_uint_fast64_t ncalls, fault_at;
static atomic_int fault_kind;

void ckpt_store_fault_at(uint64_t nth, enum ckpt_store_fault fault)
{
    atomic_store(&fault_kind, fault);
    atomic_store(&fault_at, nth ? atomic_load(&ncalls) + nth : 0);
}

uint64_t ckpt_store_calls(void)
{
    return atomic_load(&ncalls);
}

/* Counts the call; says what strikes it. */
static enum ckpt_store_fault strike(void)
{
    uint64_t mine = atomic_fetch_add(&ncalls, 1) + 1;
    if (atomic_load(&fault_at) != mine)
        return CKPT_FAULT_NONE;
    return (enum ckpt_store_fault)atomic_load(&fault_kind);
}

static int struck(enum ckpt_store_fault fault, const char *what, const char *path,
                  struct fsdp_err *err)
{
    if (fault == CKPT_FAULT_KILL)
        raise(SIGKILL);
    if (fault == CKPT_FAULT_STOP)
        raise(SIGSTOP);
    while (fault == CKPT_FAULT_HANG)
        pause();
    if (fault == CKPT_FAULT_NOSPACE)
        return fsdp_err_set(err, FSDP_ENOSPC, "cannot %s '%s': injected: no space left", what,
                            path);
    if (fault == CKPT_FAULT_FAIL)
        return fsdp_err_set(err, FSDP_EIO, "cannot %s '%s': injected fault", what, path);
    return FSDP_OK;
}

#define STRIKE(what, path) FSDP_TRY(struck(strike(), what, path, err))

int ckpt_store_open(struct ckpt_store_file **out, const struct ckpt_store_ops *ops,
                    const char *path, enum ckpt_store_mode mode, struct fsdp_err *err)
{
    STRIKE(mode == CKPT_STORE_READ ? "open" : "create", path);
    struct ckpt_store_file *file =
        fsdp_alloc(1, sizeof *file + strlen(path) + 1, "store file", err);
    if (!file)
        return FSDP_ENOMEM;
    file->ops = ops;
    strcpy(file->path, path);
    int rc = ops->open(&file->file, path, mode, err);
    if (rc) {
        fsdp_free(file);
        return rc;
    }
    *out = file;
    return FSDP_OK;
}

int ckpt_store_pread(struct ckpt_store_file *file, void *dst, size_t nbytes, uint64_t offset,
                     struct fsdp_err *err)
{
    STRIKE("read", file->path);
    return nbytes ? file->ops->pread(file->file, file->path, dst, nbytes, offset, err) : FSDP_OK;
}

int ckpt_store_pread_cached(struct ckpt_store_file *file, void *dst, size_t nbytes, uint64_t offset,
                            struct fsdp_err *err)
{
    size_t most = file->ops->cached_nbytes ? file->ops->cached_nbytes : nbytes;
    for (size_t done = 0, part; done < nbytes; done += part) {
        part = nbytes - done < most ? nbytes - done : most;
        FSDP_TRY(ckpt_store_pread(file, (char *)dst + done, part, offset + done, err));
    }
    return FSDP_OK;
}

static int refuse_failed(const struct ckpt_store_file *file, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EIO, "'%s': an earlier write failed", file->path);
}

int ckpt_store_write(struct ckpt_store_file *file, const void *src, size_t nbytes,
                     struct fsdp_err *err)
{
    if (atomic_load(&file->failed))
        return refuse_failed(file, err);
    enum ckpt_store_fault fault = strike();
    if (fault == CKPT_FAULT_KILL)
        file->ops->write(file->file, file->path, src, nbytes / 2, err);
    int rc = struck(fault, "write", file->path, err);
    if (rc == FSDP_OK && nbytes)
        rc = file->ops->write(file->file, file->path, src, nbytes, err);
    if (rc)
        atomic_store(&file->failed, true);
    return rc;
}

int ckpt_store_pwrite(struct ckpt_store_file *file, const void *src, size_t nbytes, uint64_t offset,
                      struct fsdp_err *err)
{
    if (atomic_load(&file->failed))
        return refuse_failed(file, err);
    if (!file->ops->pwrite)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "'%s': store '%s' writes in order only",
                            file->path, file->ops->name);
    enum ckpt_store_fault fault = strike();
    if (fault == CKPT_FAULT_KILL)
        file->ops->pwrite(file->file, file->path, src, nbytes / 2, offset, err);
    int rc = struck(fault, "write", file->path, err);
    if (rc == FSDP_OK && nbytes)
        rc = file->ops->pwrite(file->file, file->path, src, nbytes, offset, err);
    if (rc)
        atomic_store(&file->failed, true);
    return rc;
}

int ckpt_store_sync(struct ckpt_store_file *file, struct fsdp_err *err)
{
    if (atomic_load(&file->failed))
        return refuse_failed(file, err);
    int rc = struck(strike(), "sync", file->path, err);
    if (rc == FSDP_OK)
        rc = file->ops->sync(file->file, file->path, err);
    if (rc)
        atomic_store(&file->failed, true);
    return rc;
}

int ckpt_store_close(struct ckpt_store_file *file, struct fsdp_err *err)
{
    if (!file)
        return FSDP_OK;
    if (atomic_load(&file->failed) && file->ops->abandon) { /* which was said when it failed */
        ckpt_store_abandon(file);
        return FSDP_OK;
    }
    struct fsdp_err fault_err = FSDP_ERR_INIT;
    int fault = struck(strike(), "close", file->path, &fault_err);
    int rc = file->ops->close(file->file, file->path, err);
    if (fault && rc == FSDP_OK)
        rc = fsdp_err_pass(err, fault, &fault_err);
    fsdp_free(file);
    return rc;
}

void ckpt_store_abandon(struct ckpt_store_file *file)
{
    if (!file)
        return;
    if (file->ops->abandon)
        file->ops->abandon(file->file, file->path);
    else
        file->ops->close(file->file, file->path, NULL);
    fsdp_free(file);
}

int ckpt_store_keep_upload(struct ckpt_store_file *file, const char *id, bool search,
                           struct fsdp_err *err)
{
    STRIKE("keep", file->path);
    if (file->ops->keep_upload)
        file->ops->keep_upload(file->file, file->path, id, search);
    return FSDP_OK;
}

void ckpt_store_drop_upload(struct ckpt_store_file *file)
{
    if (file->ops->drop_upload)
        file->ops->drop_upload(file->file, file->path);
}

int ckpt_store_stat(struct ckpt_store_stat *out, const struct ckpt_store_ops *ops, const char *path,
                    struct fsdp_err *err)
{
    STRIKE("look at", path);
    return ops->stat(out, path, err);
}

int ckpt_store_stat_open(struct ckpt_store_stat *out, struct ckpt_store_file *file,
                         struct fsdp_err *err)
{
    return file->ops->stat_open(out, file->file, file->path, err);
}

int ckpt_store_list(const struct ckpt_store_ops *ops, const char *path, ckpt_store_entry_f *fn,
                    void *ctx, struct fsdp_err *err)
{
    STRIKE("list", path);
    return ops->list(path, fn, ctx, err);
}

int ckpt_store_mkdir(const struct ckpt_store_ops *ops, const char *path, struct fsdp_err *err)
{
    STRIKE("make folder", path);
    return ops->mkdir ? ops->mkdir(path, err) : FSDP_OK;
}

int ckpt_store_remove(const struct ckpt_store_ops *ops, const char *path, struct fsdp_err *err)
{
    STRIKE("remove", path);
    return ops->remove(path, err);
}

int ckpt_store_step(const char *what, const char *path, struct fsdp_err *err)
{
    STRIKE(what, path);
    return FSDP_OK;
}

int ckpt_store_walk(const struct ckpt_store_ops *ops, const char *path, ckpt_store_item_f *fn,
                    void *ctx, struct fsdp_err *err)
{
    STRIKE("list", path);
    return ops->walk(path, fn, ctx, err);
}

int ckpt_store_remove_items(const struct ckpt_store_ops *ops, const char *path,
                            const struct ckpt_store_item *items, size_t nitems,
                            struct fsdp_err *err)
{
    STRIKE("remove", path);
    return ops->remove_items(path, items, nitems, err);
}

int ckpt_store_sweep(uint64_t *nuploads, const struct ckpt_store_ops *ops, const char *path,
                     int64_t before, bool dry_run, struct fsdp_err *err)
{
    *nuploads = 0;
    STRIKE("sweep", path);
    return ops->sweep ? ops->sweep(nuploads, path, before, dry_run, err) : FSDP_OK;
}

int ckpt_store_rename(const struct ckpt_store_ops *ops, const char *from, const char *to,
                      bool replace, struct fsdp_err *err)
{
    STRIKE("rename", from);
    if (!ops->rename)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "'%s': store '%s' cannot rename", from,
                            ops->name);
    return ops->rename(from, to, replace, err);
}

int ckpt_store_exchange(const struct ckpt_store_ops *ops, const char *a, const char *b,
                        struct fsdp_err *err)
{
    STRIKE("exchange", a);
    if (!ops->exchange)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "'%s': store '%s' cannot exchange names", a,
                            ops->name);
    return ops->exchange(a, b, err);
}

int ckpt_store_sync_folder(const struct ckpt_store_ops *ops, const char *path, struct fsdp_err *err)
{
    STRIKE("sync folder", path);
    return ops->sync_folder ? ops->sync_folder(path, err) : FSDP_OK;
}

int ckpt_store_space(uint64_t *out, const struct ckpt_store_ops *ops, const char *path,
                     struct fsdp_err *err)
{
    *out = UINT64_MAX;
    STRIKE("look at", path);
    return ops->space ? ops->space(out, path, err) : FSDP_OK;
}

int ckpt_store_copy_within(struct ckpt_store_copied *out, const struct ckpt_store_ops *ops,
                           const char *from, const char *to, uint64_t nbytes,
                           ckpt_store_moved_f *moved, void *ctx, struct fsdp_err *err)
{
    STRIKE("copy", from);
    if (!ops->copy)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "'%s': store '%s' does not copy", from,
                            ops->name);
    return ops->copy(out, from, to, nbytes, moved, ctx, err);
}

bool ckpt_store_part_at(uint64_t *begin, uint64_t *nbytes, struct ckpt_store_file *file,
                        uint64_t offset)
{
    if (!file->ops->part_at)
        return false;
    file->ops->part_at(begin, nbytes, file->file, offset);
    return true;
}

int ckpt_store_copy_part(uint32_t *crc32c, struct ckpt_store_file *file, uint64_t offset,
                         uint64_t nbytes, struct ckpt_store_file *from, uint64_t begin,
                         struct fsdp_err *err)
{
    if (atomic_load(&file->failed))
        return refuse_failed(file, err);
    STRIKE("copy", from->path);
    if (!file->ops->copy_part || file->ops != from->ops)
        return FSDP_EUNSUPPORTED;
    return file->ops->copy_part(crc32c, file->file, offset, nbytes, from->file, begin, err);
}

bool ckpt_store_is_remote(const struct ckpt_store_ops *ops, const char *path)
{
    return ops->is_remote && ops->is_remote(path);
}

bool ckpt_store_memory(const struct ckpt_store_ops *ops, uint64_t nbytes)
{
    if (ops->memory)
        ops->memory(nbytes);
    return ops->memory != NULL;
}
