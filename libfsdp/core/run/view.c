/* SPDX-License-Identifier: Apache-2.0 */
/* Views: a unit's parameters and gradients appear when its root module is entered, and go when it
 * is left. */
#include "view.h"
#include "core/state/gather.h"

static void show_param(struct fsdp *f, int flat_index, char *full)
{
    const struct flat *flat = &f->units.flats[flat_index];
    for (int i = 0; i < flat->ntensors; i++) {
        const bool codes = full && flat->codes[i];
        f->view.param[flat->params[i]] = full ? full + flat->seen[i] : NULL;
        f->view.amax[flat->params[i]] = codes ? &f->encoding.amax[flat->amax[i]] : NULL;
    }
}

static void show_grad(struct fsdp *f, int flat_index, char *full)
{
    const struct flat *flat = &f->units.flats[flat_index];
    size_t elem = fsdp_dtype_nbytes(flat->reduce_dtype);
    for (int i = 0; i < flat->ntensors; i++)
        f->view.grad[flat->params[i]] = full ? full + flat->cut.start[i] * elem : NULL;
}

/* Where the flat's parameters are now: its latest gather's slot, the shard where it is whole, or
 * where all shards lie side by side. What is carried is nowhere. */
static char *gathered(struct fsdp *f, int flat)
{
    const struct program *p = f->cursor.program;
    if (f->units.flats[flat].carried)
        return NULL;
    if (!sched_is_gathered(&p->input, flat))
        return f->flats[flat].param;
    int slot = sched_slot_of(&p->sched, flat, f->cursor.index);
    if (slot >= 0 && f->plan.in_place)
        return f->flats[flat].side_by_side;
    return slot < 0 ? NULL : f->mem.param_slots[p->input.program][slot];
}

/* Where the flat's gradients are written in this micro-step. */
static char *unsharded_grad(struct fsdp *f, int flat, int micro)
{
    int slot = f->cursor.program->sched.grad_slot[micro * f->units.nflats + flat];
    return slot >= 0 ? f->mem.grad_slots[slot] : (char *)f->flats[flat].grad;
}

/* Do the flat's gradients begin anew in this micro-step? Those that are reduced in every one do;
 * others accumulate in place. */
static bool begins_anew(const struct fsdp *f, int flat, int micro)
{
    int slot = f->cursor.program->sched.grad_slot[micro * f->units.nflats + flat];
    return micro == 0 || (slot >= 0 && !f->cursor.program->input.reduce_last);
}

/* The model writes gradients, not the padding between them; padding must add nothing to sums. */
static int zero_padding(struct fsdp *f, int flat_index, char *grad, struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[flat_index];
    size_t elem = fsdp_dtype_nbytes(flat->reduce_dtype);
    uint64_t end = 0;
    for (int i = 0; i <= flat->ntensors; i++) {
        uint64_t begin = i < flat->ntensors ? flat->cut.start[i] : flat_full_nelem(flat);
        FSDP_TRY(fsdp_zero(f->lanes[SCHED_COMPUTE], grad + end * elem, (begin - end) * elem, err));
        if (i < flat->ntensors)
            end = begin + fsdp_tensor_nelem(&flat->tensors[i]);
    }
    return FSDP_OK;
}

int view_show(struct fsdp *f, int unit, enum fsdp_phase phase, int micro, struct fsdp_err *err)
{
    for (int k = 0; k < UNIT_NFLATS; k++) {
        int flat = f->units.units[unit].flats[k];
        if (flat < 0)
            continue;
        show_param(f, flat, gathered(f, flat));
        if (phase != FSDP_BACKWARD || !f->units.flats[flat].trainable)
            continue;
        char *grad = unsharded_grad(f, flat, micro);
        show_grad(f, flat, grad);
        if (!begins_anew(f, flat, micro))
            continue;
        for (int i = 0; i < f->units.flats[flat].ntensors; i++)
            f->view.grad_written[f->units.flats[flat].params[i]] = false;
        FSDP_TRY(zero_padding(f, flat, grad, err));
    }
    return FSDP_OK;
}

void view_hide(struct fsdp *f, int unit, enum fsdp_phase phase)
{
    for (int k = 0; k < UNIT_NFLATS; k++) {
        int flat = f->units.units[unit].flats[k];
        if (flat < 0)
            continue;
        show_param(f, flat, NULL);
        if (phase == FSDP_BACKWARD)
            show_grad(f, flat, NULL);
    }
}

float fsdp_view_grad_beta(const struct fsdp_view *view, int param)
{
    struct fsdp *f = view->fsdp;
    bool written = f->view.grad_written[param];
    if (!view->grad[param])
        return 0;
    f->view.grad_written[param] = true;
    return written ? 1.0f : 0.0f;
}

int view_complete(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    if (op->kind != SCHED_LEAVE || op->phase != FSDP_BACKWARD)
        return FSDP_OK;
    const struct unit *unit = &f->units.units[f->units.unit_of_module[op->module]];
    if (unit->module != op->module || unit->flats[UNIT_TRAINABLE] < 0)
        return FSDP_OK;
    const struct flat *flat = &f->units.flats[unit->flats[UNIT_TRAINABLE]];
    size_t elem = fsdp_dtype_nbytes(flat->reduce_dtype);
    for (int i = 0; i < flat->ntensors; i++) {
        int param = flat->params[i];
        if (f->view.grad_written[param])
            continue;
        FSDP_TRY(fsdp_zero(f->lanes[SCHED_COMPUTE], f->view.grad[param],
                           fsdp_tensor_nelem(&flat->tensors[i]) * elem, err));
        f->view.grad_written[param] = true;
    }
    return FSDP_OK;
}
