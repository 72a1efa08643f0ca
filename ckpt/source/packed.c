/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled without joining products and sums in one instruction: a scale is a product, and then a
 * sum. */
#include "unpack.h"

#include "util/convert.h"

const struct ckpt_packed *ckpt_packed_find(const struct ckpt *ckpt, int tensor)
{
    int low = 0, high = ckpt->npacked;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (ckpt->packed[middle].tensor < tensor)
            low = middle + 1;
        else
            high = middle;
    }
    return low < ckpt->npacked && ckpt->packed[low].tensor == tensor ? &ckpt->packed[low] : NULL;
}

enum { PIECE = 1 << 13 };

/* Elements [first, first + n) of the tensor, n at most PIECE. */
static int decode_piece(const struct ckpt_scatter *s, const struct ckpt_packed *p, uint64_t first,
                        size_t n, char *dst)
{
    const uint64_t block = first / CKPT_NF4_BLOCK, end = first + n;
    const size_t nblocks = (size_t)((end - 1) / CKPT_NF4_BLOCK - block + 1);
    uint8_t codes[PIECE / 2 + 1], scales[PIECE / CKPT_NF4_BLOCK + 2];
    float x[PIECE], scale = 0;

    FSDP_TRY(ckpt_file_pread(s->ckpt, p->codes_file, codes, (size_t)((end + 1) / 2 - first / 2),
                             p->codes_pos + first / 2, s->err));
    FSDP_TRY(
        ckpt_file_pread(s->ckpt, p->scales_file, scales, nblocks, p->scales_pos + block, s->err));
    for (size_t i = 0; i < n; i++) {
        const uint64_t at = first + i, of = at / CKPT_NF4_BLOCK;
        const uint8_t both = codes[at / 2 - first / 2];
        if (i == 0 || at % CKPT_NF4_BLOCK == 0) {
            const float product = p->state.map[scales[of - block]] * p->nested[of / CKPT_NF4_SUPER];
            scale = product + p->state.offset;
        }
        x[i] = p->state.values[at % 2 ? both & 15 : both >> 4] * scale;
    }
    ckpt_convert(dst, p->state.tensor.dtype, x, FSDP_F32, n);
    return FSDP_OK;
}

/* Loops [loop, nloops) of an extent, from element `first` of the tensor on. */
static int read_loops(const struct ckpt_scatter *s, const struct ckpt_packed *p,
                      const struct ckpt_extent *x, int loop, uint64_t first, char *dst)
{
    for (uint64_t at = 0; loop == x->nloops && at < x->run_nelem; at += PIECE) {
        const uint64_t n = x->run_nelem - at < PIECE ? x->run_nelem - at : PIECE;
        FSDP_TRY(decode_piece(s, p, first + at, (size_t)n, dst + at * s->elem_nbytes));
    }
    for (uint64_t i = 0; loop < x->nloops && i < x->count[loop]; i++)
        FSDP_TRY(read_loops(s, p, x, loop + 1, first + i * x->src_stride[loop],
                            dst + i * x->dst_stride[loop] * s->elem_nbytes));
    return FSDP_OK;
}

int ckpt_packed_read(const struct ckpt_scatter *s, const struct ckpt_packed *packed,
                     const struct ckpt_extent *extent)
{
    const uint64_t first = (extent->pos - packed->codes_pos) / s->elem_nbytes;
    return read_loops(s, packed, extent, 0, first, s->dst + extent->dst * s->elem_nbytes);
}

void ckpt_packed_free(struct ckpt *ckpt)
{
    for (int i = 0; i < ckpt->npacked; i++)
        fsdp_free(ckpt->packed[i].nested);
    fsdp_free(ckpt->packed);
    ckpt->packed = NULL;
    ckpt->npacked = 0;
}
