/* SPDX-License-Identifier: Apache-2.0 */
/* Which modules' activations take turns in places on the device (fsdp_opts.offload_activations). */
#include "arena.h"

/* Between forward and backward, itself. */
static bool keeps_something(const struct fsdp *f, int module)
{
    const struct fsdp_act_bytes *act = &f->tree->modules[module].act;
    const int kind = f->plan.checkpointing[module];

    return act->saved || (kind != FSDP_AC_FULL && act->recomputed) ||
           (kind == FSDP_AC_NONE && act->cheap);
}

/* The module directly inside the root that it is, or is in; 0 for the root. */
static int outermost(const struct fsdp *f, int module)
{
    while (f->tree->modules[module].parent > 0)
        module = f->tree->modules[module].parent;
    return module;
}

int acts_plan(struct fsdp *f, struct fsdp_err *err)
{
    const int nmodules = f->tree->nmodules;

    if (!f->opts.offload_activations)
        return FSDP_OK;
    if (f->plan.recompute[0])
        return fsdp_err_set_blame(
            err, FSDP_EUNSUPPORTED, "offload_activations",
            "offload_activations: the whole model is recomputed at once, so that no "
            "module's activations can leave the device: name the modules that activation "
            "checkpointing covers (fsdp.checkpoint_modules), or set "
            "fsdp.offload_activations false");
    f->plan.acts = fsdp_alloc((size_t)nmodules, sizeof *f->plan.acts, "modules", err);
    bool *keeps = fsdp_alloc((size_t)nmodules, sizeof *keeps, "modules", err);
    for (int m = 1; keeps && m < nmodules; m++)
        keeps[outermost(f, m)] |= keeps_something(f, m);
    if (f->plan.acts && keeps)
        f->plan.nact_slots = sched_place_acts(f->plan.acts, keeps, nmodules, f->offload.nslots);
    fsdp_free(keeps);
    return f->plan.acts && keeps ? FSDP_OK : FSDP_ENOMEM;
}

bool acts_in_place(const struct fsdp *f, int module)
{
    return f->plan.acts && f->plan.acts[outermost(f, module)].slot >= 0;
}
