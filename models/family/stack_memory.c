/* SPDX-License-Identifier: Apache-2.0 */
/* Where the activations of a stack of layers lie. */
#include "stack.h"

void *stack_carve(struct stack_carve *carve, size_t nelem, size_t elem_nbytes)
{
    size_t at = carve->nbytes;
    carve->nbytes += (nelem * elem_nbytes + 63) / 64 * 64;
    return carve->base ? (char *)carve->base + at : NULL;
}

static float *carve_f32(struct stack_carve *carve, size_t nelem)
{
    return stack_carve(carve, nelem, sizeof(float));
}

static void *carve_act(struct stack_carve *carve, const struct model *m, size_t nelem)
{
    return stack_carve(carve, nelem, fsdp_dtype_nbytes(m->dtypes.activation));
}

/* The i-th pair of types that a weight and its gradient may have: first those that they have. */
static bool weight_types(enum fsdp_dtype *w, enum fsdp_dtype *dw, const struct model *m, int i)
{
    static const enum fsdp_dtype types[] = {FSDP_F32, FSDP_BF16};

    if (i > 0) {
        *w = types[(i - 1) / 2 % 2];
        *dw = types[(i - 1) % 2];
    }
    return i == 0 || (i <= 4 && m->dtypes.overrides);
}

/* Elements of work that a product of this shape takes, whatever types its weight may have. */
static size_t product_work(const struct model *m, struct nn_linear shape)
{
    size_t most = 0;
    for (int i = 0; weight_types(&shape.w_dtype, &shape.dw_dtype, m, i); i++) {
        const size_t nelem = m->nn->linear_work_nelem(&shape);
        most = nelem > most ? nelem : most;
    }
    return most;
}

/* The same of R rows with any of these weights, giving `output`. */
static size_t products_work(const struct model *m, int rows, const struct stack_weight *weights,
                            int nweights, enum fsdp_dtype output)
{
    size_t most = 0;
    for (int w = 0; w < nweights; w++) {
        if (weights[w].by_expert)
            continue; /* its products are those of experts */
        const size_t nelem = product_work(m, (struct nn_linear){.rows = rows,
                                                                .nin = weights[w].cols,
                                                                .nout = weights[w].rows,
                                                                .dtype = m->dtypes.activation,
                                                                .y_dtype = output,
                                                                .w_dtype = m->dtypes.activation,
                                                                .dw_dtype = m->dtypes.grad,
                                                                .f8 = weights[w].f8});
        most = nelem > most ? nelem : most;
    }
    return most;
}

/* Elements of work that a product of all experts takes, whatever types their weights may have. */
static size_t grouped_work(const struct model *m, struct nn_grouped shape)
{
    size_t most = 0;
    for (int i = 0; weight_types(&shape.w_dtype, &shape.dw_dtype, m, i); i++) {
        const size_t nelem = m->nn->grouped_work_nelem(&shape);
        most = nelem > most ? nelem : most;
    }
    return most;
}

/* The same of any of the experts' products of R rows, and of their adapters'. */
static size_t experts_work(const struct model *m, int rows)
{
    const struct traits *t = &m->traits;
    const int both = m->expert_place[STACK_EXPERT_GATE].nout; /* gate, and up where it is there */
    const int r = m->most_r, C = t->dim, F = t->expert_ffn;
    const int shapes[][2] = {{C, both}, {F, C}, {C, r}, {r, both}, {F, r}, {r, C}};
    size_t most = 0;

    for (int i = 0; i < (m->lora.nparameters ? 6 : 2) && t->experts; i++) {
        const struct stack_place *place =
            &m->expert_place[i ? STACK_EXPERT_DOWN : STACK_EXPERT_GATE];
        const struct nn_grouped shape = {.experts = t->experts,
                                         .nplaces = rows * t->experts_per_token,
                                         .nin = shapes[i][0],
                                         .nout = shapes[i][1],
                                         .dtype = m->dtypes.activation,
                                         .w_dtype = m->dtypes.activation,
                                         .dw_dtype = m->dtypes.grad,
                                         .f8 = i < 2 ? m->expert_weight[place->weight].f8
                                                     : (struct nn_f8){.dtype = FSDP_F32}};
        const size_t nelem = grouped_work(m, shape);
        most = nelem > most ? nelem : most;
    }
    return most;
}

/* Elements of work that attention takes in any layer. */
size_t stack_attention_work(const struct model *m, struct nn_attention shape)
{
    const struct traits *t = &m->traits;
    size_t most = 0;

    shape.NH = t->nheads;
    shape.NKV = t->nkv_heads;
    shape.D = t->head_dim;
    shape.softcap = (float)t->attn_softcap;
    for (int i = 0; i < t->nlayers; i++) {
        shape.window = t->layers[i] & TRAITS_SLIDING ? t->window : 0;
        const size_t nelem = m->nn->attention_work_nelem(&shape);
        most = nelem > most ? nelem : most;
    }
    return most;
}

/* ---- memory layouts ------------------------------------------------------------------------- */

void stack_tables_layout(struct stack_tables *tables, const struct model *m, int T,
                         struct stack_carve *area)
{
    const struct traits_rope *rope = m->traits.rope;
    for (int i = 0; i < STACK_NTABLES; i++) {
        const struct traits_rope *r = &rope[i == STACK_ROPE_QUERIES ? TRAITS_ROPE_FULL : i];
        const size_t nelem = (size_t)T * (size_t)r->dim / 2;
        if (!r->dim || (i == STACK_ROPE_QUERIES && r->growth == 0))
            continue;
        tables->cos[i] = carve_f32(area, nelem);
        tables->sin[i] = carve_f32(area, nelem);
    }
}

size_t stack_load_nelem(const struct model *m)
{
    return ((size_t)m->traits.nlayers + 1) * (size_t)m->traits.experts + 1;
}

size_t stack_root_layout(struct stack_root_mem *mem, const struct model *m, int B, int T,
                         void *saved)
{
    struct stack_carve area = {saved, 0};
    const size_t rows = (size_t)B * (size_t)T;

    *mem = (struct stack_root_mem){0};
    mem->inputs = stack_carve(&area, rows, sizeof(int32_t));
    mem->targets = stack_carve(&area, rows, sizeof(int32_t));
    mem->starts = stack_carve(&area, rows, sizeof(int32_t));
    mem->positions = stack_carve(&area, rows, sizeof(int32_t));
    mem->weights = stack_carve(&area, rows, sizeof(float));
    stack_tables_layout(&mem->tables, m, T, &area);
    mem->stream = carve_act(&area, m, rows * (size_t)m->traits.dim);
    if (m->traits.experts) {
        const size_t E = (size_t)m->traits.experts;
        mem->load.counts = stack_carve(&area, stack_load_nelem(m), sizeof *mem->load.counts);
        mem->load.balance = carve_f32(&area, E);
        if (mem->load.counts) {
            mem->load.squares = mem->load.counts + stack_load_nelem(m) - 1;
            mem->load.sums = mem->load.squares - E;
        }
    }
    return area.nbytes;
}

size_t stack_joined_width(const struct model *m)
{
    const struct traits *t = &m->traits;
    return ((size_t)t->nheads + 2 * (size_t)t->nkv_heads) * (size_t)t->head_dim;
}

/* May q, k and v lie side by side in `act`, as layer_joins says where their memory is known?
 * Always, where they are one matrix, head by head. */
static bool joins_qkv(const struct model *m)
{
    const struct stack_place *q = &m->place[STACK_Q], *k = &m->place[STACK_K];
    return m->family->names->fusion == TRAITS_FUSED_HEADS ||
           (m->dtypes.activation != FSDP_F32 && !m->lora.r && !m->weight[q->weight].f8.dtype &&
            (q->weight == k->weight || q->bias < 0));
}

size_t stack_act_width(const struct model *m)
{
    const struct traits *t = &m->traits;
    const size_t NHD = (size_t)t->nheads * (size_t)t->head_dim, ffn = (size_t)t->ffn;
    const size_t heads = joins_qkv(m) ? stack_joined_width(m) : NHD;
    return ffn > heads ? ffn : heads;
}

/* The four areas of a module's activations. */
struct areas {
    struct stack_carve saved, recomputed, work, cheap;
};

/* The statistics of a norm, where the layer has it. */
static void norm_layout(struct stack_block *blk, const struct model *m, enum stack_slot slot,
                        size_t rows, struct stack_carve *area)
{
    if (m->place[slot].weight < 0)
        return;
    if (m->traits.norm == TRAITS_LAYER)
        blk->mean[slot] = carve_f32(area, rows);
    blk->rstd[slot] = carve_f32(area, rows);
}

static bool shares_scales(const struct model *m)
{
    for (int slot = 0; slot < STACK_NSLOTS; slot++)
        if (m->place[slot].weight >= 0 && stack_shares_scale(m, (enum stack_slot)slot))
            return true;
    return false;
}

/* Of the products of a layer's rows. */
static size_t layer_products_work(const struct model *m, int rows)
{
    const struct stack_weight joined = {.rows = (int)stack_joined_width(m), .cols = m->traits.dim};
    const size_t nelem[] = {products_work(m, rows, m->weight, m->nweights, m->dtypes.activation),
                            m->dtypes.activation == FSDP_F32
                                ? 0
                                : products_work(m, rows, &joined, 1, m->dtypes.activation),
                            experts_work(m, rows)};
    size_t most = 0;
    for (size_t i = 0; i < sizeof nelem / sizeof *nelem; i++)
        most = nelem[i] > most ? nelem[i] : most;
    return most;
}

static void layer_layout(struct stack_block *blk, const struct model *m, int B, int T,
                         struct areas *a)
{
    const size_t rows = (size_t)B * (size_t)T, C = (size_t)m->traits.dim;
    const size_t products = layer_products_work(m, B * T);

    blk->in_copy = carve_act(&a->saved, m, rows * C);
    blk->mid = carve_act(&a->cheap, m, rows * C);
    norm_layout(blk, m, STACK_NORM1, rows, &a->recomputed);
    norm_layout(blk, m, STACK_NORM2, rows, &a->recomputed);
    blk->norm = carve_act(&a->work, m, rows * C);
    blk->act = carve_act(&a->work, m, rows * stack_act_width(m));
    blk->work = carve_f32(&a->work, m->attention_nelem > products ? m->attention_nelem : products);
    if (shares_scales(m))
        blk->w_shared = stack_carve(&a->work, 1, sizeof *blk->w_shared);
    if (m->lora.r) {
        blk->low = carve_act(&a->work, m, rows * (size_t)m->most_r);
        blk->d_low = carve_act(&a->work, m, rows * (size_t)m->most_r);
    }
    const struct stack_lora_widths widths = stack_lora_widths(m);
    if (m->lora.r && m->lora.dropout > 0)
        blk->low_in = carve_act(&a->work, m, rows * (size_t)widths.nin);
    if (m->lora.r && m->lora.dora) {
        blk->wide = carve_act(&a->work, m, rows * (size_t)widths.nout);
        blk->lengths = carve_f32(&a->work, (size_t)widths.nout);
    }
}

static void qk_norm_layout(struct stack_block *blk, const struct model *m, size_t rows,
                           struct stack_carve *area)
{
    const struct traits *t = &m->traits;
    const size_t D = (size_t)t->head_dim, NH = (size_t)t->nheads, NKV = (size_t)t->nkv_heads;
    const bool whole = t->qk_norm == TRAITS_QK_WHOLE;

    if (t->qk_norm == TRAITS_QK_NONE)
        return;
    blk->q_raw = carve_act(area, m, rows * NH * D);
    blk->k_raw = carve_act(area, m, rows * NKV * D);
    blk->q_rstd = carve_f32(area, rows * (whole ? 1 : NH));
    blk->k_rstd = carve_f32(area, rows * (whole ? 1 : NKV));
}

static void attention_layout(struct stack_block *blk, const struct model *m, int B, int T,
                             struct areas *a)
{
    const struct traits *t = &m->traits;
    const size_t rows = (size_t)B * (size_t)T, D = (size_t)t->head_dim;
    const size_t NHD = (size_t)t->nheads * D, KVD = (size_t)t->nkv_heads * D;

    blk->q = carve_act(&a->recomputed, m, rows * NHD);
    blk->k = blk->k_new = carve_act(&a->recomputed, m, rows * KVD);
    blk->v = blk->v_new = carve_act(&a->recomputed, m, rows * KVD);
    qk_norm_layout(blk, m, rows, &a->recomputed);
    blk->o = carve_act(&a->cheap, m, rows * NHD);
    blk->lse = carve_f32(&a->cheap, rows * (size_t)t->nheads);
    norm_layout(blk, m, STACK_POST1, rows, &a->recomputed);
    if (t->post_norm)
        blk->attn_y = carve_act(&a->recomputed, m, rows * (size_t)t->dim);
}

/* Rows and what is kept of them; and scratch. */
void stack_experts_layout(struct stack_block *blk, const struct model *m, size_t rows,
                          enum fsdp_dtype dtype, struct stack_carve *kept,
                          struct stack_carve *scratch)
{
    const struct traits *t = &m->traits;
    const size_t E = (size_t)t->experts, nslots = rows * (size_t)t->experts_per_token;
    const size_t hidden = nslots * (size_t)t->expert_ffn, elem = fsdp_dtype_nbytes(dtype);
    struct stack_routing *r = &blk->routing;

    r->probs = carve_f32(kept, rows * E);
    r->weight = carve_f32(kept, nslots);
    r->lse = carve_f32(kept, rows);
    r->expert = stack_carve(kept, nslots, sizeof(int32_t));
    r->first = stack_carve(kept, E + 1, sizeof(int32_t));
    r->slot = stack_carve(kept, nslots, sizeof(int32_t));
    r->place = stack_carve(kept, nslots, sizeof(int32_t));
    blk->expert_gate = stack_carve(kept, hidden, elem);
    blk->expert_up = stack_carve(kept, hidden, elem);
    blk->places = stack_carve(scratch, nslots * (size_t)t->dim, elem);
    blk->hidden = stack_carve(scratch, hidden, elem); /* with the next, gate and up in turn */
    blk->d_hidden = stack_carve(scratch, hidden, elem);
    blk->router_logits = stack_carve(scratch, rows * E, elem);
    blk->d_weight = carve_f32(scratch, nslots);
}

/* Of experts' adapters, whose B has the types of the unit that it is in. */
static void experts_lora_layout(struct stack_block *blk, const struct model *m, size_t rows,
                                struct stack_carve *area)
{
    const size_t low = rows * (size_t)m->traits.experts_per_token * (size_t)m->most_r;
    const size_t wide = sizeof(float);
    size_t nelem = 0;

    for (int slot = 0; slot < STACK_NEXPERTS; slot++) {
        const int lora = m->expert_place[slot].lora;
        const struct stack_weight *b = &m->weight[lora + 1];
        const size_t own = lora ? (size_t)b->rows * (size_t)b->cols : 0;
        nelem = own > nelem ? own : nelem;
    }
    if (!nelem)
        return;
    blk->expert_low = carve_act(area, m, low);
    blk->expert_d_low = carve_act(area, m, low);
    blk->expert_b = stack_carve(
        area, nelem, m->dtypes.overrides ? wide : fsdp_dtype_nbytes(m->dtypes.activation));
    blk->expert_db =
        stack_carve(area, nelem, m->dtypes.overrides ? wide : fsdp_dtype_nbytes(m->dtypes.grad));
}

static void mlp_layout(struct stack_block *blk, const struct model *m, int B, int T,
                       struct areas *a)
{
    const struct traits *t = &m->traits;
    const size_t rows = (size_t)B * (size_t)T, nelem = rows * (size_t)t->ffn;

    if (t->gated && t->ffn)
        blk->gate = carve_act(&a->recomputed, m, nelem);
    if (t->ffn)
        blk->up = carve_act(&a->recomputed, m, nelem);
    if (t->experts)
        stack_experts_layout(blk, m, rows, m->dtypes.activation, &a->recomputed, &a->work);
    experts_lora_layout(blk, m, rows, &a->work);
    norm_layout(blk, m, STACK_POST2, rows, &a->recomputed);
    if (t->post_norm)
        blk->mlp_y = carve_act(&a->recomputed, m, rows * (size_t)t->dim);
}

struct fsdp_act_bytes stack_part_layout(struct stack_block *blk, const struct model *m,
                                        enum stack_part part, int B, int T,
                                        const struct fsdp_view *view)
{
    static void (*const layouts[STACK_NPARTS])(struct stack_block *, const struct model *, int, int,
                                               struct areas *) = {layer_layout, attention_layout,
                                                                  mlp_layout};
    struct areas a = {0};

    if (view)
        a = (struct areas){
            {view->saved, 0}, {view->recomputed, 0}, {view->work, 0}, {view->cheap, 0}};
    layouts[part](blk, m, B, T, &a);
    return (struct fsdp_act_bytes){.saved = a.saved.nbytes,
                                   .recomputed = a.recomputed.nbytes,
                                   .work = a.work.nbytes,
                                   .cheap = a.cheap.nbytes};
}

/* Enough for a good matrix product, as many logits as the device likes beyond that; many rows in
 * multiples of what products on GPUs are cut into. */
int stack_head_chunk(const struct model *m, int rows)
{
    const size_t most = m->nn->logits_nelem >> 12;
    size_t chunk = m->nn->logits_nelem / (size_t)m->traits.vocab;
    chunk = chunk < 64 ? 64 : chunk > most ? most : chunk;
    chunk = chunk > 1024 ? chunk / 128 * 128 : chunk;
    return chunk < (size_t)rows ? (int)chunk : rows;
}

/* Elements of work of the head's products, and of its adapter's. */
static size_t head_work(const struct model *m, int rows)
{
    const struct stack_weight wide[] = {{.rows = m->traits.vocab, .cols = m->traits.dim},
                                        {.rows = m->traits.vocab, .cols = m->head_rank.r}};
    const struct stack_weight low = {.rows = m->head_rank.r, .cols = m->traits.dim};
    const size_t most = products_work(m, rows, wide, m->head_lora ? 2 : 1, m->dtypes.output);
    const size_t other = m->head_lora ? products_work(m, rows, &low, 1, m->dtypes.activation) : 0;
    return most > other ? most : other;
}

size_t stack_head_layout(struct stack_head_mem *mem, const struct model *m, int rows, void *work)
{
    struct stack_carve area = {work, 0};
    size_t chunk = (size_t)stack_head_chunk(m, rows);
    const int align = m->nn->logits_align;

    mem->norm = carve_act(&area, m, chunk * (size_t)m->traits.dim);
    mem->mean = carve_f32(&area, m->traits.norm == TRAITS_LAYER ? chunk : 0);
    mem->rstd = carve_f32(&area, chunk);
    mem->work = carve_f32(&area, head_work(m, (int)chunk));
    if (m->head_lora) {
        const size_t low = chunk * (size_t)m->head_rank.r, C = (size_t)m->traits.dim;
        mem->low = carve_act(&area, m, low);
        mem->d_low = carve_act(&area, m, low);
        mem->low_in = carve_act(&area, m, m->lora.dropout > 0 ? chunk * C : 0);
    }
    mem->ld = (m->traits.vocab + align - 1) / align * align;
    mem->wide = NULL;
    mem->lengths = NULL;
    if (m->head_lora && m->lora.dora) {
        mem->wide =
            stack_carve(&area, chunk * (size_t)mem->ld, fsdp_dtype_nbytes(m->dtypes.output));
        mem->lengths = carve_f32(&area, (size_t)m->traits.vocab);
    }
    mem->logits = stack_carve(&area, chunk * (size_t)mem->ld, fsdp_dtype_nbytes(m->dtypes.output));
    return area.nbytes;
}
