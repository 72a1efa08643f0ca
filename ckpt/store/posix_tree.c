/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A folder is opened by its name in an open parent (O_NOFOLLOW), and must be the object (device and
 * inode) that was looked at, on the mount of the tree's parent. A bind mount can have the device of
 * the tree; mount numbers tell it apart where the kernel gives them (Linux 5.8).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "posix_tree.h"
#include "store.h"

enum { MAX_DEPTH = 64 };

struct object {
    enum ckpt_store_kind kind;
    uint64_t device, inode, mount; /* mount: 0 where it is not known */
    uint64_t nbytes;
    int64_t mtime, ctime;
};

/* What name is in an open folder; name "": the open folder itself. Returns an errno. */
static int look_at_name(struct object *out, int folder, const char *name)
{
    struct statx st;
    unsigned mask = STATX_BASIC_STATS;
#ifdef STATX_MNT_ID
    mask |= STATX_MNT_ID;
#endif
    int flags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | (*name ? 0 : AT_EMPTY_PATH);
    if (statx(folder, name, flags, mask, &st))
        return errno;
    *out = (struct object){.kind = S_ISREG(st.stx_mode)   ? CKPT_STORE_FILE
                                   : S_ISDIR(st.stx_mode) ? CKPT_STORE_FOLDER
                                   : S_ISLNK(st.stx_mode) ? CKPT_STORE_LINK
                                                          : CKPT_STORE_OTHER,
                           .device = makedev(st.stx_dev_major, st.stx_dev_minor),
                           .inode = st.stx_ino,
                           .nbytes = S_ISREG(st.stx_mode) ? st.stx_size : 0,
                           .mtime = st.stx_mtime.tv_sec,
                           .ctime = st.stx_ctime.tv_sec};
#ifdef STATX_MNT_ID
    if (st.stx_mask & STATX_MNT_ID)
        out->mount = st.stx_mnt_id;
#endif
    return 0;
}

/* Files of some file systems (overlay) have devices that their folders do not have. */
static bool is_other_mount(const struct object *object, const struct object *parent)
{
    if (object->mount && parent->mount && object->mount != parent->mount)
        return true;
    return object->kind == CKPT_STORE_FOLDER && object->device != parent->device;
}

/* Opens the folder `name`, which must be the object of that device and inode. Returns an errno;
 * EXDEV: it is another object, or not a folder. */
static int open_same(int *out, int parent, const char *name, uint64_t device, uint64_t inode)
{
    struct object opened;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ELOOP || errno == ENOTDIR ? EXDEV : errno;
    int rc = look_at_name(&opened, fd, "");
    if (!rc && (opened.device != device || opened.inode != inode))
        rc = EXDEV;
    if (rc)
        close(fd);
    else
        *out = fd;
    return rc;
}

static int replaced(const char *path, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EEXIST,
                        "'%s' was replaced by another object while it was being removed: it stays",
                        path);
}

/* The open folder that holds path, and the last part of path. */
static int open_parent(int *out, const char **name, const char *path, struct fsdp_err *err)
{
    *name = ckpt_path_base(path);
    if (!**name || !strcmp(*name, ".") || !strcmp(*name, ".."))
        return fsdp_err_set(err, FSDP_EINVAL, "'%s' does not name a file or folder", path);
    char *parent = ckpt_path_parent(path, err);
    if (!parent)
        return FSDP_ENOMEM;
    *out = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc =
        *out < 0 ? fsdp_err_sys(err, errno == ENOTDIR ? ENOENT : errno, "'%s'", path) : FSDP_OK;
    fsdp_free(parent);
    return rc;
}

static int add_names(struct ckpt_names *names, int folder, const char *path, struct fsdp_err *err)
{
    int copy = dup(folder), rc = FSDP_OK;
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    if (!dir) {
        rc = fsdp_err_sys(err, errno, "cannot list '%s'", path);
        if (copy >= 0)
            close(copy);
        return rc;
    }
    rewinddir(dir);
    while (rc == FSDP_OK) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry) {
            if (errno && errno != ENOENT) /* the folder itself may be gone */
                rc = fsdp_err_sys(err, errno, "cannot list '%s'", path);
            break;
        }
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            rc = ckpt_names_add(names, entry->d_name, err);
    }
    closedir(dir);
    ckpt_names_sort(names);
    return rc;
}

/* ---- reading --------------------------------------------------------------------------------- */

struct walk {
    const char *path;
    size_t top_nbytes; /* of the part of `at` that names the tree */
    struct object parent;
    ckpt_store_item_f *fn;
    void *ctx;
    char at[PATH_MAX]; /* the object's path; what is behind the tree's own is the item's */
};

static int walk_object(struct walk *w, int parent, const char *name, int depth,
                       struct fsdp_err *err);

static int walk_folder(struct walk *w, int folder, int depth, struct fsdp_err *err)
{
    struct ckpt_names names = {0};
    size_t len = strlen(w->at);
    int rc = add_names(&names, folder, w->at, err);
    for (int i = 0; rc == FSDP_OK && i < names.nnames; i++) {
        size_t name_nbytes = strlen(names.names[i]);
        if (len + name_nbytes + 2 > sizeof w->at || depth == MAX_DEPTH) {
            rc = fsdp_err_set(err, FSDP_EIO, "'%s' has folders nested too deeply", w->path);
            break;
        }
        snprintf(w->at + len, sizeof w->at - len, "/%s", names.names[i]);
        rc = walk_object(w, folder, names.names[i], depth + 1, err);
        w->at[len] = 0;
    }
    ckpt_names_free(&names);
    return rc;
}

static int walk_object(struct walk *w, int parent, const char *name, int depth,
                       struct fsdp_err *err)
{
    struct object object = {0};
    bool enter = true;
    int fd = -1, failed = look_at_name(&object, parent, name);
    if (failed == ENOENT && depth)
        return FSDP_OK;
    if (failed)
        return fsdp_err_sys(err, failed, "'%s'", w->at);
    if (is_other_mount(&object, &w->parent))
        object.kind = CKPT_STORE_MOUNT;
    struct ckpt_store_item item = {.path = w->at + w->top_nbytes + (depth > 0),
                                   .kind = object.kind,
                                   .nbytes = object.nbytes,
                                   .mtime = object.mtime,
                                   .ctime = object.ctime,
                                   .device = object.device,
                                   .inode = object.inode};
    FSDP_TRY(w->fn(w->ctx, &item, &enter, err));
    if (!enter || object.kind != CKPT_STORE_FOLDER)
        return FSDP_OK;
    failed = open_same(&fd, parent, name, object.device, object.inode);
    if (failed == ENOENT || failed == EXDEV) /* a removal finds that it is another one */
        return FSDP_OK;
    if (failed)
        return fsdp_err_sys(err, failed, "cannot open folder '%s'", w->at);
    int rc = walk_folder(w, fd, depth, err);
    close(fd);
    return rc;
}

int posix_tree_walk(const char *path, ckpt_store_item_f *fn, void *ctx, struct fsdp_err *err)
{
    struct walk w = {.path = path, .top_nbytes = strlen(path), .fn = fn, .ctx = ctx};
    const char *name;
    int parent = -1;
    if (w.top_nbytes >= sizeof w.at)
        return fsdp_err_set(err, FSDP_EINVAL, "'%s': path too long", path);
    strcpy(w.at, path);
    FSDP_TRY(open_parent(&parent, &name, path, err));
    int failed = look_at_name(&w.parent, parent, "");
    int rc =
        failed ? fsdp_err_sys(err, failed, "'%s'", path) : walk_object(&w, parent, name, 0, err);
    close(parent);
    return rc;
}

/* ---- removing -------------------------------------------------------------------------------- */

struct removal {
    const char *path, *name;
    const struct ckpt_store_item *items;
    size_t nitems, next;
    char at[2 * PATH_MAX];
};

static const char *path_of(struct removal *r, const struct ckpt_store_item *item)
{
    snprintf(r->at, sizeof r->at, "%s%s%s", r->path, *item->path ? "/" : "", item->path);
    return r->at;
}

/* Is there a folder among the items that has this name in `folder`? */
static bool is_listed(const struct removal *r, const struct ckpt_store_item *folder,
                      const char *name)
{
    size_t len = strlen(folder->path);
    for (const struct ckpt_store_item *item = folder + 1; item < r->items + r->nitems; item++)
        if (item->kind == CKPT_STORE_FOLDER && !strncmp(item->path, folder->path, len) &&
            !strcmp(item->path + len + (len > 0), name))
            return true;
    return false;
}

/* What is still in a folder is the NFS client's, which goes when the last user closes it, a folder
 * that holds such a file, or came after the walk. */
static int tell_left(struct removal *r, int folder, const struct ckpt_store_item *item,
                     struct fsdp_err *err)
{
    struct ckpt_names names = {0};
    const char *path = path_of(r, item), *first = NULL;
    FSDP_TRY(add_names(&names, folder, path, err));
    for (int i = 0; i < names.nnames && !first; i++)
        if (strncmp(names.names[i], ".nfs", 4) && !is_listed(r, item, names.names[i]))
            first = names.names[i];
    int rc = FSDP_OK;
    if (first)
        rc = fsdp_err_set(err, FSDP_EEXIST,
                          "'%s' stays: it holds '%s', which was put there while it was being "
                          "removed",
                          path, first);
    else if (names.nnames && !strncmp(names.names[0], ".nfs", 4))
        fsdp_log(FSDP_LOG_INFO,
                 "'%s' stays while it holds '%s': a file that somebody on an NFS client has open; "
                 "a later sweep removes it",
                 path, names.names[0]);
    ckpt_names_free(&names);
    return rc;
}

static int remove_next(struct removal *r, int parent, struct fsdp_err *err);

static bool is_below(const char *path, const char *folder)
{
    size_t len = strlen(folder);
    return !len ? *path != 0 : !strncmp(path, folder, len) && path[len] == '/';
}

static int remove_name(struct removal *r, int parent, const char *name,
                       const struct ckpt_store_item *item, struct fsdp_err *err)
{
    struct object object;
    FSDP_TRY(ckpt_store_step("remove", path_of(r, item), err));
    int failed = look_at_name(&object, parent, name);
    if (failed == ENOENT)
        return FSDP_OK;
    if (!failed &&
        (object.device != item->device || object.inode != item->inode || object.kind != item->kind))
        return replaced(r->at, err);
    if (!failed && unlinkat(parent, name, 0))
        failed = errno;
    return failed && failed != ENOENT ? fsdp_err_sys(err, failed, "cannot remove '%s'", r->at)
                                      : FSDP_OK;
}

/* What is in it, then the folder. */
static int remove_folder(struct removal *r, int parent, const char *name,
                         const struct ckpt_store_item *item, struct fsdp_err *err)
{
    int fd = -1, failed = open_same(&fd, parent, name, item->device, item->inode), rc = FSDP_OK;
    if (failed == EXDEV)
        rc = replaced(path_of(r, item), err);
    else if (failed && failed != ENOENT)
        rc = fsdp_err_sys(err, failed, "cannot open folder '%s'", path_of(r, item));
    while (r->next < r->nitems && is_below(r->items[r->next].path, item->path)) {
        struct fsdp_err later = FSDP_ERR_INIT;
        if (failed) {
            r->next++;
            continue;
        }
        int rc_below = remove_next(r, fd, &later);
        if (rc_below && !rc)
            rc = fsdp_err_pass(err, rc_below, &later);
    }
    if (failed)
        return rc;
    if (rc == FSDP_OK)
        rc = ckpt_store_step("remove", path_of(r, item), err);
    if (rc == FSDP_OK && unlinkat(parent, name, AT_REMOVEDIR) && errno != ENOENT)
        rc = errno == ENOTEMPTY || errno == EEXIST
                 ? tell_left(r, fd, item, err)
                 : fsdp_err_sys(err, errno, "cannot remove '%s'", path_of(r, item));
    close(fd);
    return rc;
}

static int remove_next(struct removal *r, int parent, struct fsdp_err *err)
{
    const struct ckpt_store_item *item = &r->items[r->next++];
    const char *name = *item->path ? ckpt_path_base(item->path) : r->name;
    return item->kind == CKPT_STORE_FOLDER ? remove_folder(r, parent, name, item, err)
                                           : remove_name(r, parent, name, item, err);
}

int posix_tree_remove(const char *path, const struct ckpt_store_item *items, size_t nitems,
                      struct fsdp_err *err)
{
    struct removal r = {.path = path, .items = items, .nitems = nitems};
    int parent = -1;
    if (!nitems)
        return FSDP_OK;
    FSDP_TRY(open_parent(&parent, &r.name, path, err));
    int rc = remove_next(&r, parent, err);
    close(parent);
    return rc;
}
