/* SPDX-License-Identifier: Apache-2.0 */
/* What the decoder's modules compute, for the clock. */
#include <math.h>

#include "stack.h"
#include "nn/described.h"
#include "plan/flops.h"
#include "plan/work.h"

static int add_all(struct fsdp_module_tree *tree, int module, const struct work_list *list,
                   struct fsdp_err *err)
{
    for (int i = 0; i < list->nitems; i++)
        FSDP_TRY(fsdp_module_add_work(tree, module, &list->item[i], err));
    return FSDP_OK;
}

/* GPUs multiply codes where they have such scales and all dimensions are multiples of 16, or of a
 * block, and their values in 16 bits elsewhere. */
static bool takes_codes(const struct model *m, const struct stack_weight *x, double rows)
{
    const int of = x->f8.scale == NN_F8_BLOCK ? NN_F8_BLOCK_NELEM : 16;
    return x->f8.dtype && nn_cuda_takes_scales(m->nn, x->f8.scale) && fmod(rows, of) == 0 &&
           x->rows % of == 0 && x->cols % of == 0;
}

static bool is_trained(const struct model *m, int w)
{
    return w >= m->nbase || stack_is_trained(m, m->weight[w].name);
}

/* The slots that read what this matrix reads, and the first that is its own; none: equal. */
struct readers {
    int first, own;
};
static struct readers readers_of(const struct model *m, int w)
{
    static const enum stack_slot ends[][2] = {{STACK_Q, STACK_V}, {STACK_GATE, STACK_UP}};
    for (int i = 0; i < 2; i++)
        for (int slot = (int)ends[i][0]; slot <= (int)ends[i][1]; slot++)
            if (m->place[slot].weight == w)
                return (struct readers){(int)ends[i][0], slot};
    return (struct readers){0, 0};
}

/* Is x there in the form that products with this matrix take, from one that reads it before? Where
 * an adapter has magnitudes, maps round on their own. */
static bool x_is_made(const struct model *m, int w, double rows, bool backward)
{
    const struct readers r = readers_of(m, w);
    const bool codes = takes_codes(m, &m->weight[w], rows);

    for (int slot = r.first; slot < r.own && !m->lora.dora; slot++) {
        const int other = m->place[slot].weight;
        if (other >= 0 && m->weight[other].f8.dtype &&
            takes_codes(m, &m->weight[other], rows) == codes && (!backward || is_trained(m, other)))
            return true;
    }
    return false;
}

/* The products with a part's matrices, adapters among them. */
static int add_products(const struct model *m, struct fsdp_module_tree *tree, int module,
                        enum stack_part part, double rows, struct fsdp_err *err)
{
    for (int w = 0; w < m->nweights; w++) {
        const struct stack_weight *x = &m->weight[w];
        const double used =
            x->by_expert ? (double)m->traits.experts_per_token / m->traits.experts : 1;
        struct work_list list = {.nitems = 0};
        if (x->part != part || x->cols < 1)
            continue;
        const struct work_linear linear = {
            .rows = rows * used,
            .nin = x->cols,
            .nout = x->rows,
            .type = takes_codes(m, x, rows * used) ? x->f8.dtype : m->dtypes.activation,
            .trained = is_trained(m, w)};
        const struct work_codes codes = {.from = m->dtypes.activation,
                                         .x_is_made = x_is_made(m, w, linear.rows, false),
                                         .x_is_made_backward = x_is_made(m, w, linear.rows, true),
                                         .w_is_codes = x->f8_gathered && stack_takes_codes(m, w)};
        work_add_linear(&list, &linear, WORK_IN_LAYER);
        if (x->f8.dtype)
            work_add_codes(&list, &linear, &codes, WORK_IN_LAYER);
        FSDP_TRY(add_all(tree, module, &list, err));
    }
    return FSDP_OK;
}

static int add_attention(const struct model *m, struct fsdp_module_tree *tree, int module,
                         int layer, int B, int T, struct fsdp_err *err)
{
    const struct traits *t = &m->traits;
    const enum fsdp_dtype type = m->dtypes.activation;
    const int64_t window = t->layers[layer] & TRAITS_SLIDING ? t->window : 0;
    const double width = (double)(t->nheads + t->nkv_heads) * t->head_dim;
    const double elem = (double)fsdp_dtype_nbytes(type);
    const struct nn_attention shape = {.B = B,
                                       .Tq = T,
                                       .Tk = T,
                                       .NH = t->nheads,
                                       .NKV = t->nkv_heads,
                                       .D = t->head_dim,
                                       .window = (int)window,
                                       .softcap = (float)t->attn_softcap,
                                       .sinks = m->place[STACK_SINKS].weight >= 0 ? m : NULL,
                                       .documents = m->is_packed ? B : 0,
                                       .dtype = type,
                                       .drop.p = (float)t->attn_drop,
                                       .drop_fast = m->drop_fast};
    struct work_list list = {.nitems = 0};
    const double rows = (double)B * T;
    double nbytes = work_branch_nbytes(rows, t->dim, type);

    /* Slow kernels take the time of more rows. */
    work_add_attention(&list,
                       &(struct work_attention){.rows = rows * nn_cuda_slowness(m->nn, &shape),
                                                .keys = flops_keys(T, window, false),
                                                .heads = t->nheads,
                                                .head_dim = t->head_dim,
                                                .type = type});
    if (t->qk_norm != TRAITS_QK_NONE)
        nbytes += 2 * rows * width * elem;
    if (t->post_norm)
        nbytes += 2 * rows * t->dim * elem;
    work_add_pass(&list,
                  &(struct work_pass){FSDP_PASS_BRANCH, nbytes, PLAN_BACKWARD_BYTES, type, false},
                  WORK_IN_LAYER);
    return add_all(tree, module, &list, err);
}

/* Does the device make the activation in the product before it, and its slope in the product behind
 * it (nn_ops.activated_*)? Each is a pass over memory less. */
static bool products_activate(const struct model *m)
{
    const struct traits *t = &m->traits;
    return m->nn->activated_forward && m->family->names->fusion == TRAITS_TRANSPOSED && !t->gated &&
           t->act == NN_GELU_TANH && m->dtypes.activation != FSDP_F32 && !m->lora.r &&
           !m->weight[m->place[STACK_UP].weight].f8.dtype;
}

/* The products with the experts' matrices of a slot, whose rows are those of the tokens that chose
 * them. Values of codes are multiplied where the device has no products of codes for them. */
static void add_expert_products(struct work_list *list, const struct model *m,
                                enum stack_expert slot, double places)
{
    const struct stack_place *place = &m->expert_place[slot];
    const struct stack_expert_weight *weight = &m->expert_weight[place->weight];
    const struct nn_f8 *f8 = &weight->f8;
    const int E = m->traits.experts;
    const bool fits = place->nin % 16 == 0 && place->nout % 16 == 0;
    const bool codes = f8->dtype && fits && nn_cuda_experts_take_codes(m->nn, places, E);
    const struct work_linear linear = {.rows = places / E,
                                       .nin = place->nin,
                                       .nout = place->nout,
                                       .type = codes ? f8->dtype : m->dtypes.activation,
                                       .trained = !m->lora.r,
                                       .times = E};

    if (!place->nout)
        return;
    work_add_linear(list, &linear, WORK_IN_LAYER);
    if (f8->dtype)
        work_add_codes(
            list, &linear,
            &(struct work_codes){.from = m->dtypes.activation,
                                 .w_is_codes = weight->f8_gathered &&
                                               stack_experts_take_codes(m, place->weight)},
            WORK_IN_LAYER);
}

static int add_mlp(const struct model *m, struct fsdp_module_tree *tree, int module, double rows,
                   struct fsdp_err *err)
{
    const struct traits *t = &m->traits;
    const enum fsdp_dtype type = m->dtypes.activation;
    const double elem = (double)fsdp_dtype_nbytes(type), chosen = rows * t->experts_per_token;
    struct work_list list = {.nitems = 0};
    double nbytes = work_branch_nbytes(rows, t->dim, type);
    const double passes = products_activate(m) ? 0.75 : 1; /* three of four */
    double act_nbytes = passes * work_activation_nbytes(rows, t->ffn, t->gated, type);

    if (t->post_norm)
        nbytes += 2 * rows * t->dim * elem;
    if (t->experts) {
        for (int slot = 0; slot < STACK_NEXPERTS; slot++)
            add_expert_products(&list, m, (enum stack_expert)slot, chosen);
        /* Rows are copied to their experts and added from them; the router's own are small. */
        nbytes += 4 * chosen * t->dim * elem;
        act_nbytes += work_activation_nbytes(chosen, t->expert_ffn, t->gated, type);
    }
    work_add_pass(&list,
                  &(struct work_pass){FSDP_PASS_BRANCH, nbytes, PLAN_BACKWARD_BYTES, type, false},
                  WORK_IN_LAYER);
    work_add_pass(
        &list,
        &(struct work_pass){FSDP_PASS_ACTIVATION, act_nbytes, PLAN_BACKWARD_BYTES, type, false},
        WORK_IN_LAYER);
    return add_all(tree, module, &list, err);
}

int stack_layer_work(const struct model *m, struct fsdp_module_tree *tree, int layer, int B, int T,
                     struct fsdp_err *err)
{
    const double rows = (double)B * T;
    const int *module = m->part[layer];

    for (int part = 0; part < STACK_NPARTS; part++)
        FSDP_TRY(add_products(m, tree, module[part], (enum stack_part)part, rows, err));
    FSDP_TRY(add_attention(m, tree, module[STACK_PART_ATTENTION], layer, B, T, err));
    return add_mlp(m, tree, module[STACK_PART_MLP], rows, err);
}

int stack_ends_work(const struct model *m, struct fsdp_module_tree *tree, int B, int T,
                    struct fsdp_err *err)
{
    const struct traits *t = &m->traits;
    const double rows = (double)B * T, elem = (double)fsdp_dtype_nbytes(m->dtypes.activation);
    struct work_list embed = {.nitems = 0}, head = {.nitems = 0};
    char name[STACK_NAME_NBYTES];

    snprintf(name, sizeof name, "%s.weight", m->family->names->head);
    work_add_bytes(&embed, 2 * rows * t->dim * elem, PLAN_BACKWARD_BYTES, false, WORK_IN_LAYER);
    FSDP_TRY(add_all(tree, m->embed, &embed, err));
    work_add_linear(&head,
                    &(struct work_linear){.rows = rows,
                                          .nin = t->dim,
                                          .nout = t->vocab,
                                          .type = m->dtypes.activation,
                                          .trained = stack_is_trained(m, name)},
                    WORK_IN_HEAD);
    work_add_pass(&head,
                  &(struct work_pass){FSDP_PASS_LOSS,
                                      work_loss_nbytes(rows, t->vocab, m->dtypes.output), 0,
                                      m->dtypes.output, false},
                  WORK_IN_HEAD);
    return add_all(tree, m->head, &head, err);
}
