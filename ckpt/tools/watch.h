/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.h: the checkpoints of a run, published as weights while it trains.
 *
 *   watch.c       which steps are missing in the output, and making them
 *   watch_run.c   is there still a run?
 *   watch_then.c  the command or request after each
 *
 * Below the output there are, for each step, the weights (step-00000500), then a note that all is
 * done (step-00000500.published), and `latest`, which names the highest such step. What these say
 * is all that a watcher needs to know of earlier ones.
 */
#ifndef CKPT_WATCH_H
#define CKPT_WATCH_H

#include "tool.h"

struct watch_args {
    struct tool *tool;
    const char *root, *out;
    const char *suffix;   /* of the weights' names: ".gguf", or "" */
    const char *then;     /* a command for the shell, or an address; NULL: none */
    double poll_s, end_s; /* between two looks; without a run, before the end */
};

/* Until the run has ended and all is published, or a signal. The exit status. */
int watch(const struct watch_args *args);

/* ---- watch_run.c ---- */

struct watch_run {
    bool seen;      /* a run was there */
    uint64_t hash;  /* of its note */
    double changed; /* when that was another one; 0: never */
    double alone;   /* since when there is none */
};
/* Is it time to end? Local, blocks. */
bool watch_run_is_over(struct watch_run *run, const struct watch_args *args);

/* ---- watch_then.c ---- */

/* Runs the command with CKPT_STEP, CKPT_SOURCE and CKPT_OUTPUT in its environment; or sends them to
 * an address, as JSON. FSDP_ECANCELED where a signal ended the wait; a command then has got
 * SIGTERM.
 */
int watch_then(const char *command, int64_t step, const char *source, const char *output,
               struct fsdp_err *err);

#endif
