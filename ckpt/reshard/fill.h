/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill.h: the bytes of one task (move.h), in the buffers of one thread: its blocks are read, cast
 * and written to the output. What an earlier run wrote is read back and proved instead.
 */
#ifndef CKPT_FILL_H
#define CKPT_FILL_H

#include "move.h"

struct ckpt_fill {
    struct ckpt_job *job;
    char *out; /* the task's bytes, where a page of memory is one of the file: written from there */
    struct ckpt_journal_record record;      /* parts: to the fingerprints of what was read */
    uint64_t out_parts[CKPT_MOVE_SEGMENTS]; /* to those of what was written */
    char *out_page, *in, *scratch, *spare;
    float *values;
};

int ckpt_fill_create(struct ckpt_fill *fill, struct ckpt_job *job, struct fsdp_err *err);
void ckpt_fill_free(struct ckpt_fill *fill);
/* Sets out, record and out_parts. *recalled: an earlier run wrote it. Needs no lock. */
int ckpt_fill_task(bool *recalled, struct ckpt_fill *fill, const struct ckpt_move_task *task,
                   struct fsdp_err *err);

#endif
