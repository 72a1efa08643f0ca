/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.h: one JSON line per optimizer step, for people's plots and scripts. */
#ifndef METRICS_H
#define METRICS_H

#include "fsdp/base.h"

struct metrics;

/* What follows the name of a file of metrics in the name of its lines that were done again. */
#define METRICS_REDONE ".redone"

enum { METRICS_MAX_SOURCES = 64 };

struct metrics_row {
    int64_t step;     /* optimizer steps done, counting this one */
    double loss;      /* mean over the global batch's tokens, before the update */
    double grad_norm; /* before clipping */
    double lr;
    double loss_scale;   /* of the next step; 0: the loss is not scaled */
    bool skipped;        /* gradients overflowed: nothing was updated */
    int64_t tokens;      /* seen so far, this step's too */
    double tokens_per_s; /* of this step */
    double tflops;       /* of this step, a rank's: model FLOPs, without recomputation, over time */
    double mfu;          /* tflops over the device's peak, 0 to 1; 0: the peak is not known */
    bool has_counted;
    int64_t counted;  /* of this step's tokens, those whose prediction counts */
    int64_t examples; /* rows of data seen so far */
    /* Seconds since the step before: of this step (of which rank 0 waited for rows, and computed
     * nothing because of collectives, 0: not known), of saving, of evaluating, and others. */
    double step_s, data_s, exposed_comm_s, save_s, eval_s, idle_s;
    double memory_bytes; /* taken of rank 0's device; 0: not known */
    int slowest_rank;    /* the others wait for it */
    double slowest_s;    /* of a step outside of collectives; 0: not known */
    double time;         /* seconds of training so far, those before a resume too */
    double wall;         /* when the step ended, Unix time; 0: not told */
    int attempt;         /* of the run's starts, from 1; 0: not told */
    int ranks;           /* 0: not told */
    bool saving;         /* a checkpoint was being written in the background */
    double held;         /* seconds that beginning a background save held this step back; 0: none */
    double flushed; /* seconds that copying a staged checkpoint took, which ended here; 0: none */
    /* Rows taken so far from each source of a mixture; the caller's, at most METRICS_MAX_SOURCES.
     */
    int nsources;
    const uint64_t *source_rows;
    /* Norms of the gradients of each unit, at some steps; the caller's. */
    int nunits;
    const char *const *unit_names;
    const double *unit_norms;
    /* Of a mixture of experts: the load-balance loss and the z-loss without their factors, how
     * often the expert of a layer that was chosen least and most was, over the mean: the extremes
     * of all layers. */
    bool has_experts;
    double router_loss, router_z_loss, expert_load_min, expert_load_max;
    bool has_eval;
    bool has_rewards; /* of pairs */
    double reward_chosen, reward_rejected, reward_margin, reward_accuracy;
    double noise_scale; /* 0: not known */
    double perplexity;  /* exp(loss); 0: the loss is more than the cross-entropy */
    double eval_perplexity;
    double eval_loss;          /* mean over the held-out tokens, after the update */
    double eval_nats_per_byte; /* per byte of their text; 0: not known */
    double eval_bits_per_byte; /* likewise */
};

/* Opens path for appending, creating its folder. Lines of steps after `step`, which will be done
 * again, are first moved to the end of the file PATH.redone; unfinished lines and lines that are no
 * metrics are dropped. What is kept goes to a new file that takes the old one's name. The file is
 * locked until it is closed: FSDP_EEXIST if another run writes it. Local, blocks. */
int metrics_open(struct metrics **out, const char *path, int64_t step, struct fsdp_err *err);
/* Appends one line in one write: 9 significant digits, null where a number is not finite. */
int metrics_write(struct metrics *metrics, const struct metrics_row *row, struct fsdp_err *err);
/* The latest attempt in the file at path and in PATH.redone, 1 for lines that have none; 0: no such
 * file or lines. Local, blocks. */
int metrics_attempts(const char *path);
void metrics_close(struct metrics *metrics);

#endif
