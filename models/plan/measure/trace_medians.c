/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "trace_file.h"

double trace_file_median(double *values, int n)
{
    if (n < 1)
        return 0;
    qsort(values, (size_t)n, sizeof *values, fsdp_compare_doubles);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double trace_file_own(const struct trace_file *f, int proc, int op)
{
    double values[TRACE_FILE_MAX_STEPS];

    for (int s = 0; s < f->nsteps; s++)
        values[s] = trace_file_time(f, proc, s, op)->own;
    return trace_file_median(values, f->nsteps);
}

double trace_file_wait(const struct trace_file *f, int proc, int op)
{
    double values[TRACE_FILE_MAX_STEPS];

    for (int s = 0; s < f->nsteps; s++)
        values[s] = trace_file_time(f, proc, s, op)->wait;
    return trace_file_median(values, f->nsteps);
}

double trace_file_step_s(const struct trace_file *f, int proc, int step)
{
    const struct trace_file_step *s = trace_file_step(f, proc, step);

    if (step + 1 < f->nsteps && s[1].number == s->number + 1)
        return s[1].begin - s->begin;
    return s->end - s->begin;
}

/* The last step has no successor: it counts only where it is the only one. */
double trace_file_steps(const struct trace_file *f, int proc)
{
    double values[TRACE_FILE_MAX_STEPS];
    const int n = f->nsteps > 1 ? f->nsteps - 1 : 1;

    for (int s = 0; s < n; s++)
        values[s] = trace_file_step_s(f, proc, s);
    return trace_file_median(values, n);
}

int trace_file_slowest(const struct trace_file *f)
{
    double most = -1;
    int slowest = 0;

    for (int p = 0; p < f->nprocs; p++) {
        double sum = 0;
        for (int i = 0; i < f->nops; i++)
            sum += trace_file_own(f, p, i);
        if (sum > most) {
            most = sum;
            slowest = p;
        }
    }
    return slowest;
}

int trace_file_same_list(const struct trace_file *a, const struct trace_file *b,
                         struct fsdp_err *err)
{
    const int n = a->nops < b->nops ? a->nops : b->nops;

    for (int i = 0; i < n; i++) {
        const struct trace_file_op *x = &a->ops[i], *y = &b->ops[i];
        if (x->index != y->index || strcmp(x->name, y->name) != 0)
            return fsdp_err_set(err, FSDP_EMISMATCH,
                                "these are not the same run: operation %d is '%s' in %s, operation "
                                "%d is '%s' in %s; plan with the run's configuration and ranks",
                                x->index, x->name, a->path, y->index, y->name, b->path);
        if (x->nranks != y->nranks || x->nbytes != y->nbytes)
            return fsdp_err_set(err, FSDP_EMISMATCH,
                                "these are not the same run: '%s' (operation %d) is of %g bytes "
                                "and %d ranks in %s, of %g bytes and %d ranks in %s",
                                x->name, x->index, x->nbytes, x->nranks, a->path, y->nbytes,
                                y->nranks, b->path);
    }
    if (a->nops != b->nops)
        return fsdp_err_set(
            err, FSDP_EMISMATCH,
            "these are not the same run: %s has %d operations, %s has %d; plan with "
            "the run's configuration and ranks",
            a->path, a->nops, b->path, b->nops);
    return FSDP_OK;
}
