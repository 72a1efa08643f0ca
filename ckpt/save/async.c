/* SPDX-License-Identifier: Apache-2.0 */
/* A save, or the flush of a staged one, on a thread of its own. Its slices come from a copy of the
 * state, its ranks agree over a channel of their own, so that it is ckpt_save and nothing else. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fsdp/sys/thread.h"
#include "ckpt/ckpt.h"

struct ckpt_saving {
    bool is_flush;
    struct ckpt_save_args args;
    struct ckpt_flush_args flush;
    atomic_int_fast64_t limit_us; /* a flush gives up then; 0: not */
    struct fsdp_oob *oob;
    void (*finished)(void *ctx);
    void *ctx;
    pthread_t thread;
    bool joins;
    atomic_bool done;
    struct ckpt_save_result result;
    int rc;
    struct fsdp_err err;
};

static void *save_thread(void *arg)
{
    struct ckpt_saving *s = arg;
    s->rc = s->is_flush ? ckpt_flush(&s->result, &s->flush, s->oob, &s->err)
                        : ckpt_save(&s->result, &s->args, s->oob, &s->err);
    if (s->finished)
        s->finished(s->ctx);
    atomic_store(&s->done, true);
    return NULL;
}

/* Where no share is set: others come first where processors are short. Linux has a niceness per
 * thread, which those that it starts inherit. */
static void *work_behind(void *arg)
{
    enum { NICER = 10 };
    id_t thread = (id_t)syscall(SYS_gettid);
    setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + NICER);
    return save_thread(arg);
}

static void start_thread(struct ckpt_saving *s, double share)
{
    /* Signals are for the threads that expect them. */
    s->joins = fsdp_thread_start(&s->thread, share > 0 ? save_thread : work_behind, s) == 0;
    if (!s->joins)
        save_thread(s); /* the other ranks wait for this one: late, but saved */
}

int ckpt_saving_begin(struct ckpt_saving **out, const struct ckpt_save_args *args,
                      struct fsdp_oob *oob, void (*finished)(void *ctx), void *ctx,
                      struct fsdp_err *err)
{
    struct ckpt_saving *s = fsdp_alloc(1, sizeof *s, "background save", err);
    if (!s)
        return FSDP_ENOMEM;
    s->args = *args;
    s->oob = oob;
    s->finished = finished;
    s->ctx = ctx;
    start_thread(s, args->share);
    *out = s;
    return FSDP_OK;
}

static int64_t now_us(void)
{
    return (int64_t)(1e6 * fsdp_time_now());
}

static bool gives_up(void *ctx)
{
    struct ckpt_saving *s = ctx;
    int64_t limit = atomic_load(&s->limit_us);
    return limit && now_us() >= limit;
}

int ckpt_flushing_begin(struct ckpt_saving **out, const struct ckpt_flush_args *args,
                        struct fsdp_oob *oob, struct fsdp_err *err)
{
    struct ckpt_saving *s = fsdp_alloc(1, sizeof *s, "flush", err);
    if (!s)
        return FSDP_ENOMEM;
    s->is_flush = true;
    s->flush = *args;
    s->flush.gives_up = gives_up;
    s->flush.gives_up_ctx = s;
    s->oob = oob;
    start_thread(s, args->share);
    *out = s;
    return FSDP_OK;
}

void ckpt_flushing_limit(struct ckpt_saving *s, double seconds)
{
    atomic_store(&s->limit_us, now_us() + (int64_t)(1e6 * seconds) + 1);
}

bool ckpt_saving_is_done(const struct ckpt_saving *saving)
{
    return atomic_load(&saving->done);
}

int ckpt_saving_end(struct ckpt_save_result *out, struct ckpt_saving *s, struct fsdp_err *err)
{
    if (s->joins)
        pthread_join(s->thread, NULL);
    int rc = s->rc;
    if (rc)
        fsdp_err_pass(err, rc, &s->err);
    else if (out)
        *out = s->result;
    fsdp_free(s);
    return rc;
}
