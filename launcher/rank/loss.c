/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "boot/boot_env.h"
#include "fsdp/launch.h"
#include "fsdp/sys/thread.h"
#include "rank.h"

bool rank_is_watched(void)
{
    return getenv(BOOT_ENV_RENDEZVOUS) != NULL;
}

void rank_print_loss(struct fsdp_oob *oob, const char *program, bool heard)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    if (oob->health(oob, &err) == FSDP_OK)
        return;
    /* One that gave up because it had lost another may have been silent. */
    if (heard && err.kind == FSDP_ERR_GAVE_UP && err.of_other)
        return;
    if (err.rank >= 0 && oob->rank == (err.rank == 0))
        fprintf(stderr, "%s: %s\n", program, err.text);
}

/* ---- the watchdog ---- */

enum { NOTICE_S = 15 }; /* a rank gets to notice a loss itself */

struct rank_watchdog {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct fsdp_oob *oob;
    const char *program;
    bool heard, stop;
};

static void *watch_thread(void *arg)
{
    struct rank_watchdog *dog = arg;
    double lost_at = 0;

    pthread_mutex_lock(&dog->lock);
    while (!dog->stop) {
        const struct timespec soon = fsdp_cond_time(1);
        pthread_cond_timedwait(&dog->changed, &dog->lock, &soon);
        if (dog->stop || dog->oob->health(dog->oob, NULL) == FSDP_OK)
            continue;
        if (lost_at == 0)
            lost_at = fsdp_time_now();
        if (fsdp_time_now() - lost_at > NOTICE_S) {
            rank_print_loss(dog->oob, dog->program, dog->heard);
            _exit(FSDP_LAUNCH_PEER_LOST);
        }
    }
    pthread_mutex_unlock(&dog->lock);
    return NULL;
}

struct rank_watchdog *rank_watchdog_start(struct fsdp_oob *oob, const char *program, bool heard)
{
    struct rank_watchdog *dog = fsdp_alloc(1, sizeof *dog, "watchdog", NULL);
    if (!dog)
        return NULL;
    dog->oob = oob;
    dog->program = program;
    dog->heard = heard;
    pthread_mutex_init(&dog->lock, NULL);
    fsdp_cond_init(&dog->changed);
    int why = fsdp_thread_start(&dog->thread, watch_thread, dog);
    if (!why)
        return dog;
    fsdp_free(dog);
    return NULL;
}

void rank_watchdog_stop(struct rank_watchdog *dog)
{
    if (!dog)
        return;
    pthread_mutex_lock(&dog->lock);
    dog->stop = true;
    pthread_cond_signal(&dog->changed);
    pthread_mutex_unlock(&dog->lock);
    pthread_join(dog->thread, NULL);
    pthread_cond_destroy(&dog->changed);
    pthread_mutex_destroy(&dog->lock);
    fsdp_free(dog);
}
