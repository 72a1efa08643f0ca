/* SPDX-License-Identifier: Apache-2.0 */
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ckpt/ckpt.h"
#include "unfinished.h"
#include "creds.h"
#include "upload.h"
#include "xml.h"

enum { MAX_KEY_NBYTES = 2048, MAX_ID_NBYTES = 2048 };

/* ---- which upload ---------------------------------------------------------------------------- */

/* Keys that only begin with this one come behind it: one page of the list is enough. */
static int find_upload(char **upload_id, struct ckpt_s3_bucket *bucket, const char *key,
                       struct fsdp_err *err)
{
    struct ckpt_s3_call call;
    struct ckpt_s3_xml *page = NULL;
    char name[MAX_KEY_NBYTES], id[MAX_ID_NBYTES], newest[MAX_ID_NBYTES] = "", begun[64];
    int64_t latest = INT64_MIN;

    ckpt_s3_call_init(&call, bucket, "list the uploads of", "GET", "");
    call.about = key;
    ckpt_s3_call_query(&call, "uploads", "");
    ckpt_s3_call_query(&call, "prefix", key);
    int rc = ckpt_s3_call_xml(&page, &call, err);
    for (int at = -1; rc == FSDP_OK && ckpt_s3_xml_next(&at, page, "Upload");) {
        if (!ckpt_s3_xml_text(name, sizeof name, page, at, "Key") || strcmp(name, key) ||
            !ckpt_s3_xml_text(id, sizeof id, page, at, "UploadId"))
            continue;
        ckpt_s3_xml_text(begun, sizeof begun, page, at, "Initiated");
        const int64_t time = *begun ? ckpt_s3_time(begun) : INT64_MIN;
        if (time >= latest)
            memcpy(newest, id, sizeof newest);
        latest = time >= latest ? time : latest;
    }
    ckpt_s3_xml_free(page);
    if (rc == FSDP_OK && *newest && !(*upload_id = fsdp_strdup(newest, err)))
        rc = FSDP_ENOMEM;
    return rc;
}

/* ---- its parts ------------------------------------------------------------------------------- */

static int add_part(struct ckpt_s3_unfinished *u, const struct ckpt_s3_xml *page, int at,
                    struct fsdp_err *err)
{
    struct ckpt_s3_sent part = {.nbytes = 0};
    char number[16], size[24];

    ckpt_s3_xml_text(number, sizeof number, page, at, "PartNumber");
    ckpt_s3_xml_text(size, sizeof size, page, at, "Size");
    ckpt_s3_xml_text(part.etag, sizeof part.etag, page, at, "ETag");
    ckpt_s3_xml_text(part.checksum, sizeof part.checksum, page, at, "ChecksumCRC32C");
    part.nbytes = strtoull(size, NULL, 10);
    const unsigned long index = strtoul(number, NULL, 10) - 1;
    if (index >= CKPT_S3_MAX_PARTS || !*part.etag)
        return FSDP_OK;
    if (!u->parts &&
        !(u->parts = fsdp_alloc(CKPT_S3_MAX_PARTS, sizeof *u->parts, "parts of an upload", err)))
        return FSDP_ENOMEM;
    u->parts[index] = part;
    u->nparts = index >= u->nparts ? (uint32_t)index + 1 : u->nparts;
    return FSDP_OK;
}

static int parts_page(bool *more, char marker[16], struct ckpt_s3_unfinished *u,
                      struct ckpt_s3_bucket *bucket, const char *key, struct fsdp_err *err)
{
    struct ckpt_s3_call call;
    struct ckpt_s3_xml *page = NULL;
    char truncated[8], next[16];

    ckpt_s3_call_init(&call, bucket, "list the parts of", "GET", key);
    if (*marker)
        ckpt_s3_call_query(&call, "part-number-marker", marker);
    ckpt_s3_call_query(&call, "uploadId", u->upload_id);
    int rc = ckpt_s3_call_xml(&page, &call, err);
    for (int at = -1; rc == FSDP_OK && ckpt_s3_xml_next(&at, page, "Part");)
        rc = add_part(u, page, at, err);
    const int root = CKPT_S3_XML_ROOT;
    *more = rc == FSDP_OK &&
            ckpt_s3_xml_text(truncated, sizeof truncated, page, root, "IsTruncated") &&
            !strcmp(truncated, "true") &&
            ckpt_s3_xml_text(next, sizeof next, page, root, "NextPartNumberMarker") &&
            strcmp(next, marker);
    if (*more)
        memcpy(marker, next, sizeof next);
    ckpt_s3_xml_free(page);
    return rc;
}

int ckpt_s3_unfinished_find(struct ckpt_s3_unfinished *out, struct ckpt_s3_bucket *bucket,
                            const char *key, struct fsdp_err *err)
{
    char marker[16] = "";
    bool more = true;

    *out = (struct ckpt_s3_unfinished){NULL, NULL, 0};
    FSDP_TRY(find_upload(&out->upload_id, bucket, key, err));
    while (out->upload_id && more)
        FSDP_TRY(parts_page(&more, marker, out, bucket, key, err));
    return FSDP_OK;
}

void ckpt_s3_unfinished_free(struct ckpt_s3_unfinished *u)
{
    fsdp_free(u->upload_id);
    fsdp_free(u->parts);
    *u = (struct ckpt_s3_unfinished){NULL, NULL, 0};
}

/* ---- proofs ---------------------------------------------------------------------------------- */

bool ckpt_s3_is_crc32c(const char *checksum, const void *data, size_t nbytes)
{
    const uint32_t crc = ckpt_crc32c(0, data, nbytes);
    const unsigned char bytes[4] = {(unsigned char)(crc >> 24), (unsigned char)(crc >> 16),
                                    (unsigned char)(crc >> 8), (unsigned char)crc};
    char text[9];
    EVP_EncodeBlock((unsigned char *)text, bytes, sizeof bytes);
    return !strcmp(checksum, text);
}

bool ckpt_s3_is_md5(const char *etag, const void *data, size_t nbytes)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    char text[33];
    unsigned len = 0;

    etag += *etag == '"';
    if (EVP_Digest(data, nbytes, digest, &len, EVP_md5(), NULL) != 1 || len != 16)
        return false; /* a system may forbid MD5 */
    for (unsigned i = 0; i < len; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    return !strncasecmp(etag, text, 32) && (!etag[32] || !strcmp(etag + 32, "\""));
}
