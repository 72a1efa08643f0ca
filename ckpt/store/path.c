/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "ckpt/ckpt.h"
#include "store.h"

char *ckpt_path_join(const char *folder, const char *name, struct fsdp_err *err)
{
    size_t len = strlen(folder);
    return fsdp_sprintf(err, "%s%s%s", folder, len && folder[len - 1] == '/' ? "" : "/", name);
}

char *ckpt_path_parent(const char *path, struct fsdp_err *err)
{
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    while (len && path[len - 1] != '/')
        len--;
    while (len > 1 && path[len - 1] == '/')
        len--;
    return len ? fsdp_sprintf(err, "%.*s", (int)len, path) : fsdp_strdup(".", err);
}

const char *ckpt_path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int ckpt_uuid_make(char out[37], struct fsdp_err *err)
{
    unsigned char raw[16];
    ssize_t got;
    do {
        got = getrandom(raw, sizeof raw, 0);
    } while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof raw)
        return fsdp_err_sys(err, errno, "cannot get random bytes");
    raw[6] = (unsigned char)((raw[6] & 0x0f) | 0x40);
    raw[8] = (unsigned char)((raw[8] & 0x3f) | 0x80);
    char *p = out;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *p++ = '-';
        p += snprintf(p, 3, "%02x", raw[i]);
    }
    return FSDP_OK;
}

int ckpt_names_add(struct ckpt_names *names, const char *name, struct fsdp_err *err)
{
    char **grown = fsdp_alloc_grow(names->names, (size_t)names->nnames, &names->max, sizeof *grown,
                                   "names", err);
    if (!grown)
        return FSDP_ENOMEM;
    names->names = grown;
    char *copy = fsdp_strdup(name, err);
    if (!copy)
        return FSDP_ENOMEM;
    names->names[names->nnames++] = copy;
    return FSDP_OK;
}

void ckpt_names_free(struct ckpt_names *names)
{
    for (int i = 0; i < names->nnames; i++)
        fsdp_free(names->names[i]);
    fsdp_free(names->names);
    memset(names, 0, sizeof *names);
}

static int names_entry(void *ctx, const char *name, struct fsdp_err *err)
{
    return ckpt_names_add(ctx, name, err);
}

static int names_compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void ckpt_names_sort(struct ckpt_names *names)
{
    if (names->nnames)
        qsort(names->names, (size_t)names->nnames, sizeof *names->names, names_compare);
}

int ckpt_store_names(struct ckpt_names *out, const struct ckpt_store_ops *ops, const char *path,
                     struct fsdp_err *err)
{
    memset(out, 0, sizeof *out);
    int rc = ckpt_store_list(ops, path, names_entry, out, err);
    if (rc)
        ckpt_names_free(out);
    else
        ckpt_names_sort(out);
    return rc;
}

int ckpt_store_mkdirs(const struct ckpt_store_ops *ops, const char *path, struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    struct fsdp_err quiet;
    if (ops->object_store)
        return FSDP_OK;
    if (ckpt_store_stat(&st, ops, path, &quiet) == FSDP_OK) {
        if (st.is_folder)
            return FSDP_OK;
        return fsdp_err_set(err, FSDP_EINVAL, "'%s' is a file, not a folder", path);
    }
    char *parent = ckpt_path_parent(path, err);
    if (!parent)
        return FSDP_ENOMEM;
    int rc = strcmp(parent, path) ? ckpt_store_mkdirs(ops, parent, err) : FSDP_OK;
    fsdp_free(parent);
    FSDP_TRY(rc);
    rc = ckpt_store_mkdir(ops, path, err);
    return rc == FSDP_EEXIST ? FSDP_OK : rc; /* somebody else was faster */
}

int ckpt_store_discard(const struct ckpt_store_ops *ops, const char *path, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = ckpt_store_remove(ops, path, &why);
    return rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
}

const char *ckpt_store_changed(const struct ckpt_store_stat *a, const struct ckpt_store_stat *b,
                               bool status)
{
    return a->nbytes != b->nbytes                 ? "its size"
           : a->device != b->device               ? "another file has its name"
           : a->inode != b->inode                 ? "another file has its name"
           : a->mtime_ns != b->mtime_ns           ? "its modification time"
           : a->tag != b->tag                     ? "its ETag"
           : status && a->ctime_ns != b->ctime_ns ? "its status (ctime)"
                                                  : NULL;
}

int ckpt_store_changed_error(const char *path, const char *changed, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_ECORRUPT,
                        "'%s' changed while it was read: %s; run the command again when nothing "
                        "writes it",
                        path, changed);
}

/* All of a file that has nbytes, and nothing else by the end. */
static int get_all(char *data, struct ckpt_store_file *file, const char *path,
                   const struct ckpt_store_stat *st, struct fsdp_err *err)
{
    struct ckpt_store_stat now;
    FSDP_TRY(ckpt_store_pread_cached(file, data, (size_t)st->nbytes, 0, err));
    FSDP_TRY(ckpt_store_stat_open(&now, file, err));
    const char *changed = ckpt_store_changed(st, &now, false);
    return changed ? ckpt_store_changed_error(path, changed, err) : FSDP_OK;
}

int ckpt_store_get_seen(char **out, struct ckpt_store_stat *seen, const struct ckpt_store_ops *ops,
                        const char *path, size_t max_nbytes, struct fsdp_err *err)
{
    struct ckpt_store_file *file = NULL;
    char *data = NULL;
    int rc;

    FSDP_TRY(ckpt_store_stat(seen, ops, path, err));
    FSDP_TRY(ckpt_store_open(&file, ops, path, CKPT_STORE_READ, err));
    FSDP_TRY_GOTO(ckpt_store_stat_open(seen, file, err), out);
    if (seen->nbytes > max_nbytes) {
        rc = fsdp_err_set(err, FSDP_EINVAL, "'%s' has %llu bytes; at most %zu are accepted", path,
                          (unsigned long long)seen->nbytes, max_nbytes);
        goto out;
    }
    rc = FSDP_ENOMEM;
    if (!(data = fsdp_alloc_unset((size_t)seen->nbytes + 1, 1, "file", err)))
        goto out;
    data[seen->nbytes] = 0;
    rc = get_all(data, file, path, seen, err);
out:
    ckpt_store_close(file, NULL);
    if (rc)
        fsdp_free(data);
    else
        *out = data;
    return rc;
}

int ckpt_store_get(char **out, size_t *out_nbytes, const struct ckpt_store_ops *ops,
                   const char *path, size_t max_nbytes, struct fsdp_err *err)
{
    struct ckpt_store_stat seen;
    FSDP_TRY(ckpt_store_get_seen(out, &seen, ops, path, max_nbytes, err));
    if (out_nbytes)
        *out_nbytes = (size_t)seen.nbytes;
    return FSDP_OK;
}

static int put_file(const struct ckpt_store_ops *ops, const char *path, enum ckpt_store_mode mode,
                    const void *data, size_t nbytes, bool sync, struct fsdp_err *err)
{
    struct ckpt_store_file *file = NULL;
    FSDP_TRY(ckpt_store_open(&file, ops, path, mode, err));
    int rc = ckpt_store_write(file, data, nbytes, err);
    if (rc == FSDP_OK && sync)
        rc = ckpt_store_sync(file, err);
    int rc_close = ckpt_store_close(file, rc ? NULL : err);
    return rc ? rc : rc_close;
}

int ckpt_store_put(const struct ckpt_store_ops *ops, const char *path, const void *data,
                   size_t nbytes, bool sync, struct fsdp_err *err)
{
    return put_file(ops, path, CKPT_STORE_CREATE, data, nbytes, sync, err);
}

int ckpt_store_replace(const struct ckpt_store_ops *ops, const char *path, const void *data,
                       size_t nbytes, struct fsdp_err *err)
{
    if (ops->object_store)
        return put_file(ops, path, CKPT_STORE_REPLACE, data, nbytes, true, err);
    FSDP_TRY(ckpt_store_discard(ops, path, err));
    return ckpt_store_put(ops, path, data, nbytes, true, err);
}

/* The bytes of `in`, through buffer, to `out` (NULL: nowhere). */
static int pump(uint32_t *crc32c, struct ckpt_store_file *in, struct ckpt_store_file *out,
                char *buffer, size_t buffer_nbytes, uint64_t nbytes, struct fsdp_err *err)
{
    for (uint64_t pos = 0; pos < nbytes;) {
        uint64_t left = nbytes - pos;
        size_t part = (size_t)(left < buffer_nbytes ? left : buffer_nbytes);
        FSDP_TRY(ckpt_store_pread(in, buffer, part, pos, err));
        *crc32c = ckpt_crc32c(*crc32c, buffer, part);
        if (out)
            FSDP_TRY(ckpt_store_write(out, buffer, part, err));
        pos += part;
    }
    return FSDP_OK;
}

int ckpt_store_copy(uint64_t *nbytes, uint32_t *crc32c, const struct ckpt_store_ops *from_ops,
                    const char *from, const struct ckpt_store_ops *to_ops, const char *to,
                    bool sync, struct fsdp_err *err)
{
    enum { BUFFER_NBYTES = 256 << 10 };
    struct ckpt_store_stat st, now;
    struct ckpt_store_file *in = NULL, *out = NULL;
    const char *changed;
    int rc, rc_close;

    FSDP_TRY(ckpt_store_stat(&st, from_ops, from, err));
    char *buffer = fsdp_alloc(BUFFER_NBYTES, 1, "copy buffer", err);
    if (!buffer)
        return FSDP_ENOMEM;
    *crc32c = 0;
    FSDP_TRY_GOTO(ckpt_store_open(&in, from_ops, from, CKPT_STORE_READ, err), out);
    FSDP_TRY_GOTO(ckpt_store_stat_open(&st, in, err), out);
    *nbytes = st.nbytes;
    if (to)
        FSDP_TRY_GOTO(ckpt_store_open(&out, to_ops, to, CKPT_STORE_CREATE, err), out);
    FSDP_TRY_GOTO(pump(crc32c, in, out, buffer, BUFFER_NBYTES, st.nbytes, err), out);
    FSDP_TRY_GOTO(ckpt_store_stat_open(&now, in, err), out);
    if ((changed = ckpt_store_changed(&st, &now, false))) {
        rc = ckpt_store_changed_error(from, changed, err);
        goto out;
    }
    if (to && sync)
        rc = ckpt_store_sync(out, err);
out:
    ckpt_store_close(in, NULL);
    rc_close = FSDP_OK;
    if (rc)
        ckpt_store_abandon(out);
    else
        rc_close = ckpt_store_close(out, err);
    fsdp_free(buffer);
    return rc ? rc : rc_close;
}

static int note_kind(void *ctx, const struct ckpt_store_item *item, bool *enter,
                     struct fsdp_err *err)
{
    (void)err;
    *(enum ckpt_store_kind *)ctx = item->kind;
    *enter = false;
    return FSDP_OK;
}

int ckpt_store_kind_at(enum ckpt_store_kind *out, const struct ckpt_store_ops *ops,
                       const char *path, struct fsdp_err *err)
{
    return ckpt_store_walk(ops, path, note_kind, out, err);
}
