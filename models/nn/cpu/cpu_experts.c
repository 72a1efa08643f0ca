/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: rows to their experts and back, and the experts' products. */
#include "cpu.h"

/* ---- rows ------------------------------------------------------------------------------------ */

/* out[at ..] = weight x[from ..] + beta out, over nelem elements. */
struct weighted {
    void *out;
    const void *x;
    size_t at, from, nelem;
    float weight, beta;
    enum fsdp_dtype dtype;
};

static void spread_row(const struct weighted *w)
{
    float in_room[NN_PIECE], out_room[NN_PIECE];

    if (w->weight == 1.0f) {
        memcpy(nn_at(w->out, w->dtype, w->at), nn_at(w->x, w->dtype, w->from),
               w->nelem * fsdp_dtype_nbytes(w->dtype));
        return;
    }
    for (size_t i = 0; i < w->nelem; i += NN_PIECE) {
        const size_t n = w->nelem - i < NN_PIECE ? w->nelem - i : NN_PIECE;
        const float *in = nn_read(w->x, w->dtype, w->from + i, n, in_room);
        float *out = nn_piece(w->out, w->dtype, w->at + i, out_room);
        for (size_t k = 0; k < n; k++)
            out[k] = w->weight * in[k];
        nn_write(w->out, w->dtype, w->at + i, n, out);
    }
}

static void spread_places(void *arg, int worker, size_t from, size_t to)
{
    const struct nn_spread_rows *a = arg;
    const size_t dim = (size_t)a->dim;

    (void)worker;
    for (size_t place = from; place < to; place++) {
        const int32_t slot = a->slot[place];
        const struct weighted w = {.out = a->out,
                                   .x = a->x,
                                   .at = place * dim,
                                   .from = (size_t)(slot / a->chosen) * dim,
                                   .nelem = dim,
                                   .weight = a->weight ? a->weight[slot] : 1,
                                   .dtype = a->dtype};
        spread_row(&w);
    }
}

static void spread_rows(struct nn_spread_rows *a)
{
    fsdp_cpu_for((size_t)a->rows * (size_t)a->chosen, 16, spread_places, a);
}

/* Elements [from, from + n) of a row, n at most NN_PIECE. */
static void collect_piece(const struct nn_collect_rows *a, size_t row, size_t from, size_t n)
{
    const size_t dim = (size_t)a->dim, K = (size_t)a->chosen, at = row * dim + from;
    float sum[NN_PIECE] = {0}, room[NN_PIECE];

    if (a->beta != 0.0f) {
        const float *old = nn_read(a->out, a->dtype, at, n, room);
        for (size_t i = 0; i < n; i++)
            sum[i] = a->beta * old[i];
    }
    for (size_t slot = row * K; slot < (row + 1) * K; slot++) {
        const float weight = a->weight ? a->weight[slot] : 1;
        const float *x = nn_read(a->x, a->dtype, (size_t)a->place[slot] * dim + from, n, room);
        for (size_t i = 0; i < n; i++)
            sum[i] += weight * x[i];
    }
    fsdp_cpu_convert(nn_at(a->out, a->dtype, at), a->dtype, sum, FSDP_F32, n);
}

static void collect_some(void *arg, int worker, size_t from, size_t to)
{
    const struct nn_collect_rows *a = arg;
    const size_t dim = (size_t)a->dim;

    (void)worker;
    for (size_t row = from; row < to; row++)
        for (size_t i = 0; i < dim; i += NN_PIECE)
            collect_piece(a, row, i, dim - i < NN_PIECE ? dim - i : NN_PIECE);
}

static void collect_rows(struct nn_collect_rows *a)
{
    fsdp_cpu_for((size_t)a->rows, 16, collect_some, a);
}

static double bias_product(const struct nn_weigh_backward *a, size_t place, int32_t expert)
{
    const size_t nout = (size_t)a->nout;
    float d_room[NN_PIECE], b_room[NN_PIECE];
    double sum = 0;

    for (size_t i = 0; i < nout; i += NN_PIECE) {
        const size_t n = nout - i < NN_PIECE ? nout - i : NN_PIECE;
        const float *d = nn_read(a->d_out, a->dtype, place * nout + i, n, d_room);
        const float *b = nn_read(a->b, a->w_dtype, (size_t)expert * nout + i, n, b_room);
        sum += nn_dot(d, b, n);
    }
    return sum;
}

static void weigh_place(const struct nn_weigh_backward *a, size_t place)
{
    const size_t dim = (size_t)a->dim;
    const int32_t slot = a->slot[place];
    float y_room[NN_PIECE], dy_room[NN_PIECE];
    double sum = a->b ? bias_product(a, place, a->expert[slot]) : 0;

    for (size_t i = 0; i < dim; i += NN_PIECE) {
        const size_t n = dim - i < NN_PIECE ? dim - i : NN_PIECE, at = place * dim + i;
        const float *y = nn_read(a->y, a->dtype, at, n, y_room);
        float *dy = nn_change(a->dy, a->dtype, at, n, dy_room);
        sum += nn_dot(dy, y, n);
        for (size_t k = 0; k < n; k++)
            dy[k] *= a->weight[slot];
        nn_write(a->dy, a->dtype, at, n, dy);
    }
    a->dweight[slot] = (float)sum;
}

static void weigh_places(void *arg, int worker, size_t from, size_t to)
{
    (void)worker;
    for (size_t place = from; place < to; place++)
        weigh_place(arg, place);
}

static void weigh_backward(struct nn_weigh_backward *a)
{
    fsdp_cpu_for((size_t)a->nplaces, 16, weigh_places, a);
}

NN_CPU_ENQUEUE(spread_rows, nn_spread_rows)
NN_CPU_ENQUEUE(collect_rows, nn_collect_rows)
NN_CPU_ENQUEUE(weigh_backward, nn_weigh_backward)

/* ---- products -------------------------------------------------------------------------------- */

struct grouped {
    const struct nn_grouped *args;
    enum nn_way way;
    struct nn_grouped_values values; /* with f8 */
    float *work;                     /* of the products */
};

/* The experts' products side by side, or one after the other and each divided among the threads. */
static bool side_by_side(const struct nn_grouped *a)
{
    const double nflops = 2.0 * a->nplaces * a->nin * a->nout / a->experts, worth = 4e6;
    return a->experts >= fsdp_cpu_threads() && nflops < worth * fsdp_cpu_threads();
}

/* Of the products, whose operands are values of codes with f8. */
static size_t products_nelem(const struct nn_grouped *a)
{
    struct nn_linear shape = nn_grouped_whole(a);
    if (a->f8.dtype)
        shape.dtype = shape.w_dtype = FSDP_BF16;
    return nn_cpu_linear_work_nelem(&shape);
}

/* Elements of x, or dy, and of w as values of codes. */
static size_t places_nelem(const struct nn_grouped *a, int width)
{
    return nn_cpu_f8_room_nelem((size_t)a->nplaces, (size_t)width);
}
static size_t weights_nelem(const struct nn_grouped *a)
{
    return nn_cpu_f8_room_nelem((size_t)a->experts, (size_t)a->nin * (size_t)a->nout);
}

size_t nn_cpu_grouped_work_nelem(const struct nn_grouped *a)
{
    const size_t x = places_nelem(a, a->nin), dy = places_nelem(a, a->nout), w = weights_nelem(a);
    const size_t least = x < w ? (x < dy ? x : dy) : (w < dy ? w : dy);
    return products_nelem(a) + (a->f8.dtype ? x + w + dy - least : 0);
}

/* Rows of an operand that lie ld elements apart, rounded with one scale, at the begin of work. */
static const void *round_rows(struct grouped *g, const void *x, enum fsdp_dtype dtype,
                              enum fsdp_dtype f8, struct nn_f8_operand shape, size_t ld)
{
    const struct nn_matrix from = {x, (int)ld, false, dtype, f8};
    float *room = g->work;

    g->work += nn_cpu_f8_room_nelem((size_t)shape.rows, (size_t)shape.cols);
    nn_cpu_f8_matrix(&from, &shape, room);
    return room;
}

/* The weights, which are codes, as values. */
static const void *decode_weights(struct grouped *g)
{
    const struct nn_grouped *a = g->args;
    const size_t matrix = (size_t)a->nin * (size_t)a->nout;
    float *room = g->work;

    g->work += weights_nelem(a);
    for (int e = 0; e < a->experts; e++) {
        const struct nn_matrix from = {nn_grouped_w(a, e), a->nin, false, a->w_dtype, a->f8.dtype};
        const struct nn_f8_operand shape = {
            .rows = a->nout, .cols = a->nin, .codes_amax = nn_grouped_amax(a, e)};
        nn_cpu_f8_matrix(&from, &shape, nn_at(room, FSDP_BF16, (size_t)e * matrix));
    }
    return room;
}

/* What the way reads becomes values of codes. */
static void round_operands(struct grouped *g)
{
    const struct nn_grouped *a = g->args;
    const struct nn_f8_operand x = {.rows = a->nplaces, .cols = a->nin};
    const struct nn_f8_operand dy = {.rows = a->nplaces, .cols = a->nout};
    const struct nn_f8_operand w = {.rows = a->experts, .cols = a->nin * a->nout};
    struct nn_grouped_values *v = &g->values;

    v->w_stride = (size_t)w.cols;
    if (g->way != NN_TO_INPUT)
        v->x = round_rows(g, a->x, a->dtype, a->f8.dtype, x, (size_t)a->nin);
    if (g->way != NN_FORWARD)
        v->dy = round_rows(g, a->dy, a->dtype, a->f8.grad_dtype, dy, (size_t)a->nout);
    if (g->way != NN_TO_WEIGHT)
        v->w = a->w_amax ? decode_weights(g)
                         : round_rows(g, a->w, a->w_dtype, a->f8.dtype, w, a->stride);
}

static void sum_bias(const struct nn_linear *one)
{
    const struct nn_row_sum sum = {.out = one->db,
                                   .in = one->dy,
                                   .nrows = one->rows,
                                   .ncols = one->nout,
                                   .ld = one->nout,
                                   .beta = one->beta,
                                   .out_dtype = one->dw_dtype,
                                   .in_dtype = one->y_dtype};
    nn_sum_rows(&sum);
}

/* Of an expert with rows. */
static void run_product(const struct grouped *g, const struct nn_linear *one, int e)
{
    struct nn_product product = nn_linear_product(one, g->way);

    if (g->args->f8.dtype)
        nn_grouped_take_values(&product, g->args, g->way, &g->values, e, g->args->first[e]);
    product.passing = true;
    nn_run_product(product);
}

static void run_expert(const struct grouped *g, const struct nn_linear *one, int e)
{
    if (g->way == NN_TO_WEIGHT && one->db)
        sum_bias(one);
    if (one->rows && one->out)
        run_product(g, one, e);
    else if (g->way == NN_TO_WEIGHT && one->out && one->beta == 0.0f)
        memset(one->out, 0, nn_grouped_matrix_nbytes(g->args));
}

static void run_experts(void *arg, int worker, size_t from, size_t to)
{
    const struct grouped *g = arg;
    const struct nn_grouped *a = g->args;
    const size_t each = products_nelem(a) / (size_t)fsdp_cpu_threads();
    const size_t own = g->work && side_by_side(a) ? (size_t)worker * each : 0;

    for (size_t e = from; e < to; e++) {
        const int begin = a->first[e], rows = a->first[e + 1] - begin;
        struct nn_linear one = nn_grouped_linear(a, g->way, (int)e, begin, rows);
        one.work = g->work ? g->work + own : NULL;
        if (rows || g->way == NN_TO_WEIGHT)
            run_expert(g, &one, (int)e);
    }
}

static void run_grouped(const struct nn_grouped *a, enum nn_way way)
{
    struct grouped g = {.args = a, .way = way, .work = a->work};

    if (a->f8.dtype && a->out)
        round_operands(&g);
    if (side_by_side(a))
        fsdp_cpu_for((size_t)a->experts, 1, run_experts, &g);
    else
        run_experts(&g, 0, 0, (size_t)a->experts);
}

static void grouped_forward(const struct nn_grouped *a)
{
    run_grouped(a, NN_FORWARD);
}

static void grouped_backward_input(const struct nn_grouped *a)
{
    run_grouped(a, NN_TO_INPUT);
}

static void grouped_backward_weight(const struct nn_grouped *a)
{
    if (a->out || a->db)
        run_grouped(a, NN_TO_WEIGHT);
}

NN_CPU_ENQUEUE(grouped_forward, nn_grouped)
NN_CPU_ENQUEUE(grouped_backward_input, nn_grouped)
NN_CPU_ENQUEUE(grouped_backward_weight, nn_grouped)
