/* SPDX-License-Identifier: Apache-2.0 */
/* The archives of a .distcp file, as torch.load reads them: zip with stored files, the tensor's
 * bytes last and at a multiple of CKPT_DCP_ALIGN, their checksum behind them. */
#include <string.h>

#include "util/crc.h"
#include "archive.h"
#include "format/pickle/globals.h"
#include "format/pickle/pickle_write.h"

enum { NFILES_MAX = 4, ZIP64_FROM = 0xffffffff };

/* A file of an archive. */
struct member {
    const char *folder, *file; /* its name is both, with a slash between */
    const void *data; /* NULL: it comes later, and with it the checksum */
    uint64_t nbytes, pos;
    uint32_t crc32;
};

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

static void le(struct ckpt_text *text, uint64_t value, int nbytes)
{
    char raw[8];
    for (int i = 0; i < nbytes; i++)
        raw[i] = (char)(value >> (8 * i) & 0xff);
    ckpt_text_add(text, raw, (size_t)nbytes);
}

static size_t name_nbytes(const struct member *m)
{
    return strlen(m->folder) + 1 + strlen(m->file);
}

static void name_add(struct ckpt_text *text, const struct member *m)
{
    ckpt_text_printf(text, "%s/%s", m->folder, m->file);
}

/* The header before a member. One whose data come later says so with a flag; its extra field pads
 * it, as torch does. */
static void local_add(struct ckpt_text *text, struct member *m)
{
    bool later = !m->data, large = m->nbytes >= ZIP64_FROM;
    size_t name = name_nbytes(m), extra = large ? 20 : 0, pad = 0;
    m->pos = text->nbytes;
    if (later) {
        size_t end = text->nbytes + 30 + name + extra + 4;
        pad = (CKPT_DCP_ALIGN - end % CKPT_DCP_ALIGN) % CKPT_DCP_ALIGN;
        extra += 4 + pad;
    }
    le(text, 0x04034b50, 4);
    le(text, large ? 45 : 20, 2);
    le(text, later ? 1 << 3 : 0, 2);
    le(text, 0, 2 + 2);
    le(text, 0x0021, 2); /* 1 January 1980: nothing here depends on the clock */
    le(text, later ? 0 : m->crc32, 4);
    le(text, later ? large ? ZIP64_FROM : 0 : m->nbytes, 4);
    le(text, later ? large ? ZIP64_FROM : 0 : m->nbytes, 4);
    le(text, name, 2);
    le(text, extra, 2);
    name_add(text, m);
    if (large) {
        le(text, 1, 2);
        le(text, 16, 2);
        le(text, 0, 8);
        le(text, 0, 8);
    }
    if (later) {
        ckpt_text_add(text, "FB", 2);
        le(text, pad, 2);
        while (pad--)
            ckpt_text_add(text, "Z", 1);
    } else {
        ckpt_text_add(text, m->data, (size_t)m->nbytes);
    }
}

static void central_add(struct ckpt_text *text, const struct member *m)
{
    bool large = m->nbytes >= ZIP64_FROM;
    le(text, 0x02014b50, 4);
    le(text, large ? 45 : 20, 2);
    le(text, large ? 45 : 20, 2);
    le(text, m->data ? 0 : 1 << 3, 2);
    le(text, 0, 2 + 2);
    le(text, 0x0021, 2);
    le(text, m->crc32, 4);
    le(text, large ? ZIP64_FROM : m->nbytes, 4);
    le(text, large ? ZIP64_FROM : m->nbytes, 4);
    le(text, name_nbytes(m), 2);
    le(text, large ? 20 : 0, 2);
    le(text, 0, 8);
    le(text, 0, 2);
    le(text, m->pos, 4);
    name_add(text, m);
    if (large) {
        le(text, 1, 2);
        le(text, 16, 2);
        le(text, m->nbytes, 8);
        le(text, m->nbytes, 8);
    }
}

/* The directory at `pos` and the end; with zip64 records where a number needs them. */
static void end_add(struct ckpt_text *text, const struct member *members, int nmembers,
                    uint64_t pos)
{
    size_t begin = text->nbytes;
    for (int i = 0; i < nmembers; i++)
        central_add(text, &members[i]);
    uint64_t size = text->nbytes - begin, n = (uint64_t)nmembers;
    bool large = pos >= ZIP64_FROM;
    if (large) {
        le(text, 0x06064b50, 4);
        le(text, 44, 8);
        le(text, 45, 2);
        le(text, 45, 2);
        le(text, 0, 8);
        le(text, n, 8);
        le(text, n, 8);
        le(text, size, 8);
        le(text, pos, 8);
        le(text, 0x07064b50, 4);
        le(text, 0, 4);
        le(text, pos + size, 8);
        le(text, 1, 4);
    }
    le(text, 0x06054b50, 4);
    le(text, 0, 4);
    le(text, n, 2);
    le(text, n, 2);
    le(text, size, 4);
    le(text, large ? ZIP64_FROM : pos, 4);
    le(text, 0, 2);
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Globals "module\nname\n" for the pickle writer; static, since it keys by address. */
static const char *storage_global(enum fsdp_dtype dtype)
{
    static const char *const names[FSDP_NDTYPES] = {
        [FSDP_F32] = "torch\nFloatStorage\n",        [FSDP_BF16] = "torch\nBFloat16Storage\n",
        [FSDP_F16] = "torch\nHalfStorage\n",         [FSDP_F64] = "torch\nDoubleStorage\n",
        [FSDP_I64] = "torch\nLongStorage\n",         [FSDP_I32] = "torch\nIntStorage\n",
        [FSDP_I16] = "torch\nShortStorage\n",        [FSDP_I8] = "torch\nCharStorage\n",
        [FSDP_U8] = "torch\nByteStorage\n",          [FSDP_BOOL] = "torch\nBoolStorage\n",
        [FSDP_C64] = "torch\nComplexFloatStorage\n",
    };
    return names[dtype];
}

const char *ckpt_dcp_dtype_global(enum fsdp_dtype dtype)
{
    static const char *const names[FSDP_NDTYPES] = {
        [FSDP_F32] = "torch\nfloat32\n",
        [FSDP_BF16] = "torch\nbfloat16\n",
        [FSDP_F16] = "torch\nfloat16\n",
        [FSDP_F64] = "torch\nfloat64\n",
        [FSDP_I64] = "torch\nint64\n",
        [FSDP_I32] = "torch\nint32\n",
        [FSDP_I16] = "torch\nint16\n",
        [FSDP_I8] = "torch\nint8\n",
        [FSDP_U64] = "torch\nuint64\n",
        [FSDP_U32] = "torch\nuint32\n",
        [FSDP_U16] = "torch\nuint16\n",
        [FSDP_U8] = "torch\nuint8\n",
        [FSDP_BOOL] = "torch\nbool\n",
        [FSDP_F8_E4M3] = "torch\nfloat8_e4m3fn\n",
        [FSDP_F8_E5M2] = "torch\nfloat8_e5m2\n",
        [FSDP_C64] = "torch\ncomplex64\n",
        [FSDP_F8_E8M0] = "torch\nfloat8_e8m0fnu\n",
    };
    return names[dtype];
}

static uint64_t data_nbytes(enum fsdp_dtype dtype, const uint64_t *length, int ndim)
{
    uint64_t nbytes = fsdp_dtype_nbytes(dtype);
    for (int d = 0; d < ndim; d++)
        nbytes *= length[d];
    return nbytes;
}

/* _rebuild_tensor_v2(storage, 0, size, stride, False, OrderedDict()); dtypes that torch has no
 * typed storage for come as bytes, with the dtype behind. */
static int tensor_pickle(char **out, size_t *out_nbytes, enum fsdp_dtype dtype,
                         const uint64_t *length, int ndim, struct fsdp_err *err)
{
    const char *storage = storage_global(dtype);
    uint64_t nbytes = data_nbytes(dtype, length, ndim), stride[FSDP_MAX_DIMS], step = 1;
    struct ckpt_pkw w;

    for (int d = ndim - 1; d >= 0; d--) {
        stride[d] = step;
        step *= length[d] ? length[d] : 1;
    }
    ckpt_pkw_begin(&w);
    ckpt_pkw_global(&w, storage ? "torch._utils\n_rebuild_tensor_v2\n"
                                : "torch._utils\n_rebuild_tensor_v3\n");
    ckpt_pkw_op(&w, PK_MARK); /* the arguments of the function */
    ckpt_pkw_op(&w, PK_MARK); /* the storage's persistent id */
    ckpt_pkw_text(&w, "storage");
    ckpt_pkw_global(&w, storage ? storage : "torch.storage\nUntypedStorage\n");
    ckpt_pkw_text(&w, "0");
    ckpt_pkw_text(&w, "cpu");
    ckpt_pkw_u64(&w, storage ? nbytes / fsdp_dtype_nbytes(dtype) : nbytes);
    ckpt_pkw_op(&w, PK_TUPLE);
    ckpt_pkw_op(&w, PK_BINPERSID);
    ckpt_pkw_int(&w, 0);
    ckpt_pkw_dims(&w, length, ndim);
    ckpt_pkw_dims(&w, stride, ndim);
    ckpt_pkw_op(&w, PK_NEWFALSE); /* requires_grad */
    ckpt_pkw_global(&w, "collections\nOrderedDict\n");
    ckpt_pkw_op(&w, PK_EMPTY_TUPLE);
    ckpt_pkw_op(&w, PK_REDUCE);
    if (!storage)
        ckpt_pkw_global(&w, ckpt_dcp_dtype_global(dtype));
    ckpt_pkw_op(&w, PK_TUPLE);
    ckpt_pkw_op(&w, PK_REDUCE);
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
    struct member members[] = {
        {tag->text, "data.pkl", pickle, nbytes, 0, ckpt_crc32(0, pickle, nbytes)},
        {tag->text, "byteorder", "little", 6, 0, ckpt_crc32(0, "little", 6)},
        {tag->text, "version", "3\n", 2, 0, ckpt_crc32(0, "3\n", 2)},
        {tag->text, "data/0", NULL, data_nbytes(dtype, length, ndim), 0, crc32},
    };
    const struct member *last = &members[3];
    bool large = last->nbytes >= ZIP64_FROM;
    memset(text, 0, sizeof *text);
    for (int i = 0; i < 4; i++)
        local_add(text, &members[i]);
    fsdp_free(pickle);
    *data = text->nbytes;
    le(text, 0x08074b50, 4); /* the data's descriptor */
    le(text, crc32, 4);
    le(text, last->nbytes, large ? 8 : 4);
    le(text, last->nbytes, large ? 8 : 4);
    end_add(text, members, 4, text->nbytes + last->nbytes);
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
    struct member members[] = {
        {tag->text, "data.pkl", pickle, nbytes, 0, ckpt_crc32(0, pickle, nbytes)},
        {tag->text, "byteorder", "little", 6, 0, ckpt_crc32(0, "little", 6)},
        {tag->text, "version", "3\n", 2, 0, ckpt_crc32(0, "3\n", 2)},
    };
    for (int i = 0; i < 3; i++)
        local_add(&text, &members[i]);
    end_add(&text, members, 3, text.nbytes);
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
