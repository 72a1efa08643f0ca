/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps a thread to a share of one processor, block by block: what it took beyond its share, it
 * rests. A thread that merely had a lower priority would wait on a busy machine for time slices
 * that others never leave, and each wait for the disk would end in such a wait.
 *
 * Who rests wakes at a tick of the clock that all share: ranks that compute in step wait for the
 * slowest, so that writers who worked one after another would hold all of them each time.
 *
 *     rank 0  ##......##......##......     #: its writer works
 *     rank 1  ##......##......##......     a step is longer by one share, not by two
 */
#ifndef CKPT_PACE_H
#define CKPT_PACE_H

#include "fsdp/base.h"

/* What a thread with a share does between two rests: short enough that a step hardly notices. */
enum { CKPT_PACED_BLOCK_NBYTES = 2 << 20 };

struct ckpt_pace {
    double share; /* 0: unlimited */
    double wall, cpu;
    double ahead; /* seconds of processor time taken in advance */
};

/* Between two blocks, by the thread that is kept. */
void ckpt_pace_keep(struct ckpt_pace *pace);

#endif
