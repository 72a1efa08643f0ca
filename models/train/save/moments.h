/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moments.h: what a run takes of the optimizer's state in a checkpoint. Parameters that were
 * frozen when it was written have no moments in it, and averages may be new: they start fresh.
 */
#ifndef TRAIN_MOMENTS_H
#define TRAIN_MOMENTS_H

#include <jansson.h>

#include "train/setup/setup.h"

#include "ckpt/ckpt.h"

struct train_moments {
    const struct train_parts *parts;
    const struct ckpt *ckpt; /* borrowed, like parts */
    json_t *params;          /* {name: index in the tree} */
    int64_t *since;          /* [nparams] fsdp_param_since of each */
    bool *fresh;             /* [nparams] trains, and has no moments in ckpt */
    int nfresh, first;       /* how many, and the first of them */
    bool average_fresh;      /* ckpt has no average at all, and the run keeps one */
    bool average_left;       /* ckpt has one, and the run keeps none */
};

/* How many updates each parameter has had, from ckpt; *step is raised to the most of them where a
 * torch checkpoint counts per parameter. Collective, blocks, agreed. */
int train_moments_open(struct train_moments *m, const struct train_parts *parts, struct ckpt *ckpt,
                       int64_t *step, struct fsdp_oob *oob, struct fsdp_err *err);
void train_moments_close(struct train_moments *m);

/* Refuses the state of another optimizer (FSDP_EMISMATCH, naming optim.name), and decides which
 * parameters start fresh after `nupdates` updates. The same on every rank. Local. */
int train_moments_decide(struct train_moments *m, int64_t nupdates, struct fsdp_err *err);
/* A ckpt_slices_f; ctx: a struct train_moments. Slices that start fresh are set, others are given
 * to fn. */
int train_moments_slices(void *ctx, fsdp_slice_f *fn, void *fn_ctx, struct fsdp_err *err);
/* Logs what started fresh. */
void train_moments_report(const struct train_moments *m);

/* {parameter: updates of the run before its first} of those with any, for train_state_write; NULL
 * without memory. */
json_t *train_moments_json(const struct fsdp *f, const struct fsdp_module_tree *tree);

#endif
