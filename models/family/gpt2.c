/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPT-2 (Radford et al., Language Models are Unsupervised Multitask Learners, 2019): its weights,
 * and a layer, forward and backward, as a list of operators.
 *
 * Weights are (in, out), as the original stores them. c_attn gives queries, keys and values side by
 * side; they are computed as three products with a third of its columns each, so that each lands
 * where attention (and in generation the cache) wants it.
 */
#include <math.h>

#include "gpt2.h"

/* The weights of a layer, in their order in the flat buffer; biases follow their weights. */
enum gpt2_weight {
    GPT2_NORM1,
    GPT2_NORM1_BIAS,
    GPT2_QKV,
    GPT2_QKV_BIAS,
    GPT2_O,
    GPT2_O_BIAS,
    GPT2_NORM2,
    GPT2_NORM2_BIAS,
    GPT2_UP,
    GPT2_UP_BIAS,
    GPT2_DOWN,
    GPT2_DOWN_BIAS,
    GPT2_NWEIGHTS
};
_Static_assert((int)GPT2_NWEIGHTS <= STACK_MAX_WEIGHTS, "a layer's weights fit");

/* The matrices that end on the residual stream begin smaller, by 1 / sqrt(additions to it). */
static void gpt2_weights(const struct stack_config *c, struct stack_weight *out)
{
    const struct fsdp_init zeros = {FSDP_INIT_ZEROS, 0}, ones = {FSDP_INIT_ONES, 0};
    const struct fsdp_init normal = {FSDP_INIT_NORMAL, (float)c->init_std};
    const struct fsdp_init last = {FSDP_INIT_NORMAL, (float)(c->init_std / sqrt(2.0 * c->nlayers))};
    const int C = c->dim, F = c->ffn;

    out[GPT2_NORM1] = (struct stack_weight){".ln_1.weight", C, 0, ones};
    out[GPT2_NORM1_BIAS] = (struct stack_weight){".ln_1.bias", C, 0, zeros};
    out[GPT2_QKV] = (struct stack_weight){".attn.c_attn.weight", C, 3 * C, normal};
    out[GPT2_QKV_BIAS] = (struct stack_weight){".attn.c_attn.bias", 3 * C, 0, zeros};
    out[GPT2_O] = (struct stack_weight){".attn.c_proj.weight", C, C, last};
    out[GPT2_O_BIAS] = (struct stack_weight){".attn.c_proj.bias", C, 0, zeros};
    out[GPT2_NORM2] = (struct stack_weight){".ln_2.weight", C, 0, ones};
    out[GPT2_NORM2_BIAS] = (struct stack_weight){".ln_2.bias", C, 0, zeros};
    out[GPT2_UP] = (struct stack_weight){".mlp.c_fc.weight", C, F, normal};
    out[GPT2_UP_BIAS] = (struct stack_weight){".mlp.c_fc.bias", F, 0, zeros};
    out[GPT2_DOWN] = (struct stack_weight){".mlp.c_proj.weight", F, C, last};
    out[GPT2_DOWN_BIAS] = (struct stack_weight){".mlp.c_proj.bias", C, 0, zeros};
}

static int gpt2_norm_forward(const struct model *m, struct fsdp_lane *lane,
                             const struct stack_norm *norm, struct fsdp_err *err)
{
    struct nn_layernorm args = {.y = norm->y,
                                .mean = norm->mean,
                                .rstd = norm->rstd,
                                .x_copy = norm->x_copy,
                                .x = norm->x,
                                .w = norm->w,
                                .b = norm->b,
                                .rows = norm->rows,
                                .dim = m->config.dim,
                                .eps = (float)m->config.norm_eps,
                                .dtype = norm->dtype,
                                .w_dtype = norm->w_dtype};
    return m->nn->layernorm_forward(lane, &args, err);
}

static int gpt2_norm_backward(const struct model *m, struct fsdp_lane *lane,
                              const struct stack_norm *norm, struct fsdp_err *err)
{
    struct nn_layernorm_backward args = {.dy = norm->y,
                                         .dx = norm->dx,
                                         .dw = norm->dw,
                                         .db = norm->db,
                                         .x = norm->x,
                                         .w = norm->w,
                                         .b = norm->b,
                                         .mean = norm->mean,
                                         .rstd = norm->rstd,
                                         .rows = norm->rows,
                                         .dim = m->config.dim,
                                         .dx_beta = norm->dx_beta,
                                         .dw_beta = norm->dw_beta,
                                         .dtype = norm->dtype,
                                         .w_dtype = norm->w_dtype,
                                         .dw_dtype = norm->dw_dtype};
    return m->nn->layernorm_backward(lane, &args, err);
}

/* ---- forward -------------------------------------------------------------------------------- */

/* blk->norm = norm(x), of the norm that begins at weight w. */
static int norm(const struct model *m, const struct stack_block *blk, enum gpt2_weight w,
                const void *x, float *mean, float *rstd, void *x_copy, struct fsdp_err *err)
{
    struct stack_norm args = {.y = blk->norm,
                              .mean = mean,
                              .rstd = rstd,
                              .x_copy = x_copy,
                              .x = x,
                              .w = blk->param[w].w,
                              .b = blk->param[w + 1].w,
                              .rows = blk->B * blk->Tq,
                              .dtype = blk->dtype,
                              .w_dtype = blk->param[w].w_dtype};
    return gpt2_norm_forward(m, blk->lane, &args, err);
}

/* Columns [first, first + nout) of weight w (nin, ldw) and of the bias behind it. */
struct columns {
    enum gpt2_weight w;
    int nin, first, nout, ldw;
};

static struct columns whole(enum gpt2_weight w, int nin, int nout)
{
    return (struct columns){w, nin, 0, nout, nout};
}

static struct columns qkv(const struct model *m, int part)
{
    const int C = m->config.dim;
    return (struct columns){GPT2_QKV, C, part * C, C, 3 * C};
}

/* out (rows, nout) = x (rows, nin) w + bias + beta out */
static int project(const struct model *m, const struct stack_block *blk, struct columns c,
                   void *out, const void *x, float beta, struct fsdp_err *err)
{
    const struct stack_param *w = &blk->param[c.w], *b = w + 1;
    struct nn_affine args = {.out = out,
                             .x = x,
                             .w = nn_at(w->w, w->w_dtype, (size_t)c.first),
                             .b = nn_at(b->w, b->w_dtype, (size_t)c.first),
                             .work = blk->work,
                             .rows = blk->B * blk->Tq,
                             .nin = c.nin,
                             .nout = c.nout,
                             .ldw = c.ldw,
                             .beta = beta,
                             .dtype = blk->dtype,
                             .w_dtype = w->w_dtype};
    return m->nn->affine_forward(blk->lane, &args, err);
}

static struct nn_pointwise gelu_of(const struct model *m, const struct stack_block *blk)
{
    const size_t nelem = (size_t)blk->B * (size_t)blk->Tq * (size_t)m->config.ffn;
    return (struct nn_pointwise){
        .y = blk->act, .x = blk->up, .nelem = nelem, .act = NN_GELU_TANH, .dtype = blk->dtype};
}

/* blk->out += dropout of x w + bias, a branch's end. The addition is the product's own where
 * nothing is dropped. */
static int add_branch(const struct model *m, const struct stack_block *blk, struct columns c,
                      const void *x, enum stack_site site, struct fsdp_err *err)
{
    if (!stack_drops_branch(m, blk))
        return project(m, blk, c, blk->out, x, 1, err);
    FSDP_TRY(project(m, blk, c, blk->norm, x, 0, err));
    return stack_drop_branch(m, blk, site, err);
}

static int attend(const struct model *m, const struct stack_block *blk, bool add,
                  struct fsdp_err *err)
{
    const struct columns out = whole(GPT2_O, m->config.dim, m->config.dim);
    FSDP_TRY(stack_attention_forward(m, blk, err));
    return add ? add_branch(m, blk, out, blk->o, STACK_ATTENTION_OUT, err) : FSDP_OK;
}

static int attention_forward(const struct model *m, const struct stack_block *blk, bool add,
                             struct fsdp_err *err)
{
    FSDP_TRY(norm(m, blk, GPT2_NORM1, blk->in, blk->mean1, blk->rstd1, blk->in_copy, err));
    FSDP_TRY(project(m, blk, qkv(m, 0), blk->q, blk->norm, 0, err));
    FSDP_TRY(project(m, blk, qkv(m, 1), blk->k_new, blk->norm, 0, err));
    FSDP_TRY(project(m, blk, qkv(m, 2), blk->v_new, blk->norm, 0, err));
    return attend(m, blk, add, err);
}

static int mlp_forward(const struct model *m, const struct stack_block *blk, bool add,
                       struct fsdp_err *err)
{
    const int C = m->config.dim, F = m->config.ffn;
    const struct nn_pointwise gelu = gelu_of(m, blk);

    FSDP_TRY(norm(m, blk, GPT2_NORM2, blk->out, blk->mean2, blk->rstd2, blk->mid, err));
    FSDP_TRY(project(m, blk, whole(GPT2_UP, C, F), blk->up, blk->norm, 0, err));
    if (!add)
        return FSDP_OK;
    FSDP_TRY(m->nn->pointwise_forward(blk->lane, &gelu, err));
    return add_branch(m, blk, whole(GPT2_DOWN, F, C), blk->act, STACK_MLP_OUT, err);
}

/* ---- backward ------------------------------------------------------------------------------- */

/* dx (rows, nin) = dy (rows, nout) wᵀ + beta dx */
static int backward_input(const struct model *m, const struct stack_block *blk, struct columns c,
                          void *dx, const void *dy, float beta, struct fsdp_err *err)
{
    const struct stack_param *w = &blk->param[c.w];
    struct nn_affine args = {.out = dx,
                             .dy = dy,
                             .w = nn_at(w->w, w->w_dtype, (size_t)c.first),
                             .work = blk->work,
                             .rows = blk->B * blk->Tq,
                             .nin = c.nin,
                             .nout = c.nout,
                             .ldw = c.ldw,
                             .beta = beta,
                             .dtype = blk->dtype,
                             .w_dtype = w->w_dtype};
    return m->nn->affine_backward_input(blk->lane, &args, err);
}

/* A weight's gradient and its bias' are written together, where both are wanted. */
static float pair_beta(const struct stack_block *blk, int w)
{
    return blk->param[w].dw ? blk->param[w].dw_beta : blk->param[w + 1].dw_beta;
}

/* dw = xᵀ dy + dw_beta dw, and the bias' */
static int backward_weight(const struct model *m, const struct stack_block *blk, struct columns c,
                           const void *dy, const void *x, struct fsdp_err *err)
{
    const struct stack_param *w = &blk->param[c.w], *b = w + 1;
    struct nn_affine args = {.out = nn_at(w->dw, w->dw_dtype, (size_t)c.first),
                             .db = nn_at(b->dw, b->dw_dtype, (size_t)c.first),
                             .dy = dy,
                             .x = x,
                             .work = blk->work,
                             .rows = blk->B * blk->Tq,
                             .nin = c.nin,
                             .nout = c.nout,
                             .ldw = c.ldw,
                             .beta = pair_beta(blk, (int)c.w),
                             .dtype = blk->dtype,
                             .dw_dtype = w->dw_dtype};
    return m->nn->affine_backward_weight(blk->lane, &args, err);
}

/* Adds the gradient that came through the norm to blk->out; blk->norm goes from dy to y. */
static int backward_norm(const struct model *m, const struct stack_block *blk, enum gpt2_weight w,
                         const void *x, float *mean, float *rstd, struct fsdp_err *err)
{
    struct stack_norm args = {.y = blk->norm,
                              .mean = mean,
                              .rstd = rstd,
                              .x = x,
                              .w = blk->param[w].w,
                              .b = blk->param[w + 1].w,
                              .rows = blk->B * blk->Tq,
                              .dx = blk->out,
                              .dw = blk->param[w].dw,
                              .db = blk->param[w + 1].dw,
                              .dx_beta = 1,
                              .dw_beta = pair_beta(blk, (int)w),
                              .dtype = blk->dtype,
                              .w_dtype = blk->param[w].w_dtype,
                              .dw_dtype = blk->param[w].dw_dtype};
    return gpt2_norm_backward(m, blk->lane, &args, err);
}

/* The weight gradients come last in each half: they want the norm's output and the gelu's, which
 * were not kept and which the backward operators make again on their way. */
static int mlp_backward(const struct model *m, const struct stack_block *blk, struct fsdp_err *err)
{
    const struct columns up = whole(GPT2_UP, m->config.dim, m->config.ffn);
    const struct columns down = whole(GPT2_DOWN, m->config.ffn, m->config.dim);
    const struct nn_pointwise gelu = gelu_of(m, blk);
    const void *dy;

    FSDP_TRY(stack_drop_gradient(&dy, m, blk, STACK_MLP_OUT, err));
    FSDP_TRY(backward_input(m, blk, down, blk->act, dy, 0, err));
    FSDP_TRY(m->nn->pointwise_backward(blk->lane, &gelu, err));
    FSDP_TRY(backward_weight(m, blk, down, dy, blk->act, err));
    FSDP_TRY(backward_input(m, blk, up, blk->norm, blk->up, 0, err));
    FSDP_TRY(backward_norm(m, blk, GPT2_NORM2, blk->mid, blk->mean2, blk->rstd2, err));
    return backward_weight(m, blk, up, blk->up, blk->norm, err);
}

static int attention_backward(const struct model *m, const struct stack_block *blk,
                              struct fsdp_err *err)
{
    const struct columns proj = whole(GPT2_O, m->config.dim, m->config.dim);
    void *const parts[] = {blk->q, blk->k, blk->v};
    struct nn_attention attention = stack_attention(m, blk);
    const void *dy;

    attention.d_o = blk->act;
    FSDP_TRY(stack_drop_gradient(&dy, m, blk, STACK_ATTENTION_OUT, err));
    FSDP_TRY(backward_input(m, blk, proj, blk->act, dy, 0, err));
    FSDP_TRY(backward_weight(m, blk, proj, dy, blk->o, err));
    FSDP_TRY(m->nn->attention_backward(blk->lane, &attention, err));
    for (int i = 0; i < 3; i++)
        FSDP_TRY(backward_input(m, blk, qkv(m, i), blk->norm, parts[i], i ? 1 : 0, err));
    FSDP_TRY(backward_norm(m, blk, GPT2_NORM1, blk->in, blk->mean1, blk->rstd1, err));
    for (int i = 0; i < 3; i++)
        FSDP_TRY(backward_weight(m, blk, qkv(m, i), parts[i], blk->norm, err));
    return FSDP_OK;
}

/* ---- the family ----------------------------------------------------------------------------- */

static const struct stack_family gpt2_family = {
    .root_class = "GPT2LMHeadModel",
    .embed_class = "GPT2Embedding",
    .head_class = "GPT2Head",
    .part = {{"", "GPT2Block"}, {".attn", "GPT2Attention"}, {".mlp", "GPT2MLP"}},
    .unit_classes = {"GPT2Embedding", "GPT2Head", "GPT2Block"},
    .embed_module = "transformer.wte",
    .embed_weight = "transformer.wte.weight",
    .position_weight = "transformer.wpe.weight",
    .layer_module = "transformer.h",
    .norm_weight = "transformer.ln_f.weight",
    .norm_bias = "transformer.ln_f.bias",
    .max_seq_len_key = "n_positions",
    .drops_stream = true,
    .nweights = GPT2_NWEIGHTS,
    .weights = gpt2_weights,
    .norm_forward = gpt2_norm_forward,
    .norm_backward = gpt2_norm_backward,
    .attention_forward = attention_forward,
    .mlp_forward = mlp_forward,
    .attend = attend,
    .attention_backward = attention_backward,
    .mlp_backward = mlp_backward,
};

static int gpt2_create(struct model **out, const char *config_json_path, struct fsdp_err *err)
{
    struct stack_config config;

    FSDP_TRY(gpt2_config_read(&config, config_json_path, err));
    return stack_create(out, &gpt2_family, &config, NULL, err);
}

const struct model_ops model_gpt2_ops = {
    .family = "gpt2",
    .create = gpt2_create,
    STACK_MODEL_OPS,
};
