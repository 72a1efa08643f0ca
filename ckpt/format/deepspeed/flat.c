/* SPDX-License-Identifier: Apache-2.0 */
#include "flat.h"

int ckpt_ds_stream_add(struct ckpt_ds_stream *stream, const struct ckpt_plain_vector *vector,
                       struct fsdp_err *err)
{
    struct ckpt_plain_vector *vectors = fsdp_alloc_grow(
        stream->vectors, stream->count, &stream->max, sizeof *vectors, "flat vectors", err);
    if (!vectors)
        return FSDP_ENOMEM;
    stream->vectors = vectors;
    vectors[stream->count++] = *vector;
    stream->nelem += vector->nelem;
    return FSDP_OK;
}

void ckpt_ds_stream_free(struct ckpt_ds_stream *stream)
{
    fsdp_free(stream->vectors);
    *stream = (struct ckpt_ds_stream){0};
}

const struct ckpt_plain_vector *ckpt_ds_stream_at(bool *whole, size_t *index,
                                                  const struct ckpt_ds_stream *stream, uint64_t pos,
                                                  uint64_t nelem)
{
    const struct ckpt_plain_vector *first = NULL;
    uint64_t from = 0;

    *whole = true;
    *index = 0;
    for (size_t i = 0; i < stream->count && from < pos + nelem; i++) {
        const struct ckpt_plain_vector *vector = &stream->vectors[i];
        from += vector->nelem;
        if (from <= pos)
            continue;
        *index = first ? *index : i;
        first = first ? first : vector;
        *whole &= (vector->file == CKPT_DS_NOTHING) == (first->file == CKPT_DS_NOTHING);
    }
    return first;
}

int ckpt_ds_stream_place(const struct ckpt_ds_stream *stream, uint64_t pos, uint64_t at,
                         uint64_t nelem, struct ckpt_layout *layout, struct fsdp_err *err)
{
    for (size_t i = 0; i < stream->count && nelem; i++) {
        const struct ckpt_plain_vector *vector = &stream->vectors[i];
        if (pos >= vector->nelem) {
            pos -= vector->nelem;
            continue;
        }
        const uint64_t left = vector->nelem - pos, n = nelem < left ? nelem : left;
        FSDP_TRY(ckpt_plain_place(vector, pos, at, n, layout, err));
        pos = 0;
        at += n;
        nelem -= n;
    }
    return FSDP_OK;
}
