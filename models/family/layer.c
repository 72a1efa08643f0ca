/* SPDX-License-Identifier: Apache-2.0 */
/* What both branches of a layer are made of: products, norms, the addition to the stream. */
#include "layer.h"

static int rows_of(const struct stack_block *blk)
{
    return blk->B * blk->Tq;
}

/* ---- products -------------------------------------------------------------------------------- */

/* A slot's matrix: where it begins, as its family stores it. */
struct matrix {
    const struct stack_param *w, *b; /* b NULL: no bias */
    size_t at;                       /* elements of w before it */
    struct stack_place place;
    int ldw; /* transposed: elements from a row to the next; else 0 */
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
    };
}

static const void *weight_at(const struct matrix *x)
{
    return nn_at(x->w->w, x->w->w_dtype, x->at);
}

static const void *bias_at(const struct matrix *x)
{
    return x->b ? nn_at(x->b->w, x->b->w_dtype, (size_t)x->place.first) : NULL;
}

float layer_pair_beta(const struct stack_param *w, const struct stack_param *b)
{
    return w->dw || !b ? w->dw_beta : b->dw_beta;
}

/* What a product reads and writes, as nn_linear and nn_affine name it. */
struct operands {
    void *out, *db;
    const void *x, *w, *b, *dy;
    float beta;
};
enum direction { FORWARD, TO_INPUT, TO_WEIGHT };

static int run_linear(const struct model *m, const struct stack_block *blk,
                      const struct matrix *matrix, const struct operands *o, enum direction way,
                      struct fsdp_err *err)
{
    int (*const run[])(struct fsdp_lane *, const struct nn_linear *, struct fsdp_err *) = {
        m->nn->linear_forward, m->nn->linear_backward_input, m->nn->linear_backward_weight};
    const struct nn_linear args = {.out = o->out,
                                   .db = o->db,
                                   .b = o->b,
                                   .x = o->x,
                                   .w = o->w,
                                   .dy = o->dy,
                                   .work = blk->work,
                                   .rows = rows_of(blk),
                                   .nin = matrix->place.nin,
                                   .nout = matrix->place.nout,
                                   .beta = o->beta,
                                   .dtype = blk->dtype,
                                   .y_dtype = blk->dtype,
                                   .w_dtype = matrix->w->w_dtype,
                                   .dw_dtype = matrix->w->dw_dtype};
    return run[way](blk->lane, &args, err);
}

static int run_affine(const struct model *m, const struct stack_block *blk,
                      const struct matrix *matrix, const struct operands *o, enum direction way,
                      struct fsdp_err *err)
{
    int (*const run[])(struct fsdp_lane *, const struct nn_affine *, struct fsdp_err *) = {
        m->nn->affine_forward, m->nn->affine_backward_input, m->nn->affine_backward_weight};
    const struct nn_affine args = {.out = o->out,
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
                                   .w_dtype = matrix->w->w_dtype,
                                   .dw_dtype = matrix->w->dw_dtype};
    return run[way](blk->lane, &args, err);
}

static int run_product(const struct model *m, const struct stack_block *blk,
                       const struct matrix *matrix, const struct operands *o, enum direction way,
                       struct fsdp_err *err)
{
    return matrix->ldw ? run_affine(m, blk, matrix, o, way, err)
                       : run_linear(m, blk, matrix, o, way, err);
}

int layer_project(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                  void *out, const void *x, float beta, struct fsdp_err *err)
{
    const struct matrix matrix = matrix_of(m, blk, slot);
    const struct operands o = {
        .out = out, .x = x, .w = weight_at(&matrix), .b = bias_at(&matrix), .beta = beta};
    FSDP_TRY(run_product(m, blk, &matrix, &o, FORWARD, err));
    return layer_lora_forward(m, blk, slot, out, x, err);
}

int layer_project_input(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                        void *dx, const void *dy, float beta, struct fsdp_err *err)
{
    const struct matrix matrix = matrix_of(m, blk, slot);
    const struct operands o = {.out = dx, .dy = dy, .w = weight_at(&matrix), .beta = beta};
    FSDP_TRY(run_product(m, blk, &matrix, &o, TO_INPUT, err));
    return layer_lora_input(m, blk, slot, dx, dy, err);
}

int layer_project_weight(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                         const void *dy, const void *x, struct fsdp_err *err)
{
    const struct matrix matrix = matrix_of(m, blk, slot);
    const struct stack_param *w = matrix.w, *b = matrix.b;
    const struct operands o = {.out = nn_at(w->dw, w->dw_dtype, matrix.at),
                               .db =
                                   b ? nn_at(b->dw, b->dw_dtype, (size_t)matrix.place.first) : NULL,
                               .dy = dy,
                               .x = x,
                               .beta = layer_pair_beta(w, b)};
    FSDP_TRY(run_product(m, blk, &matrix, &o, TO_WEIGHT, err));
    return layer_lora_weight(m, blk, slot, dy, x, err);
}

/* ---- norms ----------------------------------------------------------------------------------- */

struct stack_norm layer_norm(const struct stack_block *blk, const struct model *m,
                             enum stack_slot slot, int rows, int dim)
{
    const struct stack_place place = m->place[slot];
    const struct stack_param *w = &blk->param[place.weight];
    const struct stack_param *b = place.bias < 0 ? NULL : &blk->param[place.bias];
    return (struct stack_norm){.w = w->w,
                               .b = b ? b->w : NULL,
                               .rows = rows,
                               .dim = dim,
                               .dw = w->dw,
                               .db = b ? b->dw : NULL,
                               .dw_beta = layer_pair_beta(w, b),
                               .dtype = blk->dtype,
                               .w_dtype = w->w_dtype,
                               .dw_dtype = w->dw_dtype};
}

struct stack_norm layer_stream_norm(const struct stack_block *blk, const struct model *m,
                                    enum stack_slot slot)
{
    struct stack_norm norm = layer_norm(blk, m, slot, rows_of(blk), m->traits.dim);
    norm.mean = blk->mean[slot];
    norm.rstd = blk->rstd[slot];
    return norm;
}

/* ---- the stream ------------------------------------------------------------------------------ */

const void *layer_mlp_input(const struct model *m, const struct stack_block *blk)
{
    if (!m->traits.parallel)
        return blk->out;
    return blk->in != blk->out ? blk->in : blk->in_copy ? blk->in_copy : blk->mid;
}

static struct nn_scale_add stream_scale_add(const struct model *m, const struct stack_block *blk)
{
    return (struct nn_scale_add){
        .nelem = (size_t)rows_of(blk) * (size_t)m->traits.dim, .alpha = 1, .dtype = blk->dtype};
}

int layer_copy(const struct model *m, const struct stack_block *blk, void *out, const void *x,
               struct fsdp_err *err)
{
    const size_t nelem = (size_t)rows_of(blk) * (size_t)m->traits.dim;
    return fsdp_copy(blk->lane, out, x, nelem * fsdp_dtype_nbytes(blk->dtype), err);
}

/* ---- a branch's end -------------------------------------------------------------------------- */

static bool has_dropout(const struct model *m, const struct stack_block *blk)
{
    return blk->drop && m->traits.resid_drop > 0;
}

static struct nn_dropout branch_dropout(const struct model *m, const struct stack_block *blk,
                                        enum stack_site site)
{
    return (struct nn_dropout){.B = blk->B,
                               .row_nelem = (size_t)blk->Tq * (size_t)m->traits.dim,
                               .dtype = blk->dtype,
                               .drop =
                                   stack_drop(blk->drop, blk->layer, site, m->traits.resid_drop)};
}

int layer_add_branch(const struct model *m, const struct stack_block *blk, enum stack_site site,
                     struct fsdp_err *err)
{
    struct nn_scale_add sum = stream_scale_add(m, blk);
    struct nn_dropout dropout = branch_dropout(m, blk, site);

    if (has_dropout(m, blk)) {
        dropout.out = blk->out;
        dropout.x = blk->norm;
        dropout.beta = 1;
        return m->nn->dropout(blk->lane, &dropout, err);
    }
    sum.out = blk->out;
    sum.x = blk->norm;
    sum.alpha = (float)m->traits.residual_scale;
    sum.beta = 1;
    return m->nn->scale_add(blk->lane, &sum, err);
}

int layer_end_forward(const struct model *m, const struct stack_block *blk,
                      const struct layer_end *end, const void *x, bool add, struct fsdp_err *err)
{
    if (m->traits.post_norm) {
        struct stack_norm norm = layer_stream_norm(blk, m, end->post);
        norm.x = end->y;
        norm.y = blk->norm;
        FSDP_TRY(layer_project(m, blk, end->slot, end->y, x, 0, err));
        FSDP_TRY(stack_norm_forward(m, blk->lane, &norm, err));
        return add ? layer_add_branch(m, blk, end->site, err) : FSDP_OK;
    }
    if (!add)
        return FSDP_OK;
    /* The addition is the product's own where nothing comes between. */
    if (!has_dropout(m, blk) && m->traits.residual_scale == 1)
        return layer_project(m, blk, end->slot, blk->out, x, 1, err);
    FSDP_TRY(layer_project(m, blk, end->slot, blk->norm, x, 0, err));
    return layer_add_branch(m, blk, end->site, err);
}

int layer_branch_gradient(const void **dy, const struct model *m, const struct stack_block *blk,
                          enum stack_site site, const void *d_out, struct fsdp_err *err)
{
    struct nn_scale_add scale = stream_scale_add(m, blk);
    struct nn_dropout dropout = branch_dropout(m, blk, site);

    *dy = d_out;
    if (has_dropout(m, blk)) {
        dropout.out = blk->norm;
        dropout.x = d_out;
        *dy = blk->norm;
        return m->nn->dropout(blk->lane, &dropout, err);
    }
    if (m->traits.residual_scale == 1)
        return FSDP_OK;
    scale.out = blk->norm;
    scale.x = d_out;
    scale.alpha = (float)m->traits.residual_scale;
    *dy = blk->norm;
    return m->nn->scale_add(blk->lane, &scale, err);
}

int layer_end_backward(const void **dy, const struct model *m, const struct stack_block *blk,
                       const struct layer_end *end, const void *d_out, struct fsdp_err *err)
{
    FSDP_TRY(layer_branch_gradient(dy, m, blk, end->site, d_out, err));
    if (!m->traits.post_norm)
        return FSDP_OK;
    if (*dy != blk->norm)
        FSDP_TRY(layer_copy(m, blk, blk->norm, *dy, err));
    struct stack_norm norm = layer_stream_norm(blk, m, end->post);
    norm.y = blk->norm;
    norm.x = norm.dx = end->y;
    *dy = end->y;
    return stack_norm_backward(m, blk->lane, &norm, err);
}
