/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.h: a file that says how a run is doing now, for fsdp-top and scripts. Rank 0 replaces it
 * as a whole, at most every two seconds and where the run changes what it does; it stays when the
 * run has ended, and then says how.
 */
#ifndef TRAIN_STATUS_H
#define TRAIN_STATUS_H

#include "fsdp/base.h"
#include "process.h"

/* Its name in checkpoint.path; the end of its name next to log.metrics. */
#define STATUS_NAME "status.json"
#define STATUS_SUFFIX ".status.json"

enum status_state {
    STATUS_STARTING,
    STATUS_RUNNING,
    STATUS_SAVING,
    STATUS_EVALUATING,
    STATUS_HUNG,
    STATUS_STOPPED,
    STATUS_FAILED,
    STATUS_DONE,
};

/* Times are Unix times, 0: not known, as are other numbers where 0 has no meaning. */
struct status {
    enum status_state state;
    struct process process;                           /* rank 0's */
    char config[512], checkpoints[512], metrics[512]; /* whole paths, "" for none */
    char job[64];                                     /* Slurm's, "" for none */
    int attempt, ranks, nodes;
    int64_t first_step, step, steps;
    double loss, eval_loss; /* NAN: not known */
    double lr, tokens_per_s, mfu;
    double step_s;             /* of training a step, smoothed */
    double began, at, step_at; /* the run, this file, the latest step */
    struct {
        int64_t step; /* -1: nothing is saved */
        double at;
    } saved;
    struct {
        int rank; /* -1: not known */
        double seconds;
    } slowest;
    struct {
        int rank; /* -1: none */
        char host[256], where[320];
    } hung;
    char reason[512]; /* why it failed, "" for nothing */
};

const char *status_word(enum status_state state);
/* Replaces the file at path. Local, blocks. */
int status_write(const struct status *status, const char *path, struct fsdp_err *err);
/* False: what is at `path` is another program's: JSON that is no status, or larger than one. */
bool status_may_replace(const char *path);
/* FSDP_ENOTFOUND: no such file; FSDP_ECORRUPT: it is no status. Local, blocks. */
int status_read(struct status *out, const char *path, struct fsdp_err *err);

#endif
