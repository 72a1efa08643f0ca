/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that take no signals, and conditions whose waits end in time. */
#include <errno.h>
#include <signal.h>

#include "fsdp/base.h"
#include "fsdp/sys/thread.h"
#include "tap.h"

static void *blocked_signals(void *arg)
{
    pthread_sigmask(SIG_BLOCK, NULL, arg);
    return NULL;
}

static void test_start(void)
{
    sigset_t inside, before, after;
    pthread_t thread;

    pthread_sigmask(SIG_BLOCK, NULL, &before);
    const int errnum = fsdp_thread_start(&thread, blocked_signals, &inside);
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    ok(errnum == 0 && pthread_join(thread, NULL) == 0, "a thread starts");
    ok(sigismember(&inside, SIGTERM) == 1 && sigismember(&inside, SIGUSR1) == 1,
       "signals are not for it");
    ok(sigismember(&before, SIGTERM) == 0 && sigismember(&after, SIGTERM) == 0,
       "and still for the one that started it");
}

static void test_wait(void)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond;
    const double begin = fsdp_time_now(), seconds = 0.05;
    struct timespec end = fsdp_cond_time(seconds);

    fsdp_cond_init(&cond);
    pthread_mutex_lock(&lock);
    while (pthread_cond_timedwait(&cond, &lock, &end) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&lock);
    ok(fsdp_time_now() - begin >= seconds, "a wait ends by the clock of fsdp_time_now");
    pthread_cond_destroy(&cond);

    const struct timespec now = fsdp_cond_time(-5);
    end = fsdp_cond_time(1e300);
    ok(end.tv_sec - now.tv_sec >= 999999999 && end.tv_sec - now.tv_sec <= 1000000001 &&
           end.tv_nsec < 1000000000 && now.tv_nsec < 1000000000,
       "times are from now to 10^9 seconds on");
}

int main(void)
{
    test_start();
    test_wait();
    return tap_done();
}
