/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One forward and backward pass against the engine. Modules and memory:
 *
 *   ""              saved: tokens, documents, positions, the residual stream (B, T, C)
 *     embedding     writes the stream
 *     layer i       saved: its input; recomputed: of its norms; cheap: the stream between its
 *                   halves; work: scratch of both
 *       attention   recomputed: q, k, v; cheap: its output, which is made from them
 *       mlp         recomputed: what its nonlinearity takes
 *     head          work: logits of one chunk of tokens
 *
 * The stream is one buffer for the whole pass. In backward the same buffer carries the gradient of
 * the stream; layers kept their inputs, and the head, which turns it from one to the other, reads
 * it chunk by chunk. In training the head does all of its work in the backward phase, loss
 * included, so that logits are made once.
 */
#include "layer.h"

struct pass {
    struct model *m;
    struct fsdp *f;
    const struct model_batch *batch;
    bool train;
    double *loss_sum; /* NULL: logits are wanted */
    float *logits;
    bool counts;   /* how often experts are chosen */
    int documents; /* in all rows */
    struct stack_root_mem mem;
};

static struct stack_param param_of(const struct fsdp_view *view, int param, bool backward)
{
    return (struct stack_param){
        .w = view->param[param],
        .dw = backward ? view->grad[param] : NULL,
        .dw_beta = backward ? fsdp_view_grad_beta(view, param) : 0,
        .w_dtype = view->param_dtype,
        .dw_dtype = view->grad_dtype,
        .w_amax = view->amax[param],
    };
}

static size_t bytes_between(const void *from, const void *to)
{
    return (size_t)((const char *)to - (const char *)from);
}

/* Sets the strides of experts that are parameters of their own, from the first two. */
static void set_strides(struct stack_experts *to, const struct stack_param *second)
{
    const struct stack_param *first = &to->first;

    to->stride = bytes_between(first->w, second->w) / stack_weight_elem(first);
    if (first->dw)
        to->grad_stride = bytes_between(first->dw, second->dw) / fsdp_dtype_nbytes(first->dw_dtype);
    if (first->w_amax)
        to->amax_step = (size_t)(second->w_amax - first->w_amax);
}

/* Does expert e's parameter lie where the strides say? */
static bool lies_evenly(const struct stack_experts *all, const struct stack_param *own, size_t e)
{
    const struct stack_param *first = &all->first;

    return own->w == stack_weight_at(first, e * all->stride) &&
           own->dw == nn_at(first->dw, own->dw_dtype, e * all->grad_stride) &&
           own->w_amax == (first->w_amax ? first->w_amax + e * all->amax_step : NULL);
}

/* The experts' matrices; the weights of one kind lie evenly in the unit's memory. */
static int show_experts(struct stack_block *blk, const struct model *m,
                        const struct fsdp_view *view, bool backward, struct fsdp_err *err)
{
    for (int w = 0; w < m->nexpert_weights; w++) {
        const struct stack_expert_weight *x = &m->expert_weight[w];
        const int param = m->expert_param[blk->layer][w], n = x->apart ? m->traits.experts : 1;
        struct stack_experts *to = &blk->experts[w];
        *to = (struct stack_experts){.first = param_of(view, param, backward),
                                     .stride = stack_expert_nelem(x),
                                     .grad_stride = stack_expert_nelem(x)};
        for (int e = 1; e < n; e++) {
            const struct stack_param own = param_of(view, param + e, backward);
            if (e == 1)
                set_strides(to, &own);
            if (!lies_evenly(to, &own, (size_t)e))
                return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                                    "the experts of layer %d are not all trained or all frozen",
                                    blk->layer);
        }
    }
    return FSDP_OK;
}

/* Enters a module of the layer; blk gets its weights, gradients and memory. */
static int enter(struct pass *p, struct stack_block *blk, enum stack_part part,
                 enum fsdp_phase phase, struct fsdp_err *err)
{
    const struct model *m = p->m;
    const int *param = m->layer_param + (ptrdiff_t)blk->layer * m->nweights;
    const bool backward = phase == FSDP_BACKWARD;
    struct fsdp_view view;

    FSDP_TRY(fsdp_module_enter(p->f, m->part[blk->layer][part], phase, &view, err));
    blk->lane = view.lane;
    blk->loss_scale = view.loss_scale;
    for (int w = 0; w < m->nweights; w++)
        if (m->weight[w].part == part)
            blk->param[w] = param_of(&view, param[w], backward);
    if (part == STACK_PART_MLP)
        FSDP_TRY(show_experts(blk, m, &view, backward, err));
    stack_part_layout(blk, m, part, blk->B, blk->Tq, &view);
    return FSDP_OK;
}

static int leave_part(struct pass *p, const struct stack_block *blk, enum stack_part part,
                      enum fsdp_phase phase, struct fsdp_err *err)
{
    return fsdp_module_leave(p->f, p->m->part[blk->layer][part], phase, err);
}

/* Of the router's z-loss of one position in one layer: their mean is the step's. */
static double z_scale(const struct pass *p)
{
    return p->batch->router_position / p->m->traits.nlayers;
}

static int told_documents(const struct pass *p)
{
    return p->documents == p->batch->B || p->documents <= p->m->max_documents ? p->documents : 0;
}

/* What is dropped in layers is decided by it; NULL: nothing is. */
static const struct model_batch *drop_of(const struct pass *p)
{
    const struct traits *t = &p->m->traits;
    const bool drops = t->attn_drop > 0 || t->resid_drop > 0 || p->m->lora.dropout > 0;
    return drops && p->batch->dropout ? p->batch : NULL;
}

static struct stack_block block_of(const struct pass *p, int layer)
{
    return (struct stack_block){
        .dtype = p->m->dtypes.activation,
        .tables = p->mem.tables,
        .starts = p->documents > p->batch->B ? p->mem.starts : NULL,
        .positions = p->batch->starts ? p->mem.positions : NULL,
        .documents = told_documents(p),
        .drop = drop_of(p),
        .layer = layer,
        .B = p->batch->B,
        .Tq = p->batch->T,
        .Tk = p->batch->T,
        .routing.first_host =
            p->m->expert_first + (size_t)layer * ((size_t)p->m->traits.experts + 1),
        .load = p->mem.load,
        .z_loss = (float)(p->batch->router_z_loss * z_scale(p)),
        .balanced = p->counts && p->m->traits.router_aux_loss_coef > 0,
    };
}

static void root_layout(struct pass *p, const struct fsdp_view *view)
{
    const struct model_batch *b = p->batch;

    stack_root_layout(&p->mem, p->m, b->B, b->T, view->saved);
    p->mem.load.rows = p->counts ? (b->B - b->padding) * b->T : 0;
}

static int begin_pass(struct pass *p, const struct fsdp_view *view, struct fsdp_err *err)
{
    const struct model *m = p->m;
    const struct model_batch *b = p->batch;
    root_layout(p, view);
    if (p->counts)
        FSDP_TRY(
            fsdp_zero(view->lane, p->mem.load.counts, stack_load_nelem(m) * sizeof(double), err));
    struct nn_split_tokens split = {p->mem.inputs, p->mem.targets, b->tokens, b->B, b->T};
    const size_t nbytes = (size_t)b->B * (size_t)b->T * sizeof(int32_t);
    FSDP_TRY(m->nn->split_tokens(view->lane, &split, err));
    if (b->labels)
        FSDP_TRY(fsdp_copy(view->lane, p->mem.targets, b->labels, nbytes, err));
    if (b->starts)
        FSDP_TRY(fsdp_copy(view->lane, p->mem.starts, b->starts, nbytes, err));
    if (b->weights)
        FSDP_TRY(fsdp_copy(view->lane, p->mem.weights, b->weights, nbytes, err));
    struct nn_positions positions = {
        .out = p->mem.positions, .starts = b->starts ? p->mem.starts : NULL, .B = b->B, .T = b->T};
    FSDP_TRY(m->nn->positions(view->lane, &positions, err));
    return stack_tables_fill(&p->mem.tables, m, b->T, view->lane, err);
}

/* The stream after the embedding, or its gradient, times the model's multiplier. */
static int embed_scale(const struct pass *p, struct fsdp_lane *lane, struct fsdp_err *err)
{
    const struct model *m = p->m;
    const struct nn_scale_add args = {.out = p->mem.stream,
                                      .x = p->mem.stream,
                                      .nelem = (size_t)p->batch->B * (size_t)p->batch->T *
                                               (size_t)m->traits.dim,
                                      .alpha = stack_embed_scale(m, m->dtypes.activation),
                                      .dtype = m->dtypes.activation};
    return args.alpha == 1 ? FSDP_OK : m->nn->scale_add(lane, &args, err);
}

/* The stream after the embedding, or its gradient, with dropout. */
static int embed_dropout(const struct pass *p, struct fsdp_lane *lane, struct fsdp_err *err)
{
    const struct traits *t = &p->m->traits;
    struct nn_dropout args = {
        .out = p->mem.stream,
        .x = p->mem.stream,
        .B = p->batch->B,
        .row_nelem = (size_t)p->batch->T * (size_t)t->dim,
        .dtype = p->m->dtypes.activation,
        .drop = stack_drop(p->batch->dropout ? p->batch : NULL, 0, STACK_EMBED, t->embed_drop)};
    return args.drop.p > 0 ? p->m->nn->dropout(lane, &args, err) : FSDP_OK;
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
                                .vocab = m->traits.vocab,
                                .dim = m->traits.dim,
                                .dtype = m->dtypes.activation,
                                .w_dtype = view.param_dtype};
    FSDP_TRY(m->nn->embedding_forward(view.lane, &args, err));
    if (m->family->names->positions) {
        args.w = view.param[m->position_param];
        args.tokens = p->mem.positions;
        args.vocab = m->traits.max_seq_len;
        args.beta = 1;
        FSDP_TRY(m->nn->embedding_forward(view.lane, &args, err));
    }
    FSDP_TRY(embed_scale(p, view.lane, err));
    FSDP_TRY(embed_dropout(p, view.lane, err));
    return fsdp_module_leave(p->f, m->embed, FSDP_FORWARD, err);
}

static int layer_forward(struct pass *p, int layer, struct fsdp_err *err)
{
    const struct model *m = p->m;
    struct stack_block blk = block_of(p, layer);

    FSDP_TRY(enter(p, &blk, STACK_PART_LAYER, FSDP_FORWARD, err));
    blk.in = blk.out = p->mem.stream;
    if (!p->train)
        blk.in_copy = NULL;
    if (!m->traits.parallel &&
        (!p->train || fsdp_module_recomputes(p->f, m->part[layer][STACK_PART_LAYER])))
        blk.mid = NULL;
    FSDP_TRY(enter(p, &blk, STACK_PART_ATTENTION, FSDP_FORWARD, err));
    FSDP_TRY(stack_run_list(p->m, &blk, STACK_ATTENTION_FORWARD, true, err));
    FSDP_TRY(leave_part(p, &blk, STACK_PART_ATTENTION, FSDP_FORWARD, err));
    FSDP_TRY(enter(p, &blk, STACK_PART_MLP, FSDP_FORWARD, err));
    FSDP_TRY(stack_run_list(p->m, &blk, STACK_MLP_FORWARD, true, err));
    FSDP_TRY(leave_part(p, &blk, STACK_PART_MLP, FSDP_FORWARD, err));
    return leave_part(p, &blk, STACK_PART_LAYER, FSDP_FORWARD, err);
}

/* The last norm of rows [first, first + rows) of the stream. */
static struct stack_norm norm_of(const struct pass *p, const struct fsdp_view *view,
                                 const struct stack_head_mem *mem, int first, int rows)
{
    const struct model *m = p->m;
    const bool biased = m->traits.norm == TRAITS_LAYER, backward = view->grad;
    void *stream =
        nn_at(p->mem.stream, m->dtypes.activation, (size_t)first * (size_t)m->traits.dim);
    return (struct stack_norm){
        .y = mem->norm,
        .mean = mem->mean,
        .rstd = mem->rstd,
        .x = stream,
        .w = view->param[m->norm_param],
        .b = biased ? view->param[m->norm_bias_param] : NULL,
        .rows = rows,
        .dim = m->traits.dim,
        .dx = backward ? stream : NULL,
        .dw = backward ? view->grad[m->norm_param] : NULL,
        .db = backward && biased ? view->grad[m->norm_bias_param] : NULL,
        .dtype = m->dtypes.activation,
        .w_dtype = view->param_dtype,
        .dw_dtype = view->grad_dtype,
    };
}

/* Those rows through the last norm and the head, to logits in the output's type, `ld` apart. */
static int head_output(const struct pass *p, const struct fsdp_view *view,
                       const struct stack_head_mem *mem, int first, int rows, void *logits, int ld,
                       struct fsdp_err *err)
{
    const struct model *m = p->m;
    struct stack_norm norm = norm_of(p, view, mem, first, rows);
    const struct stack_head_rows h = {m, view, mem, p->batch, first, rows};

    FSDP_TRY(stack_norm_forward(m, view->lane, &norm, err));
    return m->head_lora ? stack_head_lora_forward(&h, logits, ld, err)
                        : stack_head_product(&h, logits, ld, mem->norm, err);
}

/* What does not depend on the rows. */
static int head_begin(const struct pass *p, const struct fsdp_view *view,
                      struct stack_head_mem *mem, int nrows, struct fsdp_err *err)
{
    const struct stack_head_rows all = {p->m, view, mem, p->batch, 0, nrows};

    stack_head_layout(mem, p->m, nrows, view->work);
    return stack_head_lora_begin(&all, err);
}

/* The same for the caller, in fp32, without gaps, and as the model's last step makes them. */
static int head_logits(const struct pass *p, const struct fsdp_view *view,
                       const struct stack_head_mem *mem, int first, int rows, float *logits,
                       struct fsdp_err *err)
{
    const struct model *m = p->m;
    const enum fsdp_dtype dtype = m->dtypes.output;
    const int vocab = m->traits.vocab;
    const size_t nelem = (size_t)rows * (size_t)vocab;

    if (dtype == FSDP_F32) {
        FSDP_TRY(head_output(p, view, mem, first, rows, logits, vocab, err));
    } else {
        FSDP_TRY(head_output(p, view, mem, first, rows, mem->logits, vocab, err));
        FSDP_TRY(fsdp_cast(view->lane, logits, FSDP_F32, mem->logits, dtype, nelem, err));
    }
    return stack_last_step(m, view->lane, logits, nelem, err);
}

static int head_loss(const struct pass *p, const struct fsdp_view *view,
                     const struct stack_head_mem *mem, int first, int rows, struct fsdp_err *err)
{
    double *by_row = p->batch->row_losses;
    struct nn_cross_entropy loss = {.logits = mem->logits,
                                    .targets = p->mem.targets + first,
                                    .loss_sum = by_row ? by_row + first / p->batch->T : p->loss_sum,
                                    .rows = rows,
                                    .vocab = p->m->traits.vocab,
                                    .ld = mem->ld,
                                    .scale = (float)p->batch->loss_scale,
                                    .logit_scale = (float)p->m->traits.logit_scale,
                                    .softcap = (float)p->m->traits.logit_softcap,
                                    .smoothing = (float)p->batch->label_smoothing,
                                    .z_loss = (float)p->batch->z_loss,
                                    .weights = p->batch->weights ? p->mem.weights + first : NULL,
                                    .loss_scale = view->loss_scale,
                                    .grad = p->train,
                                    .dtype = p->m->dtypes.output};
    FSDP_TRY(head_output(p, view, mem, first, rows, mem->logits, mem->ld, err));
    return p->m->nn->cross_entropy(view->lane, &loss, err);
}

static int head_forward(struct pass *p, struct fsdp_err *err)
{
    const struct model *m = p->m;
    const int nrows = p->batch->B * p->batch->T, chunk = stack_head_chunk(m, nrows);
    struct fsdp_view view;
    struct stack_head_mem mem;

    FSDP_TRY(fsdp_module_enter(p->f, m->head, FSDP_FORWARD, &view, err));
    if (!p->train)
        FSDP_TRY(head_begin(p, &view, &mem, nrows, err));
    for (int first = 0, rows; first < nrows && !p->train; first += rows) {
        rows = nrows - first < chunk ? nrows - first : chunk;
        const int left = p->batch->T - first % p->batch->T; /* of this row */
        if (p->batch->row_losses && left < rows)
            rows = left;
        float *logits = p->logits + (p->logits ? (size_t)first * (size_t)m->traits.vocab : 0);
        FSDP_TRY(p->logits ? head_logits(p, &view, &mem, first, rows, logits, err)
                           : head_loss(p, &view, &mem, first, rows, err));
    }
    return fsdp_module_leave(p->f, m->head, FSDP_FORWARD, err);
}

/* How even the experts' load is over all ranks: what backward takes of it, and what is reported. */
static int sum_load(struct pass *p, const struct fsdp_view *view, struct fsdp_err *err)
{
    const struct model *m = p->m;
    double *sums = p->batch->router_sums;
    const struct nn_balance args = {.loss = sums ? sums + MODEL_ROUTER_BALANCE : NULL,
                                    .z_loss = sums ? sums + MODEL_ROUTER_Z : NULL,
                                    .total = sums ? sums + MODEL_ROUTER_COUNTS : NULL,
                                    .balance = p->mem.load.balance,
                                    .counts = p->mem.load.counts,
                                    .sums = p->mem.load.sums,
                                    .squares = p->mem.load.squares,
                                    .loss_scale = view->loss_scale,
                                    .layers = m->traits.nlayers,
                                    .experts = m->traits.experts,
                                    .chosen = m->traits.experts_per_token,
                                    .scale = (float)p->batch->router_weight,
                                    .z_scale = z_scale(p),
                                    .coef = (float)m->traits.router_aux_loss_coef};

    if (!p->counts)
        return FSDP_OK;
    FSDP_TRY(fsdp_model_sum(p->f, p->mem.load.counts, stack_load_nelem(m), err));
    return m->nn->balance(view->lane, &args, err);
}

static int forward(struct pass *p, struct fsdp_err *err)
{
    struct fsdp_view view;
    FSDP_TRY(fsdp_module_enter(p->f, p->m->root, FSDP_FORWARD, &view, err));
    FSDP_TRY(begin_pass(p, &view, err));
    FSDP_TRY(embed_forward(p, err));
    for (int i = 0; i < p->m->traits.nlayers; i++)
        FSDP_TRY(layer_forward(p, i, err));
    FSDP_TRY(head_forward(p, err));
    FSDP_TRY(sum_load(p, &view, err));
    return fsdp_module_leave(p->f, p->m->root, FSDP_FORWARD, err);
}

/* Of the weight, and of mem->norm in its place, from mem->logits. */
static int plain_head_gradients(const struct stack_head_rows *h, struct fsdp_err *err)
{
    const struct model *m = h->m;
    struct nn_linear weight = stack_head_linear(h, h->mem->ld), input = weight;

    weight.out = h->view->grad[m->head_param];
    weight.x = h->mem->norm;
    weight.dy = h->mem->logits;
    weight.beta = fsdp_view_grad_beta(h->view, m->head_param);
    FSDP_TRY(m->nn->linear_backward_weight(h->view->lane, &weight, err));
    input.out = h->mem->norm;
    input.dy = h->mem->logits;
    input.after_weight = weight.out != NULL;
    return m->nn->linear_backward_input(h->view->lane, &input, err);
}

/* dlogits are in mem->logits: the gradients of the head, the norm and these rows of the stream. */
static int head_gradients(const struct pass *p, const struct fsdp_view *view,
                          const struct stack_head_mem *mem, int first, int rows,
                          struct fsdp_err *err)
{
    const struct model *m = p->m;
    struct stack_norm norm = norm_of(p, view, mem, first, rows);
    const struct stack_head_rows h = {m, view, mem, p->batch, first, rows};

    if (m->head_lora) {
        FSDP_TRY(stack_head_lora_weight(&h, err));
        FSDP_TRY(stack_head_lora_input(&h, err));
    } else {
        FSDP_TRY(plain_head_gradients(&h, err));
    }
    norm.dw_beta = fsdp_view_grad_beta(view, m->norm_param);
    if (norm.db) { /* written together: the same, where both are wanted */
        float beta = fsdp_view_grad_beta(view, m->norm_bias_param);
        norm.dw_beta = norm.dw ? norm.dw_beta : beta;
    }
    return stack_norm_backward(m, view->lane, &norm, err);
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
    const int nrows = p->batch->B * p->batch->T, chunk = stack_head_chunk(m, nrows);
    struct fsdp_view view;
    struct stack_head_mem mem;

    FSDP_TRY(recompute_nothing(p, m->head, err));
    FSDP_TRY(fsdp_module_enter(p->f, m->head, FSDP_BACKWARD, &view, err));
    FSDP_TRY(head_begin(p, &view, &mem, nrows, err));
    for (int first = 0; first < nrows; first += chunk) {
        int rows = nrows - first < chunk ? nrows - first : chunk;
        FSDP_TRY(head_loss(p, &view, &mem, first, rows, err));
        FSDP_TRY(head_gradients(p, &view, &mem, first, rows, err));
    }
    return fsdp_module_leave(p->f, m->head, FSDP_BACKWARD, err);
}

static bool part_recomputes(const struct pass *p, const struct stack_block *blk,
                            enum stack_part part)
{
    return fsdp_module_recomputes(p->f, p->m->part[blk->layer][part]);
}

/* Makes again what the attention dropped, and with `add` the stream behind it, in blk->out. */
static int attention_recompute(struct pass *p, struct stack_block *blk, bool add,
                               struct fsdp_err *err)
{
    const struct model *m = p->m;
    const int module = m->part[blk->layer][STACK_PART_ATTENTION];
    const size_t nelem = (size_t)blk->B * (size_t)blk->Tq * (size_t)m->traits.dim;

    FSDP_TRY(enter(p, blk, STACK_PART_ATTENTION, FSDP_RECOMPUTE, err));
    blk->in_copy = add ? blk->out : NULL;
    if (fsdp_module_checkpointing(p->f, module) == FSDP_AC_FULL) {
        FSDP_TRY(stack_run_list(p->m, blk, STACK_ATTENTION_FORWARD, add, err));
    } else {
        if (add)
            FSDP_TRY(fsdp_copy(blk->lane, blk->out, blk->in, nelem * fsdp_dtype_nbytes(blk->dtype),
                               err));
        FSDP_TRY(stack_run_list(p->m, blk, STACK_ATTEND, add, err));
    }
    return leave_part(p, blk, STACK_PART_ATTENTION, FSDP_RECOMPUTE, err);
}

/* The same of the MLP, from the stream before it in blk->out. */
static int mlp_recompute(struct pass *p, struct stack_block *blk, struct fsdp_err *err)
{
    const struct model *m = p->m;
    const int module = m->part[blk->layer][STACK_PART_MLP];

    FSDP_TRY(enter(p, blk, STACK_PART_MLP, FSDP_RECOMPUTE, err));
    blk->mid = NULL;
    blk->load.rows = 0; /* forward has counted */
    if (fsdp_module_checkpointing(p->f, module) == FSDP_AC_FULL)
        FSDP_TRY(stack_run_list(p->m, blk, STACK_MLP_FORWARD, false, err));
    return leave_part(p, blk, STACK_PART_MLP, FSDP_RECOMPUTE, err);
}

static int layer_recompute(struct pass *p, int layer, struct fsdp_err *err)
{
    struct stack_block blk = block_of(p, layer);

    FSDP_TRY(enter(p, &blk, STACK_PART_LAYER, FSDP_RECOMPUTE, err));
    blk.in = blk.in_copy; /* as saved */
    blk.out = blk.mid;    /* which grows from the input to the middle of the block */
    FSDP_TRY(attention_recompute(p, &blk, !p->m->traits.parallel, err));
    FSDP_TRY(mlp_recompute(p, &blk, err));
    return leave_part(p, &blk, STACK_PART_LAYER, FSDP_RECOMPUTE, err);
}

static int mlp_backward(struct pass *p, struct stack_block *blk, struct fsdp_err *err)
{
    if (part_recomputes(p, blk, STACK_PART_MLP)) {
        struct stack_block again = *blk;
        again.out = blk->mid;
        FSDP_TRY(mlp_recompute(p, &again, err));
    }
    FSDP_TRY(enter(p, blk, STACK_PART_MLP, FSDP_BACKWARD, err));
    FSDP_TRY(stack_run_list(p->m, blk, STACK_MLP_BACKWARD, false, err));
    return leave_part(p, blk, STACK_PART_MLP, FSDP_BACKWARD, err);
}

static int attention_backward(struct pass *p, struct stack_block *blk, struct fsdp_err *err)
{
    if (part_recomputes(p, blk, STACK_PART_ATTENTION)) {
        struct stack_block again = *blk;
        FSDP_TRY(attention_recompute(p, &again, false, err));
    }
    FSDP_TRY(enter(p, blk, STACK_PART_ATTENTION, FSDP_BACKWARD, err));
    FSDP_TRY(stack_run_list(p->m, blk, STACK_ATTENTION_BACKWARD, false, err));
    return leave_part(p, blk, STACK_PART_ATTENTION, FSDP_BACKWARD, err);
}

static int layer_backward(struct pass *p, int layer, struct fsdp_err *err)
{
    struct stack_block blk = block_of(p, layer);

    if (part_recomputes(p, &blk, STACK_PART_LAYER))
        FSDP_TRY(layer_recompute(p, layer, err));
    FSDP_TRY(enter(p, &blk, STACK_PART_LAYER, FSDP_BACKWARD, err));
    blk.in = blk.in_copy;
    blk.out = p->mem.stream;
    FSDP_TRY(mlp_backward(p, &blk, err));
    FSDP_TRY(attention_backward(p, &blk, err));
    return leave_part(p, &blk, STACK_PART_LAYER, FSDP_BACKWARD, err);
}

static int embed_backward(struct pass *p, struct fsdp_err *err)
{
    const struct model *m = p->m;
    struct fsdp_view view;
    FSDP_TRY(recompute_nothing(p, m->embed, err));
    FSDP_TRY(fsdp_module_enter(p->f, m->embed, FSDP_BACKWARD, &view, err));
    FSDP_TRY(embed_dropout(p, view.lane, err));
    FSDP_TRY(embed_scale(p, view.lane, err));
    struct nn_embedding args = {.out = view.grad[m->embed_param],
                                .dy = p->mem.stream,
                                .tokens = p->mem.inputs,
                                .rows = p->batch->B * p->batch->T,
                                .vocab = m->traits.vocab,
                                .dim = m->traits.dim,
                                .beta = fsdp_view_grad_beta(&view, m->embed_param),
                                .dtype = m->dtypes.activation,
                                .dw_dtype = view.grad_dtype};
    FSDP_TRY(m->nn->embedding_backward(view.lane, &args, err));
    if (m->family->names->positions) {
        args.out = view.grad[m->position_param];
        args.tokens = p->mem.positions;
        args.vocab = m->traits.max_seq_len;
        args.beta = fsdp_view_grad_beta(&view, m->position_param);
        FSDP_TRY(m->nn->embedding_backward(view.lane, &args, err));
    }
    return fsdp_module_leave(p->f, m->embed, FSDP_BACKWARD, err);
}

static int backward(struct pass *p, struct fsdp_err *err)
{
    struct fsdp_view view;
    FSDP_TRY(fsdp_module_enter(p->f, p->m->root, FSDP_BACKWARD, &view, err));
    root_layout(p, &view);
    FSDP_TRY(head_backward(p, err));
    for (int i = p->m->traits.nlayers - 1; i >= 0; i--)
        FSDP_TRY(layer_backward(p, i, err));
    FSDP_TRY(embed_backward(p, err));
    return fsdp_module_leave(p->f, p->m->root, FSDP_BACKWARD, err);
}

int stack_run(struct model *m, struct fsdp *f, const struct model_batch *batch, bool train,
              double *loss_sum, struct fsdp_err *err)
{
    const bool trains = m->traits.router_aux_loss_coef > 0 || batch->router_z_loss > 0;
    struct pass p = {.m = m,
                     .f = f,
                     .batch = batch,
                     .train = train,
                     .loss_sum = loss_sum,
                     .counts = m->traits.experts && (batch->router_sums || (train && trains))};
    FSDP_TRY(stack_check_batch(&p.documents, m, batch, err));
    FSDP_TRY(forward(&p, err));
    return train ? backward(&p, err) : FSDP_OK;
}

int stack_logits(struct model *m, struct fsdp *f, const struct model_batch *batch, float *out,
                 struct fsdp_err *err)
{
    struct pass p = {.m = m, .f = f, .batch = batch, .logits = out};
    FSDP_TRY(stack_check_batch(&p.documents, m, batch, err));
    return forward(&p, err);
}
