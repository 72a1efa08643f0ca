/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch.save before 1.6, and with _use_new_zipfile_serialization=False: five pickles (a magic
 * number, the protocol, facts of the system, the value, the keys of the storages), then each
 * storage in the order of the keys: a count of elements and their bytes. There are no checksums.
 */
#include <stdlib.h>
#include <string.h>

#include "saved.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)

enum {
    NPICKLES = 5,
    AT_SYSTEM = 2,
    AT_VALUE = 3,
    AT_KEYS = 4,
    FIRST_NBYTES = 1 << 16, /* of the file, read for the pickles; more where they are longer */
    MOST_DEPTH = 200,
};

/* The element size of each storage: that of the type that the value names it with. */
struct sizes {
    struct ckpt_saved *saved;
    size_t nsteps; /* values may be shared: bounds the walk */
    struct fsdp_err *err;
};

static int compare_keys(const struct ckpt_pk *a, const struct ckpt_pk *b)
{
    const size_t least = a->nitems < b->nitems ? a->nitems : b->nitems;
    const int order = memcmp(a->u.text, b->u.text, least);
    return order ? order : a->nitems < b->nitems ? -1 : a->nitems > b->nitems;
}

static int compare_storages(const void *a, const void *b)
{
    const struct ckpt_saved_storage *x = a, *y = b;
    return compare_keys(x->key, y->key);
}

/* The pickles of the first nbytes of the file. *end: where the storages begin. */
static int pickles_parse(struct ckpt_saved *out, size_t *end, size_t nbytes,
                         ckpt_archive_parse_f *parse, struct fsdp_err *err)
{
    size_t at = 0;

    for (int i = 0; i < NPICKLES; i++) {
        struct ckpt_pickle pickle = {0};
        FSDP_TRY(parse(&pickle, out->data + at, nbytes - at, out->what, err));
        at += pickle.nbytes;
        const struct ckpt_pk *little = ckpt_pk_get(pickle.root, "little_endian");
        const bool big = i == AT_SYSTEM && little && !little->u.integer;
        if (i == AT_VALUE)
            out->pickle = pickle;
        else if (i == AT_KEYS)
            out->keys = pickle;
        else
            ckpt_pickle_free(&pickle);
        if (big)
            return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s: its byte order is not little-endian",
                                out->what);
    }
    *end = at;
    return FSDP_OK;
}

/* Reads as much of the file as the pickles need, which nothing tells. */
static int pickles_read(struct ckpt_saved *out, size_t *end, struct ckpt *ckpt, uint64_t nbytes,
                        ckpt_archive_parse_f *parse, struct fsdp_err *err)
{
    for (size_t most = FIRST_NBYTES;; most *= 4) {
        const size_t n = nbytes < most ? (size_t)nbytes : most;
        struct fsdp_err why = FSDP_ERR_INIT;
        if (!(out->data = fsdp_alloc(n, 1, "pickles", err)))
            return FSDP_ENOMEM;
        FSDP_TRY(ckpt_file_pread(ckpt, out->file, out->data, n, 0, err));
        const int rc = pickles_parse(out, end, n, parse, &why);
        if (rc == FSDP_OK)
            return FSDP_OK;
        if (rc != FSDP_ECORRUPT || n == nbytes || most >= CKPT_MAX_METADATA_NBYTES)
            return fsdp_err_pass(err, rc, &why);
        ckpt_pickle_free(&out->pickle);
        ckpt_pickle_free(&out->keys);
        fsdp_free(out->data);
        out->data = NULL;
    }
}

/* ---- storages -------------------------------------------------------------------------------- */

/* nbytes holds the size of an element until the storages are placed. */
static int note_storage(struct sizes *s, const struct ckpt_pk *id)
{
    struct ckpt_saved *saved = s->saved;
    const struct ckpt_pk *tuple = id->u.items[0], *view = ckpt_pk_item(tuple, 5);
    const struct ckpt_pk_global *type = ckpt_pk_global_of(ckpt_pk_item(tuple, 1));
    struct ckpt_saved_storage wanted = {.key = ckpt_pk_item(tuple, 2)};

    if (view && view->type != CKPT_PK_T_NONE)
        return fsdp_err_set(s->err, FSDP_EUNSUPPORTED,
                            "%s: a storage is a part of another one, as torch wrote before 0.4: "
                            "load the file with torch and save it again",
                            saved->what);
    if (!wanted.key || wanted.key->type != CKPT_PK_T_TEXT || !type || !saved->nlegacy)
        return FSDP_OK; /* the view that needs it says so */
    struct ckpt_saved_storage *found =
        bsearch(&wanted, saved->legacy, saved->nlegacy, sizeof *saved->legacy, compare_storages);
    const bool known = type->role == CKPT_PK_STORAGE && type->dtype != CKPT_PK_NO_DTYPE;
    const size_t elem_nbytes = known ? fsdp_dtype_nbytes((enum fsdp_dtype)type->dtype) : 1;
    if (type->role == CKPT_PK_STORAGE && !known)
        return fsdp_err_set(s->err, FSDP_EUNSUPPORTED, "%s: %s.%s is not supported", saved->what,
                            type->module, type->name);
    if (found && found->storage.nbytes && found->storage.nbytes != elem_nbytes)
        return fsdp_err_set(s->err, FSDP_ECORRUPT, "%s: a storage has two types", saved->what);
    if (found)
        found->storage.nbytes = elem_nbytes;
    return FSDP_OK;
}

static int sizes_find(struct sizes *s, const struct ckpt_pk *value, int depth)
{
    const bool holds =
        ckpt_pk_is_list(value) || value->type == CKPT_PK_T_DICT || value->type == CKPT_PK_T_CALL;

    if (value->type == CKPT_PK_T_PERSID)
        return note_storage(s, value);
    if (!holds)
        return FSDP_OK;
    if (depth > MOST_DEPTH || s->nsteps > (size_t)CKPT_MAX_TENSORS * 16)
        return fsdp_err_set(s->err, FSDP_ECORRUPT, "%s: its values are nested too deep",
                            s->saved->what);
    s->nsteps += value->nitems;
    for (size_t i = 0; i < value->nitems; i++)
        if (value->u.items[i])
            FSDP_TRY(sizes_find(s, value->u.items[i], depth + 1));
    return FSDP_OK;
}

static int storages_place(struct ckpt_saved *out, struct ckpt *ckpt, const struct ckpt_pk *keys,
                          uint64_t pos, uint64_t nbytes, struct fsdp_err *err)
{
    for (size_t i = 0; i < keys->nitems; i++) {
        const struct ckpt_saved_storage wanted = {.key = keys->u.items[i]};
        struct ckpt_saved_storage *found =
            bsearch(&wanted, out->legacy, out->nlegacy, sizeof *out->legacy, compare_storages);
        uint64_t count = 0, elem_nbytes = found->storage.nbytes;
        if (nbytes - pos < sizeof count)
            return BAD("%s is truncated: storage %zu of %u is missing", out->what, i, keys->nitems);
        FSDP_TRY(ckpt_file_pread(ckpt, out->file, &count, sizeof count, pos, err));
        pos += sizeof count;
        if (!elem_nbytes)
            return BAD("%s: storage %zu is of no tensor", out->what, i);
        if (count > (nbytes - pos) / elem_nbytes)
            return BAD("%s is truncated: storage %zu has %llu elements, and the file ends before",
                       out->what, i, (unsigned long long)count);
        found->storage =
            (struct ckpt_storage){.file = out->file, .pos = pos, .nbytes = count * elem_nbytes};
        pos += count * elem_nbytes;
    }
    return FSDP_OK;
}

int ckpt_saved_open_legacy(struct ckpt_saved *out, struct ckpt *ckpt, ckpt_archive_parse_f *parse,
                           struct fsdp_err *err)
{
    struct sizes sizes = {.saved = out, .err = err};
    uint64_t nbytes = 0;
    size_t end = 0;

    FSDP_TRY(ckpt_file_nbytes(&nbytes, ckpt, out->file, err));
    FSDP_TRY(pickles_read(out, &end, ckpt, nbytes, parse, err));
    const struct ckpt_pk *keys = out->keys.root;
    if (!ckpt_pk_is_list(keys))
        return BAD("%s: it does not list its storages", out->what);
    if (!(out->legacy = fsdp_alloc(keys->nitems, sizeof *out->legacy, "storages", err)))
        return FSDP_ENOMEM;
    for (size_t i = 0; i < keys->nitems; i++) {
        if (keys->u.items[i]->type != CKPT_PK_T_TEXT)
            return BAD("%s: the key of a storage is not a text", out->what);
        out->legacy[out->nlegacy++].key = keys->u.items[i];
    }
    if (out->nlegacy)
        qsort(out->legacy, out->nlegacy, sizeof *out->legacy, compare_storages);
    for (size_t i = 1; i < out->nlegacy; i++)
        if (!compare_storages(&out->legacy[i - 1], &out->legacy[i]))
            return BAD("%s: it lists a storage twice", out->what);
    FSDP_TRY(sizes_find(&sizes, out->pickle.root, 0));
    return storages_place(out, ckpt, keys, end, nbytes, err);
}
