/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "archive.h"
#include "util/crc.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)

static int archive_pread(void *ctx, void *dst, size_t nbytes, uint64_t pos, struct fsdp_err *err)
{
    struct ckpt_archive *a = ctx;
    if (pos + nbytes <= a->nhead)
        memcpy(dst, a->head + pos, nbytes);
    else if (pos >= a->tail_pos)
        memcpy(dst, a->tail + (pos - a->tail_pos), nbytes);
    else
        return ckpt_file_pread(a->ckpt, a->file, dst, nbytes, a->pos + pos, err);
    return FSDP_OK;
}

/* "archive/" of the one file called archive/data.pkl. */
static int prefix_find(struct ckpt_archive *a, struct fsdp_err *err)
{
    static const char end[] = "/data.pkl";
    for (size_t i = 0; i < a->zip.nentries; i++) {
        const struct ckpt_zip_entry *entry = &a->zip.entries[i];
        size_t len = entry->name_nbytes - (sizeof end - 2); /* with the slash */
        if (entry->name_nbytes < sizeof end || len >= sizeof a->prefix - 64 ||
            memcmp(entry->name + len - 1, end, sizeof end - 1) || memchr(entry->name, '/', len - 1))
            continue;
        memcpy(a->prefix, entry->name, len);
        a->prefix[len] = 0;
        return FSDP_OK;
    }
    return BAD("%s is not an archive that torch.save wrote: it has no data.pkl", a->what);
}

int ckpt_archive_find(const struct ckpt_zip_entry **entry, uint64_t *pos,
                      const struct ckpt_archive *a, const char *name, size_t name_nbytes,
                      struct fsdp_err *err)
{
    char path[CKPT_ARCHIVE_NAME_NBYTES];
    int len = snprintf(path, sizeof path, "%s%.*s", a->prefix, (int)name_nbytes, name);
    *entry = NULL;
    if (name_nbytes > 64 || len >= (int)sizeof path)
        return FSDP_OK;
    FSDP_TRY(ckpt_zip_find(entry, &a->zip, path, err));
    return *entry ? ckpt_zip_locate(pos, &a->zip, *entry, err) : FSDP_OK;
}

/* torch.jit.save writes programs, which have their weights in them, as archives of the same kind.
 */
static int refuse_script(struct ckpt_archive *a, struct fsdp_err *err)
{
    const struct ckpt_zip_entry *entry;
    uint64_t pos;
    FSDP_TRY(ckpt_archive_find(&entry, &pos, a, "constants.pkl", 13, err));
    if (!entry)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                        "%s is a program of TorchScript (torch.jit.save), not a state dict; to "
                        "have its weights: torch.save(torch.jit.load(FILE).state_dict(), "
                        "'weights.pt')",
                        a->what);
}

static int refuse_big_endian(struct ckpt_archive *a, struct fsdp_err *err)
{
    const struct ckpt_zip_entry *entry;
    uint64_t pos = 0;
    char order[8] = "";
    FSDP_TRY(ckpt_archive_find(&entry, &pos, a, "byteorder", 9, err));
    if (!entry)
        return FSDP_OK;
    size_t nbytes = entry->nbytes < sizeof order ? (size_t)entry->nbytes : 0;
    FSDP_TRY(archive_pread(a, order, nbytes, pos, err));
    if (strcmp(order, "little"))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s: its byte order is not little-endian",
                            a->what);
    return FSDP_OK;
}

int ckpt_archive_open(struct ckpt_archive *a, struct ckpt *ckpt, int file, uint64_t pos,
                      uint64_t nbytes, struct fsdp_err *err)
{
    const bool small = nbytes <= CKPT_ARCHIVE_SMALL_NBYTES;

    a->ckpt = ckpt;
    a->file = file;
    a->pos = pos;
    a->nbytes = nbytes;
    memset(&a->zip, 0, sizeof a->zip);
    a->nhead = small ? (size_t)nbytes : CKPT_ARCHIVE_EDGE_NBYTES;
    a->ntail = small ? 0 : CKPT_ARCHIVE_EDGE_NBYTES;
    a->tail_pos = nbytes - a->ntail;
    FSDP_TRY(ckpt_file_pread(ckpt, file, a->head, a->nhead, pos, err));
    if (a->ntail)
        FSDP_TRY(ckpt_file_pread(ckpt, file, a->tail, a->ntail, pos + a->tail_pos, err));
    FSDP_TRY(ckpt_zip_open(&a->zip, archive_pread, a, nbytes, a->what, err));
    int rc = prefix_find(a, err);
    if (rc == FSDP_OK)
        rc = refuse_script(a, err);
    if (rc == FSDP_OK)
        rc = refuse_big_endian(a, err);
    if (rc)
        ckpt_zip_close(&a->zip);
    return rc;
}

void ckpt_archive_close(struct ckpt_archive *a)
{
    ckpt_zip_close(&a->zip);
}

bool ckpt_archive_has_storages(const struct ckpt_archive *a)
{
    const size_t nprefix = strlen(a->prefix);

    for (size_t i = 0; i < a->zip.nentries; i++) {
        const struct ckpt_zip_entry *entry = &a->zip.entries[i];
        if (entry->nbytes && entry->name_nbytes > nprefix + strlen("data/") &&
            !memcmp(entry->name, a->prefix, nprefix) &&
            !memcmp(entry->name + nprefix, "data/", strlen("data/")))
            return true;
    }
    return false;
}

int ckpt_archive_pickle(struct ckpt_pickle *out, char **data, struct ckpt_archive *a, size_t most,
                        ckpt_archive_parse_f *parse, struct fsdp_err *err)
{
    const struct ckpt_zip_entry *entry;
    uint64_t pos = 0;
    *data = NULL;
    FSDP_TRY(ckpt_archive_find(&entry, &pos, a, "data.pkl", 8, err));
    if (!entry || entry->nbytes > most)
        return BAD("%s: its pickle has more than %zu bytes", a->what, most);
    if (!(*data = fsdp_alloc((size_t)entry->nbytes + 1, 1, "pickle", err)))
        return FSDP_ENOMEM;
    int rc = archive_pread(a, *data, (size_t)entry->nbytes, pos, err);
    if (rc == FSDP_OK && entry->crc32 &&
        ckpt_crc32(0, *data, (size_t)entry->nbytes) != entry->crc32)
        rc = BAD("%s: the checksum of its pickle is wrong: damaged", a->what);
    if (rc == FSDP_OK)
        rc = parse(out, *data, (size_t)entry->nbytes, a->what, err);
    if (rc) {
        fsdp_free(*data);
        *data = NULL;
    }
    return rc;
}

int ckpt_archive_storage(const struct ckpt_zip_entry **entry, uint64_t *pos,
                         const struct ckpt_archive *a, const struct ckpt_view_args *view,
                         struct fsdp_err *err)
{
    char name[80];
    const int key = (int)(view->key->nitems < 60 ? view->key->nitems : 60);
    const int len = snprintf(name, sizeof name, "data/%.*s", key, view->key->u.text);

    FSDP_TRY(ckpt_archive_find(entry, pos, a, name, (size_t)len, err));
    if (!*entry)
        return BAD("%s: the archive lacks the tensor's storage '%s'", a->what, name);
    if ((*entry)->nbytes != view->storage_nbytes)
        return BAD("%s: its storage has %llu bytes instead of %llu", a->what,
                   (unsigned long long)(*entry)->nbytes, (unsigned long long)view->storage_nbytes);
    return FSDP_OK;
}
