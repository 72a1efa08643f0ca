/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "ckpt/ckpt.h"
#include "carried.h"

static int list_others(struct train_carried *x, const char *prefix, struct fsdp_err *err)
{
    const int nall = ckpt_ntensors(x->ckpt);

    if (!(x->tensors = fsdp_alloc((size_t)nall, sizeof *x->tensors, "carried tensors", err)))
        return FSDP_ENOMEM;
    for (int i = 0; i < nall; i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(x->ckpt, i);
        if (t->kind == FSDP_SLICE_MODEL && strncmp(t->tensor.name, prefix, strlen(prefix)) != 0)
            x->tensors[x->ntensors++] = t->tensor;
    }
    return FSDP_OK;
}

int train_carried_open(struct train_carried *x, const struct config *c, const char *weights,
                       const struct model_ops *ops, struct model *model, struct fsdp_err *err)
{
    const char *prefix = ops->own_prefix(model);
    struct fsdp_err why = FSDP_ERR_INIT;

    if (!prefix || c->model.init == CONFIG_INIT_RANDOM)
        return FSDP_OK;
    const int rc = ckpt_open(&x->ckpt, weights, &why);
    if (rc)
        return rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
    FSDP_TRY(list_others(x, prefix, err));
    ops->set_carried(model, x->tensors, x->ntensors);
    return FSDP_OK;
}

void train_carried_close(struct train_carried *x)
{
    fsdp_free(x->tensors);
    ckpt_close(x->ckpt);
    *x = (struct train_carried){0};
}
