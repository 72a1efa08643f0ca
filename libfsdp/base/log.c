/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdio.h>

#include "fsdp/base.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fsdp_log_f *log_fn;
static void *log_ctx;
static enum fsdp_log_level log_max = FSDP_LOG_INFO;

/* A callback may wait for what the thread that forks holds, such as Python's global lock: in the
 * child, nobody would release ours. */
static void free_in_child(void)
{
    pthread_mutex_init(&lock, NULL);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, free_in_child);
}

void fsdp_log_set(fsdp_log_f *fn, void *ctx, enum fsdp_log_level max_level)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    log_fn = fn;
    log_ctx = ctx;
    log_max = max_level;
    pthread_mutex_unlock(&lock);
}

void fsdp_log(enum fsdp_log_level level, const char *fmt, ...)
{
    pthread_mutex_lock(&lock);
    if (log_fn && level <= log_max) {
        char text[FSDP_ERR_TEXT_NBYTES];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        log_fn(log_ctx, level, fsdp_text_clean(text));
    }
    pthread_mutex_unlock(&lock);
}
