/* SPDX-License-Identifier: Apache-2.0 */
/* What a stack of layers is: its modules and weights, and facts about it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/decoder.h"
#include "plan/flops.h"
#include "stack.h"

/* ---- create, destroy ------------------------------------------------------------------------ */

void stack_destroy(struct model *m)
{
    if (m) {
        stack_close_graphs(m);
        traits_free(&m->traits);
        fsdp_free(m->part);
        fsdp_free(m->layer_param);
        fsdp_free(m->expert_param);
        fsdp_free(m->expert_first);
        fsdp_free(m);
    }
}

void stack_set_dtypes(struct model *m, const struct model_dtypes *dtypes)
{
    m->dtypes = *dtypes;
}

static int read_config(struct model *m, const char *path, struct fsdp_err *err)
{
    struct hf_config *hf;
    int rc;

    FSDP_TRY(hf_config_open(&hf, path, err));
    FSDP_TRY_GOTO(family_of(&m->family, hf, err), out);
    FSDP_TRY_GOTO(family_enter(m->family, hf, err), out);
    FSDP_TRY_GOTO(family_read(&m->traits, m->family, hf, err), out);
out:
    hf_config_close(hf);
    return rc;
}

/* Embedding, head and the experts of a layer are units of their own where they are large. */
static void list_unit_classes(struct model *m)
{
    const struct traits *t = &m->traits;
    const int64_t experts = (int64_t)t->experts * t->expert_ffn * t->dim * STACK_NEXPERTS;
    const char **to = m->unit_classes;

    if (!t->tied && (int64_t)t->vocab * t->dim >= STACK_UNIT_MIN_NELEM) {
        *to++ = m->family->class_name.embed;
        *to++ = m->family->class_name.head;
    }
    if (experts >= STACK_UNIT_MIN_NELEM)
        *to++ = m->family->class_name.mlp;
    *to = m->family->class_name.layer;
}

static int make_model(struct model *m, const char *path, struct fsdp_err *err)
{
    FSDP_TRY(read_config(m, path, err));
    const size_t nlayers = (size_t)m->traits.nlayers;

    m->nn = &nn_cpu_ops;
    list_unit_classes(m);
    stack_list_weights(m);
    if (!(m->part = fsdp_alloc(nlayers, sizeof *m->part, "layer modules", err)) ||
        !(m->layer_param = fsdp_alloc(nlayers * STACK_MAX_WEIGHTS, sizeof *m->layer_param,
                                      "layer parameters", err)) ||
        !(m->expert_param =
              fsdp_alloc(nlayers, sizeof *m->expert_param, "parameters of experts", err)) ||
        !(m->expert_first = fsdp_alloc(nlayers * ((size_t)m->traits.experts + 1),
                                       sizeof *m->expert_first, "counts of experts", err)))
        return FSDP_ENOMEM;
    return FSDP_OK;
}

int stack_create(struct model **out, const char *config_json_path, struct fsdp_err *err)
{
    struct model *m = fsdp_alloc(1, sizeof *m, "model", err);
    const int rc = m ? make_model(m, config_json_path, err) : FSDP_ENOMEM;

    if (rc) {
        stack_destroy(m);
        return rc;
    }
    *out = m;
    return FSDP_OK;
}

/* ---- describe ------------------------------------------------------------------------------- */

/* Where parameters go. */
struct adding {
    const struct model *m;
    struct fsdp_module_tree *tree;
    int module;
};

struct values {
    int rows, cols; /* cols 0: a vector */
    struct fsdp_init init;
    bool trained;   /* even where the model is frozen */
    unsigned flags; /* FSDP_PARAM_*, besides FROZEN */
    int scale_group;
};

static int add_weight(const struct adding *to, const char *name, struct values values, int *out,
                      struct fsdp_err *err)
{
    const uint64_t shape[2] = {(uint64_t)values.rows, (uint64_t)values.cols};
    const bool trained = values.trained || stack_is_trained(to->m, name);
    const struct fsdp_param_desc desc = {.name = name,
                                         .ndim = values.cols ? 2 : 1,
                                         .shape = shape,
                                         .init = values.init,
                                         .flags = (trained ? 0u : FSDP_PARAM_FROZEN) | values.flags,
                                         .scale_group = values.scale_group};
    return fsdp_module_add_param(to->tree, to->module, &desc, out, err);
}

/* The weight whose name is `stem` and `suffix`. */
static int add_named(const struct adding *to, const char *stem, const char *suffix,
                     struct values values, int *out, struct fsdp_err *err)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", stem, suffix);
    return add_weight(to, name, values, out, err);
}

static struct fsdp_init normal(const struct model *m)
{
    return (struct fsdp_init){FSDP_INIT_NORMAL, (float)m->traits.init_std};
}

static int describe_embedding(struct model *m, struct fsdp_module_tree *tree, struct fsdp_err *err)
{
    const struct traits_names *names = m->family->names;
    const struct traits *t = &m->traits;

    FSDP_TRY(
        fsdp_module_add(tree, m->root, names->embed, m->family->class_name.embed, &m->embed, err));
    const struct adding to = {m, tree, m->embed};
    FSDP_TRY(add_named(&to, names->embed, ".weight",
                       (struct values){t->vocab, t->dim, normal(m), false, 0, 0}, &m->embed_param,
                       err));
    if (!names->positions)
        return FSDP_OK;
    return add_named(&to, names->positions, ".weight",
                     (struct values){t->max_seq_len, t->dim, normal(m), false, 0, 0},
                     &m->position_param, err);
}

/* Of all experts: one weight, or a weight of each, whose indices follow each other. */
static int describe_experts(struct model *m, struct fsdp_module_tree *tree, int layer,
                            struct fsdp_err *err)
{
    const int E = m->traits.experts, module = m->part[layer][STACK_PART_MLP];

    for (int w = 0; w < m->nexpert_weights; w++) {
        const struct stack_expert_weight *x = &m->expert_weight[w];
        const uint64_t shape[3] = {(uint64_t)E, (uint64_t)x->rows, (uint64_t)x->cols};
        for (int e = 0; e < (x->apart ? E : 1); e++) {
            char name[160], own[STACK_NAME_NBYTES + 16];
            const char *number = x->apart ? strstr(x->name, "%d") : NULL;
            int param;
            if (number)
                snprintf(own, sizeof own, "%.*s%d%s", (int)(number - x->name), x->name, e,
                         number + 2);
            snprintf(name, sizeof name, "%s.%d%s", m->family->names->layers, layer,
                     number ? own : x->name);
            const struct fsdp_param_desc desc = {
                .name = name,
                .ndim = (number ? 1 : 2) + (x->cols > 0),
                .shape = shape + (number ? 1 : 0),
                .init = x->init,
                .flags = (stack_is_trained(m, name) ? 0u : FSDP_PARAM_FROZEN) |
                         (m->lora.packs_experts && x->cols ? FSDP_PARAM_LINEAR : 0u) |
                         (stack_experts_take_codes(m, w) ? FSDP_PARAM_CODES : 0u)};
            FSDP_TRY(fsdp_module_add_param(tree, module, &desc, &param, err));
            if (!e)
                m->expert_param[layer][w] = param;
        }
    }
    return FSDP_OK;
}

/* Of a layer, what transformers makes an nn.Linear of. A router of experts is a parameter there,
 * and GPT-2's matrices are (in, out). */
static bool is_linear(const struct model *m, int weight)
{
    return weight < m->nbase && m->weight[weight].cols && weight != m->place[STACK_ROUTER].weight &&
           m->family->names->fusion != TRAITS_TRANSPOSED;
}

static unsigned flags_of(const struct model *m, int weight)
{
    return (is_linear(m, weight) ? FSDP_PARAM_LINEAR : 0u) |
           (stack_takes_codes(m, weight) ? FSDP_PARAM_CODES : 0u);
}

static int describe_layer(struct model *m, struct fsdp_module_tree *tree, int layer, int B, int T,
                          struct fsdp_err *err)
{
    const struct traits_names *names = m->family->names;
    const char *const suffix[] = {"", names->attention, names->mlp};
    const char *const classes[] = {m->family->class_name.layer, m->family->class_name.attention,
                                   m->family->class_name.mlp};
    struct stack_block blk = {0};
    char name[128];
    int *module = m->part[layer];

    for (int part = 0; part < STACK_NPARTS; part++) {
        const int parent = part == STACK_PART_LAYER ? m->root : module[STACK_PART_LAYER];
        snprintf(name, sizeof name, "%s.%d%s", names->layers, layer, suffix[part]);
        FSDP_TRY(fsdp_module_add(tree, parent, name, classes[part], &module[part], err));
        FSDP_TRY(fsdp_module_set_act(tree, module[part],
                                     stack_part_layout(&blk, m, (enum stack_part)part, B, T, NULL),
                                     err));
    }
    for (int w = 0; w < m->nweights; w++) {
        const struct stack_weight *x = &m->weight[w];
        snprintf(name, sizeof name, "%s.%d%s", names->layers, layer, x->name);
        const struct adding to = {m, tree, module[x->part]};
        const struct values values = {x->rows,       x->cols,        x->init,
                                      w >= m->nbase, flags_of(m, w), stack_scale_group(m, w)};
        FSDP_TRY(add_weight(&to, name, values, &m->layer_param[layer * m->nweights + w], err));
    }
    FSDP_TRY(describe_experts(m, tree, layer, err));
    return stack_layer_work(m, tree, layer, B, T, err);
}

/* A, B and, of DoRA, magnitudes */
static int describe_head_lora(int param[3], const struct adding *to, struct fsdp_err *err)
{
    const char *head = stack_head_module(to->m);
    const struct traits *t = &to->m->traits;
    const int r = to->m->head_rank.r;
    const struct values a = {r, t->dim, stack_lora_init(t->dim), true, 0, 0};
    const struct values b = {t->vocab, r, {FSDP_INIT_ZEROS, 0}, true, 0, 0};
    const struct values magnitudes = {t->vocab, 0, {FSDP_INIT_ONES, 0}, true, 0, 0};

    if (!to->m->head_lora)
        return FSDP_OK;
    FSDP_TRY(add_named(to, head, ".lora_A.weight", a, &param[0], err));
    FSDP_TRY(add_named(to, head, ".lora_B.weight", b, &param[1], err));
    return to->m->lora.dora ? add_named(to, head, MODEL_MAGNITUDE, magnitudes, &param[2], err)
                            : FSDP_OK;
}

static int describe_head(struct model *m, struct fsdp_module_tree *tree, size_t work_nbytes,
                         struct fsdp_err *err)
{
    const struct traits_names *names = m->family->names;
    const struct traits *t = &m->traits;
    const struct fsdp_init ones = {FSDP_INIT_ONES, 0}, zeros = {FSDP_INIT_ZEROS, 0};
    char head[128];

    FSDP_TRY(
        fsdp_module_add(tree, m->root, names->head, m->family->class_name.head, &m->head, err));
    const struct adding to = {m, tree, m->head};
    FSDP_TRY(add_named(&to, names->norm, ".weight",
                       (struct values){t->dim, 0, t->norm_offset == 1 ? zeros : ones, false, 0, 0},
                       &m->norm_param, err));
    if (t->norm == TRAITS_LAYER)
        FSDP_TRY(add_named(&to, names->norm, ".bias",
                           (struct values){t->dim, 0, zeros, false, 0, 0}, &m->norm_bias_param,
                           err));
    snprintf(head, sizeof head, "%s.weight", names->head);
    if (t->tied) {
        m->head_param = m->embed_param;
        FSDP_TRY(fsdp_module_tie(tree, m->head, m->embed_param, head, err));
    } else {
        FSDP_TRY(add_weight(&to, head, (struct values){t->vocab, t->dim, normal(m), false, 0, 0},
                            &m->head_param, err));
    }
    FSDP_TRY(describe_head_lora(m->head_lora_param, &to, err));
    return fsdp_module_set_act(tree, m->head, (struct fsdp_act_bytes){.work = work_nbytes}, err);
}

/* As they are in the folder; the root's. */
static int describe_carried(struct model *m, struct fsdp_module_tree *tree, struct fsdp_err *err)
{
    for (int i = 0; i < m->ncarried; i++) {
        const struct fsdp_tensor *x = &m->carried[i];
        const struct fsdp_param_desc desc = {.name = x->name,
                                             .ndim = x->ndim,
                                             .shape = x->shape,
                                             .init = {FSDP_INIT_ZEROS, 0},
                                             .flags = FSDP_PARAM_CARRIED};
        FSDP_TRY(fsdp_module_add_param(tree, m->root, &desc, NULL, err));
    }
    return FSDP_OK;
}

/* Documents that attention is planned for: where they are shorter than this on average, kernels
 * that take any number compute them; of short rows, so many in each. */
enum { LEAST_DOCUMENT = 32, LEAST_IN_ROW = 8 };
static int most_documents(const struct model *m, int B, int T)
{
    const int each = T / LEAST_DOCUMENT;
    return !m->is_packed ? 0 : B * (each > LEAST_IN_ROW ? each : LEAST_IN_ROW);
}

int stack_describe(struct model *m, struct fsdp_module_tree *tree, int B, int T,
                   struct fsdp_err *err)
{
    const struct traits *t = &m->traits;
    struct stack_root_mem root_mem;
    struct stack_head_mem head_mem;

    if (B < 1 || T < 1)
        return fsdp_err_set(err, FSDP_EINVAL, "micro-batch of %d x %d tokens: must be positive", B,
                            T);
    if (T > t->max_seq_len)
        return fsdp_err_set(err, FSDP_EINVAL, "sequence length %d is over the model's %s (%d)", T,
                            m->family->keys->max_seq_len, t->max_seq_len);
    if ((int64_t)B * T > INT32_MAX / 2)
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "a micro-batch of %d x %d tokens is too large: at most %d tokens fit; set "
            "train.micro_batch_size lower",
            B, T, INT32_MAX / 2);
    m->max_documents = most_documents(m, B, T);
    m->attention_nelem = stack_attention_work(
        m, (struct nn_attention){.B = B,
                                 .Tq = T,
                                 .Tk = T,
                                 .documents = m->max_documents,
                                 .dtype = m->dtypes.activation,
                                 .drop.p = m->drop_fast ? (float)m->traits.attn_drop : 0,
                                 .drop_fast = m->drop_fast});
    FSDP_TRY(fsdp_module_add(tree, -1, "", m->family->class_name.root, &m->root, err));
    struct fsdp_act_bytes root_act = {.saved = stack_root_layout(&root_mem, m, B, T, NULL)};
    FSDP_TRY(fsdp_module_set_act(tree, m->root, root_act, err));
    FSDP_TRY(describe_embedding(m, tree, err));
    for (int i = 0; i < t->nlayers; i++)
        FSDP_TRY(describe_layer(m, tree, i, B, T, err));
    FSDP_TRY(describe_head(m, tree, stack_head_layout(&head_mem, m, B * T, NULL), err));
    FSDP_TRY(stack_ends_work(m, tree, B, T, err));
    FSDP_TRY(describe_carried(m, tree, err));
    FSDP_TRY(stack_check_saved(m, tree, err));
    m->max_B = B;
    m->max_T = T;
    return FSDP_OK;
}

/* ---- facts ---------------------------------------------------------------------------------- */

const char *const *stack_wrap_classes(const struct model *m)
{
    return m->unit_classes;
}

int stack_vocab_size(const struct model *m)
{
    return m->traits.vocab;
}

int stack_max_seq_len(const struct model *m)
{
    return m->traits.max_seq_len;
}

double stack_flops_per_token(const struct model *m, int T)
{
    const struct traits *t = &m->traits;
    struct flops_model flops = {.nlayers = t->nlayers,
                                .nheads = t->nheads,
                                .head_dim = t->head_dim,
                                .window = t->window,
                                .head = (double)t->dim * t->vocab};
    char head[STACK_NAME_NBYTES];

    for (int w = 0; w < m->nweights; w++) {
        const double used = m->weight[w].by_expert ? (double)t->experts_per_token / t->experts : 1;
        const double nelem = used * m->weight[w].rows * m->weight[w].cols;
        flops.layer += nelem;
        if (w < m->nbase && !stack_is_trained(m, m->weight[w].name))
            flops.frozen += t->nlayers * nelem;
    }
    snprintf(head, sizeof head, "%s.weight", m->family->names->head);
    if (!stack_is_trained(m, head))
        flops.frozen += flops.head;
    flops.active = t->experts_per_token;
    flops.expert = (double)STACK_NEXPERTS * t->expert_ffn * t->dim;
    for (int i = 0; i < t->nlayers; i++)
        flops.nwindowed += (t->layers[i] & TRAITS_SLIDING) != 0;
    return flops_train(&flops, T);
}

const char *stack_own_prefix(const struct model *m)
{
    return m->family->carries;
}

void stack_set_carried(struct model *m, const struct fsdp_tensor *tensors, int ntensors)
{
    m->carried = tensors;
    m->ncarried = ntensors;
}

const char *stack_family(const struct model *m)
{
    return m->family->type;
}

void stack_info(const struct model *m, struct model_info *out)
{
    const struct traits *t = &m->traits;
    *out = t->info;
    out->transposed = m->family->names->fusion == TRAITS_TRANSPOSED;
    out->dropout = fmax(t->embed_drop, fmax(t->attn_drop, t->resid_drop));
    stack_list_parameters(m, out);
    out->nexpert_matrices = out->nexperts_f8 = 0;
    for (int w = 0; w < m->nexpert_weights; w++)
        if (m->expert_weight[w].cols) {
            out->nexpert_matrices++;
            out->nexperts_f8 += m->expert_weight[w].f8.dtype != 0;
        }
}

struct model_router stack_router(const struct model *m)
{
    const struct traits *t = &m->traits;
    return (struct model_router){.nlayers = t->experts ? t->nlayers : 0,
                                 .nexperts = t->experts,
                                 .chosen = t->experts_per_token,
                                 .aux_loss_coef = t->router_aux_loss_coef};
}

struct nn_attention stack_attention(const struct model *m, const struct stack_block *blk)
{
    const struct traits *t = &m->traits;
    const int sinks = m->place[STACK_SINKS].weight;
    struct nn_attention attention = {
        .q = blk->q,
        .k = blk->k,
        .v = blk->v,
        .o = blk->o,
        .lse = blk->lse,
        .work = blk->work,
        .B = blk->B,
        .Tq = blk->Tq,
        .Tk = blk->Tk,
        .NH = t->nheads,
        .NKV = t->nkv_heads,
        .D = t->head_dim,
        .window = t->layers[blk->layer] & TRAITS_SLIDING ? t->window : 0,
        .dtype = blk->dtype,
        .scale = (float)(t->attn_scale > 0 ? t->attn_scale : 1.0 / sqrt(t->head_dim)),
        .softcap = (float)t->attn_softcap,
        .starts = blk->starts,
        .documents = blk->documents,
        .drop = stack_drop(blk->drop, blk->layer, STACK_ATTENTION, t->attn_drop),
        .drop_fast = m->drop_fast,
    };
    if (sinks >= 0) {
        attention.sinks = blk->param[sinks].w;
        attention.dsinks = blk->param[sinks].dw;
        attention.dsinks_beta = blk->param[sinks].dw_beta;
        attention.w_dtype = blk->param[sinks].w_dtype;
        attention.dw_dtype = blk->param[sinks].dw_dtype;
    }
    return attention;
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

void stack_set_packed(struct model *m)
{
    m->is_packed = true;
}

void stack_set_dropout(struct model *m, double p)
{
    m->traits.attn_drop = p;
    if (m->family->drops_stream)
        m->traits.embed_drop = m->traits.resid_drop = p;
}

void stack_set_fast_dropout(struct model *m)
{
    m->drop_fast = true;
}

int stack_most_documents(const struct model *m)
{
    return m->max_documents;
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

/* ---- the ends of a pass ---------------------------------------------------------------------- */

static float rounded(float x, enum fsdp_dtype dtype)
{
    return dtype == FSDP_BF16  ? fsdp_bf16_to_f32(fsdp_f32_to_bf16(x))
           : dtype == FSDP_F16 ? fsdp_f16_to_f32(fsdp_f32_to_f16(x))
                               : x;
}

float stack_embed_scale(const struct model *m, enum fsdp_dtype dtype)
{
    const float scale = (float)m->traits.embed_scale;
    return m->traits.rounds_embed_scale ? rounded(scale, dtype) : scale;
}

int stack_last_step(const struct model *m, struct fsdp_lane *lane, float *logits, size_t nelem,
                    struct fsdp_err *err)
{
    const struct traits *t = &m->traits;
    const struct nn_logits args = {.logits = logits,
                                   .nelem = nelem,
                                   .logit_scale = (float)t->logit_scale,
                                   .softcap = (float)t->logit_softcap};
    return t->logit_scale == 1 && t->logit_softcap == 0 ? FSDP_OK : m->nn->logits(lane, &args, err);
}

/* ---- tables of positions --------------------------------------------------------------------- */

int stack_tables_fill(const struct stack_tables *tables, const struct model *m, int T,
                      struct fsdp_lane *lane, struct fsdp_err *err)
{
    for (int i = 0; i < STACK_NTABLES; i++) {
        const bool queries = i == STACK_ROPE_QUERIES;
        const struct traits_rope *rope = &m->traits.rope[queries ? TRAITS_ROPE_FULL : i];
        const bool is_long = rope->long_inv_freq && T > rope->long_over;
        const struct nn_rope_table args = {.cos = tables->cos[i],
                                           .sin = tables->sin[i],
                                           .inv_freq =
                                               is_long ? rope->long_inv_freq : rope->inv_freq,
                                           .T = T,
                                           .half = rope->dim / 2,
                                           .scale = rope->scale,
                                           .growth = queries ? rope->growth : 0,
                                           .growth_span = rope->growth_span,
                                           .dtype = m->dtypes.buffer};
        if (tables->cos[i])
            FSDP_TRY(m->nn->rope_table(lane, &args, err));
    }
    return FSDP_OK;
}

bool stack_dimensions(const struct model *m, struct decoder *out)
{
    const struct traits *t = &m->traits;

    *out = (struct decoder){.dim = t->dim,
                            .layers = t->nlayers,
                            .heads = t->nheads,
                            .kv_heads = t->nkv_heads,
                            .ffn = t->ffn,
                            .vocab = t->vocab,
                            .gated = t->gated,
                            .tied = t->tied};
    return !t->experts;
}
