/* SPDX-License-Identifier: Apache-2.0 */
/* Generation: the same blocks on plain memory, with keys and values kept from call to call. */
#include <string.h>

#include "layer.h"

/* Most tokens at once, and most rows of logits on a device whose memory is not the host's. More go
 * in pieces. */
enum { STRIDE = 256, LOGIT_ROWS = 32 };
_Static_assert((int)MODEL_MAX_SEQUENCES <= (int)STRIDE, "a token of each at once");

/* Rows of the stream that follow each other in one sequence. */
struct segment {
    int sequence, row, nrows;
};

struct model_decoder {
    const struct model *m;
    const float *const *param;
    struct fsdp_lane *lane;
    int max_tokens, nsequences;
    enum fsdp_dtype kv_dtype;
    bool on_host; /* logits are made where the caller wants them */
    size_t nbytes, cache_nbytes;
    int *ntokens;             /* [nsequences] */
    struct segment *segments; /* [nsequences] of the pass that runs */
    int32_t *host;            /* [2 * STRIDE] its tokens and positions */
    int nsegments;
    void *memory;
    struct stack_tables tables; /* of max_tokens positions */
    int32_t *tokens;            /* (STRIDE) */
    int32_t *positions;         /* (STRIDE) */
    void *k, *v;                /* (nlayers, nsequences, max_tokens, KVD) of kv_dtype */
    float *k_wide, *v_wide;     /* (max_tokens, KVD) of one sequence; NULL where kv_dtype is F32 */
    float *stream;              /* (STRIDE, C) */
    float *logits;              /* (LOGIT_ROWS, V); NULL on the host */
    struct stack_block block;   /* scratch of one layer */
};

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t kv_dim(const struct model *m)
{
    return (size_t)m->traits.nkv_heads * (size_t)m->traits.head_dim;
}

static void layout_cache(struct model_decoder *d, struct stack_carve *area)
{
    const size_t one = (size_t)d->max_tokens * kv_dim(d->m), elem = fsdp_dtype_nbytes(d->kv_dtype);
    const size_t all = (size_t)d->m->traits.nlayers * (size_t)d->nsequences * one;
    d->k = stack_carve(area, all, elem);
    d->v = stack_carve(area, all, elem);
    d->cache_nbytes = 2 * all * elem;
    if (d->kv_dtype != FSDP_F32) {
        d->k_wide = stack_carve(area, one, sizeof(float));
        d->v_wide = stack_carve(area, one, sizeof(float));
    }
}

static void layout_block(struct stack_block *blk, const struct model *m, int max_tokens,
                         struct stack_carve *area)
{
    const struct traits *t = &m->traits;
    const size_t rows = STRIDE, f32 = sizeof(float), C = (size_t)t->dim, F = (size_t)t->ffn;
    const size_t NHD = (size_t)t->nheads * (size_t)t->head_dim;
    const struct nn_attention shape = {.B = 1, .Tq = STRIDE, .Tk = max_tokens};
    float *mean = stack_carve(area, rows, f32), *rstd = stack_carve(area, rows, f32);

    for (int i = 0; i < STACK_NNORMS; i++) {
        blk->mean[i] = m->traits.norm == TRAITS_LAYER ? mean : NULL;
        blk->rstd[i] = rstd;
    }
    blk->q = stack_carve(area, rows * NHD, f32);
    blk->k_new = stack_carve(area, rows * kv_dim(m), f32);
    blk->v_new = stack_carve(area, rows * kv_dim(m), f32);
    blk->o = stack_carve(area, rows * NHD, f32);
    blk->lse = stack_carve(area, rows * (size_t)t->nheads, f32);
    if (t->qk_norm != TRAITS_QK_NONE) {
        blk->q_raw = stack_carve(area, rows * NHD, f32);
        blk->k_raw = stack_carve(area, rows * kv_dim(m), f32);
        blk->q_rstd = stack_carve(area, rows * (size_t)t->nheads, f32);
        blk->k_rstd = stack_carve(area, rows * (size_t)t->nkv_heads, f32);
    }
    if (t->post_norm)
        blk->attn_y = blk->mlp_y = stack_carve(area, rows * C, f32);
    if (t->parallel)
        blk->mid = stack_carve(area, rows * C, f32);
    if (t->gated)
        blk->gate = stack_carve(area, rows * F, f32);
    blk->up = stack_carve(area, rows * F, f32);
    if (t->experts)
        stack_experts_layout(blk, m, rows, FSDP_F32, area, area);
    blk->norm = stack_carve(area, rows * C, f32);
    blk->act = stack_carve(area, rows * stack_act_width(m), f32);
    blk->work = stack_carve(area, stack_attention_work(m, shape), f32);
}

static size_t layout(struct model_decoder *d, void *memory)
{
    const struct traits *t = &d->m->traits;
    struct stack_carve area = {memory, 0};
    const size_t rows = STRIDE;

    stack_tables_layout(&d->tables, d->m, d->max_tokens, &area);
    d->tokens = stack_carve(&area, rows, sizeof(int32_t));
    d->positions = stack_carve(&area, rows, sizeof(int32_t));
    layout_cache(d, &area);
    d->stream = stack_carve(&area, rows * (size_t)t->dim, sizeof(float));
    if (!d->on_host)
        d->logits = stack_carve(&area, LOGIT_ROWS * (size_t)t->vocab, sizeof(float));
    layout_block(&d->block, d->m, d->max_tokens, &area);
    return area.nbytes;
}

static int check_opts(const struct model *m, const struct model_decoder_opts *opts,
                      struct fsdp_err *err)
{
    if (opts->max_tokens < 1 || opts->max_tokens > m->traits.max_seq_len)
        return fsdp_err_set(err, FSDP_EINVAL, "%d tokens: the model's %s is %d", opts->max_tokens,
                            m->family->keys->max_seq_len, m->traits.max_seq_len);
    if (opts->nsequences < 0 || opts->nsequences > MODEL_MAX_SEQUENCES)
        return fsdp_err_set(err, FSDP_EINVAL, "%d sequences at once, allowed are 1 to %d",
                            opts->nsequences, MODEL_MAX_SEQUENCES);
    return FSDP_OK;
}

/* What the host has, and all of the device. */
static int make_memory(struct model_decoder *d, struct fsdp_err *err)
{
    const size_t n = (size_t)d->nsequences;
    int rc = FSDP_ENOMEM;

    if (!(d->ntokens = fsdp_alloc(n, sizeof *d->ntokens, "decoder", err)) ||
        !(d->segments = fsdp_alloc(n, sizeof *d->segments, "decoder", err)) ||
        !(d->host = fsdp_alloc(2 * STRIDE, sizeof *d->host, "decoder", err)))
        return rc;
    d->nbytes = layout(d, NULL);
    d->memory =
        fsdp_device_alloc(fsdp_lane_device(d->lane), d->nbytes, "keys, values and scratch", err);
    if (!d->memory)
        return rc;
    layout(d, d->memory);
    /* Rows of sequences that take no part are computed nevertheless. */
    return fsdp_zero(
        d->lane, d->block.o,
        STRIDE * (size_t)d->m->traits.nheads * (size_t)d->m->traits.head_dim * sizeof(float), err);
}

int stack_decoder_create(struct model_decoder **out, const struct model *model,
                         const float *const *param, struct fsdp_lane *lane,
                         const struct model_decoder_opts *opts, struct fsdp_err *err)
{
    struct model_decoder *d;
    int rc;

    FSDP_TRY(check_opts(model, opts, err));
    if (!(d = fsdp_alloc(1, sizeof *d, "decoder", err)))
        return FSDP_ENOMEM;
    d->m = model;
    d->param = param;
    d->lane = lane;
    d->max_tokens = opts->max_tokens;
    d->nsequences = opts->nsequences ? opts->nsequences : 1;
    d->kv_dtype = opts->kv_dtype;
    d->on_host = fsdp_device_is_host(fsdp_lane_device(lane));
    FSDP_TRY_GOTO(make_memory(d, err), out);
    FSDP_TRY_GOTO(stack_tables_fill(&d->tables, model, d->max_tokens, lane, err), out);
    *out = d;
    d = NULL;
out:
    stack_decoder_destroy(d);
    return rc;
}

void stack_decoder_destroy(struct model_decoder *d)
{
    if (d) {
        fsdp_lane_sync(d->lane, NULL);
        fsdp_device_free(fsdp_lane_device(d->lane), d->memory);
        fsdp_free(d->ntokens);
        fsdp_free(d->segments);
        fsdp_free(d->host);
        fsdp_free(d);
    }
}

void stack_decoder_nbytes(const struct model_decoder *d, size_t *cache, size_t *all)
{
    *cache = d->cache_nbytes;
    *all = d->nbytes;
}

int stack_decoder_truncate(struct model_decoder *d, int sequence, int ntokens)
{
    if (d->ntokens[sequence] > ntokens)
        d->ntokens[sequence] = ntokens;
    return d->ntokens[sequence];
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Appends x (nelem) to `kept`, from element `at` on. */
static int keep_rows(struct model_decoder *d, void *kept, size_t at, const void *x, size_t nelem,
                     struct fsdp_err *err)
{
    void *to = nn_at(kept, d->kv_dtype, at);
    return d->kv_dtype == FSDP_F32 ? fsdp_copy(d->lane, to, x, nelem * sizeof(float), err)
                                   : fsdp_cast(d->lane, to, d->kv_dtype, x, FSDP_F32, nelem, err);
}

/* The kept elements from `from` on, in fp32: where they are, or in `wide`. */
static int recall_rows(void **out, struct model_decoder *d, const void *kept, size_t from,
                       float *wide, size_t nelem, struct fsdp_err *err)
{
    void *at = nn_at(kept, d->kv_dtype, from);
    *out = wide ? wide : at;
    return wide ? fsdp_cast(d->lane, wide, FSDP_F32, at, d->kv_dtype, nelem, err) : FSDP_OK;
}

static int attend_segment(struct model_decoder *d, const struct stack_block *blk,
                          const struct segment *s, struct fsdp_err *err)
{
    const size_t KVD = kv_dim(d->m), row = (size_t)s->row;
    const size_t NHD = (size_t)d->m->traits.nheads * (size_t)d->m->traits.head_dim;
    const size_t first = ((size_t)blk->layer * (size_t)d->nsequences + (size_t)s->sequence) *
                         (size_t)d->max_tokens * KVD;
    const int had = d->ntokens[s->sequence], has = had + s->nrows;
    const size_t at = first + (size_t)had * KVD, nelem = (size_t)s->nrows * KVD;
    struct nn_attention attention = stack_attention(d->m, blk);

    FSDP_TRY(keep_rows(d, d->k, at, nn_at(blk->k_new, FSDP_F32, row * KVD), nelem, err));
    FSDP_TRY(keep_rows(d, d->v, at, nn_at(blk->v_new, FSDP_F32, row * KVD), nelem, err));
    FSDP_TRY(recall_rows(&attention.k, d, d->k, first, d->k_wide, (size_t)has * KVD, err));
    FSDP_TRY(recall_rows(&attention.v, d, d->v, first, d->v_wide, (size_t)has * KVD, err));
    attention.q = nn_at(blk->q, FSDP_F32, row * NHD);
    attention.o = nn_at(blk->o, FSDP_F32, row * NHD);
    attention.B = 1;
    attention.Tq = s->nrows;
    attention.Tk = has;
    return d->m->nn->attention_forward(d->lane, &attention, err);
}

static int attend_segments(struct model_decoder *d, const struct stack_block *blk,
                           struct fsdp_err *err)
{
    for (int i = 0; i < d->nsegments; i++)
        FSDP_TRY(attend_segment(d, blk, &d->segments[i], err));
    return FSDP_OK;
}

/* ---- a pass ---------------------------------------------------------------------------------- */

/* One kind of matrix of a layer's experts: of all in one weight, or of each in its own. */
static struct stack_experts experts_of(const struct model_decoder *d, int layer, int w)
{
    const struct stack_expert_weight *x = &d->m->expert_weight[w];
    const float *const *param = d->param + d->m->expert_param[layer][w];
    return (struct stack_experts){.first.w = *param,
                                  .stride = stack_expert_nelem(x),
                                  .each = x->apart ? (const void *const *)param : NULL};
}

static int decode_layers(struct model_decoder *d, int nrows, struct fsdp_err *err)
{
    const struct traits *t = &d->m->traits;
    struct stack_block blk = d->block;

    blk.lane = d->lane;
    blk.B = 1;
    blk.Tq = blk.Tk = nrows;
    blk.tables = d->tables;
    blk.positions = d->positions;
    blk.kept_attention = attend_segments;
    blk.decoder = d;
    blk.in = blk.out = d->stream;
    for (int i = 0; i < t->nlayers; i++) {
        blk.layer = i;
        for (int w = 0; w < d->m->nweights; w++)
            blk.param[w].w = d->param[d->m->layer_param[i * d->m->nweights + w]];
        for (int w = 0; w < d->m->nexpert_weights; w++)
            blk.experts[w] = experts_of(d, i, w);
        FSDP_TRY(layer_attention_forward(d->m, &blk, true, err));
        FSDP_TRY(layer_mlp_forward(d->m, &blk, true, err));
    }
    return FSDP_OK;
}

/* Logits of `rows` rows of the stream, from row `first` on. */
static int decode_logits(struct model_decoder *d, int first, int rows, float *logits,
                         struct fsdp_err *err)
{
    const struct model *m = d->m;
    const struct traits *t = &m->traits;
    struct stack_norm norm = {.y = d->block.norm,
                              .mean = d->block.mean[0],
                              .rstd = d->block.rstd[0],
                              .x = d->stream + (size_t)first * (size_t)t->dim,
                              .w = d->param[m->norm_param],
                              .b = m->traits.norm == TRAITS_LAYER ? d->param[m->norm_bias_param]
                                                                  : NULL,
                              .rows = rows,
                              .dim = t->dim};
    struct nn_linear linear = {.out = logits,
                               .x = d->block.norm,
                               .w = d->param[m->head_param],
                               .rows = rows,
                               .nin = t->dim,
                               .nout = t->vocab};
    FSDP_TRY(stack_norm_forward(m, d->lane, &norm, err));
    FSDP_TRY(m->nn->linear_forward(d->lane, &linear, err));
    return stack_last_step(m, d->lane, logits, (size_t)rows * (size_t)t->vocab, err);
}

/* Those of the last `rows` of the stream's ntokens, into the host's memory. */
static int decode_head(struct model_decoder *d, int ntokens, int rows, float *logits,
                       struct fsdp_err *err)
{
    const size_t vocab = (size_t)d->m->traits.vocab;
    if (d->on_host)
        return rows ? decode_logits(d, ntokens - rows, rows, logits, err) : FSDP_OK;
    for (int done = 0; done < rows; done += LOGIT_ROWS) {
        const int n = rows - done < LOGIT_ROWS ? rows - done : LOGIT_ROWS;
        FSDP_TRY(decode_logits(d, ntokens - rows + done, n, d->logits, err));
        FSDP_TRY(fsdp_copy(d->lane, logits + (size_t)done * vocab, d->logits,
                           (size_t)n * vocab * sizeof *logits, err));
    }
    return FSDP_OK;
}

/* The stream of the tokens in d->host. */
static int decode_embed(struct model_decoder *d, int nrows, struct fsdp_err *err)
{
    const struct model *m = d->m;
    const size_t nbytes = (size_t)nrows * sizeof *d->tokens;
    struct nn_embedding embed = {.out = d->stream,
                                 .w = d->param[m->embed_param],
                                 .tokens = d->tokens,
                                 .rows = nrows,
                                 .vocab = m->traits.vocab,
                                 .dim = m->traits.dim};
    FSDP_TRY(fsdp_copy(d->lane, d->tokens, d->host, nbytes, err));
    FSDP_TRY(fsdp_copy(d->lane, d->positions, d->host + STRIDE, nbytes, err));
    FSDP_TRY(m->nn->embedding_forward(d->lane, &embed, err));
    if (m->family->names->positions) {
        embed.w = d->param[m->position_param];
        embed.tokens = d->positions;
        embed.vocab = m->traits.max_seq_len;
        embed.beta = 1;
        FSDP_TRY(m->nn->embedding_forward(d->lane, &embed, err));
    }
    const struct nn_scale_add scale = {.out = d->stream,
                                       .x = d->stream,
                                       .nelem = (size_t)nrows * (size_t)m->traits.dim,
                                       .alpha = stack_embed_scale(m, FSDP_F32)};
    return scale.alpha == 1 ? FSDP_OK : m->nn->scale_add(d->lane, &scale, err);
}

/* All segments, which are nrows together, and the logits of the last nlogits rows. */
static int decode_rows(struct model_decoder *d, int nrows, int nlogits, float *logits,
                       struct fsdp_err *err)
{
    FSDP_TRY(decode_embed(d, nrows, err));
    FSDP_TRY(decode_layers(d, nrows, err));
    FSDP_TRY(decode_head(d, nrows, nlogits, logits, err));
    FSDP_TRY(fsdp_lane_sync(d->lane, err));
    for (int i = 0; i < d->nsegments; i++)
        d->ntokens[d->segments[i].sequence] += d->segments[i].nrows;
    return FSDP_OK;
}

static int decode_piece(struct model_decoder *d, int sequence, const int32_t *tokens, int ntokens,
                        int nlogits, float *logits, struct fsdp_err *err)
{
    d->nsegments = 1;
    d->segments[0] = (struct segment){sequence, 0, ntokens};
    for (int i = 0; i < ntokens; i++) {
        d->host[i] = tokens[i];
        d->host[STRIDE + i] = d->ntokens[sequence] + i;
    }
    return decode_rows(d, ntokens, nlogits, logits, err);
}

static int check_room(const struct model_decoder *d, int sequence, const int32_t *tokens,
                      int ntokens, struct fsdp_err *err)
{
    if (ntokens < 1 || ntokens > d->max_tokens - d->ntokens[sequence])
        return fsdp_err_set(err, FSDP_EINVAL, "%d tokens after %d: there is room for %d", ntokens,
                            d->ntokens[sequence], d->max_tokens);
    return stack_check_tokens(d->m, tokens, 1, ntokens, err);
}

int stack_decode(struct model_decoder *d, int sequence, const int32_t *tokens, int ntokens,
                 bool all, float *logits, struct fsdp_err *err)
{
    FSDP_TRY(check_room(d, sequence, tokens, ntokens, err));
    for (int done = 0; done < ntokens;) {
        int piece = ntokens - done < STRIDE ? ntokens - done : STRIDE;
        bool last = done + piece == ntokens;
        float *out = logits + (all ? (size_t)done * (size_t)d->m->traits.vocab : 0);
        FSDP_TRY(decode_piece(d, sequence, tokens + done, piece, all ? piece : last, out, err));
        done += piece;
    }
    return FSDP_OK;
}

int stack_decode_each(struct model_decoder *d, const int32_t *tokens, float *logits,
                      struct fsdp_err *err)
{
    for (int i = 0; i < d->nsequences; i++)
        if (tokens[i] >= 0)
            FSDP_TRY(check_room(d, i, &tokens[i], 1, err));
    d->nsegments = 0;
    for (int i = 0; i < d->nsequences; i++) {
        const bool takes_part = tokens[i] >= 0;
        d->host[i] = takes_part ? tokens[i] : 0;
        d->host[STRIDE + i] = takes_part ? d->ntokens[i] : 0;
        if (takes_part)
            d->segments[d->nsegments++] = (struct segment){i, i, 1};
    }
    return decode_rows(d, d->nsequences, d->nsequences, logits, err);
}
