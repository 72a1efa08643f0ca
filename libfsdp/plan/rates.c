/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "rates.h"

static double distance2(const struct fsdp_rate *r, double m, double n, double k)
{
    const double dm = log(r->m / m), dn = n > 0 && r->n > 0 ? log(r->n / n) : 0;
    const double dk = k > 0 && r->k > 0 ? log(r->k / k) : 0;
    return dm * dm + dn * dn + dk * dk;
}

double rates_at(const struct fsdp_rates *rates, enum fsdp_dtype type, double m, double n, double k)
{
    double sum = 0, weights = 0, exact = 0;
    int nexact = 0;

    if (!(m > 0))
        return 0;
    for (int i = 0; i < rates->nrates; i++) {
        const struct fsdp_rate *r = &rates->rate[i];
        if (r->type != type || !(r->per_s > 0) || !(r->m > 0))
            continue;
        const double d2 = distance2(r, m, n, k);
        if (d2 < 1e-12) { /* forward and backward may have the same sizes: the mean time */
            exact += 1 / r->per_s;
            nexact++;
            continue;
        }
        sum += log(r->per_s) / (d2 * d2);
        weights += 1 / (d2 * d2);
    }
    if (nexact)
        return nexact / exact;
    return weights > 0 ? exp(sum / weights) : 0;
}

/* Of the rates that `is` picks the one at m: a straight line of logarithms between the two nearest,
 * beyond all of them the last. */
struct line {
    const struct fsdp_rate *below, *above;
};

static void take(struct line *line, const struct fsdp_rate *r, double m)
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
            take(&line, r, keys);
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
            take(&line, &rates->rate[i], nbytes);
    }
    return line_at(&line, nbytes);
}

static bool is_of(const struct fsdp_collective_time *t, enum fsdp_collective kind,
                  struct fsdp_group group)
{
    return t->kind == kind && t->nranks == group.nranks && t->nnodes == group.nnodes;
}

double rates_collective(const struct fsdp_net_clock *net, enum fsdp_collective kind,
                        struct fsdp_group group, double nbytes)
{
    const struct fsdp_collective_time *below = NULL, *above = NULL, *t;
    const struct fsdp_collective_time *under = NULL, *over = NULL; /* the second nearest */

    for (int i = 0; i < net->nmeasured; i++) {
        t = &net->measured[i];
        if (!is_of(t, kind, group))
            continue;
        if (t->nbytes <= nbytes) {
            if (!below || t->nbytes > below->nbytes) {
                under = below;
                below = t;
            } else if (!under || t->nbytes > under->nbytes) {
                under = t;
            }
        } else if (!above || t->nbytes < above->nbytes) {
            over = above;
            above = t;
        } else if (!over || t->nbytes < over->nbytes) {
            over = t;
        }
    }
    if (!below && !above)
        return -1;
    if (!above) {
        above = below;
        below = under;
    } else if (!below) {
        below = above;
        above = over;
        if (above) /* smaller than all: no less than the smallest takes */
            return below->seconds;
    }
    if (!below || !above || above->nbytes <= below->nbytes)
        return (above ? above : below)->seconds;
    const double slope = (above->seconds - below->seconds) / (above->nbytes - below->nbytes);
    const double seconds = below->seconds + slope * (nbytes - below->nbytes);
    return seconds > 0 ? seconds : 0;
}
