/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of parts that are filled or under way: one budget over all uploads of a process. */
#ifndef CKPT_S3_UPLOAD_MEMORY_H
#define CKPT_S3_UPLOAD_MEMORY_H

#include "fsdp/base.h"

#define CKPT_S3_SMALL_NBYTES (1u << 20)

/* Waits until there is room, or nothing is under way that would make some. Blocks. */
void ckpt_s3_memory_take(uint64_t nbytes);
/* nflying: so many parts more are under way, less where it is negative. */
void ckpt_s3_memory_give(uint64_t nbytes, int nflying);
/* An upload begins (1) or is gone (-1): buffers are kept for another use while there is one. */
void ckpt_s3_uploads_add(int change);
/* Contents unset. NULL with err set when out of memory. */
char *ckpt_s3_buffer_take(size_t nbytes, struct fsdp_err *err);
/* whole: it has the size of a part, and may be used again. */
void ckpt_s3_buffer_give(char *data, size_t nbytes, bool whole);
/* Bytes of an upload's first part, by the budget. */
uint64_t ckpt_s3_first_part_nbytes(void);

#endif
