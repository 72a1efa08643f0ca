/* SPDX-License-Identifier: Apache-2.0 */
/* Which linear maps have products in 8 bits. */
#include "stack.h"

/* Which experts a row goes to is decided by small differences, and the products are small. */
static bool is_router(const struct model *m, int weight)
{
    return weight == m->place[STACK_ROUTER].weight;
}

static int refuse_target(const struct model *m, const char *target, struct fsdp_err *err)
{
    return fsdp_err_set_blame(
        err, FSDP_EINVAL, "linear_targets",
        "'%s' is no linear map of the layers of %s whose products can be in 8 bits; "
        "all-linear takes all of them, without experts and their router%s",
        target, m->family->type,
        m->traits.experts ? "; experts takes the experts, and experts.down_proj one of "
                            "their matrices"
                          : "");
}

/* Experts have one scale for an operand of all of them. */
static int check_scales(const struct model_f8 *f8, const char *target, struct fsdp_err *err)
{
    if (f8->scale == NN_F8_TENSOR)
        return FSDP_OK;
    return fsdp_err_set_blame(
        err, FSDP_EUNSUPPORTED, "linear_scales",
        "products of experts (model.linear_targets has '%s') have scales of kind tensor "
        "alone: set it to tensor, or leave experts out",
        target);
}

/* What a target names; *fits: anything. */
static int set_target(struct model *m, const struct model_f8 *f8, const char *target, bool *fits,
                      struct fsdp_err *err)
{
    const struct nn_f8 own = {.dtype = f8->dtype, .grad_dtype = f8->grad_dtype, .scale = f8->scale};

    *fits = false;
    for (int w = 0; w < m->nbase; w++) {
        if (!m->weight[w].cols || is_router(m, w) || !stack_is_target(m, target, w))
            continue;
        m->weight[w].f8 = own;
        m->weight[w].f8_gathered = f8->gathered;
        *fits = true;
    }
    for (int slot = 0; slot < STACK_NEXPERTS; slot++) {
        const struct stack_place *place = &m->expert_place[slot];
        if (!place->nout || !stack_is_expert_target(m, target, (enum stack_expert)slot))
            continue;
        FSDP_TRY(check_scales(f8, target, err));
        m->expert_weight[place->weight].f8 = own;
        m->expert_weight[place->weight].f8_gathered = f8->gathered;
        *fits = true;
    }
    return FSDP_OK;
}

int stack_set_f8(struct model *m, const struct model_f8 *f8, struct fsdp_err *err)
{
    if (f8->dtype && !f8->ntargets)
        return fsdp_err_set_blame(
            err, FSDP_EINVAL, "linear_targets",
            "the list is empty: name linear maps of the layers, give all-linear, or set "
            "model.linear_dtype auto");
    for (int i = 0; i < f8->ntargets && f8->dtype; i++) {
        bool fits;
        FSDP_TRY(set_target(m, f8, f8->targets[i], &fits, err));
        if (!fits)
            return refuse_target(m, f8->targets[i], err);
    }
    return FSDP_OK;
}

/* Of a weight with DoRA's magnitudes the lengths of its rows are taken, too. */
static bool has_magnitudes(const struct model *m, int weight)
{
    bool any = false;
    for (int slot = 0; slot < STACK_NSLOTS; slot++)
        any |= m->place[slot].weight == weight && stack_has_magnitudes(m, (enum stack_slot)slot);
    return any;
}

/* Codes that were gathered have one scale a tensor. */
static bool is_of_tensors(const struct nn_f8 *f8)
{
    return f8->dtype == FSDP_F8_E4M3 && f8->scale == NN_F8_TENSOR;
}

static bool is_in_group(const struct model *m, enum stack_slot slot)
{
    const bool gated = m->traits.gated && (slot == STACK_GATE || slot == STACK_UP);
    return gated || slot == STACK_Q || slot == STACK_K || slot == STACK_V;
}

bool stack_shares_scale(const struct model *m, enum stack_slot slot)
{
    return is_in_group(m, slot) && is_of_tensors(&m->weight[m->place[slot].weight].f8) &&
           !stack_has_magnitudes(m, slot);
}

int stack_scale_group(const struct model *m, int weight)
{
    for (int slot = 0; slot < STACK_NSLOTS; slot++)
        if (m->place[slot].weight == weight && is_in_group(m, (enum stack_slot)slot) &&
            stack_takes_codes(m, weight))
            return slot == STACK_GATE || slot == STACK_UP ? 2 : 1;
    return 0;
}

bool stack_takes_codes(const struct model *m, int weight)
{
    return is_of_tensors(&m->weight[weight].f8) && !has_magnitudes(m, weight);
}

bool stack_experts_take_codes(const struct model *m, int weight)
{
    return is_of_tensors(&m->expert_weight[weight].f8);
}
