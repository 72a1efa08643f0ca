/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <pthread.h>

#include "http.h"
#include "upload.h"
#include "upload_memory.h"

enum { MAX_IDLE = 32 };
#define FIRST_PART_NBYTES (8u << 20)
#define DEFAULT_MEMORY_NBYTES (128u << 20)

static pthread_mutex_t budget_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t budget_cond = PTHREAD_COND_INITIALIZER;
static uint64_t budget_nbytes = DEFAULT_MEMORY_NBYTES, used_nbytes;
static int nflying_all;

void ckpt_s3_upload_memory(uint64_t nbytes)
{
    pthread_mutex_lock(&budget_lock);
    budget_nbytes = nbytes;
    pthread_mutex_unlock(&budget_lock);
}

void ckpt_s3_memory_take(uint64_t nbytes)
{
    pthread_mutex_lock(&budget_lock);
    while (used_nbytes + nbytes > budget_nbytes && nflying_all)
        pthread_cond_wait(&budget_cond, &budget_lock);
    used_nbytes += nbytes;
    pthread_mutex_unlock(&budget_lock);
}

void ckpt_s3_memory_give(uint64_t nbytes, int nflying)
{
    pthread_mutex_lock(&budget_lock);
    used_nbytes -= nbytes;
    nflying_all += nflying;
    pthread_cond_broadcast(&budget_cond);
    pthread_mutex_unlock(&budget_lock);
}

/* Buffers of whole parts are used again while there are uploads: to have the system clear fresh
 * pages costs more than all that is done with the bytes in them. */
static char *idle[MAX_IDLE];
static size_t idle_nbytes; /* of each */
static int nidle, nuploads;

/* The budget's lock is held. */
static void idle_free(void)
{
    while (nidle)
        fsdp_free(idle[--nidle]);
}

char *ckpt_s3_buffer_take(size_t nbytes, struct fsdp_err *err)
{
    char *data = NULL;
    pthread_mutex_lock(&budget_lock);
    if (nbytes > CKPT_S3_SMALL_NBYTES && nbytes != idle_nbytes)
        idle_free(); /* they would be beyond the budget */
    if (nidle && nbytes == idle_nbytes)
        data = idle[--nidle];
    pthread_mutex_unlock(&budget_lock);
    return data ? data : fsdp_alloc_unset(nbytes, 1, "part of an upload", err);
}

void ckpt_s3_buffer_give(char *data, size_t nbytes, bool whole)
{
    pthread_mutex_lock(&budget_lock);
    bool keep = data && whole && nuploads && nidle < MAX_IDLE && (!nidle || nbytes == idle_nbytes);
    if (keep) {
        idle[nidle++] = data;
        idle_nbytes = nbytes;
    }
    pthread_mutex_unlock(&budget_lock);
    if (!keep)
        fsdp_free(data);
}

void ckpt_s3_uploads_add(int change)
{
    pthread_mutex_lock(&budget_lock);
    nuploads += change;
    if (!nuploads)
        idle_free();
    pthread_mutex_unlock(&budget_lock);
}

/* Sixteen parts fill the budget; a quarter of it is filled while the others are on their way. */
uint64_t ckpt_s3_first_part_nbytes(void)
{
    pthread_mutex_lock(&budget_lock);
    uint64_t nbytes = budget_nbytes / 16, all = budget_nbytes;
    pthread_mutex_unlock(&budget_lock);
    nbytes = nbytes < CKPT_S3_MIN_PART_NBYTES ? CKPT_S3_MIN_PART_NBYTES
             : nbytes > FIRST_PART_NBYTES     ? FIRST_PART_NBYTES
                                              : nbytes;
    uint64_t most = all / nbytes * 3 / 4;
    ckpt_http_large(most < INT_MAX ? (int)most : INT_MAX);
    return nbytes;
}
