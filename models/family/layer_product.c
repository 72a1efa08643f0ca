/* SPDX-License-Identifier: Apache-2.0 */
/* The products of a layer with its matrices, as the family stores them. */
#include "layer.h"

static int rows_of(const struct stack_block *blk)
{
    return blk->B * blk->Tq;
}

/* A slot's matrix: where it begins, as its family stores it. */
struct matrix {
    const struct stack_param *w, *b; /* b NULL: no bias */
    size_t at;                       /* elements of w before it */
    struct stack_place place;
    int ldw; /* transposed: elements from a row to the next; else 0 */
    struct nn_f8 f8;
    const uint32_t *shared; /* as nn_linear.w_shared */
};

static struct matrix matrix_of(const struct model *m, const struct stack_block *blk,
                               enum stack_slot slot)
{
    const struct stack_place place = m->place[slot];
    const bool transposed = m->family->names->fusion == TRAITS_TRANSPOSED;
    return (struct matrix){
        .w = &blk->param[place.weight],
        .b = place.bias < 0 ? NULL : &blk->param[place.bias],
        .at = (size_t)place.first * (transposed ? 1 : (size_t)place.nin),
        .place = place,
        .ldw = transposed ? m->weight[place.weight].cols : 0,
        .f8 = m->weight[place.weight].f8,
        .shared =
            stack_shares_scale(m, slot) && !blk->param[place.weight].w_amax ? blk->w_shared : NULL,
    };
}

static const void *weight_at(const struct matrix *x)
{
    return stack_weight_at(x->w, x->at);
}

static const void *bias_at(const struct matrix *x)
{
    return x->b ? nn_at(x->b->w, x->b->w_dtype, (size_t)x->place.first) : NULL;
}

/* What a product reads and writes, as nn_linear names it. */
struct operands {
    void *out, *db;
    const void *x, *w, *b, *dy;
    float beta;
    enum nn_f8_made *made;
};

static struct nn_linear linear_of(const struct stack_block *blk, const struct matrix *matrix,
                                  const struct operands *o)
{
    return (struct nn_linear){.out = o->out,
                              .db = o->db,
                              .b = o->b,
                              .x = o->x,
                              .w = o->w,
                              .dy = o->dy,
                              .work = blk->work,
                              .rows = rows_of(blk),
                              .nin = matrix->place.nin,
                              .nout = matrix->place.nout,
                              .ldw = matrix->ldw,
                              .beta = o->beta,
                              .dtype = blk->dtype,
                              .y_dtype = blk->dtype,
                              .w_dtype = matrix->w->w_dtype,
                              .dw_dtype = matrix->w->dw_dtype,
                              .f8 = matrix->f8,
                              .w_amax = matrix->w->w_amax,
                              .w_shared = matrix->shared,
                              .made = o->made};
}

static int run_product(const struct model *m, const struct stack_block *blk,
                       const struct matrix *matrix, const struct operands *o, enum nn_way way,
                       struct fsdp_err *err)
{
    int (*const run[])(struct fsdp_lane *, const struct nn_linear *, struct fsdp_err *) = {
        m->nn->linear_forward, m->nn->linear_backward_input, m->nn->linear_backward_weight};
    const struct nn_linear args = linear_of(blk, matrix, o);
    return run[way](blk->lane, &args, err);
}

float layer_pair_beta(const struct stack_param *w, const struct stack_param *b)
{
    return w->dw || !b ? w->dw_beta : b->dw_beta;
}

struct layer_matrix layer_matrix(const struct model *m, const struct stack_block *blk,
                                 enum stack_slot slot)
{
    const struct matrix matrix = matrix_of(m, blk, slot);
    return (struct layer_matrix){.w = weight_at(&matrix), .b = bias_at(&matrix), .ldw = matrix.ldw};
}

int layer_product(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                  void *out, const void *x, float beta, struct fsdp_err *err)
{
    const struct matrix matrix = matrix_of(m, blk, slot);
    const struct operands o = {.out = out, .x = x, .w = weight_at(&matrix), .beta = beta};
    return run_product(m, blk, &matrix, &o, NN_FORWARD, err);
}

int layer_plain(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                void *out, const void *x, float beta, enum nn_f8_made *made, struct fsdp_err *err)
{
    const struct matrix matrix = matrix_of(m, blk, slot);
    const struct operands o = {.out = out,
                               .x = x,
                               .w = weight_at(&matrix),
                               .b = bias_at(&matrix),
                               .beta = beta,
                               .made = made};
    return run_product(m, blk, &matrix, &o, NN_FORWARD, err);
}

int layer_project_activated(const struct model *m, const struct stack_block *blk,
                            enum stack_slot slot, void *act, void *pre, const void *x, bool *done,
                            struct fsdp_err *err)
{
    const struct matrix matrix = matrix_of(m, blk, slot);
    const struct operands o = {.out = act, .x = x, .w = weight_at(&matrix), .b = bias_at(&matrix)};
    const struct nn_activated args = {linear_of(blk, &matrix, &o), pre, m->traits.act};

    *done = false;
    return m->nn->activated_forward && matrix.ldw && matrix.place.lora <= 0
               ? m->nn->activated_forward(blk->lane, &args, done, err)
               : FSDP_OK;
}

int layer_project_input_activated(const struct model *m, const struct stack_block *blk,
                                  enum stack_slot slot, void *d_pre, void *pre, const void *dy,
                                  bool *done, struct fsdp_err *err)
{
    const struct matrix matrix = matrix_of(m, blk, slot);
    const struct operands o = {.out = d_pre, .dy = dy, .w = weight_at(&matrix)};
    const struct nn_activated args = {linear_of(blk, &matrix, &o), pre, m->traits.act};

    *done = false;
    return m->nn->activated_backward_input && matrix.ldw && matrix.place.lora <= 0
               ? m->nn->activated_backward_input(blk->lane, &args, done, err)
               : FSDP_OK;
}

int layer_plain_input(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                      void *dx, const void *dy, float beta, struct fsdp_err *err)
{
    const struct matrix matrix = matrix_of(m, blk, slot);
    const struct operands o = {.out = dx, .dy = dy, .w = weight_at(&matrix), .beta = beta};
    return run_product(m, blk, &matrix, &o, NN_TO_INPUT, err);
}

static struct operands weight_operands(const struct matrix *matrix, const void *dy, const void *x,
                                       enum nn_f8_made *made)
{
    const struct stack_param *w = matrix->w, *b = matrix->b;
    return (struct operands){.out = nn_at(w->dw, w->dw_dtype, matrix->at),
                             .db =
                                 b ? nn_at(b->dw, b->dw_dtype, (size_t)matrix->place.first) : NULL,
                             .dy = dy,
                             .x = x,
                             .beta = layer_pair_beta(w, b),
                             .made = made};
}

int layer_plain_weight(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                       const void *dy, const void *x, enum nn_f8_made *made, struct fsdp_err *err)
{
    const struct matrix matrix = matrix_of(m, blk, slot);
    const struct operands o = weight_operands(&matrix, dy, x, made);
    return run_product(m, blk, &matrix, &o, NN_TO_WEIGHT, err);
}

/* ---- maps of the same x ---------------------------------------------------------------------- */

int layer_share_scale(const struct model *m, const struct stack_block *blk,
                      const struct layer_map *map, int nmaps, struct fsdp_err *err)
{
    struct nn_f8_amax args = {.amax = blk->w_shared};

    for (int i = 0; i < nmaps; i++) {
        const int weight = m->place[map[i].slot].weight; /* maps of one lie next to each other */
        const struct stack_param *w = &blk->param[weight];
        if (!stack_shares_scale(m, map[i].slot) || w->w_amax ||
            (args.count && args.w[args.count - 1] == w->w))
            continue;
        args.dtype = w->w_dtype;
        args.w[args.count] = w->w;
        args.rows[args.count] = m->weight[weight].rows;
        args.cols[args.count++] = m->weight[weight].cols;
    }
    return args.count ? m->nn->f8_amax(blk->lane, &args, err) : FSDP_OK;
}

/* What lies between two of a map's operands and the next one's, in elements. */
struct steps {
    ptrdiff_t w, b, y;
};

static ptrdiff_t step_between(const void *from, const void *to, enum fsdp_dtype dtype)
{
    return (ptrdiff_t)((intptr_t)to - (intptr_t)from) / (ptrdiff_t)fsdp_dtype_nbytes(dtype);
}

static struct steps steps_of(const struct nn_linear *from, const struct nn_linear *to, bool weight)
{
    if (weight)
        return (struct steps){step_between(from->out, to->out, from->dw_dtype),
                              step_between(from->db, to->db, from->dw_dtype),
                              step_between(from->dy, to->dy, from->y_dtype)};
    return (struct steps){step_between(from->w, to->w, from->w_amax ? FSDP_U8 : from->w_dtype),
                          step_between(from->b, to->b, from->w_dtype),
                          step_between(from->out, to->out, from->y_dtype)};
}

static bool same_steps(struct steps a, struct steps b)
{
    return a.w == b.w && a.b == b.b && a.y == b.y;
}

/* In 8 bits their matrices share a scale; gradients have scales of their own. */
static bool has_same_scale(const struct nn_linear *a, const struct nn_linear *b, bool weight)
{
    if (!a->f8.dtype && !b->f8.dtype)
        return true;
    return !weight && a->f8.dtype == b->f8.dtype && a->f8.scale == b->f8.scale &&
           (a->w_amax || a->w_shared) && a->w_amax == b->w_amax && a->w_shared == b->w_shared;
}

/* Have they the same sizes, types and factor, and are both wanted, with a bias or without? */
static bool is_like(const struct nn_linear *a, const struct nn_linear *b)
{
    return a->out && b->out && a->nin == b->nin && a->nout == b->nout && a->beta == b->beta &&
           a->w_dtype == b->w_dtype && a->dw_dtype == b->dw_dtype && !a->b == !b->b &&
           !a->db == !b->db;
}

/* The longest run from map[0] on that lies at equal steps, which go forward. */
static struct nn_maps maps_of(const struct model *m, const struct stack_block *blk,
                              const struct layer_map *map, int nmaps, const void *x, bool weight,
                              enum nn_f8_made *made)
{
    struct nn_maps out = {.count = 1};
    struct nn_linear before = {.out = NULL};
    struct steps at = {0, 0, 0};

    for (int i = 0; i < nmaps && !stack_has_magnitudes(m, map[i].slot); i++) {
        const struct matrix matrix = matrix_of(m, blk, map[i].slot);
        const struct operands o = weight ? weight_operands(&matrix, map[i].y, x, NULL)
                                         : (struct operands){.out = map[i].y,
                                                             .x = x,
                                                             .w = weight_at(&matrix),
                                                             .b = bias_at(&matrix),
                                                             .made = made};
        const struct nn_linear one = linear_of(blk, &matrix, &o);
        const struct steps next = i ? steps_of(&before, &one, weight) : at;
        if (i && (!is_like(&before, &one) || !has_same_scale(&before, &one, weight) ||
                  next.w <= 0 || next.b < 0 || next.y <= 0 || (i > 1 && !same_steps(at, next))))
            break;
        if (!i)
            out.first = one;
        at = next;
        before = one;
        out.count = i + 1;
    }
    out.w_step = (size_t)at.w;
    out.b_step = (size_t)at.b;
    out.y_step = (size_t)at.y;
    return out;
}

static int run_maps(int (*run)(struct fsdp_lane *, const struct nn_maps *, bool *,
                               struct fsdp_err *),
                    const struct stack_block *blk, const struct nn_maps *maps, int *ndone,
                    struct fsdp_err *err)
{
    bool done = false;

    if (maps->count > 1)
        FSDP_TRY(run(blk->lane, maps, &done, err));
    *ndone = done ? maps->count : 0;
    return FSDP_OK;
}

int layer_plain_maps(const struct model *m, const struct stack_block *blk,
                     const struct layer_map *map, int nmaps, const void *x, enum nn_f8_made *made,
                     int *ndone, struct fsdp_err *err)
{
    *ndone = 0;
    if (!m->nn->maps_forward)
        return FSDP_OK;
    const struct nn_maps maps = maps_of(m, blk, map, nmaps, x, false, made);
    return run_maps(m->nn->maps_forward, blk, &maps, ndone, err);
}

int layer_plain_maps_weight(const struct model *m, const struct stack_block *blk,
                            const struct layer_map *map, int nmaps, const void *x, int *ndone,
                            struct fsdp_err *err)
{
    *ndone = 0;
    if (!m->nn->maps_backward_weight)
        return FSDP_OK;
    const struct nn_maps maps = maps_of(m, blk, map, nmaps, x, true, NULL);
    return run_maps(m->nn->maps_backward_weight, blk, &maps, ndone, err);
}

/* ---- maps of the same x as one --------------------------------------------------------------- */

/* Do the matrix, bias and gradients of `next` begin where those of `whole` end? Gradients that are
 * not wanted are NULL in both. */
static bool continues(const struct matrix *whole, const struct matrix *next)
{
    const struct stack_param *w = whole->w, *w2 = next->w, *b = whole->b, *b2 = next->b;
    const size_t step = (size_t)whole->place.nout * (whole->ldw ? 1 : (size_t)whole->place.nin);
    const struct operands o = weight_operands(whole, NULL, NULL, NULL);
    const struct operands o2 = weight_operands(next, NULL, NULL, NULL);

    return w->w_dtype == w2->w_dtype && w->dw_dtype == w2->dw_dtype && whole->ldw == next->ldw &&
           whole->place.nin == next->place.nin && !b == !b2 && o.beta == o2.beta &&
           weight_at(next) == nn_at(weight_at(whole), w->w_dtype, step) &&
           o2.out == nn_at(o.out, w->dw_dtype, step) &&
           (!b || (b->dw_dtype == b2->dw_dtype &&
                   o2.db == nn_at(o.db, b->dw_dtype, (size_t)whole->place.nout)));
}

/* Neither fp32, which gains nothing, nor 8 bits, where each dy has a scale of its own; and an
 * adapter reads its own dy. */
static bool is_joinable(const struct stack_block *blk, const struct matrix *x)
{
    return blk->dtype != FSDP_F32 && x->w->w_dtype == blk->dtype && !x->f8.dtype && !x->w->w_amax &&
           x->place.lora <= 0;
}

/* *whole = the maps as one. False: they do not make one. */
static bool join_maps(struct matrix *whole, const struct model *m, const struct stack_block *blk,
                      const enum stack_slot *slot, int nslots)
{
    *whole = matrix_of(m, blk, slot[0]);
    bool joins = is_joinable(blk, whole);
    for (int i = 1; i < nslots && joins; i++) {
        const struct matrix next = matrix_of(m, blk, slot[i]);
        joins = is_joinable(blk, &next) && continues(whole, &next);
        whole->place.nout += next.place.nout;
    }
    return joins;
}

bool layer_joins(const struct model *m, const struct stack_block *blk, const enum stack_slot *slot,
                 int nslots)
{
    struct matrix whole;
    return join_maps(&whole, m, blk, slot, nslots);
}

int layer_joined_input(const struct model *m, const struct stack_block *blk,
                       const enum stack_slot *slot, int nslots, void *dx, const void *dy,
                       float beta, struct fsdp_err *err)
{
    struct matrix whole;
    join_maps(&whole, m, blk, slot, nslots);
    const struct operands o = {.out = dx, .dy = dy, .w = weight_at(&whole), .beta = beta};
    return run_product(m, blk, &whole, &o, NN_TO_INPUT, err);
}

int layer_joined_weight(const struct model *m, const struct stack_block *blk,
                        const enum stack_slot *slot, int nslots, const void *dy, const void *x,
                        struct fsdp_err *err)
{
    struct matrix whole;
    join_maps(&whole, m, blk, slot, nslots);
    const struct operands o = weight_operands(&whole, dy, x, NULL);
    return run_product(m, blk, &whole, &o, NN_TO_WEIGHT, err);
}
