/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "saved.h"

/* A pickle of protocol 2 that holds the number 0x1950a86a20f9469cfc6c. */
static const unsigned char legacy_magic[] = {0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46,
                                             0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, '.'};
static const unsigned char zip_magic[] = {'P', 'K', 3, 4};

static bool begins(const void *head, size_t nbytes, const void *magic, size_t magic_nbytes)
{
    return nbytes >= magic_nbytes && !memcmp(head, magic, magic_nbytes);
}

bool ckpt_saved_is(const void *head, size_t nbytes)
{
    return begins(head, nbytes, zip_magic, sizeof zip_magic) ||
           begins(head, nbytes, legacy_magic, sizeof legacy_magic);
}

static int open_archive(struct ckpt_saved *out, struct ckpt *ckpt, uint64_t nbytes,
                        ckpt_archive_parse_f *parse, struct fsdp_err *err)
{
    struct ckpt_archive *a = fsdp_alloc(1, sizeof *a, "archive", err);
    if (!a)
        return FSDP_ENOMEM;
    snprintf(a->what, sizeof a->what, "%s", out->what);
    int rc = ckpt_archive_open(a, ckpt, out->file, 0, nbytes, err);
    if (rc) {
        fsdp_free(a);
        return rc;
    }
    out->archive = a;
    return ckpt_archive_pickle(&out->pickle, &out->data, a, CKPT_MAX_METADATA_NBYTES, parse, err);
}

int ckpt_saved_open(struct ckpt_saved *out, struct ckpt *ckpt, int file,
                    ckpt_archive_parse_f *parse, struct fsdp_err *err)
{
    const char *path = ckpt->m.layout.files[file].path;
    unsigned char head[CKPT_SAVED_PROBE_NBYTES];
    uint64_t nbytes = 0;

    *out = (struct ckpt_saved){.file = file};
    char *where = ckpt_path_join(ckpt->folder, path, err);
    out->what = where ? fsdp_sprintf(err, "'%s'", where) : NULL;
    fsdp_free(where);
    int rc = out->what ? ckpt_file_nbytes(&nbytes, ckpt, file, err) : FSDP_ENOMEM;
    const size_t most = nbytes < sizeof head ? (size_t)nbytes : sizeof head;
    if (rc == FSDP_OK)
        rc = ckpt_file_pread(ckpt, file, head, most, 0, err);
    if (rc == FSDP_OK && begins(head, most, zip_magic, sizeof zip_magic))
        rc = open_archive(out, ckpt, nbytes, parse, err);
    else if (rc == FSDP_OK && begins(head, most, legacy_magic, sizeof legacy_magic))
        rc = ckpt_saved_open_legacy(out, ckpt, parse, err);
    else if (rc == FSDP_OK)
        rc = fsdp_err_set(err, FSDP_ECORRUPT, "%s does not begin as a file of torch.save does",
                          out->what);
    if (rc)
        ckpt_saved_close(out);
    return rc;
}

void ckpt_saved_close(struct ckpt_saved *saved)
{
    ckpt_pickle_free(&saved->pickle);
    ckpt_pickle_free(&saved->keys);
    if (saved->archive)
        ckpt_archive_close(saved->archive);
    fsdp_free(saved->archive);
    fsdp_free(saved->legacy);
    fsdp_free(saved->data);
    fsdp_free((void *)(uintptr_t)saved->what);
    *saved = (struct ckpt_saved){0};
}

static int legacy_storage(struct ckpt_storage *out, const struct ckpt_saved *saved,
                          const struct ckpt_view_args *view, struct fsdp_err *err)
{
    size_t low = 0, high = saved->nlegacy;

    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        const struct ckpt_pk *key = saved->legacy[mid].key;
        const size_t least = key->nitems < view->key->nitems ? key->nitems : view->key->nitems;
        int order = memcmp(key->u.text, view->key->u.text, least);
        if (!order)
            order = key->nitems < view->key->nitems ? -1 : key->nitems > view->key->nitems;
        if (!order) {
            *out = saved->legacy[mid].storage;
            if (out->nbytes == view->storage_nbytes)
                return FSDP_OK;
            return fsdp_err_set(err, FSDP_ECORRUPT, "%s: a storage has %llu bytes instead of %llu",
                                saved->what, (unsigned long long)out->nbytes,
                                (unsigned long long)view->storage_nbytes);
        }
        low = order < 0 ? mid + 1 : low;
        high = order < 0 ? high : mid;
    }
    return fsdp_err_set(err, FSDP_ECORRUPT, "%s lacks the storage '%.*s'", saved->what,
                        (int)(view->key->nitems < 60 ? view->key->nitems : 60), view->key->u.text);
}

int ckpt_saved_storage(struct ckpt_storage *out, const struct ckpt_saved *saved,
                       const struct ckpt_view_args *view, struct fsdp_err *err)
{
    const struct ckpt_zip_entry *entry;
    uint64_t pos = 0;

    if (!saved->archive)
        return legacy_storage(out, saved, view, err);
    FSDP_TRY(ckpt_archive_storage(&entry, &pos, saved->archive, view, err));
    *out = (struct ckpt_storage){
        .file = saved->file, .pos = pos, .nbytes = entry->nbytes, .crc32 = entry->crc32};
    return FSDP_OK;
}

int ckpt_saved_prove_dict(const struct ckpt_saved *saved, struct fsdp_err *err)
{
    const struct ckpt_pk *root = saved->pickle.root;

    if (!saved->archive || root->type != CKPT_PK_T_DICT || !root->nitems)
        return fsdp_err_set(err, FSDP_EINVAL, "%s holds no dict of tensors", saved->what);
    for (size_t i = 0; i + 1 < root->nitems; i += 2) {
        const struct ckpt_pk *key = root->u.items[i];
        const bool text = key->type == CKPT_PK_T_TEXT;
        if (!text || !ckpt_view_is(root->u.items[i + 1]))
            return fsdp_err_set(err, FSDP_EINVAL, "%s holds more than tensors: '%.*s'", saved->what,
                                text ? (int)(key->nitems < 60 ? key->nitems : 60) : 1,
                                text ? key->u.text : "?");
    }
    return FSDP_OK;
}
