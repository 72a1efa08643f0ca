/* SPDX-License-Identifier: Apache-2.0 */
/* What there is below a name: objects, and uploads that never ended. */
#ifndef CKPT_S3_LIST_H
#define CKPT_S3_LIST_H

#include "call.h"

struct ckpt_s3_list {
    struct ckpt_s3_bucket *bucket;
    const char *prefix;
    bool folder;    /* what lies below "prefix/", nothing of the bucket left out if prefix is "" */
    bool delimited; /* not what lies deeper: there, one entry "name/" */
    int most;       /* entries; 0: all */

    size_t prefix_nbytes; /* of what every key begins with */
    size_t nentries, max;
    struct ckpt_s3_entry {
        char *key;
        uint64_t nbytes; /* of an object; 0 of an entry "name/" */
        int64_t mtime;
    } * entries;
};
int ckpt_s3_list_run(struct ckpt_s3_list *list, struct fsdp_err *err);
void ckpt_s3_list_free(struct ckpt_s3_list *list);
/* Takes a copy of the key, which begins with the prefix. */
int ckpt_s3_list_add(struct ckpt_s3_list *list, const char *key, struct fsdp_err *err);
/* Removes them all, a thousand at a time. */
int ckpt_s3_remove_listed(const struct ckpt_s3_list *list, struct fsdp_err *err);

/* Ends the uploads of a key, or below it, that were begun before that time; a dry run counts them.
 */
int ckpt_s3_sweep_uploads(uint64_t *nuploads, struct ckpt_s3_bucket *bucket, const char *key,
                          int64_t before, bool dry_run, struct fsdp_err *err);

#endif
