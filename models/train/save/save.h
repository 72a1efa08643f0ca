/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.h: saving from a run, at once, in the background, or by way of staging
 * (stage.h). A background save writes a
 * snapshot of the state on a thread of its own; at most one is in flight. What it says (published,
 * failed) is heard by all ranks in the same step, because its end is part of the control word.
 */
#ifndef TRAIN_SAVE_H
#define TRAIN_SAVE_H

#include "ckpt/ckpt.h"

#include "base.h"
#include "claim.h"
#include "life.h"
#include "save_ops.h"
#include "train/report/sink.h"
#include "train/setup/setup.h"
#include "stage.h"

enum { TRAIN_PATH_NBYTES = 4096, TRAIN_MAX_EXTRA = 20 };

struct train_saver {
    const struct train_parts *parts;
    struct report *report;
    struct train_life *life;   /* hears of every checkpoint; NULL is allowed */
    struct train_claim *claim; /* NULL but on rank 0 */
    struct sinks *sinks;       /* hear of every checkpoint, too; NULL is allowed */
    struct fsdp_oob *oob;      /* checkpoints' own; the background's while it writes */
    struct fsdp_oob *asked;    /* for what ranks agree on meanwhile */
    char *settings;            /* the configuration as YAML */
    struct ckpt_alias *aliases;
    int naliases;
    char *extra[TRAIN_MAX_EXTRA]; /* files that go along */
    int nextra;
    struct train_base base;
    struct train_peft peft;
    struct train_base_slices slices; /* of the save */

    struct fsdp_snapshot *snapshot; /* NULL: saves are not in the background */
    struct ckpt_saving *writing;    /* NULL: none is in flight */
    char *writing_state;            /* its state_json */
    int64_t writing_step;
    char saved[TRAIN_PATH_NBYTES]; /* latest one published, or staged after it */

    /* Steps of the best checkpoint: as the latest save knows it, and published. 0: none. */
    int64_t best, best_published;

    struct train_stage stage;
    struct train_stays stays;
    double flushed;   /* seconds, not yet told */
    bool left_staged; /* the job's time ends before the last checkpoint is in the store */
};
/* Of one core, what a writer takes while the training computes on all: steps become at most so much
 * longer. */
#define TRAIN_WRITER_SHARE 0.10

extern const struct train_save_ops train_saver_ops; /* ctx: struct train_saver */

/* Channels, names of files that go along, host memory. Collective, blocks, agreed. */
int train_saver_open(struct train_saver *saver, const struct train_parts *parts,
                     struct fsdp_oob *oob, struct report *report, struct fsdp_err *err);
/* Waits for a save in flight. */
void train_saver_close(struct train_saver *saver);

#endif
