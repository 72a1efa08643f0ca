/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>
#include <strings.h>

#include "format/archive/zip_write.h"
#include "format/pickle/pickle_write.h"
#include "torch_write.h"
#include "util/crc.h"

/* The folder in the archive does not depend on the file's name: a renamed file has the same bytes.
 */
#define FOLDER "archive"

enum { NAME_NBYTES = 32 };

/* The small files: those before the storages, and those behind. */
struct small {
    const char *file, *data;
};
static const struct small before[] = {
    {".format_version", "1"}, {".storage_alignment", "64"}, {"byteorder", "little"}};
enum { NBEFORE = sizeof before / sizeof before[0], NAFTER = 2, NSMALL = 1 + NBEFORE + NAFTER };

bool ckpt_torch_is_file_name(const char *name)
{
    static const char *const ends[] = {".pt", ".pth", ".bin"};
    const char *end = strrchr(name, '.');
    for (size_t i = 0; end && i < sizeof ends / sizeof ends[0]; i++)
        if (!strcasecmp(end, ends[i]))
            return true;
    return false;
}

/* A small file at the end of the text, which lies at `pos`; its member in *out. */
static void small_add(struct ckpt_text *text, struct ckpt_zip_member *out, uint64_t pos,
                      const char *name, const char *data, size_t nbytes)
{
    *out = (struct ckpt_zip_member){.folder = FOLDER,
                                    .file = name,
                                    .pos = pos + text->nbytes,
                                    .nbytes = nbytes,
                                    .crc32 = ckpt_crc32(0, data, nbytes)};
    ckpt_zip_add_local(text, out);
    ckpt_text_add(text, data, nbytes);
}

static struct ckpt_zip_member member_of(const struct ckpt_torch_file *f, size_t storage,
                                        char name[NAME_NBYTES])
{
    const struct ckpt_torch_storage *s = &f->storages[storage];
    snprintf(name, NAME_NBYTES, "data/%zu", storage);
    return (struct ckpt_zip_member){.folder = FOLDER,
                                    .file = name,
                                    .pos = s->header_pos,
                                    .nbytes = s->nbytes,
                                    .crc32 = s->crc32,
                                    .later = true};
}

static int pickle_make(char **out, size_t *out_nbytes, const struct ckpt_torch_file *f,
                       struct fsdp_err *err)
{
    struct ckpt_pkw w;
    char key[NAME_NBYTES];
    ckpt_pkw_begin(&w);
    ckpt_pkw_dict_begin(&w);
    for (size_t i = 0; i < f->nentries; i++) {
        ckpt_pkw_dict_next(&w, i);
        ckpt_pkw_text(&w, f->entries[i].name);
        snprintf(key, sizeof key, "%zu", f->entries[i].storage);
        ckpt_pkw_tensor(&w, f->entries[i].tensor, key);
    }
    ckpt_pkw_dict_end(&w);
    return ckpt_pkw_end(out, out_nbytes, &w, err);
}

/* Without the storages. smalls: [1 + NBEFORE], their members. */
static int head_make(struct ckpt_text *text, struct ckpt_zip_member *smalls,
                     const struct ckpt_torch_file *f, struct fsdp_err *err)
{
    char *pickle;
    size_t nbytes;
    memset(text, 0, sizeof *text);
    FSDP_TRY(pickle_make(&pickle, &nbytes, f, err));
    small_add(text, &smalls[0], 0, "data.pkl", pickle, nbytes);
    fsdp_free(pickle);
    for (size_t i = 0; i < NBEFORE; i++)
        small_add(text, &smalls[1 + i], 0, before[i].file, before[i].data, strlen(before[i].data));
    return FSDP_OK;
}

/* torch identifies the file by it: a hash of the names, and the checksums as one. */
static void identity_make(char out[48], const struct ckpt_torch_file *f)
{
    uint64_t names = FSDP_HASH_SEED, sums = FSDP_HASH_SEED;
    for (size_t i = 0; i < f->nentries; i++)
        names = fsdp_hash(names, f->entries[i].name, strlen(f->entries[i].name) + 1);
    for (size_t i = 0; i < f->nstorages; i++)
        sums = fsdp_hash(sums, &f->storages[i].crc32, sizeof f->storages[i].crc32);
    snprintf(out, 48, "%020" PRIu64 "%020" PRIu64, names, sums);
}

/* Behind the last storage and its descriptor; text lies at `pos`. */
static int end_add(struct ckpt_text *text, const struct ckpt_torch_file *f, uint64_t pos,
                   struct fsdp_err *err)
{
    struct ckpt_zip_member smalls[NSMALL];
    struct ckpt_text head;
    char identity[48], name[NAME_NBYTES];
    FSDP_TRY(head_make(&head, smalls, f, err));
    ckpt_text_free(&head);
    identity_make(identity, f);
    small_add(text, &smalls[1 + NBEFORE], pos, "version", "3\n", 2);
    small_add(text, &smalls[2 + NBEFORE], pos, ".data/serialization_id", identity,
              strlen(identity));
    const size_t begin = text->nbytes;
    for (int i = 0; i < 1 + NBEFORE; i++)
        ckpt_zip_add_central(text, &smalls[i]);
    for (size_t i = 0; i < f->nstorages; i++) {
        const struct ckpt_zip_member m = member_of(f, i, name);
        ckpt_zip_add_central(text, &m);
    }
    for (int i = 1 + NBEFORE; i < NSMALL; i++)
        ckpt_zip_add_central(text, &smalls[i]);
    ckpt_zip_add_end(text, NSMALL + f->nstorages, text->nbytes - begin, pos + begin);
    return FSDP_OK;
}

/* The headers from storage `at` on, up to the bytes of one that has some; *next is that one, or how
 * many there are. */
static void headers_add(struct ckpt_text *text, size_t *next, const struct ckpt_torch_file *f,
                        size_t at)
{
    char name[NAME_NBYTES];
    for (; at < f->nstorages; at++) {
        const struct ckpt_zip_member m = member_of(f, at, name);
        ckpt_zip_add_local(text, &m);
        if (m.nbytes)
            break;
    }
    *next = at;
}

static int give(char **out, size_t *out_nbytes, struct ckpt_text *text, int rc,
                struct fsdp_err *err)
{
    if (rc == FSDP_OK && text->failed)
        rc = fsdp_err_set(err, FSDP_ENOMEM, "archive: out of memory");
    if (rc) {
        ckpt_text_free(text);
        return rc;
    }
    *out = text->data;
    *out_nbytes = text->nbytes;
    return FSDP_OK;
}

int ckpt_torch_file_head(char **out, size_t *out_nbytes, const struct ckpt_torch_file *f,
                         struct fsdp_err *err)
{
    struct ckpt_zip_member smalls[NSMALL];
    struct ckpt_text text;
    size_t next = 0;
    int rc = head_make(&text, smalls, f, err);
    if (rc == FSDP_OK) {
        headers_add(&text, &next, f, 0);
        if (next == f->nstorages)
            rc = end_add(&text, f, 0, err);
    }
    return give(out, out_nbytes, &text, rc, err);
}

int ckpt_torch_file_gap(char **out, size_t *out_nbytes, const struct ckpt_torch_file *f,
                        size_t storage, struct fsdp_err *err)
{
    struct ckpt_text text = {0};
    char name[NAME_NBYTES];
    size_t next;
    int rc = FSDP_OK;
    const struct ckpt_zip_member m = member_of(f, storage, name);
    ckpt_zip_add_descriptor(&text, &m);
    headers_add(&text, &next, f, storage + 1);
    if (next == f->nstorages)
        rc = end_add(&text, f, f->storages[storage].pos + m.nbytes, err);
    return give(out, out_nbytes, &text, rc, err);
}

bool ckpt_torch_file_is_last(const struct ckpt_torch_file *f, size_t storage)
{
    while (++storage < f->nstorages)
        if (f->storages[storage].nbytes)
            return false;
    return true;
}

int ckpt_torch_file_place(struct ckpt_torch_file *f, struct fsdp_err *err)
{
    struct ckpt_zip_member smalls[NSMALL];
    struct ckpt_text text;
    char name[NAME_NBYTES], *end;
    size_t last = f->nstorages, nbytes;
    FSDP_TRY(head_make(&text, smalls, f, err));
    uint64_t pos = text.nbytes;
    ckpt_text_free(&text);
    for (size_t i = 0; i < f->nstorages; i++) {
        struct ckpt_torch_storage *s = &f->storages[i];
        s->header_pos = pos;
        s->crc32 = 0;
        const struct ckpt_zip_member m = member_of(f, i, name);
        s->pos = pos + ckpt_zip_local_nbytes(&m);
        pos = s->pos + s->nbytes + ckpt_zip_descriptor_nbytes(&m);
        if (s->nbytes)
            last = i;
    }
    const bool empty = last == f->nstorages;
    FSDP_TRY(empty ? ckpt_torch_file_head(&end, &nbytes, f, err)
                   : ckpt_torch_file_gap(&end, &nbytes, f, last, err));
    fsdp_free(end);
    f->nbytes = nbytes + (empty ? 0 : f->storages[last].pos + f->storages[last].nbytes);
    return FSDP_OK;
}
