/* SPDX-License-Identifier: Apache-2.0 */
/* Entering and leaving modules. */
#include "cursor.h"
#include "view.h"

static int check_module(const struct fsdp_module_tree *tree, int module, struct fsdp_err *err)
{
    if (module >= 0 && module < tree->nmodules)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL, "there is no module %d", module);
}

int fsdp_module_enter(struct fsdp *f, int module, enum fsdp_phase phase, struct fsdp_view *out,
                      struct fsdp_err *err)
{
    FSDP_TRY(check_module(f->tree, module, err));
    FSDP_TRY(exec_drive(f, SCHED_ENTER, module, phase, 0, err));
    int unit = f->units.unit_of_module[module];
    int micro = f->cursor.program->sched.ops[f->cursor.index - 1].micro;
    if (f->units.units[unit].module == module)
        FSDP_TRY(view_show(f, unit, phase, micro, err));
    *out = (struct fsdp_view){
        .lane = f->lanes[SCHED_COMPUTE],
        .param_dtype = f->units.units[unit].param_dtype,
        .grad_dtype = f->units.units[unit].reduce_dtype,
        .param = f->view.param,
        .amax = f->view.amax,
        .grad = f->view.grad,
        .loss_scale = &f->scalars.scale->factor,
        .saved = f->mem.modules[module].saved,
        .recomputed = f->mem.modules[module].recomputed,
        .cheap = f->mem.modules[module].cheap,
        .work = f->mem.modules[module].work,
        .fsdp = f,
    };
    return FSDP_OK;
}

int fsdp_module_leave(struct fsdp *f, int module, enum fsdp_phase phase, struct fsdp_err *err)
{
    FSDP_TRY(check_module(f->tree, module, err));
    FSDP_TRY(exec_drive(f, SCHED_LEAVE, module, phase, 0, err));
    int unit = f->units.unit_of_module[module];
    if (f->units.units[unit].module == module)
        view_hide(f, unit, phase);
    return FSDP_OK;
}
