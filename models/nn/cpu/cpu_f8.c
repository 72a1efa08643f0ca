/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products in 8 bits. Operands are rounded to the values of their codes, which bf16 holds, and then
 * multiplied as bf16: the reference of what a GPU computes with the codes.
 */
#include "cpu.h"
#include "nn/f8.h"

static size_t round_up(size_t nelem)
{
    return (nelem + 63) / 64 * 64; /* pieces of work begin at multiples of 256 bytes */
}

size_t nn_cpu_f8_room_nelem(size_t rows, size_t cols)
{
    return round_up((rows * cols + 1) / 2);
}

size_t nn_cpu_f8_nelem(const struct nn_linear *s)
{
    const size_t rows = (size_t)s->rows, nin = (size_t)s->nin, nout = (size_t)s->nout;
    const size_t x = nn_cpu_f8_room_nelem(rows, nin), w = nn_cpu_f8_room_nelem(nout, nin),
                 dy = nn_cpu_f8_room_nelem(rows, nout);
    const size_t least = x < w ? (x < dy ? x : dy) : (w < dy ? w : dy);
    return x + w + dy - least;
}

/* A matrix as it lies, and the sums along its rows or down its columns. */
struct narrowing {
    const struct nn_matrix *x;
    uint16_t *out; /* bf16, rows without space between them */
    size_t nrows, ncols;
    bool down;
    size_t group; /* elements that share a scale, in that direction; 0: all */
    uint32_t amax;
};

static const float *read_piece(const struct narrowing *a, size_t row, size_t col, size_t nelem,
                               float *room)
{
    return nn_read(a->x->at, a->x->dtype, row * (size_t)a->x->ld + col, nelem, room);
}

FSDP_CPU_CLONES static uint32_t greatest(const float *x, size_t nelem, uint32_t least)
{
    uint32_t most = least;
    for (size_t i = 0; i < nelem; i++) {
        const uint32_t magnitude = nn_f8_magnitude(x[i]);
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

FSDP_CPU_CLONES static void greater_each(uint32_t *restrict most, const float *restrict x,
                                         size_t nelem)
{
    for (size_t i = 0; i < nelem; i++) {
        const uint32_t magnitude = nn_f8_magnitude(x[i]);
        most[i] = magnitude > most[i] ? magnitude : most[i];
    }
}

/* The upper half of an fp32 that has no more bits. */
static inline uint16_t bf16_of(float x)
{
    return (uint16_t)(nn_f8_bits(x) >> 16);
}

FSDP_CPU_CLONES static void round_piece(uint16_t *restrict out, const float *restrict x,
                                        size_t nelem, struct nn_f8_type type, int e)
{
    const float inverse = nn_f8_power(-e), scale = nn_f8_power(e);
    for (size_t i = 0; i < nelem; i++)
        out[i] = bf16_of(nn_f8_round(type, x[i] * inverse) * scale);
}

FSDP_CPU_CLONES static void round_each(uint16_t *restrict out, const float *restrict x,
                                       size_t nelem, struct nn_f8_type type, const int *restrict e)
{
    for (size_t i = 0; i < nelem; i++)
        out[i] = bf16_of(nn_f8_round(type, x[i] * nn_f8_power(-e[i])) * nn_f8_power(e[i]));
}

/* ---- one scale for all ----------------------------------------------------------------------- */

static void amax_rows(void *arg, int worker, size_t from, size_t to)
{
    struct narrowing *a = arg;
    float room[NN_PIECE];
    uint32_t most = 0;
    (void)worker;
    for (size_t r = from; r < to; r++)
        for (size_t c = 0; c < a->ncols; c += NN_PIECE) {
            const size_t nelem = a->ncols - c < NN_PIECE ? a->ncols - c : NN_PIECE;
            most = greatest(read_piece(a, r, c, nelem, room), nelem, most);
        }
    uint32_t old = __atomic_load_n(&a->amax, __ATOMIC_RELAXED);
    while (old < most && !__atomic_compare_exchange_n(&a->amax, &old, most, false, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED))
        ;
}

static void round_rows(void *arg, int worker, size_t from, size_t to)
{
    const struct narrowing *a = arg;
    const int e = nn_f8_exponent(a->x->f8, a->amax);
    float room[NN_PIECE];
    (void)worker;
    for (size_t r = from; r < to; r++)
        for (size_t c = 0; c < a->ncols; c += NN_PIECE) {
            const size_t nelem = a->ncols - c < NN_PIECE ? a->ncols - c : NN_PIECE;
            round_piece(a->out + r * a->ncols + c, read_piece(a, r, c, nelem, room), nelem,
                        nn_f8_type(a->x->f8), e);
        }
}

/* ---- a scale for each group ------------------------------------------------------------------ */

/* Of one row, from column `col` on. */
static void round_group(const struct narrowing *a, size_t row, size_t col, size_t nelem)
{
    float room[NN_PIECE];
    uint32_t amax = 0;

    for (size_t c = 0; c < nelem; c += NN_PIECE) {
        const size_t n = nelem - c < NN_PIECE ? nelem - c : NN_PIECE;
        amax = greatest(read_piece(a, row, col + c, n, room), n, amax);
    }
    for (size_t c = 0; c < nelem; c += NN_PIECE) {
        const size_t n = nelem - c < NN_PIECE ? nelem - c : NN_PIECE;
        round_piece(a->out + row * a->ncols + col + c, read_piece(a, row, col + c, n, room), n,
                    nn_f8_type(a->x->f8), nn_f8_exponent(a->x->f8, amax));
    }
}

static void groups_along(void *arg, int worker, size_t from, size_t to)
{
    const struct narrowing *a = arg;
    (void)worker;
    for (size_t r = from; r < to; r++)
        for (size_t c = 0; c < a->ncols; c += a->group)
            round_group(a, r, c, a->ncols - c < a->group ? a->ncols - c : a->group);
}

/* Of some columns, the groups of rows [row, row + nrows). */
static void round_slab(const struct narrowing *a, size_t row, size_t nrows, size_t col, size_t n)
{
    float room[NN_PIECE];
    uint32_t amax[NN_PIECE] = {0};
    int e[NN_PIECE];

    for (size_t r = row; r < row + nrows; r++)
        greater_each(amax, read_piece(a, r, col, n, room), n);
    for (size_t i = 0; i < n; i++)
        e[i] = nn_f8_exponent(a->x->f8, amax[i]);
    for (size_t r = row; r < row + nrows; r++)
        round_each(a->out + r * a->ncols + col, read_piece(a, r, col, n, room), n,
                   nn_f8_type(a->x->f8), e);
}

static void groups_down(void *arg, int worker, size_t from, size_t to)
{
    const struct narrowing *a = arg;
    (void)worker;
    for (size_t c = from; c < to; c += NN_PIECE) {
        const size_t n = to - c < NN_PIECE ? to - c : NN_PIECE;
        for (size_t r = 0; r < a->nrows; r += a->group)
            round_slab(a, r, a->nrows - r < a->group ? a->nrows - r : a->group, c, n);
    }
}

/* ---- of what is codes ------------------------------------------------------------------------ */

struct decoding {
    const struct nn_matrix *x;
    uint16_t *out; /* bf16, rows without space between them */
    size_t ncols;
    uint16_t value[256]; /* of each code */
};

static void decode_rows(void *arg, int worker, size_t from, size_t to)
{
    const struct decoding *a = arg;
    (void)worker;
    for (size_t r = from; r < to; r++) {
        const uint8_t *codes = (const uint8_t *)a->x->at + r * (size_t)a->x->ld;
        for (size_t c = 0; c < a->ncols; c++)
            a->out[r * a->ncols + c] = a->value[codes[c]];
    }
}

static void decode_matrix(const struct nn_matrix *x, size_t nrows, size_t ncols, double amax,
                          float *room)
{
    struct decoding a = {.x = x, .out = (uint16_t *)room, .ncols = ncols};
    const float scale = nn_f8_gathered_scale(amax);

    for (int code = 0; code < 256; code++)
        a.value[code] = bf16_of(nn_f8_value((uint8_t)code) * scale);
    fsdp_cpu_for(nrows, NN_GRAIN / (ncols ? ncols : 1) + 1, decode_rows, &a);
}

/* ---- operands -------------------------------------------------------------------------------- */

/* What nn_cpu_f8_matrix makes. */
static struct nn_matrix rounded_matrix(const struct nn_matrix *x, const struct nn_f8_operand *as,
                                       const float *room)
{
    return (struct nn_matrix){room, x->transposed ? as->rows : as->cols, x->transposed, FSDP_BF16,
                              FSDP_F32};
}

struct nn_matrix nn_cpu_f8_matrix(const struct nn_matrix *x, const struct nn_f8_operand *as,
                                  float *room)
{
    const size_t nrows = (size_t)(x->transposed ? as->cols : as->rows);
    const size_t ncols = (size_t)(x->transposed ? as->rows : as->cols);
    struct narrowing a = {.x = x,
                          .out = (uint16_t *)room,
                          .nrows = nrows,
                          .ncols = ncols,
                          .down = as->sums_down != x->transposed};
    const size_t length = a.down ? nrows : ncols, grain = NN_GRAIN / (ncols ? ncols : 1) + 1;

    if (as->codes_amax) {
        decode_matrix(x, nrows, ncols, *as->codes_amax, room);
    } else if (as->scale == NN_F8_TENSOR) {
        if (as->amax)
            a.amax = *as->amax;
        else
            fsdp_cpu_for(nrows, grain, amax_rows, &a);
        fsdp_cpu_for(nrows, grain, round_rows, &a);
    } else {
        a.group = as->scale == NN_F8_BLOCK ? NN_F8_BLOCK_NELEM : length ? length : 1;
        if (a.down)
            fsdp_cpu_for(ncols, NN_PIECE / 16, groups_down, &a);
        else
            fsdp_cpu_for(nrows, grain, groups_along, &a);
    }
    return rounded_matrix(x, as, room);
}

struct nn_product nn_cpu_f8_product(const struct nn_product *g)
{
    const struct nn_f8_operand a = {g->m, g->k, false, g->f8_scale, NULL, NULL};
    const struct nn_f8_operand b = {g->k, g->n, true, g->f8_scale, g->b_amax, g->b_shared};
    const size_t a_nelem = nn_cpu_f8_room_nelem((size_t)g->m, (size_t)g->k);
    const size_t b_nelem = nn_cpu_f8_room_nelem((size_t)g->k, (size_t)g->n);
    const bool is_there = g->made && *g->made;
    struct nn_product plain = *g;
    float *second = g->work + (g->b_first ? b_nelem : a_nelem);

    if (g->b_first) {
        plain.b =
            is_there ? rounded_matrix(&g->b, &b, g->work) : nn_cpu_f8_matrix(&g->b, &b, g->work);
        plain.a = nn_cpu_f8_matrix(&g->a, &a, second);
    } else {
        plain.a =
            is_there ? rounded_matrix(&g->a, &a, g->work) : nn_cpu_f8_matrix(&g->a, &a, g->work);
        plain.b = nn_cpu_f8_matrix(&g->b, &b, second);
    }
    plain.work = g->work + a_nelem + b_nelem;
    return plain;
}

static void f8_amax(const struct nn_f8_amax *args)
{
    struct narrowing a = {.amax = 0};

    for (int i = 0; i < args->count; i++) {
        const struct nn_matrix w = {args->w[i], args->cols[i], false, args->dtype, FSDP_F32};
        a.x = &w;
        a.nrows = (size_t)args->rows[i];
        a.ncols = (size_t)args->cols[i];
        fsdp_cpu_for(a.nrows, NN_GRAIN / (a.ncols ? a.ncols : 1) + 1, amax_rows, &a);
    }
    *args->amax = a.amax;
}

NN_CPU_ENQUEUE(f8_amax, nn_f8_amax)

enum nn_f8_made *nn_cpu_f8_made(enum nn_f8_made *made, const void *out, const struct nn_f8 *f8)
{
    static enum nn_f8_made values = NN_F8_VALUES;
    const bool is_there = made && *made;

    if (made && out)
        *made = f8->dtype ? NN_F8_VALUES : NN_F8_NOTHING;
    return is_there ? &values : NULL;
}
