/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>

#include "fsdp/sys/thread.h"
#include "pool.h"

enum { MAX_THREADS = 256, ITEMS_PER_THREAD = 3 };

struct slot {
    struct encode_item item;
    bool done;
};

/* Items released <= items taken by threads <= items given; item i is in slot i % nslots. */
struct encode_pool {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    uint64_t given, taken, released;
    bool stop;
    struct slot *slots;
    size_t nslots;
    int nthreads, nstarted;
    pthread_t threads[MAX_THREADS];
    struct encode_worker workers[MAX_THREADS];
    int next_worker;
};

static struct slot *slot_of(struct encode_pool *p, uint64_t item)
{
    return &p->slots[item % p->nslots];
}

static void *work_thread(void *arg)
{
    struct encode_pool *p = arg;

    pthread_mutex_lock(&p->lock);
    struct encode_worker *worker = &p->workers[p->next_worker++];
    for (;;) {
        while (!p->stop && p->taken == p->given)
            pthread_cond_wait(&p->work, &p->lock);
        if (p->stop)
            break;
        struct slot *slot = slot_of(p, p->taken++);
        pthread_mutex_unlock(&p->lock);
        encode_item_work(&slot->item, worker);
        pthread_mutex_lock(&p->lock);
        slot->done = true;
        pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static int count_cpus(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

static int start_threads(struct encode_pool *p, struct fsdp_err *err)
{
    for (; p->nstarted < p->nthreads; p->nstarted++) {
        const int why = pthread_create(&p->threads[p->nstarted], NULL, work_thread, p);
        if (why && !p->nstarted)
            return fsdp_err_sys(err, why, "cannot create a thread");
        if (why)
            break; /* fewer do it, too */
    }
    return FSDP_OK;
}

int encode_pool_create(struct encode_pool **out, int nthreads, const struct encode_opts *opts,
                       const struct data_text *text, struct fsdp_err *err)
{
    struct encode_pool *p = fsdp_alloc(1, sizeof *p, "threads", err);

    if (!p)
        return FSDP_ENOMEM;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    fsdp_cond_init(&p->done);
    p->nthreads = nthreads > 0 ? nthreads : count_cpus();
    p->nthreads = p->nthreads < MAX_THREADS ? p->nthreads : MAX_THREADS;
    for (int i = 0; i < p->nthreads; i++)
        encode_worker_init(&p->workers[i], opts, text);
    p->nslots = (size_t)p->nthreads * ITEMS_PER_THREAD;
    p->slots = fsdp_alloc(p->nslots, sizeof *p->slots, "items of work", err);
    const int rc = p->slots ? start_threads(p, err) : FSDP_ENOMEM;
    if (rc == FSDP_OK)
        *out = p;
    else
        encode_pool_destroy(p);
    return rc;
}

void encode_pool_destroy(struct encode_pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->nstarted; i++)
        pthread_join(p->threads[i], NULL);
    for (int i = 0; i < p->nthreads; i++)
        encode_worker_free(&p->workers[i]);
    for (size_t i = 0; p->slots && i < p->nslots; i++)
        encode_item_free(&p->slots[i].item);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    fsdp_free(p->slots);
    fsdp_free(p);
}

struct encode_worker *encode_pool_workers(struct encode_pool *p, int *nworkers)
{
    *nworkers = p->nthreads;
    return p->workers;
}

struct encode_item *encode_pool_free_item(struct encode_pool *p)
{
    return p->given - p->released < p->nslots ? &slot_of(p, p->given)->item : NULL;
}

void encode_pool_give(struct encode_pool *p)
{
    pthread_mutex_lock(&p->lock);
    slot_of(p, p->given++)->done = false;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

bool encode_pool_is_empty(const struct encode_pool *p)
{
    return p->given == p->released;
}

struct encode_item *encode_pool_wait(struct encode_pool *p, double seconds)
{
    struct slot *slot = slot_of(p, p->released);
    const struct timespec until = fsdp_cond_time(seconds);
    int rc = 0;

    pthread_mutex_lock(&p->lock);
    while (!slot->done && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&p->done, &p->lock, &until);
    const bool done = slot->done;
    pthread_mutex_unlock(&p->lock);
    return done ? &slot->item : NULL;
}

void encode_pool_release(struct encode_pool *p)
{
    p->released++;
}
