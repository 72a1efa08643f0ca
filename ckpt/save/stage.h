/* SPDX-License-Identifier: Apache-2.0 */
/* A staged checkpoint as its ranks see it: each the files that lie in its own staging folder. */
#ifndef CKPT_STAGE_H
#define CKPT_STAGE_H

#include "layout/contents.h"
#include "store/store.h"

struct ckpt_stage {
    const struct ckpt_store_ops *store;
    char *folder; /* staging/step-N */
    struct ckpt_manifest m;
    int nfiles;       /* of the layout, and the extras */
    int *reader;      /* [nfiles] the rank that reads it for all; -1: no rank sees it */
    char missing[96]; /* why it is not whole; "" if it is */
};

/* Finds out who sees what of a staged step. Where folders hold different checkpoints of that step,
 * it is the one that is whole, if any. FSDP_ENOTFOUND if no rank has any. Collective, agreed;
 * *out is to be freed in any case. */
int ckpt_stage_open(struct ckpt_stage *out, const char *staging, int64_t step, struct fsdp_oob *oob,
                    struct fsdp_err *err);
void ckpt_stage_close(struct ckpt_stage *stage);
/* File i, of the layout's and then the extras: its path in the folder, and what it must be. */
void ckpt_stage_file(const char **path, uint64_t *nbytes, uint32_t *crc32c,
                     const struct ckpt_manifest *manifest, int i);

#endif
