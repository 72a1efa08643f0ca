/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call is signed anew for each try. The body's hash is part of the signature over plain HTTP;
 * over TLS, which protects it already, the body is unsigned and has a CRC-32C that the store
 * checks. A profile can have it otherwise, by the setting that other tools know.
 */
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "util/crc.h"
#include "call.h"
#include "creds.h"
#include "xml.h"

enum { MAX_TEXT_NBYTES = 64 << 20 };

static atomic_int_fast64_t clock_skew; /* the stores' clock less ours */

/* ---- what is sent ---------------------------------------------------------------------------- */

void ckpt_s3_call_init(struct ckpt_s3_call *call, struct ckpt_s3_bucket *bucket, const char *what,
                       const char *method, const char *key)
{
    memset(call, 0, sizeof *call);
    call->bucket = bucket;
    call->what = what;
    call->about = key;
    call->method = method;
    call->key = key;
}

void ckpt_s3_call_query(struct ckpt_s3_call *call, const char *name, const char *value)
{
    call->query[call->nquery++] = (struct ckpt_s3_pair){name, value};
}

void ckpt_s3_call_header(struct ckpt_s3_call *call, const char *name, const char *value)
{
    call->headers[call->nheaders++] = (struct ckpt_s3_pair){name, value};
}

static size_t take_body(char *data, size_t elem_nbytes, size_t nelem, void *arg)
{
    struct ckpt_s3_call *call = arg;
    size_t nbytes = elem_nbytes * nelem;
    long status = 0;
    curl_easy_getinfo(call->job.curl, CURLINFO_RESPONSE_CODE, &status);
    if (call->dst && status / 100 == 2) {
        if (nbytes > call->dst_nbytes - call->got_nbytes)
            return 0; /* more than was asked for */
        memcpy((char *)call->dst + call->got_nbytes, data, nbytes);
        call->got_nbytes += nbytes;
        return nbytes;
    }
    if (call->text.nbytes + nbytes > MAX_TEXT_NBYTES)
        return 0;
    ckpt_text_add(&call->text, data, nbytes);
    return call->text.failed ? 0 : nbytes;
}

/* The value of a header line if it has that name. */
static bool take_header(char *out, size_t out_nbytes, const char *line, size_t nbytes,
                        const char *name)
{
    size_t len = strlen(name);
    if (nbytes <= len || strncasecmp(line, name, len) || line[len] != ':')
        return false;
    const char *value = line + len + 1, *end = line + nbytes;
    while (value < end && *value == ' ')
        value++;
    while (end > value && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' '))
        end--;
    snprintf(out, out_nbytes, "%.*s", (int)(end - value), value);
    return true;
}

static size_t take_line(char *line, size_t elem_nbytes, size_t nelem, void *arg)
{
    struct ckpt_s3_call *call = arg;
    size_t nbytes = elem_nbytes * nelem;
    char value[64];
    if (take_header(call->etag, sizeof call->etag, line, nbytes, "ETag") ||
        take_header(call->id, sizeof call->id, line, nbytes, "x-amz-meta-ckpt-id") ||
        take_header(call->server_region, sizeof call->server_region, line, nbytes,
                    "x-amz-bucket-region"))
        return nbytes;
    if (take_header(value, sizeof value, line, nbytes, "Content-Length"))
        call->length = strtoull(value, NULL, 10);
    else if (take_header(value, sizeof value, line, nbytes, "Last-Modified"))
        call->mtime = (int64_t)curl_getdate(value, NULL);
    else if (take_header(value, sizeof value, line, nbytes, "Date"))
        call->server_time = (int64_t)curl_getdate(value, NULL);
    return nbytes;
}

/* All that is signed: the caller's headers and the common ones. */
static int sign(struct ckpt_s3_call *call, const struct ckpt_s3_creds *creds,
                const struct ckpt_s3_address *address, const char *path, struct fsdp_err *err)
{
    struct ckpt_s3_pair headers[CKPT_S3_MAX_HEADERS + 5], query[CKPT_S3_MAX_QUERY];
    struct ckpt_text auth = {0};
    int n = call->nheaders;

    call->clock_skew = atomic_load(&clock_skew);
    time_t now = time(NULL) + (time_t)call->clock_skew;
    memcpy(headers, call->headers, (size_t)n * sizeof *headers);
    memcpy(query, call->query, sizeof query);
    ckpt_s3_date(call->date, now);
    headers[n++] = (struct ckpt_s3_pair){"host", address->host};
    headers[n++] = (struct ckpt_s3_pair){"x-amz-content-sha256", call->payload_hash};
    headers[n++] = (struct ckpt_s3_pair){"x-amz-date", call->date};
    if (call->token)
        headers[n++] = (struct ckpt_s3_pair){"x-amz-security-token", call->token};
    struct ckpt_s3_sign_args args = {.method = call->method,
                                     .path = path,
                                     .query = query,
                                     .nquery = call->nquery,
                                     .headers = headers,
                                     .nheaders = n,
                                     .payload_hash = call->payload_hash,
                                     .region = address->region,
                                     .service = "s3",
                                     .key_id = creds->key_id,
                                     .secret = creds->secret,
                                     .time = now};
    int rc = ckpt_s3_sign(&auth, &args, err);
    struct curl_slist *list = NULL;
    for (int i = 0; rc == FSDP_OK && i <= n; i++) {
        bool last = i == n;
        char *line = fsdp_sprintf(err, "%s: %s", last ? "authorization" : headers[i].name,
                                  last ? auth.data : headers[i].value);
        struct curl_slist *longer = line ? curl_slist_append(list, line) : NULL;
        fsdp_free(line);
        if (!longer)
            rc = fsdp_err_set(err, FSDP_ENOMEM, "request: out of memory");
        else
            list = longer;
    }
    for (int i = 0; rc == FSDP_OK && i < 2; i++) /* what libcurl would add of its own */
        curl_slist_append(list, i ? "Accept:" : "Expect:");
    call->job.headers = list;
    ckpt_text_free(&auth);
    return rc;
}

static void set_up(struct ckpt_s3_call *call, CURL *curl)
{
    curl_easy_setopt(curl, CURLOPT_URL, call->url);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, call->job.headers);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, call);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_line);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, call);
    if (!strcmp(call->method, "HEAD")) {
        curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
    } else if (call->body || !strcmp(call->method, "POST") || !strcmp(call->method, "PUT")) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, call->body ? call->body : "");
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->body_nbytes);
        curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, call->method);
    } else {
        curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, call->method);
    }
}

static int prepare_request(struct ckpt_http_job *job, CURL *curl, struct fsdp_err *err)
{
    struct ckpt_s3_call *call = (struct ckpt_s3_call *)job;
    struct ckpt_s3_creds creds;
    struct ckpt_text path = {0}, query = {0};
    struct ckpt_s3_pair pairs[CKPT_S3_MAX_QUERY];
    struct ckpt_s3_address address;

    call->status = 0;
    call->got_nbytes = 0;
    call->etag[0] = call->id[0] = call->code[0] = call->server_region[0] = 0;
    call->length = 0;
    call->server_time = 0;
    ckpt_text_free(&call->text);
    int rc = ckpt_s3_creds_get(&creds, NULL, err);
    fsdp_free(call->token); /* of the last try */
    call->token = NULL;
    if (rc == FSDP_OK && creds.token[0] && !(call->token = fsdp_strdup(creds.token, err)))
        rc = FSDP_ENOMEM;
    ckpt_s3_bucket_address(&address, call->bucket);
    ckpt_text_printf(&path, "%s", call->bucket->path);
    if (!*call->key && path.nbytes > 1 && !path.failed)
        path.data[--path.nbytes] = 0; /* the bucket itself: "/bucket" */
    ckpt_s3_encode(&path, call->key, true);
    memcpy(pairs, call->query, sizeof pairs);
    ckpt_s3_query(&query, pairs, call->nquery);
    fsdp_free(call->url);
    call->url = NULL;
    if (rc == FSDP_OK && !path.failed && !query.failed)
        call->url = fsdp_sprintf(err, "%s%s%s%s", address.base, path.data, query.nbytes ? "?" : "",
                                 query.nbytes ? query.data : "");
    if (rc == FSDP_OK && !call->url)
        rc = fsdp_err_set(err, FSDP_ENOMEM, "request: out of memory");
    if (rc == FSDP_OK)
        rc = sign(call, &creds, &address, path.data, err);
    if (rc == FSDP_OK)
        set_up(call, curl);
    ckpt_s3_creds_wipe(&creds);
    ckpt_text_free(&path);
    ckpt_text_free(&query);
    return rc;
}

/* ---- what came back -------------------------------------------------------------------------- */

/* A child of the answer's <Error>; false: it has none, or is no XML. */
static bool error_text(char *out, size_t out_nbytes, const struct ckpt_s3_call *call,
                       const char *name)
{
    struct ckpt_s3_xml *xml;
    int at = -1;
    ckpt_s3_xml_parse(&xml, call->text.data, call->text.nbytes, NULL);
    bool found = ckpt_s3_xml_next(&at, xml, "Error");
    out[0] = 0;
    if (found)
        found = ckpt_s3_xml_text(out, out_nbytes, xml, at, name);
    ckpt_s3_xml_free(xml);
    return found;
}

/* What the codes of refusals mean to a user; the others speak for themselves. */
static const struct reason {
    const char *code;
    int status;
    const char *text;
} reasons[] = {
    {"SignatureDoesNotMatch", FSDP_EIO, "the secret key does not belong to the access key"},
    {"InvalidAccessKeyId", FSDP_EIO, "the store does not know the access key"},
    {"InvalidClientTokenId", FSDP_EIO, "the store does not know the access key"},
    {"ExpiredToken", FSDP_EIO, "the session token has expired: get new credentials"},
    {"ExpiredTokenException", FSDP_EIO, "the session token has expired: get new credentials"},
    {"InvalidToken", FSDP_EIO, "the session token is not valid: get new credentials"},
    {"TokenRefreshRequired", FSDP_EIO, "the session token has expired: get new credentials"},
    {"AccessDenied", FSDP_EIO, "access denied: a policy does not allow it"},
    {"NoSuchBucket", FSDP_ENOTFOUND, "there is no such bucket"},
    {"NoSuchKey", FSDP_ENOTFOUND, "there is no such object"},
    {"QuotaExceeded", FSDP_ENOSPC, "the quota is used up"},
    {"RequestTimeTooSkewed", FSDP_EIO, "this machine's clock is wrong"},
    {"PermanentRedirect", FSDP_EIO, "the bucket is in another region: set AWS_REGION"},
    {"AuthorizationHeaderMalformed", FSDP_EIO, "the bucket is in another region: set AWS_REGION"},
    {"EntityTooLarge", FSDP_EINVAL, "too large for this store"},
    {"BadDigest", FSDP_EIO, "it was damaged on the way"},
};

static int status_of(const struct ckpt_s3_call *call)
{
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        if (!strcmp(reasons[i].code, call->code))
            return reasons[i].status;
    switch (call->status) {
    case 404:
        return FSDP_ENOTFOUND;
    case 409:
    case 412:
        return FSDP_EEXIST;
    case 501:
        return FSDP_EUNSUPPORTED;
    case 507:
        return FSDP_ENOSPC;
    default:
        return FSDP_EIO;
    }
}

/* "cannot read 's3://b/k': the secret key does not belong to the access key (AKID, of the
 * environment): SignatureDoesNotMatch, HTTP 403 of http://host" */
static void explain_answer(struct ckpt_s3_call *call, CURLcode code)
{
    struct fsdp_err *err = &call->job.err;
    const char *text = "", *colon = "";
    char message[256] = "", who[400] = "", tries[40] = "", path[1200];
    snprintf(path, sizeof path, "cannot %s 's3://%s/%s'", call->what, call->bucket->name,
             call->about);
    if (call->job.ntries > 1)
        snprintf(tries, sizeof tries, ", %d tries", call->job.ntries);
    if (code) {
        call->job.rc =
            fsdp_err_set(err, FSDP_EIO, "%s: %s (%s%s)", path,
                         call->job.curl_text[0] ? call->job.curl_text : curl_easy_strerror(code),
                         call->bucket->base, tries);
        return;
    }
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        if (!strcmp(reasons[i].code, call->code))
            text = reasons[i].text;
    if (call->status == 403 && !*call->code) /* an answer without a body */
        text = "access denied: a policy does not allow it";
    if (!*text && error_text(message, sizeof message, call, "Message"))
        text = message;
    if (call->status == 403 || call->status == 400 || call->status == 401) {
        struct ckpt_s3_creds creds;
        if (!ckpt_s3_creds_get(&creds, NULL, NULL))
            snprintf(who, sizeof who, " (access key '%s' of %s)", creds.key_id, creds.source);
        ckpt_s3_creds_wipe(&creds);
    }
    colon = *text ? ": " : "";
    call->job.rc =
        fsdp_err_set(err, status_of(call), "%s%s%s%s: %s%sHTTP %ld of %s%s", path, colon, text, who,
                     call->code, *call->code ? ", " : "", call->status, call->bucket->base, tries);
}

/* Two moments of time are too far apart: ours is corrected. A HEAD is refused without a reason, but
 * with the store's time. */
static bool mend_clock(struct ckpt_s3_call *call)
{
    enum { FAR_SECONDS = 300 };
    int64_t now = (int64_t)time(NULL), skew = call->server_time - now;
    int64_t change = skew - call->clock_skew; /* another call may have corrected it meanwhile */
    bool silent = call->status == 403 && !strcmp(call->method, "HEAD") &&
                  (change > FAR_SECONDS || change < -FAR_SECONDS);
    if (!call->server_time || (!silent && strcmp(call->code, "RequestTimeTooSkewed")))
        return false;
    atomic_store(&clock_skew, skew);
    return true;
}

/* The bucket is in another region, which the store names. */
static bool mend_region(struct ckpt_s3_call *call)
{
    char region[64] = "";
    if (call->moved || (call->status != 301 && call->status != 307 && call->status != 400))
        return false;
    snprintf(region, sizeof region, "%s", call->server_region);
    if (!*region && !strcmp(call->code, "AuthorizationHeaderMalformed"))
        error_text(region, sizeof region, call, "Region");
    if (!*region)
        return false;
    call->moved = true;
    return ckpt_s3_bucket_move(call->bucket, region);
}

/* Fresh credentials, where these are of a kind that is given out anew. */
static bool mend_credentials(struct ckpt_s3_call *call)
{
    static const char *const codes[] = {"ExpiredToken", "ExpiredTokenException", "InvalidToken",
                                        "TokenRefreshRequired", "InvalidAccessKeyId"};
    struct ckpt_s3_creds stale, fresh;
    bool refused = !strcmp(call->method, "HEAD") && (call->status == 400 || call->status == 403);
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        refused |= !strcmp(codes[i], call->code);
    if (!refused || call->refreshed || ckpt_s3_creds_get(&stale, NULL, NULL))
        return false;
    call->refreshed = true;
    /* Others may be at hand since this was signed. */
    bool differ = strcmp(stale.token, call->token ? call->token : "");
    if (!differ && stale.expires && !ckpt_s3_creds_get(&fresh, &stale, NULL)) {
        differ = strcmp(stale.key_id, fresh.key_id) || strcmp(stale.token, fresh.token);
        ckpt_s3_creds_wipe(&fresh);
    }
    ckpt_s3_creds_wipe(&stale);
    return differ;
}

static enum ckpt_http_verdict judge_failure(struct ckpt_s3_call *call)
{
    static const char *const passing[] = {"RequestTimeout",           "InternalError",
                                          "ServiceUnavailable",       "ConditionalRequestConflict",
                                          "OperationAborted",         "BadDigest",
                                          "XAmzContentSHA256Mismatch"};
    if (call->status == 429 || !strcmp(call->code, "SlowDown") ||
        !strcmp(call->code, "TooManyRequests") || !strcmp(call->code, "Throttling") ||
        (call->status == 503 && strcmp(call->code, "ServiceUnavailable")))
        return CKPT_HTTP_THROTTLED;
    for (size_t i = 0; i < sizeof passing / sizeof passing[0]; i++)
        if (!strcmp(passing[i], call->code))
            return CKPT_HTTP_AGAIN;
    if (mend_clock(call) || mend_region(call) || mend_credentials(call))
        return CKPT_HTTP_AT_ONCE;
    if (call->status >= 500 && call->status != 501 && call->status != 507)
        return CKPT_HTTP_AGAIN;
    return CKPT_HTTP_DONE;
}

/* An answer cut short, a connection lost, a name that is not resolved now: it may pass. Where
 * nobody ever answered, not for as long. */
static enum ckpt_http_verdict judge_transport(struct ckpt_s3_call *call, CURLcode code)
{
    bool never = code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST;
    if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
        code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL || call->text.failed)
        return CKPT_HTTP_DONE;
    if (never && !atomic_load(&call->bucket->answered) && call->job.ntries >= 4)
        return CKPT_HTTP_DONE;
    return CKPT_HTTP_AGAIN;
}

static enum ckpt_http_verdict judge_answer(struct ckpt_http_job *job, CURL *curl, CURLcode code,
                                           bool last)
{
    struct ckpt_s3_call *call = (struct ckpt_s3_call *)job;
    enum ckpt_http_verdict verdict;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &call->status);
    /* More than was asked for, or less although the connection ended in order. */
    bool wrong = call->dst && !code && call->status / 100 == 2 &&
                 (call->got_nbytes != call->dst_nbytes ||
                  (call->dst_nbytes && call->status != 206 && call->status != 200));
    if (wrong)
        code = CURLE_PARTIAL_FILE;
    bool good = !code && call->status / 100 == 2;
    if (!code) {
        atomic_store(&call->bucket->answered, true);
        if (call->text.nbytes && (!good || call->may_fail_inside) &&
            error_text(call->code, sizeof call->code, call, "Code"))
            good = false;
    }
    call->job.rc = FSDP_OK;
    if (good)
        return CKPT_HTTP_DONE;
    verdict = code ? judge_transport(call, code) : judge_failure(call);
    if (!code && call->status == 200 && verdict == CKPT_HTTP_DONE)
        verdict = CKPT_HTTP_AGAIN; /* an error inside */
    if (last || verdict == CKPT_HTTP_DONE)
        explain_answer(call, code);
    return verdict;
}

/* ---- running --------------------------------------------------------------------------------- */

static pthread_mutex_t wait_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wait_cond = PTHREAD_COND_INITIALIZER;

static void done(struct ckpt_http_job *job)
{
    struct ckpt_s3_call *call = (struct ckpt_s3_call *)job;
    fsdp_free(call->token);
    fsdp_free(call->url);
    call->token = call->url = NULL;
    if (call->done) {
        call->done(call);
        return;
    }
    pthread_mutex_lock(&wait_lock);
    call->finished = true;
    pthread_cond_broadcast(&wait_cond);
    pthread_mutex_unlock(&wait_lock);
}

static int tries(void)
{
    const char *text = getenv("AWS_MAX_ATTEMPTS");
    int given = text ? atoi(text) : 0;
    return given > 0 && given < 100 ? given : CKPT_S3_TRIES;
}

/* A checksum that the store compares, unless it is told to do without, as other tools are. */
static bool wants_checksum(const struct ckpt_s3_call *call)
{
    const char *text = getenv("AWS_REQUEST_CHECKSUM_CALCULATION");
    return call->body_nbytes && (!text || strcasecmp(text, "when_required"));
}

int ckpt_s3_call_begin(struct ckpt_s3_call *call, struct fsdp_err *err)
{
    static const struct ckpt_http_ops ops = {prepare_request, judge_answer, done};
    call->job.ops = &ops;
    call->job.max_tries = tries();
    call->job.deadline = fsdp_time_now() + CKPT_S3_DEADLINE_SECONDS;
    if (!call->bucket->signs_payload && call->body_nbytes)
        strcpy(call->payload_hash, "UNSIGNED-PAYLOAD");
    else
        FSDP_TRY(ckpt_s3_sha256(call->payload_hash, call->body ? call->body : "", call->body_nbytes,
                                err));
    if (!strcmp(call->method, "PUT")) /* else libcurl would call it a form */
        ckpt_s3_call_header(call, "content-type", "application/octet-stream");
    if (wants_checksum(call)) {
        uint32_t crc = ckpt_crc32c(0, call->body, call->body_nbytes);
        const unsigned char bytes[] = {(unsigned char)(crc >> 24), (unsigned char)(crc >> 16),
                                       (unsigned char)(crc >> 8), (unsigned char)crc};
        EVP_EncodeBlock((unsigned char *)call->checksum, bytes, sizeof bytes);
        ckpt_s3_call_header(call, "x-amz-checksum-crc32c", call->checksum);
        ckpt_s3_call_header(call, "x-amz-sdk-checksum-algorithm", "CRC32C");
    }
    return ckpt_http_submit(&call->job, err);
}

int ckpt_s3_call_run(struct ckpt_s3_call *const *calls, int ncalls, struct fsdp_err *err)
{
    int rc = FSDP_OK;
    for (int i = 0; i < ncalls; i++) {
        int rc_begin = ckpt_s3_call_begin(calls[i], &calls[i]->job.err);
        if (rc_begin) {
            calls[i]->job.rc = rc_begin;
            calls[i]->finished = true;
        }
    }
    pthread_mutex_lock(&wait_lock);
    for (int i = 0; i < ncalls; i++)
        while (!calls[i]->finished)
            pthread_cond_wait(&wait_cond, &wait_lock);
    pthread_mutex_unlock(&wait_lock);
    for (int i = 0; i < ncalls && rc == FSDP_OK; i++)
        if (calls[i]->job.rc)
            rc = fsdp_err_set(err, calls[i]->job.rc, "%s", calls[i]->job.err.text);
    return rc;
}

int ckpt_s3_call_one(struct ckpt_s3_call *call, struct fsdp_err *err)
{
    return ckpt_s3_call_run(&call, 1, err);
}

int ckpt_s3_call_xml(struct ckpt_s3_xml **out, struct ckpt_s3_call *call, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    *out = NULL;
    int rc = ckpt_s3_call_one(call, err);
    if (rc == FSDP_OK && (rc = ckpt_s3_xml_parse(out, call->text.data, call->text.nbytes, &why)))
        fsdp_err_set(err, rc, "cannot %s 's3://%s/%s': the answer of %s is not S3's XML: %s",
                     call->what, call->bucket->name, call->about, call->bucket->base, why.text);
    ckpt_text_free(&call->text);
    return rc;
}
