/* SPDX-License-Identifier: Apache-2.0 */
/* Llama (Touvron et al., arXiv 2302.13971; Grattafiori et al., arXiv 2407.21783): its weights, and
 * a layer, forward and backward, as a list of operators. */
#include "llama.h"

/* The weights of a decoder layer, in their order in the flat buffer. */
enum llama_weight {
    LLAMA_NORM1,
    LLAMA_Q,
    LLAMA_K,
    LLAMA_V,
    LLAMA_O,
    LLAMA_NORM2,
    LLAMA_GATE,
    LLAMA_UP,
    LLAMA_DOWN,
    LLAMA_NWEIGHTS
};
_Static_assert((int)LLAMA_NWEIGHTS <= STACK_MAX_WEIGHTS, "a layer's weights fit");

static void llama_weights(const struct stack_config *c, struct stack_weight *out)
{
    const struct fsdp_init normal = {FSDP_INIT_NORMAL, (float)c->init_std};
    const struct fsdp_init ones = {FSDP_INIT_ONES, 0};
    const int C = c->dim, F = c->ffn, NHD = c->nheads * c->head_dim;
    const int KVD = c->nkv_heads * c->head_dim;

    out[LLAMA_NORM1] = (struct stack_weight){".input_layernorm.weight", C, 0, ones};
    out[LLAMA_Q] = (struct stack_weight){".self_attn.q_proj.weight", NHD, C, normal};
    out[LLAMA_K] = (struct stack_weight){".self_attn.k_proj.weight", KVD, C, normal};
    out[LLAMA_V] = (struct stack_weight){".self_attn.v_proj.weight", KVD, C, normal};
    out[LLAMA_O] = (struct stack_weight){".self_attn.o_proj.weight", C, NHD, normal};
    out[LLAMA_NORM2] = (struct stack_weight){".post_attention_layernorm.weight", C, 0, ones};
    out[LLAMA_GATE] = (struct stack_weight){".mlp.gate_proj.weight", F, C, normal};
    out[LLAMA_UP] = (struct stack_weight){".mlp.up_proj.weight", F, C, normal};
    out[LLAMA_DOWN] = (struct stack_weight){".mlp.down_proj.weight", C, F, normal};
}

static int llama_norm_forward(const struct model *m, struct fsdp_lane *lane,
                              const struct stack_norm *norm, struct fsdp_err *err)
{
    struct nn_rmsnorm args = {.y = norm->y,
                              .rstd = norm->rstd,
                              .x_copy = norm->x_copy,
                              .x = norm->x,
                              .w = norm->w,
                              .rows = norm->rows,
                              .dim = m->config.dim,
                              .eps = (float)m->config.norm_eps,
                              .dtype = norm->dtype,
                              .w_dtype = norm->w_dtype};
    return m->nn->rmsnorm_forward(lane, &args, err);
}

static int llama_norm_backward(const struct model *m, struct fsdp_lane *lane,
                               const struct stack_norm *norm, struct fsdp_err *err)
{
    struct nn_rmsnorm_backward args = {.dy = norm->y,
                                       .dx = norm->dx,
                                       .dw = norm->dw,
                                       .x = norm->x,
                                       .w = norm->w,
                                       .rstd = norm->rstd,
                                       .rows = norm->rows,
                                       .dim = m->config.dim,
                                       .dx_beta = norm->dx_beta,
                                       .dw_beta = norm->dw_beta,
                                       .dtype = norm->dtype,
                                       .w_dtype = norm->w_dtype,
                                       .dw_dtype = norm->dw_dtype};
    return m->nn->rmsnorm_backward(lane, &args, err);
}

/* w (nout, nin) */
struct shape {
    int nin, nout;
};

static struct shape shape_of(const struct model *m, enum llama_weight w)
{
    const struct stack_config *c = &m->config;
    const int C = c->dim, F = c->ffn, NHD = c->nheads * c->head_dim,
              KVD = c->nkv_heads * c->head_dim;

    switch (w) {
    case LLAMA_Q:
        return (struct shape){C, NHD};
    case LLAMA_K:
    case LLAMA_V:
        return (struct shape){C, KVD};
    case LLAMA_O:
        return (struct shape){NHD, C};
    case LLAMA_GATE:
    case LLAMA_UP:
        return (struct shape){C, F};
    default:
        return (struct shape){F, C}; /* LLAMA_DOWN; the norms are no matrices */
    }
}

/* out (rows, nout) = x (rows, nin) wᵀ + beta out */
static int project(const struct model *m, const struct stack_block *blk, void *out, const void *x,
                   enum llama_weight w, float beta, struct fsdp_err *err)
{
    const struct shape shape = shape_of(m, w);
    struct nn_linear args = {.out = out,
                             .x = x,
                             .w = blk->param[w].w,
                             .work = blk->work,
                             .rows = blk->B * blk->Tq,
                             .nin = shape.nin,
                             .nout = shape.nout,
                             .beta = beta,
                             .dtype = blk->dtype,
                             .y_dtype = blk->dtype,
                             .w_dtype = blk->param[w].w_dtype};
    return m->nn->linear_forward(blk->lane, &args, err);
}

static int rotate(const struct model *m, const struct stack_block *blk, void *x, int heads,
                  bool inverse, struct fsdp_err *err)
{
    struct nn_rope args = {.x = x,
                           .cos = blk->cos,
                           .sin = blk->sin,
                           .positions = blk->positions,
                           .B = blk->B,
                           .T = blk->Tq,
                           .heads = heads,
                           .D = m->config.head_dim,
                           .inverse = inverse,
                           .dtype = blk->dtype};
    return m->nn->rope(blk->lane, &args, err);
}

static struct nn_glu glu_of(const struct model *m, const struct stack_block *blk)
{
    const size_t nelem = (size_t)blk->B * (size_t)blk->Tq * (size_t)m->config.ffn;
    return (struct nn_glu){.y = blk->act,
                           .gate = blk->gate,
                           .up = blk->up,
                           .nelem = nelem,
                           .act = NN_SILU,
                           .dtype = blk->dtype};
}

/* blk->norm = norm(x) */
static int norm(const struct model *m, const struct stack_block *blk, enum llama_weight w,
                const void *x, float *rstd, void *x_copy, struct fsdp_err *err)
{
    struct stack_norm args = {.y = blk->norm,
                              .rstd = rstd,
                              .x_copy = x_copy,
                              .x = x,
                              .w = blk->param[w].w,
                              .rows = blk->B * blk->Tq,
                              .dtype = blk->dtype,
                              .w_dtype = blk->param[w].w_dtype};
    return llama_norm_forward(m, blk->lane, &args, err);
}

static int attend(const struct model *m, const struct stack_block *blk, bool add,
                  struct fsdp_err *err)
{
    FSDP_TRY(stack_attention_forward(m, blk, err));
    /* Residual additions are the matrix products' own. */
    return add ? project(m, blk, blk->out, blk->o, LLAMA_O, 1, err) : FSDP_OK;
}

static int attention_forward(const struct model *m, const struct stack_block *blk, bool add,
                             struct fsdp_err *err)
{
    const struct stack_config *c = &m->config;

    FSDP_TRY(norm(m, blk, LLAMA_NORM1, blk->in, blk->rstd1, blk->in_copy, err));
    FSDP_TRY(project(m, blk, blk->q, blk->norm, LLAMA_Q, 0, err));
    FSDP_TRY(project(m, blk, blk->k_new, blk->norm, LLAMA_K, 0, err));
    FSDP_TRY(project(m, blk, blk->v_new, blk->norm, LLAMA_V, 0, err));
    FSDP_TRY(rotate(m, blk, blk->q, c->nheads, false, err));
    FSDP_TRY(rotate(m, blk, blk->k_new, c->nkv_heads, false, err));
    return attend(m, blk, add, err);
}

static int mlp_forward(const struct model *m, const struct stack_block *blk, bool add,
                       struct fsdp_err *err)
{
    const struct nn_glu glu = glu_of(m, blk);

    FSDP_TRY(norm(m, blk, LLAMA_NORM2, blk->out, blk->rstd2, blk->mid, err));
    FSDP_TRY(project(m, blk, blk->gate, blk->norm, LLAMA_GATE, 0, err));
    FSDP_TRY(project(m, blk, blk->up, blk->norm, LLAMA_UP, 0, err));
    if (!add)
        return FSDP_OK;
    FSDP_TRY(m->nn->glu_forward(blk->lane, &glu, err));
    return project(m, blk, blk->out, blk->act, LLAMA_DOWN, 1, err);
}

/* dx = dy w + beta dx */
static int backward_input(const struct model *m, const struct stack_block *blk, void *dx,
                          const void *dy, enum llama_weight w, float beta, struct fsdp_err *err)
{
    const struct shape shape = shape_of(m, w);
    struct nn_linear args = {.out = dx,
                             .dy = dy,
                             .w = blk->param[w].w,
                             .work = blk->work,
                             .rows = blk->B * blk->Tq,
                             .nin = shape.nin,
                             .nout = shape.nout,
                             .beta = beta,
                             .dtype = blk->dtype,
                             .y_dtype = blk->dtype,
                             .w_dtype = blk->param[w].w_dtype};
    return m->nn->linear_backward_input(blk->lane, &args, err);
}

/* dw = dyᵀ x + dw_beta dw */
static int backward_weight(const struct model *m, const struct stack_block *blk,
                           enum llama_weight w, const void *dy, const void *x, struct fsdp_err *err)
{
    const struct shape shape = shape_of(m, w);
    struct nn_linear args = {.out = blk->param[w].dw,
                             .dy = dy,
                             .x = x,
                             .work = blk->work,
                             .rows = blk->B * blk->Tq,
                             .nin = shape.nin,
                             .nout = shape.nout,
                             .beta = blk->param[w].dw_beta,
                             .dtype = blk->dtype,
                             .y_dtype = blk->dtype,
                             .dw_dtype = blk->param[w].dw_dtype};
    return m->nn->linear_backward_weight(blk->lane, &args, err);
}

/* Adds the gradient that came through the norm to blk->out; blk->norm goes from dy to y. */
static int backward_norm(const struct model *m, const struct stack_block *blk, enum llama_weight w,
                         const void *x, float *rstd, struct fsdp_err *err)
{
    struct stack_norm args = {.y = blk->norm,
                              .dx = blk->out,
                              .dw = blk->param[w].dw,
                              .x = x,
                              .w = blk->param[w].w,
                              .rstd = rstd,
                              .rows = blk->B * blk->Tq,
                              .dx_beta = 1,
                              .dw_beta = blk->param[w].dw_beta,
                              .dtype = blk->dtype,
                              .w_dtype = blk->param[w].w_dtype,
                              .dw_dtype = blk->param[w].dw_dtype};
    return llama_norm_backward(m, blk->lane, &args, err);
}

/* The weight gradients come last in each half: they want the norm's output and the gated unit's,
 * which were not kept and which the backward operators make again on their way. */
static int mlp_backward(const struct model *m, const struct stack_block *blk, struct fsdp_err *err)
{
    struct nn_glu glu = glu_of(m, blk);

    FSDP_TRY(backward_input(m, blk, blk->act, blk->out, LLAMA_DOWN, 0, err));
    FSDP_TRY(m->nn->glu_backward(blk->lane, &glu, err));
    FSDP_TRY(backward_weight(m, blk, LLAMA_DOWN, blk->out, blk->act, err));
    FSDP_TRY(backward_input(m, blk, blk->norm, blk->gate, LLAMA_GATE, 0, err));
    FSDP_TRY(backward_input(m, blk, blk->norm, blk->up, LLAMA_UP, 1, err));
    FSDP_TRY(backward_norm(m, blk, LLAMA_NORM2, blk->mid, blk->rstd2, err));
    FSDP_TRY(backward_weight(m, blk, LLAMA_GATE, blk->gate, blk->norm, err));
    return backward_weight(m, blk, LLAMA_UP, blk->up, blk->norm, err);
}

static int attention_backward(const struct model *m, const struct stack_block *blk,
                              struct fsdp_err *err)
{
    const struct stack_config *c = &m->config;
    struct nn_attention attention = stack_attention(m, blk);

    attention.d_o = blk->act;
    FSDP_TRY(backward_input(m, blk, blk->act, blk->out, LLAMA_O, 0, err));
    FSDP_TRY(backward_weight(m, blk, LLAMA_O, blk->out, blk->o, err));
    FSDP_TRY(m->nn->attention_backward(blk->lane, &attention, err));
    FSDP_TRY(rotate(m, blk, blk->q, c->nheads, true, err));
    FSDP_TRY(rotate(m, blk, blk->k, c->nkv_heads, true, err));
    FSDP_TRY(backward_input(m, blk, blk->norm, blk->q, LLAMA_Q, 0, err));
    FSDP_TRY(backward_input(m, blk, blk->norm, blk->k, LLAMA_K, 1, err));
    FSDP_TRY(backward_input(m, blk, blk->norm, blk->v, LLAMA_V, 1, err));
    FSDP_TRY(backward_norm(m, blk, LLAMA_NORM1, blk->in, blk->rstd1, err));
    FSDP_TRY(backward_weight(m, blk, LLAMA_Q, blk->q, blk->norm, err));
    FSDP_TRY(backward_weight(m, blk, LLAMA_K, blk->k, blk->norm, err));
    return backward_weight(m, blk, LLAMA_V, blk->v, blk->norm, err);
}

static const struct stack_family llama_family = {
    .root_class = "LlamaForCausalLM",
    .embed_class = "Embedding",
    .head_class = "LlamaHead",
    .part = {{"", "LlamaDecoderLayer"}, {".self_attn", "LlamaAttention"}, {".mlp", "LlamaMLP"}},
    .unit_classes = {"Embedding", "LlamaHead", "LlamaDecoderLayer"},
    .embed_module = "model.embed_tokens",
    .embed_weight = "model.embed_tokens.weight",
    .layer_module = "model.layers",
    .norm_weight = "model.norm.weight",
    .max_seq_len_key = "max_position_embeddings",
    .gated = true,
    .nweights = LLAMA_NWEIGHTS,
    .weights = llama_weights,
    .norm_forward = llama_norm_forward,
    .norm_backward = llama_norm_backward,
    .attention_forward = attention_forward,
    .mlp_forward = mlp_forward,
    .attend = attend,
    .attention_backward = attention_backward,
    .mlp_backward = mlp_backward,
};

static int llama_create(struct model **out, const char *config_json_path, struct fsdp_err *err)
{
    struct stack_config config;
    double *inv_freq;

    FSDP_TRY(llama_config_read(&config, &inv_freq, config_json_path, err));
    return stack_create(out, &llama_family, &config, inv_freq, err);
}

const struct model_ops model_llama_ops = {
    .family = "llama",
    .create = llama_create,
    STACK_MODEL_OPS,
};
