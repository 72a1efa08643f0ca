/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <sched.h>

#include "workers.h"

struct ckpt_workers_result {
    ckpt_work_f *fn;
    pthread_mutex_t lock; /* the first failure */
    int rc;
    struct fsdp_err err;
};

static void *worker_thread(void *arg)
{
    struct ckpt_workers *w = arg;
    struct ckpt_workers_result *result = w->result;
    struct fsdp_err err = FSDP_ERR_INIT;
    int rc = result->fn(w, atomic_fetch_add(&w->begun, 1), &err);

    if (rc) {
        pthread_mutex_lock(&result->lock);
        if (!result->rc) {
            result->rc = rc;
            result->err = err;
        }
        pthread_mutex_unlock(&result->lock);
        atomic_store(&w->stopped, true);
    }
    return NULL;
}

int ckpt_workers_run(int nworkers, ckpt_work_f *fn, void *ctx, struct fsdp_err *err)
{
    pthread_t threads[CKPT_MAX_WORKERS];
    struct ckpt_workers_result result = {.fn = fn};
    struct ckpt_workers workers = {.ctx = ctx, .result = &result};
    int nthreads = 0;

    nworkers = nworkers < CKPT_MAX_WORKERS ? nworkers : CKPT_MAX_WORKERS;
    pthread_mutex_init(&result.lock, NULL);
    while (nthreads < nworkers - 1 &&
           pthread_create(&threads[nthreads], NULL, worker_thread, &workers) == 0)
        nthreads++;
    worker_thread(&workers);
    while (nthreads > 0)
        pthread_join(threads[--nthreads], NULL);
    pthread_mutex_destroy(&result.lock);
    return fsdp_err_pass(err, result.rc, &result.err);
}

int ckpt_workers_default(int most)
{
    cpu_set_t set;
    int ncpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return ncpus < most ? ncpus : most;
}
