/* SPDX-License-Identifier: Apache-2.0 */
/* One output file while it is written: ranges in any order, from several threads. */
#ifndef CKPT_JOB_SINK_H
#define CKPT_JOB_SINK_H

#include "store.h"

struct ckpt_job_sink;

/* Makes the file, or goes on with that of an earlier run, and writes its header. nbytes: of the
 * whole file. */
int ckpt_job_sink_open(struct ckpt_job_sink **out, const struct ckpt_store_ops *ops,
                       const char *path, const char *header, size_t header_nbytes, uint64_t nbytes,
                       struct fsdp_err *err);
/* crc32c: of the range. Thread safe. */
int ckpt_job_sink_put(struct ckpt_job_sink *sink, const void *data, size_t nbytes, uint64_t pos,
                      uint32_t crc32c, struct fsdp_err *err);
/* A range that an earlier run has put: reads it into data; *same says whether it has this checksum,
 * in which case it counts as put. Thread safe. */
int ckpt_job_sink_recall(bool *same, struct ckpt_job_sink *sink, void *data, size_t nbytes,
                         uint64_t pos, uint32_t crc32c, struct fsdp_err *err);
/* After the last range: makes the file durable and gives its size and checksum on disk. The sink is
 * gone whatever it returns. */
int ckpt_job_sink_finish(uint64_t *nbytes, uint32_t *crc32c, struct ckpt_job_sink *sink,
                         struct fsdp_err *err);
/* Gives up; NULL is allowed. */
void ckpt_job_sink_abandon(struct ckpt_job_sink *sink);

#endif
