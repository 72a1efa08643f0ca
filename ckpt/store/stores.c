/* SPDX-License-Identifier: Apache-2.0 */
/* The stores, by scheme. A new one is a row. */
#include <string.h>

#include "ckpt/ckpt.h"
#include "store.h"

#if HAVE_CURL
#define S3 &ckpt_store_s3
#else
#define S3 NULL
#endif

/* SCHEME://PLACE/... */
static const struct store_row {
    const char *scheme, *place, *noun;
    const struct ckpt_store_ops *ops; /* NULL: not in this build, for want of `needs` */
    const char *needs, *setting;
} stores[] = {
    {"s3", "BUCKET", "bucket", S3, "libcurl", "WITH_CURL=1"},
};

static int store_of_row(const struct ckpt_store_ops **out, const struct store_row *row,
                        const char *path, struct fsdp_err *err)
{
    const char *rest = path + strlen(row->scheme) + 1;

    if (strncmp(rest, "//", 2))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "'%s' is not an address; write %s://%s/PREFIX, or './%s' for a file",
                            path, row->scheme, row->place, path);
    if (!rest[2] || rest[2] == '/')
        return fsdp_err_set(err, FSDP_EINVAL, "'%s' names no %s; write %s://%s/PREFIX", path,
                            row->noun, row->scheme, row->place);
    if (!row->ops)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "'%s': this build has no store for %s://, because it was made without "
                            "%s (%s)",
                            path, row->scheme, row->needs, row->setting);
    *out = row->ops;
    return FSDP_OK;
}

#if !HAVE_CURL
int ckpt_post(const char *url, const char *json, bool (*stop)(void), struct fsdp_err *err)
{
    (void)url;
    (void)json;
    (void)stop;
    return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                        "this build sends nothing by HTTP, because it was made without libcurl "
                        "(WITH_CURL=1)");
}
#endif

int ckpt_store_of(const struct ckpt_store_ops **out, const char *path, struct fsdp_err *err)
{
    const char *scheme = strstr(path, "://");

    for (size_t i = 0; i < sizeof stores / sizeof stores[0]; i++) {
        const size_t len = strlen(stores[i].scheme);
        if (!strncmp(path, stores[i].scheme, len) && path[len] == ':')
            return store_of_row(out, &stores[i], path, err);
    }
    if (scheme && scheme != path && !memchr(path, '/', (size_t)(scheme - path)))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "'%s': this build has no store for '%.*s://'",
                            path, (int)(scheme - path), path);
    *out = &ckpt_store_posix;
    return FSDP_OK;
}
