/* SPDX-License-Identifier: Apache-2.0 */
/* The least memory that a point can have. */
#include <string.h>

#include "search.h"

bool bound_has_masters(const struct answer *a)
{
    for (int i = 0; i < a->nmemory; i++)
        if (!strncmp(a->memory[i].what, "parameter shards without masters", 32))
            return false;
    return true;
}

/* Masters (4 bytes, split 2, none 0) and moments, as large as the run's own without their padding,
 * for which a tenth is taken off. Gradients, gathered copies and buffers come on top. */
double bound_states(const struct answer *a, int shard_nranks, bool narrow_moments, bool split,
                    bool offloaded)
{
    double optim = 0;

    for (int i = 0; i < a->nmemory; i++)
        if (!a->memory[i].host && !strcmp(a->memory[i].what, "optimizer state"))
            optim += a->memory[i].nbytes * a->shard_nranks;
    const double moments = offloaded ? 0 : narrow_moments ? optim / 4 : optim;
    const double each = !bound_has_masters(a) ? 0 : split ? 2 : 4;
    const double masters = offloaded ? 0 : each * a->ntrained;
    return 0.9 * (moments + masters) / shard_nranks;
}
