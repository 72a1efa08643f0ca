/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "blob.h"
#include "util/crc.h"
#include "dcp_write.h"
#include "zip.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)

enum {
    EDGE_NBYTES = 4096,       /* read at once from both ends: all of an archive but its data */
    SMALL_NBYTES = 8192,      /* smaller blobs are read whole */
    NAME_NBYTES = 512,        /* of a file in an archive */
    PICKLE_NBYTES = 64 << 10, /* of a tensor's data.pkl, which has some hundred bytes */
};

/* ---- reading an archive in a file ------------------------------------------------------------ */

struct source {
    struct ckpt *ckpt;
    int file;
    uint64_t pos, nbytes; /* of the blob in the file */
    const char *name;     /* of the tensor or value */
    char what[2 * CKPT_MAX_PATH_NBYTES + CKPT_MAX_NAME_NBYTES];
    uint64_t tail_pos;
    size_t nhead, ntail;
    char head[SMALL_NBYTES], tail[EDGE_NBYTES];
    struct ckpt_zip zip;
    char prefix[NAME_NBYTES]; /* of all names in the archive, with the slash */
};

static int source_pread(void *ctx, void *dst, size_t nbytes, uint64_t pos, struct fsdp_err *err)
{
    struct source *s = ctx;
    if (pos + nbytes <= s->nhead)
        memcpy(dst, s->head + pos, nbytes);
    else if (pos >= s->tail_pos)
        memcpy(dst, s->tail + (pos - s->tail_pos), nbytes);
    else
        return ckpt_file_pread(s->ckpt, s->file, dst, nbytes, s->pos + pos, err);
    return FSDP_OK;
}

/* "archive/" of the one file called archive/data.pkl. */
static int prefix_find(struct source *s, struct fsdp_err *err)
{
    static const char end[] = "/data.pkl";
    for (size_t i = 0; i < s->zip.nentries; i++) {
        const struct ckpt_zip_entry *entry = &s->zip.entries[i];
        size_t len = entry->name_nbytes - (sizeof end - 2); /* with the slash */
        if (entry->name_nbytes < sizeof end || len >= sizeof s->prefix - 64 ||
            memcmp(entry->name + len - 1, end, sizeof end - 1) || memchr(entry->name, '/', len - 1))
            continue;
        memcpy(s->prefix, entry->name, len);
        s->prefix[len] = 0;
        return FSDP_OK;
    }
    return BAD("%s is not an archive that torch.save wrote: it has no data.pkl", s->what);
}

/* *entry = NULL if there is none. */
static int entry_find(const struct ckpt_zip_entry **entry, uint64_t *pos, const struct source *s,
                      const char *name, size_t name_nbytes, struct fsdp_err *err)
{
    char path[NAME_NBYTES];
    int len = snprintf(path, sizeof path, "%s%.*s", s->prefix, (int)name_nbytes, name);
    *entry = NULL;
    if (name_nbytes > 64 || len >= (int)sizeof path)
        return FSDP_OK;
    FSDP_TRY(ckpt_zip_find(entry, &s->zip, path, err));
    return *entry ? ckpt_zip_locate(pos, &s->zip, *entry, err) : FSDP_OK;
}

/* What ckpt-reshard writes says where it belongs; what torch writes does not. */
static int refuse_misplaced(const struct source *s, struct fsdp_err *err)
{
    const char *path = s->ckpt->m.layout.files[s->file].path, *slash = strrchr(path, '/');
    struct ckpt_dcp_tag tag = ckpt_dcp_tag_of(slash ? slash + 1 : path, s->pos);
    size_t len = strlen(s->prefix) - 1;
    if (ckpt_dcp_tag_is(s->prefix, len) && memcmp(s->prefix, tag.text, len))
        return BAD("%s is the archive of another file or place: files were swapped or renamed, or "
                   "bytes were moved", s->what);
    return FSDP_OK;
}

static int refuse_big_endian(struct source *s, struct fsdp_err *err)
{
    const struct ckpt_zip_entry *entry;
    uint64_t pos = 0;
    char order[8] = "";
    FSDP_TRY(entry_find(&entry, &pos, s, "byteorder", 9, err));
    if (!entry)
        return FSDP_OK;
    size_t nbytes = entry->nbytes < sizeof order ? (size_t)entry->nbytes : 0;
    FSDP_TRY(source_pread(s, order, nbytes, pos, err));
    if (strcmp(order, "little"))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s: its byte order is not little-endian",
                            s->what);
    return FSDP_OK;
}

/* Also checks what an archive must have. */
static int source_open(struct source *s, struct ckpt *ckpt, int file, uint64_t pos, uint64_t nbytes,
                       const char *name, struct fsdp_err *err)
{
    const char *path = ckpt->m.layout.files[file].path;
    s->ckpt = ckpt;
    s->file = file;
    s->pos = pos;
    s->nbytes = nbytes;
    s->name = name;
    memset(&s->zip, 0, sizeof s->zip);
    snprintf(s->what, sizeof s->what, "'%s' (bytes %llu to %llu of '%s')", name,
             (unsigned long long)pos, (unsigned long long)(pos + nbytes), path);
    s->nhead = (size_t)(nbytes <= SMALL_NBYTES ? nbytes : EDGE_NBYTES);
    s->ntail = nbytes <= SMALL_NBYTES ? 0 : EDGE_NBYTES;
    s->tail_pos = nbytes - s->ntail;
    FSDP_TRY(ckpt_file_pread(ckpt, file, s->head, s->nhead, pos, err));
    if (s->ntail)
        FSDP_TRY(ckpt_file_pread(ckpt, file, s->tail, s->ntail, pos + s->tail_pos, err));
    FSDP_TRY(ckpt_zip_open(&s->zip, source_pread, s, nbytes, s->what, err));
    int rc = prefix_find(s, err);
    if (rc == FSDP_OK)
        rc = refuse_misplaced(s, err);
    if (rc == FSDP_OK)
        rc = refuse_big_endian(s, err);
    if (rc)
        ckpt_zip_close(&s->zip);
    return rc;
}

/* data.pkl, parsed; its checksum is compared. */
static int pickle_read(struct ckpt_pickle *out, char **data, struct source *s, size_t most,
                       struct fsdp_err *err)
{
    const struct ckpt_zip_entry *entry;
    uint64_t pos = 0;
    *data = NULL;
    FSDP_TRY(entry_find(&entry, &pos, s, "data.pkl", 8, err));
    if (!entry || entry->nbytes > most)
        return BAD("%s: its pickle has more than %zu bytes", s->what, most);
    if (!(*data = fsdp_alloc((size_t)entry->nbytes + 1, 1, "pickle", err)))
        return FSDP_ENOMEM;
    int rc = source_pread(s, *data, (size_t)entry->nbytes, pos, err);
    if (rc == FSDP_OK && entry->crc32 &&
        ckpt_crc32(0, *data, (size_t)entry->nbytes) != entry->crc32)
        rc = BAD("%s: the checksum of its pickle is wrong: damaged", s->what);
    if (rc == FSDP_OK)
        rc = ckpt_pickle_parse(out, *data, (size_t)entry->nbytes, s->what, err);
    if (rc) {
        fsdp_free(*data);
        *data = NULL;
    }
    return rc;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* What data.pkl says: _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks
 * [, metadata]); v3 has the dtype before the metadata. */
struct view {
    enum fsdp_dtype dtype;
    const struct ckpt_pk *key; /* names the storage's file */
    uint64_t storage_nbytes;
    uint64_t offset; /* in elements */
    int ndim;
    uint64_t size[FSDP_MAX_DIMS], stride[FSDP_MAX_DIMS];
    bool negative, conjugate;
};

static int dtype_of(enum fsdp_dtype *out, const struct ckpt_pk *value, const struct source *s,
                    struct fsdp_err *err)
{
    const struct ckpt_pk_global *global = ckpt_pk_global_of(value);
    if (!global || (global->role != CKPT_PK_DTYPE && global->role != CKPT_PK_STORAGE))
        return BAD("%s: it is not a tensor in a form that torch writes", s->what);
    if (global->dtype == CKPT_PK_NO_DTYPE)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s: %s.%s is not supported", s->what,
                            global->module, global->name);
    *out = (enum fsdp_dtype)global->dtype;
    return FSDP_OK;
}

static int storage_read(struct view *v, const struct ckpt_pk *id, const struct source *s,
                        struct fsdp_err *err)
{
    const struct ckpt_pk *tuple = id && id->type == CKPT_PK_T_PERSID ? id->u.items[0] : NULL;
    const struct ckpt_pk_global *type = ckpt_pk_global_of(ckpt_pk_item(tuple, 1));
    uint64_t nelem, elem_nbytes = 1;

    v->key = ckpt_pk_item(tuple, 2);
    if (!ckpt_pk_is_text(ckpt_pk_item(tuple, 0), "storage") || !type || !v->key ||
        v->key->type != CKPT_PK_T_TEXT || !ckpt_pk_u64(&nelem, ckpt_pk_item(tuple, 4)))
        return BAD("%s: its storage is not described as torch does", s->what);
    if (type->role != CKPT_PK_UNTYPED) {
        enum fsdp_dtype dtype = FSDP_U8;
        FSDP_TRY(dtype_of(&dtype, ckpt_pk_item(tuple, 1), s, err));
        elem_nbytes = fsdp_dtype_nbytes(dtype);
        v->dtype = dtype;
    }
    if (nelem > UINT64_MAX / 16)
        return BAD("%s: its storage claims %llu elements", s->what, (unsigned long long)nelem);
    v->storage_nbytes = nelem * elem_nbytes;
    return FSDP_OK;
}

static bool is_true(const struct ckpt_pk *value)
{
    return value && value->type == CKPT_PK_T_BOOL && value->u.integer;
}

static int view_read(struct view *v, const struct ckpt_pk *root, const struct source *s,
                     struct fsdp_err *err)
{
    if (ckpt_pk_is_call(root, CKPT_PK_PARAMETER))
        root = ckpt_pk_item(root, 0);
    bool v3 = ckpt_pk_is_call(root, CKPT_PK_TENSOR_V3);
    int ndim = -1;
    if (!v3 && !ckpt_pk_is_call(root, CKPT_PK_TENSOR_V2))
        return BAD("%s: it is not a tensor in a form that torch writes", s->what);
    FSDP_TRY(storage_read(v, ckpt_pk_item(root, 0), s, err));
    if (v3)
        FSDP_TRY(dtype_of(&v->dtype, ckpt_pk_item(root, 6), s, err));
    if (!ckpt_pk_u64(&v->offset, ckpt_pk_item(root, 1)) ||
        !ckpt_pk_dims(v->size, &v->ndim, ckpt_pk_item(root, 2)) ||
        !ckpt_pk_dims(v->stride, &ndim, ckpt_pk_item(root, 3)) || ndim != v->ndim)
        return BAD("%s: its size and strides are not as torch writes them", s->what);
    const struct ckpt_pk *metadata = ckpt_pk_item(root, v3 ? 7 : 6);
    v->negative = is_true(ckpt_pk_get(metadata, "neg"));
    v->conjugate = is_true(ckpt_pk_get(metadata, "conj")) && v->dtype == FSDP_C64;
    return FSDP_OK;
}

/* Is the view what .metadata promised, and inside its storage? *plain: row-major. */
static int view_prove(bool *plain, const struct view *v, const struct ckpt_piece *piece,
                      const struct fsdp_tensor *tensor, const struct source *s,
                      struct fsdp_err *err)
{
    uint64_t last = v->offset, dense = 1, nelem = v->storage_nbytes / fsdp_dtype_nbytes(v->dtype);
    if (v->dtype != tensor->dtype)
        return BAD("%s: .metadata says %s, the file holds %s", s->what,
                   fsdp_dtype_name(tensor->dtype), fsdp_dtype_name(v->dtype));
    bool same = v->ndim == tensor->ndim;
    for (int d = 0; same && d < v->ndim; d++)
        same = v->size[d] == piece->length[d];
    if (!same)
        return BAD("%s: the file holds another shape than .metadata says", s->what);
    *plain = true;
    for (int d = v->ndim - 1; d >= 0; d--) {
        uint64_t steps = v->size[d] - 1; /* boxes of the layout are not empty */
        if (steps && (v->stride[d] > nelem || last > nelem || steps * v->stride[d] > nelem))
            return BAD("%s: its strides leave its storage", s->what);
        last += steps ? steps * v->stride[d] : 0;
        *plain &= !steps || v->stride[d] == dense;
        dense *= v->size[d];
    }
    if (last >= nelem)
        return BAD("%s: it needs more elements than its storage has", s->what);
    return FSDP_OK;
}

static int blob_fill(struct ckpt_blob *out, struct source *s, const struct view *v, bool plain,
                     struct fsdp_err *err)
{
    const struct ckpt_zip_entry *entry;
    char name[80];
    uint64_t pos = 0;
    int len = snprintf(name, sizeof name, "data/%.*s",
                       (int)(v->key->nitems < 60 ? v->key->nitems : 60), v->key->u.text);
    FSDP_TRY(entry_find(&entry, &pos, s, name, (size_t)len, err));
    if (!entry)
        return BAD("%s: the archive lacks the tensor's storage '%s'", s->what, name);
    if (entry->nbytes != v->storage_nbytes)
        return BAD("%s: its storage has %llu bytes instead of %llu", s->what,
                   (unsigned long long)entry->nbytes, (unsigned long long)v->storage_nbytes);
    if (!plain) {
        if (!(out->stride = fsdp_alloc((size_t)v->ndim, sizeof *out->stride, "strides", err)))
            return FSDP_ENOMEM;
        memcpy(out->stride, v->stride, (size_t)v->ndim * sizeof *out->stride);
    }
    uint64_t nelem = 1;
    for (int d = 0; d < v->ndim; d++)
        nelem *= v->size[d];
    out->whole = plain && nelem * fsdp_dtype_nbytes(v->dtype) == entry->nbytes;
    out->negative = v->negative;
    out->conjugate = v->conjugate;
    out->crc32 = entry->crc32;
    out->storage_pos = s->pos + pos;
    out->storage_nbytes = entry->nbytes;
    out->pos = out->storage_pos + v->offset * fsdp_dtype_nbytes(v->dtype);
    out->resolved = true;
    return FSDP_OK;
}

static int blob_read(struct ckpt_blob *out, struct ckpt *ckpt, size_t index, struct fsdp_err *err)
{
    const struct ckpt_piece *piece = &ckpt->m.layout.pieces[index];
    const struct fsdp_tensor *tensor = &ckpt->m.layout.tensors[piece->tensor].tensor;
    struct source *s = fsdp_alloc(1, sizeof *s, "archive", err);
    struct ckpt_pickle pickle = {0};
    struct view v = {.dtype = FSDP_U8};
    char *data = NULL;
    bool plain = false;
    if (!s)
        return FSDP_ENOMEM;
    int rc = source_open(s, ckpt, piece->file, piece->pos, piece->blob_nbytes,
                         ckpt->m.layout.tensors[piece->tensor].stored, err);
    if (rc == FSDP_OK)
        rc = pickle_read(&pickle, &data, s, PICKLE_NBYTES, err);
    if (rc == FSDP_OK)
        rc = view_read(&v, pickle.root, s, err);
    if (rc == FSDP_OK)
        rc = view_prove(&plain, &v, piece, tensor, s, err);
    if (rc == FSDP_OK)
        rc = blob_fill(out, s, &v, plain, err);
    ckpt_pickle_free(&pickle);
    ckpt_zip_close(&s->zip);
    fsdp_free(data);
    fsdp_free(s);
    return rc;
}

/* [npieces]; NULL until one is read. */
static struct ckpt_blob *blobs_of(const struct ckpt *ckpt)
{
    return ckpt->format_state;
}

void ckpt_blobs_destroy(struct ckpt *ckpt)
{
    struct ckpt_blob *blobs = blobs_of(ckpt);
    for (size_t i = 0; blobs && i < ckpt->m.layout.npieces; i++)
        fsdp_free(blobs[i].stride);
    fsdp_free(blobs);
    ckpt->format_state = NULL;
}

int ckpt_blob_find(struct ckpt_blob *out, struct ckpt *ckpt, size_t piece, struct fsdp_err *err)
{
    pthread_mutex_lock(&ckpt->lock);
    if (!ckpt->format_state)
        ckpt->format_state = fsdp_alloc(ckpt->m.layout.npieces, sizeof *out, "blobs", err);
    struct ckpt_blob *blobs = blobs_of(ckpt);
    if (blobs)
        *out = blobs[piece];
    pthread_mutex_unlock(&ckpt->lock);
    if (!blobs || out->resolved)
        return blobs ? FSDP_OK : FSDP_ENOMEM;
    FSDP_TRY(blob_read(out, ckpt, piece, err));
    /* Two threads may have read it: the later one's copy goes. */
    pthread_mutex_lock(&ckpt->lock);
    if (blobs[piece].resolved) {
        fsdp_free(out->stride);
        *out = blobs[piece];
    } else {
        blobs[piece] = *out;
    }
    pthread_mutex_unlock(&ckpt->lock);
    /* What is read of it later may never add up to the storage. */
    return out->whole ? FSDP_OK : ckpt_blob_check(ckpt, piece, err);
}

/* ---- checksums ------------------------------------------------------------------------------- */

int ckpt_blob_check(struct ckpt *ckpt, size_t piece, struct fsdp_err *err)
{
    const struct ckpt_piece *p = &ckpt->m.layout.pieces[piece];
    struct ckpt_blob blob;
    uint32_t crc = 0;
    FSDP_TRY(ckpt_blob_find(&blob, ckpt, piece, err));
    if (!blob.crc32)
        return FSDP_OK;
    size_t most =
        (size_t)(blob.storage_nbytes < CKPT_BLOCK_NBYTES ? blob.storage_nbytes : CKPT_BLOCK_NBYTES);
    char *buffer = fsdp_alloc(most, 1, "read buffer", err);
    int rc = buffer ? FSDP_OK : FSDP_ENOMEM;
    for (uint64_t pos = 0; rc == FSDP_OK && pos < blob.storage_nbytes; pos += most) {
        uint64_t left = blob.storage_nbytes - pos;
        size_t nbytes = left < most ? (size_t)left : most;
        rc = ckpt_file_pread(ckpt, p->file, buffer, nbytes, blob.storage_pos + pos, err);
        if (rc == FSDP_OK)
            crc = ckpt_crc32(crc, buffer, nbytes);
    }
    fsdp_free(buffer);
    if (rc || crc == blob.crc32)
        return rc;
    char box[256];
    const struct ckpt_tensor *t = &ckpt->m.layout.tensors[p->tensor];
    const struct fsdp_box stored = ckpt_piece_box(p, t->tensor.ndim);
    ckpt_box_text(box, sizeof box, &stored, t->tensor.ndim);
    return BAD("tensor '%s', %s: bytes %llu to %llu of '%s/%s' are damaged (checksum %08x instead "
               "of %08x)",
               t->stored, box, (unsigned long long)blob.storage_pos,
               (unsigned long long)(blob.storage_pos + blob.storage_nbytes), ckpt->path,
               ckpt->m.layout.files[p->file].path, crc, blob.crc32);
}

int ckpt_blob_note(struct ckpt *ckpt, size_t piece, uint32_t part, uint64_t nbytes,
                   struct fsdp_err *err)
{
    struct ckpt_blob *blob = &blobs_of(ckpt)[piece];
    bool suspect = false;
    pthread_mutex_lock(&ckpt->lock);
    blob->sum ^= part;
    blob->nsummed += nbytes;
    if (blob->nsummed >= blob->storage_nbytes) {
        suspect = blob->sum != blob->crc32;
        blob->sum = 0;
        blob->nsummed = 0;
    }
    pthread_mutex_unlock(&ckpt->lock);
    /* It may also be that some bytes were read twice and others not yet: look. */
    return suspect ? ckpt_blob_check(ckpt, piece, err) : FSDP_OK;
}

int ckpt_blobs_finish(struct ckpt *ckpt, struct fsdp_err *err)
{
    const struct ckpt_blob *blobs = blobs_of(ckpt);
    for (size_t i = 0; blobs && i < ckpt->m.layout.npieces; i++)
        if (blobs[i].nsummed)
            FSDP_TRY(ckpt_blob_check(ckpt, i, err));
    return FSDP_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

int ckpt_blob_value(struct ckpt_pickle *out, char **data, struct ckpt *ckpt, int file, uint64_t pos,
                    uint64_t nbytes, const char *name, struct fsdp_err *err)
{
    struct source *s = fsdp_alloc(1, sizeof *s, "archive", err);
    *data = NULL;
    if (!s)
        return FSDP_ENOMEM;
    int rc = source_open(s, ckpt, file, pos, nbytes, name, err);
    if (rc == FSDP_OK)
        rc = pickle_read(out, data, s, CKPT_MAX_VALUE_NBYTES, err);
    ckpt_zip_close(&s->zip);
    fsdp_free(s);
    return rc;
}
