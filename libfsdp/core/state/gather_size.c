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
    return gather_whole_nbytes(flat) / (uint64_t)flat->cut.nranks;
}

size_t gather_seen_elem(const struct flat *flat, int i)
{
    return flat->codes[i] ? flat->codec->elem_nbytes : fsdp_dtype_nbytes(flat->param_dtype);
}

/* Elements of the flat from tensor i to the next. */
static uint64_t room_nelem(const struct flat *flat, int i)
{
    return (i + 1 < flat->ntensors ? flat->cut.start[i + 1] : flat_full_nelem(flat)) -
           flat->cut.start[i];
}

void gather_see(struct flat *flat)
{
    uint64_t at = 0;

    flat->any_codes = false;
    for (int i = 0; i < flat->ntensors; i++) {
        flat->codes[i] &= gather_is_encoded(flat, i) && flat->codec->codes == FSDP_F8_E4M3;
        flat->any_codes |= flat->codes[i];
    }
    for (int i = 0; i < flat->ntensors; i++) {
        flat->seen[i] = at;
        at += room_nelem(flat, i) * gather_seen_elem(flat, i);
        at = flat->any_codes ? gather_aligned(at) : at;
    }
    flat->seen[flat->ntensors] = at;
}

/* With codes, each rank's part of it is a whole number of aligned bytes (reshard_after_forward). */
uint64_t gather_whole_nbytes(const struct flat *flat)
{
    const uint64_t nbytes = flat->seen[flat->ntensors];
    const uint64_t each = PIECE_ALIGN * (uint64_t)flat->cut.nranks;
    return flat->any_codes ? (nbytes + each - 1) / each * each : nbytes;
}

uint64_t gather_slot_nbytes(const struct flat *flat)
{
    if (!flat_travels_encoded(flat))
        return gather_whole_nbytes(flat);
    return gather_aligned(gather_whole_nbytes(flat)) +
           gather_shard_nbytes(flat) * (uint64_t)flat->cut.nranks;
}
