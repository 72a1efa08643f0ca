/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP in parallel: a few threads, each with a libcurl multi handle and some exchanges under way.
 * One multi handle saturates one processor, one connection some 90 MB/s of a distant store. How
 * many exchanges are under way in all is halved when a store says that it is too much, and grows
 * again by one for so many that went well.
 *
 * An exchange is tried again, after a random pause (full jitter), as long as its owner says
 * so, there are tries left and its deadline has not passed.
 */
#ifndef CKPT_S3_HTTP_H
#define CKPT_S3_HTTP_H

#include <curl/curl.h>
#include <stdatomic.h>

#include "fsdp/base.h"

enum ckpt_http_verdict {
    CKPT_HTTP_DONE,
    CKPT_HTTP_AGAIN,     /* after a pause */
    CKPT_HTTP_AT_ONCE,   /* what was wrong is mended: another region, fresh credentials */
    CKPT_HTTP_THROTTLED, /* after a pause, and less of everything */
};

struct ckpt_http_job;
struct ckpt_http_ops {
    /* Puts the request into the handle, which has all that is common. Called for each try, in a
     * thread of the engine. */
    int (*prepare)(struct ckpt_http_job *job, CURL *curl, struct fsdp_err *err);
    /* What came of a try. On DONE job->rc and job->err are set. `last`: there is no other try, so
     * that anything but DONE must set them, too. */
    enum ckpt_http_verdict (*judge)(struct ckpt_http_job *job, CURL *curl, CURLcode code,
                                    bool last);
    /* It ended. The job may be freed here. */
    void (*done)(struct ckpt_http_job *job);
};

struct ckpt_http_job {
    const struct ckpt_http_ops *ops;
    bool large; /* moves megabytes: of these fewer are under way at once (ckpt_http_large) */
    int max_tries;
    double deadline;             /* fsdp_time_now() after which there is no other try */
    const atomic_bool *given_up; /* NULL, or: no other try once it is set */
    int ntries;
    int rc;
    struct fsdp_err err;
    /* the engine's */
    struct ckpt_http_job *next;
    double not_before;
    CURL *curl;
    char curl_text[CURL_ERROR_SIZE];
    struct curl_slist *headers; /* freed after each try */
};

/* Begins it; job->ops->done is called some time. Starts the engine when first called in a process.
 * FSDP_ENOMEM and the like where no thread can be had: then nothing was begun. */
int ckpt_http_submit(struct ckpt_http_job *job, struct fsdp_err *err);
/* How many large ones may be: where memory bounds what is sent, some of it is to be filled while
 * the rest is on its way. */
void ckpt_http_large(int most);

/* The file with the certificates that a store's is checked against: AWS_CA_BUNDLE's; else NULL
 * where libcurl has its own; else SSL_CERT_FILE's, or the first that exists of `usual` (NULL: where
 * distributions have it). */
const char *ckpt_http_certificates(bool has_own, const char *const *usual);
/* What every exchange has: timeouts, certificates, no signals, no redirects. */
void ckpt_http_defaults(CURL *curl, char *text);
/* Seconds to pause before try number `ntries` + 1. */
double ckpt_http_pause(int ntries);

#endif
