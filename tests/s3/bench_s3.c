/* SPDX-License-Identifier: Apache-2.0 */
/* `bench_s3 put|get FILE URL`: writes a file to a store, or reads as many bytes from it, with as
 * many threads and as large blocks as the tools have; prints the seconds that it took, and those of
 * processors that it spent.
 * scripts/bench_s3.sh compares. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "../../ckpt/store/store.h"
#include "../../ckpt/util/workers.h"

enum { NTHREADS = 8, BLOCK_NBYTES = 4 << 20 };

struct transfer {
    struct ckpt_store_file *file;
    char *data;
    size_t nbytes;
    bool put;
    atomic_size_t next;
};

static int move_blocks(struct ckpt_workers *workers, int index, struct fsdp_err *err)
{
    struct transfer *t = workers->ctx;
    (void)index;
    for (;;) {
        size_t pos = atomic_fetch_add(&t->next, 1) * BLOCK_NBYTES;
        if (pos >= t->nbytes)
            return FSDP_OK;
        size_t left = t->nbytes - pos, nbytes = left < BLOCK_NBYTES ? left : BLOCK_NBYTES;
        FSDP_TRY(t->put ? ckpt_store_pwrite(t->file, t->data + pos, nbytes, pos, err)
                        : ckpt_store_pread(t->file, t->data + pos, nbytes, pos, err));
    }
}

static double cpu_seconds(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           1e-6 * (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

static int run(bool put, const char *path, const char *url, struct fsdp_err *err)
{
    struct transfer t = {.put = put};
    const struct ckpt_store_ops *ops;
    FSDP_TRY(ckpt_store_of(&ops, url, err));
    FSDP_TRY(ckpt_store_get(&t.data, &t.nbytes, &ckpt_store_posix, path, (size_t)1 << 34, err));
    double begun = fsdp_time_now(), cpu_begun = cpu_seconds();
    int rc = ckpt_store_open(&t.file, ops, url, put ? CKPT_STORE_REPLACE : CKPT_STORE_READ, err);
    if (rc == FSDP_OK)
        rc = ckpt_workers_run(NTHREADS, move_blocks, &t, err);
    if (rc == FSDP_OK && put)
        rc = ckpt_store_sync(t.file, err);
    double seconds = fsdp_time_now() - begun, cpu = cpu_seconds() - cpu_begun;
    ckpt_store_close(t.file, NULL);
    fsdp_free(t.data);
    if (rc == FSDP_OK)
        printf("%.3f %.3f\n", seconds, cpu);
    return rc;
}

int main(int argc, char **argv)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    if (argc != 4 || (strcmp(argv[1], "put") && strcmp(argv[1], "get"))) {
        fprintf(stderr, "usage: bench_s3 put|get FILE URL\n");
        return 2;
    }
    if (run(!strcmp(argv[1], "put"), argv[2], argv[3], &err)) {
        fprintf(stderr, "bench_s3: %s\n", err.text);
        return 1;
    }
    return 0;
}
