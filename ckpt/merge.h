/* SPDX-License-Identifier: Apache-2.0 */
/* A merge in progress. merge.c moves the bytes, merge_out.c knows the output's files and publishes
 * them. */
#ifndef CKPT_MERGE_H
#define CKPT_MERGE_H

#include "opened.h"

/* A file being written. */
struct ckpt_merge_file {
    char *name; /* in the output folder, or NULL for a single file */
    char *path; /* where it is written */
    char *header;
    size_t header_nbytes;
    uint64_t nbytes;
    int first, nitems; /* of the items */
    int nleft;         /* items not yet written */
    struct ckpt_store_file *file;
    bool opened;
};

/* A tensor to write. */
struct ckpt_merge_item {
    int tensor, file;
    enum fsdp_dtype dtype;
    uint64_t pos, nbytes; /* in the file */
    struct ckpt_plan plan;
    bool planned;
    size_t next, nleft; /* blocks: to be handed out, not yet done */
    uint64_t sum;       /* fingerprint of what was read so far */
};

struct ckpt_merger {
    struct ckpt *ckpt;
    const struct ckpt_merge_args *args;
    const struct ckpt_store_ops *store; /* of the output */
    char *final, *temp;
    bool folder, cast, made_temp;
    enum fsdp_dtype dtype; /* if cast */
    int nitems, nfiles;
    struct ckpt_merge_item *items; /* in the order of the output's bytes */
    struct ckpt_merge_file *files;
    uint64_t nbytes, total; /* of the files; of tensor data to write */

    pthread_mutex_t lock; /* all below */
    int current;          /* item that blocks are handed out from */
    uint64_t done;
    int rc;
    struct fsdp_err err;
};

/* Decides names, refuses an existing output or one that would hurt the input; needs no items. */
int ckpt_merge_name(struct ckpt_merger *m, struct fsdp_err *err);
/* From the items: files, headers, positions; then is there room? */
int ckpt_merge_arrange(struct ckpt_merger *m, struct fsdp_err *err);
int ckpt_merge_begin(struct ckpt_merger *m, struct fsdp_err *err);
/* Opens a file and writes its header; syncs and closes it. */
int ckpt_merge_file_open(struct ckpt_merger *m, int file, struct fsdp_err *err);
int ckpt_merge_file_finish(struct ckpt_merger *m, int file, struct fsdp_err *err);
/* Index, configuration, the final name. */
int ckpt_merge_publish(struct ckpt_merger *m, struct fsdp_err *err);
/* Removes what was written under the temporary name, if it still exists. */
void ckpt_merge_undo(struct ckpt_merger *m);

#endif
