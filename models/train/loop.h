/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.h: the step loop over an engine, a model and data. It uses no launcher and no
 * checkpoint; train.c joins them through the two hooks.
 */
#ifndef TRAIN_LOOP_H
#define TRAIN_LOOP_H

#include "best.h"
#include "dpo.h"
#include "evaluate.h"
#include "experts.h"
#include "noise.h"
#include "norms.h"
#include "rows.h"
#include "train/node/watch.h"
#include "train/report/report.h"
#include "train/report/sink.h"
#include "train/report/train_trace.h"
#include "train/save/life.h"
#include "train/save/save_ops.h"
#include "words.h"

/* Where a loop says what it does; the caller's. */
struct train_sinks {
    struct report *report;
    struct sinks *rows;        /* NULL: none; rank 0's */
    struct train_trace *trace; /* NULL: none */
    struct train_watch *watch; /* NULL: none */
};

struct train_hooks {
    /* What this rank asks for, TRAIN_ASK_*; step_seconds: of the latest step. NULL: nothing. */
    unsigned (*asks)(void *ctx, double step_seconds);
    void *asks_ctx;
    const struct train_save_ops *save; /* NULL: nowhere */
    void *save_ctx;
};

/* A step whose result is not read yet. */
struct train_pending {
    bool waits;
    struct metrics_row row;
    int64_t rows;           /* of the data, taken so far */
    double seconds, weight; /* weight: of the tokens that count */
};

/* What is not a step's time. */
struct train_clock {
    double mark; /* when the step before ended */
    /* Seconds since then of saving (and of those for a save that continues), of evaluating, and of
     * what is neither that nor a step. */
    double saved, held, evaluated, idle;
    double epoch;        /* Unix time minus fsdp_time_now, when the loop began */
    double exposed_comm; /* train_exposed_comm when the step before ended, and in evaluations */
};

/* What rates are measured by. */
struct train_rates {
    double token_flops; /* model FLOPs of a token, forward and backward */
    double peak_tflops; /* a rank's device's; 0: not known */
};

struct train_loop {
    /* Set by the caller, and its own. */
    double began; /* when this process began to prepare the run, 0: not told */
    const struct train_parts *parts;
    struct fsdp_oob *oob; /* where ranks agree on how many tokens of a step count */
    struct train_sinks sinks;
    struct train_hooks hooks;
    struct train_state state; /* where the loop begins, and then where it is */

    /* Results. */
    bool stopped;       /* on request of any rank */
    bool settled;       /* train.early_stop ended it */
    int64_t saved_step; /* of the latest save; the caller sets it where a checkpoint is there */

    /* The loop's own. */
    struct train_words words;
    struct train_rows rows;
    struct train_rates rates;
    struct train_norms norms;
    struct train_noise noise;
    struct train_experts experts;
    struct train_dpo dpo; /* opened by the caller, before the state is loaded */
    struct train_pending pending;
    struct train_clock clock;
    bool late;       /* results are read one step later */
    bool best_due;   /* the latest step is to be saved as the best */
    bool save_asked; /* by any rank, at the latest step whose result was read */
};

/* Allocates what the loop needs. Local. */
int train_loop_open(struct train_loop *loop, struct fsdp_err *err);
void train_loop_close(struct train_loop *loop);
/* Has the run come to its end: train.steps, train.early_stop, or a stop that was asked for? */
bool train_loop_ended(const struct train_loop *loop);
/* Runs until then, evaluates and saves when due and at the end.
 * Collective, blocks. */
int train_loop_run(struct train_loop *loop, struct fsdp_err *err);

#endif
