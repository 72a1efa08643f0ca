/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Llama (Touvron et al., arXiv 2302.13971; Grattafiori et al., arXiv 2407.21783) against the
 * engine.
 *
 * Modules and memory:
 *
 *   ""                      saved: tokens, rotary tables, the residual stream (B, T, C)
 *     model.embed_tokens    writes the stream
 *     model.layers.i        saved: its input; recomputed: what backward needs; work: scratch
 *     lm_head               work: logits of one chunk of tokens
 *
 * The stream is one buffer for the whole pass. In backward the same buffer carries the gradient of
 * the stream; layers kept their inputs, and the head, which turns it from one to the other, reads
 * it chunk by chunk. In training the head does all of its work in the backward phase, loss
 * included, so that logits are made once.
 */
#include <stdio.h>
#include <string.h>

#include "llama.h"

/* Of the root module; all live from the start of forward to the end of backward. */
struct root_mem {
    int32_t *inputs, *targets; /* (B*T) */
    float *cos, *sin;          /* (T, D/2) */
    float *stream;             /* (B*T, C) */
};

void *llama_carve(struct llama_carve *carve, size_t nelem, size_t elem_nbytes)
{
    size_t at = carve->nbytes;
    carve->nbytes += (nelem * elem_nbytes + 63) / 64 * 64;
    return carve->base ? (char *)carve->base + at : NULL;
}

static float *carve_f32(struct llama_carve *carve, size_t nelem)
{
    return llama_carve(carve, nelem, sizeof(float));
}

/* ---- memory layouts: with NULL areas they only count ---------------------------------------- */

static size_t root_layout(struct root_mem *mem, const struct model *m, int B, int T, void *saved)
{
    const struct llama_config *c = &m->config;
    struct llama_carve area = {saved, 0};
    size_t rows = (size_t)B * (size_t)T, table = (size_t)T * (size_t)c->head_dim / 2;

    mem->inputs = llama_carve(&area, rows, sizeof(int32_t));
    mem->targets = llama_carve(&area, rows, sizeof(int32_t));
    mem->cos = carve_f32(&area, table);
    mem->sin = carve_f32(&area, table);
    mem->stream = carve_f32(&area, rows * (size_t)c->dim);
    return area.nbytes;
}

static struct fsdp_act_bytes layer_layout(struct llama_block *blk, const struct model *m, int B,
                                          int T, void *saved, void *recomputed, void *work)
{
    const struct llama_config *c = &m->config;
    struct llama_carve s = {saved, 0}, r = {recomputed, 0}, w = {work, 0};
    const size_t rows = (size_t)B * (size_t)T, C = (size_t)c->dim, F = (size_t)c->ffn;
    const size_t D = (size_t)c->head_dim, NHD = (size_t)c->nheads * D;
    const size_t KVD = (size_t)c->nkv_heads * D;

    blk->in_copy = carve_f32(&s, rows * C);
    blk->mid = carve_f32(&r, rows * C);
    blk->rstd1 = carve_f32(&r, rows);
    blk->rstd2 = carve_f32(&r, rows);
    blk->q = carve_f32(&r, rows * NHD);
    blk->k = blk->k_new = carve_f32(&r, rows * KVD);
    blk->v = blk->v_new = carve_f32(&r, rows * KVD);
    blk->o = carve_f32(&r, rows * NHD);
    blk->lse = carve_f32(&r, rows * (size_t)c->nheads);
    blk->gate = carve_f32(&r, rows * F);
    blk->up = carve_f32(&r, rows * F);
    blk->norm = carve_f32(&w, rows * C);
    blk->act = carve_f32(&w, rows * (F > NHD ? F : NHD));
    blk->attn = carve_f32(&w, m->nn->attention_work_nelem(T, T, c->head_dim));
    return (struct fsdp_act_bytes){s.nbytes, r.nbytes, w.nbytes};
}

struct head_mem {
    float *norm, *rstd, *logits; /* (chunk, C), (chunk), (chunk, V) */
};

/* Rows of one chunk: enough for a good matrix product, about 16 MiB of logits beyond that. */
static int head_chunk(const struct model *m, int rows)
{
    int chunk = (4 << 20) / m->config.vocab;
    chunk = chunk < 64 ? 64 : chunk > 1024 ? 1024 : chunk;
    return chunk < rows ? chunk : rows;
}

static size_t head_layout(struct head_mem *mem, const struct model *m, int rows, void *work)
{
    struct llama_carve area = {work, 0};
    size_t chunk = (size_t)head_chunk(m, rows);

    mem->norm = carve_f32(&area, chunk * (size_t)m->config.dim);
    mem->rstd = carve_f32(&area, chunk);
    mem->logits = carve_f32(&area, chunk * (size_t)m->config.vocab);
    return area.nbytes;
}

/* ---- create, destroy, describe -------------------------------------------------------------- */

static void llama_destroy(struct model *m)
{
    if (m) {
        fsdp_free(m->inv_freq);
        fsdp_free(m->layer);
        fsdp_free(m->layer_param);
        fsdp_free(m);
    }
}

static int llama_create(struct model **out, const char *config_json_path, struct fsdp_err *err)
{
    struct model *m = fsdp_alloc(1, sizeof *m, "model", err);
    int rc = FSDP_ENOMEM;

    if (!m)
        return rc;
    FSDP_TRY_GOTO(llama_config_read(&m->config, &m->inv_freq, config_json_path, err), out);
    m->nn = &nn_cpu_ops;
    size_t nlayers = (size_t)m->config.nlayers;
    rc = FSDP_ENOMEM;
    if (!(m->layer = fsdp_alloc(nlayers, sizeof *m->layer, "layer modules", err)) ||
        !(m->layer_param = fsdp_alloc(nlayers, sizeof *m->layer_param, "layer parameters", err)))
        goto out;
    *out = m;
    m = NULL;
    rc = FSDP_OK;
out:
    llama_destroy(m);
    return rc;
}

/* Adds a weight (rows, cols), or a vector of ones where cols is 0. */
static int add_weight(const struct model *m, struct fsdp_module_tree *tree, int module,
                      const char *name, int rows, int cols, int *out, struct fsdp_err *err)
{
    const uint64_t shape[2] = {(uint64_t)rows, (uint64_t)cols};
    struct fsdp_init normal = {FSDP_INIT_NORMAL, (float)m->config.init_std};
    struct fsdp_init ones = {FSDP_INIT_ONES, 0};
    return fsdp_module_add_param(tree, module, name, cols ? 2 : 1, shape, cols ? normal : ones, 0,
                                 out, err);
}

static int describe_layer(struct model *m, struct fsdp_module_tree *tree, int layer,
                          struct fsdp_act_bytes act, struct fsdp_err *err)
{
    const struct llama_config *c = &m->config;
    const int C = c->dim, F = c->ffn, NHD = c->nheads * c->head_dim;
    const int KVD = c->nkv_heads * c->head_dim;
    const struct {
        const char *name;
        int rows, cols;
    } weights[LLAMA_NWEIGHTS] = {
        [LLAMA_NORM1] = {"input_layernorm", C, 0},
        [LLAMA_Q] = {"self_attn.q_proj", NHD, C},
        [LLAMA_K] = {"self_attn.k_proj", KVD, C},
        [LLAMA_V] = {"self_attn.v_proj", KVD, C},
        [LLAMA_O] = {"self_attn.o_proj", C, NHD},
        [LLAMA_NORM2] = {"post_attention_layernorm", C, 0},
        [LLAMA_GATE] = {"mlp.gate_proj", F, C},
        [LLAMA_UP] = {"mlp.up_proj", F, C},
        [LLAMA_DOWN] = {"mlp.down_proj", C, F},
    };
    char name[96];

    snprintf(name, sizeof name, "model.layers.%d", layer);
    FSDP_TRY(fsdp_module_add(tree, m->root, name, "LlamaDecoderLayer", &m->layer[layer], err));
    for (int w = 0; w < LLAMA_NWEIGHTS; w++) {
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, weights[w].name);
        FSDP_TRY(add_weight(m, tree, m->layer[layer], name, weights[w].rows, weights[w].cols,
                            &m->layer_param[layer][w], err));
    }
    return fsdp_module_set_act(tree, m->layer[layer], act, err);
}

static int describe_head(struct model *m, struct fsdp_module_tree *tree, size_t work_nbytes,
                         struct fsdp_err *err)
{
    const struct llama_config *c = &m->config;

    FSDP_TRY(fsdp_module_add(tree, m->root, "lm_head", "LlamaHead", &m->head, err));
    FSDP_TRY(add_weight(m, tree, m->head, "model.norm.weight", c->dim, 0, &m->norm_param, err));
    if (c->tied) {
        m->head_param = m->embed_param;
        FSDP_TRY(fsdp_module_tie(tree, m->head, m->embed_param, "lm_head.weight", err));
    } else {
        FSDP_TRY(
            add_weight(m, tree, m->head, "lm_head.weight", c->vocab, c->dim, &m->head_param, err));
    }
    return fsdp_module_set_act(tree, m->head, (struct fsdp_act_bytes){.work = work_nbytes}, err);
}

static int llama_describe(struct model *m, struct fsdp_module_tree *tree, int B, int T,
                          struct fsdp_err *err)
{
    const struct llama_config *c = &m->config;
    struct root_mem root_mem;
    struct llama_block blk;
    struct head_mem head_mem;

    if (B < 1 || T < 1)
        return fsdp_err_set(err, FSDP_EINVAL, "micro-batch of %d x %d tokens: must be positive", B,
                            T);
    if (T > c->max_seq_len)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "sequence length %d is over the model's max_position_embeddings (%d)",
                            T, c->max_seq_len);
    if ((int64_t)B * T > INT32_MAX / 2)
        return fsdp_err_set(err, FSDP_EINVAL, "micro-batch of %d x %d tokens is too large", B, T);
    FSDP_TRY(fsdp_module_add(tree, -1, "", "LlamaForCausalLM", &m->root, err));
    struct fsdp_act_bytes root_act = {.saved = root_layout(&root_mem, m, B, T, NULL)};
    FSDP_TRY(fsdp_module_set_act(tree, m->root, root_act, err));
    FSDP_TRY(fsdp_module_add(tree, m->root, "model.embed_tokens", "Embedding", &m->embed, err));
    FSDP_TRY(add_weight(m, tree, m->embed, "model.embed_tokens.weight", c->vocab, c->dim,
                        &m->embed_param, err));
    struct fsdp_act_bytes layer_act = layer_layout(&blk, m, B, T, NULL, NULL, NULL);
    for (int i = 0; i < c->nlayers; i++)
        FSDP_TRY(describe_layer(m, tree, i, layer_act, err));
    FSDP_TRY(describe_head(m, tree, head_layout(&head_mem, m, B * T, NULL), err));
    m->max_B = B;
    m->max_T = T;
    return FSDP_OK;
}

/* ---- one pass ------------------------------------------------------------------------------- */

struct pass {
    struct model *m;
    struct fsdp *f;
    const struct model_batch *batch;
    bool train;
    double *loss_sum; /* NULL: logits are wanted */
    float *logits;
    struct root_mem mem;
};

int llama_check_tokens(const struct model *m, const int32_t *tokens, int nrows, int ncols,
                       struct fsdp_err *err)
{
    for (int b = 0; b < nrows; b++)
        for (int t = 0; t < ncols; t++) {
            int32_t token = tokens[(size_t)b * (size_t)ncols + (size_t)t];
            if (token < 0 || token >= m->config.vocab)
                return fsdp_err_set(err, FSDP_EINVAL,
                                    "token %d at row %d, position %d: the vocabulary has %d", token,
                                    b, t, m->config.vocab);
        }
    return FSDP_OK;
}

static int check_batch(const struct model *m, const struct model_batch *batch, struct fsdp_err *err)
{
    if (batch->B < 1 || batch->T < 1 || batch->B > m->max_B || batch->T > m->max_T)
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "micro-batch of %d x %d tokens, but the model was described for %d x %d", batch->B,
            batch->T, m->max_B, m->max_T);
    return llama_check_tokens(m, batch->tokens, batch->B, batch->T + 1, err);
}

/* The layer's weights, gradients and memory as the engine gave them. */
static struct llama_block block_of(const struct pass *p, const struct fsdp_view *view, int layer)
{
    const int *param = p->m->layer_param[layer];
    struct llama_block blk = {
        .lane = view->lane,
        .cos = p->mem.cos,
        .sin = p->mem.sin,
        .B = p->batch->B,
        .Tq = p->batch->T,
        .Tk = p->batch->T,
        .dw_beta = view->grad_beta,
    };
    for (int w = 0; w < LLAMA_NWEIGHTS; w++) {
        blk.w[w] = view->param[param[w]];
        blk.dw[w] = view->grad ? view->grad[param[w]] : NULL;
    }
    layer_layout(&blk, p->m, p->batch->B, p->batch->T, view->saved, view->recomputed, view->work);
    return blk;
}

static int begin(struct pass *p, const struct fsdp_view *view, struct fsdp_err *err)
{
    const struct model *m = p->m;
    const struct model_batch *b = p->batch;
    root_layout(&p->mem, m, b->B, b->T, view->saved);
    struct nn_split_tokens split = {p->mem.inputs, p->mem.targets, b->tokens, b->B, b->T};
    FSDP_TRY(m->nn->split_tokens(view->lane, &split, err));
    struct nn_rope_table table = {.cos = p->mem.cos,
                                  .sin = p->mem.sin,
                                  .inv_freq = m->inv_freq,
                                  .T = b->T,
                                  .half = m->config.head_dim / 2};
    return m->nn->rope_table(view->lane, &table, err);
}

static int embed_forward(struct pass *p, struct fsdp_err *err)
{
    const struct model *m = p->m;
    struct fsdp_view view;
    FSDP_TRY(fsdp_module_enter(p->f, m->embed, FSDP_FORWARD, &view, err));
    struct nn_embedding args = {.out = p->mem.stream,
                                .w = view.param[m->embed_param],
                                .tokens = p->mem.inputs,
                                .rows = p->batch->B * p->batch->T,
                                .vocab = m->config.vocab,
                                .dim = m->config.dim};
    FSDP_TRY(m->nn->embedding_forward(view.lane, &args, err));
    return fsdp_module_leave(p->f, m->embed, FSDP_FORWARD, err);
}

static int layer_forward(struct pass *p, int layer, struct fsdp_err *err)
{
    const struct model *m = p->m;
    const int module = m->layer[layer];
    struct fsdp_view view;
    FSDP_TRY(fsdp_module_enter(p->f, module, FSDP_FORWARD, &view, err));
    struct llama_block blk = block_of(p, &view, layer);
    blk.in = blk.out = p->mem.stream;
    if (!p->train)
        blk.in_copy = NULL;
    if (!p->train || fsdp_module_recomputes(p->f, module))
        blk.mid = NULL;
    FSDP_TRY(llama_block_forward(m, &blk, true, err));
    return fsdp_module_leave(p->f, module, FSDP_FORWARD, err);
}

/* Rows [first, first + rows) of the stream through the last norm and the head. */
static int head_logits(const struct pass *p, const struct fsdp_view *view,
                       const struct head_mem *mem, int first, int rows, float *logits,
                       struct fsdp_err *err)
{
    const struct model *m = p->m;
    const struct llama_config *c = &m->config;
    struct nn_rmsnorm norm = {.y = mem->norm,
                              .rstd = mem->rstd,
                              .x = p->mem.stream + (size_t)first * (size_t)c->dim,
                              .w = view->param[m->norm_param],
                              .rows = rows,
                              .dim = c->dim,
                              .eps = (float)c->norm_eps};
    struct nn_linear linear = {.out = logits,
                               .x = mem->norm,
                               .w = view->param[m->head_param],
                               .rows = rows,
                               .nin = c->dim,
                               .nout = c->vocab};
    FSDP_TRY(m->nn->rmsnorm_forward(view->lane, &norm, err));
    return m->nn->linear_forward(view->lane, &linear, err);
}

static int head_loss(const struct pass *p, const struct fsdp_view *view, const struct head_mem *mem,
                     int first, int rows, struct fsdp_err *err)
{
    struct nn_cross_entropy loss = {.logits = mem->logits,
                                    .targets = p->mem.targets + first,
                                    .loss_sum = p->loss_sum,
                                    .rows = rows,
                                    .vocab = p->m->config.vocab,
                                    .scale = (float)p->batch->loss_scale,
                                    .grad = p->train};
    FSDP_TRY(head_logits(p, view, mem, first, rows, mem->logits, err));
    return p->m->nn->cross_entropy(view->lane, &loss, err);
}

static int head_forward(struct pass *p, struct fsdp_err *err)
{
    const struct model *m = p->m;
    const int nrows = p->batch->B * p->batch->T, chunk = head_chunk(m, nrows);
    struct fsdp_view view;
    struct head_mem mem;

    FSDP_TRY(fsdp_module_enter(p->f, m->head, FSDP_FORWARD, &view, err));
    head_layout(&mem, m, nrows, view.work);
    for (int first = 0; first < nrows && !p->train; first += chunk) {
        int rows = nrows - first < chunk ? nrows - first : chunk;
        float *logits = p->logits + (p->logits ? (size_t)first * (size_t)m->config.vocab : 0);
        FSDP_TRY(p->logits ? head_logits(p, &view, &mem, first, rows, logits, err)
                           : head_loss(p, &view, &mem, first, rows, err));
    }
    return fsdp_module_leave(p->f, m->head, FSDP_FORWARD, err);
}

static int forward(struct pass *p, struct fsdp_err *err)
{
    struct fsdp_view view;
    FSDP_TRY(fsdp_module_enter(p->f, p->m->root, FSDP_FORWARD, &view, err));
    FSDP_TRY(begin(p, &view, err));
    FSDP_TRY(embed_forward(p, err));
    for (int i = 0; i < p->m->config.nlayers; i++)
        FSDP_TRY(layer_forward(p, i, err));
    FSDP_TRY(head_forward(p, err));
    return fsdp_module_leave(p->f, p->m->root, FSDP_FORWARD, err);
}

/* dlogits are in mem->logits: the gradients of the head, the norm and these rows of the stream. */
static int head_gradients(const struct pass *p, const struct fsdp_view *view,
                          const struct head_mem *mem, int first, int rows, struct fsdp_err *err)
{
    const struct model *m = p->m;
    const struct llama_config *c = &m->config;
    const float beta = first ? 1.0f : view->grad_beta;
    float *stream = p->mem.stream + (size_t)first * (size_t)c->dim;
    struct nn_linear weight = {.out = view->grad[m->head_param],
                               .x = mem->norm,
                               .dy = mem->logits,
                               .rows = rows,
                               .nin = c->dim,
                               .nout = c->vocab,
                               .beta = beta};
    struct nn_linear input = {.out = mem->norm,
                              .w = view->param[m->head_param],
                              .dy = mem->logits,
                              .rows = rows,
                              .nin = c->dim,
                              .nout = c->vocab};
    struct nn_rmsnorm_backward norm = {.dy = mem->norm,
                                       .dx = stream,
                                       .dw = view->grad[m->norm_param],
                                       .x = stream,
                                       .w = view->param[m->norm_param],
                                       .rstd = mem->rstd,
                                       .rows = rows,
                                       .dim = c->dim,
                                       .dw_beta = beta};
    FSDP_TRY(m->nn->linear_backward_weight(view->lane, &weight, err));
    FSDP_TRY(m->nn->linear_backward_input(view->lane, &input, err));
    return m->nn->rmsnorm_backward(view->lane, &norm, err);
}

/* Activation checkpointing may cover a module that has nothing to make again. */
static int recompute_nothing(struct pass *p, int module, struct fsdp_err *err)
{
    struct fsdp_view view;
    if (!fsdp_module_recomputes(p->f, module))
        return FSDP_OK;
    FSDP_TRY(fsdp_module_enter(p->f, module, FSDP_RECOMPUTE, &view, err));
    return fsdp_module_leave(p->f, module, FSDP_RECOMPUTE, err);
}

static int head_backward(struct pass *p, struct fsdp_err *err)
{
    const struct model *m = p->m;
    const int nrows = p->batch->B * p->batch->T, chunk = head_chunk(m, nrows);
    struct fsdp_view view;
    struct head_mem mem;

    FSDP_TRY(recompute_nothing(p, m->head, err));
    FSDP_TRY(fsdp_module_enter(p->f, m->head, FSDP_BACKWARD, &view, err));
    head_layout(&mem, m, nrows, view.work);
    for (int first = 0; first < nrows; first += chunk) {
        int rows = nrows - first < chunk ? nrows - first : chunk;
        FSDP_TRY(head_loss(p, &view, &mem, first, rows, err));
        FSDP_TRY(head_gradients(p, &view, &mem, first, rows, err));
    }
    return fsdp_module_leave(p->f, m->head, FSDP_BACKWARD, err);
}

static int layer_recompute(struct pass *p, int layer, struct fsdp_err *err)
{
    const int module = p->m->layer[layer];
    struct fsdp_view view;
    FSDP_TRY(fsdp_module_enter(p->f, module, FSDP_RECOMPUTE, &view, err));
    struct llama_block blk = block_of(p, &view, layer);
    blk.in = blk.in_copy;            /* as saved */
    blk.in_copy = blk.out = blk.mid; /* which grows from the input to the middle of the block */
    blk.mid = NULL;
    FSDP_TRY(llama_block_forward(p->m, &blk, false, err));
    return fsdp_module_leave(p->f, module, FSDP_RECOMPUTE, err);
}

static int layer_backward(struct pass *p, int layer, struct fsdp_err *err)
{
    const int module = p->m->layer[layer];
    struct fsdp_view view;
    if (fsdp_module_recomputes(p->f, module))
        FSDP_TRY(layer_recompute(p, layer, err));
    FSDP_TRY(fsdp_module_enter(p->f, module, FSDP_BACKWARD, &view, err));
    struct llama_block blk = block_of(p, &view, layer);
    blk.in = blk.in_copy;
    blk.out = p->mem.stream;
    FSDP_TRY(llama_block_backward(p->m, &blk, err));
    return fsdp_module_leave(p->f, module, FSDP_BACKWARD, err);
}

static int embed_backward(struct pass *p, struct fsdp_err *err)
{
    const struct model *m = p->m;
    struct fsdp_view view;
    FSDP_TRY(recompute_nothing(p, m->embed, err));
    FSDP_TRY(fsdp_module_enter(p->f, m->embed, FSDP_BACKWARD, &view, err));
    /* Where the weight is the head's too, the head has written its part already. */
    struct nn_embedding args = {.out = view.grad[m->embed_param],
                                .dy = p->mem.stream,
                                .tokens = p->mem.inputs,
                                .rows = p->batch->B * p->batch->T,
                                .vocab = m->config.vocab,
                                .dim = m->config.dim,
                                .beta = m->config.tied ? 1.0f : view.grad_beta};
    FSDP_TRY(m->nn->embedding_backward(view.lane, &args, err));
    return fsdp_module_leave(p->f, m->embed, FSDP_BACKWARD, err);
}

static int backward(struct pass *p, struct fsdp_err *err)
{
    struct fsdp_view view;
    FSDP_TRY(fsdp_module_enter(p->f, p->m->root, FSDP_BACKWARD, &view, err));
    root_layout(&p->mem, p->m, p->batch->B, p->batch->T, view.saved);
    FSDP_TRY(head_backward(p, err));
    for (int i = p->m->config.nlayers - 1; i >= 0; i--)
        FSDP_TRY(layer_backward(p, i, err));
    FSDP_TRY(embed_backward(p, err));
    return fsdp_module_leave(p->f, p->m->root, FSDP_BACKWARD, err);
}

static int llama_run(struct model *m, struct fsdp *f, const struct model_batch *batch, bool train,
                     double *loss_sum, struct fsdp_err *err)
{
    struct pass p = {.m = m, .f = f, .batch = batch, .train = train, .loss_sum = loss_sum};
    FSDP_TRY(check_batch(m, batch, err));
    FSDP_TRY(forward(&p, err));
    return train ? backward(&p, err) : FSDP_OK;
}

static int llama_logits(struct model *m, struct fsdp *f, const struct model_batch *batch,
                        float *out, struct fsdp_err *err)
{
    struct pass p = {.m = m, .f = f, .batch = batch, .logits = out};
    FSDP_TRY(check_batch(m, batch, err));
    return forward(&p, err);
}

/* ---- facts ---------------------------------------------------------------------------------- */

static int llama_vocab_size(const struct model *m)
{
    return m->config.vocab;
}

static int llama_max_seq_len(const struct model *m)
{
    return m->config.max_seq_len;
}

/* Two per weight and token forward, twice that backward; the embedding is no product. Causal
 * attention: two products of T/2 keys by head_dim per head and token, likewise. */
static double llama_flops_per_token(const struct model *m, int T)
{
    const struct llama_config *c = &m->config;
    double C = c->dim, NHD = (double)c->nheads * c->head_dim;
    double KVD = (double)c->nkv_heads * c->head_dim;
    double layer = 2 * C * NHD + 2 * C * KVD + 3 * C * c->ffn + T * NHD;
    return 6 * (c->nlayers * layer + C * c->vocab);
}

static void llama_info(const struct model *m, struct model_info *out)
{
    *out = m->config.info;
}

static const char *const llama_wrap_classes[] = {"LlamaDecoderLayer", NULL};

const struct model_ops model_llama_ops = {
    .family = "llama",
    .wrap_classes = llama_wrap_classes,
    .create = llama_create,
    .destroy = llama_destroy,
    .describe = llama_describe,
    .vocab_size = llama_vocab_size,
    .max_seq_len = llama_max_seq_len,
    .run = llama_run,
    .logits = llama_logits,
    .flops_per_token = llama_flops_per_token,
    .info = llama_info,
    .decoder_create = llama_decoder_create,
    .decoder_destroy = llama_decoder_destroy,
    .decode = llama_decode,
};
