/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.h: the step loop over an engine, a model and data. It uses no launcher and no
 * checkpoint; train.c joins them through the two hooks.
 */
#ifndef TRAIN_LOOP_H
#define TRAIN_LOOP_H

#include "config/config.h"
#include "data/data.h"
#include "train/report/metrics.h"
#include "family/model.h"
#include "train/save/life.h"
#include "train/save/save_ops.h"
#include "train/report/report.h"
#include "train/setup/train_state.h"
#include "train/report/train_trace.h"
#include "train/node/watch.h"

struct train_loop {
    /* Set by the caller, and its own. */
    const struct config *config;
    struct config_batch batch;
    struct fsdp_device *device;
    struct fsdp *fsdp;
    const struct model_ops *ops;
    struct model *model;
    int rank;
    struct data *data, *eval;  /* eval NULL: no evaluation */
    struct metrics *metrics;   /* NULL: none; rank 0's */
    struct train_trace *trace; /* NULL: none */
    struct train_watch *watch; /* NULL: none */
    struct fsdp_oob *oob;      /* where ranks agree on how many tokens of a step count */
    struct report *report;
    struct train_state state; /* where the loop begins, and then where it is */
    /* What this rank asks for, TRAIN_ASK_*; step_seconds: of the latest step. NULL: nothing. */
    unsigned (*asks)(void *ctx, double step_seconds);
    void *asks_ctx;
    const struct train_save_ops *save; /* NULL: nowhere */
    void *save_ctx;

    /* Results. */
    bool stopped;       /* on request of any rank */
    int64_t saved_step; /* of the latest save; the caller sets it where a checkpoint is there */

    /* The loop's own. */
    struct fsdp_lane *lane;
    double *control[2]; /* device: FSDP_CONTROL_NELEM of even and of odd steps */
    double *eval_sums;  /* device: the loss, its tokens, and what is not counted */
    /* (2, accumulation, micro_rows, seq_len + 1); (..., seq_len): labels where data has them or the
     * batch has padding, starts where data has labels. */
    int32_t *tokens, *labels, *starts;
    uint64_t *counts;   /* [ranks] where data has labels */
    double token_flops; /* model FLOPs of a token, forward and backward */
    double peak_tflops; /* a rank's device's; 0: not known */
    bool late;          /* results are read one step later */
    bool have_pending;
    bool save_asked;            /* by any rank, at the latest step whose result was read */
    struct metrics_row pending; /* the step whose result is not read yet */
    double pending_seconds, pending_ntokens, mark, paused, held;
};

/* Where things stand in the control word. */
enum train_control {
    TRAIN_CONTROL_LOSS,
    TRAIN_CONTROL_STOP,
    TRAIN_CONTROL_SAVE,
    TRAIN_CONTROL_SAVED
};

/* Allocates what the loop needs. Local. */
int train_loop_open(struct train_loop *loop, struct fsdp_err *err);
void train_loop_close(struct train_loop *loop);
/* The rows at place `micro` of the loop's memory, as a batch that is no step's. Local. */
struct model_batch train_loop_batch(const struct train_loop *loop, int micro);
/* Runs to train.steps or until a rank asks to stop, evaluates and saves when due and at the end.
 * Collective, blocks. */
int train_loop_run(struct train_loop *loop, struct fsdp_err *err);

#endif
