/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A disk is fast with several requests at once, and a lane that waits for one does nothing else. So
 * a range is moved in pieces by some threads, by the caller, too, where it waits. Of what is to be
 * done ranges that somebody waits for come first.
 *
 *     range  [ piece | piece | piece |    not yet given     ]
 *                done   a thread  a thread   ^ given
 */
#include "offload_io.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

enum { NTHREADS = 4, MOST_MOVES = 64, PIECE_NBYTES = 4 << 20 };

/* A range on its way. */
struct move {
    struct offload_range range;
    bool used, waited_for;
    size_t given;
    int nactive; /* pieces that threads have */
    struct fsdp_err err;
};

struct offload_io {
    offload_move_f *move;
    void *ctx;
    pthread_t thread[NTHREADS];
    int nthreads;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t work, done;
    struct move moves[MOST_MOVES];
    struct fsdp_err failure; /* of what was begun; status 0: none */
    bool stop;
};

/* ---- pieces: under the lock, which is free while one is moved -------------------------------- */

static bool is_done(const struct move *m)
{
    return m->given == m->range.nbytes && !m->nactive;
}

/* What nobody waits for leaves by itself. */
static void finish_move(struct offload_io *io, struct move *m)
{
    if (!m->waited_for) {
        if (m->err.status && !io->failure.status)
            io->failure = m->err;
        m->used = false;
    }
    pthread_cond_broadcast(&io->done);
}

/* Moves the next piece; after a failure no other is given. */
static void move_piece(struct offload_io *io, struct move *m)
{
    const size_t left = m->range.nbytes - m->given;
    struct offload_range piece = {.mem = m->range.mem + m->given,
                                  .pos = m->range.pos + m->given,
                                  .nbytes = left < PIECE_NBYTES ? left : PIECE_NBYTES,
                                  .write = m->range.write};
    struct fsdp_err err = FSDP_ERR_INIT;

    m->given += piece.nbytes;
    m->nactive++;
    pthread_mutex_unlock(&io->lock);
    const int rc = io->move(io->ctx, &piece, &err);
    pthread_mutex_lock(&io->lock);
    if (rc && !m->err.status)
        m->err = err;
    if (rc)
        m->given = m->range.nbytes;
    m->nactive--;
    if (is_done(m))
        finish_move(io, m);
}

static struct move *next_move(struct offload_io *io)
{
    struct move *found = NULL;
    for (int i = 0; i < MOST_MOVES; i++) {
        struct move *m = &io->moves[i];
        if (m->used && m->given < m->range.nbytes && (!found || m->waited_for))
            found = m;
        if (found && found->waited_for)
            break;
    }
    return found;
}

static void *thread_main(void *arg)
{
    struct offload_io *io = arg;
    struct move *m;

    pthread_mutex_lock(&io->lock);
    while (!io->stop)
        if ((m = next_move(io)))
            move_piece(io, m);
        else
            pthread_cond_wait(&io->work, &io->lock);
    pthread_mutex_unlock(&io->lock);
    return NULL;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

static bool memory_touches(const struct offload_range *a, const char *mem, size_t nbytes)
{
    const uintptr_t x = (uintptr_t)a->mem, y = (uintptr_t)mem;
    return x < y + nbytes && y < x + a->nbytes;
}

static bool ranges_touch(const struct offload_range *a, const struct offload_range *b)
{
    return (a->pos < b->pos + b->nbytes && b->pos < a->pos + a->nbytes) ||
           memory_touches(a, b->mem, b->nbytes);
}

/* range NULL: all. Who waits for its own range is not waited for: it comes after this one. */
static bool is_in_the_way(const struct offload_io *io, const struct offload_range *range)
{
    for (int i = 0; i < MOST_MOVES; i++) {
        const struct move *m = &io->moves[i];
        if (m->used && !m->waited_for && (!range || ranges_touch(&m->range, range)))
            return true;
    }
    return false;
}

static struct move *unused(struct offload_io *io)
{
    for (int i = 0; i < MOST_MOVES; i++)
        if (!io->moves[i].used)
            return &io->moves[i];
    return NULL;
}

static int failure_of(const struct offload_io *io, struct fsdp_err *err)
{
    if (io->failure.status && err)
        *err = io->failure;
    return io->failure.status;
}

/* Under the lock. */
static int add_move(struct move **out, struct offload_io *io, const struct offload_range *range,
                    bool waited_for, struct fsdp_err *err)
{
    struct move *m;

    while (is_in_the_way(io, range) || !(m = unused(io)))
        pthread_cond_wait(&io->done, &io->lock);
    FSDP_TRY(failure_of(io, err));
    *m = (struct move){.range = *range, .used = true, .waited_for = waited_for};
    if (!waited_for || range->nbytes > PIECE_NBYTES)
        pthread_cond_broadcast(&io->work);
    *out = m;
    return FSDP_OK;
}

int offload_io_run(struct offload_io *io, const struct offload_range *range, struct fsdp_err *err)
{
    struct move *m;

    if (!range->nbytes)
        return FSDP_OK;
    pthread_mutex_lock(&io->lock);
    int rc = add_move(&m, io, range, true, err);
    if (rc == FSDP_OK) {
        while (m->given < range->nbytes)
            move_piece(io, m);
        while (!is_done(m))
            pthread_cond_wait(&io->done, &io->lock);
        rc = m->err.status;
        if (rc && err)
            *err = m->err;
        m->used = false;
        pthread_cond_broadcast(&io->done);
    }
    pthread_mutex_unlock(&io->lock);
    return rc;
}

int offload_io_begin(struct offload_io *io, const struct offload_range *range, struct fsdp_err *err)
{
    struct move *m;

    if (!range->nbytes)
        return FSDP_OK;
    pthread_mutex_lock(&io->lock);
    const int rc = add_move(&m, io, range, false, err);
    pthread_mutex_unlock(&io->lock);
    return rc;
}

static bool memory_is_in_use(const struct offload_io *io, const char *mem, size_t nbytes)
{
    for (int i = 0; i < MOST_MOVES; i++)
        if (io->moves[i].used && memory_touches(&io->moves[i].range, mem, nbytes))
            return true;
    return false;
}

int offload_io_wait(struct offload_io *io, const char *mem, size_t nbytes, struct fsdp_err *err)
{
    pthread_mutex_lock(&io->lock);
    while (memory_is_in_use(io, mem, nbytes))
        pthread_cond_wait(&io->done, &io->lock);
    const int rc = failure_of(io, err);
    pthread_mutex_unlock(&io->lock);
    return rc;
}

int offload_io_settle(struct offload_io *io, struct fsdp_err *err)
{
    pthread_mutex_lock(&io->lock);
    while (is_in_the_way(io, NULL))
        pthread_cond_wait(&io->done, &io->lock);
    const int rc = failure_of(io, err);
    pthread_mutex_unlock(&io->lock);
    return rc;
}

/* ---- create and destroy ---------------------------------------------------------------------- */

int offload_io_create(struct offload_io **out, offload_move_f *move, void *ctx,
                      struct fsdp_err *err)
{
    struct offload_io *io = fsdp_alloc(1, sizeof *io, "offload threads", err);

    if (!io)
        return FSDP_ENOMEM;
    io->move = move;
    io->ctx = ctx;
    pthread_mutex_init(&io->lock, NULL);
    pthread_cond_init(&io->work, NULL);
    pthread_cond_init(&io->done, NULL);
    for (; io->nthreads < NTHREADS; io->nthreads++) {
        const int errnum = pthread_create(&io->thread[io->nthreads], NULL, thread_main, io);
        if (errnum) {
            offload_io_destroy(io);
            return fsdp_err_sys(err, errnum, "offload file: cannot start a thread");
        }
    }
    *out = io;
    return FSDP_OK;
}

void offload_io_destroy(struct offload_io *io)
{
    if (!io)
        return;
    offload_io_settle(io, NULL);
    pthread_mutex_lock(&io->lock);
    io->stop = true;
    pthread_cond_broadcast(&io->work);
    pthread_mutex_unlock(&io->lock);
    for (int i = 0; i < io->nthreads; i++)
        pthread_join(io->thread[i], NULL);
    pthread_cond_destroy(&io->work);
    pthread_cond_destroy(&io->done);
    pthread_mutex_destroy(&io->lock);
    fsdp_free(io);
}
