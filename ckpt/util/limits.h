/* SPDX-License-Identifier: Apache-2.0 */
/* What readers accept at most, and the sizes that writers use. Untrusted numbers are compared with
 * these before anything is allocated. */
#ifndef CKPT_LIMITS_H
#define CKPT_LIMITS_H

#include "fsdp/base.h"

#define CKPT_MAX_HEADER_NBYTES 100000000u /* safetensors' own limit */
#define CKPT_MAX_MANIFEST_NBYTES (256u << 20)
#define CKPT_MAX_INDEX_NBYTES (256u << 20)       /* model.safetensors.index.json */
#define CKPT_MAX_FRAME_TABLE_NBYTES (256u << 20) /* of a compressed file: 16 TiB of data */
#define CKPT_MAX_METADATA_NBYTES (1u << 30)      /* torch's .metadata */
#define CKPT_MAX_ZIP_NBYTES (64u << 20)          /* directory of a zip archive */
#define CKPT_MAX_VALUE_NBYTES (16u << 20)        /* a pickled Python value, and its JSON */
#define CKPT_MAX_VALUE_DEPTH 64
#define CKPT_MAX_TENSORS (1 << 22)
#define CKPT_MAX_FILES (1 << 20)
#define CKPT_MAX_UNITS (1 << 20)
#define CKPT_MAX_EXTRAS 1024
#define CKPT_MAX_OPTIM 64 /* optimizer tensors per parameter */
#define CKPT_MAX_RANKS (1 << 20)
#define CKPT_MAX_NAME_NBYTES 1024 /* of a tensor */
#define CKPT_MAX_PATH_NBYTES 512  /* of a file, relative to the checkpoint */

#define CKPT_HEADER_ALIGN 4096       /* data of a written file starts at a multiple */
#define CKPT_BLOCK_NBYTES (8u << 20) /* streaming buffers */
#define CKPT_MIN_BLOCK_NBYTES (64u << 10)
#define CKPT_JOB_BLOCK_NBYTES (4u << 20) /* what a thread of the tools writes at once */
#define CKPT_OPEN_FILES 128              /* kept open while reading */
#define CKPT_HEADER_THREADS 8
#define CKPT_COMPRESS_THREADS 4         /* besides the one that saves */
#define CKPT_STALE_SECONDS 3600         /* an unfinished save untouched this long is dead */
#define CKPT_STALE_UPLOAD_SECONDS 86400 /* an upload, of which only the beginning is known */

/* FSDP_EINVAL, the fault of setting mem_nbytes, if a budget has fewer bytes than `least`. */
int ckpt_mem_check(uint64_t nbytes, uint64_t least, struct fsdp_err *err);

#endif
