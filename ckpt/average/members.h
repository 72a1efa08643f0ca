/* SPDX-License-Identifier: Apache-2.0 */
/* members.h: the checkpoints of an average. Private to this folder. */
#ifndef CKPT_MEMBERS_H
#define CKPT_MEMBERS_H

#include "average.h"

struct ckpt_member {
    char *path; /* as it was given, without the weight */
    double weight;
    struct ckpt *ckpt;
    int *index; /* [tensors of the first] its tensor; -1: not taken */
    uint64_t hash;
};

struct ckpt_average {
    int count;
    struct ckpt_member *members; /* in the order in which values are added */
    struct ckpt **given;         /* in the order of the paths */
    double total;                /* of the weights */
};

#endif
