/* SPDX-License-Identifier: Apache-2.0 */
/* Generation: the same blocks on plain memory, with keys and values kept from call to call. */
#include <string.h>

#include "stack.h"

/* Most tokens at once, and most rows of logits on a device whose memory is not the host's. More go
 * in pieces. */
enum { STRIDE = 256, LOGIT_ROWS = 32 };

struct model_decoder {
    const struct model *m;
    const float *const *param;
    struct fsdp_lane *lane;
    int max_tokens, ntokens;
    bool on_host; /* logits are made where the caller wants them */
    void *memory;
    float *cos, *sin;         /* (max_tokens, D/2), where positions are rotary */
    int32_t *tokens;          /* (STRIDE) */
    int32_t *positions;       /* (STRIDE), where they are learned */
    float *k, *v;             /* (nlayers, max_tokens, KVD) */
    float *stream;            /* (STRIDE, C) */
    float *logits;            /* (LOGIT_ROWS, V); NULL on the host */
    struct stack_block block; /* scratch of one layer */
};

static size_t layout(struct model_decoder *d, void *memory)
{
    const struct stack_config *c = &d->m->config;
    struct stack_carve area = {memory, 0};
    const size_t rows = STRIDE, f32 = sizeof(float), max = (size_t)d->max_tokens;
    const size_t D = (size_t)c->head_dim, NHD = (size_t)c->nheads * D, F = (size_t)c->ffn;
    const size_t cache = (size_t)c->nlayers * max * (size_t)c->nkv_heads * D;
    struct stack_block *blk = &d->block;

    if (d->m->inv_freq) {
        d->cos = stack_carve(&area, max * D / 2, f32);
        d->sin = stack_carve(&area, max * D / 2, f32);
    }
    d->tokens = stack_carve(&area, rows, sizeof(int32_t));
    if (d->m->family->position_weight)
        d->positions = stack_carve(&area, rows, sizeof(int32_t));
    d->k = stack_carve(&area, cache, f32);
    d->v = stack_carve(&area, cache, f32);
    d->stream = stack_carve(&area, rows * (size_t)c->dim, f32);
    if (!d->on_host)
        d->logits = stack_carve(&area, LOGIT_ROWS * (size_t)c->vocab, f32);
    if (d->m->family->norm_bias)
        blk->mean1 = blk->mean2 = stack_carve(&area, rows, f32);
    blk->rstd1 = blk->rstd2 = stack_carve(&area, rows, f32);
    blk->q = stack_carve(&area, rows * NHD, f32);
    blk->o = stack_carve(&area, rows * NHD, f32);
    blk->lse = stack_carve(&area, rows * (size_t)c->nheads, f32);
    if (d->m->family->gated)
        blk->gate = stack_carve(&area, rows * F, f32);
    blk->up = stack_carve(&area, rows * F, f32);
    blk->norm = stack_carve(&area, rows * (size_t)c->dim, f32);
    blk->act = stack_carve(&area, rows * (F > NHD ? F : NHD), f32);
    const struct nn_attention shape = {.B = 1,
                                       .Tq = STRIDE,
                                       .Tk = d->max_tokens,
                                       .NH = c->nheads,
                                       .NKV = c->nkv_heads,
                                       .D = c->head_dim};
    blk->work = stack_carve(&area, d->m->nn->attention_work_nelem(&shape), f32);
    return area.nbytes;
}

int stack_decoder_create(struct model_decoder **out, const struct model *model,
                         const float *const *param, struct fsdp_lane *lane, int max_tokens,
                         struct fsdp_err *err)
{
    struct fsdp_device *device = fsdp_lane_device(lane);
    struct model_decoder *d;
    int rc = FSDP_ENOMEM;

    if (max_tokens < 1 || max_tokens > model->config.max_seq_len)
        return fsdp_err_set(err, FSDP_EINVAL, "%d tokens: the model's %s is %d", max_tokens,
                            model->family->max_seq_len_key, model->config.max_seq_len);
    if (!(d = fsdp_alloc(1, sizeof *d, "decoder", err)))
        return rc;
    d->m = model;
    d->param = param;
    d->lane = lane;
    d->max_tokens = max_tokens;
    d->on_host = fsdp_device_is_host(device);
    d->memory = fsdp_device_alloc(device, layout(d, NULL), "keys, values and scratch", err);
    if (!d->memory)
        goto out;
    layout(d, d->memory);
    if (model->inv_freq) {
        struct nn_rope_table table = {.cos = d->cos,
                                      .sin = d->sin,
                                      .inv_freq = model->inv_freq,
                                      .T = max_tokens,
                                      .half = model->config.head_dim / 2};
        FSDP_TRY_GOTO(model->nn->rope_table(lane, &table, err), out);
    }
    *out = d;
    d = NULL;
    rc = FSDP_OK;
out:
    stack_decoder_destroy(d);
    return rc;
}

void stack_decoder_destroy(struct model_decoder *d)
{
    if (d) {
        fsdp_lane_sync(d->lane, NULL);
        fsdp_device_free(fsdp_lane_device(d->lane), d->memory);
        fsdp_free(d);
    }
}

static int decode_layers(struct model_decoder *d, int ntokens, struct fsdp_err *err)
{
    const struct stack_config *c = &d->m->config;
    const size_t KVD = (size_t)c->nkv_heads * (size_t)c->head_dim, first = (size_t)d->ntokens;
    struct stack_block blk = d->block;

    blk.lane = d->lane;
    blk.B = 1;
    blk.Tq = ntokens;
    blk.Tk = d->ntokens + ntokens;
    if (d->cos) {
        blk.cos = d->cos + first * (size_t)c->head_dim / 2;
        blk.sin = d->sin + first * (size_t)c->head_dim / 2;
    }
    blk.in = blk.out = d->stream;
    for (int i = 0; i < c->nlayers; i++) {
        const size_t cache = (size_t)i * (size_t)d->max_tokens * KVD;
        blk.k = d->k + cache;
        blk.v = d->v + cache;
        blk.k_new = nn_at(blk.k, FSDP_F32, first * KVD);
        blk.v_new = nn_at(blk.v, FSDP_F32, first * KVD);
        for (int w = 0; w < d->m->family->nweights; w++)
            blk.param[w].w = d->param[d->m->layer_param[i * d->m->family->nweights + w]];
        FSDP_TRY(d->m->family->attention_forward(d->m, &blk, true, err));
        FSDP_TRY(d->m->family->mlp_forward(d->m, &blk, true, err));
    }
    return FSDP_OK;
}

/* Logits of `rows` rows of the stream, from row `first` on. */
static int decode_logits(struct model_decoder *d, int first, int rows, float *logits,
                         struct fsdp_err *err)
{
    const struct model *m = d->m;
    const struct stack_config *c = &m->config;
    struct stack_norm norm = {.y = d->block.norm,
                              .mean = d->block.mean1,
                              .rstd = d->block.rstd1,
                              .x = d->stream + (size_t)first * (size_t)c->dim,
                              .w = d->param[m->norm_param],
                              .b = m->family->norm_bias ? d->param[m->norm_bias_param] : NULL,
                              .rows = rows};
    struct nn_linear linear = {.out = logits,
                               .x = d->block.norm,
                               .w = d->param[m->head_param],
                               .rows = rows,
                               .nin = c->dim,
                               .nout = c->vocab};
    FSDP_TRY(m->family->norm_forward(m, d->lane, &norm, err));
    return m->nn->linear_forward(d->lane, &linear, err);
}

/* Those of the last `rows` of the stream's ntokens, into the host's memory. */
static int decode_head(struct model_decoder *d, int ntokens, int rows, float *logits,
                       struct fsdp_err *err)
{
    const size_t vocab = (size_t)d->m->config.vocab;
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

static int decode_embed(struct model_decoder *d, const int32_t *tokens, int ntokens,
                        struct fsdp_err *err)
{
    const struct model *m = d->m;
    struct nn_embedding embed = {.out = d->stream,
                                 .w = d->param[m->embed_param],
                                 .tokens = d->tokens,
                                 .rows = ntokens,
                                 .vocab = m->config.vocab,
                                 .dim = m->config.dim};
    FSDP_TRY(fsdp_copy(d->lane, d->tokens, tokens, (size_t)ntokens * sizeof *tokens, err));
    FSDP_TRY(m->nn->embedding_forward(d->lane, &embed, err));
    if (!d->positions)
        return FSDP_OK;
    struct nn_positions positions = {
        .out = d->positions, .first = d->ntokens, .B = 1, .T = ntokens};
    FSDP_TRY(m->nn->positions(d->lane, &positions, err));
    embed.w = d->param[m->position_param];
    embed.tokens = d->positions;
    embed.vocab = m->config.max_seq_len;
    embed.beta = 1;
    return m->nn->embedding_forward(d->lane, &embed, err);
}

static int decode_piece(struct model_decoder *d, const int32_t *tokens, int ntokens, int nlogits,
                        float *logits, struct fsdp_err *err)
{
    FSDP_TRY(decode_embed(d, tokens, ntokens, err));
    FSDP_TRY(decode_layers(d, ntokens, err));
    FSDP_TRY(decode_head(d, ntokens, nlogits, logits, err));
    FSDP_TRY(fsdp_lane_sync(d->lane, err));
    d->ntokens += ntokens;
    return FSDP_OK;
}

int stack_decode(struct model_decoder *d, const int32_t *tokens, int ntokens, bool all,
                 float *logits, struct fsdp_err *err)
{
    if (ntokens < 1 || ntokens > d->max_tokens - d->ntokens)
        return fsdp_err_set(err, FSDP_EINVAL, "%d tokens after %d: there is room for %d", ntokens,
                            d->ntokens, d->max_tokens);
    FSDP_TRY(stack_check_tokens(d->m, tokens, 1, ntokens, err));
    for (int done = 0; done < ntokens;) {
        int piece = ntokens - done < STRIDE ? ntokens - done : STRIDE;
        bool last = done + piece == ntokens;
        float *out = logits + (all ? (size_t)done * (size_t)d->m->config.vocab : 0);
        FSDP_TRY(decode_piece(d, tokens + done, piece, all ? piece : last, out, err));
        done += piece;
    }
    return FSDP_OK;
}
