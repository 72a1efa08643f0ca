/* SPDX-License-Identifier: Apache-2.0 */
/*
 * life.h: a run as a job of a cluster: when it must end, what its owner asks of it while it
 * runs, and whether starting it again makes sense.
 *
 * In checkpoint.path, which is where an owner looks, or in checkpoint.switches:
 *     checkpoint-now  asks for a checkpoint at the next step; removed when it is seen
 *     stop            asks for a checkpoint and the end; likewise
 * In checkpoint.path, which may be a store:
 *     job.json        of a Slurm job: where it began, how often from the same step, what it saved
 *
 * Rank 0 alone looks at clock and files; what it finds travels in the control word, so that all
 * ranks act at the same step.
 */
#ifndef TRAIN_LIFE_H
#define TRAIN_LIFE_H

#include "config/config.h"

enum { TRAIN_ASK_STOP = 1, TRAIN_ASK_SAVE = 2 };

struct train_life;

/* Rank 0's; `lead` says whether this is rank 0. Local. */
int train_life_open(struct train_life **out, const struct config *config, bool lead,
                    struct fsdp_err *err);
void train_life_close(struct train_life *life);

/* Whether a checkpoint.resume that names a checkpoint counts as auto now: this job was started
 * again and has saved. Local, blocks. */
bool train_life_goes_on(struct train_life *life);
/* The run is about to begin at this step, from a checkpoint or (resumed false) from nothing. Under
 * Slurm this refuses a job that was started again and finds no checkpoint although it had saved
 * one, and one that has begun at the same step for the fourth time: FSDP_EINVAL says what to look
 * at. Local, blocks. */
int train_life_begin(struct train_life *life, int64_t step, bool resumed, struct fsdp_err *err);
/* A checkpoint of this step took this long; life may be NULL. Local, blocks. */
void train_life_saved(struct train_life *life, int64_t step, double seconds);
/* TRAIN_ASK_*, asked before each step; step_seconds: of the latest. Local. */
unsigned train_life_asks(struct train_life *life, double step_seconds);
/* Seconds until the job ends, INFINITY where it has no end or none is known. Local. */
double train_life_left(const struct train_life *life);
/* "2026-11-22 18:00:00", when the job ends; false if it has no end or none is known. Local. */
bool train_life_end(const struct train_life *life, char *out, size_t out_nbytes);

#endif
