/* SPDX-License-Identifier: Apache-2.0 */
/*
 * end.h: a bound on the end of a run that has failed. Communicators are aborted then, which
 * ends NCCL's kernels; but a GPU that hangs itself holds whoever waits for it, frees its memory or
 * aborts once more, for ever, and with this process its job.
 */
#ifndef TRAIN_END_H
#define TRAIN_END_H

#include <pthread.h>
#include <stdbool.h>

struct train_end {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool armed, done;
    int rank, code;
    const char *host;
};

/* From here to train_end_disarm must not take longer than half a minute, or the process ends with
 * this exit code and says so. host is borrowed. Local. */
void train_end_arm(struct train_end *end, int rank, const char *host, int code);
void train_end_disarm(struct train_end *end);

#endif
