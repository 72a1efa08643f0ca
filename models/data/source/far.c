/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block occupies a slot of the temporary file. A slot is free, queued for fetching, being
 * fetched, or filled. A reader that needs a block fetches it itself, unless another thread is
 * fetching it; then it waits.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "far.h"
#include "temporary.h"

enum { BLOCK_NBYTES = 256 << 10, NTHREADS = 8, FEWEST_SLOTS = 4 * NTHREADS };
enum state { FREE, QUEUED, FETCHED, THERE };

struct slot {
    int file;
    uint64_t block;
    enum state state;
    int next;    /* of the same bucket; -1: the last */
    int readers; /* that copy from it */
    bool used;   /* since the hand last passed */
};

struct far_file {
    char *address;
    void *handle;
    uint64_t nbytes;
};

struct data_far {
    struct data_far_opts opts;
    int fd;
    struct far_file *files;
    size_t nfiles, max_files;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct slot *slots;
    int *buckets; /* first slot; -1: none */
    int nslots, hand;
    int *queue; /* [nslots], slots in the order in which they were asked for */
    int first, nqueued;
    bool stop;
    pthread_t threads[NTHREADS];
    int nthreads;
};

/* ---- slots, under the lock ------------------------------------------------------------------- */

static int *bucket_of(struct data_far *f, int file, uint64_t block)
{
    const uint64_t mixed = (block * UINT64_C(0x9e3779b97f4a7c15)) ^ (uint64_t)file * 7919;
    return &f->buckets[(mixed ^ mixed >> 32) % (uint64_t)f->nslots];
}

static int find_slot(struct data_far *f, int file, uint64_t block)
{
    int at = *bucket_of(f, file, block);

    while (at >= 0 && (f->slots[at].file != file || f->slots[at].block != block))
        at = f->slots[at].next;
    return at;
}

static void remove_slot(struct data_far *f, int slot)
{
    int *at = bucket_of(f, f->slots[slot].file, f->slots[slot].block);

    while (*at != slot)
        at = &f->slots[*at].next;
    *at = f->slots[slot].next;
    f->slots[slot].state = FREE;
}

/* Takes a slot for a block that has none; -1: all slots are busy. */
static int take_slot(struct data_far *f, int file, uint64_t block, enum state state)
{
    for (int tries = 2 * f->nslots; tries > 0; tries--) {
        const int i = f->hand;
        struct slot *s = &f->slots[i];
        f->hand = (i + 1) % f->nslots;
        if (s->state == QUEUED || s->state == FETCHED || s->readers)
            continue;
        if (s->state == THERE && s->used) {
            s->used = false;
            continue;
        }
        if (s->state == THERE)
            remove_slot(f, i);
        int *bucket = bucket_of(f, file, block);
        *s = (struct slot){.file = file, .block = block, .state = state, .next = *bucket};
        *bucket = i;
        return i;
    }
    return -1;
}

/* ---- fetching -------------------------------------------------------------------------------- */

static size_t block_nbytes(const struct data_far *f, int file, uint64_t block)
{
    const uint64_t first = block * f->opts.block_nbytes, left = f->files[file].nbytes - first;
    return left < f->opts.block_nbytes ? (size_t)left : f->opts.block_nbytes;
}

/* Call without the lock. buffer holds one block. */
static int fetch_block(struct data_far *f, int slot, char *buffer, struct fsdp_err *err)
{
    const struct slot *s = &f->slots[slot];
    const struct far_file *file = &f->files[s->file];
    const size_t nbytes = block_nbytes(f, s->file, s->block);

    FSDP_TRY(
        f->opts.remote->pread(file->handle, buffer, nbytes, s->block * f->opts.block_nbytes, err));
    return data_temporary_write(f->fd, file->address, buffer, nbytes,
                                (uint64_t)slot * f->opts.block_nbytes, err);
}

/* Fills a slot that is marked as being fetched. The lock is held at entry and exit. */
static int fetch_slot(struct data_far *f, int slot, char *buffer, struct fsdp_err *err)
{
    pthread_mutex_unlock(&f->lock);
    const int rc = fetch_block(f, slot, buffer, err);
    pthread_mutex_lock(&f->lock);
    if (rc)
        remove_slot(f, slot);
    else
        f->slots[slot].state = THERE;
    pthread_cond_broadcast(&f->changed);
    return rc;
}

static void *fetch_thread(void *ctx)
{
    struct data_far *f = ctx;
    char *buffer = fsdp_alloc_unset(f->opts.block_nbytes, 1, "block of data", NULL);

    pthread_mutex_lock(&f->lock);
    while (buffer && !f->stop) {
        if (!f->nqueued) {
            pthread_cond_wait(&f->changed, &f->lock);
            continue;
        }
        const int slot = f->queue[f->first];
        f->first = (f->first + 1) % f->nslots;
        f->nqueued--;
        if (f->slots[slot].state != QUEUED)
            continue; /* a reader could not wait */
        struct fsdp_err why = FSDP_ERR_INIT;
        f->slots[slot].state = FETCHED;
        fetch_slot(f, slot, buffer, &why);
    }
    pthread_mutex_unlock(&f->lock);
    fsdp_free(buffer);
    return NULL;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Finds or fetches a block and registers the caller as its reader. The lock is held. */
static int hold_block(struct data_far *f, int file, uint64_t block, int *out, struct fsdp_err *err)
{
    for (;;) {
        int slot = find_slot(f, file, block);
        if (slot < 0)
            slot = take_slot(f, file, block, QUEUED);
        if (slot >= 0 && f->slots[slot].state == THERE) {
            f->slots[slot].readers++;
            f->slots[slot].used = true;
            *out = slot;
            return FSDP_OK;
        }
        if (slot < 0 || f->slots[slot].state == FETCHED) {
            pthread_cond_wait(&f->changed, &f->lock);
            continue;
        }
        f->slots[slot].state = FETCHED;
        char *buffer = fsdp_alloc_unset(f->opts.block_nbytes, 1, "block of data", err);
        if (!buffer)
            remove_slot(f, slot);
        const int rc = buffer ? fetch_slot(f, slot, buffer, err) : FSDP_ENOMEM;
        fsdp_free(buffer);
        FSDP_TRY(rc);
    }
}

static int read_part(struct data_far *f, int file, uint64_t block, size_t from, size_t nbytes,
                     char *to, struct fsdp_err *err)
{
    int slot;

    pthread_mutex_lock(&f->lock);
    int rc = hold_block(f, file, block, &slot, err);
    pthread_mutex_unlock(&f->lock);
    FSDP_TRY(rc);
    rc = data_temporary_read(f->fd, f->files[file].address, to, nbytes,
                             (uint64_t)slot * f->opts.block_nbytes + from, err);
    pthread_mutex_lock(&f->lock);
    f->slots[slot].readers--;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return rc;
}

int data_far_read(struct data_far *f, int file, uint64_t offset, size_t nbytes, char *to,
                  struct fsdp_err *err)
{
    while (nbytes > 0) {
        const uint64_t block = offset / f->opts.block_nbytes;
        const size_t from = (size_t)(offset % f->opts.block_nbytes),
                     left = f->opts.block_nbytes - from, here = left < nbytes ? left : nbytes;
        FSDP_TRY(read_part(f, file, block, from, here, to, err));
        to += here;
        offset += here;
        nbytes -= here;
    }
    return FSDP_OK;
}

void data_far_ahead(struct data_far *f, int file, uint64_t offset, size_t nbytes)
{
    if (!nbytes)
        return;
    pthread_mutex_lock(&f->lock);
    const uint64_t last = (offset + nbytes - 1) / f->opts.block_nbytes;
    for (uint64_t block = offset / f->opts.block_nbytes; block <= last; block++) {
        const int found = find_slot(f, file, block);
        if (found >= 0) {
            f->slots[found].used = true;
            continue;
        }
        /* Reading ahead takes at most half of the slots; readers need the others. */
        const int slot = f->nqueued < f->nslots / 2 ? take_slot(f, file, block, QUEUED) : -1;
        if (slot < 0)
            break;
        f->queue[(f->first + f->nqueued++) % f->nslots] = slot;
    }
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

/* ---- opening --------------------------------------------------------------------------------- */

int data_far_open(struct data_far *f, const char *address, int *file, uint64_t *nbytes,
                  struct fsdp_err *err)
{
    struct far_file *files =
        fsdp_alloc_grow(f->files, f->nfiles, &f->max_files, sizeof *files, "list of files", err);
    if (!files)
        return FSDP_ENOMEM;
    f->files = files;
    struct far_file one = {.address = fsdp_strdup(address, err)};
    if (!one.address)
        return FSDP_ENOMEM;
    const int rc = f->opts.remote->open(&one.handle, &one.nbytes, address, err);
    if (rc) {
        fsdp_free(one.address);
        return rc;
    }
    *file = (int)f->nfiles;
    *nbytes = one.nbytes;
    f->files[f->nfiles++] = one;
    return FSDP_OK;
}

static int alloc_slots(struct data_far *f, struct fsdp_err *err)
{
    const uint64_t wanted = f->opts.room_nbytes / f->opts.block_nbytes;

    f->nslots = wanted < FEWEST_SLOTS ? FEWEST_SLOTS : wanted > 1 << 24 ? 1 << 24 : (int)wanted;
    f->slots = fsdp_alloc((size_t)f->nslots, sizeof *f->slots, "blocks of data", err);
    f->buckets = fsdp_alloc((size_t)f->nslots, sizeof *f->buckets, "blocks of data", err);
    f->queue = fsdp_alloc((size_t)f->nslots, sizeof *f->queue, "blocks of data", err);
    if (!f->slots || !f->buckets || !f->queue)
        return FSDP_ENOMEM;
    for (int i = 0; i < f->nslots; i++)
        f->buckets[i] = -1;
    return FSDP_OK;
}

int data_far_create(struct data_far **out, const struct data_far_opts *opts, struct fsdp_err *err)
{
    struct data_far *f = fsdp_alloc(1, sizeof *f, "data at addresses", err);
    int rc;

    if (!f)
        return FSDP_ENOMEM;
    f->fd = -1;
    f->opts = *opts;
    if (!f->opts.block_nbytes)
        f->opts.block_nbytes = BLOCK_NBYTES;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    FSDP_TRY_GOTO(alloc_slots(f, err), out);
    FSDP_TRY_GOTO(data_temporary_open(&f->fd, err), out);
    /* If no thread starts, readers fetch blocks themselves. */
    while (f->nthreads < NTHREADS &&
           !pthread_create(&f->threads[f->nthreads], NULL, fetch_thread, f))
        f->nthreads++;
    *out = f;
    return FSDP_OK;
out:
    data_far_destroy(f);
    return rc;
}

void data_far_destroy(struct data_far *f)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    for (int i = 0; i < f->nthreads; i++)
        pthread_join(f->threads[i], NULL);
    for (size_t i = 0; i < f->nfiles; i++) {
        f->opts.remote->close(f->files[i].handle);
        fsdp_free(f->files[i].address);
    }
    if (f->fd >= 0)
        close(f->fd);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    fsdp_free(f->queue);
    fsdp_free(f->buckets);
    fsdp_free(f->slots);
    fsdp_free(f->files);
    fsdp_free(f);
}
