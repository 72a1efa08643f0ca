/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "norms.h"

static int add_part(void *ctx, const struct fsdp_grad_part *part, struct fsdp_err *err)
{
    struct train_norms *n = ctx;

    n->module[part->param] = part->module;
    return fsdp_sumsq(part->lane, &n->sums[part->param], part->grad, part->nelem, err);
}

int train_norms_open(struct train_norms *n, const struct train_parts *parts, struct fsdp_err *err)
{
    if (parts->config->log.tensorboard_histograms < 1)
        return FSDP_OK;
    const size_t count = (size_t)fsdp_param_count(parts->tree);
    n->parts = parts;
    n->nparams = (int)count;
    FSDP_TRY(fsdp_lane_create(&n->lane, parts->device, "norms", err));
    n->sums = fsdp_device_alloc(parts->device, count * sizeof *n->sums, "norms of units", err);
    n->eight = fsdp_device_alloc(parts->device, FSDP_CONTROL_NELEM * sizeof *n->eight,
                                 "norms of units", err);
    n->module = fsdp_alloc(count, sizeof *n->module, "norms of units", err);
    n->unit = fsdp_alloc(count, sizeof *n->unit, "norms of units", err);
    n->host = fsdp_alloc(count, sizeof *n->host, "norms of units", err);
    n->norms = fsdp_alloc(count, sizeof *n->norms, "norms of units", err);
    n->names = fsdp_alloc(count, sizeof *n->names, "norms of units", err);
    if (!n->sums || !n->eight || !n->module || !n->unit || !n->host || !n->norms || !n->names)
        return FSDP_ENOMEM;
    memset(n->module, -1, count * sizeof *n->module);
    /* What refuses hooks does so before the first step. */
    const int rc = fsdp_grad_hook_set(parts->fsdp, add_part, n, err);
    if (rc)
        return fsdp_err_prefix(err, rc, "log.tensorboard_histograms: ");
    return fsdp_grad_hook_set(parts->fsdp, NULL, NULL, err);
}

void train_norms_close(struct train_norms *n)
{
    if (n->parts) {
        fsdp_device_free(n->parts->device, n->eight);
        fsdp_device_free(n->parts->device, n->sums);
    }
    fsdp_lane_destroy(n->lane);
    fsdp_free(n->names);
    fsdp_free(n->norms);
    fsdp_free(n->host);
    fsdp_free(n->unit);
    fsdp_free(n->module);
    *n = (struct train_norms){0};
}

bool train_norms_due(const struct train_norms *n, int64_t step)
{
    return n->parts && step % n->parts->config->log.tensorboard_histograms == 0;
}

int train_norms_begin(struct train_norms *n, struct fsdp_err *err)
{
    struct fsdp_scaler_state scaler;

    FSDP_TRY(fsdp_sync(n->parts->fsdp, err));
    FSDP_TRY(fsdp_scaler_get(n->parts->fsdp, &scaler, err));
    n->scale = scaler.scale > 0 ? scaler.scale : 1;
    FSDP_TRY(fsdp_zero(n->lane, n->sums, (size_t)n->nparams * sizeof *n->sums, err));
    FSDP_TRY(fsdp_lane_sync(n->lane, err));
    return fsdp_grad_hook_set(n->parts->fsdp, add_part, n, err);
}

/* n->host[i] becomes its sum over all ranks. */
static int sum_host(struct train_norms *n, struct fsdp_err *err)
{
    for (int i = 0; i < n->nparams; i += FSDP_CONTROL_NELEM) {
        const int left = n->nparams - i;
        const int some = left < FSDP_CONTROL_NELEM ? left : FSDP_CONTROL_NELEM;
        const size_t nbytes = (size_t)some * sizeof *n->host;
        FSDP_TRY(fsdp_copy(n->lane, n->eight, n->host + i, nbytes, err));
        FSDP_TRY(fsdp_lane_sync(n->lane, err));
        FSDP_TRY(fsdp_control_sum(n->parts->fsdp, n->eight, some, err));
        FSDP_TRY(fsdp_copy(n->lane, n->host + i, n->eight, nbytes, err));
        FSDP_TRY(fsdp_lane_sync(n->lane, err));
    }
    return FSDP_OK;
}

static int unit_of_module(struct train_norms *n, int module)
{
    const char *name = fsdp_module_name(n->parts->tree, module);

    if (!name[0])
        name = "(root)";
    for (int u = 0; u < n->nunits; u++)
        if (!strcmp(n->names[u], name))
            return u;
    n->names[n->nunits] = name;
    return n->nunits++;
}

/* A rank knows the units of what it has a part of. The others learn it from the mean of what these
 * ranks know; a parameter without a gradient is in no unit. */
static int learn_units(struct train_norms *n, struct fsdp_err *err)
{
    for (int i = 0; i < n->nparams; i++)
        n->host[i] = n->module[i] >= 0 ? n->module[i] : 0;
    FSDP_TRY(sum_host(n, err));
    for (int i = 0; i < n->nparams; i++)
        n->norms[i] = n->host[i];
    for (int i = 0; i < n->nparams; i++)
        n->host[i] = n->module[i] >= 0;
    FSDP_TRY(sum_host(n, err));
    for (int i = 0; i < n->nparams; i++)
        n->unit[i] = n->host[i] > 0 ? unit_of_module(n, (int)(n->norms[i] / n->host[i] + 0.5)) : -1;
    return FSDP_OK;
}

int train_norms_take(struct train_norms *n, struct metrics_row *row, struct fsdp_err *err)
{
    const size_t nbytes = (size_t)n->nparams * sizeof *n->sums;

    FSDP_TRY(fsdp_sync(n->parts->fsdp, err));
    FSDP_TRY(fsdp_grad_hook_set(n->parts->fsdp, NULL, NULL, err));
    if (!n->nunits)
        FSDP_TRY(learn_units(n, err));
    FSDP_TRY(fsdp_copy(n->lane, n->host, n->sums, nbytes, err));
    FSDP_TRY(fsdp_lane_sync(n->lane, err));
    if (n->parts->mesh->replicate_rank != 0) /* replicas have the same gradients */
        memset(n->host, 0, nbytes);
    FSDP_TRY(sum_host(n, err));
    memset(n->norms, 0, (size_t)n->nunits * sizeof *n->norms);
    for (int i = 0; i < n->nparams; i++)
        if (n->unit[i] >= 0)
            n->norms[n->unit[i]] += n->host[i];
    for (int u = 0; u < n->nunits; u++)
        n->norms[u] = sqrt(n->norms[u]) / n->scale;
    row->nunits = n->nunits;
    row->unit_names = n->names;
    row->unit_norms = n->norms;
    return FSDP_OK;
}
