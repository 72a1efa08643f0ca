/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "rates.h"

/* Of some rates the one at m: a straight line of logarithms between the two nearest, beyond all of
 * them the last. */
struct line {
    const struct fsdp_rate *below, *above;
};

static void take_rate(struct line *line, const struct fsdp_rate *r, double m)
{
    if (r->m <= m && (!line->below || r->m > line->below->m))
        line->below = r;
    if (r->m >= m && (!line->above || r->m < line->above->m))
        line->above = r;
}

static double line_at(const struct line *line, double m)
{
    const struct fsdp_rate *a = line->below, *b = line->above;

    if (!a || !b || a->m >= b->m)
        return a ? a->per_s : b ? b->per_s : 0;
    const double part = log(m / a->m) / log(b->m / a->m);
    return exp(log(a->per_s) + part * (log(b->per_s) - log(a->per_s)));
}

static double distance2(const struct fsdp_rate *r, double n, double k)
{
    const double dn = n > 0 && r->n > 0 ? log(r->n / n) : 0;
    const double dk = k > 0 && r->k > 0 ? log(r->k / k) : 0;
    return dn * dn + dk * dk;
}

static bool is_usable(const struct fsdp_rate *r)
{
    return r->per_s > 0 && r->m > 0;
}

/* Are two rows of one type, n and k? Those stand together. */
static bool is_alike(const struct fsdp_rate *a, const struct fsdp_rate *b)
{
    return a->type == b->type && a->n == b->n && a->k == b->k;
}

/* Forward and backward may have the same sizes: the rate of their mean time. 0: not measured. */
static double exact_rate(const struct fsdp_rates *rates, enum fsdp_dtype type, double m, double n,
                         double k)
{
    double seconds = 0;
    int count = 0;

    for (int i = 0; i < rates->nrates; i++) {
        const struct fsdp_rate *r = &rates->rate[i];
        if (r->type == type && is_usable(r) && r->m == m && r->n == n && r->k == k) {
            seconds += 1 / r->per_s;
            count++;
        }
    }
    return count ? count / seconds : 0;
}

/* Along m a straight line, so that more of it never takes less time than the rows say. */
double rates_at(const struct fsdp_rates *rates, enum fsdp_dtype type, double m, double n, double k)
{
    double sum = 0, weights = 0;
    const double exact = exact_rate(rates, type, m, n, k);

    if (exact > 0)
        return exact;
    for (int i = 0, next; m > 0 && i < rates->nrates; i = next) {
        struct line line = {NULL, NULL};
        for (next = i; next < rates->nrates && is_alike(&rates->rate[i], &rates->rate[next]);
             next++)
            if (is_usable(&rates->rate[next]))
                take_rate(&line, &rates->rate[next], m);
        const double rate = line_at(&line, m);
        if (rates->rate[i].type != type || !(rate > 0))
            continue;
        const double d2 = distance2(&rates->rate[i], n, k);
        if (d2 < 1e-12)
            return rate;
        sum += log(rate) / (d2 * d2);
        weights += 1 / (d2 * d2);
    }
    return weights > 0 ? exp(sum / weights) : 0;
}

double rates_attention(const struct fsdp_rates *rates, enum fsdp_dtype type, double keys,
                       double size, bool gradient)
{
    struct line line = {NULL, NULL};
    double nearest = INFINITY;

    for (int i = 0; i < rates->nrates; i++) {
        const struct fsdp_rate *r = &rates->rate[i];
        if (r->type != type || !(r->per_s > 0) || (r->k > 1) != gradient)
            continue;
        const double apart = fabs(log(r->n / size));
        if (apart < nearest - 1e-9) {
            nearest = apart;
            line = (struct line){NULL, NULL};
        }
        if (apart < nearest + 1e-9)
            take_rate(&line, r, keys);
    }
    return line_at(&line, keys);
}

/* How well a rate fits what is asked for; 0: not at all. */
static int pass_fit(const struct fsdp_rate *r, enum fsdp_pass pass, bool gradient,
                    enum fsdp_dtype type)
{
    if (!(r->per_s > 0) || !(r->m > 0))
        return 0;
    if ((int)r->n != (int)pass)
        return (int)r->n == FSDP_PASS_COPY ? 1 : 0;
    return 2 + ((r->k > 1) == gradient ? 2 : 0) + (r->type == type ? 1 : 0);
}

double rates_pass(const struct fsdp_rates *rates, enum fsdp_pass pass, bool gradient,
                  enum fsdp_dtype type, double nbytes)
{
    struct line line = {NULL, NULL};
    int best = 1;

    for (int i = 0; i < rates->nrates; i++) {
        const int fit = pass_fit(&rates->rate[i], pass, gradient, type);
        if (fit > best)
            line = (struct line){NULL, NULL};
        best = fit > best ? fit : best;
        if (fit == best)
            take_rate(&line, &rates->rate[i], nbytes);
    }
    return line_at(&line, nbytes);
}

static bool is_of(const struct fsdp_collective_time *t, enum fsdp_collective kind,
                  struct fsdp_group group)
{
    return t->kind == kind && t->nranks == group.nranks && t->nnodes == group.nnodes;
}

/* The nearest measured sizes: at most nbytes and the one before that, above it. */
struct around {
    const struct fsdp_collective_time *under, *below, *above;
};

static struct around look_around(const struct fsdp_net_clock *net, enum fsdp_collective kind,
                                 struct fsdp_group group, double nbytes)
{
    struct around a = {NULL, NULL, NULL};

    for (int i = 0; i < net->nmeasured; i++) {
        const struct fsdp_collective_time *t = &net->measured[i];
        if (!is_of(t, kind, group))
            continue;
        if (t->nbytes > nbytes) {
            if (!a.above || t->nbytes < a.above->nbytes)
                a.above = t;
        } else if (!a.below || t->nbytes > a.below->nbytes) {
            a.under = a.below;
            a.below = t;
        } else if (t->nbytes < a.below->nbytes && (!a.under || t->nbytes > a.under->nbytes)) {
            a.under = t;
        }
    }
    return a;
}

double rates_collective(const struct fsdp_net_clock *net, enum fsdp_collective kind,
                        struct fsdp_group group, double nbytes)
{
    const struct around a = look_around(net, kind, group, nbytes);

    if (!a.below) /* smaller than all: no less than the smallest takes */
        return a.above ? a.above->seconds : -1;
    const struct fsdp_collective_time *from = a.above ? a.below : a.under;
    const struct fsdp_collective_time *to = a.above ? a.above : a.below;
    /* Where only one is smaller, or a larger one took less, larger ones take as much per byte. */
    if (!a.above && (!from || !(to->seconds > from->seconds)))
        return to->seconds * nbytes / to->nbytes;
    const double slope = (to->seconds - from->seconds) / (to->nbytes - from->nbytes);
    return from->seconds + slope * (nbytes - from->nbytes);
}
