/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>

#include "crc.h"
#include "job_sink.h"

struct ckpt_job_sink {
    struct ckpt_store_file *file;
    uint64_t nbytes;
    atomic_uint_fast32_t crc32c; /* the xor of what all ranges contribute */
};

static void count(struct ckpt_job_sink *sink, uint32_t crc32c, uint64_t pos, size_t nbytes)
{
    atomic_fetch_xor(&sink->crc32c, ckpt_crc32c_shift(crc32c, sink->nbytes - pos - nbytes));
}

int ckpt_job_sink_open(struct ckpt_job_sink **out, const struct ckpt_store_ops *ops,
                       const char *path, const char *header, size_t header_nbytes, uint64_t nbytes,
                       struct fsdp_err *err)
{
    struct ckpt_job_sink *sink = fsdp_alloc(1, sizeof *sink, "output file", err);
    if (!sink)
        return FSDP_ENOMEM;
    sink->nbytes = nbytes;
    int rc = ckpt_store_open(&sink->file, ops, path, CKPT_STORE_RESUME, err);
    if (rc == FSDP_EUNSUPPORTED)
        rc = ckpt_store_open(&sink->file, ops, path, CKPT_STORE_CREATE, err);
    if (rc == FSDP_OK)
        rc = ckpt_job_sink_put(sink, header, header_nbytes, 0,
                               ckpt_crc32c(0, header, header_nbytes), err);
    if (rc)
        ckpt_job_sink_abandon(sink);
    else
        *out = sink;
    return rc;
}

int ckpt_job_sink_put(struct ckpt_job_sink *sink, const void *data, size_t nbytes, uint64_t pos,
                      uint32_t crc32c, struct fsdp_err *err)
{
    FSDP_TRY(ckpt_store_pwrite(sink->file, data, nbytes, pos, err));
    count(sink, crc32c, pos, nbytes);
    return FSDP_OK;
}

int ckpt_job_sink_recall(bool *same, struct ckpt_job_sink *sink, void *data, size_t nbytes,
                         uint64_t pos, uint32_t crc32c, struct fsdp_err *err)
{
    int rc = ckpt_store_pread(sink->file, data, nbytes, pos, err);
    *same = rc == FSDP_OK && ckpt_crc32c(0, data, nbytes) == crc32c;
    if (rc == FSDP_ECORRUPT) /* shorter than the journal has it: its bytes never reached the disk */
        return FSDP_OK;
    if (*same)
        count(sink, crc32c, pos, nbytes);
    return rc;
}

int ckpt_job_sink_finish(uint64_t *nbytes, uint32_t *crc32c, struct ckpt_job_sink *sink,
                         struct fsdp_err *err)
{
    struct ckpt_store_file *file = sink->file;
    int rc = ckpt_store_sync(file, err);
    *nbytes = sink->nbytes;
    *crc32c = (uint32_t)atomic_load(&sink->crc32c);
    sink->file = NULL;
    int rc_close = ckpt_store_close(file, rc ? NULL : err);
    ckpt_job_sink_abandon(sink);
    return rc ? rc : rc_close;
}

void ckpt_job_sink_abandon(struct ckpt_job_sink *sink)
{
    if (sink)
        ckpt_store_close(sink->file, NULL);
    fsdp_free(sink);
}
