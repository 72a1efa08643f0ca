/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "fsdp/optim.h"

int fsdp_schedule_parse(enum fsdp_schedule_kind *out, const char *text, struct fsdp_err *err)
{
    static const char *const names[] = {
        [FSDP_SCHEDULE_CONSTANT] = "constant",
        [FSDP_SCHEDULE_LINEAR] = "linear",
        [FSDP_SCHEDULE_COSINE] = "cosine",
        [FSDP_SCHEDULE_WSD] = "wsd",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (enum fsdp_schedule_kind)i;
            return FSDP_OK;
        }
    }
    return fsdp_err_set(err, FSDP_EINVAL,
                        "unknown schedule '%s'; allowed: constant, linear, cosine, wsd", text);
}

/* How far the decay has come at `step`: 0 at `first` (still the full rate), 1 at the last step. */
static double decay_part(int64_t step, int64_t first, int64_t total_steps)
{
    int64_t last = total_steps - 1;
    if (step <= first)
        return 0;
    return step >= last ? 1 : (double)(step - first) / (double)(last - first);
}

double fsdp_schedule_lr(const struct fsdp_schedule *schedule, int64_t step)
{
    const struct fsdp_schedule *s = schedule;
    /* The last step that still has the full rate. */
    int64_t peak = s->warmup_steps > 0 ? s->warmup_steps - 1 : 0;

    if (step < s->warmup_steps)
        return s->lr * (double)(step + 1) / (double)s->warmup_steps;
    switch (s->kind) {
    case FSDP_SCHEDULE_CONSTANT:
        return s->lr;
    case FSDP_SCHEDULE_LINEAR:
        return s->lr + (s->min_lr - s->lr) * decay_part(step, peak, s->total_steps);
    case FSDP_SCHEDULE_COSINE: {
        double part = decay_part(step, peak, s->total_steps);
        return s->min_lr + (s->lr - s->min_lr) * 0.5 * (1 + cos(M_PI * part));
    }
    case FSDP_SCHEDULE_WSD: {
        int64_t stable = s->total_steps - s->decay_steps - 1;
        stable = stable > peak ? stable : peak;
        /* Without a decay the rate stays, also on the last step. */
        return s->decay_steps <= 0
                   ? s->lr
                   : s->lr + (s->min_lr - s->lr) * decay_part(step, stable, s->total_steps);
    }
    }
    return s->lr;
}
