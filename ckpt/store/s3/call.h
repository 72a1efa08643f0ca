/* SPDX-License-Identifier: Apache-2.0 */
/* One call of S3's interface: what is sent, what came back, what it means. */
#ifndef CKPT_S3_CALL_H
#define CKPT_S3_CALL_H

#include <pthread.h>

#include "http.h"
#include "sign.h"
#include "xml.h"

enum { CKPT_S3_MAX_QUERY = 8, CKPT_S3_MAX_HEADERS = 20, CKPT_S3_TRIES = 8 };
#define CKPT_S3_DEADLINE_SECONDS 600

/* Where a bucket is reached. Made when first named, never freed. */
struct ckpt_s3_bucket {
    struct ckpt_s3_bucket *next;
    char *name;
    char *base; /* "https://host:port" */
    char *host; /* as in the header */
    char *path; /* before a key: "/", or "/bucket/" */
    bool tls, signs_payload;
    bool custom;            /* an endpoint that was set: not AWS itself */
    atomic_bool answered;   /* it did once: what fails now may pass */
    atomic_int conditional; /* enum ckpt_s3_conditional */
    pthread_mutex_t lock;   /* base, host, region: they change when it lies in another region */
    char region[64];
    bool moved;
    char *former_base, *former_host; /* somebody may still use them */
};

/* As they are now; borrowed. */
struct ckpt_s3_address {
    const char *base, *host;
    char region[64];
};
void ckpt_s3_bucket_address(struct ckpt_s3_address *out, struct ckpt_s3_bucket *bucket);
/* The store says that the bucket is in another region. Believed once; false: no more. */
bool ckpt_s3_bucket_move(struct ckpt_s3_bucket *bucket, const char *region);

/* Does the store heed If-None-Match? */
enum ckpt_s3_conditional { CKPT_S3_UNTRIED, CKPT_S3_HEEDED, CKPT_S3_IGNORED };

/* "s3://bucket/key" -> bucket and key, which points into path ("" for the bucket itself). */
int ckpt_s3_bucket_of(struct ckpt_s3_bucket **out, const char **key, const char *path,
                      struct fsdp_err *err);

struct ckpt_s3_call {
    struct ckpt_http_job job;
    struct ckpt_s3_bucket *bucket;

    /* What is sent; borrowed until it is done. */
    const char *what;  /* for errors: "read" */
    const char *about; /* for errors: the key, or what a list is of */
    const char *method, *key;
    struct ckpt_s3_pair query[CKPT_S3_MAX_QUERY];
    int nquery;
    struct ckpt_s3_pair headers[CKPT_S3_MAX_HEADERS]; /* names in lower case */
    int nheaders;
    const void *body;
    size_t body_nbytes;
    void *dst; /* a body of exactly dst_nbytes goes there; NULL: into text */
    size_t dst_nbytes;
    bool may_fail_inside; /* a 200 may have an error for a body */

    /* What came. */
    long status;
    struct ckpt_text text; /* the caller frees it */
    size_t got_nbytes;     /* into dst */
    uint64_t length;
    int64_t mtime;
    char etag[128], id[64], code[64]; /* id: our mark; code: S3's name of the error */

    void (*done)(struct ckpt_s3_call *call); /* NULL: somebody waits */
    void *ctx;

    /* its own */
    char payload_hash[CKPT_S3_HASH_NBYTES];
    char date[17], server_region[64];
    char checksum[16];
    int64_t server_time, clock_skew; /* clock_skew: that it was signed with */
    char *token, *url;
    bool refreshed, moved, finished;
};

void ckpt_s3_call_init(struct ckpt_s3_call *call, struct ckpt_s3_bucket *bucket, const char *what,
                       const char *method, const char *key);
void ckpt_s3_call_query(struct ckpt_s3_call *call, const char *name, const char *value);
void ckpt_s3_call_header(struct ckpt_s3_call *call, const char *name, const char *value);
/* Begins it; done is called some time, unless this fails. Thread safe. */
int ckpt_s3_call_begin(struct ckpt_s3_call *call, struct fsdp_err *err);
/* Runs calls side by side and waits for all. A call that failed has its status in job.rc; the first
 * of them is returned. */
int ckpt_s3_call_run(struct ckpt_s3_call *const *calls, int ncalls, struct fsdp_err *err);
int ckpt_s3_call_one(struct ckpt_s3_call *call, struct fsdp_err *err);
/* The same for one whose answer is XML, which takes the place of its text. FSDP_EIO: it is not XML.
 * *out is freed with ckpt_s3_xml_free, after a failure too. */
int ckpt_s3_call_xml(struct ckpt_s3_xml **out, struct ckpt_s3_call *call, struct fsdp_err *err);

#endif
