/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file is cut into tasks of at most block_nbytes, in the order of its bytes; a task holds one
 * block of a large piece, many small pieces, or a part of the file that the store copies.
 */
#include "move.h"

static int part_at(const struct ckpt_job *job, int tensor, uint64_t row)
{
    const struct ckpt_job_tensor *t = &job->tensors[tensor];
    int part = t->first_part;
    while (part < t->first_part + t->nparts - 1 &&
           row >= job->parts[part].row + job->parts[part].nrows)
        part++;
    return part;
}

/* Elements of a tensor for which a task that has so many bytes left has room. */
static uint64_t room_of(const struct ckpt_job *job, const struct ckpt_job_tensor *out,
                        size_t nbytes)
{
    const uint64_t computed = job->budget.block_nbytes / CKPT_JOB_COMPUTED_NBYTES;
    const uint64_t room = ckpt_job_nelem(out, nbytes);
    const uint64_t most = out->form                     ? ckpt_job_quant_room(job, out, computed)
                          : ckpt_job_computes(job, out) ? computed
                                                        : room;
    return room < most ? room : most;
}

static uint64_t position(const struct ckpt_move_cursor *c, const struct ckpt_job *job)
{
    const struct ckpt_job_piece *piece = &c->pieces[c->piece];
    return piece->pos + ckpt_job_nbytes(&job->tensors[piece->tensor], c->nelem);
}

/* Where the next bytes begin that are not to be moved. */
static uint64_t barrier(const struct ckpt_move_cursor *c)
{
    return c->copy < c->ncopies && c->copies[c->copy].pos < c->end ? c->copies[c->copy].pos
                                                                   : c->end;
}

/* Adds the next block of the current piece; false where the task is full. */
static bool add_segment(struct ckpt_move_task *task, struct ckpt_move_cursor *c,
                        const struct ckpt_job *job)
{
    const struct ckpt_job_piece *piece = &c->pieces[c->piece];
    const struct ckpt_job_tensor *out = &job->tensors[piece->tensor];
    const struct fsdp_tensor *t = &out->tensor;
    const uint64_t piece_nelem = ckpt_job_nelem(out, piece->nbytes);
    const uint64_t at = position(c, job), ahead = barrier(c) - at;
    uint64_t left = piece_nelem - c->nelem;
    uint64_t room = room_of(job, out, job->budget.block_nbytes - task->nbytes);

    if (!ahead)
        return false;
    if (ahead < ckpt_job_nbytes(out, left)) /* which is whole elements: nothing else is copied */
        left = ckpt_job_nelem(out, ahead);
    if (task->nsegments == CKPT_MOVE_SEGMENTS || (task->nsegments && left > room))
        return false;
    /* Between two of torch's archives there are other bytes. */
    if (task->nsegments && task->pos + task->nbytes != at)
        return false;
    struct ckpt_move_segment *s = &task->segments[task->nsegments++];
    *s = (struct ckpt_move_segment){.piece = c->piece, .tensor = piece->tensor, .at = task->nbytes};
    uint64_t row_nelem = piece_nelem / piece->nrows;
    uint64_t row = piece->row + c->nelem / row_nelem;
    s->part = part_at(job, piece->tensor, row);
    const struct ckpt_job_part *part = &job->parts[s->part];
    uint64_t first = part->row > piece->row ? part->row : piece->row;
    uint64_t end = part->row + part->nrows;
    end = end < piece->row + piece->nrows ? end : piece->row + piece->nrows;
    room = room > left ? left : room;
    s->nelem = ckpt_box_run(&s->box, t, first, end - first,
                            c->nelem - (first - piece->row) * row_nelem, room ? room : 1);
    if (task->nsegments == 1)
        task->pos = at;
    task->nbytes += ckpt_job_nbytes(out, s->nelem);
    c->nelem += s->nelem;
    return true;
}

/* Steps over pieces that are used up or empty; false at the end of the file. */
static bool has_piece(struct ckpt_move_cursor *c, const struct ckpt_job *job)
{
    for (; c->piece < c->npieces; c->piece++) {
        const struct ckpt_job_piece *piece = &c->pieces[c->piece];
        if (ckpt_job_nbytes(&job->tensors[piece->tensor], c->nelem) < piece->nbytes)
            return true;
        c->nelem = 0;
    }
    return false;
}

static void step_over(struct ckpt_move_cursor *c, const struct ckpt_job *job, uint64_t nbytes)
{
    while (nbytes && has_piece(c, job)) {
        const struct ckpt_job_piece *piece = &c->pieces[c->piece];
        const struct ckpt_job_tensor *out = &job->tensors[piece->tensor];
        const uint64_t left = piece->nbytes - ckpt_job_nbytes(out, c->nelem);
        const uint64_t some = nbytes < left ? nbytes : left;
        c->nelem += ckpt_job_nelem(out, some);
        nbytes -= some;
    }
}

bool ckpt_move_next(struct ckpt_move_task *task, struct ckpt_move_cursor *c,
                    const struct ckpt_job *job)
{
    task->nbytes = 0;
    task->nsegments = 0;
    task->copy = NULL;
    if (has_piece(c, job) && c->copy < c->ncopies && position(c, job) == c->copies[c->copy].pos) {
        task->copy = &c->copies[c->copy++];
        task->pos = task->copy->pos;
        task->nbytes = (size_t)task->copy->nbytes;
        step_over(c, job, task->nbytes);
        return true;
    }
    while (has_piece(c, job) && position(c, job) < c->end && add_segment(task, c, job))
        ;
    return task->nsegments > 0;
}

struct ckpt_move_cursor ckpt_move_cursor_of(const struct ckpt_job *job,
                                            const struct ckpt_job_piece *pieces, int npieces,
                                            const struct ckpt_job_run *run)
{
    struct ckpt_move_cursor c = {
        .pieces = pieces, .npieces = npieces, .end = run->pos + run->nbytes};
    while (c.piece < npieces && pieces[c.piece].pos + pieces[c.piece].nbytes <= run->pos)
        c.piece++;
    if (c.piece < npieces)
        c.nelem =
            ckpt_job_nelem(&job->tensors[pieces[c.piece].tensor], run->pos - pieces[c.piece].pos);
    return c;
}
