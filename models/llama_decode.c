/* SPDX-License-Identifier: Apache-2.0 */
/* Generation: the same blocks on plain memory, with keys and values kept from call to call. */
#include <string.h>

#include "llama.h"

enum { STRIDE = 256 }; /* most tokens at once; a longer prompt goes in pieces */

struct model_decoder {
    const struct model *m;
    const float *const *param;
    struct fsdp_lane *lane;
    int max_tokens, ntokens;
    void *memory;
    float *cos, *sin;         /* (max_tokens, D/2) */
    float *k, *v;             /* (nlayers, max_tokens, KVD) */
    float *stream;            /* (STRIDE, C) */
    struct llama_block block; /* scratch of one layer */
};

static size_t layout(struct model_decoder *d, void *memory)
{
    const struct llama_config *c = &d->m->config;
    struct llama_carve area = {memory, 0};
    const size_t rows = STRIDE, f32 = sizeof(float), max = (size_t)d->max_tokens;
    const size_t D = (size_t)c->head_dim, NHD = (size_t)c->nheads * D, F = (size_t)c->ffn;
    const size_t cache = (size_t)c->nlayers * max * (size_t)c->nkv_heads * D;
    struct llama_block *blk = &d->block;

    d->cos = llama_carve(&area, max * D / 2, f32);
    d->sin = llama_carve(&area, max * D / 2, f32);
    d->k = llama_carve(&area, cache, f32);
    d->v = llama_carve(&area, cache, f32);
    d->stream = llama_carve(&area, rows * (size_t)c->dim, f32);
    blk->rstd1 = blk->rstd2 = llama_carve(&area, rows, f32);
    blk->q = llama_carve(&area, rows * NHD, f32);
    blk->o = llama_carve(&area, rows * NHD, f32);
    blk->lse = llama_carve(&area, rows * (size_t)c->nheads, f32);
    blk->gate = llama_carve(&area, rows * F, f32);
    blk->up = llama_carve(&area, rows * F, f32);
    blk->norm = llama_carve(&area, rows * (size_t)c->dim, f32);
    blk->act = llama_carve(&area, rows * (F > NHD ? F : NHD), f32);
    blk->attn =
        llama_carve(&area, d->m->nn->attention_work_nelem(STRIDE, d->max_tokens, c->head_dim), f32);
    return area.nbytes;
}

int llama_decoder_create(struct model_decoder **out, const struct model *model,
                         const float *const *param, struct fsdp_lane *lane, int max_tokens,
                         struct fsdp_err *err)
{
    struct model_decoder *d;
    int rc = FSDP_ENOMEM;

    if (max_tokens < 1 || max_tokens > model->config.max_seq_len)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%d tokens: the model's max_position_embeddings is %d", max_tokens,
                            model->config.max_seq_len);
    if (!(d = fsdp_alloc(1, sizeof *d, "decoder", err)))
        return rc;
    d->m = model;
    d->param = param;
    d->lane = lane;
    d->max_tokens = max_tokens;
    if (!(d->memory = fsdp_alloc(layout(d, NULL), 1, "decoder memory", err)))
        goto out;
    layout(d, d->memory);
    struct nn_rope_table table = {.cos = d->cos,
                                  .sin = d->sin,
                                  .inv_freq = model->inv_freq,
                                  .T = max_tokens,
                                  .half = model->config.head_dim / 2};
    FSDP_TRY_GOTO(model->nn->rope_table(lane, &table, err), out);
    *out = d;
    d = NULL;
out:
    llama_decoder_destroy(d);
    return rc;
}

void llama_decoder_destroy(struct model_decoder *d)
{
    if (d) {
        fsdp_lane_sync(d->lane, NULL);
        fsdp_free(d->memory);
        fsdp_free(d);
    }
}

static int decode_layers(struct model_decoder *d, int ntokens, struct fsdp_err *err)
{
    const struct llama_config *c = &d->m->config;
    const size_t KVD = (size_t)c->nkv_heads * (size_t)c->head_dim, first = (size_t)d->ntokens;
    struct llama_block blk = d->block;

    blk.lane = d->lane;
    blk.B = 1;
    blk.Tq = ntokens;
    blk.Tk = d->ntokens + ntokens;
    blk.cos = d->cos + first * (size_t)c->head_dim / 2;
    blk.sin = d->sin + first * (size_t)c->head_dim / 2;
    blk.in = blk.out = d->stream;
    for (int i = 0; i < c->nlayers; i++) {
        const size_t cache = (size_t)i * (size_t)d->max_tokens * KVD;
        blk.k = d->k + cache;
        blk.v = d->v + cache;
        blk.k_new = blk.k + first * KVD;
        blk.v_new = blk.v + first * KVD;
        for (int w = 0; w < LLAMA_NWEIGHTS; w++)
            blk.w[w] = d->param[d->m->layer_param[i][w]];
        FSDP_TRY(llama_block_forward(d->m, &blk, true, err));
    }
    return FSDP_OK;
}

/* Logits of the last `rows` rows of the stream's ntokens. */
static int decode_head(struct model_decoder *d, int ntokens, int rows, float *logits,
                       struct fsdp_err *err)
{
    const struct model *m = d->m;
    const struct llama_config *c = &m->config;
    struct nn_rmsnorm norm = {.y = d->block.norm,
                              .rstd = d->block.rstd1,
                              .x = d->stream + (size_t)(ntokens - rows) * (size_t)c->dim,
                              .w = d->param[m->norm_param],
                              .rows = rows,
                              .dim = c->dim,
                              .eps = (float)c->norm_eps};
    struct nn_linear linear = {.out = logits,
                               .x = d->block.norm,
                               .w = d->param[m->head_param],
                               .rows = rows,
                               .nin = c->dim,
                               .nout = c->vocab};
    FSDP_TRY(m->nn->rmsnorm_forward(d->lane, &norm, err));
    return m->nn->linear_forward(d->lane, &linear, err);
}

static int decode_piece(struct model_decoder *d, const int32_t *tokens, int ntokens, int nlogits,
                        float *logits, struct fsdp_err *err)
{
    const struct model *m = d->m;
    struct nn_embedding embed = {.out = d->stream,
                                 .w = d->param[m->embed_param],
                                 .tokens = tokens,
                                 .rows = ntokens,
                                 .vocab = m->config.vocab,
                                 .dim = m->config.dim};
    FSDP_TRY(m->nn->embedding_forward(d->lane, &embed, err));
    FSDP_TRY(decode_layers(d, ntokens, err));
    if (nlogits)
        FSDP_TRY(decode_head(d, ntokens, nlogits, logits, err));
    FSDP_TRY(fsdp_lane_sync(d->lane, err));
    d->ntokens += ntokens;
    return FSDP_OK;
}

int llama_decode(struct model_decoder *d, const int32_t *tokens, int ntokens, bool all,
                 float *logits, struct fsdp_err *err)
{
    if (ntokens < 1 || ntokens > d->max_tokens - d->ntokens)
        return fsdp_err_set(err, FSDP_EINVAL, "%d tokens after %d: there is room for %d", ntokens,
                            d->ntokens, d->max_tokens);
    FSDP_TRY(llama_check_tokens(d->m, tokens, 1, ntokens, err));
    for (int done = 0; done < ntokens;) {
        int piece = ntokens - done < STRIDE ? ntokens - done : STRIDE;
        bool last = done + piece == ntokens;
        float *out = logits + (all ? (size_t)done * (size_t)d->m->config.vocab : 0);
        FSDP_TRY(decode_piece(d, tokens + done, piece, all ? piece : last, out, err));
        done += piece;
    }
    return FSDP_OK;
}
