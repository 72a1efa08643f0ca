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

/* ---- bitsandbytes ---------------------------------------------------------------------------- */

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

/* ---- compressed-tensors ---------------------------------------------------------------------- */

enum { CODES = 1 << 11 };

/* Where an element of the matrix has its scale, and the first byte of its code. */
static uint64_t scale_of(const struct ckpt_codes *c, uint64_t at)
{
    const uint64_t row_nelem = c->tensor.shape[1];
    return c->whole ? 0 : at / row_nelem * (row_nelem / c->group) + at % row_nelem / c->group;
}

static uint64_t byte_of(const struct ckpt_codes *c, uint64_t at)
{
    const uint64_t row_nelem = c->tensor.shape[1];
    return at / row_nelem * c->row_nbytes + at % row_nelem * (uint64_t)c->bits / 8;
}

/* The number that an integer's code stands for. */
static float number_of(const struct ckpt_codes *c, uint8_t byte, uint64_t at)
{
    if (!c->words)
        return (float)(int8_t)byte;
    if (c->bits == 8)
        return (float)((int)byte - 128);
    return (float)((at % c->tensor.shape[1] % 2 ? byte >> 4 : byte & 15) - 8);
}

/* As decode_piece; n at most CODES. */
static int decode_codes(const struct ckpt_scatter *s, const struct ckpt_packed *p, uint64_t first,
                        size_t n, char *dst)
{
    const struct ckpt_codes *c = &p->codes;
    const uint64_t scale = scale_of(c, first), byte = byte_of(c, first), last = first + n - 1;
    const size_t elem_nbytes = fsdp_dtype_nbytes(c->tensor.dtype);
    const size_t nscales = (size_t)(scale_of(c, last) - scale + 1);
    uint8_t codes[4 * CODES + 4], raw[4 * CODES]; /* at most a word of codes for each element */
    float x[CODES], scales[CODES];

    FSDP_TRY(ckpt_file_pread(s->ckpt, p->codes_file, codes, (size_t)(byte_of(c, last) - byte + 1),
                             p->codes_pos + byte, s->err));
    FSDP_TRY(ckpt_file_pread(s->ckpt, p->scales_file, raw, nscales * elem_nbytes,
                             p->scales_pos + scale * elem_nbytes, s->err));
    ckpt_convert(scales, FSDP_F32, raw, c->tensor.dtype, nscales);
    if (c->floats)
        ckpt_convert(x, FSDP_F32, codes, FSDP_F8_E4M3, n);
    for (size_t i = 0; i < n; i++) {
        const uint64_t at = first + i;
        if (!c->floats)
            x[i] = number_of(c, codes[byte_of(c, at) - byte], at);
        x[i] *= scales[scale_of(c, at) - scale];
    }
    ckpt_convert(dst, c->tensor.dtype, x, FSDP_F32, n);
    return FSDP_OK;
}

/* ---- both ------------------------------------------------------------------------------------ */

static int decode_any(const struct ckpt_scatter *s, const struct ckpt_packed *p, uint64_t first,
                      size_t n, char *dst)
{
    if (!p->codes.bits)
        return decode_piece(s, p, first, n, dst);
    for (size_t at = 0; at < n; at += CODES)
        FSDP_TRY(decode_codes(s, p, first + at, n - at < CODES ? n - at : CODES,
                              dst + at * s->elem_nbytes));
    return FSDP_OK;
}

/* Loops [loop, nloops) of an extent, from element `first` of the tensor on. */
static int read_loops(const struct ckpt_scatter *s, const struct ckpt_packed *p,
                      const struct ckpt_extent *x, int loop, uint64_t first, char *dst)
{
    for (uint64_t at = 0; loop == x->nloops && at < x->run_nelem; at += PIECE) {
        const uint64_t n = x->run_nelem - at < PIECE ? x->run_nelem - at : PIECE;
        FSDP_TRY(decode_any(s, p, first + at, (size_t)n, dst + at * s->elem_nbytes));
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
