/* SPDX-License-Identifier: Apache-2.0 */
/* start.h: where a run begins: a checkpoint, stored weights, or new ones. */
#ifndef TRAIN_START_H
#define TRAIN_START_H

#include "loop.h"
#include "tables.h"
#include "train/save/save.h"

struct train_start {
    /* Set by the caller. */
    struct fsdp_oob *oob; /* the job's */
    struct report *report;
    struct train_parts *parts;
    struct train_loop *loop; /* whose state it sets, and opens its reference */
    struct train_saver *saver;
    struct train_life *life;

    /* Results. */
    struct train_claim *claim;       /* rank 0's on checkpoint.path; the caller releases it */
    struct train_state begun;        /* where this run takes over */
    const char *resume;              /* checkpoint.resume, as it is to be taken */
    char resumed[TRAIN_PATH_NBYTES]; /* checkpoint that the run began from, "" for none */
    char converted[256];             /* and what of it was converted, as text */
};

/* Claims checkpoint.path, finds what to begin with, and loads it. Collective, blocks, agreed. */
int train_start_run(struct train_start *s, struct fsdp_err *err);

#endif
