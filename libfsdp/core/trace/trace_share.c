/* SPDX-License-Identifier: Apache-2.0 */
/* How much was computed and communicated, and how much of the one hid behind the other. */
#include <stdlib.h>

#include "trace.h"

static int by_begin(const void *a, const void *b)
{
    double x = ((const struct trace_time *)a)->begin, y = ((const struct trace_time *)b)->begin;
    return (x > y) - (x < y);
}

/* Sorts, and joins intervals that touch. Returns how many are left. */
static int merge(struct trace_time *t, int ntimes)
{
    int last = -1;

    if (ntimes > 1)
        qsort(t, (size_t)ntimes, sizeof *t, by_begin);
    for (int i = 0; i < ntimes; i++) {
        if (last >= 0 && t[i].begin <= t[last].end) {
            if (t[last].end < t[i].end)
                t[last].end = t[i].end;
        } else {
            t[++last] = t[i];
        }
    }
    return last + 1;
}

double trace_uncovered(struct trace_time *a, int na, struct trace_time *b, int nb)
{
    double sum = 0;
    int k = 0;

    na = merge(a, na);
    nb = merge(b, nb);
    for (int i = 0; i < na; i++) {
        double at = a[i].begin;
        while (k < nb && b[k].end <= at)
            k++;
        /* The last one looked at may reach into the next interval of a. */
        for (int j = k; j < nb && b[j].begin < a[i].end; j++) {
            if (b[j].begin > at)
                sum += b[j].begin - at;
            if (b[j].end > at)
                at = b[j].end;
        }
        if (at < a[i].end)
            sum += a[i].end - at;
    }
    return sum;
}

struct sums {
    struct trace_time *comm, *compute;
    int ncomm, ncompute;
    double begin, end;
};

static void take_span(struct trace_time *list, int *nelem, double begin, double end)
{
    if (end > begin)
        list[(*nelem)++] = (struct trace_time){begin, end};
}

/* The model computes between two driven operations within the root: from where one let it continue
 * to where the next came. */
static void add_pass(struct sums *s, struct fsdp_trace_share *out, const struct sched *sched,
                     const struct trace_time *times)
{
    int depth = 0;
    double resumed = 0;

    for (int i = 0; i < sched->nops; i++) {
        const struct sched_op *op = &sched->ops[i];
        const struct trace_time *t = &times[i];
        if (op->kind == SCHED_FREE)
            continue;
        s->begin = t->begin < s->begin ? t->begin : s->begin;
        s->end = t->end > s->end ? t->end : s->end;
        if (sched_is_driven(op->kind)) {
            if (depth > 0) {
                take_span(s->compute, &s->ncompute, resumed, t->begin);
                out->lane_s[SCHED_COMPUTE] += t->begin - resumed;
            }
            depth += (op->kind == SCHED_ENTER) - (op->kind == SCHED_LEAVE);
            resumed = t->end;
            continue;
        }
        out->lane_s[op->lane] += t->end - t->begin;
        if (sched_is_comm(op->kind))
            take_span(s->comm, &s->ncomm, t->begin, t->end);
        else if (op->lane == SCHED_COMPUTE || (op->lane == SCHED_UPDATES && !op->on_host))
            take_span(s->compute, &s->ncompute, t->begin, t->end);
    }
}

void trace_share(struct fsdp_trace_share *out, const struct sched *sched,
                 const struct trace_time *times, int nsteps, struct trace_time *scratch)
{
    struct sums s = {.comm = scratch, .compute = scratch + (size_t)nsteps * (size_t)sched->nops};

    *out = (struct fsdp_trace_share){.nsteps = nsteps};
    if (nsteps < 1 || sched->nops < 1)
        return;
    s.begin = s.end = times[0].begin;
    for (int k = 0; k < nsteps; k++)
        add_pass(&s, out, sched, times + (size_t)k * (size_t)sched->nops);
    out->wall_s = s.end - s.begin;
    out->compute_s = trace_uncovered(s.compute, s.ncompute, NULL, 0);
    s.ncompute = merge(s.compute, s.ncompute);
    out->comm_s = trace_uncovered(s.comm, s.ncomm, NULL, 0);
    s.ncomm = merge(s.comm, s.ncomm);
    out->exposed_s = trace_uncovered(s.comm, s.ncomm, s.compute, s.ncompute);
}
