/* SPDX-License-Identifier: Apache-2.0 */
/* A few threads that do one thing together: the library's only way to have threads. */
#ifndef CKPT_WORKERS_H
#define CKPT_WORKERS_H

#include <stdatomic.h>

#include "fsdp/base.h"

enum { CKPT_MAX_WORKERS = 256 };

/* What a worker is given. It looks for work until there is none or ckpt_workers_stopped. */
struct ckpt_workers {
    void *ctx;
    atomic_int begun;    /* workers so far: each takes its index from here */
    atomic_bool stopped; /* one failed: the others end early */
    struct ckpt_workers_result *result;
};

/* index: 0 .. nworkers - 1, each given to at most one. A nonzero return stops all. */
typedef int ckpt_work_f(struct ckpt_workers *workers, int index, struct fsdp_err *err);

/* Runs fn on nworkers threads (at most CKPT_MAX_WORKERS; the caller's is one of them) and returns
 * when all have ended: FSDP_OK, or the first failure. Where no thread can be had, fewer run, so the
 * work must not need a certain number of them. Blocks. */
int ckpt_workers_run(int nworkers, ckpt_work_f *fn, void *ctx, struct fsdp_err *err);

static inline bool ckpt_workers_stopped(const struct ckpt_workers *workers)
{
    return atomic_load(&workers->stopped);
}

/* Processors that this process may run on, at most `most`. */
int ckpt_workers_default(int most);

#endif
