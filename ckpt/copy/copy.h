/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A copy of a checkpoint in progress.
 *
 *   copy.c          the steps in order; which files, to where
 *   copy_move.c     threads that move blocks of all files, and prove each file
 *   copy_publish.c  what goes last, and the final name
 */
#ifndef CKPT_COPY_H
#define CKPT_COPY_H

#include <stdatomic.h>

#include "file/sink.h"
#include "source/source.h"
#include "keep/commit.h"
#include "keep/temp.h"

struct ckpt_copy_file {
    char *to; /* path of the copy while it is made */
    uint64_t nbytes;
    struct ckpt_job_sink *sink;
    pthread_mutex_t lock; /* opening */
    bool opened, there;   /* there: an earlier run had put it there, whole */
    bool moved;           /* by the store itself */
    bool unproved;        /* it is to be read again */
    struct ckpt_store_file *again;
    atomic_uint_fast32_t crc_again; /* the xor of what all blocks contribute */
    atomic_uint_fast64_t left;      /* bytes not yet moved */
    uint32_t crc32c;                /* of what was read, when it is done */
};

struct ckpt_copy {
    struct ckpt *ckpt;
    const struct ckpt_copy_args *args;
    const struct ckpt_store_ops *store; /* of the copy */
    struct ckpt_commit commit;
    bool folder, made;
    bool began; /* there is a journal, from which the same command can resume */
    struct ckpt_journal journal;

    int nfiles; /* those of the layout */
    struct ckpt_copy_file *files;
    int nthreads;
    bool reading; /* again, what is unproved */
    size_t block_nbytes;
    pthread_mutex_t lock; /* below, and the journal's end */
    int next_file;
    uint64_t next_pos, total, done, resumed, within; /* within: moved by the store itself */
};

/* "model/x" for "<uuid>/model/x": a file's path without the folder that an object store adds. */
const char *ckpt_copy_plain(const struct ckpt_copy *copy, const char *path);
/* The path of the copy of a file, while it is made. */
char *ckpt_copy_to(const struct ckpt_copy *copy, const char *path, struct fsdp_err *err);

/* All files of the layout, proved against the checksums that the source has of them. */
int ckpt_copy_move(struct ckpt_copy *copy, struct fsdp_err *err);
/* Reads the copy again: what is there is what was read. */
int ckpt_copy_verify(struct ckpt_copy *copy, struct fsdp_err *err);
/* Small files, manifest or index, and the final name. */
int ckpt_copy_publish(struct ckpt_copy *copy, struct fsdp_err *err);

#endif
