/* SPDX-License-Identifier: Apache-2.0 */
/* The folder, or the place in an object store, that holds a run's checkpoints: making it, trying
 * whether it takes files, and small notes that lie next to the checkpoints. */
#include <string.h>

#include "ckpt/ckpt.h"
#include "store.h"

enum { MAX_NOTE_NBYTES = 1 << 20 };

bool ckpt_path_is_url(const char *path)
{
    const char *scheme = strstr(path, "://");
    return scheme && scheme != path && !memchr(path, '/', (size_t)(scheme - path));
}

int ckpt_path_check(const char *path, struct fsdp_err *err)
{
    const struct ckpt_store_ops *ops;
    return ckpt_store_of(&ops, path, err);
}

int ckpt_root_make(const char *root, struct fsdp_err *err)
{
    const struct ckpt_store_ops *ops;
    FSDP_TRY(ckpt_store_of(&ops, root, err));
    return ckpt_store_mkdirs(ops, root, err);
}

/* A file system forgets the name at once, so that nothing stays even after a kill; an object store
 * has the object only when it is closed. */
static int try_file(const struct ckpt_store_ops *ops, const char *path, const void *data,
                    size_t nbytes, struct fsdp_err *err)
{
    struct ckpt_store_file *file = NULL;
    FSDP_TRY(ckpt_store_open(&file, ops, path, CKPT_STORE_CREATE, err));
    if (!ckpt_path_is_url(path))
        ckpt_store_remove(ops, path, NULL);
    int rc = ckpt_store_write(file, data, nbytes, err);
    if (rc == FSDP_OK)
        rc = ckpt_store_sync(file, err);
    int rc_close = ckpt_store_close(file, rc ? NULL : err);
    rc = rc ? rc : rc_close;
    if (ckpt_path_is_url(path)) {
        int rc_remove = ckpt_store_remove(ops, path, rc ? NULL : err);
        rc = rc ? rc : rc_remove == FSDP_ENOTFOUND ? FSDP_OK : rc_remove;
    }
    return rc;
}

int ckpt_root_try(double *seconds, const char *root, size_t nbytes, struct fsdp_err *err)
{
    const struct ckpt_store_ops *ops;
    char uuid[37];
    FSDP_TRY(ckpt_store_of(&ops, root, err));
    FSDP_TRY(ckpt_uuid_make(uuid, err));
    char *path = fsdp_sprintf(err, "%s/.check-%s", root, uuid);
    void *data = fsdp_alloc(nbytes, 1, "probe", err);
    double begun = fsdp_time_now();
    int rc = path && data ? try_file(ops, path, data, nbytes, err) : FSDP_ENOMEM;
    if (seconds)
        *seconds = fsdp_time_now() - begun;
    fsdp_free(data);
    fsdp_free(path);
    return rc;
}

int ckpt_note_read(char **out, const char *root, const char *name, struct fsdp_err *err)
{
    const struct ckpt_store_ops *ops;
    FSDP_TRY(ckpt_store_of(&ops, root, err));
    char *path = ckpt_path_join(root, name, err);
    int rc = path ? ckpt_store_get(out, NULL, ops, path, MAX_NOTE_NBYTES, err) : FSDP_ENOMEM;
    fsdp_free(path);
    return rc;
}

/* Where a note is written before it takes its name: a name that a collection of remains knows, and
 * always the same, so that killed writers leave one. */
static char *temp_of(const char *path, const char *name, struct fsdp_err *err)
{
    return fsdp_sprintf(err, "%s.tmp.%016llx", path,
                        (unsigned long long)fsdp_hash(FSDP_HASH_SEED, name, strlen(name)));
}

int ckpt_note_write(const char *root, const char *name, const char *text, struct fsdp_err *err)
{
    const struct ckpt_store_ops *ops;
    size_t nbytes = strlen(text);
    FSDP_TRY(ckpt_store_of(&ops, root, err));
    char *path = ckpt_path_join(root, name, err);
    char *temp = path ? temp_of(path, name, err) : NULL;
    int rc = FSDP_ENOMEM;
    if (temp && ckpt_path_is_url(root)) { /* an object is replaced at one instant */
        rc = ckpt_store_replace(ops, path, text, nbytes, err);
    } else if (temp) {
        rc = ckpt_store_replace(ops, temp, text, nbytes, err);
        if (rc == FSDP_OK)
            rc = ckpt_store_rename(ops, temp, path, true, err);
        if (rc)
            ckpt_store_remove(ops, temp, NULL);
    }
    fsdp_free(temp);
    fsdp_free(path);
    return rc;
}

int ckpt_note_remove(const char *root, const char *name, struct fsdp_err *err)
{
    const struct ckpt_store_ops *ops;
    FSDP_TRY(ckpt_store_of(&ops, root, err));
    char *path = ckpt_path_join(root, name, err);
    char *temp = path ? temp_of(path, name, err) : NULL; /* of a writer that was killed */
    if (temp && !ckpt_path_is_url(root))
        ckpt_store_remove(ops, temp, NULL);
    int rc = path ? ckpt_store_remove(ops, path, err) : FSDP_ENOMEM;
    fsdp_free(temp);
    fsdp_free(path);
    return rc;
}
