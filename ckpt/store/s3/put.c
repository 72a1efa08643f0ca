/* SPDX-License-Identifier: Apache-2.0 */
/*
 * If-None-Match: * makes one of many writers of a name the winner, and with it a manifest a commit.
 * Not every store heeds it: some answer "not implemented", some overwrite. So the first success in
 * a bucket is repeated once: the store must refuse the very bytes that it has just taken. Where it
 * does not, what was written is read back, which tells a later overwriting from none, not more.
 *
 * After a lost answer, "the name is taken" may mean by ourselves: compared too.
 */
#include <string.h>
#include <time.h>

#include "put.h"
#include "xml.h"

/* ---- whole objects --------------------------------------------------------------------------- */

static int put_once(struct ckpt_s3_call *call, struct ckpt_s3_bucket *bucket, const char *key,
                    const void *data, size_t nbytes, bool conditional, struct fsdp_err *err)
{
    ckpt_s3_call_init(call, bucket, "write", "PUT", key);
    call->body = data;
    call->body_nbytes = nbytes;
    if (conditional)
        ckpt_s3_call_header(call, "if-none-match", "*");
    int rc = ckpt_s3_call_one(call, err);
    ckpt_text_free(&call->text);
    return rc;
}

/* Is what is there what was written? */
static int compare_object(bool *same, struct ckpt_s3_bucket *bucket, const char *key,
                          const void *data, size_t nbytes, struct fsdp_err *err)
{
    struct ckpt_s3_call call;
    ckpt_s3_call_init(&call, bucket, "read back", "GET", key);
    int rc = ckpt_s3_call_one(&call, err);
    *same = rc == FSDP_OK && call.text.nbytes == nbytes &&
            (!nbytes || !memcmp(call.text.data, data, nbytes));
    ckpt_text_free(&call.text);
    return rc;
}

static int taken(const struct ckpt_s3_bucket *bucket, const char *key, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EEXIST, "'s3://%s/%s' exists already", bucket->name, key);
}

static void note_ignored(struct ckpt_s3_bucket *bucket, const char *how)
{
    int untried = CKPT_S3_UNTRIED;
    if (atomic_compare_exchange_strong(&bucket->conditional, &untried, CKPT_S3_IGNORED))
        fsdp_log(FSDP_LOG_WARN,
                 "s3://%s: the store at %s %s If-None-Match, with which two savers of one name are "
                 "told apart: never let two jobs write the same checkpoint there",
                 bucket->name, bucket->base, how);
}

/* Where conditions are not known: a look before, a look behind. The second is late enough to see
 * whoever looked before this one wrote, and writes without delay. */
static int put_unconditional(struct ckpt_s3_bucket *bucket, const char *key, const void *data,
                             size_t nbytes, struct fsdp_err *err)
{
    struct ckpt_s3_call call;
    struct fsdp_err why = FSDP_ERR_INIT;
    const struct timespec settled = {.tv_sec = 2};
    bool same;
    ckpt_s3_call_init(&call, bucket, "look at", "HEAD", key);
    int rc = ckpt_s3_call_one(&call, &why);
    ckpt_text_free(&call.text);
    if (rc == FSDP_OK)
        return taken(bucket, key, err);
    if (rc != FSDP_ENOTFOUND)
        return fsdp_err_pass(err, rc, &why);
    FSDP_TRY(put_once(&call, bucket, key, data, nbytes, false, err));
    nanosleep(&settled, NULL);
    FSDP_TRY(compare_object(&same, bucket, key, data, nbytes, err));
    return same ? FSDP_OK : taken(bucket, key, err);
}

static int put_conditional(struct ckpt_s3_bucket *bucket, const char *key, const void *data,
                           size_t nbytes, struct fsdp_err *err)
{
    struct ckpt_s3_call call;
    struct fsdp_err why = FSDP_ERR_INIT;
    bool same = false;
    int rc = put_once(&call, bucket, key, data, nbytes, true, &why);
    if (rc == FSDP_EUNSUPPORTED) {
        note_ignored(bucket, "refuses");
        return put_unconditional(bucket, key, data, nbytes, err);
    }
    if (rc && call.job.ntries > 1) /* our own, of a try that seemed to fail? */
        compare_object(&same, bucket, key, data, nbytes, NULL);
    if (rc == FSDP_EEXIST && !same)
        return taken(bucket, key, err);
    if (rc && !same)
        return fsdp_err_pass(err, rc, &why);
    if (atomic_load(&bucket->conditional) != CKPT_S3_UNTRIED)
        return FSDP_OK;
    rc = put_once(&call, bucket, key, data, nbytes, true, &why);
    int untried = CKPT_S3_UNTRIED;
    if (rc == FSDP_EEXIST)
        atomic_compare_exchange_strong(&bucket->conditional, &untried, CKPT_S3_HEEDED);
    else if (rc == FSDP_OK)
        note_ignored(bucket, "ignores");
    return FSDP_OK;
}

int ckpt_s3_put_whole(struct ckpt_s3_bucket *bucket, const char *key, const void *data,
                      size_t nbytes, bool replace, struct fsdp_err *err)
{
    struct ckpt_s3_call call;
    if (replace)
        return put_once(&call, bucket, key, data, nbytes, false, err);
    if (atomic_load(&bucket->conditional) == CKPT_S3_IGNORED)
        return put_unconditional(bucket, key, data, nbytes, err);
    return put_conditional(bucket, key, data, nbytes, err);
}

/* ---- multipart ------------------------------------------------------------------------------- */

int ckpt_s3_multipart_begin(char **upload_id, struct ckpt_s3_bucket *bucket, const char *key,
                            const char *id, struct fsdp_err *err)
{
    struct ckpt_s3_call call;
    char text[2048];
    ckpt_s3_call_init(&call, bucket, "write", "POST", key);
    ckpt_s3_call_query(&call, "uploads", "");
    ckpt_s3_call_header(&call, "x-amz-checksum-algorithm", "CRC32C");
    ckpt_s3_call_header(&call, "x-amz-meta-ckpt-id", id);
    call.may_fail_inside = true;
    struct ckpt_s3_xml *answer = NULL;
    int rc = ckpt_s3_call_xml(&answer, &call, err);
    if (rc == FSDP_OK && !ckpt_s3_xml_text(text, sizeof text, answer, CKPT_S3_XML_ROOT, "UploadId"))
        rc = fsdp_err_set(err, FSDP_EIO, "'s3://%s/%s': %s begins an upload without a name for it",
                          bucket->name, key, bucket->base);
    ckpt_s3_xml_free(answer);
    if (rc == FSDP_OK && !(*upload_id = fsdp_strdup(text, err)))
        rc = FSDP_ENOMEM;
    return rc;
}

bool ckpt_s3_is_gone(const struct ckpt_s3_call *call)
{
    return call->status == 404 && strcmp(call->code, "NoSuchBucket") != 0;
}

bool ckpt_s3_multipart_is_complete(struct ckpt_s3_bucket *bucket, const char *key, const char *id)
{
    struct ckpt_s3_call call;
    ckpt_s3_call_init(&call, bucket, "look at", "HEAD", key);
    int rc = ckpt_s3_call_one(&call, NULL);
    ckpt_text_free(&call.text);
    return rc == FSDP_OK && !strcmp(call.id, id);
}

static void list_parts(struct ckpt_text *list, const struct ckpt_s3_sent *sent, uint32_t nsent)
{
    ckpt_text_printf(list, "<CompleteMultipartUpload "
                           "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for (uint32_t i = 0; i < nsent; i++) {
        ckpt_text_printf(list, "<Part><PartNumber>%u</PartNumber><ETag>", i + 1);
        ckpt_s3_xml_add(list, sent[i].etag);
        ckpt_text_printf(list, "</ETag>");
        if (sent[i].checksum[0])
            ckpt_text_printf(list, "<ChecksumCRC32C>%s</ChecksumCRC32C>", sent[i].checksum);
        ckpt_text_printf(list, "</Part>");
    }
    ckpt_text_printf(list, "</CompleteMultipartUpload>");
}

int ckpt_s3_multipart_complete(struct ckpt_s3_bucket *bucket, const char *key,
                               const char *upload_id, const char *id,
                               const struct ckpt_s3_sent *sent, uint32_t nsent,
                               struct fsdp_err *err)
{
    struct ckpt_s3_call call;
    struct ckpt_text list = {0};
    struct fsdp_err why = FSDP_ERR_INIT;
    list_parts(&list, sent, nsent);
    if (list.failed)
        return fsdp_err_set(err, FSDP_ENOMEM, "list of parts: out of memory");
    ckpt_s3_call_init(&call, bucket, "complete", "POST", key);
    ckpt_s3_call_query(&call, "uploadId", upload_id);
    ckpt_s3_call_header(&call, "content-type", "application/xml");
    call.body = list.data;
    call.body_nbytes = list.nbytes;
    call.may_fail_inside = true;
    int rc = ckpt_s3_call_one(&call, &why);
    ckpt_text_free(&call.text);
    ckpt_text_free(&list);
    if (rc == FSDP_OK)
        return FSDP_OK;
    /* Some stores do not know an upload any more when they are asked again for what they have done.
     * Another process may have finished the same upload, or sent other parts for it. */
    const bool gone = ckpt_s3_is_gone(&call) || !strcmp(call.code, "InvalidPart");
    if ((gone || call.job.ntries > 1) && ckpt_s3_multipart_is_complete(bucket, key, id))
        return FSDP_OK;
    return fsdp_err_pass(err, gone ? FSDP_ENOTFOUND : rc, &why);
}

void ckpt_s3_multipart_abort(struct ckpt_s3_bucket *bucket, const char *key, const char *upload_id)
{
    struct ckpt_s3_call call;
    ckpt_s3_call_init(&call, bucket, "end the upload of", "DELETE", key);
    ckpt_s3_call_query(&call, "uploadId", upload_id);
    ckpt_s3_call_one(&call, NULL);
    ckpt_text_free(&call.text);
}
