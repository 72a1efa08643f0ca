/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <time.h>

#include "belongs.h"
#include "layout/contents.h"
#include "util/text.h"
#include "tree.h"

struct listing {
    struct ckpt_tree *tree;
    ckpt_tree_judge_f *judge;
    const void *ctx;
    int64_t nfs_before;
};

static int add_item(struct ckpt_tree *tree, const struct ckpt_store_item *item,
                    struct fsdp_err *err)
{
    struct ckpt_store_item *items = fsdp_alloc_grow(tree->items, tree->nitems, &tree->max,
                                                    sizeof *items, "list of a tree", err);
    if (!items)
        return FSDP_ENOMEM;
    tree->items = items;
    items[tree->nitems] = *item;
    if (!(items[tree->nitems].path = fsdp_strdup(item->path, err)))
        return FSDP_ENOMEM;
    tree->nitems++;
    return FSDP_OK;
}

static int add_foreign(struct ckpt_tree *tree, const char *path, struct fsdp_err *err)
{
    if (tree->nforeign < CKPT_TREE_FOREIGN_SHOWN &&
        !(tree->foreign[tree->nforeign] = fsdp_strdup(*path ? path : ".", err)))
        return FSDP_ENOMEM;
    tree->nforeign++;
    return FSDP_OK;
}

static int take_item(void *ctx, const struct ckpt_store_item *item, bool *enter,
                     struct fsdp_err *err)
{
    struct listing *l = ctx;
    struct ckpt_tree *tree = l->tree;
    if (!*item->path)
        tree->kind = item->kind;
    tree->nbytes += item->nbytes;
    tree->touched = item->mtime > tree->touched ? item->mtime : tree->touched;
    if (!strncmp(ckpt_path_base(item->path), ".nfs", 4) && item->kind == CKPT_STORE_FILE) {
        if (item->ctime <= l->nfs_before)
            return add_item(tree, item, err);
        tree->nopen++;
        return FSDP_OK;
    }
    *enter = item->kind != CKPT_STORE_MOUNT && l->judge(l->ctx, item);
    return *enter ? add_item(tree, item, err) : add_foreign(tree, item->path, err);
}

/* The length of the path of the folder that holds the object, with a slash at its end. */
static size_t folder_nbytes(const char *path)
{
    return (size_t)(ckpt_path_base(path) - path);
}

/* A killed removal is judged again by the manifest, as far as it came: that goes last in its
 * folder. */
static void move_manifests(struct ckpt_tree *tree)
{
    for (size_t i = 0; i < tree->nitems; i++) {
        const struct ckpt_store_item item = tree->items[i];
        size_t len = folder_nbytes(item.path), last = i;
        if (strcmp(item.path + len, CKPT_MANIFEST_NAME) || item.kind != CKPT_STORE_FILE)
            continue;
        while (last + 1 < tree->nitems && !strncmp(tree->items[last + 1].path, item.path, len))
            last++;
        memmove(&tree->items[i], &tree->items[i + 1], (last - i) * sizeof item);
        tree->items[last] = item;
        if (last != i)
            i--;
        if (last + 1 == tree->nitems)
            return;
    }
}

int ckpt_tree_list(struct ckpt_tree *out, const struct ckpt_store_ops *ops, const char *path,
                   ckpt_tree_judge_f *judge, const void *ctx, int64_t nfs_age_s,
                   struct fsdp_err *err)
{
    struct ckpt_belongs belongs = {0};
    /* An age of 0 takes all: a server's clock, and the file system's own, may be ahead of ours. */
    int64_t nfs_before = nfs_age_s > 0 ? (int64_t)time(NULL) - nfs_age_s : INT64_MAX;
    struct listing l = {.tree = out, .judge = judge, .ctx = ctx, .nfs_before = nfs_before};
    *out = (struct ckpt_tree){.ops = ops};
    if (!(out->path = fsdp_strdup(path, err)))
        return FSDP_ENOMEM;
    int rc = FSDP_OK;
    if (!judge) {
        rc = ckpt_belongs_load(&belongs, ops, path, err);
        l.judge = ckpt_belongs;
        l.ctx = &belongs;
    }
    if (rc == FSDP_OK)
        rc = ckpt_store_walk(ops, path, take_item, &l, err);
    ckpt_belongs_free(&belongs);
    move_manifests(out);
    return rc;
}

void ckpt_tree_free(struct ckpt_tree *tree)
{
    for (size_t i = 0; i < tree->nitems; i++)
        fsdp_free((char *)(uintptr_t)tree->items[i].path);
    for (int i = 0; i < CKPT_TREE_FOREIGN_SHOWN; i++)
        fsdp_free(tree->foreign[i]);
    fsdp_free(tree->items);
    fsdp_free(tree->path);
    *tree = (struct ckpt_tree){0};
}

int ckpt_tree_refuse(const struct ckpt_tree *tree, const char *action, struct fsdp_err *err)
{
    struct ckpt_text text = {0};
    if (!tree->nforeign)
        return FSDP_OK;
    if (tree->kind == CKPT_STORE_MOUNT || tree->kind == CKPT_STORE_OTHER)
        return fsdp_err_set(err, FSDP_EEXIST, "'%s' is not %s: it is a %s", tree->path, action,
                            tree->kind == CKPT_STORE_MOUNT ? "mount point"
                                                           : "pipe, a socket or a device");
    for (uint64_t i = 0; i < tree->nforeign && i < CKPT_TREE_FOREIGN_SHOWN; i++)
        ckpt_text_printf(&text, "%s'%.200s'", i ? ", " : "", tree->foreign[i]);
    if (tree->nforeign > CKPT_TREE_FOREIGN_SHOWN)
        ckpt_text_printf(&text, " and %llu more",
                         (unsigned long long)tree->nforeign - CKPT_TREE_FOREIGN_SHOWN);
    int rc = text.failed
                 ? fsdp_err_set(err, FSDP_ENOMEM, "'%s': out of memory", tree->path)
                 : fsdp_err_set(err, FSDP_EEXIST,
                                "'%s' is not %s: it holds %s, which %s not belong to a "
                                "checkpoint; move %s away first",
                                tree->path, action, text.data, tree->nforeign == 1 ? "does" : "do",
                                tree->nforeign == 1 ? "it" : "them");
    ckpt_text_free(&text);
    return rc;
}

int ckpt_tree_remove(const struct ckpt_tree *tree, const char *path, struct fsdp_err *err)
{
    FSDP_TRY(ckpt_tree_refuse(tree, "removed", err));
    return ckpt_store_remove_items(tree->ops, path, tree->items, tree->nitems, err);
}

int ckpt_store_remove_tree(const struct ckpt_store_ops *ops, const char *path, struct fsdp_err *err)
{
    struct ckpt_tree tree;
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = ckpt_tree_list(&tree, ops, path, NULL, NULL, INT64_MAX / 2, &why);
    if (rc == FSDP_ENOTFOUND && !ckpt_store_has_uploads(ops))
        rc = FSDP_OK;
    else if (rc && rc != FSDP_ENOTFOUND)
        fsdp_err_pass(err, rc, &why);
    else /* there may still be uploads below it */
        rc = ckpt_tree_remove(&tree, path, err);
    ckpt_tree_free(&tree);
    return rc;
}

int ckpt_store_drop_tree(const struct ckpt_store_ops *ops, const char *path)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = ckpt_store_remove_tree(ops, path, &why);
    if (rc)
        fsdp_log(FSDP_LOG_WARN, "what was written is left in '%s': %s", path, why.text);
    return rc;
}
