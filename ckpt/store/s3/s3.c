/* SPDX-License-Identifier: Apache-2.0 */
/*
 * S3 and what speaks its language (AWS, Ceph, MinIO, Swift's s3api): s3://bucket/key.
 *
 * Reads are ranges of the very object that was opened (If-Match), large ones several at a time.
 * What is written appears at once when it is finished (upload.h).
 */
#include <stdlib.h>
#include <string.h>

#include "s3_copy.h"
#include "list.h"
#include "upload.h"
#include "store/store.h"

enum { MAX_RANGES = 16 };
#define RANGE_NBYTES (2u << 20) /* shorter ones cost more round trips than they gain */

struct s3_file {
    struct ckpt_s3_bucket *bucket;
    const char *key; /* within path, which the dispatcher keeps */
    uint64_t nbytes;
    int64_t mtime;
    char etag[128];
    struct ckpt_s3_upload *upload; /* NULL: it is read */
};

/* ---- looking --------------------------------------------------------------------------------- */

/* HEAD has no body to say what is wrong: a list of the name alone does. */
static int explain_head(struct ckpt_s3_bucket *bucket, const char *key, struct fsdp_err *err)
{
    struct ckpt_s3_list list = {.bucket = bucket, .prefix = key, .most = 1};
    int rc = ckpt_s3_list_run(&list, err);
    ckpt_s3_list_free(&list);
    return rc;
}

static int head(struct ckpt_s3_call *call, struct ckpt_s3_bucket *bucket, const char *key,
                struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT, more = FSDP_ERR_INIT;
    ckpt_s3_call_init(call, bucket, "read", "HEAD", key);
    int rc = ckpt_s3_call_one(call, &why);
    ckpt_text_free(&call->text);
    if (rc == FSDP_OK || call->status / 100 != 4)
        return fsdp_err_pass(err, rc, &why);
    int rc_list = explain_head(bucket, key, &more);
    if (rc_list && (call->status != 404 || rc_list == FSDP_ENOTFOUND))
        return fsdp_err_set(err, rc_list == FSDP_ENOTFOUND ? FSDP_EIO : rc_list, "%s", more.text);
    if (call->status == 404)
        return fsdp_err_set(err, FSDP_ENOTFOUND, "'s3://%s/%s': no such object", bucket->name, key);
    return fsdp_err_pass(err, rc, &why);
}

static uint64_t tag_of(const char *etag)
{
    return *etag ? fsdp_hash(FSDP_HASH_SEED, etag, strlen(etag)) | 1 : 0;
}

static int s3_stat(struct ckpt_store_stat *out, const char *path, struct fsdp_err *err)
{
    struct ckpt_s3_bucket *bucket;
    struct ckpt_s3_call call;
    struct fsdp_err why = FSDP_ERR_INIT;
    const char *key;
    FSDP_TRY(ckpt_s3_bucket_of(&bucket, &key, path, err));
    size_t len = strlen(key);
    int rc = FSDP_ENOTFOUND;
    if (len && key[len - 1] != '/') {
        rc = head(&call, bucket, key, &why);
        if (rc == FSDP_OK)
            *out = (struct ckpt_store_stat){
                .nbytes = call.length, .mtime = call.mtime, .tag = tag_of(call.etag)};
        if (rc == FSDP_OK && strlen(call.id) < sizeof out->id)
            strcpy(out->id, call.id);
        if (rc != FSDP_ENOTFOUND)
            return fsdp_err_pass(err, rc, &why);
    }
    struct ckpt_s3_list list = {.bucket = bucket, .prefix = key, .folder = true, .most = 1};
    rc = ckpt_s3_list_run(&list, err);
    if (rc == FSDP_OK && len && !list.nentries)
        rc = fsdp_err_set(err, FSDP_ENOTFOUND, "'%s': no such object", path);
    *out = (struct ckpt_store_stat){.is_folder = true};
    ckpt_s3_list_free(&list);
    return rc;
}

static int s3_stat_open(struct ckpt_store_stat *out, void *opened, const char *path,
                        struct fsdp_err *err)
{
    const struct s3_file *file = opened;
    (void)path, (void)err;
    *out = (struct ckpt_store_stat){
        .nbytes = file->nbytes, .mtime = file->mtime, .tag = tag_of(file->etag)};
    return FSDP_OK;
}

static int s3_list(const char *path, ckpt_store_entry_f *fn, void *ctx, struct fsdp_err *err)
{
    struct ckpt_s3_list list = {.folder = true, .delimited = true};
    FSDP_TRY(ckpt_s3_bucket_of(&list.bucket, &list.prefix, path, err));
    int rc = ckpt_s3_list_run(&list, err);
    if (rc == FSDP_OK && *list.prefix && !list.nentries)
        rc = fsdp_err_set(err, FSDP_ENOTFOUND, "cannot list '%s': there is nothing below it", path);
    for (size_t i = 0; rc == FSDP_OK && i < list.nentries; i++) {
        char *name = list.entries[i].key + list.prefix_nbytes;
        size_t len = strlen(name);
        if (len && name[len - 1] == '/')
            name[len - 1] = 0;
        if (*name) /* a mark that some tools make for the folder itself */
            rc = fn(ctx, name, err);
    }
    ckpt_s3_list_free(&list);
    return rc;
}

/* ---- files ----------------------------------------------------------------------------------- */

static int open_read(struct s3_file *file, struct fsdp_err *err)
{
    struct ckpt_s3_call call;
    FSDP_TRY(head(&call, file->bucket, file->key, err));
    file->nbytes = call.length;
    file->mtime = call.mtime;
    memcpy(file->etag, call.etag, sizeof file->etag);
    return FSDP_OK;
}

/* Whether the name is free is seen before all is sent; who is first, when the object appears. */
static int open_write(struct s3_file *file, const char *path, bool replace, struct fsdp_err *err)
{
    struct ckpt_s3_call call;
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = replace ? FSDP_ENOTFOUND : head(&call, file->bucket, file->key, &why);
    if (rc == FSDP_OK)
        return fsdp_err_set(err, FSDP_EEXIST, "'%s' exists already", path);
    if (rc != FSDP_ENOTFOUND)
        return fsdp_err_pass(err, rc, &why);
    return ckpt_s3_upload_create(&file->upload, file->bucket, file->key, replace, err);
}

static int s3_open(void **out, const char *path, enum ckpt_store_mode mode, struct fsdp_err *err)
{
    struct ckpt_s3_bucket *bucket;
    const char *key;
    FSDP_TRY(ckpt_s3_bucket_of(&bucket, &key, path, err));
    if (mode == CKPT_STORE_RESUME)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "'%s': S3 objects cannot be resumed", path);
    if (!*key || key[strlen(key) - 1] == '/')
        return fsdp_err_set(err, FSDP_EINVAL, "'%s' names no object", path);
    struct s3_file *file = fsdp_alloc(1, sizeof *file + strlen(key) + 1, "object", err);
    if (!file)
        return FSDP_ENOMEM;
    file->bucket = bucket;
    file->key = strcpy((char *)(file + 1), key);
    int rc = mode == CKPT_STORE_READ ? open_read(file, err)
                                     : open_write(file, path, mode == CKPT_STORE_REPLACE, err);
    if (rc)
        fsdp_free(file);
    else
        *out = file;
    return rc;
}

static void s3_keep_upload(void *opened, const char *path, const char *id, bool search)
{
    struct s3_file *file = opened;
    (void)path;
    ckpt_s3_upload_keep(file->upload, id, search);
}

static void s3_drop_upload(void *opened, const char *path)
{
    struct s3_file *file = opened;
    (void)path;
    ckpt_s3_upload_drop(file->upload);
}

struct range {
    struct ckpt_s3_call call;
    char text[64];
};

/* Ranges of equal size side by side, into their places. */
static int read_ranges(struct s3_file *file, const char *path, char *dst, size_t nbytes,
                       uint64_t offset, struct fsdp_err *err)
{
    size_t nranges = (nbytes + RANGE_NBYTES - 1) / RANGE_NBYTES;
    nranges = nranges > MAX_RANGES ? MAX_RANGES : nranges;
    size_t each = (nbytes + nranges - 1) / nranges;
    struct ckpt_s3_call *calls[MAX_RANGES];
    struct range *ranges = fsdp_alloc(nranges, sizeof *ranges, "ranges", err);
    int ncalls = 0;
    if (!ranges)
        return FSDP_ENOMEM;
    for (size_t at = 0; at < nbytes; at += each) {
        struct range *range = &ranges[ncalls];
        size_t some = nbytes - at < each ? nbytes - at : each;
        snprintf(range->text, sizeof range->text, "bytes=%llu-%llu",
                 (unsigned long long)(offset + at), (unsigned long long)(offset + at + some - 1));
        ckpt_s3_call_init(&range->call, file->bucket, "read", "GET", file->key);
        ckpt_s3_call_header(&range->call, "range", range->text);
        if (file->etag[0])
            ckpt_s3_call_header(&range->call, "if-match", file->etag);
        range->call.dst = dst + at;
        range->call.dst_nbytes = some;
        calls[ncalls++] = &range->call;
    }
    int rc = ckpt_s3_call_run(calls, ncalls, err);
    for (int i = 0; i < ncalls; i++) {
        if (calls[i]->status == 412)
            rc = fsdp_err_set(err, FSDP_ECORRUPT, "'%s' was replaced while it was read", path);
        ckpt_text_free(&calls[i]->text);
    }
    fsdp_free(ranges);
    return rc;
}

static int s3_pread(void *opened, const char *path, void *dst, size_t nbytes, uint64_t offset,
                    struct fsdp_err *err)
{
    struct s3_file *file = opened;
    if (file->upload)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "'%s' is being written", path);
    if (offset > file->nbytes || nbytes > file->nbytes - offset)
        return fsdp_err_set(err, FSDP_ECORRUPT,
                            "'%s' ends at byte %llu: %zu bytes from %llu wanted", path,
                            (unsigned long long)file->nbytes, nbytes, (unsigned long long)offset);
    return read_ranges(file, path, dst, nbytes, offset, err);
}

static int s3_write(void *opened, const char *path, const void *src, size_t nbytes,
                    struct fsdp_err *err)
{
    (void)path;
    return ckpt_s3_upload_append(((struct s3_file *)opened)->upload, src, nbytes, err);
}

static int s3_pwrite(void *opened, const char *path, const void *src, size_t nbytes,
                     uint64_t offset, struct fsdp_err *err)
{
    (void)path;
    return ckpt_s3_upload_put(((struct s3_file *)opened)->upload, src, nbytes, offset, err);
}

static int s3_sync(void *opened, const char *path, struct fsdp_err *err)
{
    struct s3_file *file = opened;
    (void)path;
    return ckpt_s3_upload_finish(file->upload, err);
}

static void s3_abandon(void *opened, const char *path)
{
    struct s3_file *file = opened;
    (void)path;
    ckpt_s3_upload_destroy(file->upload);
    fsdp_free(file);
}

static int s3_close(void *opened, const char *path, struct fsdp_err *err)
{
    struct s3_file *file = opened;
    int rc = file->upload && !ckpt_s3_upload_is_finished(file->upload) ? s3_sync(file, path, err)
                                                                       : FSDP_OK;
    s3_abandon(file, path);
    return rc;
}

/* ---- names ----------------------------------------------------------------------------------- */

static int s3_remove(const char *path, struct fsdp_err *err)
{
    struct ckpt_s3_bucket *bucket;
    struct ckpt_store_stat st;
    struct ckpt_s3_call call;
    const char *key;
    FSDP_TRY(ckpt_s3_bucket_of(&bucket, &key, path, err));
    FSDP_TRY(s3_stat(&st, path, err)); /* a removal does not tell whether there was anything */
    if (st.is_folder)
        return fsdp_err_set(err, FSDP_EEXIST, "cannot remove '%s': there is something below it",
                            path);
    ckpt_s3_call_init(&call, bucket, "remove", "DELETE", key);
    int rc = ckpt_s3_call_one(&call, err);
    ckpt_text_free(&call.text);
    return rc;
}

/* Objects below "path/", and the one of that very name. */
static int s3_walk(const char *path, ckpt_store_item_f *fn, void *ctx, struct fsdp_err *err)
{
    struct ckpt_s3_list list = {.folder = true};
    struct ckpt_s3_call call;
    struct fsdp_err why = FSDP_ERR_INIT;
    bool enter;
    FSDP_TRY(ckpt_s3_bucket_of(&list.bucket, &list.prefix, path, err));
    int rc = ckpt_s3_list_run(&list, err), rc_head = FSDP_ENOTFOUND;
    size_t len = strlen(list.prefix);
    if (rc == FSDP_OK && len && list.prefix[len - 1] != '/')
        rc_head = head(&call, list.bucket, list.prefix, &why);
    if (rc == FSDP_OK && rc_head && rc_head != FSDP_ENOTFOUND)
        rc = fsdp_err_pass(err, rc_head, &why);
    if (rc == FSDP_OK && rc_head && !list.nentries)
        rc = fsdp_err_set(err, FSDP_ENOTFOUND, "'%s': no such object", path);
    if (rc == FSDP_OK && !rc_head)
        rc = fn(ctx,
                &(struct ckpt_store_item){.path = "", .nbytes = call.length, .mtime = call.mtime},
                &enter, err);
    for (size_t i = 0; rc == FSDP_OK && i < list.nentries; i++) {
        const struct ckpt_s3_entry *entry = &list.entries[i];
        struct ckpt_store_item item = {.path = entry->key + list.prefix_nbytes,
                                       .nbytes = entry->nbytes,
                                       .mtime = entry->mtime};
        if (!*item.path) /* a mark that some tools make for the folder itself */
            item.path = "/";
        rc = fn(ctx, &item, &enter, err);
    }
    ckpt_s3_list_free(&list);
    return rc;
}

static int s3_remove_items(const char *path, const struct ckpt_store_item *items, size_t nitems,
                           struct fsdp_err *err)
{
    struct ckpt_s3_list list = {0};
    uint64_t nuploads;
    FSDP_TRY(ckpt_s3_bucket_of(&list.bucket, &list.prefix, path, err));
    if (!*list.prefix)
        return fsdp_err_set(err, FSDP_EINVAL, "'%s': a whole bucket is not removed", path);
    size_t len = strlen(list.prefix);
    bool slash = list.prefix[len - 1] == '/';
    int rc = FSDP_OK;
    for (size_t i = 0; rc == FSDP_OK && i < nitems; i++) {
        const char *below = items[i].path;
        char *key = !*below || !strcmp(below, "/")
                        ? fsdp_sprintf(err, "%s%s", list.prefix, slash ? "" : below)
                        : fsdp_sprintf(err, "%s%s%s", list.prefix, slash ? "" : "/", below);
        rc = key ? ckpt_s3_list_add(&list, key, err) : FSDP_ENOMEM;
        fsdp_free(key);
    }
    if (rc == FSDP_OK)
        rc = ckpt_s3_remove_listed(&list, err);
    ckpt_s3_list_free(&list);
    FSDP_TRY(rc);
    return ckpt_s3_sweep_uploads(&nuploads, list.bucket, list.prefix, INT64_MAX, false, err);
}

static int s3_sweep(uint64_t *nuploads, const char *path, int64_t before, bool dry_run,
                    struct fsdp_err *err)
{
    struct ckpt_s3_bucket *bucket;
    const char *key;
    FSDP_TRY(ckpt_s3_bucket_of(&bucket, &key, path, err));
    return ckpt_s3_sweep_uploads(nuploads, bucket, key, before, dry_run, err);
}

/* Some stores decode the source's name twice; Ceph 16's gateway ends itself over what is then no
 * name. */
static bool may_be_source(const char *key)
{
    return !strpbrk(key, "%+?");
}

static int s3_copy(struct ckpt_store_copied *out, const char *from, const char *to, uint64_t nbytes,
                   ckpt_store_moved_f *moved, void *ctx, struct fsdp_err *err)
{
    struct ckpt_s3_copy_args args = {.nbytes = nbytes, .moved = moved, .ctx = ctx};
    struct ckpt_s3_call call;
    FSDP_TRY(ckpt_s3_bucket_of(&args.from, &args.from_key, from, err));
    FSDP_TRY(ckpt_s3_bucket_of(&args.to, &args.to_key, to, err));
    if (!nbytes || !may_be_source(args.from_key) || !ckpt_s3_copy_is_near(args.from, args.to))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "'%s': not copied by the store", from);
    FSDP_TRY(head(&call, args.from, args.from_key, err));
    if (call.length != nbytes)
        return fsdp_err_set(err, FSDP_ECORRUPT, "'%s' has %llu bytes instead of %llu", from,
                            (unsigned long long)call.length, (unsigned long long)nbytes);
    args.etag = call.etag;
    return ckpt_s3_copy(out, &args, err);
}

static void s3_part_at(uint64_t *begin, uint64_t *nbytes, void *opened, uint64_t offset)
{
    ckpt_s3_upload_part_at(begin, nbytes, ((struct s3_file *)opened)->upload, offset);
}

static int s3_copy_part(uint32_t *crc32c, void *opened, uint64_t offset, uint64_t nbytes,
                        void *from_opened, uint64_t begin, struct fsdp_err *err)
{
    const struct s3_file *from = from_opened;
    const struct ckpt_s3_copy_args args = {
        .from = from->bucket, .from_key = from->key, .etag = from->etag, .nbytes = nbytes};
    if (!may_be_source(from->key) || !*from->etag)
        return FSDP_EUNSUPPORTED;
    return ckpt_s3_upload_copy(crc32c, ((struct s3_file *)opened)->upload, offset, &args, begin,
                               err);
}

static bool s3_is_remote(const char *path)
{
    (void)path;
    return true;
}

const struct ckpt_store_ops ckpt_store_s3 = {
    .abi = CKPT_STORE_ABI,
    .name = "s3",
    .object_store = true,
    .open = s3_open,
    .pread = s3_pread,
    .write = s3_write,
    .pwrite = s3_pwrite,
    .sync = s3_sync,
    .close = s3_close,
    .abandon = s3_abandon,
    .keep_upload = s3_keep_upload,
    .drop_upload = s3_drop_upload,
    .stat = s3_stat,
    .stat_open = s3_stat_open,
    .list = s3_list,
    .remove = s3_remove,
    .walk = s3_walk,
    .remove_items = s3_remove_items,
    .sweep = s3_sweep,
    .copy = s3_copy,
    .part_at = s3_part_at,
    .copy_part = s3_copy_part,
    .is_remote = s3_is_remote,
    .memory = ckpt_s3_upload_memory,
};
