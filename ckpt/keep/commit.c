/* SPDX-License-Identifier: Apache-2.0 */
#include "commit.h"

#include "layout/contents.h"
#include "tree.h"

static const struct ckpt_commit_ops *ops_of(const struct ckpt_store_ops *store)
{
    return ckpt_store_can_rename(store) ? &ckpt_commit_rename : &ckpt_commit_manifest_last;
}

int ckpt_commit_begin(struct ckpt_commit *c, struct fsdp_err *err)
{
    c->ops = ops_of(c->store);
    return c->ops->begin(c, err);
}

void ckpt_commit_end(struct ckpt_commit *c)
{
    fsdp_free(c->final);
    fsdp_free(c->temp);
    fsdp_free(c->out);
    fsdp_free(c->replaced);
    *c = (struct ckpt_commit){0};
}

bool ckpt_commit_is_hidden(const struct ckpt_commit *c)
{
    return c->ops->is_hidden(c);
}

int ckpt_commit_is_taken(bool *taken, const struct ckpt_commit *c, struct fsdp_err *err)
{
    return c->ops->is_taken(taken, c, err);
}

char *ckpt_commit_listed(const struct ckpt_commit *c, const char *name, struct fsdp_err *err)
{
    return c->ops->listed(c, name, err);
}

char *ckpt_commit_manifest(const struct ckpt_commit *c, struct fsdp_err *err)
{
    return ckpt_path_join(c->ops->manifest_folder(c), CKPT_MANIFEST_NAME, err);
}

int ckpt_commit_put_manifest(struct ckpt_commit *c, const char *text, size_t nbytes, bool overwrite,
                             struct fsdp_err *err)
{
    char *path = ckpt_commit_manifest(c, err);
    int rc = path ? c->ops->put_manifest(c, path, text, nbytes, overwrite, err) : FSDP_ENOMEM;
    fsdp_free(path);
    return rc;
}

int ckpt_commit_seal(struct ckpt_commit *c, struct fsdp_err *err)
{
    return c->ops->seal(c, err);
}

int ckpt_commit_publish(struct ckpt_commit *c, bool overwrite, struct fsdp_err *err)
{
    return c->ops->publish(c, overwrite, err);
}

int ckpt_commit_is_there(bool *is, const struct ckpt_commit *c, struct fsdp_err *err)
{
    return c->ops->is_there(is, c, err);
}

void ckpt_commit_discard(struct ckpt_commit *c)
{
    if (c->ops->retract(c))
        ckpt_store_drop_tree(c->store, c->out);
}

int ckpt_commit_unpublish(const struct ckpt_store_ops *store, const char *folder,
                          struct fsdp_err *err)
{
    return ops_of(store)->unpublish(store, folder, err);
}

int ckpt_commit_leftovers(struct ckpt_names *out, const struct ckpt_store_ops *store,
                          const char *folder, struct fsdp_err *err)
{
    *out = (struct ckpt_names){0};
    return ops_of(store)->leftovers(out, store, folder, err);
}
