/* SPDX-License-Identifier: Apache-2.0 */
/* story.h: the starts of a run, how each of them ended and where the next one resumed. Pure. */
#ifndef CURVES_STORY_H
#define CURVES_STORY_H

#include "run.h"

struct story_attempt {
    int number, ranks;          /* ranks 0: not told */
    const struct run_row **row; /* in order of steps; those that were done again come last */
    size_t nrows, nkept;
};

/* A restart is what lies between two attempts. */
struct story_restart {
    bool was_killed; /* steps were lost and done again; else the run was stopped after a save */
    const struct run_row *last; /* of the attempt that ended */
    const struct run_row *from; /* the step that the next one resumed from; NULL: not in the file */
    const struct run_row *next; /* its first step */
    int ranks_before, ranks_after;
};

struct story {
    struct story_attempt *attempt;
    int nattempts;
    struct story_restart *restart; /* nattempts - 1 */
    const struct run_row **rows;   /* which the attempts share */
};

/* Rows without an attempt belong to the first, or, where the steps of a file go back, to one more.
 */
int story_make(struct story *out, const struct run *run, struct fsdp_err *err);
void story_destroy(struct story *story);

#endif
