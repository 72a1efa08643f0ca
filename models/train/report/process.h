/* SPDX-License-Identifier: Apache-2.0 */
/* process.h: which process wrote a file, and whether it still runs. */
#ifndef TRAIN_PROCESS_H
#define TRAIN_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

struct process {
    char host[256];
    char place[128]; /* of the kernel since its boot, and of the process namespace; "": not known */
    int pid;
    int64_t begun; /* in the kernel's ticks */
};

void process_self(struct process *out);
bool process_is_same(const struct process *a, const struct process *b);
/* It can be seen from here: the kernel and the process namespace are ours. */
bool process_is_near(const struct process *p);
/* Of one that is near: there is such a process, begun at that time. */
bool process_runs(const struct process *p);

#endif
