/* SPDX-License-Identifier: Apache-2.0 */
/* advice.h: which settings would help a run, each planned alone and the best ones in pairs. */
#ifndef SEARCH_ADVICE_H
#define SEARCH_ADVICE_H

#include "change.h"

struct advised {
    struct change change;
    double gain;   /* of the time for a token: 0.13 is 13 % less */
    double nbytes; /* planned memory of a GPU, beyond what it was; below 0: less */
    double step_s, device_nbytes,
        gpu_hours_gain; /* gpu_hours_gain: as gain, of GPU-hours a token */
    double exposed_share;
    bool fits, pair;
};

enum { ADVICE_MAX = 192 };
struct advice {
    struct advised item[ADVICE_MAX]; /* the best first in each group */
    int nitems;
    int nplanned, nrefused; /* plans that were made; changes that cannot be */
    bool complete;          /* else time was up */
};

struct advice_opts {
    double seconds; /* no plan begins later; 0: no bound */
    /* (optional) After each plan; false ends it. */
    bool (*progress)(void *ctx, const struct advice *advice);
    void *ctx;
};

/* All changes of change_list and pairs of them, whatever they give. Allocate *out: it is large.
 * Local, blocks. */
void advice_make(struct advice *out, const struct answer *answer, const struct question *question,
                 const struct advice_opts *opts);
/* Does it gain more than a plan can tell apart? */
bool advice_helps(const struct advised *item);
/* Groups of what helps, at most `most` of each; of a run that does not fit first what makes it fit.
 */
void advice_print(const struct advice *advice, const struct answer *answer, int most, FILE *to);

#endif
