/* SPDX-License-Identifier: Apache-2.0 */
/* How much a rank sends of a flat, and where its parts lie in that. Pure. */
#include "gather.h"
#include "nf4.h"

enum { PIECE_ALIGN = 64 };

uint64_t gather_aligned(uint64_t nbytes)
{
    return (nbytes + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
}

bool gather_is_encoded(const struct flat *flat, int i)
{
    return flat->codec && flat->codec->applies(&flat->tensors[i]);
}

/* Where tensor i, which is not encoded, lies in what a rank sends; i = ntensors: the end. */
uint64_t gather_raw_start(const struct flat *flat, int i)
{
    uint64_t at = gather_aligned(flat->cut.shard_nelem * flat->codec->elem_nbytes);
    for (int k = 0; k < i; k++)
        if (!gather_is_encoded(flat, k))
            at += gather_aligned(fsdp_tensor_nelem(&flat->tensors[k]) *
                                 fsdp_dtype_nbytes(flat->param_dtype));
    return at;
}

uint64_t gather_shard_nbytes(const struct flat *flat)
{
    if (flat->nf4)
        return nf4_shard_nbytes(flat);
    if (flat_travels_encoded(flat))
        return gather_raw_start(flat, flat->ntensors);
    return flat->cut.shard_nelem * fsdp_dtype_nbytes(flat->param_dtype);
}

uint64_t gather_whole_nbytes(const struct flat *flat)
{
    return flat_full_nelem(flat) * fsdp_dtype_nbytes(flat->param_dtype);
}

uint64_t gather_slot_nbytes(const struct flat *flat)
{
    if (!flat_travels_encoded(flat))
        return gather_whole_nbytes(flat);
    return gather_aligned(gather_whole_nbytes(flat)) +
           gather_shard_nbytes(flat) * (uint64_t)flat->cut.nranks;
}
