/* SPDX-License-Identifier: Apache-2.0 */
/* What both branches of a layer are made of: linear maps, norms, the addition to the stream. */
#include "layer.h"

static int rows_of(const struct stack_block *blk)
{
    return blk->B * blk->Tq;
}

/* ---- linear maps ----------------------------------------------------------------------------- */

/* A map without its adapter, where that is a part of it: what DoRA scales is all that there is. */
static int base_forward(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                        void *out, const void *x, float beta, enum nn_f8_made *made,
                        struct fsdp_err *err)
{
    return stack_has_magnitudes(m, slot) && !layer_lora_drops(m, blk)
               ? FSDP_OK
               : layer_plain(m, blk, slot, out, x, beta, made, err);
}

static int adapter_forward(const struct model *m, const struct stack_block *blk,
                           enum stack_slot slot, void *out, const void *x, float beta,
                           struct fsdp_err *err)
{
    return stack_has_magnitudes(m, slot) ? layer_dora_forward(m, blk, slot, out, x, beta, err)
                                         : layer_lora_forward(m, blk, slot, out, x, err);
}

int layer_project(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                  void *out, const void *x, float beta, struct fsdp_err *err)
{
    FSDP_TRY(base_forward(m, blk, slot, out, x, beta, NULL, err));
    return adapter_forward(m, blk, slot, out, x, beta, err);
}

/* Adapters come last, because they use the work memory in which a rounded x lies. */
int layer_project_each(const struct model *m, const struct stack_block *blk,
                       const struct layer_map *map, int nmaps, const void *x, struct fsdp_err *err)
{
    enum nn_f8_made made = NN_F8_NOTHING;

    FSDP_TRY(layer_share_scale(m, blk, map, nmaps, err));
    for (int i = 0, ndone; i < nmaps; i += ndone ? ndone : 1) {
        FSDP_TRY(layer_plain_maps(m, blk, &map[i], nmaps - i, x, &made, &ndone, err));
        if (!ndone)
            FSDP_TRY(base_forward(m, blk, map[i].slot, map[i].y, x, 0, &made, err));
    }
    for (int i = 0; i < nmaps; i++)
        FSDP_TRY(adapter_forward(m, blk, map[i].slot, map[i].y, x, 0, err));
    return FSDP_OK;
}

int layer_project_input(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                        void *dx, const void *dy, float beta, struct fsdp_err *err)
{
    const bool scaled = stack_has_magnitudes(m, slot);

    if (!scaled || layer_lora_drops(m, blk))
        FSDP_TRY(layer_plain_input(m, blk, slot, dx, dy, beta, err));
    return scaled ? layer_dora_input(m, blk, slot, dx, dy, beta, err)
                  : layer_lora_input(m, blk, slot, dx, dy, err);
}

int layer_project_each_input(const struct model *m, const struct stack_block *blk,
                             const struct layer_map *map, int nmaps, void *dx, float beta,
                             struct fsdp_err *err)
{
    FSDP_TRY(layer_share_scale(m, blk, map, nmaps, err));
    for (int i = 0; i < nmaps; i++)
        FSDP_TRY(layer_project_input(m, blk, map[i].slot, dx, map[i].y, i ? 1 : beta, err));
    return FSDP_OK;
}

static int adapter_weight(const struct model *m, const struct stack_block *blk,
                          enum stack_slot slot, const void *dy, const void *x, struct fsdp_err *err)
{
    return stack_has_magnitudes(m, slot) ? layer_dora_weight(m, blk, slot, dy, x, err)
                                         : layer_lora_weight(m, blk, slot, dy, x, err);
}

int layer_project_weight(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                         const void *dy, const void *x, struct fsdp_err *err)
{
    FSDP_TRY(layer_plain_weight(m, blk, slot, dy, x, NULL, err));
    return adapter_weight(m, blk, slot, dy, x, err);
}

int layer_project_each_weight(const struct model *m, const struct stack_block *blk,
                              const struct layer_map *map, int nmaps, const void *x,
                              struct fsdp_err *err)
{
    enum nn_f8_made made = NN_F8_NOTHING;

    for (int i = 0, ndone; i < nmaps; i += ndone ? ndone : 1) {
        FSDP_TRY(layer_plain_maps_weight(m, blk, &map[i], nmaps - i, x, &ndone, err));
        if (!ndone)
            FSDP_TRY(layer_plain_weight(m, blk, map[i].slot, map[i].y, x, &made, err));
    }
    for (int i = 0; i < nmaps; i++)
        FSDP_TRY(adapter_weight(m, blk, map[i].slot, map[i].y, x, err));
    return FSDP_OK;
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
