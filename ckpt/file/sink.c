/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>

#include "ckpt/ckpt.h"
#include "util/crc.h"
#include "sink.h"

/* Three ways: a plain file (file alone), a file that is compressed (and encoder), a compressed file
 * that an earlier run completed (data, pool). */
struct ckpt_job_sink {
    struct ckpt_store_file *file;
    struct ckpt_encoder *encoder;
    struct ckpt_data *data;
    struct ckpt_codec_pool *pool;
    uint64_t nbytes;
    uint32_t done_crc32c;
    atomic_uint_fast32_t crc32c; /* plain: the xor of what all ranges contribute */
};

static void count(struct ckpt_job_sink *sink, uint32_t crc32c, uint64_t pos, size_t nbytes)
{
    atomic_fetch_xor(&sink->crc32c, ckpt_crc32c_shift(crc32c, sink->nbytes - pos - nbytes));
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Is the file what an earlier run noted when it had finished it? */
static bool is_done(const struct ckpt_store_ops *ops, const char *path,
                    const struct ckpt_job_sink_args *args)
{
    uint64_t nbytes;
    uint32_t crc32c;
    return args->done_nbytes &&
           !ckpt_store_copy(&nbytes, &crc32c, ops, path, NULL, NULL, false, NULL) &&
           nbytes == args->done_nbytes && crc32c == args->done_crc32c;
}

static int open_compressed(struct ckpt_job_sink *sink, const struct ckpt_store_ops *ops,
                           const char *path, const struct ckpt_job_sink_args *args,
                           struct fsdp_err *err)
{
    const struct ckpt_encoder_args encoder = {.header = args->header,
                                              .header_nbytes = args->header_nbytes,
                                              .nbytes = args->nbytes,
                                              .window = args->window};
    if (is_done(ops, path, args)) {
        sink->done_crc32c = args->done_crc32c;
        FSDP_TRY(ckpt_codec_pool_create(&sink->pool, err));
        return ckpt_data_open(&sink->data, ops, path, sink->pool, err);
    }
    FSDP_TRY(ckpt_store_open_anew(&sink->file, ops, path, args->replace, err));
    return ckpt_encoder_create(&sink->encoder, sink->file, path, &encoder, err);
}

static int open_plain(struct ckpt_job_sink *sink, const struct ckpt_store_ops *ops,
                      const char *path, const struct ckpt_job_sink_args *args, struct fsdp_err *err)
{
    int rc = ckpt_store_open_again(&sink->file, ops, path, args->replace, err);
    if (rc == FSDP_OK && args->keeps)
        rc = ckpt_store_keep_upload(sink->file, args->keeps, args->found, err);
    if (rc || !args->header)
        return rc;
    return ckpt_job_sink_put(sink, args->header, args->header_nbytes, 0,
                             ckpt_crc32c(0, args->header, args->header_nbytes), err);
}

int ckpt_job_sink_open(struct ckpt_job_sink **out, const struct ckpt_store_ops *ops,
                       const char *path, const struct ckpt_job_sink_args *args,
                       struct fsdp_err *err)
{
    struct ckpt_job_sink *sink = fsdp_alloc(1, sizeof *sink, "output file", err);
    if (!sink)
        return FSDP_ENOMEM;
    sink->nbytes = args->nbytes;
    int rc = !args->stored && ckpt_codec_is_name(path) ? open_compressed(sink, ops, path, args, err)
                                                       : open_plain(sink, ops, path, args, err);
    if (rc)
        ckpt_job_sink_abandon(sink);
    else
        *out = sink;
    return rc;
}

/* ---- writing --------------------------------------------------------------------------------- */

int ckpt_job_sink_put(struct ckpt_job_sink *sink, const void *data, size_t nbytes, uint64_t pos,
                      uint32_t crc32c, struct fsdp_err *err)
{
    if (sink->encoder)
        return ckpt_encoder_put(sink->encoder, data, nbytes, pos, err);
    if (sink->data)
        return fsdp_err_set(err, FSDP_ECORRUPT,
                            "an output file of the earlier run does not fit its journal: remove "
                            "the .tmp. folder and start anew");
    FSDP_TRY(ckpt_store_pwrite(sink->file, data, nbytes, pos, err));
    count(sink, crc32c, pos, nbytes);
    return FSDP_OK;
}

bool ckpt_job_sink_part_at(uint64_t *begin, uint64_t *nbytes, struct ckpt_job_sink *sink,
                           uint64_t pos)
{
    return sink->file && !sink->encoder && ckpt_store_part_at(begin, nbytes, sink->file, pos);
}

int ckpt_job_sink_copy(uint32_t *crc32c, struct ckpt_job_sink *sink, uint64_t nbytes, uint64_t pos,
                       struct ckpt_store_file *from, uint64_t from_pos, struct fsdp_err *err)
{
    FSDP_TRY(ckpt_store_copy_part(crc32c, sink->file, pos, nbytes, from, from_pos, err));
    count(sink, *crc32c, pos, nbytes);
    return FSDP_OK;
}

int ckpt_job_sink_recall(bool *same, struct ckpt_job_sink *sink, void *data, size_t nbytes,
                         uint64_t pos, uint32_t crc32c, struct fsdp_err *err)
{
    *same = false;
    if (sink->encoder)
        return FSDP_OK;
    int rc = sink->data ? ckpt_data_pread(sink->data, data, nbytes, pos, err)
                        : ckpt_store_pread(sink->file, data, nbytes, pos, err);
    *same = rc == FSDP_OK && ckpt_crc32c(0, data, nbytes) == crc32c;
    if (rc == FSDP_ECORRUPT) /* shorter than the journal has it: its bytes never reached the disk */
        return FSDP_OK;
    if (*same)
        count(sink, crc32c, pos, nbytes);
    return rc;
}

void ckpt_job_sink_stop(struct ckpt_job_sink *sink)
{
    if (sink && sink->encoder)
        ckpt_encoder_stop(sink->encoder);
}

uint32_t ckpt_job_sink_crc(const struct ckpt_job_sink *sink)
{
    return (uint32_t)atomic_load(&sink->crc32c);
}

int ckpt_job_sink_finish(uint64_t *nbytes, uint32_t *crc32c, struct ckpt_job_sink **given,
                         struct fsdp_err *err)
{
    struct ckpt_job_sink *sink = *given;
    struct ckpt_encoder_result result = {.stored_nbytes = sink->nbytes,
                                         .stored_crc32c = (uint32_t)atomic_load(&sink->crc32c)};
    int rc = FSDP_OK, rc_close = FSDP_OK;
    if (sink->data) {
        result.stored_nbytes = ckpt_data_stored_nbytes(sink->data);
        result.stored_crc32c = sink->done_crc32c;
    }
    if (sink->encoder)
        rc = ckpt_encoder_finish(&result, sink->encoder, err);
    if (rc == FSDP_OK && sink->file)
        rc = ckpt_store_sync(sink->file, err);
    ckpt_encoder_destroy(sink->encoder);
    sink->encoder = NULL;
    if (sink->file && rc == FSDP_OK) {
        rc_close = ckpt_store_close(sink->file, err);
        sink->file = NULL;
    }
    *nbytes = result.stored_nbytes;
    *crc32c = result.stored_crc32c;
    if (rc) /* the caller gives up, and says what becomes of what was sent */
        return rc;
    ckpt_job_sink_abandon(sink);
    *given = NULL;
    return rc_close;
}

void ckpt_job_sink_drop(struct ckpt_job_sink *sink)
{
    if (sink && sink->file)
        ckpt_store_drop_upload(sink->file);
}

void ckpt_job_sink_abandon(struct ckpt_job_sink *sink)
{
    if (!sink)
        return;
    ckpt_encoder_destroy(sink->encoder);
    ckpt_store_abandon(sink->file);
    ckpt_data_close(sink->data);
    ckpt_codec_pool_destroy(sink->pool);
    fsdp_free(sink);
}
