/* SPDX-License-Identifier: Apache-2.0 */
/* The attention of a layer. */
#include "layer.h"

static int rows_of(const struct stack_block *blk)
{
    return blk->B * blk->Tq;
}

static struct layer_end end_of(const struct stack_block *blk)
{
    return (struct layer_end){STACK_O, STACK_POST1, STACK_ATTENTION_OUT, blk->attn_y};
}

/* Queries or keys: where they are made, where they go, and how many heads they have. */
struct heads {
    enum stack_slot slot, norm;
    void *raw, *x; /* before and after the norm; the same where there is none */
    float *rstd;
    int count;
};

static struct heads queries_of(const struct model *m, const struct stack_block *blk)
{
    void *raw = blk->q_raw ? blk->q_raw : blk->q;
    return (struct heads){STACK_Q, STACK_Q_NORM, raw, blk->q, blk->q_rstd, m->traits.nheads};
}

static struct heads keys_of(const struct model *m, const struct stack_block *blk)
{
    void *raw = blk->k_raw ? blk->k_raw : blk->k_new;
    return (struct heads){STACK_K, STACK_K_NORM, raw, blk->k_new, blk->k_rstd, m->traits.nkv_heads};
}

/* ---- norms and rotation ---------------------------------------------------------------------- */

static struct stack_norm heads_norm(const struct model *m, const struct stack_block *blk,
                                    const struct heads *h)
{
    const bool whole = m->traits.qk_norm == TRAITS_QK_WHOLE;
    const int D = m->traits.head_dim, rows = rows_of(blk);
    struct stack_norm norm =
        layer_norm(blk, m, h->norm, whole ? rows : rows * h->count, whole ? h->count * D : D);
    norm.rstd = h->rstd;
    return norm;
}

/* The table that turns these heads; -1: none. */
static int table_of(const struct model *m, const struct stack_block *blk, bool queries)
{
    const uint8_t layer = m->traits.layers[blk->layer];
    if (!(layer & TRAITS_ROTARY))
        return -1;
    if (queries && blk->tables.cos[STACK_ROPE_QUERIES])
        return STACK_ROPE_QUERIES;
    return layer & TRAITS_SLIDING && blk->tables.cos[TRAITS_ROPE_SLIDING] ? TRAITS_ROPE_SLIDING
                                                                          : TRAITS_ROPE_FULL;
}

/* x, whose rows lie ld elements apart (0: without space), = the rotation of `from`, which may be x.
 */
static int rotate(const struct model *m, const struct stack_block *blk, const struct heads *h,
                  void *x, int ld, const void *from, bool inverse, struct fsdp_err *err)
{
    const int table = table_of(m, blk, h->slot == STACK_Q);
    if (table < 0)
        return FSDP_OK;
    const int kind = table == STACK_ROPE_QUERIES ? TRAITS_ROPE_FULL : table;
    const struct nn_rope args = {.x = x,
                                 .from = from == x ? NULL : from,
                                 .cos = blk->tables.cos[table],
                                 .sin = blk->tables.sin[table],
                                 .positions = blk->positions,
                                 .B = blk->B,
                                 .T = blk->Tq,
                                 .heads = h->count,
                                 .D = m->traits.head_dim,
                                 .R = m->traits.rope[kind].dim,
                                 .ld = ld,
                                 .inverse = inverse,
                                 .dtype = blk->dtype};
    return m->nn->rope(blk->lane, &args, err);
}

static int finish_heads(const struct model *m, const struct stack_block *blk, const struct heads *h,
                        struct fsdp_err *err)
{
    if (h->raw != h->x) {
        struct stack_norm norm = heads_norm(m, blk, h);
        norm.x = h->raw;
        norm.y = h->x;
        FSDP_TRY(stack_norm_forward(m, blk->lane, &norm, err));
    }
    return rotate(m, blk, h, h->x, 0, h->x, false, err);
}

/* h->x is the gradient of what was rotated; h->raw becomes that of the product's output. */
static int norm_heads_backward(const struct model *m, const struct stack_block *blk,
                               const struct heads *h, struct fsdp_err *err)
{
    if (h->raw == h->x)
        return FSDP_OK;
    struct stack_norm norm = heads_norm(m, blk, h);
    norm.y = h->x;
    norm.x = norm.dx = h->raw;
    return stack_norm_backward(m, blk->lane, &norm, err);
}

/* ---- queries, keys and values of one matrix, head by head ------------------------------------ */

/* Part `part` (q, k, v) of the heads, which lie side by side in `fused` (R, nheads, 3, D). */
static int move_part(const struct model *m, const struct stack_block *blk, void *x, void *fused,
                     int part, bool back, struct fsdp_err *err)
{
    const int D = m->traits.head_dim, NH = m->traits.nheads;
    void *at = nn_at(fused, blk->dtype, (size_t)part * (size_t)D);
    struct nn_copy_blocks args = {.rows = rows_of(blk),
                                  .nblocks = NH,
                                  .width = D,
                                  .out = x,
                                  .out_row = NH * D,
                                  .out_block = D,
                                  .x = at,
                                  .x_row = 3 * NH * D,
                                  .x_block = 3 * D,
                                  .dtype = blk->dtype};
    if (back) {
        args.out = at;
        args.x = x;
        args.out_row = 3 * NH * D;
        args.out_block = 3 * D;
        args.x_row = NH * D;
        args.x_block = D;
    }
    return m->nn->copy_blocks(blk->lane, &args, err);
}

static bool by_heads(const struct model *m)
{
    return m->family->names->fusion == TRAITS_FUSED_HEADS;
}

static int project_qkv(const struct model *m, const struct stack_block *blk, const void *x,
                       const struct heads *q, const struct heads *k, struct fsdp_err *err)
{
    const struct layer_map map[] = {{STACK_Q, q->raw}, {STACK_K, k->raw}, {STACK_V, blk->v_new}};
    if (by_heads(m)) {
        FSDP_TRY(layer_project(m, blk, STACK_QKV, blk->act, x, 0, err));
        for (int i = 0; i < 3; i++)
            FSDP_TRY(move_part(m, blk, map[i].y, blk->act, i, false, err));
        return FSDP_OK;
    }
    return layer_project_each(m, blk, map, 3, x, err);
}

/* ---- gradients of queries, keys and values side by side --------------------------------------
 *
 * Where the three matrices lie behind one another, one product makes the gradients of all three,
 * and another the gradient of what they read. The latter is summed in fp32 and rounded once, where
 * three products would round it three times. Both read the gradients of the outputs from blk->act:
 * dq, dk and dv side by side, (R, NHD + 2 KVD). Rotation puts dq and dk there, if it is the last
 * step; what is made elsewhere is copied.
 */

static const enum stack_slot qkv[] = {STACK_Q, STACK_K, STACK_V};

static bool has_joined(const struct model *m, const struct stack_block *blk)
{
    return !by_heads(m) && stack_joined_width(m) <= stack_act_width(m) &&
           layer_joins(m, blk, qkv, 3);
}

/* The heads before this part, or of all parts. */
static int heads_before(const struct model *m, int part)
{
    const int count[] = {m->traits.nheads, m->traits.nkv_heads, m->traits.nkv_heads};
    int before = 0;
    for (int i = 0; i < part; i++)
        before += count[i];
    return before;
}

static void *joined_part(const struct model *m, const struct stack_block *blk, int part)
{
    return nn_at(blk->act, blk->dtype, (size_t)heads_before(m, part) * (size_t)m->traits.head_dim);
}

static bool rotates_last(const struct model *m, const struct stack_block *blk,
                         const struct heads *h)
{
    return h->raw == h->x && table_of(m, blk, h->slot == STACK_Q) >= 0;
}

/* From `from`, the gradient of what was rotated. */
static int rotate_back(const struct model *m, const struct stack_block *blk, const struct heads *h,
                       const void *from, bool joined, struct fsdp_err *err)
{
    if (joined && rotates_last(m, blk, h))
        return rotate(m, blk, h, joined_part(m, blk, h->slot == STACK_Q ? 0 : 1),
                      (int)stack_joined_width(m), from, true, err);
    return rotate(m, blk, h, h->x, 0, from, true, err);
}

static int join_part(const struct model *m, const struct stack_block *blk, int part, const void *x,
                     struct fsdp_err *err)
{
    const int D = m->traits.head_dim, width = heads_before(m, part + 1) - heads_before(m, part);
    const struct nn_copy_blocks args = {.out = joined_part(m, blk, part),
                                        .x = x,
                                        .rows = rows_of(blk),
                                        .nblocks = 1,
                                        .width = width * D,
                                        .out_row = (int)stack_joined_width(m),
                                        .x_row = width * D,
                                        .dtype = blk->dtype};
    return m->nn->copy_blocks(blk->lane, &args, err);
}

/* The parts that are not there yet. */
static int join_parts(const struct model *m, const struct stack_block *blk, const struct heads *q,
                      const struct heads *k, struct fsdp_err *err)
{
    if (!rotates_last(m, blk, q))
        FSDP_TRY(join_part(m, blk, 0, q->raw, err));
    if (!rotates_last(m, blk, k))
        FSDP_TRY(join_part(m, blk, 1, k->raw, err));
    return join_part(m, blk, 2, blk->v, err);
}

/* ---- gradients of queries, keys and values --------------------------------------------------- */

/* Those of the products' outputs: each in a place of its own, or side by side in blk->act. */
struct gradients {
    void *part[3];
    bool joined;
};

/* dx (R, C) = the gradient of what the products read + beta dx. */
static int qkv_input(const struct model *m, const struct stack_block *blk, void *dx,
                     const struct gradients *g, float beta, struct fsdp_err *err)
{
    if (g->joined)
        return layer_joined_input(m, blk, qkv, 3, dx, blk->act, beta, err);
    if (by_heads(m)) {
        for (int i = 0; i < 3; i++)
            FSDP_TRY(move_part(m, blk, g->part[i], blk->act, i, true, err));
        return layer_project_input(m, blk, STACK_QKV, dx, blk->act, beta, err);
    }
    const struct layer_map map[] = {
        {STACK_Q, g->part[0]}, {STACK_K, g->part[1]}, {STACK_V, g->part[2]}};
    return layer_project_each_input(m, blk, map, 3, dx, beta, err);
}

static int qkv_weight(const struct model *m, const struct stack_block *blk,
                      const struct gradients *g, const void *x, struct fsdp_err *err)
{
    if (g->joined)
        return layer_joined_weight(m, blk, qkv, 3, blk->act, x, err);
    if (by_heads(m))
        return layer_project_weight(m, blk, STACK_QKV, blk->act, x, err);
    const struct layer_map map[] = {
        {STACK_Q, g->part[0]}, {STACK_K, g->part[1]}, {STACK_V, g->part[2]}};
    return layer_project_each_weight(m, blk, map, 3, x, err);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* *x: what the products read. The layer's input is kept where that is wanted. */
static int read_stream(const void **x, const struct model *m, const struct stack_block *blk,
                       struct fsdp_err *err)
{
    const bool parallel = m->traits.parallel && blk->in == blk->out;
    void *copy = blk->in_copy ? blk->in_copy : parallel ? blk->mid : NULL;

    *x = blk->in;
    if (!m->traits.pre_norm)
        return copy ? layer_copy(m, blk, copy, blk->in, err) : FSDP_OK;
    struct stack_norm norm = layer_stream_norm(blk, m, STACK_NORM1);
    norm.x = blk->in;
    norm.y = blk->norm;
    norm.x_copy = copy;
    *x = blk->norm;
    return stack_norm_forward(m, blk->lane, &norm, err);
}

int layer_attend(const struct model *m, const struct stack_block *blk, bool add,
                 struct fsdp_err *err)
{
    const struct layer_end end = end_of(blk);
    FSDP_TRY(stack_attention_forward(m, blk, err));
    return layer_end_forward(m, blk, &end, blk->o, add, err);
}

int layer_attention_forward(const struct model *m, const struct stack_block *blk, bool add,
                            struct fsdp_err *err)
{
    const struct heads q = queries_of(m, blk), k = keys_of(m, blk);
    const void *x;

    FSDP_TRY(read_stream(&x, m, blk, err));
    FSDP_TRY(project_qkv(m, blk, x, &q, &k, err));
    FSDP_TRY(finish_heads(m, blk, &q, err));
    FSDP_TRY(finish_heads(m, blk, &k, err));
    return layer_attend(m, blk, add, err);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Gradients of queries and keys, rotated back, take the place of both, or lie side by side; those
 * of values take theirs. */
static int attend_backward(const struct model *m, const struct stack_block *blk,
                           const struct heads *q, const struct heads *k, bool joined,
                           struct fsdp_err *err)
{
    struct nn_attention_left left = {q->x, k->x};
    const struct layer_end end = end_of(blk);
    struct nn_attention attention = stack_attention(m, blk);
    const void *dy;

    attention.d_o = blk->act;
    attention.left = table_of(m, blk, true) < 0 || table_of(m, blk, false) < 0 ? NULL : &left;
    FSDP_TRY(layer_end_backward(&dy, m, blk, &end, m->traits.parallel ? blk->mid : blk->out, err));
    FSDP_TRY(layer_project_input(m, blk, STACK_O, blk->act, dy, 0, err));
    FSDP_TRY(layer_project_weight(m, blk, STACK_O, dy, blk->o, err));
    FSDP_TRY(m->nn->attention_backward(blk->lane, &attention, err));
    FSDP_TRY(rotate_back(m, blk, q, left.dq, joined, err));
    return rotate_back(m, blk, k, left.dk, joined, err);
}

int layer_attention_backward(const struct model *m, const struct stack_block *blk,
                             struct fsdp_err *err)
{
    const struct heads q = queries_of(m, blk), k = keys_of(m, blk);
    const struct gradients g = {{q.raw, k.raw, blk->v}, has_joined(m, blk)};

    FSDP_TRY(attend_backward(m, blk, &q, &k, g.joined, err));
    FSDP_TRY(norm_heads_backward(m, blk, &q, err));
    FSDP_TRY(norm_heads_backward(m, blk, &k, err));
    if (g.joined)
        FSDP_TRY(join_parts(m, blk, &q, &k, err));
    if (!m->traits.pre_norm) {
        FSDP_TRY(qkv_input(m, blk, blk->out, &g, 1, err));
        return qkv_weight(m, blk, &g, blk->in, err);
    }
    FSDP_TRY(qkv_input(m, blk, blk->norm, &g, 0, err));
    struct stack_norm norm = layer_stream_norm(blk, m, STACK_NORM1);
    norm.y = blk->norm;
    norm.x = blk->in;
    norm.dx = blk->out;
    norm.dx_beta = 1;
    FSDP_TRY(stack_norm_backward(m, blk->lane, &norm, err));
    return qkv_weight(m, blk, &g, blk->norm, err);
}
