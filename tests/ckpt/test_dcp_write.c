/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is written for torch is read back here. With arguments it only writes, for torch to read:
 *
 *     test_dcp_write SOURCE OUTPUT RANKS
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../ckpt/util/crc.h"
#include "../../ckpt/format/dcp/dcp_write.h"
#include "../../ckpt/store/store.h"
#include "../../ckpt/format/archive/zip.h"
#include "tap.h"

struct bytes {
    char *data;
    size_t nbytes;
};

static int take(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *err)
{
    struct bytes *b = ctx;
    (void)err;
    memcpy(b->data + pos, src, nbytes);
    return FSDP_OK;
}

static struct bytes read_box(struct ckpt *c, const struct fsdp_tensor *t,
                             const struct fsdp_box *box, struct fsdp_err *err)
{
    struct bytes b = {.nbytes = fsdp_box_nelem(box, t->ndim) * fsdp_dtype_nbytes(t->dtype)};
    struct fsdp_slice slice = {.tensor = *t, .box = *box, .nreplica = 1};
    struct fsdp_slice_io io = {.ctx = &b, .write = take};
    b.data = calloc(b.nbytes + 1, 1);
    if (b.nbytes && ckpt_read_slice(c, &slice, &io, err)) {
        diag("%s: %s", t->name, err->text);
        exit(1);
    }
    return b;
}

/* Rows of rank r of W; a scalar is rank 0's. */
static struct fsdp_box part_of(const struct fsdp_tensor *t, int r, int nranks)
{
    struct fsdp_box box = {{0}, {0}};
    memcpy(box.length, t->shape, sizeof box.length);
    if (t->ndim == 0)
        return box;
    uint64_t each = (t->shape[0] + (uint64_t)nranks - 1) / (uint64_t)nranks;
    uint64_t begin = each * (uint64_t)r, end = begin + each;
    begin = begin < t->shape[0] ? begin : t->shape[0];
    end = end < t->shape[0] ? end : t->shape[0];
    box.offset[0] = begin;
    box.length[0] = end - begin;
    return box;
}

static void put(FILE *f, uint64_t pos, const void *data, size_t nbytes)
{
    fseek(f, (long)pos, SEEK_SET);
    fwrite(data, 1, nbytes, f);
}

static int box_write(FILE *f, uint64_t *pos, struct ckpt_dcp_meta *meta, int at, struct ckpt *c,
                     const struct fsdp_tensor *t, const struct fsdp_box *box, const char *file,
                     struct fsdp_err *err)
{
    struct ckpt_dcp_blob blob;
    struct ckpt_dcp_tag tag = ckpt_dcp_tag_of(file, *pos);
    struct bytes b = read_box(c, t, box, err);
    char *head, *tail;
    size_t nhead, ntail;
    uint32_t crc = ckpt_crc32(0, b.data, b.nbytes);
    FSDP_TRY(ckpt_dcp_blob_measure(&blob, t->dtype, box->length, t->ndim, err));
    FSDP_TRY(ckpt_dcp_blob_head(&head, &nhead, &tag, t->dtype, box->length, t->ndim, err));
    FSDP_TRY(ckpt_dcp_blob_tail(&tail, &ntail, &tag, t->dtype, box->length, t->ndim, crc, err));
    if (nhead != blob.head_nbytes || ntail != blob.tail_nbytes || b.nbytes != blob.data_nbytes)
        return fsdp_err_set(err, FSDP_EINTERNAL, "a blob is not as it was measured");
    put(f, *pos, head, nhead);
    put(f, *pos + nhead, b.data, b.nbytes);
    put(f, *pos + nhead + b.nbytes, tail, ntail);
    FSDP_TRY(ckpt_dcp_meta_box(meta, at, box, file, *pos, err));
    *pos = (*pos + blob.nbytes + CKPT_DCP_ALIGN - 1) / CKPT_DCP_ALIGN * CKPT_DCP_ALIGN;
    fsdp_free(head);
    fsdp_free(tail);
    free(b.data);
    return FSDP_OK;
}

/* lost: the rank whose boxes .metadata forgets; -1: none. */
static int write_all(struct ckpt *c, const char *out, int nranks, int lost, struct fsdp_err *err)
{
    struct ckpt_dcp_meta *meta;
    struct ckpt_dcp_train train = {ckpt_step(c), ckpt_state_json(c), true, false};
    char path[2000], *data;
    size_t nbytes;
    int at[1000];

    mkdir(out, 0777);
    FSDP_TRY(ckpt_dcp_meta_create(&meta, err));
    for (int i = 0; i < ckpt_ntensors(c); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(c, i);
        const char *stored = ckpt_format(c) == CKPT_DCP ? t->stored : NULL;
        at[i] = ckpt_dcp_meta_tensor(meta, &t->tensor, t->role, stored, err);
        if (at[i] < 0)
            return at[i];
    }
    for (int r = 0; r < nranks; r++) {
        char name[40];
        uint64_t pos = 0;
        snprintf(name, sizeof name, "__%d_0.distcp", r);
        snprintf(path, sizeof path, "%s/%s", out, name);
        FILE *f = fopen(path, "w");
        for (int i = 0; f && i < ckpt_ntensors(c); i++) {
            const struct fsdp_tensor *t = &ckpt_tensor_at(c, i)->tensor;
            struct fsdp_box box = part_of(t, r, nranks);
            if (r != lost && (r == 0 || t->ndim))
                FSDP_TRY(box_write(f, &pos, meta, at[i], c, t, &box, name, err));
        }
        if (!f || fclose(f))
            return fsdp_err_set(err, FSDP_EIO, "'%s' cannot be written", path);
    }
    for (int i = 0; i < ckpt_naliases(c); i++)
        for (int k = 0; k < ckpt_ntensors(c); k++)
            if (!strcmp(ckpt_tensor_at(c, k)->tensor.name, ckpt_alias_at(c, i).target))
                FSDP_TRY(ckpt_dcp_meta_alias(meta, ckpt_alias_at(c, i).name, at[k], err));
    FSDP_TRY(ckpt_dcp_meta_train(&data, &nbytes, meta, "__0_1.distcp", &train, err));
    snprintf(path, sizeof path, "%s/__0_1.distcp", out);
    if (nbytes)
        FSDP_TRY(ckpt_store_put(&ckpt_store_posix, path, data, nbytes, false, err));
    fsdp_free(data);
    FSDP_TRY(ckpt_dcp_meta_format(&data, &nbytes, meta, err));
    snprintf(path, sizeof path, "%s/.metadata", out);
    FSDP_TRY(ckpt_store_put(&ckpt_store_posix, path, data, nbytes, false, err));
    fsdp_free(data);
    ckpt_dcp_meta_free(meta);
    return FSDP_OK;
}

static bool equal(struct ckpt *a, struct ckpt *b)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    bool same = true;
    for (int i = 0; same && i < ckpt_ntensors(a); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(a, i);
        const struct ckpt_tensor *u = ckpt_tensor_find(b, t->tensor.name);
        same = u && u->role == t->role && u->tensor.dtype == t->tensor.dtype &&
               !strcmp(u->stored, t->stored);
        if (same) {
            struct fsdp_box whole = part_of(&t->tensor, 0, 1);
            struct bytes x = read_box(a, &t->tensor, &whole, &err);
            struct bytes y = read_box(b, &u->tensor, &whole, &err);
            same = x.nbytes == y.nbytes && !memcmp(x.data, y.data, x.nbytes);
            free(x.data);
            free(y.data);
        }
        if (!same)
            diag("%s differs", t->tensor.name);
    }
    return same;
}

static void test_round(const char *name, const char *from, int nranks)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *a = NULL, *b = NULL;
    char out[1000];
    snprintf(out, sizeof out, "%s/%s-%d", getenv("TEST_TMP") ? getenv("TEST_TMP") : "/tmp", name,
             nranks);
    bool good =
        ckpt_open(&a, from, &err) == FSDP_OK && write_all(a, out, nranks, -1, &err) == FSDP_OK;
    ok(good && ckpt_open(&b, out, &err) == FSDP_OK, "%s for %d ranks %s", name, nranks, err.text);
    if (b) {
        const char *x = ckpt_state_json(a), *y = ckpt_state_json(b);
        ok(ckpt_ntensors(a) == ckpt_ntensors(b) && equal(a, b), "every tensor is equal");
        ok(ckpt_step(a) == ckpt_step(b) && x && y && !strcmp(x, y), "so are step and values");
        ok(ckpt_verify(b, NULL, NULL, &err) == FSDP_OK, "it verifies");
    }
    ckpt_close(a);
    ckpt_close(b);
}

static void test_hole(const char *from)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *a = NULL, *b = NULL;
    char out[1000];
    for (int lost = 1; lost < 3; lost++) {
        snprintf(out, sizeof out, "%s/hole-%d", getenv("TEST_TMP") ? getenv("TEST_TMP") : "/tmp",
                 lost);
        bool good =
            ckpt_open(&a, from, &err) == FSDP_OK && write_all(a, out, 3, lost, &err) == FSDP_OK;
        ok(good && ckpt_open(&b, out, &err) == FSDP_ECORRUPT && strstr(err.text, "no file holds"),
           "a hole among the chunks: %s", err.text);
        ckpt_close(a);
        ckpt_close(b);
        a = b = NULL;
    }
}

/* ---- more than 4 GiB ------------------------------------------------------------------------- */

static int pread_file(void *ctx, void *dst, size_t nbytes, uint64_t pos, struct fsdp_err *err)
{
    (void)err;
    return pread(*(int *)ctx, dst, nbytes, (off_t)pos) == (ssize_t)nbytes ? FSDP_OK : FSDP_EIO;
}

static void test_large(void)
{
    const uint64_t length[] = {(UINT64_C(5) << 30) / 4, 1};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt_dcp_blob blob;
    const struct ckpt_zip_entry *entry = NULL;
    struct ckpt_zip zip;
    char path[1000], name[64], *head, *tail;
    size_t nhead, ntail;
    uint64_t pos = 0;
    snprintf(path, sizeof path, "%s/large", getenv("TEST_TMP") ? getenv("TEST_TMP") : "/tmp");
    struct ckpt_dcp_tag tag = ckpt_dcp_tag_of("large", 0);
    snprintf(name, sizeof name, "%s/data/0", tag.text);
    ckpt_dcp_blob_measure(&blob, FSDP_F32, length, 2, &err);
    ckpt_dcp_blob_head(&head, &nhead, &tag, FSDP_F32, length, 2, &err);
    ckpt_dcp_blob_tail(&tail, &ntail, &tag, FSDP_F32, length, 2, 0x12345678, &err);
    int fd = open(path, O_RDWR | O_CREAT, 0666);
    bool wrote = pwrite(fd, head, nhead, 0) == (ssize_t)nhead &&
                 pwrite(fd, tail, ntail, (off_t)(nhead + blob.data_nbytes)) == (ssize_t)ntail;
    ok(wrote && blob.nbytes == nhead + (UINT64_C(5) << 30) + ntail, "an archive of 5 GiB");
    ok(ckpt_zip_open(&zip, pread_file, &fd, blob.nbytes, "'large'", &err) == FSDP_OK, "it opens %s",
       err.text);
    ckpt_zip_find(&entry, &zip, name, &err);
    ok(entry && entry->nbytes == blob.data_nbytes && entry->crc32 == 0x12345678, "64-bit sizes");
    ok(entry && ckpt_zip_locate(&pos, &zip, entry, &err) == FSDP_OK && pos == nhead &&
           pos % CKPT_DCP_ALIGN == 0,
       "its data begin where they should");
    ckpt_zip_close(&zip);
    close(fd);
    unlink(path);
    fsdp_free(head);
    fsdp_free(tail);
}

int main(int argc, char **argv)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *c;
    char path[1000];
    if (argc == 4) {
        if (ckpt_open(&c, argv[1], &err) || write_all(c, argv[2], atoi(argv[3]), -1, &err)) {
            fprintf(stderr, "test_dcp_write: %s\n", err.text);
            return 1;
        }
        ckpt_close(c);
        return 0;
    }
    for (int nranks = 1; nranks <= 5; nranks += 2) {
        snprintf(path, sizeof path, "%s/tests/data/dcp-fsdp2-2r/ckpt", getenv("TOP"));
        test_round("fsdp2", path, nranks);
        snprintf(path, sizeof path, "%s/tests/data/dcp-mixed-2r/ckpt", getenv("TOP"));
        test_round("mixed", path, nranks);
    }
    test_hole(path);
    test_large();
    return tap_done();
}
