/* SPDX-License-Identifier: Apache-2.0 */
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "creds.h"
#include "list.h"
#include "xml.h"

enum { BATCH = 1000, MAX_KEY_NBYTES = 1025, MAX_MARKER_NBYTES = 4096 };

/* ---- objects --------------------------------------------------------------------------------- */

int ckpt_s3_list_add(struct ckpt_s3_list *list, const char *key, struct fsdp_err *err)
{
    if (strncmp(key, list->prefix, strlen(list->prefix)))
        return fsdp_err_set(err, FSDP_EIO, "%s lists '%s' below 's3://%s/%s'", list->bucket->base,
                            key, list->bucket->name, list->prefix);
    struct ckpt_s3_entry *entries = fsdp_alloc_grow(list->entries, list->nentries, &list->max,
                                                    sizeof *entries, "list of objects", err);
    if (!entries)
        return FSDP_ENOMEM;
    list->entries = entries;
    char *copy = fsdp_strdup(key, err);
    if (!copy)
        return FSDP_ENOMEM;
    list->entries[list->nentries++] = (struct ckpt_s3_entry){.key = copy};
    return FSDP_OK;
}

static int take_page(struct ckpt_s3_list *list, const struct ckpt_s3_xml *page,
                     struct fsdp_err *err)
{
    char key[MAX_KEY_NBYTES], text[64];
    for (int at = -1; ckpt_s3_xml_next(&at, page, "Contents");) {
        if (!ckpt_s3_xml_text(key, sizeof key, page, at, "Key"))
            continue;
        FSDP_TRY(ckpt_s3_list_add(list, key, err));
        struct ckpt_s3_entry *entry = &list->entries[list->nentries - 1];
        if (ckpt_s3_xml_text(text, sizeof text, page, at, "Size"))
            entry->nbytes = strtoull(text, NULL, 10);
        if (ckpt_s3_xml_text(text, sizeof text, page, at, "LastModified"))
            entry->mtime = ckpt_s3_time(text);
    }
    for (int at = -1; ckpt_s3_xml_next(&at, page, "CommonPrefixes");)
        if (ckpt_s3_xml_text(key, sizeof key, page, at, "Prefix"))
            FSDP_TRY(ckpt_s3_list_add(list, key, err));
    return FSDP_OK;
}

static char *prefix_of(const char *key, bool folder, struct fsdp_err *err)
{
    size_t len = strlen(key);
    bool slash = folder && len && key[len - 1] != '/';
    return fsdp_sprintf(err, "%s%s", key, slash ? "/" : "");
}

/* One page; *more: there is another, and token says where. */
static int list_page(bool *more, char *token, struct ckpt_s3_list *list, const char *prefix,
                     struct fsdp_err *err)
{
    struct ckpt_s3_call call;
    char most[16], truncated[8];
    snprintf(most, sizeof most, "%d", list->most ? list->most : BATCH);
    ckpt_s3_call_init(&call, list->bucket, "list", "GET", "");
    call.about = list->prefix;
    ckpt_s3_call_query(&call, "list-type", "2");
    ckpt_s3_call_query(&call, "prefix", prefix);
    ckpt_s3_call_query(&call, "max-keys", most);
    if (list->delimited)
        ckpt_s3_call_query(&call, "delimiter", "/");
    if (*more)
        ckpt_s3_call_query(&call, "continuation-token", token);
    struct ckpt_s3_xml *page = NULL;
    int rc = ckpt_s3_call_xml(&page, &call, err);
    if (rc == FSDP_OK)
        rc = take_page(list, page, err);
    *more =
        rc == FSDP_OK &&
        ckpt_s3_xml_text(truncated, sizeof truncated, page, CKPT_S3_XML_ROOT, "IsTruncated") &&
        !strcmp(truncated, "true") &&
        ckpt_s3_xml_text(token, MAX_MARKER_NBYTES, page, CKPT_S3_XML_ROOT, "NextContinuationToken");
    ckpt_s3_xml_free(page);
    return rc;
}

int ckpt_s3_list_run(struct ckpt_s3_list *list, struct fsdp_err *err)
{
    char token[MAX_MARKER_NBYTES] = "";
    char *prefix = prefix_of(list->prefix, list->folder, err);
    bool more = false;
    if (!prefix)
        return FSDP_ENOMEM;
    list->prefix_nbytes = strlen(prefix);
    int rc;
    do {
        rc = list_page(&more, token, list, prefix, err);
    } while (rc == FSDP_OK && more && !list->most);
    fsdp_free(prefix);
    return rc;
}

void ckpt_s3_list_free(struct ckpt_s3_list *list)
{
    for (size_t i = 0; i < list->nentries; i++)
        fsdp_free(list->entries[i].key);
    fsdp_free(list->entries);
    list->entries = NULL;
    list->nentries = list->max = 0;
}

/* ---- removal --------------------------------------------------------------------------------- */

/* Stores want the MD5 of this one body. */
static void md5_text(char out[25], const void *data, size_t nbytes)
{
    unsigned char digest[16];
    out[0] = 0;
    if (EVP_Digest(data, nbytes, digest, NULL, EVP_md5(), NULL))
        EVP_EncodeBlock((unsigned char *)out, digest, sizeof digest);
}

/* The first that could not be removed, if any. */
static int check_removed(const struct ckpt_s3_call *call, const struct ckpt_s3_xml *answer,
                         struct fsdp_err *err)
{
    char key[MAX_KEY_NBYTES], code[64];
    for (int at = -1; ckpt_s3_xml_next(&at, answer, "Error");) {
        ckpt_s3_xml_text(key, sizeof key, answer, at, "Key");
        ckpt_s3_xml_text(code, sizeof code, answer, at, "Code");
        if (strcmp(code, "NoSuchKey"))
            return fsdp_err_set(err, FSDP_EIO, "cannot remove 's3://%s/%s': %s (%s)",
                                call->bucket->name, key, code, call->bucket->base);
    }
    return FSDP_OK;
}

static int remove_batch(const struct ckpt_s3_list *list, size_t first, size_t nkeys,
                        struct fsdp_err *err)
{
    struct ckpt_text text = {0};
    struct ckpt_s3_xml *answer;
    struct ckpt_s3_call call;
    char md5[25];
    ckpt_text_printf(&text, "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
                            "<Quiet>true</Quiet>");
    for (size_t i = first; i < first + nkeys; i++) {
        ckpt_text_printf(&text, "<Object><Key>");
        ckpt_s3_xml_add(&text, list->entries[i].key);
        ckpt_text_printf(&text, "</Key></Object>");
    }
    ckpt_text_printf(&text, "</Delete>");
    if (text.failed)
        return fsdp_err_set(err, FSDP_ENOMEM, "removal: out of memory");
    md5_text(md5, text.data, text.nbytes);
    ckpt_s3_call_init(&call, list->bucket, "remove", "POST", "");
    call.about = list->prefix;
    ckpt_s3_call_query(&call, "delete", "");
    ckpt_s3_call_header(&call, "content-type", "application/xml");
    if (*md5)
        ckpt_s3_call_header(&call, "content-md5", md5);
    call.body = text.data;
    call.body_nbytes = text.nbytes;
    int rc = ckpt_s3_call_one(&call, err);
    if (rc == FSDP_OK && call.text.nbytes) { /* quiet: nothing, or what could not be removed */
        ckpt_s3_xml_parse(&answer, call.text.data, call.text.nbytes, NULL);
        rc = check_removed(&call, answer, err);
        ckpt_s3_xml_free(answer);
    }
    ckpt_text_free(&call.text);
    ckpt_text_free(&text);
    return rc;
}

int ckpt_s3_remove_listed(const struct ckpt_s3_list *list, struct fsdp_err *err)
{
    for (size_t first = 0; first < list->nentries; first += BATCH) {
        size_t left = list->nentries - first;
        FSDP_TRY(remove_batch(list, first, left < BATCH ? left : BATCH, err));
    }
    return FSDP_OK;
}

/* ---- uploads --------------------------------------------------------------------------------- */

struct sweep {
    struct ckpt_s3_bucket *bucket;
    const char *key;
    size_t key_nbytes; /* without a slash at its end */
    int64_t before;
    bool dry_run;
    uint64_t nuploads;
    char key_marker[MAX_KEY_NBYTES], id_marker[MAX_MARKER_NBYTES];
};

static int end_upload(struct sweep *s, const struct ckpt_s3_xml *page, int at, struct fsdp_err *err)
{
    char key[MAX_KEY_NBYTES], id[MAX_MARKER_NBYTES], begun[64];
    struct ckpt_s3_call call;
    struct fsdp_err why = FSDP_ERR_INIT;
    if (!ckpt_s3_xml_text(key, sizeof key, page, at, "Key") ||
        !ckpt_s3_xml_text(id, sizeof id, page, at, "UploadId"))
        return FSDP_OK;
    ckpt_s3_xml_text(begun, sizeof begun, page, at, "Initiated");
    bool below = !s->key_nbytes || (!strncmp(key, s->key, s->key_nbytes) &&
                                    (!key[s->key_nbytes] || key[s->key_nbytes] == '/'));
    if (!below || (s->before != INT64_MAX && (!*begun || ckpt_s3_time(begun) >= s->before)))
        return FSDP_OK;
    s->nuploads += s->dry_run;
    if (s->dry_run)
        return FSDP_OK;
    ckpt_s3_call_init(&call, s->bucket, "end the upload of", "DELETE", key);
    ckpt_s3_call_query(&call, "uploadId", id);
    int rc = ckpt_s3_call_one(&call, &why);
    ckpt_text_free(&call.text);
    s->nuploads += rc == FSDP_OK;
    return rc == FSDP_OK || rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
}

static int sweep_page(bool *more, struct sweep *s, struct fsdp_err *err)
{
    struct ckpt_s3_call call;
    char truncated[8], prefix[MAX_KEY_NBYTES];
    snprintf(prefix, sizeof prefix, "%.*s", (int)s->key_nbytes, s->key);
    ckpt_s3_call_init(&call, s->bucket, "list the uploads of", "GET", "");
    call.about = s->key;
    ckpt_s3_call_query(&call, "uploads", "");
    ckpt_s3_call_query(&call, "prefix", prefix);
    if (*more) {
        ckpt_s3_call_query(&call, "key-marker", s->key_marker);
        ckpt_s3_call_query(&call, "upload-id-marker", s->id_marker);
    }
    struct ckpt_s3_xml *page = NULL;
    const int root = CKPT_S3_XML_ROOT;
    int rc = ckpt_s3_call_xml(&page, &call, err);
    *more = rc == FSDP_OK &&
            ckpt_s3_xml_text(truncated, sizeof truncated, page, root, "IsTruncated") &&
            !strcmp(truncated, "true") &&
            ckpt_s3_xml_text(s->key_marker, sizeof s->key_marker, page, root, "NextKeyMarker") &&
            ckpt_s3_xml_text(s->id_marker, sizeof s->id_marker, page, root, "NextUploadIdMarker");
    for (int at = -1; rc == FSDP_OK && ckpt_s3_xml_next(&at, page, "Upload");)
        rc = end_upload(s, page, at, err);
    ckpt_s3_xml_free(page);
    return rc;
}

int ckpt_s3_sweep_uploads(uint64_t *nuploads, struct ckpt_s3_bucket *bucket, const char *key,
                          int64_t before, bool dry_run, struct fsdp_err *err)
{
    struct sweep s = {.bucket = bucket,
                      .key = key,
                      .key_nbytes = strlen(key),
                      .before = before,
                      .dry_run = dry_run};
    bool more = false;
    int rc;
    while (s.key_nbytes && key[s.key_nbytes - 1] == '/')
        s.key_nbytes--;
    do {
        rc = sweep_page(&more, &s, err);
    } while (rc == FSDP_OK && more);
    *nuploads = s.nuploads;
    return rc;
}
