/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of a multipart upload may be ranges of another object (UploadPartCopy). Each is asked for
 * on the condition that the source is still the object that was looked at. A store that keeps
 * CRC-32C tells that of every part, and those combine to the checksum of the whole.
 */
#include <openssl/evp.h>
#include <string.h>

#include "util/crc.h"
#include "s3_copy.h"
#include "put.h"
#include "xml.h"
#include "store/store.h"

enum { BATCH = 32 }; /* ranges under way at once, of one object */
#define RANGE_NBYTES (32u << 20)
#define MAX_RANGES 9000

struct copied_range {
    struct ckpt_s3_call call;
    char number[16], bytes[64];
    uint64_t begin, nbytes;
};

struct copy {
    const struct ckpt_s3_copy_args *args;
    struct ckpt_text source; /* "/bucket/key", encoded */
    char id[37];             /* ours, in the object's metadata */
    char *upload_id;
    uint64_t range_nbytes;
    struct ckpt_s3_sent *sent;
    uint32_t nsent;
    struct ckpt_store_copied result;
};

bool ckpt_s3_copy_is_near(const struct ckpt_s3_bucket *from, const struct ckpt_s3_bucket *to)
{
    if (from->custom != to->custom)
        return false;
    return !from->custom || !strcmp(from->base, to->base); /* an endpoint does not move */
}

bool ckpt_s3_crc32c_decode(uint32_t *out, const char *text)
{
    unsigned char bytes[6]; /* "AAAAAA==": 4 of them count */
    if (strlen(text) != 8 || EVP_DecodeBlock(bytes, (const unsigned char *)text, 8) != 6)
        return false;
    *out = (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
    return true;
}

static int source_text(struct ckpt_text *out, const struct ckpt_s3_copy_args *args,
                       struct fsdp_err *err)
{
    ckpt_text_printf(out, "/%s/", args->from->name);
    ckpt_s3_encode(out, args->from_key, true);
    return out->failed ? fsdp_err_set(err, FSDP_ENOMEM, "source of a copy: out of memory")
                       : FSDP_OK;
}

/* range: its begin and nbytes are set. number: from 0. */
static void prepare_range(struct copied_range *range, const struct ckpt_s3_copy_args *args,
                          const char *source, const char *upload_id, uint32_t number)
{
    struct ckpt_s3_call *call = &range->call;
    snprintf(range->number, sizeof range->number, "%u", number + 1);
    snprintf(range->bytes, sizeof range->bytes, "bytes=%llu-%llu", (unsigned long long)range->begin,
             (unsigned long long)(range->begin + range->nbytes - 1));
    ckpt_s3_call_init(call, args->to, "copy to", "PUT", args->to_key);
    ckpt_s3_call_query(call, "partNumber", range->number);
    ckpt_s3_call_query(call, "uploadId", upload_id);
    ckpt_s3_call_header(call, "x-amz-copy-source", source);
    ckpt_s3_call_header(call, "x-amz-copy-source-range", range->bytes);
    if (*args->etag)
        ckpt_s3_call_header(call, "x-amz-copy-source-if-match", args->etag);
    call->may_fail_inside = true;
}

/* What the store says of a range that it has copied. */
static int read_answer(struct ckpt_s3_sent *sent, const struct ckpt_s3_copy_args *args,
                       const struct copied_range *range, struct fsdp_err *err)
{
    struct ckpt_s3_xml *answer;
    ckpt_s3_xml_parse(&answer, range->call.text.data, range->call.text.nbytes, NULL);
    ckpt_s3_xml_text(sent->etag, sizeof sent->etag, answer, CKPT_S3_XML_ROOT, "ETag");
    ckpt_s3_xml_text(sent->checksum, sizeof sent->checksum, answer, CKPT_S3_XML_ROOT,
                     "ChecksumCRC32C");
    ckpt_s3_xml_free(answer);
    if (!*sent->etag)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "'s3://%s/%s': %s does not copy ranges",
                            args->to->name, args->to_key, args->to->base);
    sent->nbytes = range->nbytes;
    return FSDP_OK;
}

static int take_answer(struct copy *c, const struct copied_range *range, uint32_t index,
                       struct fsdp_err *err)
{
    struct ckpt_s3_sent *sent = &c->sent[index];
    uint32_t crc32c;
    FSDP_TRY(read_answer(sent, c->args, range, err));
    if (ckpt_s3_crc32c_decode(&crc32c, sent->checksum))
        c->result.crc32c ^=
            ckpt_crc32c_shift(crc32c, c->args->nbytes - range->begin - range->nbytes);
    else
        c->result.has_crc = false;
    return FSDP_OK;
}

/* A store that refuses, or knows nothing of it, is not asked again; what else fails may have to do
 * with the data. */
static int judge_failure(const struct ckpt_s3_copy_args *args, const struct ckpt_s3_call *call,
                         int rc, struct fsdp_err *err)
{
    if (call->status == 412)
        return fsdp_err_set(err, FSDP_ECORRUPT, "'s3://%s/%s' was replaced while it was copied",
                            args->from->name, args->from_key);
    if (rc == FSDP_ENOSPC || rc == FSDP_ENOMEM)
        return rc;
    return call->status / 100 == 4 || rc == FSDP_EUNSUPPORTED ? FSDP_EUNSUPPORTED : rc;
}

static int copy_batch(struct copy *c, struct copied_range *ranges, uint32_t first, uint32_t n,
                      struct fsdp_err *err)
{
    struct ckpt_s3_call *calls[BATCH];
    uint64_t nbytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t begin = (first + i) * c->range_nbytes, left = c->args->nbytes - begin;
        ranges[i].begin = begin;
        ranges[i].nbytes = left < c->range_nbytes ? left : c->range_nbytes;
        prepare_range(&ranges[i], c->args, c->source.data, c->upload_id, first + i);
        calls[i] = &ranges[i].call;
        nbytes += ranges[i].nbytes;
    }
    int rc = ckpt_s3_call_run(calls, (int)n, err);
    for (uint32_t i = 0; i < n; i++) {
        if (rc && calls[i]->job.rc)
            rc = judge_failure(c->args, calls[i], rc, err);
        if (rc == FSDP_OK)
            rc = take_answer(c, &ranges[i], first + i, err);
        ckpt_text_free(&calls[i]->text);
    }
    if (rc == FSDP_OK && c->args->moved && c->args->moved(c->args->ctx, nbytes))
        rc = fsdp_err_set(err, FSDP_ECANCELED, "stopped on request");
    return rc;
}

static int copy_all(struct copy *c, struct fsdp_err *err)
{
    struct copied_range *ranges = fsdp_alloc(BATCH, sizeof *ranges, "ranges", err);
    int rc = ranges ? FSDP_OK : FSDP_ENOMEM;
    for (uint32_t first = 0; rc == FSDP_OK && first < c->nsent; first += BATCH)
        rc = copy_batch(c, ranges, first, c->nsent - first < BATCH ? c->nsent - first : BATCH, err);
    fsdp_free(ranges);
    return rc;
}

static int set_up(struct copy *c, struct fsdp_err *err)
{
    const struct ckpt_s3_copy_args *args = c->args;
    uint64_t least = (args->nbytes + MAX_RANGES - 1) / MAX_RANGES;
    c->range_nbytes = least > RANGE_NBYTES ? least : RANGE_NBYTES;
    c->nsent = (uint32_t)((args->nbytes + c->range_nbytes - 1) / c->range_nbytes);
    c->result.has_crc = true;
    c->sent = fsdp_alloc(c->nsent, sizeof *c->sent, "parts of a copy", err);
    if (!c->sent)
        return FSDP_ENOMEM;
    FSDP_TRY(source_text(&c->source, args, err));
    return ckpt_uuid_make(c->id, err);
}

int ckpt_s3_copy(struct ckpt_store_copied *out, const struct ckpt_s3_copy_args *args,
                 struct fsdp_err *err)
{
    struct copy c = {.args = args};
    int rc = set_up(&c, err);
    if (rc == FSDP_OK)
        rc = ckpt_s3_multipart_begin(&c.upload_id, args->to, args->to_key, c.id, err);
    if (rc == FSDP_OK)
        rc = copy_all(&c, err);
    if (rc == FSDP_OK)
        rc = ckpt_s3_multipart_complete(args->to, args->to_key, c.upload_id, c.id, c.sent, c.nsent,
                                        err);
    if (rc && c.upload_id)
        ckpt_s3_multipart_abort(args->to, args->to_key, c.upload_id);
    if (rc == FSDP_OK)
        *out = c.result;
    fsdp_free(c.upload_id);
    fsdp_free(c.sent);
    ckpt_text_free(&c.source);
    return rc;
}

int ckpt_s3_copy_range(struct ckpt_s3_sent *sent, const struct ckpt_s3_copy_args *args,
                       const char *upload_id, uint32_t number, uint64_t begin,
                       const atomic_bool *given_up, struct fsdp_err *err)
{
    struct copied_range range = {.begin = begin, .nbytes = args->nbytes};
    struct ckpt_text source = {0};
    int rc = source_text(&source, args, err);
    *sent = (struct ckpt_s3_sent){.nbytes = 0};
    if (rc == FSDP_OK) {
        prepare_range(&range, args, source.data, upload_id, number);
        range.call.job.given_up = given_up;
        rc = ckpt_s3_call_one(&range.call, err);
        if (rc && ckpt_s3_is_gone(&range.call) && !strcmp(range.call.code, "NoSuchUpload"))
            rc = FSDP_ENOTFOUND;
        else if (rc)
            rc = judge_failure(args, &range.call, rc, err);
        else
            rc = read_answer(sent, args, &range, err);
        ckpt_text_free(&range.call.text);
    }
    ckpt_text_free(&source);
    return rc;
}
