/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "belongs.h"
#include "card.h"
#include "format/hf/hf_names.h"
#include "format/torch/torch_write.h"
#include "util/limits.h"
#include "layout/contents.h"
#include "source/source.h"
#include "tree.h"
#include "format/native/native.h"

/* ---- names of leftovers ---------------------------------------------------------------------- */

static bool is_hex(const char *text, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        if (!isxdigit((unsigned char)text[i]))
            return false;
    return true;
}

bool ckpt_name_is_uuid(const char *text)
{
    if (strlen(text) != 36)
        return false;
    for (int i = 0; i < 36; i++)
        if (i == 8 || i == 13 || i == 18 || i == 23 ? text[i] != '-'
                                                    : !isxdigit((unsigned char)text[i]))
            return false;
    return true;
}

enum ckpt_leftover ckpt_leftover_of(size_t *name_nbytes, const char *entry)
{
    size_t len = strlen(entry), behind = 0;
    *name_nbytes = 0;
    if (!strncmp(entry, ".check-", 7) && ckpt_name_is_uuid(entry + 7))
        return CKPT_LEFTOVER_PROBE;
    if (len > 41 && ckpt_name_is_uuid(entry + len - 36))
        behind = 36;
    else if (len > 21 && is_hex(entry + len - 16, 16))
        behind = 16;
    const char *mark = entry + len - behind - 5;
    if (!behind || (strncmp(mark, ".tmp.", 5) && strncmp(mark, ".del.", 5)))
        return CKPT_LEFTOVER_NONE;
    *name_nbytes = (size_t)(mark - entry);
    return mark[1] == 't' ? CKPT_LEFTOVER_TEMP : CKPT_LEFTOVER_DEL;
}

/* The temporary file of a small text (ckpt/store/notes.c) ends in the hash of the text's own name,
 * before which another's may stand: M.jsonl.status.json. */
static bool is_note(const char *entry, size_t name_nbytes)
{
    const char *end = entry + name_nbytes, *digits = end + sizeof ".tmp." - 1, *dot;

    for (const char *at = entry; at < end; at = dot ? dot + 1 : end) {
        char hash[17];
        const size_t nbytes = (size_t)(end - at);
        dot = memchr(at, '.', nbytes);
        snprintf(hash, sizeof hash, "%016llx",
                 (unsigned long long)fsdp_hash(FSDP_HASH_SEED, at, nbytes));
        if (!strcmp(hash, digits))
            return true;
    }
    return false;
}

/* All else that has such a name is a folder. */
static bool may_be_file(const char *entry)
{
    size_t name_nbytes;
    const enum ckpt_leftover leftover = ckpt_leftover_of(&name_nbytes, entry);

    return leftover == CKPT_LEFTOVER_NONE || leftover == CKPT_LEFTOVER_PROBE ||
           (leftover == CKPT_LEFTOVER_TEMP && is_note(entry, name_nbytes));
}

/* ---- names within ---------------------------------------------------------------------------- */

/* '#': digits; '*': any plain name, not a hidden one. A slash at the end: a folder. */
static const struct {
    unsigned places;
    const char *pattern;
} table[] = {
    /* A tool's temporary folder; job, shared, done-N: in an object store. */
    {CKPT_PLACE_TEMP, "journal"},
    {CKPT_PLACE_TEMP, "job"},
    {CKPT_PLACE_TEMP, "shared"},
    {CKPT_PLACE_TEMP, "done-#"},
    {CKPT_PLACE_TEMP, "out/"},
    {CKPT_PLACE_TEMP, "old/"},
    {CKPT_PLACE_TEMP, "out.safetensors"},
    {CKPT_PLACE_NATIVE, CKPT_MANIFEST_NAME},
    {CKPT_PLACE_NATIVE, "model/"},
    {CKPT_PLACE_NATIVE, "model/shard-#-model-#-of-#.safetensors"},
    {CKPT_PLACE_NATIVE, "model/shard-#-model-#-of-#.safetensors.zst"},
    {CKPT_PLACE_NATIVE, "optim/"},
    {CKPT_PLACE_NATIVE, "optim/shard-#-model-#-of-#.safetensors"},
    {CKPT_PLACE_NATIVE, "optim/shard-#-model-#-of-#.safetensors.zst"},
    {CKPT_PLACE_NATIVE, "hf/"},
    {CKPT_PLACE_NATIVE, "hf/*"},
    {CKPT_PLACE_HF, "model.safetensors"},
    {CKPT_PLACE_HF, "model-#-of-#.safetensors"},
    {CKPT_PLACE_HF, "shard-#-model-#-of-#.safetensors"},
    {CKPT_PLACE_HF, CKPT_HF_INDEX_NAME},
    {CKPT_PLACE_HF | CKPT_PLACE_TORCH, CKPT_CARD_NAME},
    {CKPT_PLACE_TORCH, "pytorch_model.bin"},
    {CKPT_PLACE_TORCH, "pytorch_model-#-of-#.bin"},
    {CKPT_PLACE_TORCH, CKPT_TORCH_INDEX_NAME},
    {CKPT_PLACE_DCP, ".metadata"},
    {CKPT_PLACE_DCP, "__#_#.distcp"},
};

static bool fits(const char *path, bool folder, const char *pattern)
{
    for (; *pattern && *pattern != '*'; pattern++) {
        if (*pattern == '#') {
            size_t ndigits = strspn(path, "0123456789");
            if (!ndigits)
                return false;
            path += ndigits;
        } else if (*pattern == '/' && !pattern[1]) {
            return folder && !*path;
        } else if (*path++ != *pattern) {
            return false;
        }
    }
    if (*pattern == '*')
        return !folder && *path && *path != '.' && !strchr(path, '/');
    return !folder && !*path;
}

bool ckpt_belongs_name(const char *path, bool folder, unsigned places)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if ((table[i].places & places) && fits(path, folder, table[i].pattern))
            return true;
    /* Configuration and tokenizer files that go along. */
    return (places & (CKPT_PLACE_HF | CKPT_PLACE_DCP | CKPT_PLACE_TORCH)) && !folder &&
           !strchr(path, '/') && ckpt_hf_is_companion(path);
}

/* ---- a tree ---------------------------------------------------------------------------------- */

/* A folder that a save, a flush or a removal works in; a step; else anything that a tool writes. */
static unsigned places_of(const char *entry)
{
    size_t name_nbytes;
    enum ckpt_leftover leftover = ckpt_leftover_of(&name_nbytes, entry);
    bool has_uuid = ckpt_name_is_uuid(entry) || (leftover && strlen(entry) > 36 &&
                                                 ckpt_name_is_uuid(entry + strlen(entry) - 36));
    if (has_uuid || ckpt_step_of_name(entry) >= 0)
        return CKPT_PLACE_NATIVE;
    return leftover ? CKPT_PLACE_TEMP : CKPT_PLACE_OUTPUT;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int add_path(struct ckpt_belongs_list *list, const char *path, struct fsdp_err *err)
{
    char *copy = fsdp_strdup(path, err);
    if (!copy)
        return FSDP_ENOMEM;
    list->paths[list->npaths++] = copy;
    return FSDP_OK;
}

/* skip: bytes of the paths that name the folder of the tree. */
static int take_manifest(struct ckpt_belongs_list *list, const struct ckpt_manifest *m, size_t skip,
                         struct fsdp_err *err)
{
    size_t npaths = (size_t)m->layout.nfiles + (size_t)m->nextras + 1;
    if (!(list->paths = fsdp_alloc(npaths, sizeof *list->paths, "paths of a manifest", err)))
        return FSDP_ENOMEM;
    for (int i = 0; i < m->layout.nfiles; i++)
        FSDP_TRY(add_path(list, m->layout.files[i].path + skip, err));
    for (int i = 0; i < m->nextras; i++)
        FSDP_TRY(add_path(list, m->extras[i].path + skip, err));
    FSDP_TRY(add_path(list, CKPT_MANIFEST_NAME, err));
    qsort(list->paths, list->npaths, sizeof *list->paths, compare_texts);
    return FSDP_OK;
}

/* A manifest behind a link is another checkpoint's. */
static bool is_plain_file(const struct ckpt_store_ops *ops, const char *folder, const char *below,
                          const char *path)
{
    enum ckpt_store_kind kind;
    char *parent = ckpt_path_join(folder, below, NULL);
    size_t len = parent ? strlen(parent) : 0;
    while (len > 1 && parent[len - 1] == '/')
        parent[--len] = 0;
    bool is = parent && !ckpt_store_kind_at(&kind, ops, parent, NULL) &&
              kind == CKPT_STORE_FOLDER && !ckpt_store_kind_at(&kind, ops, path, NULL) &&
              kind == CKPT_STORE_FILE;
    fsdp_free(parent);
    return is;
}

/* folder: what the manifest is in. attempt: the tree's own name, where the tree is what a manifest
 * above it names (manifest_last.c); else NULL. */
static int load_list(struct ckpt_belongs *out, const struct ckpt_store_ops *ops, const char *folder,
                     const char *attempt, const char *below, struct fsdp_err *err)
{
    struct ckpt_manifest m;
    struct fsdp_err why = FSDP_ERR_INIT;
    char *path = fsdp_sprintf(&why, "%s/%s" CKPT_MANIFEST_NAME, folder, below), *data = NULL;
    size_t nbytes = 0;
    memset(&m, 0, sizeof m);
    if (path && ckpt_store_has_links(ops) && !is_plain_file(ops, folder, below, path)) {
        fsdp_free(path);
        return FSDP_OK;
    }
    int rc = path ? ckpt_store_get(&data, &nbytes, ops, path, CKPT_MAX_MANIFEST_NBYTES, &why)
                  : FSDP_ENOMEM;
    if (rc == FSDP_OK)
        rc = ckpt_manifest_parse(&m, data, nbytes, path, &why);
    size_t skip = rc == FSDP_OK && attempt ? ckpt_attempt_nbytes(&m.layout) : 0;
    bool names_it = !attempt || (skip == strlen(attempt) + 1 &&
                                 !strncmp(m.layout.files[0].path, attempt, skip - 1));
    if (rc == FSDP_OK && names_it) {
        struct ckpt_belongs_list *list = &out->lists[out->nlists++];
        list->below = below;
        rc = take_manifest(list, &m, skip, &why);
    }
    ckpt_manifest_free(&m);
    fsdp_free(data);
    fsdp_free(path);
    if (rc == FSDP_EIO || rc == FSDP_ENOMEM || rc == FSDP_ENOSPC)
        return fsdp_err_pass(err, rc, &why);
    return FSDP_OK;
}

int ckpt_belongs_load(struct ckpt_belongs *out, const struct ckpt_store_ops *ops, const char *path,
                      struct fsdp_err *err)
{
    const char *entry = ckpt_path_base(path);
    *out = (struct ckpt_belongs){.places = places_of(entry), .no_file = !may_be_file(entry)};
    if (!ckpt_store_can_rename(ops) && ckpt_name_is_uuid(entry)) {
        char *parent = ckpt_path_parent(path, err);
        int rc = parent ? load_list(out, ops, parent, entry, "", err) : FSDP_ENOMEM;
        fsdp_free(parent);
        return rc;
    }
    if (out->places != CKPT_PLACE_TEMP)
        return load_list(out, ops, path, NULL, "", err);
    FSDP_TRY(load_list(out, ops, path, NULL, "out/", err));
    return load_list(out, ops, path, NULL, "old/", err);
}

void ckpt_belongs_free(struct ckpt_belongs *belongs)
{
    for (int i = 0; i < belongs->nlists; i++) {
        for (size_t k = 0; k < belongs->lists[i].npaths; k++)
            fsdp_free(belongs->lists[i].paths[k]);
        fsdp_free(belongs->lists[i].paths);
    }
    *belongs = (struct ckpt_belongs){0};
}

/* Is it listed, or a folder of what is listed? */
static bool is_listed(const struct ckpt_belongs_list *list, const char *path, bool folder)
{
    size_t low = 0, high = list->npaths, len = strlen(path);
    while (low < high) { /* the first path that is not before this one */
        size_t mid = low + (high - low) / 2;
        if (strcmp(list->paths[mid], path) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    if (low < list->npaths && !strcmp(list->paths[low], path))
        return !folder;
    for (; folder && low < list->npaths && !strncmp(list->paths[low], path, len); low++)
        if (list->paths[low][len] == '/')
            return true;
    /* A save makes these for a kind of which there is nothing, too. */
    return folder && !strchr(path, '/') && ckpt_belongs_name(path, true, CKPT_PLACE_NATIVE);
}

static bool belongs_to(const struct ckpt_belongs *b, const char *path, bool folder)
{
    unsigned places = b->places;
    for (int i = 0; i < b->nlists; i++) {
        size_t len = strlen(b->lists[i].below);
        if (!strncmp(path, b->lists[i].below, len))
            return is_listed(&b->lists[i], path + len, folder);
    }
    if (places == CKPT_PLACE_TEMP && (!strncmp(path, "out/", 4) || !strncmp(path, "old/", 4))) {
        places = CKPT_PLACE_OUTPUT;
        path += 4;
    }
    return ckpt_belongs_name(path, folder, places);
}

bool ckpt_belongs(const void *ctx, const struct ckpt_store_item *item)
{
    const struct ckpt_belongs *b = ctx;
    if (item->kind == CKPT_STORE_OTHER)
        return false;
    if (!*item->path || !strcmp(item->path, "/")) /* its owner named it */
        return item->kind != CKPT_STORE_FILE || !b->no_file;
    if (item->kind != CKPT_STORE_LINK)
        return belongs_to(b, item->path, item->kind == CKPT_STORE_FOLDER);
    /* In the place of a file or a folder of ours: nothing is lost with the link. */
    return belongs_to(b, item->path, false) || belongs_to(b, item->path, true);
}
