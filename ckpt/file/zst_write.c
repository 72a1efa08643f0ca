/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing a compressed file. Chunks pass through a ring of slots:
 *
 *      EMPTY ──put──▶ FULL ──encode──▶ DONE ──append, in order──▶ EMPTY, for a chunk further on
 *
 * Chunk i uses slot i % window; it may be begun once chunk i - window was appended. Every
 * transition is made under the lock, the work between them without it.
 */
#include <pthread.h>
#include <string.h>

#include "ckpt/ckpt.h"
#include "zst.h"
#include "safetensors.h"
#include "util/workers.h"

/* A tensor begins a chunk of its own, so that reading it decompresses nothing else, unless what is
 * before it is small and of the same kind. */
enum { SMALL_NBYTES = 64 << 10 };

enum slot_state { SLOT_EMPTY, SLOT_FULL, SLOT_BUSY, SLOT_DONE };

struct slot {
    enum slot_state state;
    size_t filled;
    char *data, *frames;
};

struct helper {
    struct helper *next;
    struct ckpt_codec_worker *worker;
};

struct ckpt_encoder {
    struct ckpt_store_file *file;
    struct ckpt_codec_table table;
    int window, nthreads;
    struct slot *slots; /* [window] */
    pthread_t threads[CKPT_MAX_WORKERS];

    pthread_mutex_t lock; /* all below, and the slots */
    pthread_cond_t changed;
    size_t first; /* chunk that is appended next */
    bool appending, closing;
    struct helper *idle; /* compressors that nobody uses */
    struct ckpt_encoder_result result;
    int rc; /* the first failure */
    struct fsdp_err err;
};

/* ---- the cut --------------------------------------------------------------------------------- */

struct cutter {
    struct ckpt_codec_table *table;
    struct ckpt_codec_chunk open;
};

static void cut_close(struct cutter *c)
{
    if (c->open.nbytes)
        c->table->chunks[c->table->nchunks++] = c->open;
    c->open.pos += c->open.nbytes;
    c->open.nbytes = 0;
}

static void cut_add(struct cutter *c, uint64_t nbytes, uint32_t planes)
{
    if (c->open.planes != planes || c->open.nbytes >= SMALL_NBYTES)
        cut_close(c);
    c->open.planes = planes;
    while (nbytes) {
        uint64_t room = CKPT_CODEC_CHUNK_NBYTES - c->open.nbytes;
        uint64_t part = nbytes < room ? nbytes : room;
        c->open.nbytes += (uint32_t)part;
        nbytes -= part;
        if (c->open.nbytes == CKPT_CODEC_CHUNK_NBYTES)
            cut_close(c);
    }
}

static int cut_chunks(struct ckpt_codec_table *table, const struct ckpt_encoder_args *args,
                      const char *path, struct fsdp_err *err)
{
    struct ckpt_st_header header;
    struct cutter c = {.table = table};

    FSDP_TRY(
        ckpt_st_parse(&header, args->header + 8, args->header_nbytes - 8, args->nbytes, path, err));
    size_t most = (size_t)(args->nbytes / CKPT_CODEC_CHUNK_NBYTES) + (size_t)header.nentries + 3;
    table->nbytes = args->nbytes;
    table->header_nbytes = args->header_nbytes;
    table->chunks = fsdp_alloc(most, sizeof *table->chunks, "frame table", err);
    if (table->chunks) {
        cut_add(&c, args->header_nbytes, 1);
        cut_close(&c);
        for (int i = 0; i < header.nentries; i++)
            cut_add(&c, header.entries[i].nbytes,
                    (uint32_t)fsdp_dtype_nbytes(header.entries[i].dtype));
        cut_close(&c);
    }
    ckpt_st_header_free(&header);
    return table->chunks ? FSDP_OK : FSDP_ENOMEM;
}

/* ---- the ring: called with the lock held ----------------------------------------------------- */

static void fail_encoder(struct ckpt_encoder *e, int rc, const struct fsdp_err *err)
{
    if (!e->rc) {
        e->rc = rc;
        e->err = *err;
    }
    pthread_cond_broadcast(&e->changed);
}

static int failure(const struct ckpt_encoder *e, struct fsdp_err *err)
{
    return fsdp_err_pass(err, e->rc, &e->err);
}

static int append_bytes(struct ckpt_encoder *e, const void *data, size_t nbytes,
                        struct fsdp_err *err)
{
    FSDP_TRY(ckpt_store_write(e->file, data, nbytes, err));
    e->result.stored_crc32c = ckpt_crc32c(e->result.stored_crc32c, data, nbytes);
    e->result.stored_nbytes += nbytes;
    return FSDP_OK;
}

/* Appends what is next and done; one thread at a time. */
static void append_done(struct ckpt_encoder *e)
{
    if (e->appending)
        return;
    e->appending = true;
    while (!e->rc && e->first < e->table.nchunks) {
        struct slot *slot = &e->slots[e->first % (size_t)e->window];
        const struct ckpt_codec_chunk *chunk = &e->table.chunks[e->first];
        struct fsdp_err err = FSDP_ERR_INIT;
        size_t nbytes = 0;
        if (slot->state != SLOT_DONE)
            break;
        for (uint32_t k = 0; k < chunk->planes; k++)
            nbytes += chunk->stored[k];
        pthread_mutex_unlock(&e->lock);
        int rc = append_bytes(e, slot->frames, nbytes, &err);
        pthread_mutex_lock(&e->lock);
        if (rc)
            fail_encoder(e, rc, &err);
        e->result.crc32c = ckpt_crc32c_combine(e->result.crc32c, chunk->crc32c, chunk->nbytes);
        slot->state = SLOT_EMPTY;
        slot->filled = 0;
        e->first++;
        pthread_cond_broadcast(&e->changed);
    }
    e->appending = false;
}

static int encode(struct slot *slot, struct ckpt_codec_chunk *chunk, struct helper **helper,
                  struct fsdp_err *err)
{
    if (!*helper && !(*helper = fsdp_alloc(1, sizeof **helper, "codec helper", err)))
        return FSDP_ENOMEM;
    if (!(*helper)->worker)
        FSDP_TRY(ckpt_codec_worker_create(&(*helper)->worker, err));
    return ckpt_codec_encode(slot->frames, ckpt_codec_bound(CKPT_CODEC_CHUNK_NBYTES), chunk,
                             slot->data, (*helper)->worker, err);
}

/* Compresses the first chunk that is full; false where there is none. */
static bool encode_one(struct ckpt_encoder *e)
{
    size_t i = e->first, end = e->first + (size_t)e->window;
    end = end < e->table.nchunks ? end : e->table.nchunks;
    while (i < end && e->slots[i % (size_t)e->window].state != SLOT_FULL)
        i++;
    if (i == end || e->rc)
        return false;
    struct slot *slot = &e->slots[i % (size_t)e->window];
    struct helper *helper = e->idle;
    struct fsdp_err err = FSDP_ERR_INIT;
    slot->state = SLOT_BUSY;
    if (helper)
        e->idle = helper->next;
    pthread_mutex_unlock(&e->lock);
    int rc = encode(slot, &e->table.chunks[i], &helper, &err);
    pthread_mutex_lock(&e->lock);
    if (helper) {
        helper->next = e->idle;
        e->idle = helper;
    }
    if (rc)
        fail_encoder(e, rc, &err);
    slot->state = SLOT_DONE;
    append_done(e);
    return true;
}

static void *helper_work(void *arg)
{
    struct ckpt_encoder *e = arg;
    pthread_mutex_lock(&e->lock);
    while (!e->closing)
        if (!encode_one(e))
            pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static int slots_make(struct ckpt_encoder *e, int window, struct fsdp_err *err)
{
    size_t most = e->table.nchunks;
    e->window = (size_t)window < most ? window : (int)most;
    e->slots = fsdp_alloc((size_t)e->window, sizeof *e->slots, "codec slots", err);
    for (int i = 0; e->slots && i < e->window; i++) {
        e->slots[i].data = fsdp_alloc(CKPT_CODEC_CHUNK_NBYTES, 1, "codec slot", err);
        e->slots[i].frames =
            fsdp_alloc(ckpt_codec_bound(CKPT_CODEC_CHUNK_NBYTES), 1, "codec slot", err);
        if (!e->slots[i].data || !e->slots[i].frames)
            return FSDP_ENOMEM;
    }
    return e->slots ? FSDP_OK : FSDP_ENOMEM;
}

int ckpt_encoder_create(struct ckpt_encoder **out, struct ckpt_store_file *file, const char *path,
                        const struct ckpt_encoder_args *args, struct fsdp_err *err)
{
    FSDP_TRY(ckpt_codec_check(path, err));
    struct ckpt_encoder *e = fsdp_alloc(1, sizeof *e, "encoder", err);
    if (!e)
        return FSDP_ENOMEM;
    e->file = file;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    int rc = cut_chunks(&e->table, args, path, err);
    if (rc == FSDP_OK)
        rc = slots_make(e, args->window > 2 ? args->window : 2, err);
    while (rc == FSDP_OK && e->nthreads < args->nhelpers && e->nthreads < CKPT_MAX_WORKERS &&
           pthread_create(&e->threads[e->nthreads], NULL, helper_work, e) == 0)
        e->nthreads++;
    if (rc == FSDP_OK)
        rc = ckpt_encoder_put(e, args->header, args->header_nbytes, 0, err);
    if (rc)
        ckpt_encoder_destroy(e);
    else
        *out = e;
    return rc;
}

/* The slot of chunk i, once its turn has come. */
static struct slot *slot_wait(struct ckpt_encoder *e, size_t i)
{
    while (!e->rc && i >= e->first + (size_t)e->window)
        if (!encode_one(e))
            pthread_cond_wait(&e->changed, &e->lock);
    return e->rc ? NULL : &e->slots[i % (size_t)e->window];
}

int ckpt_encoder_put(struct ckpt_encoder *e, const void *src, size_t nbytes, uint64_t pos,
                     struct fsdp_err *err)
{
    const char *from = src;

    if (pos > e->table.nbytes || nbytes > e->table.nbytes - pos)
        return fsdp_err_set(err, FSDP_EINTERNAL, "encoder: bytes beyond the end of the file");
    pthread_mutex_lock(&e->lock);
    for (size_t i = nbytes ? ckpt_codec_chunk_at(&e->table, pos) : 0; nbytes; i++) {
        const struct ckpt_codec_chunk *chunk = &e->table.chunks[i];
        struct slot *slot = slot_wait(e, i);
        if (!slot)
            break;
        uint64_t left = chunk->pos + chunk->nbytes - pos;
        size_t part = (size_t)(nbytes < left ? nbytes : left);
        pthread_mutex_unlock(&e->lock);
        memcpy(slot->data + (pos - chunk->pos), from, part);
        pthread_mutex_lock(&e->lock);
        slot->filled += part;
        if (slot->filled == chunk->nbytes) {
            slot->state = SLOT_FULL;
            if (e->nthreads)
                pthread_cond_broadcast(&e->changed);
            else
                encode_one(e);
        }
        from += part;
        pos += part;
        nbytes -= part;
    }
    int rc = failure(e, err);
    pthread_mutex_unlock(&e->lock);
    return rc;
}

/* Puts have ended, so every chunk that is not yet appended must be on its way. */
static bool is_whole(const struct ckpt_encoder *e)
{
    for (size_t i = e->first; i < e->table.nchunks; i++)
        if (i >= e->first + (size_t)e->window ||
            e->slots[i % (size_t)e->window].state == SLOT_EMPTY)
            return false;
    return true;
}

int ckpt_encoder_finish(struct ckpt_encoder_result *out, struct ckpt_encoder *e,
                        struct fsdp_err *err)
{
    char *table = NULL;
    size_t nbytes;

    pthread_mutex_lock(&e->lock);
    int rc = e->rc || is_whole(e)
                 ? FSDP_OK
                 : fsdp_err_set(err, FSDP_EINTERNAL, "encoder: not all bytes were put");
    if (rc == FSDP_OK) {
        slot_wait(e, e->table.nchunks + (size_t)e->window - 1); /* until all are appended */
        rc = failure(e, err);
    }
    pthread_mutex_unlock(&e->lock);
    if (rc == FSDP_OK)
        rc = ckpt_codec_table_format(&table, &nbytes, &e->table, err);
    if (rc == FSDP_OK)
        rc = append_bytes(e, table, nbytes, err);
    fsdp_free(table);
    *out = e->result;
    return rc;
}

void ckpt_encoder_stop(struct ckpt_encoder *e)
{
    struct fsdp_err err;
    int rc = fsdp_err_set(&err, FSDP_ECANCELED, "the compressed file was given up");
    pthread_mutex_lock(&e->lock);
    fail_encoder(e, rc, &err);
    pthread_mutex_unlock(&e->lock);
}

void ckpt_encoder_destroy(struct ckpt_encoder *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    e->closing = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    while (e->nthreads > 0)
        pthread_join(e->threads[--e->nthreads], NULL);
    for (struct helper *helper; (helper = e->idle);) {
        e->idle = helper->next;
        ckpt_codec_worker_destroy(helper->worker);
        fsdp_free(helper);
    }
    for (int i = 0; e->slots && i < e->window; i++) {
        fsdp_free(e->slots[i].data);
        fsdp_free(e->slots[i].frames);
    }
    fsdp_free(e->slots);
    ckpt_codec_table_free(&e->table);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->changed);
    fsdp_free(e);
}
