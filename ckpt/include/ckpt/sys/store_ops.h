/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_ops.h: where checkpoint files live. For writers of store backends.
 *
 * A store holds files in folders, named by paths with '/'. Files are created once, written from
 * beginning to end, and never overwritten; the commit of a checkpoint is one rename.
 *
 * An object store has files alone: a folder is there while a name begins with it, and nothing can
 * be renamed. In return a file appears whole or not at all, when it is synced or closed, and of
 * several writers of one name one wins; the commit of a checkpoint is its last file. The dispatcher
 * (store.c) checks arguments, remembers a failed write (a file that failed once takes no more),
 * counts calls for fault injection, and hands the path to the backend for its error texts; backends
 * trust it.
 *
 * Status codes a backend must tell apart: FSDP_ENOTFOUND, FSDP_EEXIST, FSDP_ENOSPC; all else
 * FSDP_EIO.
 */
#ifndef CKPT_SYS_STORE_OPS_H
#define CKPT_SYS_STORE_OPS_H

#include "fsdp/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CKPT_STORE_ABI 9

enum ckpt_store_mode {
    CKPT_STORE_READ,
    CKPT_STORE_CREATE, /* FSDP_EEXIST if the name is taken: now, or when it is to appear */
    /* (optional: FSDP_EUNSUPPORTED) To resume a file of an earlier, killed run, or to begin it:
     * made if it is not there, read and pwritten at any offset, one process at a time: FSDP_EEXIST
     * while another has it open so, as far as the store can know. */
    CKPT_STORE_RESUME,
    CKPT_STORE_REPLACE, /* object stores only: in place of what has the name, at one instant */
};

struct ckpt_store_stat {
    bool is_folder;
    uint64_t nbytes;
    int64_t mtime; /* seconds since the epoch */
    uint64_t tag;  /* of an object store's file: another one for other bytes; 0: not known */
    char id[37];   /* of an object store's file: what keep_upload was given; "": not known */
    /* Of a file system's file; 0 elsewhere. */
    uint64_t device, inode;
    int64_t mtime_ns, ctime_ns; /* since the epoch */
};

/* Called per entry of a folder, "." and ".." excluded, in any order. A nonzero return ends the
 * listing and is passed on. */
typedef int ckpt_store_entry_f(void *ctx, const char *name, struct fsdp_err *err);

enum ckpt_store_kind {
    CKPT_STORE_FILE,
    CKPT_STORE_FOLDER,
    CKPT_STORE_LINK,  /* a symbolic link, which is never followed */
    CKPT_STORE_MOUNT, /* another file system is mounted there; it is never entered */
    CKPT_STORE_OTHER, /* a pipe, a socket or a device */
};

/* An object in a tree, as a walk found it. */
struct ckpt_store_item {
    const char *path; /* below the path that was walked; "" for the object at that path itself */
    enum ckpt_store_kind kind;
    uint64_t nbytes;      /* of a file */
    int64_t mtime, ctime; /* seconds since the epoch; ctime: 0 in an object store */
    uint64_t device,
        inode; /* which object it is; 0 in an object store, which has no such numbers */
};

/* Called for each object of a tree, a folder before what it holds. *enter is true; false leaves the
 * folder unread. A nonzero return ends the walk and is passed on. */
typedef int ckpt_store_item_f(void *ctx, const struct ckpt_store_item *item, bool *enter,
                              struct fsdp_err *err);

/* What a store says of a file that it has copied itself. */
struct ckpt_store_copied {
    bool has_crc; /* of all bytes, as they lie there now */
    uint32_t crc32c;
};
/* So many bytes more are there. A nonzero return ends the copy. */
typedef int ckpt_store_moved_f(void *ctx, uint64_t nbytes);

struct ckpt_store_ops {
    uint32_t abi;
    const char *name;  /* "posix" */
    bool object_store; /* for ckpt/store alone: others ask what a store can do (store.h) */

    int (*open)(void **file, const char *path, enum ckpt_store_mode mode, struct fsdp_err *err);
    /* Exactly nbytes from offset; FSDP_ECORRUPT if the file ends before. Thread safe. */
    int (*pread)(void *file, const char *path, void *dst, size_t nbytes, uint64_t offset,
                 struct fsdp_err *err);
    /* Appends all of it. */
    int (*write)(void *file, const char *path, const void *src, size_t nbytes,
                 struct fsdp_err *err);
    /* At any offset, from several threads. (optional) */
    int (*pwrite)(void *file, const char *path, const void *src, size_t nbytes, uint64_t offset,
                  struct fsdp_err *err);
    /* Durable when it returns; of an object store's file it is the end. After a failure the file is
     * lost. */
    int (*sync)(void *file, const char *path, struct fsdp_err *err);
    /* The file is gone whatever it returns; for a written file a failure means lost data. */
    int (*close)(void *file, const char *path, struct fsdp_err *err);
    /* In place of close: what was written is not wanted. (object stores only) */
    void (*abandon)(void *file, const char *path);

    /* Before the first write: what is sent of the file stays when it is abandoned, or its process
     * killed. id: a uuid that all runs of the job have; who looks at the file finds it. search: an
     * earlier run may have left such, or another have it under way, of which all counts as written
     * whose bytes are proved to be those that are written now. Where another run of the id is the
     * first to finish, this one is done, too; FSDP_ENOTFOUND of a write or sync: what was sent is
     * gone. (optional, object stores) */
    void (*keep_upload)(void *file, const char *path, const char *id, bool search);
    /* Takes that back before it is abandoned, as to what this process began: what it found may be
     * another's. (with keep_upload) */
    void (*drop_upload)(void *file, const char *path);

    int (*stat)(struct ckpt_store_stat *out, const char *path, struct fsdp_err *err);
    /* The same of a file opened for reading, whatever lies at its path now. */
    int (*stat_open)(struct ckpt_store_stat *out, void *file, const char *path,
                     struct fsdp_err *err);
    int (*list)(const char *path, ckpt_store_entry_f *fn, void *ctx, struct fsdp_err *err);
    /* (object stores have none) */
    int (*mkdir)(const char *path, struct fsdp_err *err);
    /* A file or an empty folder. */
    int (*remove)(const char *path, struct fsdp_err *err);
    /* All objects at path and below it, sorted by name in each folder. No link is followed and no
     * other mount is entered. What vanishes meanwhile is left out. FSDP_ENOTFOUND if there is
     * nothing at path. */
    int (*walk)(const char *path, ckpt_store_item_f *fn, void *ctx, struct fsdp_err *err);
    /* Removes the objects that a walk found and that lie at path now, which may be another name.
     * items are in the order of the walk. Goes as far as it can; the first failure is returned. An
     * object that is gone is fine. One that is not the object of the walk, or a folder that holds
     * more than the items, stays and is a failure; names that NFS gives to open files ('.nfs*')
     * stay and are logged. In an object store it also ends all uploads below path. */
    int (*remove_items)(const char *path, const struct ckpt_store_item *items, size_t nitems,
                        struct fsdp_err *err);
    /* Ends the uploads below path that were begun before that time (seconds since the epoch) and
     * never ended: they cost room and show nowhere. A dry run counts them. (object stores only) */
    int (*sweep)(uint64_t *nuploads, const char *path, int64_t before, bool dry_run,
                 struct fsdp_err *err);
    /* A folder: atomic, FSDP_EEXIST if the target is anything but an empty folder.
     * A file: atomic; replaces the target if `replace`, else FSDP_EEXIST.
     * (object stores have none) */
    int (*rename)(const char *from, const char *to, bool replace, struct fsdp_err *err);
    /* Two files or folders take each other's name at one instant. (optional; FSDP_EUNSUPPORTED
     * where a file system cannot) */
    int (*exchange)(const char *a, const char *b, struct fsdp_err *err);
    /* Makes creations and renames in a folder durable. (object stores have none) */
    int (*sync_folder)(const char *path, struct fsdp_err *err);
    /* Copies a whole file within the store, without its bytes passing through here; it appears when
     * it is complete. `to` is a name that nobody has. FSDP_EUNSUPPORTED, with nothing done, where
     * the store does not copy, or the two do not lie together; FSDP_ECANCELED if `moved` says so.
     * (optional, object stores) */
    int (*copy)(struct ckpt_store_copied *out, const char *from, const char *to, uint64_t nbytes,
                ckpt_store_moved_f *moved, void *ctx, struct fsdp_err *err);
    /* A file that is written consists of parts: the one that holds the byte at offset. (optional,
     * object stores) */
    void (*part_at)(uint64_t *begin, uint64_t *nbytes, void *file, uint64_t offset);
    /* In place of writes: the store itself copies nbytes from `begin` of `from`, which is open for
     * reading, to the part at offset, which has so many bytes; under the condition that `from` is
     * still what was opened (else FSDP_ECORRUPT). *crc32c: of the bytes that lie there now, by the
     * store. FSDP_EUNSUPPORTED, maybe without a text: the bytes must be written, also where the
     * store tells no checksum. Thread safe. (with part_at) */
    int (*copy_part)(uint32_t *crc32c, void *file, uint64_t offset, uint64_t nbytes, void *from,
                     uint64_t begin, struct fsdp_err *err);
    /* Is what lies below path reached through a network, so that fewer bytes are worth processor
     * time? (optional: no) */
    bool (*is_remote)(const char *path);
    /* How many bytes the store may have in buffers of its own, over all files. (optional) */
    void (*memory)(uint64_t nbytes);
    /* Bytes that can be written below path. (optional) */
    int (*space)(uint64_t *out, const char *path, struct fsdp_err *err);
    /* Reads of at most so many bytes stay in the system's cache, larger ones may not. (optional: no
     * difference) */
    size_t cached_nbytes;
};

extern const struct ckpt_store_ops ckpt_store_posix;
extern const struct ckpt_store_ops ckpt_store_s3; /* in builds with libcurl */

/* Fault injection, for tests. Counts every store call of this process; the nth following one is
 * struck. */
enum ckpt_store_fault {
    CKPT_FAULT_NONE,
    CKPT_FAULT_FAIL,    /* it fails as an I/O error would */
    CKPT_FAULT_NOSPACE, /* it fails as a full disk would */
    CKPT_FAULT_KILL,    /* SIGKILL to the process; half of a write is done before */
    CKPT_FAULT_STOP,    /* SIGSTOP: it resumes on SIGCONT */
    CKPT_FAULT_HANG,    /* it never returns, as from a server that does not answer */
};
void ckpt_store_fault_at(uint64_t nth, enum ckpt_store_fault fault);
uint64_t ckpt_store_calls(void);

#ifdef __cplusplus
}
#endif
#endif
