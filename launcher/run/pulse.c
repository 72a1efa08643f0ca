/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdint.h>

#include "fsdp/sys/thread.h"
#include "supervise.h"

struct launch_pulse {
    struct fsdp_oob *oob;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int mine, most;
    bool stop;
};

struct beat {
    int32_t nstops, last;
};

/* Until the next beat is due, or at once where there is news. */
static struct beat next_beat(struct launch_pulse *pulse, const struct beat *before)
{
    const double every_s = 0.2;
    const struct timespec until = fsdp_cond_time(every_s);

    pthread_mutex_lock(&pulse->lock);
    while (!pulse->stop && pulse->mine <= before->nstops &&
           pthread_cond_timedwait(&pulse->changed, &pulse->lock, &until) == 0)
        ;
    struct beat mine = {pulse->mine, pulse->stop};
    pthread_mutex_unlock(&pulse->lock);
    return mine;
}

static void *beat_thread(void *arg)
{
    struct launch_pulse *pulse = arg;
    struct beat mine = {0, 0}, *all = NULL;
    bool last = false;

    all = fsdp_alloc((size_t)pulse->oob->size, sizeof *all, "pulse", NULL);
    while (all && !last) {
        mine = next_beat(pulse, &mine);
        if (pulse->oob->allgather(pulse->oob, &mine, sizeof mine, all, NULL))
            break; /* the launcher sees for itself that a node is gone */
        int most = 0;
        for (int i = 0; i < pulse->oob->size; i++) {
            most = all[i].nstops > most ? all[i].nstops : most;
            last |= all[i].last;
        }
        pthread_mutex_lock(&pulse->lock);
        pulse->most = most;
        pthread_mutex_unlock(&pulse->lock);
    }
    fsdp_free(all);
    return NULL;
}

int launch_pulse_start(struct launch_pulse **out, struct fsdp_oob *agents, struct fsdp_err *err)
{
    enum { FOREVER_S = 1000000000 }; /* a stopped launcher is not a lost one */
    struct launch_pulse *pulse = fsdp_alloc(1, sizeof *pulse, "pulse", err);
    int rc = fsdp_oob_agree(agents, pulse ? FSDP_OK : FSDP_ENOMEM, err);

    if (rc == FSDP_OK)
        rc = agents->dup(agents, "pulse", &pulse->oob, err);
    if (rc) {
        fsdp_free(pulse);
        return rc;
    }
    pulse->oob->set_wait(pulse->oob, FOREVER_S);
    pthread_mutex_init(&pulse->lock, NULL);
    fsdp_cond_init(&pulse->changed);
    int why = fsdp_thread_start(&pulse->thread, beat_thread, pulse);
    if (why) {
        pulse->oob->close(pulse->oob);
        fsdp_free(pulse);
        return fsdp_err_sys(err, why, "cannot start a thread");
    }
    *out = pulse;
    return FSDP_OK;
}

int launch_pulse_tell(struct launch_pulse *pulse, int nstops)
{
    pthread_mutex_lock(&pulse->lock);
    if (nstops > pulse->mine)
        pthread_cond_signal(&pulse->changed);
    pulse->mine = nstops;
    int most = pulse->most;
    pthread_mutex_unlock(&pulse->lock);
    return most;
}

void launch_pulse_stop(struct launch_pulse *pulse)
{
    if (!pulse)
        return;
    pthread_mutex_lock(&pulse->lock);
    pulse->stop = true;
    pthread_cond_signal(&pulse->changed);
    pthread_mutex_unlock(&pulse->lock);
    pthread_join(pulse->thread, NULL);
    pulse->oob->close(pulse->oob);
    pthread_cond_destroy(&pulse->changed);
    pthread_mutex_destroy(&pulse->lock);
    fsdp_free(pulse);
}
