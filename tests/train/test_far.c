/* SPDX-License-Identifier: Apache-2.0 */
/* Files at addresses in blocks of a bounded temporary file: any reads by any threads give the
 * file's bytes, read ahead or not, and what the store refuses is an error that passes. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/source/far.h"
#include "tap.h"

enum { NBYTES = 300001, BLOCK = 1000, NREADERS = 4, NREADS = 2000 };

static unsigned char bytes[NBYTES];
static atomic_int nfetched, nfailing; /* so many of the next reads of the store fail */

static int open_memory(void **file, uint64_t *nbytes, const char *address, struct fsdp_err *err)
{
    if (strcmp(address, "memory://file") != 0)
        return fsdp_err_set(err, FSDP_ENOTFOUND, "%s: not there", address);
    *file = bytes;
    *nbytes = NBYTES;
    return FSDP_OK;
}

static int pread_memory(void *file, void *dst, size_t nbytes, uint64_t offset, struct fsdp_err *err)
{
    atomic_fetch_add(&nfetched, 1);
    if (atomic_load(&nfailing) > 0 && atomic_fetch_sub(&nfailing, 1) > 0)
        return fsdp_err_set(err, FSDP_EIO, "the store is away");
    if (offset + nbytes > NBYTES)
        return fsdp_err_set(err, FSDP_ECORRUPT, "beyond the end");
    memcpy(dst, (unsigned char *)file + offset, nbytes);
    return FSDP_OK;
}

static void close_memory(void *file)
{
    (void)file;
}

static const struct data_remote memory = {
    .open = open_memory, .pread = pread_memory, .close = close_memory};

struct reader {
    struct data_far *far;
    unsigned seed;
    int nwrong, nerrors;
};

static void *read_at_random(void *ctx)
{
    struct reader *r = ctx;
    char got[5 * BLOCK];

    for (int i = 0; i < NREADS; i++) {
        const size_t n = 1 + (size_t)rand_r(&r->seed) % sizeof got;
        const uint64_t at = (uint64_t)rand_r(&r->seed) % (NBYTES - n + 1);
        if (i % 3 == 0)
            data_far_ahead(r->far, 0, at, n);
        if (data_far_read(r->far, 0, at, n, got, NULL))
            r->nerrors++;
        else
            r->nwrong += memcmp(got, bytes + at, n) != 0;
    }
    return NULL;
}

static struct data_far *open_far(uint64_t room)
{
    const struct data_far_opts opts = {
        .remote = &memory, .room_nbytes = room, .block_nbytes = BLOCK};
    struct data_far *far = NULL;
    uint64_t nbytes = 0;
    int file = -1;

    ok(data_far_create(&far, &opts, NULL) == FSDP_OK &&
           data_far_open(far, "memory://file", &file, &nbytes, NULL) == FSDP_OK && file == 0 &&
           nbytes == NBYTES,
       "opened with room for %llu bytes", (unsigned long long)room);
    return far;
}

static void read_by_threads(uint64_t room)
{
    struct reader readers[NREADERS];
    pthread_t threads[NREADERS];
    int nwrong = 0, nerrors = 0;
    struct data_far *far = open_far(room);

    for (int i = 0; i < NREADERS; i++) {
        readers[i] = (struct reader){.far = far, .seed = (unsigned)i + 1};
        pthread_create(&threads[i], NULL, read_at_random, &readers[i]);
    }
    for (int i = 0; i < NREADERS; i++) {
        pthread_join(threads[i], NULL);
        nwrong += readers[i].nwrong;
        nerrors += readers[i].nerrors;
    }
    ok(!nwrong && !nerrors, "%d threads read the file's bytes: %d wrong, %d errors", NREADERS,
       nwrong, nerrors);
    data_far_destroy(far);
}

static void read_ahead(void)
{
    struct data_far *far = open_far(NBYTES * 2);
    char got[BLOCK];

    atomic_store(&nfetched, 0);
    data_far_ahead(far, 0, 10 * BLOCK, 10 * BLOCK);
    for (int i = 0; i < 500 && atomic_load(&nfetched) < 10; i++)
        usleep(10000);
    ok(atomic_load(&nfetched) == 10, "what is read soon comes by itself");
    for (int i = 10; i < 20; i++)
        data_far_read(far, 0, (uint64_t)i * BLOCK, BLOCK, got, NULL);
    ok(atomic_load(&nfetched) == 10, "and is not fetched again when it is read");
    for (int pass = 0; pass < 2; pass++)
        for (uint64_t at = 0; at + BLOCK <= NBYTES; at += BLOCK)
            data_far_read(far, 0, at, BLOCK, got, NULL);
    ok(atomic_load(&nfetched) == NBYTES / BLOCK, "a file that has room is fetched once");
    data_far_destroy(far);
}

static void fail(void)
{
    struct data_far *far = open_far(NBYTES);
    struct fsdp_err err = FSDP_ERR_INIT;
    char got[BLOCK];
    uint64_t nbytes;
    int file;

    atomic_store(&nfailing, 1);
    ok(data_far_read(far, 0, 0, BLOCK, got, &err) == FSDP_EIO && strstr(err.text, "is away"),
       "an error of the store: %s", err.text);
    ok(data_far_read(far, 0, 0, BLOCK, got, NULL) == FSDP_OK && !memcmp(got, bytes, BLOCK),
       "the next read tries again");
    atomic_store(&nfetched, 0);
    atomic_store(&nfailing, 4);
    data_far_ahead(far, 0, 40 * BLOCK, 4 * BLOCK);
    for (int i = 0; i < 500 && atomic_load(&nfetched) < 4; i++)
        usleep(10000);
    ok(data_far_read(far, 0, 40 * BLOCK, BLOCK, got, NULL) == FSDP_OK &&
           !memcmp(got, bytes + 40 * BLOCK, BLOCK),
       "what failed ahead is read when it is asked for");
    ok(data_far_open(far, "memory://other", &file, &nbytes, NULL) == FSDP_ENOTFOUND,
       "an address without a file");
    data_far_destroy(far);
    data_far_destroy(NULL);
}

int main(void)
{
    for (size_t i = 0; i < NBYTES; i++)
        bytes[i] = (unsigned char)(i * 2654435761u >> 13);
    read_by_threads(0); /* the fewest blocks that are taken */
    read_by_threads(100 * BLOCK);
    read_by_threads(2 * NBYTES);
    read_ahead();
    fail();
    return tap_done();
}
