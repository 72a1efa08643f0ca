/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "blob.h"
#include "dcp_write.h"
#include "format/archive/archive.h"
#include "format/archive/view.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)

enum { PICKLE_NBYTES = 64 << 10 }; /* of a tensor's data.pkl, which has some hundred bytes */

/* Where a piece's elements are. Under ckpt->lock. */
struct blob {
    bool resolved;
    struct ckpt_storage storage;
    struct ckpt_view view;
};

/* What ckpt-reshard writes says where it belongs; what torch writes does not. */
static int refuse_misplaced(const struct ckpt_archive *a, struct fsdp_err *err)
{
    const char *path = a->ckpt->m.layout.files[a->file].path, *slash = strrchr(path, '/');
    struct ckpt_dcp_tag tag = ckpt_dcp_tag_of(slash ? slash + 1 : path, a->pos);
    size_t len = strlen(a->prefix) - 1;
    if (ckpt_dcp_tag_is(a->prefix, len) && memcmp(a->prefix, tag.text, len))
        return BAD("%s is the archive of another file or place: files were swapped or renamed, or "
                   "bytes were moved",
                   a->what);
    return FSDP_OK;
}

static int archive_open(struct ckpt_archive **out, struct ckpt *ckpt, int file, uint64_t pos,
                        uint64_t nbytes, const char *name, struct fsdp_err *err)
{
    struct ckpt_archive *a = *out = fsdp_alloc(1, sizeof *a, "archive", err);
    if (!a)
        return FSDP_ENOMEM;
    snprintf(a->what, sizeof a->what, "'%s' (bytes %llu to %llu of '%s')", name,
             (unsigned long long)pos, (unsigned long long)(pos + nbytes),
             ckpt->m.layout.files[file].path);
    int rc = ckpt_archive_open(a, ckpt, file, pos, nbytes, err);
    if (rc == FSDP_OK && (rc = refuse_misplaced(a, err)))
        ckpt_archive_close(a);
    if (rc)
        fsdp_free(a);
    return rc;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Is the view what .metadata promised? */
static int view_match(const struct ckpt_view_args *v, const struct ckpt_piece *piece,
                      const struct fsdp_tensor *tensor, const struct ckpt_archive *a,
                      struct fsdp_err *err)
{
    if (v->dtype != tensor->dtype)
        return BAD("%s: .metadata says %s, the file holds %s", a->what,
                   fsdp_dtype_name(tensor->dtype), fsdp_dtype_name(v->dtype));
    bool same = v->ndim == tensor->ndim;
    for (int d = 0; same && d < v->ndim; d++)
        same = v->size[d] == piece->length[d];
    if (!same)
        return BAD("%s: the file holds another shape than .metadata says", a->what);
    return FSDP_OK;
}

static int blob_fill(struct blob *out, const struct ckpt_archive *a, const struct ckpt_view_args *v,
                     struct fsdp_err *err)
{
    const struct ckpt_zip_entry *entry;
    uint64_t pos = 0, nelem = 0;
    bool plain = false;

    FSDP_TRY(ckpt_view_prove(&plain, &nelem, v, a->what, err));
    FSDP_TRY(ckpt_archive_storage(&entry, &pos, a, v, err));
    if (!plain) {
        uint64_t *stride = fsdp_alloc((size_t)v->ndim, sizeof *stride, "strides", err);
        if (!stride)
            return FSDP_ENOMEM;
        memcpy(stride, v->stride, (size_t)v->ndim * sizeof *stride);
        out->view.stride = stride;
    }
    const size_t elem_nbytes = fsdp_dtype_nbytes(v->dtype);
    out->storage = (struct ckpt_storage){
        .file = a->file, .pos = a->pos + pos, .nbytes = entry->nbytes, .crc32 = entry->crc32};
    out->view.pos = out->storage.pos + v->offset * elem_nbytes;
    out->view.summed = plain && nelem * elem_nbytes == entry->nbytes;
    out->view.negative = v->negative;
    out->view.conjugate = v->conjugate;
    out->resolved = true;
    return FSDP_OK;
}

static int blob_read(struct blob *out, struct ckpt *ckpt, size_t index, struct fsdp_err *err)
{
    const struct ckpt_piece *piece = &ckpt->m.layout.pieces[index];
    const struct ckpt_tensor *tensor = &ckpt->m.layout.tensors[piece->tensor];
    struct ckpt_archive *a;
    struct ckpt_pickle pickle = {0};
    struct ckpt_view_args v;
    char *data = NULL;

    FSDP_TRY(
        archive_open(&a, ckpt, piece->file, piece->pos, piece->blob_nbytes, tensor->stored, err));
    int rc = ckpt_archive_pickle(&pickle, &data, a, PICKLE_NBYTES, ckpt_pickle_parse, err);
    if (rc == FSDP_OK)
        rc = ckpt_view_parse(&v, pickle.root, a->what, err);
    if (rc == FSDP_OK)
        rc = view_match(&v, piece, &tensor->tensor, a, err);
    if (rc == FSDP_OK)
        rc = blob_fill(out, a, &v, err);
    ckpt_pickle_free(&pickle);
    ckpt_archive_close(a);
    fsdp_free(data);
    fsdp_free(a);
    return rc;
}

/* [npieces]; NULL until one is read. */
static struct blob *blobs_of(const struct ckpt *ckpt)
{
    return ckpt->format_state;
}

void ckpt_blobs_destroy(struct ckpt *ckpt)
{
    struct blob *blobs = blobs_of(ckpt);
    for (size_t i = 0; blobs && i < ckpt->m.layout.npieces; i++)
        fsdp_free((void *)(uintptr_t)blobs[i].view.stride);
    fsdp_free(blobs);
    ckpt->format_state = NULL;
}

/* The blob of a piece, resolved. Thread safe: what is resolved does not change. */
static int blob_find(struct blob **out, struct ckpt *ckpt, size_t piece, struct fsdp_err *err)
{
    struct blob mine = {0};

    pthread_mutex_lock(&ckpt->lock);
    if (!ckpt->format_state)
        ckpt->format_state = fsdp_alloc(ckpt->m.layout.npieces, sizeof mine, "blobs", err);
    struct blob *blobs = blobs_of(ckpt);
    const bool resolved = blobs && blobs[piece].resolved;
    pthread_mutex_unlock(&ckpt->lock);
    if (!blobs)
        return FSDP_ENOMEM;
    *out = &blobs[piece];
    if (resolved)
        return FSDP_OK;
    FSDP_TRY(blob_read(&mine, ckpt, piece, err));
    /* Two threads may have read it: the later one's copy goes. */
    pthread_mutex_lock(&ckpt->lock);
    if (blobs[piece].resolved) {
        fsdp_free((void *)(uintptr_t)mine.view.stride);
    } else {
        blobs[piece] = mine;
        blobs[piece].view.storage = &blobs[piece].storage;
    }
    pthread_mutex_unlock(&ckpt->lock);
    return FSDP_OK;
}

int ckpt_blob_extent_read(const struct ckpt_scatter *s, const struct ckpt_extent *extent,
                          const struct ckpt_block *block, const struct fsdp_tensor *tensor)
{
    struct blob *blob;
    FSDP_TRY(blob_find(&blob, s->ckpt, extent->piece, s->err));
    return ckpt_view_read(s, &blob->view, extent, block, tensor);
}

int ckpt_blob_locate(struct ckpt_storage *out, uint64_t *pos, struct ckpt *ckpt, size_t piece,
                     struct fsdp_err *err)
{
    const struct ckpt_piece *p = &ckpt->m.layout.pieces[piece];
    struct blob *blob;

    FSDP_TRY(blob_find(&blob, ckpt, piece, err));
    if (blob->view.stride || blob->view.negative || blob->view.conjugate)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "'%s': '%s' is a tensor with strides",
                            ckpt->path, ckpt->m.layout.tensors[p->tensor].stored);
    *out = blob->storage;
    *pos = blob->view.pos;
    return FSDP_OK;
}

int ckpt_blob_check(struct ckpt *ckpt, size_t piece, struct fsdp_err *err)
{
    struct blob *blob;
    FSDP_TRY(blob_find(&blob, ckpt, piece, err));
    return ckpt_storage_check(ckpt, &blob->storage, piece, err);
}

int ckpt_blobs_finish(struct ckpt *ckpt, struct fsdp_err *err)
{
    const struct blob *blobs = blobs_of(ckpt);
    for (size_t i = 0; blobs && i < ckpt->m.layout.npieces; i++)
        if (blobs[i].storage.nsummed)
            FSDP_TRY(ckpt_storage_check(ckpt, &blobs[i].storage, i, err));
    return FSDP_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

int ckpt_blob_value(struct ckpt_pickle *out, char **data, bool *has_tensors, struct ckpt *ckpt,
                    const struct ckpt_blob_place *at, const char *name, struct fsdp_err *err)
{
    struct ckpt_archive *a;

    *data = NULL;
    *has_tensors = false;
    FSDP_TRY(archive_open(&a, ckpt, at->file, at->pos, at->nbytes, name, err));
    *has_tensors = ckpt_archive_has_storages(a);
    int rc = ckpt_archive_pickle(out, data, a, CKPT_MAX_VALUE_NBYTES, ckpt_pickle_parse, err);
    ckpt_archive_close(a);
    fsdp_free(a);
    return rc;
}
