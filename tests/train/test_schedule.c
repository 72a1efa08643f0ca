/* SPDX-License-Identifier: Apache-2.0 */
/* Learning-rate schedules against their closed forms. */
#include <math.h>
#include <string.h>

#include "fsdp/optim.h"
#include "tap.h"

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-15 + 1e-12 * fabs(b);
}

static const double peak = 3e-3, least = 3e-4;
enum { WARMUP = 10, TOTAL = 110, DECAY = 20 };

static struct fsdp_schedule make(enum fsdp_schedule_kind kind, int64_t warmup)
{
    return (struct fsdp_schedule){kind, peak, least, warmup, TOTAL, DECAY};
}

/* Part of the decay done at `step` where `first` is the last step of the full rate. */
static double part(int64_t step, int64_t first)
{
    return (double)(step - first) / (double)(TOTAL - 1 - first);
}

static void check_warmup(enum fsdp_schedule_kind kind, const char *name)
{
    struct fsdp_schedule s = make(kind, WARMUP);
    bool rises = true;

    for (int64_t step = 0; step < WARMUP; step++)
        rises &= near(fsdp_schedule_lr(&s, step), peak * (double)(step + 1) / WARMUP);
    ok(rises, "%s: warm-up rises linearly", name);
    ok(near(fsdp_schedule_lr(&s, WARMUP - 1), peak), "%s: the peak is at the end of the warm-up",
       name);
}

int main(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    enum fsdp_schedule_kind kind;
    bool all = true;

    ok(fsdp_schedule_parse(&kind, "wsd", &err) == FSDP_OK && kind == FSDP_SCHEDULE_WSD, "wsd");
    ok(fsdp_schedule_parse(&kind, "cosine", &err) == FSDP_OK && kind == FSDP_SCHEDULE_COSINE,
       "cosine");
    ok(fsdp_schedule_parse(&kind, "linear", &err) == FSDP_OK && kind == FSDP_SCHEDULE_LINEAR,
       "linear");
    ok(fsdp_schedule_parse(&kind, "cosin", &err) == FSDP_EINVAL && strstr(err.text, "'cosin'") &&
           strstr(err.text, "constant"),
       "unknown: %s", err.text);

    check_warmup(FSDP_SCHEDULE_CONSTANT, "constant");
    check_warmup(FSDP_SCHEDULE_LINEAR, "linear");
    check_warmup(FSDP_SCHEDULE_COSINE, "cosine");
    check_warmup(FSDP_SCHEDULE_WSD, "wsd");

    struct fsdp_schedule s = make(FSDP_SCHEDULE_CONSTANT, 0);
    ok(near(fsdp_schedule_lr(&s, 0), peak) && near(fsdp_schedule_lr(&s, TOTAL * 2), peak),
       "constant stays");

    s = make(FSDP_SCHEDULE_LINEAR, WARMUP);
    for (int64_t step = WARMUP; step < TOTAL; step++)
        all &= near(fsdp_schedule_lr(&s, step), peak - (peak - least) * part(step, WARMUP - 1));
    ok(all, "linear: a straight line from the peak to min_lr");
    ok(near(fsdp_schedule_lr(&s, TOTAL - 1), least), "linear: min_lr at the last step");
    ok(near(fsdp_schedule_lr(&s, TOTAL + 5), least), "linear: min_lr after it");

    s = make(FSDP_SCHEDULE_COSINE, 0);
    all = true;
    for (int64_t step = 0; step < TOTAL; step++)
        all &= near(fsdp_schedule_lr(&s, step),
                    least + (peak - least) / 2 * (1 + cos(acos(-1) * part(step, 0))));
    ok(all, "cosine: half a cosine");
    ok(fsdp_schedule_lr(&s, 0) == peak && near(fsdp_schedule_lr(&s, TOTAL - 1), least),
       "cosine: from the peak to min_lr");

    s = make(FSDP_SCHEDULE_WSD, WARMUP);
    all = true;
    for (int64_t step = WARMUP; step < TOTAL - DECAY; step++)
        all &= fsdp_schedule_lr(&s, step) == peak;
    ok(all, "wsd: stable");
    all = true;
    for (int64_t k = 1; k <= DECAY; k++)
        all &= near(fsdp_schedule_lr(&s, TOTAL - DECAY - 1 + k),
                    peak - (peak - least) * (double)k / DECAY);
    ok(all, "wsd: linear decay over exactly the last decay_steps");
    s.decay_steps = 0;
    ok(fsdp_schedule_lr(&s, TOTAL - 1) == peak, "wsd: no decay, no fall");

    /* The corners: one step, a warm-up as long as the run. */
    s = (struct fsdp_schedule){FSDP_SCHEDULE_COSINE, peak, least, 0, 1, 0};
    ok(fsdp_schedule_lr(&s, 0) == peak, "one step has the peak");
    s = (struct fsdp_schedule){FSDP_SCHEDULE_LINEAR, peak, least, 4, 4, 0};
    ok(near(fsdp_schedule_lr(&s, 3), peak), "warm-up to the last step");
    return tap_done();
}
