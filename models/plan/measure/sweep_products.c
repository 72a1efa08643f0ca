/* SPDX-License-Identifier: Apache-2.0 */
/* Products y = x wᵀ and their gradients, and attention. */
#include <math.h>

#include "sweep.h"

enum way { FORWARD, TO_INPUT, TO_WEIGHT, NWAYS };
enum { ROUNDS = 2 };

struct product {
    struct nn_linear args;
    enum way way;
};

/* Each call has another matrix, as each layer has: it is not in the caches of the call before. */
static int run_product(struct sweep *s, void *ctx, int call, struct fsdp_err *err)
{
    int (*const run[NWAYS])(struct fsdp_lane *, const struct nn_linear *, struct fsdp_err *) = {
        s->nn->linear_forward, s->nn->linear_backward_input, s->nn->linear_backward_weight};
    const struct product *p = ctx;
    struct nn_linear args = p->args;
    const size_t nmatrix = (size_t)args.nin * (size_t)args.nout;

    if (p->way == TO_WEIGHT)
        args.out = sweep_values(s, args.dw_dtype, nmatrix, call + 1);
    else
        args.w = sweep_values(s, args.w_dtype, nmatrix, call + 1);
    return run[p->way](s->lane, &args, err);
}

static struct fsdp_rate rate_of(const struct measure_linear *l, enum way way, double rows,
                                double seconds)
{
    struct fsdp_rate r = {.type = l->type, .m = l->rows, .n = l->nout, .k = l->nin};

    if (way == TO_INPUT) {
        r.n = l->nin;
        r.k = l->nout;
    } else if (way == TO_WEIGHT) {
        r.m = l->nout;
        r.n = l->nin;
        r.k = l->rows;
    }
    r.per_s = seconds > 0 ? 2 * rows * l->nin * l->nout / seconds : 0;
    return r;
}

/* The activations that one call reads and writes; memory of its own, for a result must not be an
 * operand. */
struct room {
    void *x, *y;
    float *work;
};

static void room_free(struct sweep *s, struct room *room)
{
    fsdp_device_free(s->opts->device, room->x);
    fsdp_device_free(s->opts->device, room->y);
    fsdp_device_free(s->opts->device, room->work);
}

static int room_make(struct room *room, struct sweep *s, struct nn_linear *a, struct fsdp_err *err)
{
    const size_t nx = (size_t)a->rows * (size_t)a->nin, ny = (size_t)a->rows * (size_t)a->nout;
    const size_t elem = fsdp_dtype_nbytes(a->dtype), nwork = s->nn->linear_work_nelem(a);

    room->x = fsdp_device_alloc(s->opts->device, nx * elem, "sweep of products", err);
    room->y = fsdp_device_alloc(s->opts->device, ny * elem, "sweep of products", err);
    room->work =
        nwork ? fsdp_device_alloc(s->opts->device, nwork * sizeof(float), "sweep of products", err)
              : NULL;
    if (!room->x || !room->y || (nwork && !room->work))
        return FSDP_ENOMEM;
    a->work = room->work;
    for (int k = 0; k < 2; k++) {
        const size_t n = k ? ny : nx, most = s->pool_nelem;
        char *to = k ? room->y : room->x;
        for (size_t at = 0; at < n; at += most) {
            const size_t part = n - at < most ? n - at : most;
            FSDP_TRY(fsdp_copy(s->lane, to + at * elem, sweep_values(s, a->dtype, part, 0),
                               part * elem, err));
        }
    }
    return fsdp_lane_sync(s->lane, err);
}

/* seconds: [NWAYS] */
static int time_ways(double *seconds, struct sweep *s, const struct nn_linear *a,
                     const struct room *room, struct fsdp_err *err)
{
    for (int way = FORWARD; way < NWAYS; way++) {
        struct product p = {*a, (enum way)way};
        p.args.x = room->x;
        p.args.dy = room->y;
        if (way == FORWARD)
            p.args.out = room->y;
        else if (way == TO_INPUT)
            p.args.out = room->x;
        FSDP_TRY(sweep_time(&seconds[way], s, run_product, &p, err));
    }
    return FSDP_OK;
}

/* A head makes its logits some rows at a time: so many are timed. */
static int rows_of(struct sweep *s, const struct measure_linear *l)
{
    const double most = (double)s->nn->logits_nelem / l->nout;
    const bool head = s->opts->shapes && l->nout == s->opts->shapes->vocab;

    return (int)(head && most >= 1 && most < l->rows ? most : l->rows);
}

/* *seconds[NWAYS] of so many rows; 0: too large to be measured. */
static int time_linear(double *seconds, struct sweep *s, const struct measure_linear *l,
                       struct fsdp_err *err)
{
    struct nn_linear a = {.rows = rows_of(s, l),
                          .nin = (int)l->nin,
                          .nout = (int)l->nout,
                          .dtype = l->type,
                          .y_dtype = l->type,
                          .w_dtype = l->type,
                          .dw_dtype = l->type};
    struct room room = {NULL, NULL, NULL};

    for (int way = 0; way < NWAYS; way++)
        seconds[way] = 0;
    if (a.rows < 1 || (size_t)a.nin * (size_t)a.nout > s->pool_nelem)
        return FSDP_OK;
    int rc = fsdp_oob_agree(s->opts->oob, room_make(&room, s, &a, err), err);
    if (rc == FSDP_OK)
        rc = time_ways(seconds, s, &a, &room, err);
    room_free(s, &room);
    return rc;
}

static int add_ways(struct sweep *s, const struct measure_linear *l, const double *seconds,
                    struct fsdp_err *err)
{
    for (int way = 0; way < NWAYS; way++)
        if (seconds[way] > 0)
            FSDP_TRY(sweep_add_rate(&s->out->products, &s->out->nproducts, &s->out->max_products,
                                    rate_of(l, (enum way)way, rows_of(s, l), seconds[way]), err));
    return FSDP_OK;
}

/* Rounds through the model's shapes are apart in time, so that what disturbs the machine for a
 * while does not fall on one of them. The first round wakes it up. */
static int sweep_model(struct sweep *s, const struct measure_shapes *shapes, struct fsdp_err *err)
{
    double all[MEASURE_MAX_SHAPES][ROUNDS][NWAYS];
    double rounds[ROUNDS], mean[NWAYS];

    for (int k = -1; k < ROUNDS; k++)
        for (int i = 0; i < shapes->nlinear; i++)
            FSDP_TRY(time_linear(all[i][k < 0 ? 0 : k], s, &shapes->linear[i], err));
    for (int i = 0; i < shapes->nlinear; i++) {
        for (int way = 0; way < NWAYS; way++) {
            for (int k = 0; k < ROUNDS; k++)
                rounds[k] = all[i][k][way];
            mean[way] = sweep_mean(rounds, ROUNDS);
        }
        FSDP_TRY(add_ways(s, &shapes->linear[i], mean, err));
    }
    return FSDP_OK;
}

/* Sizes of a grid, for models that are not this one. */
static int sweep_grid(struct sweep *s, struct fsdp_err *err)
{
    static const int host_sizes[] = {64, 256, 1024}, gpu_sizes[] = {256, 1024, 4096, 16384};
    const bool host = fsdp_device_is_host(s->opts->device);
    const int *sizes = host ? host_sizes : gpu_sizes;
    const int nsizes = host ? 3 : 4;
    bool late;

    for (int i = 0; i < nsizes * nsizes * nsizes; i++) {
        const struct measure_linear l = {.rows = sizes[i % nsizes],
                                         .nin = sizes[i / nsizes % nsizes],
                                         .nout = sizes[i / nsizes / nsizes],
                                         .type = s->opts->type};
        double seconds[NWAYS];
        FSDP_TRY(sweep_is_late(&late, s, err));
        if (late || s->opts->no_grid)
            return FSDP_OK;
        FSDP_TRY(time_linear(seconds, s, &l, err));
        FSDP_TRY(add_ways(s, &l, seconds, err));
    }
    return FSDP_OK;
}

int sweep_products(struct sweep *s, struct fsdp_err *err)
{
    const struct measure_shapes *shapes = s->opts->shapes;

    sweep_say(s, "products: %d shapes of the model%s", shapes ? shapes->nlinear : 0,
              s->opts->no_grid ? "" : ", and a grid");
    if (shapes)
        FSDP_TRY(sweep_model(s, shapes, err));
    FSDP_TRY(sweep_grid(s, err));
    for (int i = 0; i < s->out->nproducts; i++)
        if (s->out->products[i].per_s > s->out->product_per_s)
            s->out->product_per_s = s->out->products[i].per_s;
    return FSDP_OK;
}

/* ---- attention ------------------------------------------------------------------------------- */

struct attention {
    struct nn_attention args;
    bool backward;
};

/* The backward pass works in place: its results would become ever smaller operands. */
static int fill_operands(struct sweep *s, const struct nn_attention *a, struct fsdp_err *err)
{
    const size_t n = (size_t)a->B * (size_t)a->Tq * (size_t)a->NH * (size_t)a->D;
    const size_t part = n < s->pool_nelem ? n : s->pool_nelem;
    const size_t nbytes = part * fsdp_dtype_nbytes(a->dtype);

    FSDP_TRY(fsdp_copy(s->lane, a->q, sweep_values(s, a->dtype, part, 0), nbytes, err));
    FSDP_TRY(fsdp_copy(s->lane, a->k, sweep_values(s, a->dtype, part, 1), nbytes, err));
    return fsdp_copy(s->lane, a->v, sweep_values(s, a->dtype, part, 2), nbytes, err);
}

static int run_attention(struct sweep *s, void *ctx, int call, struct fsdp_err *err)
{
    const struct attention *a = ctx;

    if (a->backward && call % 4 == 0)
        FSDP_TRY(fill_operands(s, &a->args, err));
    return a->backward ? s->nn->attention_backward(s->lane, &a->args, err)
                       : s->nn->attention_forward(s->lane, &a->args, err);
}

enum { NROOMS = 7 };

static int attention_room(void *room[NROOMS], struct sweep *s, struct nn_attention *a,
                          struct fsdp_err *err)
{
    const size_t rows = (size_t)a->B * (size_t)a->Tq, elem = fsdp_dtype_nbytes(a->dtype);
    const size_t n = rows * (size_t)a->NH * (size_t)a->D;
    const size_t nbytes[NROOMS] = {n * elem,
                                   n * elem,
                                   n * elem,
                                   n * elem,
                                   n * elem,
                                   rows * (size_t)a->NH * sizeof(float),
                                   s->nn->attention_work_nelem(a) * sizeof(float)};

    for (int i = 0; i < NROOMS; i++) {
        room[i] = nbytes[i]
                      ? fsdp_device_alloc(s->opts->device, nbytes[i], "sweep of attention", err)
                      : NULL;
        if (nbytes[i] && !room[i])
            return FSDP_ENOMEM;
    }
    const size_t part = n < s->pool_nelem ? n : s->pool_nelem;
    FSDP_TRY(fsdp_copy(s->lane, room[4], sweep_values(s, a->dtype, part, 3), part * elem, err));
    a->q = room[0];
    a->k = room[1];
    a->v = room[2];
    a->o = room[3];
    a->d_o = room[4];
    a->lse = room[5];
    a->work = room[6];
    FSDP_TRY(fill_operands(s, a, err));
    return fsdp_lane_sync(s->lane, err);
}

/* T: the row's length, whose queries see `keys` on average. */
static int time_attention(struct sweep *s, const struct measure_attention *m, int T,
                          struct fsdp_err *err)
{
    const double size = m->head_dim;
    struct attention a = {.args = {.B = (int)(m->rows / T) > 0 ? (int)(m->rows / T) : 1,
                                   .Tq = T,
                                   .Tk = T,
                                   .NH = (int)m->heads,
                                   .NKV = (int)m->heads,
                                   .D = (int)size,
                                   .scale = 1 / sqrtf((float)size),
                                   .dtype = m->type,
                                   .w_dtype = m->type,
                                   .dw_dtype = m->type}};
    void *room[NROOMS] = {NULL};
    double seconds;
    int rc = fsdp_oob_agree(s->opts->oob, attention_room(room, s, &a.args, err), err);

    for (int backward = 0; backward < 2 && rc == FSDP_OK; backward++) {
        a.backward = backward;
        rc = sweep_time(&seconds, s, run_attention, &a, err);
        const double flops = (backward ? 10 : 4) * (double)a.args.B * T * m->heads * size * m->keys;
        const struct fsdp_rate rate = {m->type, m->keys, size, backward + 1.0, flops / seconds};
        if (rc == FSDP_OK)
            rc = sweep_add_rate(&s->out->attention, &s->out->nattention, &s->out->max_attention,
                                rate, err);
    }
    for (int i = 0; i < NROOMS; i++)
        fsdp_device_free(s->opts->device, room[i]);
    return rc;
}

int sweep_attention(struct sweep *s, struct fsdp_err *err)
{
    const struct measure_shapes *shapes = s->opts->shapes;
    struct measure_attention grid = {.rows = 0, .heads = 8, .head_dim = 64, .type = s->opts->type};
    const bool host = fsdp_device_is_host(s->opts->device);
    bool late;

    sweep_say(s, "attention");
    for (int i = 0; shapes && i < shapes->nattention; i++) {
        FSDP_TRY(time_attention(s, &shapes->attention[i],
                                shapes->seq_len > 0 ? shapes->seq_len : 256, err));
        grid = shapes->attention[i];
    }
    for (int T = host ? 32 : 1024; T <= (host ? 1024 : 16384); T *= host ? 2 : 4) {
        FSDP_TRY(sweep_is_late(&late, s, err));
        if (late || s->opts->no_grid)
            return FSDP_OK;
        grid.rows = T;
        grid.keys = (T + 1) / 2.0;
        FSDP_TRY(time_attention(s, &grid, T, err));
    }
    return FSDP_OK;
}
