/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "entries.h"
#include "format/archive/view.h"
#include "util/limits.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)

enum {
    MOST_DEPTH = 24, /* of keys */
    NAME_NBYTES = 4 * CKPT_MAX_NAME_NBYTES,
};

struct walk {
    struct ckpt_entries *out;
    int source;
    const char *what;
    int depth;
    struct ckpt_pk *keys[MOST_DEPTH];
    size_t nvalues,
        most; /* looked at: values may be shared, so that a small file is a large tree */
    char name[NAME_NBYTES];
};

static int entry_add(struct walk *w, const struct ckpt_pk *value, bool is_tensor,
                     struct fsdp_err *err)
{
    struct ckpt_entries *out = w->out;
    const size_t nkeys = (size_t)w->depth, nbytes = strlen(w->name) + 1;

    if (out->count == CKPT_MAX_TENSORS)
        return BAD("%s holds more than %d values", w->what, CKPT_MAX_TENSORS);
    struct ckpt_entry *items = fsdp_alloc_grow(out->items, out->count, &out->max, sizeof *items,
                                               "entries of a state dict", err);
    if (!items)
        return FSDP_ENOMEM;
    out->items = items;
    char *name = ckpt_pool_text(&out->names, nbytes, err);
    struct ckpt_pk *path = fsdp_alloc(1, sizeof *path + nkeys * sizeof path, "keys", err);
    if (!name || !path) {
        fsdp_free(path);
        return FSDP_ENOMEM;
    }
    memcpy(name, w->name, nbytes);
    path->type = CKPT_PK_T_TUPLE;
    path->nitems = (uint32_t)nkeys;
    path->u.items = (struct ckpt_pk **)(path + 1);
    memcpy(path->u.items, w->keys, nkeys * sizeof path);
    items[out->count++] = (struct ckpt_entry){name, path, value, w->source, is_tensor};
    return FSDP_OK;
}

/* Does a list hold a tensor, or a dict that may? Others are values. */
static bool is_nested(struct walk *w, const struct ckpt_pk *list)
{
    bool nested = false;
    for (size_t i = 0; !nested && i < list->nitems; i++) {
        const struct ckpt_pk *item = list->u.items[i];
        nested = ckpt_view_is(item) || item->type == CKPT_PK_T_DICT;
    }
    w->nvalues += list->nitems;
    return nested;
}

static int walk_value(struct walk *w, const struct ckpt_pk *value, struct fsdp_err *err);

/* A key that no name can be made of: a value is left out, a tensor is missed. */
static int odd_key(const struct walk *w, const struct ckpt_pk *value, struct fsdp_err *err)
{
    if (ckpt_view_is(value))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "%s: the key of a tensor in '%.200s' is neither a text nor an integer",
                            w->what, w->name);
    fsdp_log(FSDP_LOG_WARN,
             "%s: a value in '%.200s' is left out: its key is neither a text nor an "
             "integer",
             w->what, w->name);
    return FSDP_OK;
}

static int walk_item(struct walk *w, struct ckpt_pk *key, const struct ckpt_pk *value,
                     struct fsdp_err *err)
{
    const size_t before = strlen(w->name), room = sizeof w->name - before;
    const char *dot = before ? "." : "";
    int nbytes;

    if (key->type == CKPT_PK_T_TEXT && !memchr(key->u.text, 0, key->nitems) &&
        key->nitems < sizeof w->name)
        nbytes = snprintf(w->name + before, room, "%s%.*s", dot, (int)key->nitems, key->u.text);
    else if (key->type == CKPT_PK_T_INT)
        nbytes = snprintf(w->name + before, room, "%s%lld", dot, (long long)key->u.integer);
    else
        return odd_key(w, value, err);
    if (nbytes >= (int)room || w->depth == MOST_DEPTH)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s: '%.200s' is nested too deep", w->what,
                            w->name);
    w->keys[w->depth++] = key;
    FSDP_TRY(walk_value(w, value, err));
    w->depth--;
    w->name[before] = 0;
    return FSDP_OK;
}

static int walk_list(struct walk *w, const struct ckpt_pk *list, struct fsdp_err *err)
{
    for (size_t i = 0; i < list->nitems; i++) {
        struct ckpt_pk *key = (void *)ckpt_pool_text(&w->out->numbers, sizeof *key, err);
        if (!key)
            return FSDP_ENOMEM;
        *key = (struct ckpt_pk){.type = CKPT_PK_T_INT, .u.integer = (int64_t)i};
        FSDP_TRY(walk_item(w, key, list->u.items[i], err));
    }
    return FSDP_OK;
}

static int walk_value(struct walk *w, const struct ckpt_pk *value, struct fsdp_err *err)
{
    if (++w->nvalues > w->most)
        return BAD("%s: its values repeat too often", w->what);
    if (ckpt_view_is(value))
        return entry_add(w, value, true, err);
    if (value->type == CKPT_PK_T_DICT) {
        for (size_t i = 0; i + 1 < value->nitems; i += 2)
            FSDP_TRY(walk_item(w, value->u.items[i], value->u.items[i + 1], err));
        return FSDP_OK;
    }
    if (ckpt_pk_is_list(value) && is_nested(w, value))
        return walk_list(w, value, err);
    return entry_add(w, value, false, err);
}

int ckpt_entries_add(struct ckpt_entries *out, const struct ckpt_pickle *pickle, int source,
                     const char *alone, const char *what, struct fsdp_err *err)
{
    const struct ckpt_pk *root = pickle->root;
    struct walk *w = fsdp_alloc(1, sizeof *w, "walk", err);
    if (!w)
        return FSDP_ENOMEM;
    w->most = 1024 + 4 * pickle->nbytes; /* a value takes a byte at least */
    w->out = out;
    w->source = source;
    w->what = what;
    int rc = FSDP_OK;
    if (ckpt_view_is(root))
        snprintf(w->name, sizeof w->name, "%s", alone);
    else if (root->type != CKPT_PK_T_DICT)
        rc = fsdp_err_set(err, FSDP_EUNSUPPORTED,
                          "%s holds neither a state dict nor a tensor; save model.state_dict()",
                          what);
    if (rc == FSDP_OK)
        rc = walk_value(w, root, err);
    fsdp_free(w);
    return rc;
}

void ckpt_entries_free(struct ckpt_entries *entries)
{
    for (size_t i = 0; i < entries->count; i++)
        fsdp_free(entries->items[i].path);
    fsdp_free(entries->items);
    ckpt_pool_free(&entries->names);
    ckpt_pool_free(&entries->numbers);
    *entries = (struct ckpt_entries){0};
}
