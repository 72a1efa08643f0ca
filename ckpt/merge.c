/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merge: a reshard to one rank. Blocks of the tensors are handed out in the order of the output's
 * bytes to a few threads; each reads a block, adds to its tensor's fingerprint, casts, and writes
 * it to its place. Memory: the threads' buffers, one tensor's plan, the headers.
 */
#include <stdlib.h>
#include <string.h>

#include "convert.h"
#include "crc.h"
#include "merge.h"

/* ---- what to write --------------------------------------------------------------------------- */

static enum fsdp_dtype dtype_of(const struct ckpt_merger *m, const struct ckpt_tensor *t)
{
    return m->cast && fsdp_dtype_is_float(t->tensor.dtype) ? m->dtype : t->tensor.dtype;
}

/* Largest elements first, so that every tensor is aligned; else in stored order. */
static int select_items(struct ckpt_merger *m, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &m->ckpt->m.layout;
    m->items = fsdp_alloc((size_t)layout->ntensors, sizeof *m->items, "merge items", err);
    if (!m->items)
        return FSDP_ENOMEM;
    for (size_t elem_nbytes = 8; elem_nbytes; elem_nbytes /= 2) {
        for (int i = 0; i < layout->ntensors; i++) {
            const struct ckpt_tensor *t = &layout->tensors[i];
            enum fsdp_dtype dtype = dtype_of(m, t);
            if ((t->kind != FSDP_SLICE_MODEL && !m->args->all) ||
                fsdp_dtype_nbytes(dtype) != elem_nbytes)
                continue;
            struct ckpt_merge_item *item = &m->items[m->nitems++];
            item->tensor = i;
            item->dtype = dtype;
            item->nbytes = fsdp_tensor_nelem(&t->tensor) * elem_nbytes;
            m->total += item->nbytes;
        }
    }
    if (!m->nitems)
        return fsdp_err_set(err, FSDP_EINVAL, "'%s' holds no tensors of a model", m->ckpt->path);
    return FSDP_OK;
}

static int check_args(struct ckpt_merger *m, struct fsdp_err *err)
{
    const struct ckpt_merge_args *args = m->args;
    if (args->version != CKPT_MERGE_ARGS_VERSION)
        return fsdp_err_set(err, FSDP_EINVAL, "ckpt_merge: arguments of version %u", args->version);
    if (!args->out || !args->out[0])
        return fsdp_err_set(err, FSDP_EINVAL, "ckpt_merge: no output is named");
    if (!args->dtype)
        return FSDP_OK;
    m->cast = true;
    FSDP_TRY(fsdp_dtype_parse(&m->dtype, args->dtype, err));
    if (!fsdp_dtype_is_float(m->dtype))
        return fsdp_err_set(err, FSDP_EINVAL, "weights cannot be cast to %s: not a floating type",
                            fsdp_dtype_name(m->dtype));
    return FSDP_OK;
}

/* Block size such that all threads' buffers fit in the budget. */
static int fit_blocks(size_t *out, const struct ckpt_merger *m, struct fsdp_err *err)
{
    size_t widening = 0; /* bytes of the conversion buffer per byte read */
    for (int i = 0; i < m->nitems; i++) {
        const struct fsdp_tensor *t = &m->ckpt->m.layout.tensors[m->items[i].tensor].tensor;
        size_t in = fsdp_dtype_nbytes(t->dtype), to = fsdp_dtype_nbytes(m->items[i].dtype);
        size_t need = t->dtype == m->items[i].dtype ? 0 : (to + in - 1) / in;
        widening = need > widening ? need : widening;
    }
    uint64_t shares = CKPT_COPY_THREADS * (2 + widening), most = m->args->mem_nbytes / shares;
    if (most < CKPT_MIN_BLOCK_NBYTES)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "a memory budget of %llu bytes is too small; at "
                            "least %llu are needed",
                            (unsigned long long)m->args->mem_nbytes,
                            (unsigned long long)(shares * CKPT_MIN_BLOCK_NBYTES));
    most = most < CKPT_BLOCK_NBYTES ? most : CKPT_BLOCK_NBYTES;
    *out = (size_t)most / 4096 * 4096;
    return FSDP_OK;
}

/* ---- moving it ------------------------------------------------------------------------------- */

static void fail(struct ckpt_merger *m, int rc, const struct fsdp_err *err)
{
    if (m->rc)
        return;
    m->rc = rc;
    m->err = *err;
}

/* The item's last block is done (or it has none). */
static int finish_item(struct ckpt_merger *m, struct ckpt_merge_item *item, struct fsdp_err *err)
{
    const struct ckpt_tensor *t = &m->ckpt->m.layout.tensors[item->tensor];
    ckpt_plan_free(&item->plan);
    if (t->has_fingerprint && item->nbytes && item->sum != t->fingerprint)
        return ckpt_fingerprint_blame(m->ckpt, item->tensor, item->sum, err);
    return FSDP_OK;
}

/* Hands out the next block; false at the end. Called with the lock held. */
static bool next_block(struct ckpt_merge_item **item_out, struct ckpt_block **block_out,
                       struct ckpt_merger *m, size_t block_nbytes)
{
    const struct ckpt_layout *layout = &m->ckpt->m.layout;
    struct fsdp_err err = FSDP_ERR_INIT;

    for (; !m->rc && m->current < m->nitems; m->current++) {
        struct ckpt_merge_item *item = &m->items[m->current];
        const struct fsdp_tensor *t = &layout->tensors[item->tensor].tensor;
        int rc = FSDP_OK;
        if (!item->planned) {
            struct fsdp_box whole = ckpt_box_whole(t);
            item->planned = true;
            rc = ckpt_plan_make(&item->plan, layout, item->tensor, &whole,
                                block_nbytes / fsdp_dtype_nbytes(t->dtype), &err);
            item->nleft = item->plan.nblocks;
            m->files[item->file].nleft -= item->nleft == 0;
        }
        if (rc == FSDP_OK && !m->files[item->file].opened)
            rc = ckpt_merge_file_open(m, item->file, &err);
        if (rc) {
            fail(m, rc, &err);
            return false;
        }
        if (item->next < item->plan.nblocks) {
            *item_out = item;
            *block_out = &item->plan.blocks[item->next++];
            return true;
        }
    }
    return false;
}

/* *part gets the block's contribution to the fingerprint. */
static int move_block(uint64_t *part, struct ckpt_merger *m, const struct ckpt_merge_item *item,
                      const struct ckpt_block *block, struct ckpt_buffers *buffers,
                      struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &m->ckpt->m.layout.tensors[item->tensor].tensor;
    size_t elem_nbytes = fsdp_dtype_nbytes(item->dtype);
    const void *data;

    FSDP_TRY(ckpt_block_read(m->ckpt, &item->plan, block, buffers->data, buffers->scratch,
                             buffers->nbytes, err));
    *part = ckpt_fingerprint_part(t, &block->box, buffers->data);
    FSDP_TRY(ckpt_buffers_convert(&data, buffers, item->dtype, t->dtype, block->nelem, err));
    return ckpt_store_pwrite(m->files[item->file].file, data, block->nelem * elem_nbytes,
                             item->pos + block->pos * elem_nbytes, err);
}

/* Accounts for a moved block; says whether its file is complete. Called with the lock held. */
static bool account(struct ckpt_merger *m, struct ckpt_merge_item *item, uint64_t nbytes,
                    uint64_t part)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    item->sum ^= part;
    m->done += nbytes;
    if (m->args->progress && m->args->progress(m->args->progress_ctx, m->done, m->total)) {
        fsdp_err_set(&err, FSDP_ECANCELED, "merge into '%s' was stopped", m->final);
        fail(m, FSDP_ECANCELED, &err);
        return false;
    }
    if (--item->nleft)
        return false;
    int rc = finish_item(m, item, &err);
    if (rc)
        fail(m, rc, &err);
    return !--m->files[item->file].nleft && !m->rc;
}

struct worker {
    struct ckpt_merger *m;
    struct ckpt_buffers buffers;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    struct ckpt_merger *m = w->m;
    struct ckpt_merge_item *item;
    struct ckpt_block *block;

    pthread_mutex_lock(&m->lock);
    while (next_block(&item, &block, m, w->buffers.nbytes)) {
        struct fsdp_err err = FSDP_ERR_INIT;
        uint64_t part = 0, nbytes = block->nelem * fsdp_dtype_nbytes(item->dtype);
        pthread_mutex_unlock(&m->lock);
        int rc = move_block(&part, m, item, block, &w->buffers, &err);
        pthread_mutex_lock(&m->lock);
        int file = item->file;
        if (rc) {
            fail(m, rc, &err);
        } else if (account(m, item, nbytes, part)) {
            pthread_mutex_unlock(&m->lock);
            rc = ckpt_merge_file_finish(m, file, &err); /* an fsync: others go on meanwhile */
            pthread_mutex_lock(&m->lock);
            if (rc)
                fail(m, rc, &err);
        }
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

static int move_all(struct ckpt_merger *m, size_t block_nbytes, struct fsdp_err *err)
{
    struct worker workers[CKPT_COPY_THREADS] = {{0}};
    pthread_t threads[CKPT_COPY_THREADS];
    int nthreads = 0, rc = FSDP_OK;

    pthread_mutex_init(&m->lock, NULL);
    for (int i = 0; rc == FSDP_OK && i < CKPT_COPY_THREADS; i++) {
        workers[i].m = m;
        rc = ckpt_buffers_create(&workers[i].buffers, block_nbytes, err);
    }
    if (rc == FSDP_OK) {
        for (int i = 1; i < CKPT_COPY_THREADS; i++)
            if (pthread_create(&threads[nthreads], NULL, work, &workers[i]) == 0)
                nthreads++;
        work(&workers[0]);
        while (nthreads > 0)
            pthread_join(threads[--nthreads], NULL);
        if (m->rc)
            rc = fsdp_err_set(err, m->rc, "%s", m->err.text);
    }
    for (int i = 0; i < CKPT_COPY_THREADS; i++)
        ckpt_buffers_destroy(&workers[i].buffers);
    pthread_mutex_destroy(&m->lock);
    /* Files that held only empty tensors at their end. */
    for (int i = 0; rc == FSDP_OK && i < m->nfiles; i++)
        rc = ckpt_merge_file_finish(m, i, err);
    return rc;
}

static int run(struct ckpt_merger *m, struct fsdp_err *err)
{
    size_t block_nbytes = 0;
    FSDP_TRY(check_args(m, err));
    FSDP_TRY(ckpt_merge_name(m, err));
    FSDP_TRY(select_items(m, err));
    FSDP_TRY(fit_blocks(&block_nbytes, m, err));
    FSDP_TRY(ckpt_merge_arrange(m, err));
    FSDP_TRY(ckpt_merge_begin(m, err));
    FSDP_TRY(move_all(m, block_nbytes, err));
    return ckpt_merge_publish(m, err);
}

int ckpt_merge(struct ckpt_merge_result *out, struct ckpt *ckpt, const struct ckpt_merge_args *args,
               struct fsdp_err *err)
{
    struct ckpt_merger m = {.ckpt = ckpt, .args = args};
    double begun = fsdp_time_now();
    int rc = run(&m, err);

    if (rc == FSDP_OK && out)
        *out = (struct ckpt_merge_result){.nbytes = m.nbytes,
                                          .ntensors = m.nitems,
                                          .nfiles = m.nfiles,
                                          .seconds = fsdp_time_now() - begun};
    for (int i = 0; i < m.nitems; i++)
        ckpt_plan_free(&m.items[i].plan);
    for (int i = 0; i < m.nfiles; i++) {
        ckpt_store_close(m.files[i].file, NULL);
        fsdp_free(m.files[i].name);
        fsdp_free(m.files[i].path);
        fsdp_free(m.files[i].header);
    }
    if (rc)
        ckpt_merge_undo(&m);
    fsdp_free(m.items);
    fsdp_free(m.files);
    fsdp_free(m.final);
    fsdp_free(m.temp);
    return rc;
}
