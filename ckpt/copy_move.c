/* SPDX-License-Identifier: Apache-2.0 */
#include "copy.h"
#include "workers.h"

struct block {
    int file;
    uint64_t pos;
    size_t nbytes;
};

/* ---- one file ---------------------------------------------------------------------------------
 */

static char *source_of(const struct ckpt_copy *c, int file, struct fsdp_err *err)
{
    return ckpt_path_join(c->ckpt->folder, c->ckpt->m.layout.files[file].path, err);
}

/* A flat store's file is whole or not there at all. */
static int look_for(struct ckpt_copy *c, struct ckpt_copy_file *f, struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = ckpt_store_stat(&st, c->store, f->to, &why);
    if (rc)
        return rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_set(err, rc, "%s", why.text);
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
    if (!f->opened && c->store->flat)
        rc = look_for(c, f, err);
    if (rc == FSDP_OK && !f->opened && !f->there)
        rc = ckpt_job_sink_open(&f->sink, c->store, f->to, &args, err);
    f->opened |= rc == FSDP_OK;
    pthread_mutex_unlock(&f->lock);
    return rc;
}

/* Is the copy what was read? Without a checksum of the source, a file that was there is compared
 * with the source itself. */
static int check_file(struct ckpt_copy *c, int file, struct fsdp_err *err)
{
    const struct ckpt_layout_file *from = &c->ckpt->m.layout.files[file];
    struct ckpt_copy_file *f = &c->files[file];
    uint64_t nbytes;
    uint32_t crc32c;

    if (f->there && !from->has_crc) {
        char *source = source_of(c, file, err);
        int rc = source ? ckpt_store_copy(&nbytes, &f->crc32c, c->ckpt->store, source, NULL, NULL,
                                          false, err)
                        : FSDP_ENOMEM;
        fsdp_free(source);
        FSDP_TRY(rc);
    }
    FSDP_TRY(ckpt_store_copy(&nbytes, &crc32c, c->store, f->to, NULL, NULL, false, err));
    if (nbytes == f->nbytes && crc32c == f->crc32c)
        return FSDP_OK;
    if (f->there)
        return fsdp_err_set(err, FSDP_EEXIST,
                            "'%s' exists, holds other bytes, and is not overwritten", f->to);
    return fsdp_err_set(err, FSDP_ECORRUPT,
                        "'%s': read again, it has %llu bytes of checksum %08x, not %llu of %08x",
                        f->to, (unsigned long long)nbytes, crc32c, (unsigned long long)f->nbytes,
                        f->crc32c);
}

/* After its last block. */
static int finish(struct ckpt_copy *c, int file, struct fsdp_err *err)
{
    const struct ckpt_layout_file *from = &c->ckpt->m.layout.files[file];
    struct ckpt_copy_file *f = &c->files[file];
    uint64_t nbytes;

    f->crc32c = from->crc32c;
    if (f->there) /* below a checkpoint's own uuid nobody else's file has this name */
        return from->has_crc ? FSDP_OK : check_file(c, file, err);
    struct ckpt_job_sink *sink = f->sink;
    f->sink = NULL;
    if (!from->has_crc || ckpt_job_sink_crc(sink) == from->crc32c)
        return ckpt_job_sink_finish(&nbytes, &f->crc32c, sink, err);
    uint32_t actual = ckpt_job_sink_crc(sink);
    ckpt_job_sink_abandon(sink); /* in a flat store it never appears */
    return fsdp_err_set(err, FSDP_ECORRUPT,
                        "'%s/%s': its checksum is %08x, not %08x; ckpt-verify says which bytes are "
                        "damaged",
                        c->ckpt->folder, from->path, actual, from->crc32c);
}

/* ---- blocks -----------------------------------------------------------------------------------
 */

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
        rc = finish(c, b->file, err);
    return rc;
}

/* The next block in the order of the files; false: none is left. */
static int take(bool *has, struct block *out, struct ckpt_copy *c, struct fsdp_err *err)
{
    const struct ckpt_copy_args *args = c->args;
    pthread_mutex_lock(&c->lock);
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
        rc = take(&has, &block, c, err);
        if (rc == FSDP_OK && has)
            rc = move_block(c, &block, buffer, err);
    }
    fsdp_free(buffer);
    return rc;
}

int ckpt_copy_move(struct ckpt_copy *c, struct fsdp_err *err)
{
    int rc = ckpt_workers_run(c->nthreads, move_blocks, c, err);
    for (int i = 0; i < c->nfiles; i++) {
        ckpt_job_sink_abandon(c->files[i].sink);
        c->files[i].sink = NULL;
    }
    return rc;
}

/* ---- reading again ----------------------------------------------------------------------------
 */

static int check_files(struct ckpt_workers *workers, int index, struct fsdp_err *err)
{
    struct ckpt_copy *c = workers->ctx;
    (void)index;
    while (!ckpt_workers_stopped(workers)) {
        pthread_mutex_lock(&c->lock);
        int file = c->next_file++;
        pthread_mutex_unlock(&c->lock);
        if (file >= c->nfiles)
            break;
        FSDP_TRY(check_file(c, file, err));
    }
    return FSDP_OK;
}

int ckpt_copy_verify(struct ckpt_copy *c, struct fsdp_err *err)
{
    c->next_file = 0;
    return ckpt_workers_run(c->nthreads, check_files, c, err);
}
