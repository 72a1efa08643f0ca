/* SPDX-License-Identifier: Apache-2.0 */
/* A text to an address of HTTP, once. The rest of an address may be a secret: errors name its host.
 */
#include <string.h>

#include "ckpt/ckpt.h"
#include "http.h"

enum { POST_SECONDS = 60, HOST_NBYTES = 300 };

/* "https://example.org" */
static void host_of(char out[HOST_NBYTES], const char *url)
{
    const char *host = strstr(url, "://") + 3;
    const size_t len = strcspn(host, "/?#");
    const char *user = memchr(host, '@', len);
    const char *from = user ? user + 1 : host;

    snprintf(out, HOST_NBYTES, "%.*s%.*s", (int)(host - url), url, (int)(host + len - from), from);
}

static size_t drop(char *data, size_t size, size_t n, void *ctx)
{
    (void)data;
    (void)ctx;
    return size * n;
}

static int asks_stop(void *ctx, curl_off_t all, curl_off_t now, curl_off_t up_all, curl_off_t up)
{
    bool (*const *stop)(void) = ctx;
    (void)all;
    (void)now;
    (void)up_all;
    (void)up;
    return *stop && (*stop)();
}

static int send_text(CURL *curl, const char *host, const char *why, struct fsdp_err *err)
{
    const CURLcode code = curl_easy_perform(curl);
    long status = 0;

    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    if (code == CURLE_ABORTED_BY_CALLBACK)
        return fsdp_err_set(err, FSDP_ECANCELED, "stopped while %s was told", host);
    if (code)
        return fsdp_err_set(err, FSDP_EIO, "%s: %s", host, *why ? why : curl_easy_strerror(code));
    if (status < 200 || status > 299)
        return fsdp_err_set(err, FSDP_EIO, "%s answers POST with status %ld", host, status);
    return FSDP_OK;
}

int ckpt_post(const char *url, const char *json, bool (*stop)(void), struct fsdp_err *err)
{
    char host[HOST_NBYTES], why[CURL_ERROR_SIZE] = "";
    CURL *curl = curl_easy_init();
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    int rc = curl && headers ? FSDP_OK
                             : fsdp_err_set(err, FSDP_ENOMEM, "a request by HTTP: out of memory");

    if (rc == FSDP_OK) {
        host_of(host, url);
        ckpt_http_defaults(curl, why);
        curl_easy_setopt(curl, CURLOPT_URL, url);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, json);
        curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
        curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, drop);
        curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)POST_SECONDS);
        curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
        curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, asks_stop);
        curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &stop);
        rc = send_text(curl, host, why, err);
    }
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    return rc;
}
