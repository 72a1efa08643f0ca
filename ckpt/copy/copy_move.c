/* SPDX-License-Identifier: Apache-2.0 */
/*
 * First the store is asked to move what it can move itself, file by file: what lies in the same
 * store and has a checksum. Then the other files pass through here, in blocks from several threads.
 * At last those are read again of which the store did not tell a checksum: that still spares
 * sending them.
 */
#include "copy.h"
#include "util/crc.h"
#include "util/workers.h"

#define WITHIN_NBYTES (8u << 20) /* a smaller file is moved as fast from here */

struct block {
    int file;
    uint64_t pos;
    size_t nbytes;
};

/* ---- one file -------------------------------------------------------------------------------- */

static char *source_of(const struct ckpt_copy *c, int file, struct fsdp_err *err)
{
    return ckpt_path_join(c->ckpt->folder, c->ckpt->m.layout.files[file].path, err);
}

/* Where a file is whole or not there at all. */
static int look_for(struct ckpt_copy *c, struct ckpt_copy_file *f, struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = ckpt_store_stat(&st, c->store, f->to, &why);
    if (rc)
        return rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
    if (st.nbytes != f->nbytes)
        return fsdp_err_set(err, FSDP_EEXIST,
                            "'%s' exists, has %llu bytes instead of %llu, and is not overwritten",
                            f->to, (unsigned long long)st.nbytes, (unsigned long long)f->nbytes);
    f->there = true;
    return FSDP_OK;
}

static int open_once(struct ckpt_copy *c, struct ckpt_copy_file *f, struct fsdp_err *err)
{
    const struct ckpt_job_sink_args args = {.nbytes = f->nbytes, .stored = true};
    int rc = FSDP_OK;
    pthread_mutex_lock(&f->lock);
    if (!f->opened && ckpt_store_has_whole_files(c->store))
        rc = look_for(c, f, err);
    if (rc == FSDP_OK && !f->opened && !f->there)
        rc = ckpt_job_sink_open(&f->sink, c->store, f->to, &args, err);
    f->opened |= rc == FSDP_OK;
    pthread_mutex_unlock(&f->lock);
    return rc;
}

/* A file that was there and has no checksum is compared with the source itself. */
static int compare_there(struct ckpt_copy *c, int file, struct fsdp_err *err)
{
    struct ckpt_copy_file *f = &c->files[file];
    uint64_t nbytes;
    uint32_t crc32c = 0;
    char *source = source_of(c, file, err);
    int rc = source ? ckpt_store_copy(&nbytes, &f->crc32c, c->ckpt->store, source, NULL, NULL,
                                      false, err)
                    : FSDP_ENOMEM;
    fsdp_free(source);
    if (rc == FSDP_OK)
        rc = ckpt_store_copy(&nbytes, &crc32c, c->store, f->to, NULL, NULL, false, err);
    if (rc || crc32c == f->crc32c)
        return rc;
    return fsdp_err_set(err, FSDP_EEXIST, "'%s' exists, holds other bytes, and is not overwritten",
                        f->to);
}

static int damaged(const struct ckpt_copy *c, int file, uint32_t actual, struct fsdp_err *err)
{
    const struct ckpt_layout_file *from = &c->ckpt->m.layout.files[file];
    return fsdp_err_set(err, FSDP_ECORRUPT,
                        "'%s/%s': its checksum is %08x, not %08x; ckpt-verify says which bytes are "
                        "damaged",
                        c->ckpt->folder, from->path, actual, from->crc32c);
}

/* After its last block. */
static int finish_file(struct ckpt_copy *c, int file, struct fsdp_err *err)
{
    const struct ckpt_layout_file *from = &c->ckpt->m.layout.files[file];
    struct ckpt_copy_file *f = &c->files[file];
    uint64_t nbytes;

    f->crc32c = from->crc32c;
    if (f->there) /* below a checkpoint's own uuid nobody else's file has this name */
        return from->has_crc ? FSDP_OK : compare_there(c, file, err);
    struct ckpt_job_sink *sink = f->sink;
    f->sink = NULL;
    if (!from->has_crc || ckpt_job_sink_crc(sink) == from->crc32c) {
        const int rc = ckpt_job_sink_finish(&nbytes, &f->crc32c, &sink, err);
        f->sink = sink;
        return rc;
    }
    uint32_t actual = ckpt_job_sink_crc(sink);
    ckpt_job_sink_abandon(sink); /* in an object store it never appears */
    return damaged(c, file, actual, err);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static int move_block(struct ckpt_copy *c, const struct block *b, char *buffer,
                      struct fsdp_err *err)
{
    struct ckpt_copy_file *f = &c->files[b->file];
    struct ckpt_journal_record record;
    bool same = false;

    FSDP_TRY(open_once(c, f, err));
    if (!f->there && ckpt_journal_find(&record, &c->journal, (uint32_t)b->file, b->pos) &&
        record.nbytes == b->nbytes)
        FSDP_TRY(
            ckpt_job_sink_recall(&same, f->sink, buffer, b->nbytes, b->pos, record.crc32c, err));
    if (!f->there && !same) {
        FSDP_TRY(ckpt_file_pread_stored(c->ckpt, b->file, buffer, b->nbytes, b->pos, err));
        record = (struct ckpt_journal_record){.file = (uint32_t)b->file,
                                              .crc32c = ckpt_crc32c(0, buffer, b->nbytes),
                                              .pos = b->pos,
                                              .nbytes = b->nbytes};
        FSDP_TRY(ckpt_job_sink_put(f->sink, buffer, b->nbytes, b->pos, record.crc32c, err));
    }
    pthread_mutex_lock(&c->lock);
    c->done += b->nbytes;
    c->resumed += f->there || same ? b->nbytes : 0;
    int rc = f->there || same ? FSDP_OK : ckpt_journal_add(&c->journal, &record, err);
    pthread_mutex_unlock(&c->lock);
    if (rc == FSDP_OK && atomic_fetch_sub(&f->left, b->nbytes) == b->nbytes)
        rc = finish_file(c, b->file, err);
    return rc;
}

/* Of a file that is there, to see that it is what it should be. */
static int read_block(struct ckpt_copy *c, const struct block *b, char *buffer,
                      struct fsdp_err *err)
{
    struct ckpt_copy_file *f = &c->files[b->file];
    int rc = FSDP_OK;
    pthread_mutex_lock(&f->lock);
    if (!f->again)
        rc = ckpt_store_open(&f->again, c->store, f->to, CKPT_STORE_READ, err);
    pthread_mutex_unlock(&f->lock);
    if (rc == FSDP_OK)
        rc = ckpt_store_pread(f->again, buffer, b->nbytes, b->pos, err);
    FSDP_TRY(rc);
    atomic_fetch_xor(&f->crc_again, ckpt_crc32c_shift(ckpt_crc32c(0, buffer, b->nbytes),
                                                      f->nbytes - b->pos - b->nbytes));
    if (atomic_fetch_sub(&f->left, b->nbytes) != b->nbytes)
        return FSDP_OK;
    ckpt_store_close(f->again, NULL);
    f->again = NULL;
    f->unproved = false;
    uint32_t actual = (uint32_t)atomic_load(&f->crc_again);
    if (actual == f->crc32c)
        return FSDP_OK;
    if (f->there)
        return fsdp_err_set(err, FSDP_EEXIST,
                            "'%s' exists, holds other bytes, and is not overwritten", f->to);
    if (f->moved)
        return damaged(c, b->file, actual, err);
    return fsdp_err_set(err, FSDP_ECORRUPT, "'%s': read again, it has the checksum %08x, not %08x",
                        f->to, actual, f->crc32c);
}

/* The next block in the order of the files; false: none is left. */
static int take_block(bool *has, struct block *out, struct ckpt_copy *c, struct fsdp_err *err)
{
    const struct ckpt_copy_args *args = c->args;
    pthread_mutex_lock(&c->lock);
    while (c->next_file < c->nfiles &&
           (c->reading ? !c->files[c->next_file].unproved : c->files[c->next_file].moved))
        c->next_file++;
    *has = c->next_file < c->nfiles;
    if (*has) {
        uint64_t left = c->files[c->next_file].nbytes - c->next_pos;
        size_t nbytes = (size_t)(left < c->block_nbytes ? left : c->block_nbytes);
        *out = (struct block){c->next_file, c->next_pos, nbytes};
        c->next_pos += nbytes;
        if (nbytes == left) {
            c->next_file++;
            c->next_pos = 0;
        }
    }
    bool stop = args->progress && args->progress(args->progress_ctx, c->done, c->total);
    pthread_mutex_unlock(&c->lock);
    return stop ? fsdp_err_set(err, FSDP_ECANCELED, "stopped on request") : FSDP_OK;
}

static int move_blocks(struct ckpt_workers *workers, int index, struct fsdp_err *err)
{
    struct ckpt_copy *c = workers->ctx;
    struct block block;
    bool has = true;
    int rc = FSDP_OK;
    char *buffer = fsdp_alloc(c->block_nbytes, 1, "copy buffer", err);

    (void)index;
    if (!buffer)
        return FSDP_ENOMEM;
    while (rc == FSDP_OK && has && !ckpt_workers_stopped(workers)) {
        rc = take_block(&has, &block, c, err);
        if (rc == FSDP_OK && has)
            rc = c->reading ? read_block(c, &block, buffer, err)
                            : move_block(c, &block, buffer, err);
    }
    fsdp_free(buffer);
    return rc;
}

static int run_blocks(struct ckpt_copy *c, bool reading, struct fsdp_err *err)
{
    c->reading = reading;
    c->next_file = 0;
    c->next_pos = 0;
    return ckpt_workers_run(c->nthreads, move_blocks, c, err);
}

/* What is unproved. */
static int read_again(struct ckpt_copy *c, struct fsdp_err *err)
{
    bool any = false;
    for (int i = 0; i < c->nfiles; i++) {
        atomic_store(&c->files[i].left, c->files[i].nbytes);
        atomic_store(&c->files[i].crc_again, 0);
        any |= c->files[i].unproved;
    }
    if (!any)
        return FSDP_OK;
    int rc = run_blocks(c, true, err);
    for (int i = 0; i < c->nfiles; i++) {
        ckpt_store_close(c->files[i].again, NULL);
        c->files[i].again = NULL;
        if (rc == FSDP_ECORRUPT && c->files[i].moved) /* damaged files are not resumed */
            ckpt_store_discard(c->store, c->files[i].to, NULL);
    }
    return rc;
}

/* ---- within a store -------------------------------------------------------------------------- */

static int count_moved(void *ctx, uint64_t nbytes)
{
    struct ckpt_copy *c = ctx;
    const struct ckpt_copy_args *args = c->args;
    pthread_mutex_lock(&c->lock);
    c->done += nbytes;
    c->within += nbytes;
    bool stop = args->progress && args->progress(args->progress_ctx, c->done, c->total);
    pthread_mutex_unlock(&c->lock);
    return stop;
}

/* *refused: the store does not do that. */
static int move_within(bool *refused, struct ckpt_copy *c, int file, struct fsdp_err *err)
{
    const struct ckpt_layout_file *from = &c->ckpt->m.layout.files[file];
    struct ckpt_copy_file *f = &c->files[file];
    struct ckpt_store_copied copied;
    struct fsdp_err why = FSDP_ERR_INIT;

    FSDP_TRY(look_for(c, f, err));
    f->opened = f->unproved = f->there; /* an earlier run may not have come to read it again */
    if (f->there)
        return FSDP_OK;
    char *source = source_of(c, file, err);
    if (!source)
        return FSDP_ENOMEM;
    int rc =
        ckpt_store_copy_within(&copied, c->store, source, f->to, f->nbytes, count_moved, c, &why);
    fsdp_free(source);
    *refused = rc == FSDP_EUNSUPPORTED;
    if (rc)
        return *refused ? FSDP_OK : fsdp_err_pass(err, rc, &why);
    f->moved = true;
    f->crc32c = from->crc32c;
    f->unproved = !copied.has_crc;
    if (f->unproved || copied.crc32c == from->crc32c)
        return FSDP_OK;
    ckpt_store_discard(c->store, f->to, NULL);
    return damaged(c, file, copied.crc32c, err);
}

static int move_files_within(struct ckpt_workers *workers, int index, struct fsdp_err *err)
{
    struct ckpt_copy *c = workers->ctx;
    bool refused = false;
    (void)index;
    while (!refused && !ckpt_workers_stopped(workers)) {
        pthread_mutex_lock(&c->lock);
        int file = c->next_file++;
        pthread_mutex_unlock(&c->lock);
        if (file >= c->nfiles)
            break;
        if (c->files[file].nbytes > WITHIN_NBYTES && c->ckpt->m.layout.files[file].has_crc)
            FSDP_TRY(move_within(&refused, c, file, err));
    }
    return FSDP_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

int ckpt_copy_move(struct ckpt_copy *c, struct fsdp_err *err)
{
    int rc = FSDP_OK;
    if (c->store->copy && c->store == c->ckpt->store)
        rc = ckpt_workers_run(c->nthreads, move_files_within, c, err);
    if (rc == FSDP_OK)
        rc = run_blocks(c, false, err);
    for (int i = 0; i < c->nfiles; i++) {
        ckpt_job_sink_abandon(c->files[i].sink);
        c->files[i].sink = NULL;
    }
    return rc ? rc : read_again(c, err);
}

int ckpt_copy_verify(struct ckpt_copy *c, struct fsdp_err *err)
{
    for (int i = 0; i < c->nfiles; i++)
        c->files[i].unproved = !c->files[i].moved; /* those were proved */
    return read_again(c, err);
}
