/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h: threads that work behind a program's own, and how they wait. */
#ifndef FSDP_SYS_THREAD_H
#define FSDP_SYS_THREAD_H

#include <pthread.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Starts a thread that takes none of the process's signals: they are for the thread that expects
 * them. Returns 0 or an errno. */
int fsdp_thread_start(pthread_t *thread, void *(*main)(void *), void *arg);

/* A condition whose timed waits end by CLOCK_MONOTONIC, which nobody sets, and the time on it that
 * is so many seconds from now (at most 10^9), for pthread_cond_timedwait. */
void fsdp_cond_init(pthread_cond_t *cond);
struct timespec fsdp_cond_time(double seconds);

#ifdef __cplusplus
}
#endif
#endif
