/* SPDX-License-Identifier: Apache-2.0 */
/* words.h: single numbers of the step loop that live on the device. */
#ifndef TRAIN_WORDS_H
#define TRAIN_WORDS_H

#include "fsdp/fsdp.h"

/* Elements of a step's control word, summed over all ranks. */
enum train_control {
    TRAIN_CONTROL_LOSS,
    TRAIN_CONTROL_STOP,
    TRAIN_CONTROL_SAVE,
    TRAIN_CONTROL_SAVED,
    TRAIN_CONTROL_CHOSEN, /* sums of pairs: train_dpo_sums */
    TRAIN_CONTROL_REJECTED,
    TRAIN_CONTROL_CORRECT
};
/* Elements of eval_sums: the loss, its tokens, their bytes of text, and the loss of rows that do
 * not count. */
enum train_eval_sum {
    TRAIN_EVAL_LOSS,
    TRAIN_EVAL_NTOKENS,
    TRAIN_EVAL_NBYTES,
    TRAIN_EVAL_IGNORED,
    TRAIN_EVAL_NSUMS
};

struct train_words {
    struct fsdp_device *device; /* the caller's */
    struct fsdp_lane *lane;
    double *control[2]; /* FSDP_CONTROL_NELEM of even and of odd steps */
    double *eval_sums;  /* TRAIN_EVAL_NSUMS */
};

/* Local. A failed open is closed, too. */
int train_words_open(struct train_words *words, struct fsdp_device *device, struct fsdp_err *err);
void train_words_close(struct train_words *words);
/* Both wait until it is done. */
int train_words_zero(struct train_words *words, double *to, int nelem, struct fsdp_err *err);
int train_words_copy(struct train_words *words, double *to, const double *from,
                     struct fsdp_err *err);

#endif
