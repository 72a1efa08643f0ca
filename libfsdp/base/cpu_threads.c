/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads for loops. A caller publishes its loop under a new number; the workers, who wait for the
 * number to change, take pieces from a shared counter until there are none, as the caller does too,
 * who then waits for the last of them. A worker spins a little before it sleeps: an operator ends
 * tens of microseconds before the next one begins.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "fsdp/sys/cpu.h"

enum { MAX_THREADS = 1024, SPINS = 4000 };

static struct {
    pthread_mutex_t turn; /* held by the caller whose loop runs */
    pthread_mutex_t lock; /* of what follows up to `stop` */
    pthread_cond_t changed, ended;
    _Atomic unsigned number; /* of the loop */
    _Atomic int running;     /* workers that have not finished it */
    bool stop;
    int nthreads; /* the caller included */
    pthread_t thread[MAX_THREADS];
    fsdp_cpu_f *fn;
    void *arg;
    size_t nitems, piece;
    _Atomic size_t next;
} pool = {.turn = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .changed = PTHREAD_COND_INITIALIZER,
          .ended = PTHREAD_COND_INITIALIZER,
          .nthreads = 1};

static void take_pieces(int worker)
{
    for (;;) {
        const size_t from = atomic_fetch_add(&pool.next, pool.piece);
        if (from >= pool.nitems)
            return;
        const size_t rest = pool.nitems - from;
        pool.fn(pool.arg, worker, from, from + (rest < pool.piece ? rest : pool.piece));
    }
}

static void relax(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Returns the number that replaced `seen`. */
static unsigned wait_for_loop(unsigned seen)
{
    for (int i = 0; i < SPINS && atomic_load(&pool.number) == seen; i++)
        relax();
    pthread_mutex_lock(&pool.lock);
    while (atomic_load(&pool.number) == seen)
        pthread_cond_wait(&pool.changed, &pool.lock);
    seen = atomic_load(&pool.number);
    pthread_mutex_unlock(&pool.lock);
    return seen;
}

static void *work_thread(void *arg)
{
    const int worker = (int)(intptr_t)arg;
    unsigned seen = 0;
    for (;;) {
        seen = wait_for_loop(seen);
        if (pool.stop)
            return NULL;
        take_pieces(worker);
        if (atomic_fetch_sub(&pool.running, 1) == 1) {
            pthread_mutex_lock(&pool.lock);
            pthread_cond_signal(&pool.ended);
            pthread_mutex_unlock(&pool.lock);
        }
    }
}

static void publish_job(void)
{
    pthread_mutex_lock(&pool.lock);
    atomic_store(&pool.running, pool.nthreads - 1);
    atomic_fetch_add(&pool.number, 1);
    pthread_cond_broadcast(&pool.changed);
    pthread_mutex_unlock(&pool.lock);
}

static void wait_for_workers(void)
{
    for (int i = 0; i < SPINS && atomic_load(&pool.running); i++)
        relax();
    pthread_mutex_lock(&pool.lock);
    while (atomic_load(&pool.running))
        pthread_cond_wait(&pool.ended, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

void fsdp_cpu_set_threads(int nthreads)
{
    pthread_mutex_lock(&pool.turn);
    pool.stop = true;
    publish_job();
    for (int i = 1; i < pool.nthreads; i++)
        pthread_join(pool.thread[i], NULL);
    pool.stop = false;
    pool.nthreads = 1;
    atomic_store(&pool.number, 0);
    while (pool.nthreads < nthreads && pool.nthreads < MAX_THREADS &&
           !pthread_create(&pool.thread[pool.nthreads], NULL, work_thread,
                           (void *)(intptr_t)pool.nthreads))
        pool.nthreads++;
    pthread_mutex_unlock(&pool.turn);
}

int fsdp_cpu_threads(void)
{
    return pool.nthreads;
}

void fsdp_cpu_for(size_t nitems, size_t grain, fsdp_cpu_f *fn, void *arg)
{
    enum { PIECES_PER_THREAD = 4 }; /* a thread that is held up leaves its share to the others */
    const size_t nthreads = (size_t)pool.nthreads;

    if (nthreads == 1 || nitems <= grain || pthread_mutex_trylock(&pool.turn)) {
        if (nitems)
            fn(arg, 0, 0, nitems);
        return;
    }
    const size_t share = nitems / (nthreads * PIECES_PER_THREAD);
    pool.fn = fn;
    pool.arg = arg;
    pool.nitems = nitems;
    pool.piece = share / grain > 1 ? share / grain * grain : grain;
    atomic_store(&pool.next, 0);
    publish_job();
    take_pieces(0);
    wait_for_workers();
    pthread_mutex_unlock(&pool.turn);
}
