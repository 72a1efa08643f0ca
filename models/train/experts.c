/* SPDX-License-Identifier: Apache-2.0 */
#include "experts.h"

int train_experts_open(struct train_experts *x, const struct train_parts *parts,
                       struct fsdp_err *err)
{
    x->parts = parts;
    x->router = parts->ops->router(parts->model);
    const size_t nelem = model_router_nelem(&x->router);
    if (!nelem)
        return FSDP_OK;
    FSDP_TRY(fsdp_lane_create(&x->lane, parts->device, "experts", err));
    for (int i = 0; i < 2; i++)
        if (!(x->sums[i] =
                  fsdp_device_alloc(parts->device, nelem * sizeof(double), "load of experts", err)))
            return FSDP_ENOMEM;
    x->all = fsdp_alloc(nelem, sizeof *x->all, "load of experts", err);
    return x->all ? FSDP_OK : FSDP_ENOMEM;
}

void train_experts_close(struct train_experts *x)
{
    fsdp_free(x->all);
    if (x->parts) {
        fsdp_device_free(x->parts->device, x->sums[1]);
        fsdp_device_free(x->parts->device, x->sums[0]);
    }
    fsdp_lane_destroy(x->lane);
    *x = (struct train_experts){0};
}

int train_experts_begin(struct train_experts *x, int64_t step, double **out, struct fsdp_err *err)
{
    *out = x->sums[step % 2];
    if (!*out)
        return FSDP_OK;
    FSDP_TRY(fsdp_zero(x->lane, *out, model_router_nelem(&x->router) * sizeof **out, err));
    return fsdp_lane_sync(x->lane, err);
}

/* A layer's least and greatest counts, over their mean. */
static void look_at_layer(const double *counts, int n, struct metrics_row *row)
{
    double least = counts[0], most = counts[0], sum = 0;

    for (int e = 0; e < n; e++) {
        least = counts[e] < least ? counts[e] : least;
        most = counts[e] > most ? counts[e] : most;
        sum += counts[e];
    }
    if (sum <= 0)
        return;
    most *= n / sum;
    least *= n / sum;
    row->expert_load_min = least < row->expert_load_min ? least : row->expert_load_min;
    row->expert_load_max = most > row->expert_load_max ? most : row->expert_load_max;
}

int train_experts_take(struct train_experts *x, int64_t step, struct metrics_row *row,
                       struct fsdp_err *err)
{
    const int E = x->router.nexperts;

    if (!E)
        return FSDP_OK;
    FSDP_TRY(fsdp_copy(x->lane, x->all, x->sums[step % 2],
                       model_router_nelem(&x->router) * sizeof *x->all, err));
    FSDP_TRY(fsdp_lane_sync(x->lane, err));
    row->has_experts = true;
    row->router_loss = x->all[MODEL_ROUTER_BALANCE];
    row->router_z_loss = x->all[MODEL_ROUTER_Z];
    row->expert_load_min = E;
    row->expert_load_max = 0;
    for (int layer = 0; layer < x->router.nlayers; layer++)
        look_at_layer(x->all + MODEL_ROUTER_COUNTS + layer * E, E, row);
    return FSDP_OK;
}
