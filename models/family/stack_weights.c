/* SPDX-License-Identifier: Apache-2.0 */
/* The weights of a layer, in their order in the flat buffer, from its traits and the family's
 * names. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "stack.h"

static bool transposed(const struct model *m)
{
    return m->family->names->fusion == TRAITS_TRANSPOSED;
}

/* Which module of the layer a weight of this name is in. */
static enum stack_part part_of(const struct model *m, const char *name)
{
    const struct traits_names *names = m->family->names;
    const char *const module[STACK_NPARTS] = {
        [STACK_PART_ATTENTION] = names->attention, [STACK_PART_MLP] = names->mlp};
    for (int part = STACK_PART_LAYER + 1; part < STACK_NPARTS; part++) {
        const size_t n = strlen(module[part]);
        if (!strncmp(name, module[part], n) && name[n] == '.')
            return (enum stack_part)part;
    }
    return STACK_PART_LAYER;
}

static int add(struct model *m, const char *stem, const char *suffix, int rows, int cols,
               struct fsdp_init init)
{
    struct stack_weight *w = &m->weight[m->nweights];
    *w = (struct stack_weight){.part = part_of(m, stem), .rows = rows, .cols = cols, .init = init};
    snprintf(w->name, sizeof w->name, "%s%s", stem, suffix);
    return m->nweights++;
}

static void add_norm(struct model *m, enum stack_slot slot, const char *stem, int dim)
{
    const struct traits *t = &m->traits;
    const struct fsdp_init ones = {FSDP_INIT_ONES, 0}, zeros = {FSDP_INIT_ZEROS, 0};
    struct stack_place *place = &m->place[slot];
    place->nout = dim;
    place->weight = add(m, stem, ".weight", dim, 0, t->norm_offset == 1 ? zeros : ones);
    if (t->norm == TRAITS_LAYER)
        place->bias = add(m, stem, ".bias", dim, 0, zeros);
}

struct matrix {
    const char *stem;
    int nin, nout;
    bool bias, last; /* last: it ends on the residual stream */
};

/* A matrix, which is all of this slot. */
static void add_matrix(struct model *m, enum stack_slot slot, struct matrix x)
{
    const struct traits *t = &m->traits;
    const double std = x.last && t->small_last ? t->init_std / sqrt(2.0 * t->nlayers) : t->init_std;
    const struct fsdp_init normal = {FSDP_INIT_NORMAL, (float)std}, zeros = {FSDP_INIT_ZEROS, 0};
    struct stack_place *place = &m->place[slot];
    *place = (struct stack_place){.bias = -1, .nin = x.nin, .nout = x.nout};
    place->weight = transposed(m) ? add(m, x.stem, ".weight", x.nin, x.nout, normal)
                                  : add(m, x.stem, ".weight", x.nout, x.nin, normal);
    if (x.bias)
        place->bias = add(m, x.stem, ".bias", x.nout, 0, zeros);
}

/* Outputs [first, first + nout) of another slot's matrix. */
static void share(struct model *m, enum stack_slot slot, enum stack_slot of, int first, int nout)
{
    m->place[slot] = m->place[of];
    m->place[slot].first = first;
    m->place[slot].nout = nout;
}

static void add_qkv(struct model *m)
{
    const struct traits *t = &m->traits;
    const struct traits_names *n = m->family->names;
    const int C = t->dim, NHD = t->nheads * t->head_dim, KVD = t->nkv_heads * t->head_dim;

    if (n->fusion == TRAITS_APART) {
        add_matrix(m, STACK_Q, (struct matrix){n->q, C, NHD, t->qkv_bias, false});
        add_matrix(m, STACK_K, (struct matrix){n->k, C, KVD, t->qkv_bias, false});
        add_matrix(m, STACK_V, (struct matrix){n->v, C, KVD, t->qkv_bias, false});
        return;
    }
    add_matrix(m, STACK_QKV, (struct matrix){n->qkv, C, NHD + 2 * KVD, t->qkv_bias, false});
    if (n->fusion == TRAITS_FUSED_HEADS)
        return;
    share(m, STACK_Q, STACK_QKV, 0, NHD);
    share(m, STACK_K, STACK_QKV, NHD, KVD);
    share(m, STACK_V, STACK_QKV, NHD + KVD, KVD);
}

static void add_attention(struct model *m)
{
    const struct traits *t = &m->traits;
    const struct traits_names *n = m->family->names;
    const int D = t->head_dim, NHD = t->nheads * D;
    const bool whole = t->qk_norm == TRAITS_QK_WHOLE;

    add_qkv(m);
    if (t->qk_norm != TRAITS_QK_NONE) {
        add_norm(m, STACK_Q_NORM, n->q_norm, whole ? NHD : D);
        add_norm(m, STACK_K_NORM, n->k_norm, whole ? t->nkv_heads * D : D);
    }
    if (t->sinks)
        m->place[STACK_SINKS].weight =
            add(m, n->sinks, "", t->nheads, 0,
                (struct fsdp_init){FSDP_INIT_NORMAL, (float)t->init_std});
    add_matrix(m, STACK_O, (struct matrix){n->o, NHD, t->dim, t->o_bias, true});
}

static void add_mlp(struct model *m)
{
    const struct traits *t = &m->traits;
    const struct traits_names *n = m->family->names;
    const int C = t->dim, F = t->ffn;

    if (n->gate_up) {
        add_matrix(m, STACK_GATE, (struct matrix){n->gate_up, C, 2 * F, t->mlp_bias, false});
        share(m, STACK_UP, STACK_GATE, F, F);
        share(m, STACK_GATE, STACK_GATE, 0, F);
    } else {
        if (t->gated)
            add_matrix(m, STACK_GATE, (struct matrix){n->gate, C, F, t->mlp_bias, false});
        add_matrix(m, STACK_UP, (struct matrix){n->up, C, F, t->mlp_bias, false});
    }
    add_matrix(m, STACK_DOWN, (struct matrix){n->down, F, C, t->mlp_bias, true});
}

/* Names that have %d are each expert's own. */
static int add_expert_weight(struct model *m, const char *stem, int rows, int cols,
                             struct fsdp_init init)
{
    struct stack_expert_weight *w = &m->expert_weight[m->nexpert_weights];

    *w = (struct stack_expert_weight){
        .apart = strstr(stem, "%d"), .rows = rows, .cols = cols, .init = init};
    snprintf(w->name, sizeof w->name, "%s%s", stem, w->apart ? ".weight" : "");
    return m->nexpert_weights++;
}

/* A matrix of each expert, which is all of this slot. */
static void add_expert(struct model *m, enum stack_expert slot, const char *stem, int nout, int nin)
{
    const struct fsdp_init normal = {FSDP_INIT_NORMAL, (float)m->traits.init_std};
    m->expert_place[slot] =
        (struct stack_place){.weight = add_expert_weight(m, stem, nout, nin, normal),
                             .bias = -1,
                             .nin = nin,
                             .nout = nout};
}

/* The same as (in, out), with a bias. */
static void add_biased_expert(struct model *m, enum stack_expert slot, const char *stem,
                              const char *bias, int nout, int nin)
{
    const struct fsdp_init normal = {FSDP_INIT_NORMAL, (float)m->traits.init_std};
    const struct fsdp_init zeros = {FSDP_INIT_ZEROS, 0};
    m->expert_place[slot] =
        (struct stack_place){.weight = add_expert_weight(m, stem, nin, nout, normal),
                             .bias = add_expert_weight(m, bias, nout, 0, zeros),
                             .nin = nin,
                             .nout = nout};
}

static void add_experts(struct model *m)
{
    const struct traits *t = &m->traits;
    const struct traits_names *n = m->family->names;
    const int C = t->dim, F = t->expert_ffn;
    struct stack_place *place = m->expert_place;
    const bool biased = n->experts_gate_up_bias;

    add_matrix(m, STACK_ROUTER, (struct matrix){n->router, C, t->experts, biased, false});
    if (biased) {
        m->weight[m->place[STACK_ROUTER].bias].init = m->weight[m->place[STACK_ROUTER].weight].init;
        add_biased_expert(m, STACK_EXPERT_GATE, n->experts_gate_up, n->experts_gate_up_bias, 2 * F,
                          C);
        add_biased_expert(m, STACK_EXPERT_DOWN, n->experts_down, n->experts_down_bias, C, F);
        return;
    }
    if (!n->experts_gate_up) {
        add_expert(m, STACK_EXPERT_GATE, n->expert_gate, F, C);
        add_expert(m, STACK_EXPERT_UP, n->expert_up, F, C);
        add_expert(m, STACK_EXPERT_DOWN, n->expert_down, C, F);
        return;
    }
    add_expert(m, STACK_EXPERT_GATE, n->experts_gate_up, 2 * F, C);
    place[STACK_EXPERT_GATE].nout = F;
    place[STACK_EXPERT_UP] = place[STACK_EXPERT_GATE];
    place[STACK_EXPERT_UP].first = F;
    add_expert(m, STACK_EXPERT_DOWN, n->experts_down, C, F);
}

void stack_list_weights(struct model *m)
{
    const struct traits *t = &m->traits;
    const struct traits_names *n = m->family->names;

    m->nbase = m->nweights = m->nexpert_weights = 0;
    for (int slot = 0; slot < STACK_NSLOTS; slot++)
        m->place[slot] = (struct stack_place){.weight = -1, .bias = -1};
    if (t->pre_norm)
        add_norm(m, STACK_NORM1, n->norm1, t->dim);
    add_attention(m);
    if (t->post_norm)
        add_norm(m, STACK_POST1, n->post1, t->dim);
    if (t->pre_norm)
        add_norm(m, STACK_NORM2, n->norm2, t->dim);
    if (t->ffn)
        add_mlp(m);
    if (t->experts)
        add_experts(m);
    if (t->post_norm)
        add_norm(m, STACK_POST2, n->post2, t->dim);
    m->nbase = m->nweights;
}
