/* SPDX-License-Identifier: Apache-2.0 */
/* A save on a thread of its own. Its slices come from a copy of the state, its ranks agree over a
 * channel of their own, so that it is ckpt_save and nothing else. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ckpt/ckpt.h"

struct ckpt_saving {
    struct ckpt_save_args args;
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

static void *work(void *arg)
{
    struct ckpt_saving *s = arg;
    s->rc = ckpt_save(&s->result, &s->args, s->oob, &s->err);
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
    return work(arg);
}

int ckpt_saving_begin(struct ckpt_saving **out, const struct ckpt_save_args *args,
                      struct fsdp_oob *oob, void (*finished)(void *ctx), void *ctx,
                      struct fsdp_err *err)
{
    struct ckpt_saving *s = fsdp_alloc(1, sizeof *s, "background save", err);
    sigset_t all, before;

    if (!s)
        return FSDP_ENOMEM;
    s->args = *args;
    s->oob = oob;
    s->finished = finished;
    s->ctx = ctx;
    /* Signals are for the threads that expect them. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    s->joins = pthread_create(&s->thread, NULL, args->share > 0 ? work : work_behind, s) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!s->joins)
        work(s); /* the other ranks wait for this one: late, but saved */
    *out = s;
    return FSDP_OK;
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
        fsdp_err_set(err, rc, "%s", s->err.text);
    else if (out)
        *out = s->result;
    fsdp_free(s);
    return rc;
}
