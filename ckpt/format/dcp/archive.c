/* SPDX-License-Identifier: Apache-2.0 */
/* The archives of a .distcp file, as torch.load reads them: zip with stored files, the tensor's
 * bytes last and at a multiple of CKPT_DCP_ALIGN, their checksum behind them. */
#include <string.h>

#include "util/crc.h"
#include "archive.h"
#include "format/archive/zip_write.h"
#include "format/pickle/pickle_write.h"

enum { NMEMBERS = 4 };

#define TAG "fsdp-"

struct ckpt_dcp_tag ckpt_dcp_tag_of(const char *file, uint64_t pos)
{
    struct ckpt_dcp_tag tag;
    uint64_t hash = fsdp_hash(fsdp_hash(FSDP_HASH_SEED, file, strlen(file)), &pos, sizeof pos);
    snprintf(tag.text, sizeof tag.text, TAG "%016llx", (unsigned long long)hash);
    return tag;
}

bool ckpt_dcp_tag_is(const char *folder, size_t nbytes)
{
    return nbytes == strlen(TAG) + 16 && !memcmp(folder, TAG, strlen(TAG));
}

/* The files of an archive, one after the other, but for the data of one with `later`, which is the
 * last. data: [nmembers] of the others. */
static void locals_add(struct ckpt_text *text, struct ckpt_zip_member *members, int nmembers,
                       const char *const *data)
{
    for (int i = 0; i < nmembers; i++) {
        members[i].pos = text->nbytes;
        if (!members[i].later)
            members[i].crc32 = ckpt_crc32(0, data[i], (size_t)members[i].nbytes);
        ckpt_zip_add_local(text, &members[i]);
        if (!members[i].later)
            ckpt_text_add(text, data[i], (size_t)members[i].nbytes);
    }
}

/* The directory, which begins at `pos`, and the end. */
static void end_add(struct ckpt_text *text, const struct ckpt_zip_member *members, int nmembers,
                    uint64_t pos)
{
    size_t begin = text->nbytes;
    for (int i = 0; i < nmembers; i++)
        ckpt_zip_add_central(text, &members[i]);
    ckpt_zip_add_end(text, (uint64_t)nmembers, text->nbytes - begin, pos);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static uint64_t data_nbytes(enum fsdp_dtype dtype, const uint64_t *length, int ndim)
{
    uint64_t nbytes = fsdp_dtype_nbytes(dtype);
    for (int d = 0; d < ndim; d++)
        nbytes *= length[d];
    return nbytes;
}

static int tensor_pickle(char **out, size_t *out_nbytes, enum fsdp_dtype dtype,
                         const uint64_t *length, int ndim, struct fsdp_err *err)
{
    struct fsdp_tensor tensor = {.name = "", .dtype = dtype, .ndim = ndim};
    struct ckpt_pkw w;
    for (int d = 0; d < ndim; d++)
        tensor.shape[d] = length[d];
    ckpt_pkw_begin(&w);
    ckpt_pkw_tensor(&w, &tensor, "0");
    return ckpt_pkw_end(out, out_nbytes, &w, err);
}

/* Head and tail in one: *data is where the tensor's bytes go between them. */
static int frame(struct ckpt_text *text, size_t *data, const struct ckpt_dcp_tag *tag,
                 enum fsdp_dtype dtype, const uint64_t *length, int ndim, uint32_t crc32,
                 struct fsdp_err *err)
{
    char *pickle;
    size_t nbytes;
    FSDP_TRY(tensor_pickle(&pickle, &nbytes, dtype, length, ndim, err));
    struct ckpt_zip_member members[] = {
        {tag->text, "data.pkl", .nbytes = nbytes},
        {tag->text, "byteorder", .nbytes = 6},
        {tag->text, "version", .nbytes = 2},
        {tag->text, "data/0", .nbytes = data_nbytes(dtype, length, ndim), .crc32 = crc32,
         .later = true},
    };
    const char *const contents[] = {pickle, "little", "3\n", NULL};
    const struct ckpt_zip_member *last = &members[3];
    memset(text, 0, sizeof *text);
    locals_add(text, members, NMEMBERS, contents);
    fsdp_free(pickle);
    *data = text->nbytes;
    ckpt_zip_add_descriptor(text, last);
    end_add(text, members, NMEMBERS, text->nbytes + last->nbytes);
    if (text->failed) {
        ckpt_text_free(text);
        return fsdp_err_set(err, FSDP_ENOMEM, "archive: out of memory");
    }
    return FSDP_OK;
}

int ckpt_dcp_blob_measure(struct ckpt_dcp_blob *out, enum fsdp_dtype dtype, const uint64_t *length,
                          int ndim, struct fsdp_err *err)
{
    struct ckpt_dcp_tag tag = ckpt_dcp_tag_of("", 0); /* all have one length */
    struct ckpt_text text;
    size_t data = 0;
    FSDP_TRY(frame(&text, &data, &tag, dtype, length, ndim, 0, err));
    out->head_nbytes = data;
    out->data_nbytes = data_nbytes(dtype, length, ndim);
    out->tail_nbytes = text.nbytes - data;
    out->nbytes = text.nbytes + out->data_nbytes;
    ckpt_text_free(&text);
    return FSDP_OK;
}

int ckpt_dcp_blob_head(char **out, size_t *out_nbytes, const struct ckpt_dcp_tag *tag,
                       enum fsdp_dtype dtype, const uint64_t *length, int ndim,
                       struct fsdp_err *err)
{
    struct ckpt_text text;
    FSDP_TRY(frame(&text, out_nbytes, tag, dtype, length, ndim, 0, err));
    *out = text.data;
    return FSDP_OK;
}

int ckpt_dcp_blob_tail(char **out, size_t *out_nbytes, const struct ckpt_dcp_tag *tag,
                       enum fsdp_dtype dtype, const uint64_t *length, int ndim, uint32_t crc32,
                       struct fsdp_err *err)
{
    struct ckpt_text text;
    size_t data = 0;
    FSDP_TRY(frame(&text, &data, tag, dtype, length, ndim, crc32, err));
    memmove(text.data, text.data + data, text.nbytes - data);
    *out = text.data;
    *out_nbytes = text.nbytes - data;
    return FSDP_OK;
}

int ckpt_dcp_value_blob(struct ckpt_text *out, const struct ckpt_dcp_tag *tag, const json_t *value,
                        struct fsdp_err *err)
{
    struct ckpt_pkw w;
    struct ckpt_text text = {0};
    char *pickle;
    size_t nbytes;
    ckpt_pkw_begin(&w);
    ckpt_pkw_json(&w, value);
    FSDP_TRY(ckpt_pkw_end(&pickle, &nbytes, &w, err));
    struct ckpt_zip_member members[] = {{tag->text, "data.pkl", .nbytes = nbytes},
                                        {tag->text, "byteorder", .nbytes = 6},
                                        {tag->text, "version", .nbytes = 2}};
    const char *const contents[] = {pickle, "little", "3\n"};
    locals_add(&text, members, NMEMBERS - 1, contents);
    end_add(&text, members, NMEMBERS - 1, text.nbytes);
    if (!text.failed)
        ckpt_text_add(out, text.data, text.nbytes);
    out->failed |= text.failed;
    ckpt_text_free(&text);
    fsdp_free(pickle);
    return FSDP_OK;
}

int ckpt_dcp_scalar_blob(struct ckpt_text *out, const struct ckpt_dcp_tag *tag, float value,
                         struct fsdp_err *err)
{
    struct ckpt_text text;
    size_t data = 0;
    FSDP_TRY(frame(&text, &data, tag, FSDP_F32, NULL, 0, ckpt_crc32(0, &value, sizeof value), err));
    ckpt_text_add(out, text.data, data);
    ckpt_text_add(out, (const char *)&value, sizeof value);
    ckpt_text_add(out, text.data + data, text.nbytes - data);
    ckpt_text_free(&text);
    return FSDP_OK;
}
