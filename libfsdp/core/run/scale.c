/* SPDX-License-Identifier: Apache-2.0 */
/* The loss scale of fp16: what the model multiplies the gradient of its loss with. It lives on the
 * device, where the step's norm decides how it moves, so that the host never waits for it. */
#include "core/engine.h"

/* In fp16 the ranks' divisor is split: what models divide the loss by (all tokens of the step)
 * holds all of it, so gradients are multiplied by the part that belongs behind the sum. */
static double split_of(const struct fsdp *f)
{
    for (int k = 0; k < f->units.nflats; k++) {
        const struct flat *flat = &f->units.flats[k];
        if (flat->trainable && flat->reduce_dtype == FSDP_F16)
            return (double)f->mesh->size / fsdp_scaler_predivisor(f->mesh->size);
    }
    return 1;
}

static bool has_f16(const struct units *units)
{
    for (int u = 0; u < units->nunits; u++)
        if (units->units[u].param_dtype == FSDP_F16 || units->units[u].reduce_dtype == FSDP_F16)
            return true;
    return false;
}

int scale_plan(struct fsdp *f, struct fsdp_err *err)
{
    enum fsdp_scaler_mode mode = f->opts.loss_scale.mode;
    f->scalars.scaled = mode == FSDP_SCALER_ON || (mode == FSDP_SCALER_AUTO && has_f16(&f->units));
    return f->scalars.scaled ? fsdp_scaler_check(&f->opts.loss_scale, err) : FSDP_OK;
}

static int put_state(struct fsdp *f, struct fsdp_scaler_state state, struct fsdp_err *err)
{
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    struct fsdp_loss_scale s = {.scale = (float)state.scale,
                                .split = (float)split_of(f),
                                .good_steps = (int32_t)state.good_steps,
                                .nskipped = state.nskipped};
    s.factor = s.scale * s.split;
    s.inverse = 1 / s.factor;
    FSDP_TRY(engine_join_updates(f, err));
    FSDP_TRY(fsdp_copy(lane, f->scalars.scale, &s, sizeof s, err));
    return fsdp_lane_sync(lane, err);
}

/* Updates at the reduction take it, before a norm has made one. */
static int put_coef(struct fsdp *f, float coef, struct fsdp_err *err)
{
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];

    FSDP_TRY(fsdp_copy(lane, f->scalars.clip_coef, &coef, sizeof coef, err));
    return fsdp_lane_sync(lane, err);
}

int fsdp_clip_factor_get(struct fsdp *f, double *out, struct fsdp_err *err)
{
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    float coef = 1;

    if (f->opts.optim.clip_late)
        FSDP_TRY(fsdp_copy(lane, &coef, f->scalars.clip_coef, sizeof coef, err));
    FSDP_TRY(fsdp_lane_sync(lane, err));
    *out = (double)coef;
    return FSDP_OK;
}

int fsdp_clip_factor_set(struct fsdp *f, double factor, struct fsdp_err *err)
{
    if (!(factor >= 0 && factor <= 1))
        return fsdp_err_set(err, FSDP_EINVAL, "a factor of %g cannot clip gradients", factor);
    return f->opts.optim.clip_late ? put_coef(f, (float)factor, err) : FSDP_OK;
}

int scale_begin(struct fsdp *f, struct fsdp_err *err)
{
    struct fsdp_scaler_state state = {.scale = f->scalars.scaled ? f->opts.loss_scale.init : 1};
    FSDP_TRY(put_coef(f, 1, err));
    return put_state(f, state, err);
}

int fsdp_scaler_get(struct fsdp *f, struct fsdp_scaler_state *out, struct fsdp_err *err)
{
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    struct fsdp_loss_scale s;
    FSDP_TRY(fsdp_copy(lane, &s, f->scalars.scale, sizeof s, err));
    FSDP_TRY(fsdp_lane_sync(lane, err));
    *out = (struct fsdp_scaler_state){0};
    if (f->scalars.scaled)
        *out = (struct fsdp_scaler_state){(double)s.scale, s.good_steps, s.nskipped};
    return FSDP_OK;
}

int fsdp_scaler_set(struct fsdp *f, const struct fsdp_scaler_state *state, struct fsdp_err *err)
{
    const double largest = 0x1p+120, smallest = 0x1p-120;
    if (!f->scalars.scaled || state->scale == 0)
        return FSDP_OK;
    if (!(state->scale >= smallest && state->scale <= largest) || state->good_steps < 0 ||
        state->good_steps > INT32_MAX || state->nskipped < 0)
        return fsdp_err_set(err, FSDP_EINVAL, "a loss scale of %g after %lld good steps cannot be",
                            state->scale, (long long)state->good_steps);
    return put_state(f, *state, err);
}
