/* SPDX-License-Identifier: Apache-2.0 */
/* Calls to a store (ckpt/sys/store_ops.h) and small compositions of them. */
#ifndef CKPT_STORE_H
#define CKPT_STORE_H

#include "ckpt/sys/store_ops.h"

struct ckpt_store_file;

/* The backend for a path or URL; FSDP_EUNSUPPORTED for one that this build lacks. */
int ckpt_store_of(const struct ckpt_store_ops **out, const char *path, struct fsdp_err *err);

int ckpt_store_open(struct ckpt_store_file **out, const struct ckpt_store_ops *ops,
                    const char *path, enum ckpt_store_mode mode, struct fsdp_err *err);
int ckpt_store_pread(struct ckpt_store_file *file, void *dst, size_t nbytes, uint64_t offset,
                     struct fsdp_err *err);
/* Of what is read again and again, as headers and manifests are: it stays in the system's cache,
 * where there is one. */
int ckpt_store_pread_cached(struct ckpt_store_file *file, void *dst, size_t nbytes, uint64_t offset,
                            struct fsdp_err *err);
int ckpt_store_write(struct ckpt_store_file *file, const void *src, size_t nbytes,
                     struct fsdp_err *err);
int ckpt_store_pwrite(struct ckpt_store_file *file, const void *src, size_t nbytes, uint64_t offset,
                      struct fsdp_err *err);
int ckpt_store_sync(struct ckpt_store_file *file, struct fsdp_err *err);
/* Frees the handle in any case. NULL is allowed. */
int ckpt_store_close(struct ckpt_store_file *file, struct fsdp_err *err);
/* The same where what was written is not wanted: in an object store it never appears. */
void ckpt_store_abandon(struct ckpt_store_file *file);

/* See struct ckpt_store_ops; a store without it does nothing. */
int ckpt_store_keep_upload(struct ckpt_store_file *file, const char *id, bool search,
                           struct fsdp_err *err);
void ckpt_store_drop_upload(struct ckpt_store_file *file);
int ckpt_store_stat(struct ckpt_store_stat *out, const struct ckpt_store_ops *ops, const char *path,
                    struct fsdp_err *err);
/* Of a file opened for reading, whatever lies at its path now. */
int ckpt_store_stat_open(struct ckpt_store_stat *out, struct ckpt_store_file *file,
                         struct fsdp_err *err);
/* NULL if two looks at a file saw the same file with the same bytes, as far as the store can tell;
 * else what differs, such as "its size". status: a changed ctime differs, too. Pure. */
const char *ckpt_store_changed(const struct ckpt_store_stat *a, const struct ckpt_store_stat *b,
                               bool status);
/* FSDP_ECORRUPT for a file that changed while it was read; changed: as above. */
int ckpt_store_changed_error(const char *path, const char *changed, struct fsdp_err *err);
int ckpt_store_list(const struct ckpt_store_ops *ops, const char *path, ckpt_store_entry_f *fn,
                    void *ctx, struct fsdp_err *err);
int ckpt_store_mkdir(const struct ckpt_store_ops *ops, const char *path, struct fsdp_err *err);
int ckpt_store_remove(const struct ckpt_store_ops *ops, const char *path, struct fsdp_err *err);
/* One step of a call that a backend takes in several: counted for fault injection as a call of its
 * own. */
int ckpt_store_step(const char *what, const char *path, struct fsdp_err *err);
int ckpt_store_walk(const struct ckpt_store_ops *ops, const char *path, ckpt_store_item_f *fn,
                    void *ctx, struct fsdp_err *err);
int ckpt_store_remove_items(const struct ckpt_store_ops *ops, const char *path,
                            const struct ckpt_store_item *items, size_t nitems,
                            struct fsdp_err *err);
/* *nuploads: how many were ended, or in a dry run would be. */
int ckpt_store_sweep(uint64_t *nuploads, const struct ckpt_store_ops *ops, const char *path,
                     int64_t before, bool dry_run, struct fsdp_err *err);
int ckpt_store_rename(const struct ckpt_store_ops *ops, const char *from, const char *to,
                      bool replace, struct fsdp_err *err);
int ckpt_store_exchange(const struct ckpt_store_ops *ops, const char *a, const char *b,
                        struct fsdp_err *err);
int ckpt_store_sync_folder(const struct ckpt_store_ops *ops, const char *path,
                           struct fsdp_err *err);
/* By the store itself; FSDP_EUNSUPPORTED: read and write. */
int ckpt_store_copy_within(struct ckpt_store_copied *out, const struct ckpt_store_ops *ops,
                           const char *from, const char *to, uint64_t nbytes,
                           ckpt_store_moved_f *moved, void *ctx, struct fsdp_err *err);
/* The part of a file being written that holds the byte at offset; false: the store has none. */
bool ckpt_store_part_at(uint64_t *begin, uint64_t *nbytes, struct ckpt_store_file *file,
                        uint64_t offset);
/* See copy_part of struct ckpt_store_ops. */
int ckpt_store_copy_part(uint32_t *crc32c, struct ckpt_store_file *file, uint64_t offset,
                         uint64_t nbytes, struct ckpt_store_file *from, uint64_t begin,
                         struct fsdp_err *err);
bool ckpt_store_is_remote(const struct ckpt_store_ops *ops, const char *path);
/* Buffers of the store's own, over all its files; false: it has none. */
bool ckpt_store_memory(const struct ckpt_store_ops *ops, uint64_t nbytes);
/* UINT64_MAX where the store cannot tell. */
int ckpt_store_space(uint64_t *out, const struct ckpt_store_ops *ops, const char *path,
                     struct fsdp_err *err);

/* ---- can.c: what a store can do, where its callers go different ways ---- */

/* Can names be changed, so that a whole folder appears, or is replaced, at one instant? */
bool ckpt_store_can_rename(const struct ckpt_store_ops *ops);
/* Can bytes be added to a file, by another run, too? */
bool ckpt_store_can_append(const struct ckpt_store_ops *ops);
/* Is every file that has a name complete, even after a kill? Else it may be a part. */
bool ckpt_store_has_whole_files(const struct ckpt_store_ops *ops);
/* May one object have several names, by links or mounts? */
bool ckpt_store_has_links(const struct ckpt_store_ops *ops);
/* May there be uploads of files that nobody sees yet, even below a name that is not there? */
bool ckpt_store_has_uploads(const struct ckpt_store_ops *ops);
/* Do threads wait for a server, so that more of them than processors are worth it? */
bool ckpt_store_is_far(const struct ckpt_store_ops *ops);

/* To write a file anew. replace: a file of that name goes; else it stays where it is whole
 * (FSDP_EEXIST), for it may be somebody else's. */
int ckpt_store_open_anew(struct ckpt_store_file **out, const struct ckpt_store_ops *ops,
                         const char *path, bool replace, struct fsdp_err *err);
/* The same, but what an earlier run has written of it stays and can be read, where a store can do
 * that. */
int ckpt_store_open_again(struct ckpt_store_file **out, const struct ckpt_store_ops *ops,
                          const char *path, bool replace, struct fsdp_err *err);

/* ---- path.c ---- */

/* "folder/name"; NULL with err set when out of memory. */
char *ckpt_path_join(const char *folder, const char *name, struct fsdp_err *err);
/* The folder that holds path ("." for a plain name), without trailing slashes. */
char *ckpt_path_parent(const char *path, struct fsdp_err *err);
const char *ckpt_path_base(const char *path);
/* A random (version 4) uuid. */
int ckpt_uuid_make(char out[37], struct fsdp_err *err);

/* The names in a folder, sorted. Freed with ckpt_names_free. */
struct ckpt_names {
    char **names;
    int nnames;
    size_t max;
};
int ckpt_store_names(struct ckpt_names *out, const struct ckpt_store_ops *ops, const char *path,
                     struct fsdp_err *err);
void ckpt_names_free(struct ckpt_names *names);
void ckpt_names_sort(struct ckpt_names *names);
/* Takes a copy of the name. */
int ckpt_names_add(struct ckpt_names *names, const char *name, struct fsdp_err *err);

/* What lies at path itself: a link is not followed. */
int ckpt_store_kind_at(enum ckpt_store_kind *out, const struct ckpt_store_ops *ops,
                       const char *path, struct fsdp_err *err);
/* mkdir with all missing parents; an existing folder is fine. */
int ckpt_store_mkdirs(const struct ckpt_store_ops *ops, const char *path, struct fsdp_err *err);
/* Removes one file, or the link that has its name; what is not there is fine. */
int ckpt_store_discard(const struct ckpt_store_ops *ops, const char *path, struct fsdp_err *err);
/* A whole small file, with a 0 byte after it. FSDP_EINVAL if larger than max_nbytes, FSDP_ECORRUPT
 * if it changed meanwhile. */
int ckpt_store_get(char **out, size_t *out_nbytes, const struct ckpt_store_ops *ops,
                   const char *path, size_t max_nbytes, struct fsdp_err *err);
/* The same; *seen: what the file was. */
int ckpt_store_get_seen(char **out, struct ckpt_store_stat *seen, const struct ckpt_store_ops *ops,
                        const char *path, size_t max_nbytes, struct fsdp_err *err);
/* Creates a whole small file; durable if `sync`. */
int ckpt_store_put(const struct ckpt_store_ops *ops, const char *path, const void *data,
                   size_t nbytes, bool sync, struct fsdp_err *err);
/* The same where a file of an earlier run may be in the way; durable. */
int ckpt_store_replace(const struct ckpt_store_ops *ops, const char *path, const void *data,
                       size_t nbytes, struct fsdp_err *err);
/* Copies a file through a small buffer; durable if `sync`. Its size and CRC-32C are given too. to =
 * NULL: only these are wanted. */
int ckpt_store_copy(uint64_t *nbytes, uint32_t *crc32c, const struct ckpt_store_ops *from_ops,
                    const char *from, const struct ckpt_store_ops *to_ops, const char *to,
                    bool sync, struct fsdp_err *err);

/* posix_lock.c: 0 where a lock on a file at path, in a file system, keeps out whoever sees it; on
 * mounts that keep locks to themselves (NFS with nolock) a number that only this mount has. Jobs
 * that would resume each other's files put it into the names of these. */
uint64_t ckpt_lock_domain(const char *path);

#endif
