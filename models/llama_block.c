/* SPDX-License-Identifier: Apache-2.0 */
/* One decoder layer, forward and backward, as a list of operators. */
#include <math.h>

#include "llama.h"

/* The shapes of a block, spelled out once. */
struct dims {
    int rows, C, F, NHD, KVD;
};

static struct dims dims_of(const struct model *m, const struct llama_block *blk)
{
    const struct llama_config *c = &m->config;
    return (struct dims){blk->B * blk->Tq, c->dim, c->ffn, c->nheads * c->head_dim,
                         c->nkv_heads * c->head_dim};
}

static struct nn_attention attention_of(const struct model *m, const struct llama_block *blk)
{
    const struct llama_config *c = &m->config;
    return (struct nn_attention){
        .q = blk->q,
        .k = blk->k,
        .v = blk->v,
        .o = blk->o,
        .lse = blk->lse,
        .work = blk->attn,
        .B = blk->B,
        .Tq = blk->Tq,
        .Tk = blk->Tk,
        .NH = c->nheads,
        .NKV = c->nkv_heads,
        .D = c->head_dim,
        .scale = (float)(1.0 / sqrt(c->head_dim)),
    };
}

/* out (rows, nout) = x (rows, nin) wᵀ + beta out */
static int project(const struct model *m, const struct llama_block *blk, float *out, const float *x,
                   const float *w, int nin, int nout, float beta, struct fsdp_err *err)
{
    struct nn_linear args = {.out = out,
                             .x = x,
                             .w = w,
                             .rows = blk->B * blk->Tq,
                             .nin = nin,
                             .nout = nout,
                             .beta = beta};
    return m->nn->linear_forward(blk->lane, &args, err);
}

static int rotate(const struct model *m, const struct llama_block *blk, float *x, int heads,
                  bool inverse, struct fsdp_err *err)
{
    struct nn_rope args = {.x = x,
                           .cos = blk->cos,
                           .sin = blk->sin,
                           .B = blk->B,
                           .T = blk->Tq,
                           .heads = heads,
                           .D = m->config.head_dim,
                           .inverse = inverse};
    return m->nn->rope(blk->lane, &args, err);
}

static int norm(const struct model *m, const struct llama_block *blk, const float *x,
                const float *w, float *rstd, float *x_copy, struct fsdp_err *err)
{
    struct nn_rmsnorm args = {.y = blk->norm,
                              .rstd = rstd,
                              .x_copy = x_copy,
                              .x = x,
                              .w = w,
                              .rows = blk->B * blk->Tq,
                              .dim = m->config.dim,
                              .eps = (float)m->config.norm_eps};
    return m->nn->rmsnorm_forward(blk->lane, &args, err);
}

int llama_block_forward(const struct model *m, const struct llama_block *blk, bool mlp_out,
                        struct fsdp_err *err)
{
    const struct dims d = dims_of(m, blk);
    const struct llama_config *c = &m->config;
    const struct nn_attention attention = attention_of(m, blk);

    FSDP_TRY(norm(m, blk, blk->in, blk->w[LLAMA_NORM1], blk->rstd1, blk->in_copy, err));
    FSDP_TRY(project(m, blk, blk->q, blk->norm, blk->w[LLAMA_Q], d.C, d.NHD, 0, err));
    FSDP_TRY(project(m, blk, blk->k_new, blk->norm, blk->w[LLAMA_K], d.C, d.KVD, 0, err));
    FSDP_TRY(project(m, blk, blk->v_new, blk->norm, blk->w[LLAMA_V], d.C, d.KVD, 0, err));
    FSDP_TRY(rotate(m, blk, blk->q, c->nheads, false, err));
    FSDP_TRY(rotate(m, blk, blk->k_new, c->nkv_heads, false, err));
    FSDP_TRY(m->nn->attention_forward(blk->lane, &attention, err));
    /* Residual additions are the matrix products' own. */
    FSDP_TRY(project(m, blk, blk->out, blk->o, blk->w[LLAMA_O], d.NHD, d.C, 1, err));

    FSDP_TRY(norm(m, blk, blk->out, blk->w[LLAMA_NORM2], blk->rstd2, blk->mid, err));
    FSDP_TRY(project(m, blk, blk->gate, blk->norm, blk->w[LLAMA_GATE], d.C, d.F, 0, err));
    FSDP_TRY(project(m, blk, blk->up, blk->norm, blk->w[LLAMA_UP], d.C, d.F, 0, err));
    if (!mlp_out)
        return FSDP_OK;
    struct nn_swiglu swiglu = {
        .y = blk->act, .gate = blk->gate, .up = blk->up, .nelem = (size_t)d.rows * (size_t)d.F};
    FSDP_TRY(m->nn->swiglu_forward(blk->lane, &swiglu, err));
    return project(m, blk, blk->out, blk->act, blk->w[LLAMA_DOWN], d.F, d.C, 1, err);
}

/* dx = dy w + beta dx */
static int backward_input(const struct model *m, const struct llama_block *blk, float *dx,
                          const float *dy, enum llama_weight w, int nin, int nout, float beta,
                          struct fsdp_err *err)
{
    struct nn_linear args = {.out = dx,
                             .dy = dy,
                             .w = blk->w[w],
                             .rows = blk->B * blk->Tq,
                             .nin = nin,
                             .nout = nout,
                             .beta = beta};
    return m->nn->linear_backward_input(blk->lane, &args, err);
}

/* dw = dyᵀ x + dw_beta dw */
static int backward_weight(const struct model *m, const struct llama_block *blk,
                           enum llama_weight w, const float *dy, const float *x, int nin, int nout,
                           struct fsdp_err *err)
{
    struct nn_linear args = {.out = blk->dw[w],
                             .dy = dy,
                             .x = x,
                             .rows = blk->B * blk->Tq,
                             .nin = nin,
                             .nout = nout,
                             .beta = blk->dw_beta};
    return m->nn->linear_backward_weight(blk->lane, &args, err);
}

/* Adds the gradient that came through the norm to blk->out; blk->norm goes from dy to y. */
static int backward_norm(const struct model *m, const struct llama_block *blk, enum llama_weight w,
                         const float *x, const float *rstd, struct fsdp_err *err)
{
    struct nn_rmsnorm_backward args = {.dy = blk->norm,
                                       .dx = blk->out,
                                       .dw = blk->dw[w],
                                       .x = x,
                                       .w = blk->w[w],
                                       .rstd = rstd,
                                       .rows = blk->B * blk->Tq,
                                       .dim = m->config.dim,
                                       .dx_beta = 1,
                                       .dw_beta = blk->dw_beta};
    return m->nn->rmsnorm_backward(blk->lane, &args, err);
}

/* The weight gradients come last in each half: they want the norm's output and the swiglu's, which
 * were not kept and which the backward operators make again on their way. */
static int backward_mlp(const struct model *m, const struct llama_block *blk, struct fsdp_err *err)
{
    const struct dims d = dims_of(m, blk);
    struct nn_swiglu swiglu = {
        .y = blk->act, .gate = blk->gate, .up = blk->up, .nelem = (size_t)d.rows * (size_t)d.F};

    FSDP_TRY(backward_input(m, blk, blk->act, blk->out, LLAMA_DOWN, d.F, d.C, 0, err));
    FSDP_TRY(m->nn->swiglu_backward(blk->lane, &swiglu, err));
    FSDP_TRY(backward_weight(m, blk, LLAMA_DOWN, blk->out, blk->act, d.F, d.C, err));
    FSDP_TRY(backward_input(m, blk, blk->norm, blk->gate, LLAMA_GATE, d.C, d.F, 0, err));
    FSDP_TRY(backward_input(m, blk, blk->norm, blk->up, LLAMA_UP, d.C, d.F, 1, err));
    FSDP_TRY(backward_norm(m, blk, LLAMA_NORM2, blk->mid, blk->rstd2, err));
    FSDP_TRY(backward_weight(m, blk, LLAMA_GATE, blk->gate, blk->norm, d.C, d.F, err));
    return backward_weight(m, blk, LLAMA_UP, blk->up, blk->norm, d.C, d.F, err);
}

static int backward_attention(const struct model *m, const struct llama_block *blk,
                              struct fsdp_err *err)
{
    const struct dims d = dims_of(m, blk);
    const struct llama_config *c = &m->config;
    struct nn_attention attention = attention_of(m, blk);

    attention.d_o = blk->act;
    FSDP_TRY(backward_input(m, blk, blk->act, blk->out, LLAMA_O, d.NHD, d.C, 0, err));
    FSDP_TRY(backward_weight(m, blk, LLAMA_O, blk->out, blk->o, d.NHD, d.C, err));
    FSDP_TRY(m->nn->attention_backward(blk->lane, &attention, err));
    FSDP_TRY(rotate(m, blk, blk->q, c->nheads, true, err));
    FSDP_TRY(rotate(m, blk, blk->k, c->nkv_heads, true, err));
    FSDP_TRY(backward_input(m, blk, blk->norm, blk->q, LLAMA_Q, d.C, d.NHD, 0, err));
    FSDP_TRY(backward_input(m, blk, blk->norm, blk->k, LLAMA_K, d.C, d.KVD, 1, err));
    FSDP_TRY(backward_input(m, blk, blk->norm, blk->v, LLAMA_V, d.C, d.KVD, 1, err));
    FSDP_TRY(backward_norm(m, blk, LLAMA_NORM1, blk->in, blk->rstd1, err));
    FSDP_TRY(backward_weight(m, blk, LLAMA_Q, blk->q, blk->norm, d.C, d.NHD, err));
    FSDP_TRY(backward_weight(m, blk, LLAMA_K, blk->k, blk->norm, d.C, d.KVD, err));
    return backward_weight(m, blk, LLAMA_V, blk->v, blk->norm, d.C, d.KVD, err);
}

int llama_block_backward(const struct model *m, const struct llama_block *blk, struct fsdp_err *err)
{
    FSDP_TRY(backward_mlp(m, blk, err));
    return backward_attention(m, blk, err);
}
