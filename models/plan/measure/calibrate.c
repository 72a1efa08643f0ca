/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "against.h"
#include "calibrate.h"

const char *calibrate_name(enum calibrate_factor factor)
{
    static const char *const names[CALIBRATE_NFACTORS] = {
        "product", "attention", "memory", "node", "flat", "rail", "latency", "host"};
    return names[factor];
}

/* ---- least squares --------------------------------------------------------------------------- */

enum { N = CALIBRATE_NFACTORS };

/* Sums of equations: the modelled parts of an operation times their factors are its real time. All
 * of a kind count together, by how long they take. */
struct equations {
    double a[N][N], b[N];  /* normal equations */
    double planned[N];     /* seconds of each part */
    double real, modelled; /* of all */
};

static void add_equation(struct equations *e, const double part[N], double real)
{
    double sum = 0;

    for (int i = 0; i < N; i++) {
        sum += part[i];
        e->planned[i] += part[i];
    }
    if (!(sum > 0))
        return;
    e->real += real;
    e->modelled += sum;
    for (int i = 0; i < N; i++) { /* relative errors, weighed by time */
        e->b[i] += part[i] * real / sum;
        for (int k = 0; k < N; k++)
            e->a[i][k] += part[i] * part[k] / sum;
    }
}

/* Gauss, on what is positive definite. */
static void solve(double x[N], double a[N][N], double b[N])
{
    for (int i = 0; i < N; i++)
        for (int r = i + 1; r < N; r++) {
            const double part = a[r][i] / a[i][i];
            for (int c = i; c < N; c++)
                a[r][c] -= part * a[i][c];
            b[r] -= part * b[i];
        }
    for (int i = N - 1; i >= 0; i--) {
        x[i] = b[i];
        for (int c = i + 1; c < N; c++)
            x[i] -= a[i][c] * x[c];
        x[i] /= a[i][i];
    }
}

/* Each factor is held near the mean by a small weight, so that what no module tells apart has one
 * factor; and none is far from it, for a kind that takes little time may be told nothing of. */
static void fit(double factor[N], const struct equations *given)
{
    struct equations e = *given;
    const double mean = e.modelled > 0 ? e.real / e.modelled : 1;
    double sum = 0;

    for (int i = 0; i < N; i++) {
        const double hold = 0.02 * e.planned[i] + 1e-12;
        e.a[i][i] += hold;
        e.b[i] += hold * mean;
    }
    solve(factor, e.a, e.b);
    for (int i = 0; i < N; i++) {
        factor[i] = factor[i] < mean / 10   ? mean / 10
                    : factor[i] > mean * 10 ? mean * 10
                                            : factor[i];
        sum += factor[i] * given->planned[i];
    }
    for (int i = 0; i < N; i++) /* the whole is that of the run */
        factor[i] = given->planned[i] > 0 && sum > 0 ? factor[i] * given->real / sum : 1;
}

/* ---- what an operation is made of ------------------------------------------------------------ */

static enum calibrate_factor link_of(const struct trace_file_op *op)
{
    if (op->nnodes < 2)
        return CALIBRATE_NODE;
    return op->nranks > op->nnodes ? CALIBRATE_FLAT : CALIBRATE_RAIL;
}

static void parts_of(double part[N], const struct trace_file *plan, int i)
{
    const struct trace_file_op *op = &plan->ops[i];
    const double own = trace_file_own(plan, 0, i);

    memset(part, 0, N * sizeof *part);
    if (op->visit) {
        part[CALIBRATE_PRODUCT] = op->work_s[FSDP_WORK_PRODUCT];
        part[CALIBRATE_ATTENTION] = op->work_s[FSDP_WORK_ATTENTION];
        part[CALIBRATE_MEMORY] = op->work_s[FSDP_WORK_BYTES];
    } else if (op->nranks > 1) {
        part[CALIBRATE_LATENCY] = op->latency_s < own ? op->latency_s : own;
        part[link_of(op)] = own - part[CALIBRATE_LATENCY];
    } else if (!strcmp(op->lane, "upload") || !strcmp(op->lane, "download")) {
        part[CALIBRATE_HOST] = own;
    } else {
        part[CALIBRATE_MEMORY] = own;
    }
}

/* Ranks differ in what they hold: the mean counts, the slowest is the jitter's. */
static double real_of(const struct trace_file *run, int op)
{
    double sum = 0;

    for (int p = 0; p < run->nprocs; p++)
        sum += trace_file_own(run, p, op);
    return sum / run->nprocs;
}

/* What all ranks waited on average, of a step without it. */
static double jitter_of(const struct trace_file *run, double *step_s)
{
    double waited = 0, most = 0;

    for (int p = 0; p < run->nprocs; p++) {
        const double step = trace_file_steps(run, p);
        most = step > most ? step : most;
        for (int i = 0; i < run->nops; i++)
            waited += trace_file_wait(run, p, i) / run->nprocs;
    }
    *step_s = most;
    if (run->nprocs < 2 || !(most > waited))
        return 0;
    return waited / (most - waited) / sqrt(2 * log(run->nprocs));
}

/* What the lists must be: a plan of a run. */
static int check_input(const struct trace_file *plan, const struct trace_file *run,
                       struct fsdp_err *err)
{
    struct against against;
    int rc = against_make(&against, plan, run, 0, AGAINST_SLOWEST, err);

    against_free(&against);
    return rc;
}

/* Computing and communicating are apart: neither is told anything by the other. */
int calibrate_fit(struct calibration *out, const struct trace_file *plan,
                  const struct trace_file *run, struct fsdp_err *err)
{
    struct equations compute = {.real = 0}, comm = {.real = 0};
    double part[N], factors[2][N];

    *out = (struct calibration){.nranks = run->nprocs};
    FSDP_TRY(check_input(plan, run, err));
    for (int i = 0; i < plan->nops; i++) {
        const bool travels = plan->ops[i].nranks > 1;
        parts_of(part, plan, i);
        add_equation(travels ? &comm : &compute, part, real_of(run, i));
    }
    fit(factors[0], &compute);
    fit(factors[1], &comm);
    for (int k = 0; k < N; k++) {
        const bool travels = comm.planned[k] > 0;
        out->factor[k] = factors[travels][k];
        out->real_s[k] = out->factor[k] * (travels ? comm.planned[k] : compute.planned[k]);
    }
    out->jitter = jitter_of(run, &out->real_step_s);
    return FSDP_OK;
}

/* ---- into a clock ---------------------------------------------------------------------------- */

static void scale_rates(struct fsdp_rate *rates, int nrates, double factor)
{
    for (int i = 0; i < nrates; i++)
        rates[i].per_s /= factor;
}

/* A collective that was measured is scaled by the share of its time that latency has. */
static void scale_collectives(struct measured *m, const struct fsdp_net_clock *net,
                              const double factor[N])
{
    for (int i = 0; i < m->ncollectives; i++) {
        struct fsdp_collective_time *t = &m->collectives[i];
        const struct fsdp_group g = {t->nranks, t->nnodes, t->nranks / t->nnodes};
        const struct fsdp_transfer way = fsdp_collective_transfer(net, t->kind, g, t->nbytes);
        const enum calibrate_factor link = t->nnodes < 2           ? CALIBRATE_NODE
                                           : t->nranks > t->nnodes ? CALIBRATE_FLAT
                                                                   : CALIBRATE_RAIL;
        const double late = way.latency_s < t->seconds ? way.latency_s : t->seconds;
        t->seconds = late * factor[CALIBRATE_LATENCY] + (t->seconds - late) * factor[link];
    }
}

void calibrate_apply(struct fsdp_clock *clock, struct measured *m, const struct calibration *c)
{
    const double *f = c->factor;
    struct fsdp_device_clock *d = &clock->device;
    struct fsdp_net_clock *net = &clock->net;

    if (m) {
        scale_rates(m->products, m->nproducts, f[CALIBRATE_PRODUCT]);
        scale_rates(m->attention, m->nattention, f[CALIBRATE_ATTENTION]);
        scale_rates(m->copies, m->ncopies, f[CALIBRATE_MEMORY]);
        scale_collectives(m, net, f);
    }
    d->product_share /= f[CALIBRATE_PRODUCT];
    d->product_share_8 /= f[CALIBRATE_PRODUCT];
    d->attention_share /= f[CALIBRATE_ATTENTION];
    d->memory_share /= f[CALIBRATE_MEMORY];
    net->node_nbytes_per_s /= f[CALIBRATE_NODE];
    net->nvls_nbytes_per_s /= f[CALIBRATE_NODE];
    net->flat_share /= f[CALIBRATE_FLAT];
    net->rail_share /= f[CALIBRATE_RAIL];
    net->start_s *= f[CALIBRATE_LATENCY];
    net->node_hop_s *= f[CALIBRATE_LATENCY];
    net->net_hop_s *= f[CALIBRATE_LATENCY];
    net->pat_hop_s *= f[CALIBRATE_LATENCY];
    net->host_nbytes_per_s /= f[CALIBRATE_HOST];
    net->jitter = c->jitter;
}

void calibrate_finish(struct fsdp_clock *clock, struct calibration *c, double list_s)
{
    const double list = c->real_step_s / fsdp_jitter_factor(&clock->net, c->nranks);

    /* What ranks waited is in medians, whose sum is not that of the step: the step counts. */
    if (list < list_s && c->nranks > 1) {
        const double waits = c->real_step_s > list_s ? c->real_step_s / list_s - 1 : 0;
        clock->net.jitter = c->jitter = waits / sqrt(2 * log(c->nranks));
    }
    c->step_s = list > list_s ? list - list_s : 0;
    clock->device.step_s = c->step_s;
}
