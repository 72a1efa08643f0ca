/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage.h: checkpoints that are made in folders of the nodes (checkpoint.staging) and copied
 * to checkpoint.path behind the training.
 *
 *   staged    on every node, whole and durable there; the step continues
 *   flushed   copied to checkpoint.path, and published
 *
 * One is flushed at a time, and one waits for it.
 */
#ifndef TRAIN_STAGE_H
#define TRAIN_STAGE_H

#include "ckpt/ckpt.h"

#include "train/setup/setup.h"
#include "stays.h"

struct train_stage {
    const struct train_parts *parts;
    struct report *report;
    struct fsdp_oob *oob;   /* the flush's own */
    struct fsdp_oob *asked; /* the saver's */
    char *folder;           /* of this run on this node; NULL: nothing is staged */
    struct ckpt_saving *flushing;
    int64_t flushing_step, pending; /* -1: none */
    int64_t *kept;                  /* [checkpoint.staging_keep] the newest, -1 behind them */
    double seconds;                 /* of the latest staged save */
    bool dropped;                   /* a flush was given up for a newer one */
    struct train_stays stays;
};

/* Finds each node's folder and tries it. Nothing where checkpoint.staging is empty. Collective,
 * blocks, agreed. */
int train_stage_open(struct train_stage *stage, const struct train_parts *parts,
                     struct fsdp_oob *oob, struct fsdp_oob *asked, struct report *report,
                     struct fsdp_err *err);
/* Gives up what is being flushed. */
void train_stage_close(struct train_stage *stage);

/* At the start: a staged checkpoint of a step after `newest`, that of the newest in
 * checkpoint.path (-1: there is none), is flushed. What is no longer whole is warned of.
 * Collective, blocks, agreed. */
int train_stage_recover(struct train_stage *stage, int64_t newest, struct fsdp_err *err);

/* A step was staged: it is flushed next. Older ones make room. Collective; blocks where two are not
 * flushed yet. */
int train_stage_add(struct train_stage *stage, int64_t step, const struct ckpt_save_result *result,
                    struct fsdp_err *err);
/* Is this rank's part of a flush done; is there no room for another staged step? Local. */
bool train_stage_is_done(const struct train_stage *stage);
bool train_stage_is_full(const struct train_stage *stage);
/* Waits for the flush; begins the one that waits. *step is -1 where it was given up. Collective,
 * agreed. */
int train_stage_finish(struct train_stage *stage, int64_t *step, struct ckpt_save_result *result,
                       struct fsdp_err *err);
/* The run stops: older steps than the one that is staged next need not be flushed. Else as
 * train_stage_finish. */
int train_stage_give_up(struct train_stage *stage, int64_t *step, struct ckpt_save_result *result,
                        struct fsdp_err *err);
/* Waits for the flush of the last step for at most so many seconds (INFINITY: without limit; rank
 * 0's count), as train_stage_finish. Collective, agreed. */
int train_stage_finish_within(struct train_stage *stage, double seconds, int64_t *step,
                              struct ckpt_save_result *result, struct fsdp_err *err);

#endif
