/* SPDX-License-Identifier: Apache-2.0 */
/* Reading many safetensors headers at a time: on shared storage each costs a round trip or more. */
#include <stdatomic.h>
#include <string.h>

#include "source.h"
#include "util/workers.h"

struct job {
    struct ckpt_st_header *headers;
    struct ckpt *ckpt;
    atomic_int next;
    pthread_mutex_t lock;
    int failed; /* file with the lowest index that failed, nfiles: none */
    int rc;
    struct fsdp_err err;
};

static int read_one(struct job *job, int i, struct fsdp_err *err)
{
    struct ckpt *ckpt = job->ckpt;
    const struct ckpt_layout_file *file = &ckpt->m.layout.files[i];
    struct ckpt_store_stat st;
    char *path = ckpt_path_join(ckpt->folder, file->path, err);
    if (!path)
        return FSDP_ENOMEM;
    int rc = ckpt_store_stat(&st, ckpt->store, path, err);
    if (rc == FSDP_ENOTFOUND)
        rc = fsdp_err_set(err, rc, "'%s' is missing", path);
    else if (rc == FSDP_OK && file->has_crc && st.nbytes != file->nbytes)
        rc = fsdp_err_set(err, FSDP_ECORRUPT, "'%s' has %llu bytes instead of %llu: %s", path,
                          (unsigned long long)st.nbytes, (unsigned long long)file->nbytes,
                          st.nbytes < file->nbytes ? "truncated" : "not the file that was saved");
    if (rc == FSDP_OK)
        rc = ckpt_st_read(&job->headers[i], &st, ckpt->store, path, ckpt->pool, err);
    if (rc == FSDP_OK)
        rc = ckpt_source_note(ckpt, i, &st, err);
    if (rc == FSDP_OK && file->has_crc && job->headers[i].header_nbytes != file->header_nbytes)
        rc = fsdp_err_set(err, FSDP_ECORRUPT,
                          "'%s' is not the file that was saved: its header "
                          "has %llu bytes instead of %llu",
                          path, (unsigned long long)job->headers[i].header_nbytes,
                          (unsigned long long)file->header_nbytes);
    fsdp_free(path);
    return rc;
}

/* A failure is no reason to stop the others: of several, the same one is reported each time. */
static int header_worker(struct ckpt_workers *workers, int index, struct fsdp_err *unused)
{
    struct job *job = workers->ctx;
    (void)index, (void)unused;
    for (int i; (i = atomic_fetch_add(&job->next, 1)) < job->ckpt->m.layout.nfiles;) {
        struct fsdp_err err = FSDP_ERR_INIT;
        int rc = read_one(job, i, &err);
        if (rc == FSDP_OK)
            continue;
        pthread_mutex_lock(&job->lock);
        if (i < job->failed) {
            job->failed = i;
            job->rc = rc;
            job->err = err;
        }
        pthread_mutex_unlock(&job->lock);
    }
    return FSDP_OK;
}

int ckpt_headers_read(struct ckpt_st_header *headers, struct ckpt *ckpt, struct fsdp_err *err)
{
    int nfiles = ckpt->m.layout.nfiles, nworkers = 1 + nfiles / 4;
    struct job job = {.headers = headers, .ckpt = ckpt, .failed = nfiles};

    memset(headers, 0, (size_t)nfiles * sizeof *headers);
    pthread_mutex_init(&job.lock, NULL);
    int rc = ckpt_workers_run(nworkers < CKPT_HEADER_THREADS ? nworkers : CKPT_HEADER_THREADS,
                              header_worker, &job, err);
    pthread_mutex_destroy(&job.lock);
    if (rc == FSDP_OK && job.rc)
        rc = fsdp_err_pass(err, job.rc, &job.err);
    for (int i = 0; rc && i < nfiles; i++)
        ckpt_st_header_free(&headers[i]);
    return rc;
}
