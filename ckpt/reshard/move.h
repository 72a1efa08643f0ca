/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranges ("tasks") that files are written in. Where they begin and end follows from the job
 * alone, so that two runs of it have the same.
 */
#ifndef CKPT_MOVE_H
#define CKPT_MOVE_H

#include "job.h"
#include "file/journal.h"

enum { CKPT_MOVE_SEGMENTS = CKPT_JOURNAL_MAX_PARTS };

/* A block of one output tensor that is a box of one part of it. */
struct ckpt_move_segment {
    int piece, tensor, part;
    struct fsdp_box box; /* of the output tensor */
    uint64_t nelem;
    size_t at; /* in the task's range */
};

struct ckpt_move_task {
    int file;
    uint64_t pos;
    size_t nbytes;
    const struct ckpt_job_run *copy; /* the store is to copy it; NULL: the segments are moved */
    int nsegments;
    struct ckpt_move_segment segments[CKPT_MOVE_SEGMENTS];
};

/* What of a file is not yet in a task. */
struct ckpt_move_cursor {
    const struct ckpt_job_piece *pieces;
    int npieces, piece;
    uint64_t nelem;                    /* of the piece, in tasks */
    const struct ckpt_job_run *copies; /* of the file, in order of pos */
    size_t ncopies, copy;              /* copy: the next one */
    uint64_t end;                      /* of the file's bytes that are to be in tasks */
};

/* The next task; task->file is the caller's. False: there is none. Pure. */
bool ckpt_move_next(struct ckpt_move_task *task, struct ckpt_move_cursor *cursor,
                    const struct ckpt_job *job);
/* A cursor over the bytes of one run alone, none of which the store copies. */
struct ckpt_move_cursor ckpt_move_cursor_of(const struct ckpt_job *job,
                                            const struct ckpt_job_piece *pieces, int npieces,
                                            const struct ckpt_job_run *run);

#endif
