/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding: Su et al., arXiv 2104.09864, with Hugging Face's pairing (i, i + D/2).
 */
#include <math.h>
#include <string.h>

#include "cpu.h"

static float round_to(double x, enum fsdp_dtype dtype)
{
    uint32_t room;
    float value = (float)x;
    fsdp_cpu_convert(&room, dtype, &value, FSDP_F32, 1);
    fsdp_cpu_convert(&value, FSDP_F32, &room, dtype, 1);
    return value;
}

/* What the cosine and sine of a position are multiplied by. */
static double amplitude(const struct nn_rope_table *a, int position)
{
    const double scale = a->scale == 0 ? 1 : a->scale;
    return a->growth == 0
               ? scale
               : scale * (1 + a->growth * log1p(floor((double)position / a->growth_span)));
}

static void rope_table(const struct nn_rope_table *a)
{
    for (int t = 0; t < a->T; t++) {
        const double scale = amplitude(a, a->first + t);
        for (int i = 0; i < a->half; i++) {
            const size_t at = (size_t)t * (size_t)a->half + (size_t)i;
            double angle = (double)(a->first + t) * a->inv_freq[i], s, c;
            sincos(angle, &s, &c);
            a->cos[at] = round_to(scale * c, a->dtype);
            a->sin[at] = round_to(scale * s, a->dtype);
        }
    }
}

FSDP_CPU_CLONES static void rotate(float *restrict lo, float *restrict hi, const float *restrict c,
                                   const float *restrict s, size_t half, float sign)
{
    for (size_t i = 0; i < half; i++) {
        float x = lo[i], y = hi[i], sine = sign * s[i];
        lo[i] = x * c[i] - y * sine;
        hi[i] = y * c[i] + x * sine;
    }
}

/* Heads at one position that a piece has room for, from element `first` on. */
static void rotate_heads(const struct nn_rope *a, size_t first, size_t nheads, size_t table)
{
    const size_t D = (size_t)a->D, half = (size_t)nn_rope_R(a) / 2;
    const float sign = a->inverse ? -1.0f : 1.0f;
    float room[NN_PIECE];
    float *x = nn_change(a->x, a->dtype, first, nheads * D, room);

    for (size_t h = 0; h < nheads; h++)
        rotate(x + h * D, x + h * D + half, a->cos + table, a->sin + table, half, sign);
    nn_write(a->x, a->dtype, first, nheads * D, x);
}

/* A head that is longer than a piece. */
static void rotate_long_head(const struct nn_rope *a, size_t head, size_t table)
{
    const size_t half = (size_t)nn_rope_R(a) / 2;
    const float sign = a->inverse ? -1.0f : 1.0f;
    float lo_room[NN_PIECE], hi_room[NN_PIECE];

    for (size_t from = 0; from < half; from += NN_PIECE) {
        const size_t n = half - from < NN_PIECE ? half - from : NN_PIECE;
        float *lo = nn_change(a->x, a->dtype, head + from, n, lo_room);
        float *hi = nn_change(a->x, a->dtype, head + half + from, n, hi_room);
        rotate(lo, hi, a->cos + table + from, a->sin + table + from, n, sign);
        nn_write(a->x, a->dtype, head + from, n, lo);
        nn_write(a->x, a->dtype, head + half + from, n, hi);
    }
}

/* Rows of all sequences, a row being a position's heads. */
static void rotate_rows(void *arg, int worker, size_t from, size_t to)
{
    const struct nn_rope *a = arg;
    const size_t half = (size_t)nn_rope_R(a) / 2, heads = (size_t)a->heads, D = (size_t)a->D;
    const size_t ld = (size_t)nn_rope_ld(a), at_once = D < NN_PIECE ? NN_PIECE / D : 1;
    (void)worker;
    for (size_t row = from; row < to; row++) {
        if (a->from)
            memcpy(nn_at(a->x, a->dtype, row * ld), nn_at(a->from, a->dtype, row * heads * D),
                   heads * D * fsdp_dtype_nbytes(a->dtype));
        const size_t position = a->positions ? (size_t)a->positions[row] : row % (size_t)a->T;
        for (size_t h = 0; h < heads; h += at_once) {
            const size_t n = heads - h < at_once ? heads - h : at_once, first = row * ld + h * D;
            if (D <= NN_PIECE)
                rotate_heads(a, first, n, position * half);
            else
                rotate_long_head(a, first, position * half);
        }
    }
}

static void rope(struct nn_rope *a)
{
    fsdp_cpu_for((size_t)a->B * (size_t)a->T, 32, rotate_rows, a);
}

NN_CPU_ENQUEUE(rope_table, nn_rope_table)
NN_CPU_ENQUEUE(rope, nn_rope)
