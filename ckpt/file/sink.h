/* SPDX-License-Identifier: Apache-2.0 */
/* One output file while it is written: ranges in any order, from several threads, compressed if its
 * name says so. */
#ifndef CKPT_JOB_SINK_H
#define CKPT_JOB_SINK_H

#include "zst.h"

struct ckpt_job_sink;

struct ckpt_job_sink_args {
    const char *header; /* NULL: the file has none */
    size_t header_nbytes;
    uint64_t nbytes; /* of the whole file, uncompressed */
    int window;      /* of compression: chunks in memory */
    bool replace;    /* a whole file of that name, where a store has such */
    bool stored;     /* the bytes are those of a file as it is stored: nothing is compressed */
    /* In an object store: what was sent stays for another run of the job that has this uuid; NULL:
     * it does not. */
    const char *keeps;
    bool found; /* such a run has been before, and may have left something */
    /* A compressed file is resumed only if it is complete: its size and checksum on disk as an
     * earlier run noted them; 0: it did not. */
    uint64_t done_nbytes;
    uint32_t done_crc32c;
};
/* Makes the file, or resumes that of an earlier run, and writes its header. */
int ckpt_job_sink_open(struct ckpt_job_sink **out, const struct ckpt_store_ops *ops,
                       const char *path, const struct ckpt_job_sink_args *args,
                       struct fsdp_err *err);
/* crc32c: of the range. Thread safe. */
int ckpt_job_sink_put(struct ckpt_job_sink *sink, const void *data, size_t nbytes, uint64_t pos,
                      uint32_t crc32c, struct fsdp_err *err);
/* A range that an earlier run has put: reads it into data; *same says whether it has this checksum,
 * in which case it counts as put. Thread safe. */
int ckpt_job_sink_recall(bool *same, struct ckpt_job_sink *sink, void *data, size_t nbytes,
                         uint64_t pos, uint32_t crc32c, struct fsdp_err *err);
/* The part of the stored file that holds the byte at pos; false: the store has none that it could
 * copy by itself, or what is put is not what is stored. */
bool ckpt_job_sink_part_at(uint64_t *begin, uint64_t *nbytes, struct ckpt_job_sink *sink,
                           uint64_t pos);
/* In place of a put: the store copies the whole part out of another of its files, and *crc32c is
 * what it says of it (ckpt_store_copy_part). Thread safe. */
int ckpt_job_sink_copy(uint32_t *crc32c, struct ckpt_job_sink *sink, uint64_t nbytes, uint64_t pos,
                       struct ckpt_store_file *from, uint64_t from_pos, struct fsdp_err *err);
/* Lets waiting puts fail. */
void ckpt_job_sink_stop(struct ckpt_job_sink *sink);
/* Of what was put so far, which must be all of a file that is not compressed. */
uint32_t ckpt_job_sink_crc(const struct ckpt_job_sink *sink);
/* After the last range: makes the file durable and gives its size and checksum on disk. *sink is
 * NULL then; after a failure it may be left, to be abandoned. */
int ckpt_job_sink_finish(uint64_t *nbytes, uint32_t *crc32c, struct ckpt_job_sink **sink,
                         struct fsdp_err *err);
/* What was kept is not wanted any more, as far as this process has begun it: before the sink is
 * abandoned. NULL is allowed. */
void ckpt_job_sink_drop(struct ckpt_job_sink *sink);
/* Gives up; NULL is allowed. */
void ckpt_job_sink_abandon(struct ckpt_job_sink *sink);

#endif
