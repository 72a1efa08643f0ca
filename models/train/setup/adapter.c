/* SPDX-License-Identifier: Apache-2.0 */
#include "adapter.h"

static int texts_of(const char ***out, const struct fsdp_tunable_list *list, struct fsdp_err *err)
{
    if (!(*out = fsdp_alloc((size_t)list->nelem + 1, sizeof **out, "adapters", err)))
        return FSDP_ENOMEM;
    for (int i = 0; i < list->nelem; i++)
        (*out)[i] = fsdp_tunable_list_at(list, i);
    return FSDP_OK;
}

static int from_settings(struct train_adapter *a, const struct config *c, struct fsdp_err *err)
{
    FSDP_TRY(texts_of(&a->targets, &c->lora.targets, err));
    FSDP_TRY(texts_of(&a->modules, &c->lora.modules_to_save, err));
    a->rslora = c->lora.rslora;
    a->alpha = c->lora.alpha > 0 ? c->lora.alpha : (double)c->lora.r;
    a->lora.r = (int)c->lora.r;
    a->lora.targets = a->targets;
    a->lora.ntargets = c->lora.targets.nelem;
    a->lora.modules_to_save = a->modules;
    a->lora.nmodules = c->lora.modules_to_save.nelem;
    return FSDP_OK;
}

static int from_files(struct train_adapter *a, const struct config *c, struct fsdp_err *err)
{
    FSDP_TRY(ckpt_adapter_open(&a->start, c->lora.path, err));
    const struct ckpt_adapter_spec *spec = ckpt_adapter_spec(a->start);
    if (c->lora.r && c->lora.r != spec->r)
        return fsdp_err_set(err, FSDP_EINVAL, "%s has adapters of rank %d, and lora.r is %d",
                            c->lora.path, spec->r, (int)c->lora.r);
    a->rslora = spec->rslora;
    a->alpha = spec->alpha;
    a->lora.r = spec->r;
    a->lora.targets = spec->targets;
    a->lora.ntargets = spec->ntargets;
    a->lora.modules_to_save = spec->modules_to_save;
    a->lora.nmodules = spec->nmodules;
    return FSDP_OK;
}

int train_adapter_open(struct train_adapter *a, const struct config *c, struct fsdp_err *err)
{
    int rc = FSDP_OK;

    if (c->lora.path[0])
        rc = fsdp_err_blame(err, from_files(a, c, err), "path");
    else if (c->lora.r)
        rc = from_settings(a, c, err);
    if (rc || !a->lora.r)
        return rc;
    const struct ckpt_adapter_spec spec = {.r = a->lora.r, .alpha = a->alpha, .rslora = a->rslora};
    a->lora.scale = ckpt_adapter_scale(&spec);
    a->lora.dropout = c->lora.dropout;
    return FSDP_OK;
}

void train_adapter_close(struct train_adapter *a)
{
    ckpt_adapter_close(a->start);
    fsdp_free(a->targets);
    fsdp_free(a->modules);
    *a = (struct train_adapter){0};
}
