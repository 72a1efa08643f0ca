/* SPDX-License-Identifier: Apache-2.0 */
/* What a stack of layers is: its modules and weights, and where its activations lie. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "hf.h"
#include "plan/flops.h"
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

/* Elements of work that a product of this shape takes, whatever types its weight may have. */
static size_t product_work(const struct model *m, struct nn_linear shape)
{
    static const enum fsdp_dtype types[] = {FSDP_F32, FSDP_BF16};
    size_t most = m->nn->linear_work_nelem(&shape);
    for (int i = 0; i < 4 && m->dtypes.overrides; i++) {
        shape.w_dtype = types[i / 2];
        shape.dw_dtype = types[i % 2];
        size_t nelem = m->nn->linear_work_nelem(&shape);
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
        const size_t nelem = product_work(m, (struct nn_linear){.rows = rows,
                                                                .nin = weights[w].cols,
                                                                .nout = weights[w].rows,
                                                                .dtype = m->dtypes.activation,
                                                                .y_dtype = output,
                                                                .w_dtype = m->dtypes.activation,
                                                                .dw_dtype = m->dtypes.grad});
        most = nelem > most ? nelem : most;
    }
    return most;
}

static size_t attention_work(const struct model *m, int B, int T)
{
    const struct stack_config *c = &m->config;
    const struct nn_attention shape = {.B = B,
                                       .Tq = T,
                                       .Tk = T,
                                       .NH = c->nheads,
                                       .NKV = c->nkv_heads,
                                       .D = c->head_dim,
                                       .dtype = m->dtypes.activation};
    return m->nn->attention_work_nelem(&shape);
}

/* ---- memory layouts ------------------------------------------------------------------------- */

size_t stack_root_layout(struct stack_root_mem *mem, const struct model *m, int B, int T,
                         void *saved)
{
    const struct stack_config *c = &m->config;
    struct stack_carve area = {saved, 0};
    size_t rows = (size_t)B * (size_t)T, table = (size_t)T * (size_t)c->head_dim / 2;

    *mem = (struct stack_root_mem){0};
    mem->inputs = stack_carve(&area, rows, sizeof(int32_t));
    mem->targets = stack_carve(&area, rows, sizeof(int32_t));
    mem->starts = stack_carve(&area, rows, sizeof(int32_t));
    mem->positions = stack_carve(&area, rows, sizeof(int32_t));
    if (m->inv_freq) {
        mem->cos = carve_f32(&area, table);
        mem->sin = carve_f32(&area, table);
    }
    mem->stream = carve_act(&area, m, rows * (size_t)c->dim);
    return area.nbytes;
}

/* The four areas of a module's activations. */
struct areas {
    struct stack_carve saved, recomputed, work, cheap;
};

static void layer_layout(struct stack_block *blk, const struct model *m, int B, int T,
                         struct areas *a)
{
    const struct stack_config *c = &m->config;
    const size_t rows = (size_t)B * (size_t)T, C = (size_t)c->dim, F = (size_t)c->ffn;
    const size_t NHD = (size_t)c->nheads * (size_t)c->head_dim;
    const size_t attention = attention_work(m, B, T);
    struct stack_weight weights[STACK_MAX_WEIGHTS];

    m->family->weights(c, weights);
    const size_t products =
        products_work(m, B * T, weights, m->family->nweights, m->dtypes.activation);
    blk->in_copy = carve_act(&a->saved, m, rows * C);
    blk->mid = carve_act(&a->cheap, m, rows * C);
    if (m->family->norm_bias) {
        blk->mean1 = carve_f32(&a->recomputed, rows);
        blk->mean2 = carve_f32(&a->recomputed, rows);
    }
    blk->rstd1 = carve_f32(&a->recomputed, rows);
    blk->rstd2 = carve_f32(&a->recomputed, rows);
    blk->norm = carve_act(&a->work, m, rows * C);
    blk->act = carve_act(&a->work, m, rows * (F > NHD ? F : NHD));
    blk->work = carve_f32(&a->work, attention > products ? attention : products);
}

static void attention_layout(struct stack_block *blk, const struct model *m, int B, int T,
                             struct areas *a)
{
    const struct stack_config *c = &m->config;
    const size_t rows = (size_t)B * (size_t)T, D = (size_t)c->head_dim;
    const size_t NHD = (size_t)c->nheads * D, KVD = (size_t)c->nkv_heads * D;

    blk->q = carve_act(&a->recomputed, m, rows * NHD);
    blk->k = blk->k_new = carve_act(&a->recomputed, m, rows * KVD);
    blk->v = blk->v_new = carve_act(&a->recomputed, m, rows * KVD);
    blk->o = carve_act(&a->cheap, m, rows * NHD);
    blk->lse = carve_f32(&a->cheap, rows * (size_t)c->nheads);
}

static void mlp_layout(struct stack_block *blk, const struct model *m, int B, int T,
                       struct areas *a)
{
    const size_t nelem = (size_t)B * (size_t)T * (size_t)m->config.ffn;

    if (m->family->gated)
        blk->gate = carve_act(&a->recomputed, m, nelem);
    blk->up = carve_act(&a->recomputed, m, nelem);
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
    size_t chunk = m->nn->logits_nelem / (size_t)m->config.vocab;
    chunk = chunk < 64 ? 64 : chunk > most ? most : chunk;
    chunk = chunk > 1024 ? chunk / 128 * 128 : chunk;
    return chunk < (size_t)rows ? (int)chunk : rows;
}

size_t stack_head_layout(struct stack_head_mem *mem, const struct model *m, int rows, void *work)
{
    struct stack_carve area = {work, 0};
    size_t chunk = (size_t)stack_head_chunk(m, rows);
    const int align = m->nn->logits_align;

    const struct stack_weight head = {.rows = m->config.vocab, .cols = m->config.dim};
    mem->norm = carve_act(&area, m, chunk * (size_t)m->config.dim);
    mem->mean = carve_f32(&area, m->family->norm_bias ? chunk : 0);
    mem->rstd = carve_f32(&area, chunk);
    mem->work = carve_f32(&area, products_work(m, (int)chunk, &head, 1, m->dtypes.output));
    mem->ld = (m->config.vocab + align - 1) / align * align;
    mem->logits = stack_carve(&area, chunk * (size_t)mem->ld, fsdp_dtype_nbytes(m->dtypes.output));
    return area.nbytes;
}

/* ---- create, destroy ------------------------------------------------------------------------ */

void stack_destroy(struct model *m)
{
    if (m) {
        fsdp_free(m->inv_freq);
        fsdp_free(m->part);
        fsdp_free(m->layer_param);
        fsdp_free(m);
    }
}

void stack_set_dtypes(struct model *m, const struct model_dtypes *dtypes)
{
    m->dtypes = *dtypes;
}

/* Which module of the layer each weight is in. */
static void find_parts(struct model *m)
{
    struct stack_weight weights[STACK_MAX_WEIGHTS];

    m->family->weights(&m->config, weights);
    for (int w = 0; w < m->family->nweights; w++) {
        m->weight_part[w] = STACK_PART_LAYER;
        for (int part = STACK_PART_LAYER + 1; part < STACK_NPARTS; part++) {
            const char *name = m->family->part[part].name;
            if (!strncmp(weights[w].name, name, strlen(name)))
                m->weight_part[w] = (enum stack_part)part;
        }
    }
}

int stack_create(struct model **out, const struct stack_family *family,
                 const struct stack_config *config, double *inv_freq, struct fsdp_err *err)
{
    const size_t nlayers = (size_t)config->nlayers, nweights = (size_t)family->nweights;
    struct model *m = fsdp_alloc(1, sizeof *m, "model", err);

    if (!m) {
        fsdp_free(inv_freq);
        return FSDP_ENOMEM;
    }
    m->family = family;
    m->config = *config;
    m->inv_freq = inv_freq;
    m->nn = &nn_cpu_ops;
    find_parts(m);
    m->part = fsdp_alloc(nlayers, sizeof *m->part, "layer modules", err);
    if (m->part)
        m->layer_param =
            fsdp_alloc(nlayers * nweights, sizeof *m->layer_param, "layer parameters", err);
    if (!m->layer_param) {
        stack_destroy(m);
        return FSDP_ENOMEM;
    }
    *out = m;
    return FSDP_OK;
}

int stack_config_read(struct stack_config *c, const struct hf_config *hf, struct fsdp_err *err)
{
    const char *key = hf_has(hf, "dtype") ? "dtype" : "torch_dtype", *text = "float32";
    struct model_info *info = &c->info;
    int eos[MODEL_MAX_EOS], bos = -1;

    c->init_std = 0.02;
    FSDP_TRY(hf_float(hf, "initializer_range", false, 0, 100, &c->init_std, err));
    FSDP_TRY(hf_bool(hf, "tie_word_embeddings", &c->tied, err));
    if (hf_has(hf, "quantization_config"))
        return hf_refuse(hf, FSDP_EUNSUPPORTED, err, "quantization_config",
                         "is set; quantized models are not supported");
    FSDP_TRY(hf_text(hf, key, false, &text, err));
    if (fsdp_dtype_parse(&info->dtype, text, NULL) || !fsdp_dtype_is_float(info->dtype))
        return hf_refuse(hf, FSDP_EINVAL, err, key,
                         "is '%.64s', not a floating type (float32, bfloat16, float16)", text);
    FSDP_TRY(
        hf_ints(hf, "eos_token_id", -1, STACK_MAX_VOCAB, eos, MODEL_MAX_EOS, &info->neos, err));
    for (int i = 0; i < info->neos; i++)
        info->eos[i] = eos[i];
    FSDP_TRY(hf_int(hf, "bos_token_id", false, -1, STACK_MAX_VOCAB, &bos, err));
    info->bos = bos;
    return FSDP_OK;
}

/* ---- describe ------------------------------------------------------------------------------- */

static int add_weight(struct fsdp_module_tree *tree, int module, const char *name, int rows,
                      int cols, struct fsdp_init init, int *out, struct fsdp_err *err)
{
    const uint64_t shape[2] = {(uint64_t)rows, (uint64_t)cols};
    const struct fsdp_param_desc desc = {
        .name = name, .ndim = cols ? 2 : 1, .shape = shape, .init = init};
    return fsdp_module_add_param(tree, module, &desc, out, err);
}

static struct fsdp_init normal(const struct model *m)
{
    return (struct fsdp_init){FSDP_INIT_NORMAL, (float)m->config.init_std};
}

static int describe_embedding(struct model *m, struct fsdp_module_tree *tree, struct fsdp_err *err)
{
    const struct stack_family *family = m->family;
    const struct stack_config *c = &m->config;

    FSDP_TRY(
        fsdp_module_add(tree, m->root, family->embed_module, family->embed_class, &m->embed, err));
    FSDP_TRY(add_weight(tree, m->embed, family->embed_weight, c->vocab, c->dim, normal(m),
                        &m->embed_param, err));
    if (!family->position_weight)
        return FSDP_OK;
    return add_weight(tree, m->embed, family->position_weight, c->max_seq_len, c->dim, normal(m),
                      &m->position_param, err);
}

static int describe_layer(struct model *m, struct fsdp_module_tree *tree, int layer, int B, int T,
                          struct fsdp_err *err)
{
    const struct stack_family *family = m->family;
    struct stack_weight weights[STACK_MAX_WEIGHTS];
    struct stack_block blk = {0};
    char name[128];
    int *module = m->part[layer];

    family->weights(&m->config, weights);
    for (int part = 0; part < STACK_NPARTS; part++) {
        const int parent = part == STACK_PART_LAYER ? m->root : module[STACK_PART_LAYER];
        snprintf(name, sizeof name, "%s.%d%s", family->layer_module, layer,
                 family->part[part].name);
        FSDP_TRY(
            fsdp_module_add(tree, parent, name, family->part[part].class_name, &module[part], err));
        FSDP_TRY(fsdp_module_set_act(tree, module[part],
                                     stack_part_layout(&blk, m, (enum stack_part)part, B, T, NULL),
                                     err));
    }
    for (int w = 0; w < family->nweights; w++) {
        snprintf(name, sizeof name, "%s.%d%s", family->layer_module, layer, weights[w].name);
        FSDP_TRY(add_weight(tree, module[m->weight_part[w]], name, weights[w].rows, weights[w].cols,
                            weights[w].init, &m->layer_param[layer * family->nweights + w], err));
    }
    return FSDP_OK;
}

static int describe_head(struct model *m, struct fsdp_module_tree *tree, size_t work_nbytes,
                         struct fsdp_err *err)
{
    const struct stack_config *c = &m->config;
    const struct fsdp_init ones = {FSDP_INIT_ONES, 0}, zeros = {FSDP_INIT_ZEROS, 0};

    FSDP_TRY(fsdp_module_add(tree, m->root, "lm_head", m->family->head_class, &m->head, err));
    FSDP_TRY(
        add_weight(tree, m->head, m->family->norm_weight, c->dim, 0, ones, &m->norm_param, err));
    if (m->family->norm_bias)
        FSDP_TRY(add_weight(tree, m->head, m->family->norm_bias, c->dim, 0, zeros,
                            &m->norm_bias_param, err));
    if (c->tied) {
        m->head_param = m->embed_param;
        FSDP_TRY(fsdp_module_tie(tree, m->head, m->embed_param, "lm_head.weight", err));
    } else {
        FSDP_TRY(add_weight(tree, m->head, "lm_head.weight", c->vocab, c->dim, normal(m),
                            &m->head_param, err));
    }
    return fsdp_module_set_act(tree, m->head, (struct fsdp_act_bytes){.work = work_nbytes}, err);
}

int stack_describe(struct model *m, struct fsdp_module_tree *tree, int B, int T,
                   struct fsdp_err *err)
{
    const struct stack_config *c = &m->config;
    struct stack_root_mem root_mem;
    struct stack_head_mem head_mem;

    if (B < 1 || T < 1)
        return fsdp_err_set(err, FSDP_EINVAL, "micro-batch of %d x %d tokens: must be positive", B,
                            T);
    if (T > c->max_seq_len)
        return fsdp_err_set(err, FSDP_EINVAL, "sequence length %d is over the model's %s (%d)", T,
                            m->family->max_seq_len_key, c->max_seq_len);
    if ((int64_t)B * T > INT32_MAX / 2)
        return fsdp_err_set(err, FSDP_EINVAL, "micro-batch of %d x %d tokens is too large", B, T);
    FSDP_TRY(fsdp_module_add(tree, -1, "", m->family->root_class, &m->root, err));
    struct fsdp_act_bytes root_act = {.saved = stack_root_layout(&root_mem, m, B, T, NULL)};
    FSDP_TRY(fsdp_module_set_act(tree, m->root, root_act, err));
    FSDP_TRY(describe_embedding(m, tree, err));
    for (int i = 0; i < c->nlayers; i++)
        FSDP_TRY(describe_layer(m, tree, i, B, T, err));
    FSDP_TRY(describe_head(m, tree, stack_head_layout(&head_mem, m, B * T, NULL), err));
    m->max_B = B;
    m->max_T = T;
    return FSDP_OK;
}

/* ---- facts ---------------------------------------------------------------------------------- */

const char *const *stack_wrap_classes(const struct model *m)
{
    const struct stack_config *c = &m->config;
    const bool apart = !c->tied && (int64_t)c->vocab * c->dim >= STACK_UNIT_MIN_NELEM;
    return m->family->unit_classes + (apart ? 0 : 2);
}

int stack_vocab_size(const struct model *m)
{
    return m->config.vocab;
}

int stack_max_seq_len(const struct model *m)
{
    return m->config.max_seq_len;
}

double stack_flops_per_token(const struct model *m, int T)
{
    const struct stack_config *c = &m->config;
    struct flops_model flops = {.nlayers = c->nlayers,
                                .nheads = c->nheads,
                                .head_dim = c->head_dim,
                                .head = (double)c->dim * c->vocab};
    struct stack_weight weights[STACK_MAX_WEIGHTS];

    m->family->weights(c, weights);
    for (int w = 0; w < m->family->nweights; w++)
        flops.layer += (double)weights[w].rows * weights[w].cols;
    return flops_train(&flops, T);
}

void stack_info(const struct model *m, struct model_info *out)
{
    const struct stack_config *c = &m->config;
    *out = c->info;
    out->dropout = fmax(c->embed_drop, fmax(c->attn_drop, c->resid_drop));
}

struct nn_attention stack_attention(const struct model *m, const struct stack_block *blk)
{
    const struct stack_config *c = &m->config;
    return (struct nn_attention){
        .q = blk->q,
        .k = blk->k,
        .v = blk->v,
        .o = blk->o,
        .lse = blk->lse,
        .work = blk->work,
        .B = blk->B,
        .Tq = blk->Tq,
        .Tk = blk->Tk,
        .NH = c->nheads,
        .NKV = c->nkv_heads,
        .D = c->head_dim,
        .dtype = blk->dtype,
        .scale = (float)(1.0 / sqrt(c->head_dim)),
        .starts = blk->starts,
        .drop = stack_drop(blk->drop, blk->layer, STACK_ATTENTION, c->attn_drop),
    };
}

int stack_attention_forward(const struct model *m, const struct stack_block *blk,
                            struct fsdp_err *err)
{
    const struct nn_attention attention = stack_attention(m, blk);

    return blk->kept_attention ? blk->kept_attention(blk->decoder, blk, err)
                               : m->nn->attention_forward(blk->lane, &attention, err);
}

/* ---- dropout -------------------------------------------------------------------------------- */

int stack_set_device(struct model *m, const struct fsdp_device *device, struct fsdp_err *err)
{
    return nn_ops_of(&m->nn, device, err);
}

void stack_set_dropout(struct model *m, double p)
{
    m->config.attn_drop = p;
    if (m->family->drops_stream)
        m->config.embed_drop = m->config.resid_drop = p;
}

struct nn_drop stack_drop(const struct model_batch *batch, int layer, enum stack_site site,
                          double p)
{
    if (!batch || p <= 0)
        return (struct nn_drop){0};
    const uint64_t place[] = {batch->seed, (uint64_t)layer, (uint64_t)site};
    return (struct nn_drop){(float)p, fsdp_hash(FSDP_HASH_SEED, place, sizeof place),
                            batch->first_row};
}

bool stack_drops_branch(const struct model *m, const struct stack_block *blk)
{
    return blk->drop && m->config.resid_drop > 0;
}

static struct nn_dropout branch_dropout(const struct model *m, const struct stack_block *blk,
                                        enum stack_site site)
{
    return (struct nn_dropout){.B = blk->B,
                               .row_nelem = (size_t)blk->Tq * (size_t)m->config.dim,
                               .dtype = blk->dtype,
                               .drop =
                                   stack_drop(blk->drop, blk->layer, site, m->config.resid_drop)};
}

int stack_drop_branch(const struct model *m, const struct stack_block *blk, enum stack_site site,
                      struct fsdp_err *err)
{
    struct nn_dropout args = branch_dropout(m, blk, site);
    args.out = blk->out;
    args.x = blk->norm;
    args.beta = 1;
    return m->nn->dropout(blk->lane, &args, err);
}

int stack_drop_gradient(const void **dy, const struct model *m, const struct stack_block *blk,
                        enum stack_site site, struct fsdp_err *err)
{
    struct nn_dropout args = branch_dropout(m, blk, site);
    *dy = blk->out;
    if (!stack_drops_branch(m, blk))
        return FSDP_OK;
    args.out = blk->norm;
    args.x = blk->out;
    *dy = blk->norm;
    return m->nn->dropout(blk->lane, &args, err);
}
