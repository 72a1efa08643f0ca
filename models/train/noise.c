/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "noise.h"

int train_noise_open(struct train_noise *n, const struct train_parts *parts, struct fsdp_err *err)
{
    if (parts->config->log.noise_scale < 1)
        return FSDP_OK;
    n->parts = parts;
    const size_t count = n->room =
        (size_t)fsdp_param_count(parts->tree) * (size_t)parts->batch.accumulation;
    FSDP_TRY(fsdp_lane_create(&n->lane, parts->device, "noise", err));
    n->sums = fsdp_device_alloc(parts->device, count * sizeof *n->sums, "gradient noise", err);
    n->total = fsdp_device_alloc(parts->device, sizeof *n->total, "gradient noise", err);
    n->host = fsdp_alloc(count, sizeof *n->host, "gradient noise", err);
    return n->sums && n->total && n->host ? FSDP_OK : FSDP_ENOMEM;
}

void train_noise_close(struct train_noise *n)
{
    if (n->parts) {
        fsdp_device_free(n->parts->device, n->total);
        fsdp_device_free(n->parts->device, n->sums);
    }
    fsdp_lane_destroy(n->lane);
    fsdp_free(n->host);
    *n = (struct train_noise){0};
}

bool train_noise_due(const struct train_noise *n, int64_t step)
{
    return n->parts && step % n->parts->config->log.noise_scale == 0;
}

/* What this rank sends is its own gradient: of a micro-step, or where only replicas are summed or
 * under reduce_last, of all of them. */
static int add_square(void *ctx, const struct fsdp_reduction *r, struct fsdp_err *err)
{
    struct train_noise *n = ctx;
    const struct fsdp_mesh *mesh = n->parts->mesh;
    const bool scatters = r->scatter && mesh->shard_size > 1;
    const bool own = scatters ? r->comm == mesh->reduce : !r->scatter && mesh->shard_size == 1;

    n->scatters |= scatters;
    n->unread |= own && r->dtype != FSDP_F32;
    if (own && r->dtype == FSDP_F32 && n->used < n->room)
        FSDP_TRY(fsdp_sumsq(r->lane, &n->sums[n->used++], r->send, r->send_nelem, err));
    return fsdp_reduction_run(r, err);
}

int train_noise_begin(struct train_noise *n, struct fsdp_err *err)
{
    struct fsdp_scaler_state scaler;

    FSDP_TRY(fsdp_sync(n->parts->fsdp, err));
    FSDP_TRY(fsdp_scaler_get(n->parts->fsdp, &scaler, err));
    n->scale = scaler.scale > 0 ? scaler.scale : 1;
    n->scatters = n->unread = false;
    n->used = 0;
    return fsdp_reduce_hook_set(n->parts->fsdp, add_square, n, 0, err);
}

/* The squares of all ranks' gradients. */
static int sum_squares(struct train_noise *n, double *out, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_copy(n->lane, n->host, n->sums, n->used * sizeof *n->host, err));
    FSDP_TRY(fsdp_lane_sync(n->lane, err));
    *out = 0;
    for (size_t i = 0; i < n->used; i++)
        *out += n->host[i];
    FSDP_TRY(fsdp_copy(n->lane, n->total, out, sizeof *out, err));
    FSDP_TRY(fsdp_lane_sync(n->lane, err));
    FSDP_TRY(fsdp_control_sum(n->parts->fsdp, n->total, 1, err));
    FSDP_TRY(fsdp_copy(n->lane, out, n->total, sizeof *out, err));
    FSDP_TRY(fsdp_lane_sync(n->lane, err));
    *out /= n->scale * n->scale;
    return FSDP_OK;
}

/* Estimates of appendix A.1 of the paper. nparts equal parts of a batch of `rows` rows have
 * gradients that add up to the batch's. */
static void add_estimate(struct train_noise *n, double squares, double norm, double nparts,
                         double rows)
{
    const double keep = 0.9, small = nparts * squares, big = norm * norm;

    n->square = keep * n->square + (1 - keep) * (nparts * big - small) / (nparts - 1);
    n->variance = keep * n->variance + (1 - keep) * (small - big) * rows / (nparts - 1);
}

int train_noise_take(struct train_noise *n, struct metrics_row *row, struct fsdp_err *err)
{
    const struct config_batch *batch = &n->parts->batch;
    double squares;

    FSDP_TRY(fsdp_sync(n->parts->fsdp, err));
    FSDP_TRY(fsdp_reduce_hook_set(n->parts->fsdp, NULL, NULL, 0, err));
    FSDP_TRY(sum_squares(n, &squares, err));
    const bool each = n->scatters && !n->parts->config->fsdp.reduce_last;
    const double nparts = (double)batch->ranks * (each ? batch->accumulation : 1);
    if (nparts < 2 || n->unread || row->skipped || !isfinite(squares) || !isfinite(row->grad_norm))
        return FSDP_OK;
    add_estimate(n, squares, row->grad_norm, nparts, (double)batch->rows);
    row->noise_scale = n->square > 0 && n->variance > 0 ? n->variance / n->square : 0;
    return FSDP_OK;
}
