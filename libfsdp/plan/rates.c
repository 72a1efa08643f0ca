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
    double sum = 0, weights = 0;

    if (!(m > 0))
        return 0;
    for (int i = 0; i < rates->nrates; i++) {
        const struct fsdp_rate *r = &rates->rate[i];
        if (r->type != type || !(r->per_s > 0) || !(r->m > 0))
            continue;
        const double d2 = distance2(r, m, n, k);
        if (d2 < 1e-12)
            return r->per_s;
        sum += log(r->per_s) / (d2 * d2);
        weights += 1 / (d2 * d2);
    }
    return weights > 0 ? exp(sum / weights) : 0;
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
