/* SPDX-License-Identifier: Apache-2.0 */
/* Any file of a store, for readers that have no notion of stores. */
#include <string.h>

#include "ckpt/ckpt.h"
#include "store.h"

/* A handle of the store by another name. */
static struct ckpt_store_file *file_of(struct ckpt_blob *blob)
{
    return (struct ckpt_store_file *)blob;
}

int ckpt_blob_open(struct ckpt_blob **out, uint64_t *nbytes, const char *path, struct fsdp_err *err)
{
    const struct ckpt_store_ops *ops;
    struct ckpt_store_file *file;
    struct ckpt_store_stat st;

    FSDP_TRY(ckpt_store_of(&ops, path, err));
    FSDP_TRY(ckpt_store_open(&file, ops, path, CKPT_STORE_READ, err));
    const int rc = ckpt_store_stat_open(&st, file, err);
    if (rc != FSDP_OK) {
        ckpt_store_close(file, NULL);
        return rc;
    }
    *nbytes = st.nbytes;
    *out = (struct ckpt_blob *)file;
    return FSDP_OK;
}

int ckpt_blob_pread(struct ckpt_blob *blob, void *dst, size_t nbytes, uint64_t offset,
                    struct fsdp_err *err)
{
    return ckpt_store_pread(file_of(blob), dst, nbytes, offset, err);
}

void ckpt_blob_close(struct ckpt_blob *blob)
{
    ckpt_store_close(file_of(blob), NULL);
}

struct each {
    const char *path;
    ckpt_blob_f *fn;
    void *ctx;
};

static int give_file(void *ctx, const struct ckpt_store_item *item, bool *enter,
                     struct fsdp_err *err)
{
    const struct each *each = ctx;
    const size_t len = strlen(each->path);

    (void)enter;
    if (item->kind != CKPT_STORE_FILE)
        return FSDP_OK;
    const char *between = !*item->path || (len && each->path[len - 1] == '/') ? "" : "/";
    char *full = fsdp_sprintf(err, "%s%s%s", each->path, between, item->path);
    const int rc = full ? each->fn(each->ctx, full, err) : FSDP_ENOMEM;
    fsdp_free(full);
    return rc;
}

int ckpt_blob_each(const char *path, ckpt_blob_f *fn, void *ctx, struct fsdp_err *err)
{
    const struct ckpt_store_ops *ops;
    struct each each = {path, fn, ctx};

    FSDP_TRY(ckpt_store_of(&ops, path, err));
    return ckpt_store_walk(ops, path, give_file, &each, err);
}
