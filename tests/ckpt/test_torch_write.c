/* SPDX-License-Identifier: Apache-2.0 */
/* The archive around storages of torch.save, of a size that no test would write: its parts are
 * kept, the storages are thought to be zeros, and the reader of zip archives finds every file where
 * it should be. */
#include <stdlib.h>
#include <string.h>

#include "../../ckpt/format/archive/zip.h"
#include "../../ckpt/format/torch/torch_write.h"
#include "../../ckpt/util/crc.h"
#include "tap.h"

enum { MAX_PARTS = 16 };

/* An archive: parts of it; all else is 0. */
struct sparse {
    int nparts;
    struct {
        char *data;
        uint64_t pos;
        size_t nbytes;
    } parts[MAX_PARTS];
    uint64_t nbytes;
};

static int sparse_pread(void *ctx, void *dst, size_t nbytes, uint64_t pos, struct fsdp_err *err)
{
    const struct sparse *s = ctx;
    (void)err;
    memset(dst, 0, nbytes);
    for (int i = 0; i < s->nparts; i++)
        for (size_t k = 0; k < nbytes; k++)
            if (pos + k >= s->parts[i].pos && pos + k - s->parts[i].pos < s->parts[i].nbytes)
                ((char *)dst)[k] = s->parts[i].data[pos + k - s->parts[i].pos];
    return FSDP_OK;
}

static bool add_part(struct sparse *s, uint64_t pos, int rc)
{
    s->parts[s->nparts].pos = pos;
    return rc == FSDP_OK && s->nparts++ < MAX_PARTS;
}

/* The file with all its parts, in order. */
static bool make(struct sparse *s, struct ckpt_torch_file *file, struct fsdp_err *err)
{
    *s = (struct sparse){.nparts = 0};
    if (ckpt_torch_file_place(file, err))
        return false;
    for (size_t i = 0; i < file->nstorages; i++)
        file->storages[i].crc32 = (uint32_t)(1000 + i);
    bool good =
        add_part(s, 0, ckpt_torch_file_head(&s->parts[0].data, &s->parts[0].nbytes, file, err));
    for (size_t i = 0; good && i < file->nstorages; i++)
        if (file->storages[i].nbytes)
            good = add_part(s, file->storages[i].pos + file->storages[i].nbytes,
                            ckpt_torch_file_gap(&s->parts[s->nparts].data,
                                                &s->parts[s->nparts].nbytes, file, i, err));
    s->nbytes = file->nbytes;
    return good;
}

static void sparse_free(struct sparse *s)
{
    for (int i = 0; i < s->nparts; i++)
        fsdp_free(s->parts[i].data);
}

/* The parts and the storages tile the file. */
static bool tiles(const struct sparse *s, const struct ckpt_torch_file *file)
{
    uint64_t pos = 0;
    size_t storage = 0;
    for (int i = 0; i < s->nparts; i++) {
        if (s->parts[i].pos != pos)
            return false;
        pos += s->parts[i].nbytes;
        while (storage < file->nstorages && !file->storages[storage].nbytes)
            storage++;
        if (storage < file->nstorages) {
            if (file->storages[storage].pos != pos)
                return false;
            pos += file->storages[storage++].nbytes;
        }
    }
    return pos == s->nbytes && storage == file->nstorages;
}

static bool finds(const struct ckpt_zip *zip, const struct ckpt_torch_file *file, size_t storage,
                  struct fsdp_err *err)
{
    const struct ckpt_zip_entry *entry;
    const struct ckpt_torch_storage *s = &file->storages[storage];
    char name[40];
    uint64_t pos = 0;
    snprintf(name, sizeof name, "archive/data/%zu", storage);
    return !ckpt_zip_find(&entry, zip, name, err) && entry && entry->nbytes == s->nbytes &&
           entry->crc32 == s->crc32 && !ckpt_zip_locate(&pos, zip, entry, err) && pos == s->pos &&
           pos % 64 == 0;
}

static void test_sizes(const char *what, const uint64_t *nbytes, size_t nstorages)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt_torch_storage storages[8] = {{0}};
    struct ckpt_torch_entry entries[8];
    struct fsdp_tensor tensors[8];
    struct ckpt_torch_file file = {
        .nentries = nstorages, .nstorages = nstorages, .entries = entries, .storages = storages};
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    struct sparse sparse;
    struct ckpt_zip zip;
    bool found = true;
    for (size_t i = 0; i < nstorages; i++) {
        tensors[i] =
            (struct fsdp_tensor){.dtype = FSDP_U8, .ndim = 1, .name = "t", .shape = {nbytes[i]}};
        storages[i].nbytes = nbytes[i];
        entries[i] = (struct ckpt_torch_entry){names[i], &tensors[i], i};
    }
    ok(make(&sparse, &file, &err), "%s: all parts are made %s", what, err.text);
    ok(tiles(&sparse, &file), "%s: they leave neither hole nor overlap", what);
    const int rc = ckpt_zip_open(&zip, sparse_pread, &sparse, sparse.nbytes, "it", &err);
    ok(rc == FSDP_OK && zip.nentries == 6 + nstorages, "%s: the directory is read %s", what,
       err.text);
    for (size_t i = 0; rc == FSDP_OK && i < nstorages; i++)
        found = finds(&zip, &file, i, &err) && found;
    ok(rc == FSDP_OK && found, "%s: each storage is where it should be %s", what, err.text);
    if (rc == FSDP_OK)
        ckpt_zip_close(&zip);
    sparse_free(&sparse);
}

int main(void)
{
    static const uint64_t small[] = {4, 64, 1, 100}, empty[] = {0, 0}, holes[] = {0, 8, 0, 0, 9, 0};
    static const uint64_t large[] = {UINT64_C(5) << 30, 7, UINT64_C(6) << 30, 0, 70};
    static const uint64_t edge[] = {UINT64_C(0xffffffff), 3, 3};
    static const uint64_t below[] = {UINT64_C(0xfffffffe), 0, 1};
    static const uint64_t far[] = {UINT64_C(0xffff0000), 60000, 60000, 5};
    test_sizes("small storages", small, 4);
    test_sizes("none with bytes", empty, 2);
    test_sizes("empty ones between", holes, 6);
    test_sizes("of 5 and 6 GiB", large, 5);
    test_sizes("of 4 GiB less one", edge, 3);
    test_sizes("of 4 GiB less two", below, 3);
    test_sizes("small ones beyond 4 GiB", far, 4);
    test_sizes("without tensors", small, 0);
    return tap_done();
}
