/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "goodput.h"

static const double hour_s = 3600;

double goodput_daly(double held, double mtbf)
{
    if (!(held > 0))
        return 0;
    if (!isfinite(mtbf))
        return INFINITY;
    if (held >= 2 * mtbf)
        return mtbf;
    const double x = held / (2 * mtbf);
    return sqrt(2 * held * mtbf) * (1 + sqrt(x) / 3 + x / 9) - held;
}

/* Shares of the time that saves, work done again and restarts take; without failures and saves all
 * are 0. An interval of 0 is a save after each moment of work: where it holds up nothing, it is
 * free, and nothing is ever trained again. */
static void lose(struct goodput *out, const struct goodput_in *in, double interval)
{
    const double mtbf = out->job_mtbf_s;
    const double behind = in->save_s > in->save_held_s ? in->save_s - in->save_held_s : 0;

    out->interval_s = interval;
    out->save_share = in->save_held_s > 0 && interval < INFINITY ? in->save_held_s / interval : 0;
    out->lost_share = isfinite(mtbf) ? (interval / 2 + behind) / mtbf : 0;
    out->restart_share = isfinite(mtbf) ? in->restart_s / mtbf : 0;
    const double lost = out->save_share + out->lost_share + out->restart_share;
    out->stalled = !(lost < 1);
    out->share = out->stalled ? 0 : 1 - lost;
    if (!out->stalled)
        return;
    if (!isfinite(out->lost_share)) { /* nothing is saved, and failures come */
        out->save_share = out->restart_share = 0;
        out->lost_share = 1;
    } else if (!isfinite(out->save_share)) {
        out->lost_share = out->restart_share = 0;
        out->save_share = 1;
    } else {
        out->save_share /= lost;
        out->lost_share /= lost;
        out->restart_share /= lost;
    }
}

void goodput(struct goodput *out, const struct goodput_in *in)
{
    const bool fails = in->gpu_mtbf_h > 0 && isfinite(in->gpu_mtbf_h) && in->ngpus > 0;

    *out = (struct goodput){.job_mtbf_s = fails ? in->gpu_mtbf_h * hour_s / in->ngpus : INFINITY};
    out->best_interval_s = goodput_daly(in->save_held_s, out->job_mtbf_s);
    if (out->best_interval_s < in->save_s)
        out->best_interval_s = in->save_s;
    lose(out, in, out->best_interval_s);
    out->best_share = out->share;
    if (in->interval_s > 0)
        lose(out, in, in->interval_s);
}

double goodput_start(int nnodes)
{
    return 20 + (nnodes > 1 ? ceil(log2(nnodes)) : 0);
}

double goodput_save(const struct goodput_state *state)
{
    return state->storage_nbytes_per_s > 0 ? state->nbytes / state->storage_nbytes_per_s : 0;
}

double goodput_save_held(const struct goodput_state *state)
{
    if (!state->background)
        return goodput_save(state);
    return state->host_nbytes_per_s > 0 ? state->rank_nbytes / state->host_nbytes_per_s : 0;
}

double goodput_restart(const struct goodput_state *state)
{
    const double start = state->start_s > 0 ? state->start_s : goodput_start(state->nnodes);
    return state->requeue_s + start + goodput_save(state);
}

void goodput_bill(struct goodput_bill *out, const struct goodput_bill_in *in)
{
    static const double year_9999 = 253370764800; /* 1 January */
    const double rate = in->tokens_per_s * in->share;

    *out = (struct goodput_bill){.seconds = in->ntokens > 0 ? INFINITY : 0};
    if (in->ntokens > 0 && rate > 0)
        out->seconds = in->ntokens / rate;
    out->gpu_hours = out->seconds * in->ngpus / hour_s;
    out->kwh = in->watts > 0 ? out->gpu_hours * in->watts * (in->pue > 0 ? in->pue : 1) / 1000 : 0;
    out->money = in->price_per_gpu_hour > 0 ? out->gpu_hours * in->price_per_gpu_hour : 0;
    if (isfinite(out->seconds) && (double)in->now + out->seconds < year_9999)
        out->finish = in->now + (time_t)out->seconds;
}
