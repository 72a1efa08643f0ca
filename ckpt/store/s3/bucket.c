/* SPDX-License-Identifier: Apache-2.0 */
/* From "s3://bucket/key" and the environment to an address. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "call.h"
#include "creds.h"

static pthread_mutex_t buckets_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ckpt_s3_bucket *buckets;

/* The first of the variables that is set, else the profile's setting, else NULL. */
static char *setting(const char *const *variables, const char *name, struct fsdp_err *err)
{
    for (; *variables; variables++) {
        const char *value = getenv(*variables);
        if (value && *value)
            return fsdp_strdup(value, err);
    }
    return ckpt_s3_profile_get(NULL, name, NULL);
}

/* It becomes part of a host's name. */
static bool region_ok(const char *region)
{
    return *region && strspn(region, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                     "0123456789-_") == strlen(region);
}

static int find_region(struct ckpt_s3_bucket *b, struct fsdp_err *err)
{
    static const char *const variables[] = {"AWS_REGION", "AWS_DEFAULT_REGION", NULL};
    char *region = setting(variables, "region", err);
    int nbytes = snprintf(b->region, sizeof b->region, "%s", region ? region : "us-east-1");
    fsdp_free(region);
    if (nbytes >= (int)sizeof b->region || !region_ok(b->region))
        return fsdp_err_set(err, FSDP_EINVAL, "AWS_REGION: '%s' is no region", b->region);
    return FSDP_OK;
}

/* An endpoint: the bucket is part of the path. */
static int use_endpoint(struct ckpt_s3_bucket *b, const char *endpoint, struct fsdp_err *err)
{
    const char *host = strstr(endpoint, "://");
    size_t nbytes = host ? strcspn(host + 3, "/") : 0;
    const char *quote = strchr(endpoint, '@') ? "" : "'"; /* a password may be in it */
    b->tls = !strncmp(endpoint, "https://", 8);
    if (!nbytes || (!b->tls && strncmp(endpoint, "http://", 7)) || strpbrk(host, "@?# "))
        return fsdp_err_set(
            err, FSDP_EINVAL, "AWS_ENDPOINT_URL: %s%s%s is not http://HOST[:PORT] or https://...",
            quote, strchr(endpoint, '@') ? "what it has (with an @)" : endpoint, quote);
    const char *path = host + 3 + nbytes;
    size_t npath = strlen(path);
    while (npath && path[npath - 1] == '/')
        npath--;
    b->custom = true;
    b->base = fsdp_sprintf(err, "%.*s", (int)(host + 3 + nbytes - endpoint), endpoint);
    b->host = fsdp_sprintf(err, "%.*s", (int)nbytes, host + 3);
    b->path = fsdp_sprintf(err, "%.*s/%s/", (int)npath, path, b->name);
    /* A host without its scheme's own port, as the client sends it. */
    const char *own = b->tls ? ":443" : ":80";
    size_t len = b->host ? strlen(b->host) : 0, nown = strlen(own);
    if (len > nown && !strcmp(b->host + len - nown, own))
        b->host[len - nown] = 0;
    return b->base && b->host && b->path ? FSDP_OK : FSDP_ENOMEM;
}

/* Hashing costs a core a second for 1.5 GB on either side: a trusted network may do without. */
static bool signs_payload(const struct ckpt_s3_bucket *b)
{
    char *wanted = ckpt_s3_profile_get(NULL, "s3.payload_signing_enabled", NULL);
    bool signs = wanted ? !strcasecmp(wanted, "true") : !b->tls;
    fsdp_free(wanted);
    return signs;
}

/* AWS: the bucket is part of the host's name, unless a dot in it would break the certificate's. */
static int use_aws(struct ckpt_s3_bucket *b, struct fsdp_err *err)
{
    bool path_style = strchr(b->name, '.') != NULL;
    const char *domain = strncmp(b->region, "cn-", 3) ? "amazonaws.com" : "amazonaws.com.cn";
    b->tls = true;
    b->host = path_style ? fsdp_sprintf(err, "s3.%s.%s", b->region, domain)
                         : fsdp_sprintf(err, "%s.s3.%s.%s", b->name, b->region, domain);
    b->base = b->host ? fsdp_sprintf(err, "https://%s", b->host) : NULL;
    b->path = path_style ? fsdp_sprintf(err, "/%s/", b->name) : fsdp_strdup("/", err);
    return b->base && b->path ? FSDP_OK : FSDP_ENOMEM;
}

void ckpt_s3_bucket_address(struct ckpt_s3_address *out, struct ckpt_s3_bucket *b)
{
    pthread_mutex_lock(&b->lock);
    out->base = b->base;
    out->host = b->host;
    memcpy(out->region, b->region, sizeof out->region);
    pthread_mutex_unlock(&b->lock);
}

static bool move_locked(struct ckpt_s3_bucket *b, const char *region)
{
    struct ckpt_s3_bucket there = {.name = b->name};
    if (b->moved) /* by another call, or in vain */
        return !strcmp(b->region, region);
    b->moved = true;
    snprintf(b->region, sizeof b->region, "%s", region);
    memcpy(there.region, b->region, sizeof there.region);
    if (b->custom)
        return true;
    bool good = use_aws(&there, NULL) == FSDP_OK;
    if (good) {
        b->former_base = b->base;
        b->former_host = b->host;
        b->base = there.base;
        b->host = there.host;
    } else {
        fsdp_free(there.base);
        fsdp_free(there.host);
    }
    fsdp_free(there.path);
    return good;
}

bool ckpt_s3_bucket_move(struct ckpt_s3_bucket *b, const char *region)
{
    pthread_mutex_lock(&b->lock);
    bool useful = region_ok(region) && move_locked(b, region);
    pthread_mutex_unlock(&b->lock);
    return useful;
}

static void bucket_free(struct ckpt_s3_bucket *b)
{
    fsdp_free(b->name);
    fsdp_free(b->base);
    fsdp_free(b->host);
    fsdp_free(b->path);
    fsdp_free(b);
}

static int bucket_create(struct ckpt_s3_bucket **out, const char *name, size_t nbytes,
                         struct fsdp_err *err)
{
    static const char *const variables[] = {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", NULL};
    struct ckpt_s3_bucket *b = fsdp_alloc(1, sizeof *b, "bucket", err);
    int rc = FSDP_ENOMEM;
    if (!b)
        return rc;
    pthread_mutex_init(&b->lock, NULL);
    char *endpoint = setting(variables, "endpoint_url", err);
    if ((b->name = fsdp_sprintf(err, "%.*s", (int)nbytes, name)))
        rc = find_region(b, err);
    if (rc == FSDP_OK)
        rc = endpoint ? use_endpoint(b, endpoint, err) : use_aws(b, err);
    fsdp_free(endpoint);
    b->signs_payload = signs_payload(b);
    if (rc)
        bucket_free(b);
    else
        *out = b;
    return rc;
}

/* What AWS allows: 3 to 63 of lower-case letters, digits, '.', '-'; others are laxer. */
static bool name_ok(const char *name, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", name[i]))
            return false;
    return nbytes >= 3 && nbytes <= 255 && name[0] != '.';
}

int ckpt_s3_bucket_of(struct ckpt_s3_bucket **out, const char **key, const char *path,
                      struct fsdp_err *err)
{
    const char *name = path + strlen("s3://");
    size_t nbytes = strcspn(name, "/");
    int rc = FSDP_OK;
    if (!name_ok(name, nbytes))
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "'%s': '%.*s' is not a name of a bucket: 3 to 63 of a-z, 0-9, '.' and '-'", path,
            (int)(nbytes < 100 ? nbytes : 100), name);
    *key = name + nbytes + (name[nbytes] == '/');
    if (strlen(*key) > 1024)
        return fsdp_err_set(err, FSDP_EINVAL, "'%.200s...': a key has at most 1024 bytes", path);
    pthread_mutex_lock(&buckets_lock);
    struct ckpt_s3_bucket *b = buckets;
    while (b && (strlen(b->name) != nbytes || strncmp(b->name, name, nbytes)))
        b = b->next;
    if (!b && (rc = bucket_create(&b, name, nbytes, err)) == FSDP_OK) {
        b->next = buckets;
        buckets = b;
    }
    pthread_mutex_unlock(&buckets_lock);
    *out = b;
    return rc;
}
