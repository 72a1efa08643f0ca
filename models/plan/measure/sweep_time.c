/* SPDX-License-Identifier: Apache-2.0 */
/* What all sweeps share: values, timed calls on all ranks at once, the time that is left. */
#include <math.h>
#include <stdarg.h>
#include <unistd.h>

#include "sweep.h"

enum { POOL_NBYTES = 48 << 20, MAX_CALLS = 20000 };

double sweep_mean(const double *values, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += values[i];
    return n > 0 ? sum / n : 0;
}

static double relative_deviation(const double *values, int n)
{
    const double mean = sweep_mean(values, n);
    double squares = 0;

    for (int i = 0; i < n; i++)
        squares += (values[i] - mean) * (values[i] - mean);
    return n > 1 && mean > 0 ? sqrt(squares / (n - 1)) / mean : 0;
}

/* All sweeps together take less than a quarter of the memory that is free on each device. */
static int find_largest(struct sweep *s, struct fsdp_err *err)
{
    enum { LEAST = 1 << 20, MOST = 1 << 30, UNKNOWN = 64 << 20, SHARE = 32 };
    struct fsdp_oob *oob = s->opts->oob;
    struct fsdp_device_look look = {.model = ""};
    uint64_t own = UNKNOWN;

    fsdp_device_look(s->opts->device, &look, NULL);
    if (look.total_nbytes > look.used_nbytes)
        own = (look.total_nbytes - look.used_nbytes) / SHARE;
    uint64_t *each = fsdp_alloc((size_t)oob->size, sizeof *each, "sweeps", err);
    int rc = fsdp_oob_agree(oob, each ? FSDP_OK : FSDP_ENOMEM, err);
    if (rc == FSDP_OK)
        rc = oob->allgather(oob, &own, sizeof own, each, err);
    s->largest_nbytes = MOST;
    for (int i = 0; i < oob->size && rc == FSDP_OK; i++)
        while (s->largest_nbytes > each[i] && s->largest_nbytes > LEAST)
            s->largest_nbytes /= 2;
    fsdp_free(each);
    return rc;
}

/* Random, because the power that products take, and so their speed, depends on the values. */
static int fill_pool(struct sweep *s, struct fsdp_err *err)
{
    const struct fsdp_init normal = {FSDP_INIT_NORMAL, 0.02f};
    const bool host = fsdp_device_is_host(s->opts->device);

    s->pool_nelem = (host ? POOL_NBYTES : s->largest_nbytes) / sizeof(float);
    s->narrow_type = s->opts->type == FSDP_F16 ? FSDP_F16 : FSDP_BF16;
    s->pool = fsdp_device_alloc(s->opts->device, s->pool_nelem * sizeof(float), "sweeps", err);
    s->narrow = fsdp_device_alloc(s->opts->device, s->pool_nelem * 2, "sweeps", err);
    if (!s->pool || !s->narrow)
        return FSDP_ENOMEM;
    FSDP_TRY(fsdp_init_fill(s->lane, s->pool, 0, s->pool_nelem, normal, 1,
                            (uint64_t)s->opts->oob->rank, err));
    FSDP_TRY(fsdp_cast(s->lane, s->narrow, s->narrow_type, s->pool, FSDP_F32, s->pool_nelem, err));
    return fsdp_lane_sync(s->lane, err);
}

int sweep_open(struct sweep *s, const struct measure_opts *opts, struct measured *out,
               struct fsdp_err *err)
{
    const double seconds = opts->seconds > 0 ? opts->seconds : 100;
    int rc;

    *s = (struct sweep){.opts = opts, .out = out, .deadline = fsdp_time_now() + seconds};
    s->window_s = 0.01;
    if (fsdp_device_is_host(opts->device)) /* where ranks share cores, of as many turns */
        s->window_s = 0.02 * ((int)sysconf(_SC_NPROCESSORS_ONLN) < opts->node_nranks ? 2 : 1);
    s->all = fsdp_alloc((size_t)opts->oob->size * SWEEP_WINDOWS, sizeof *s->all, "sweeps", err);
    rc = s->all ? nn_ops_of(&s->nn, opts->device, err) : FSDP_ENOMEM;
    if (rc == FSDP_OK)
        rc = fsdp_lane_create(&s->lane, opts->device, "sweep", err);
    FSDP_TRY(fsdp_oob_agree(opts->oob, rc, err));
    rc = find_largest(s, err);
    if (rc == FSDP_OK)
        rc = fill_pool(s, err);
    return fsdp_oob_agree(opts->oob, rc, err);
}

void sweep_close(struct sweep *s)
{
    fsdp_lane_destroy(s->lane);
    fsdp_device_free(s->opts->device, s->pool);
    fsdp_device_free(s->opts->device, s->narrow);
    fsdp_free(s->all);
}

/* Numbers of rank 0, so that all ranks call equally often. */
static int agree_calls(int *ncalls, struct sweep *s, double once, struct fsdp_err *err)
{
    int64_t n = once > 0 ? (int64_t)(s->window_s / once) : MAX_CALLS;

    n = n < 1 ? 1 : n > MAX_CALLS ? MAX_CALLS : n;
    FSDP_TRY(fsdp_oob_broadcast(s->opts->oob, &n, sizeof n, 0, err));
    *ncalls = (int)n;
    return FSDP_OK;
}

static int run_calls(double *seconds, struct sweep *s, sweep_f *run, void *ctx, int first,
                     int ncalls, struct fsdp_err *err)
{
    int rc = FSDP_OK;
    const double began = fsdp_time_now();

    for (int i = 0; i < ncalls && rc == FSDP_OK; i++)
        rc = run(s, ctx, first + i, err);
    if (rc == FSDP_OK)
        rc = fsdp_lane_sync(s->lane, err);
    *seconds = (fsdp_time_now() - began) / (ncalls > 0 ? ncalls : 1);
    return rc;
}

int sweep_time(double *seconds, struct sweep *s, sweep_f *run, void *ctx, struct fsdp_err *err)
{
    struct fsdp_oob *oob = s->opts->oob;
    double mine[SWEEP_WINDOWS], means[SWEEP_WINDOWS], once;
    int ncalls, rc = run_calls(&once, s, run, ctx, 0, 1, err);

    FSDP_TRY(fsdp_oob_agree(oob, rc, err));
    rc = run_calls(&once, s, run, ctx, 1, 1, err);
    FSDP_TRY(fsdp_oob_agree(oob, rc, err));
    FSDP_TRY(agree_calls(&ncalls, s, once, err));
    for (int w = 0; w < SWEEP_WINDOWS; w++) {
        rc = run_calls(&mine[w], s, run, ctx, 2 + w * ncalls, ncalls, err);
        FSDP_TRY(fsdp_oob_agree(oob, rc, err)); /* the ranks' windows begin together */
    }
    FSDP_TRY(oob->allgather(oob, mine, sizeof mine, s->all, err));
    for (int w = 0; w < SWEEP_WINDOWS; w++) {
        double sum = 0, most = 0;
        for (int r = 0; r < oob->size; r++) {
            const double x = s->all[r * SWEEP_WINDOWS + w];
            sum += x;
            most = x > most ? x : most;
        }
        means[w] = sum / oob->size;
        if (s->nspread < SWEEP_MAX_JITTERS && means[w] > 0)
            s->spread[s->nspread++] = most / means[w] - 1;
    }
    *seconds = sweep_mean(means, SWEEP_WINDOWS);
    s->scatter += relative_deviation(means, SWEEP_WINDOWS);
    s->nsweeps++;
    return FSDP_OK;
}

int sweep_is_late(bool *late, struct sweep *s, struct fsdp_err *err)
{
    int32_t is = fsdp_time_now() > s->deadline;

    FSDP_TRY(fsdp_oob_broadcast(s->opts->oob, &is, sizeof is, 0, err));
    *late = is;
    return FSDP_OK;
}

void *sweep_values(struct sweep *s, enum fsdp_dtype type, size_t nelem, int turn)
{
    const size_t room = s->pool_nelem, step = (nelem + 63) / 64 * 64;

    if (step > room)
        return NULL;
    const size_t at = step > 0 ? (size_t)turn % (room / step) * step : 0;
    return type == FSDP_F32 ? (void *)(s->pool + at) : nn_at(s->narrow, s->narrow_type, at);
}

int sweep_add_rate(struct fsdp_rate **rates, int *nrates, size_t *max, struct fsdp_rate rate,
                   struct fsdp_err *err)
{
    struct fsdp_rate *all =
        fsdp_alloc_grow(*rates, (size_t)*nrates, max, sizeof *all, "measured rates", err);

    if (!all)
        return FSDP_ENOMEM;
    *rates = all;
    all[(*nrates)++] = rate;
    return FSDP_OK;
}

void sweep_say(struct sweep *s, const char *fmt, ...)
{
    char text[200];
    va_list args;

    if (!s->opts->progress || s->opts->oob->rank)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    s->opts->progress(s->opts->ctx, text);
}
