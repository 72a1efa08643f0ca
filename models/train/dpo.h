/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dpo.h: direct preference optimization (Rafailov et al., arXiv 2305.18290), with the conservative
 * loss of label smoothing (cDPO), as TRL's loss_type "sigmoid".
 *
 * Of a pair with log-probabilities c, r of the answers, and c', r' by the frozen reference, the
 * loss is -log sigmoid(beta h), h = (c - c') - (r - r'). Its gradient is that of c - r times a
 * factor which depends on h. A step therefore computes h of all of its pairs in passes without
 * gradients, and then trains on the cross-entropy of both answers with these factors as weights.
 * The reference is the model as it begins: its log-probabilities are computed once, before the
 * first step.
 */
#ifndef TRAIN_DPO_H
#define TRAIN_DPO_H

#include "rows.h"
#include "train/report/metrics.h"
#include "train/setup/train_state.h"

/* Of pairs, on all ranks together after a sum. */
struct train_dpo_sums {
    double loss;
    double chosen, rejected; /* rewards: beta (c - c'), beta (r - r') */
    uint64_t npairs;
    double correct; /* pairs whose chosen answer has the higher reward */
};

struct train_dpo {
    const struct train_parts *parts; /* the caller's; NULL: the objective is another */
    struct fsdp_lane *lane;
    double *losses; /* of the device: (2 micro_rows) of sequences, and one that is not read */
    double *host;   /* (ranks, 2 micro_rows) */
    double *logps;  /* of a pass, (2 micro_rows) */
    /* (pairs, 2) by data_mixture_row_id: the reference's log-probabilities */
    double *reference, *eval_reference;
    double probe; /* sum of the reference's of some pairs: which reference it is */
};

/* Computes the reference's log-probabilities with the weights that the engine has. end: the run
 * reads no row of the data from this one on; the same on all ranks. Nothing where train.objective
 * is another. A failed open is closed, too. Collective, blocks. */
int train_dpo_open(struct train_dpo *dpo, const struct train_parts *parts, uint64_t end,
                   struct fsdp_oob *oob, struct fsdp_err *err);
void train_dpo_close(struct train_dpo *dpo);
/* The pairs of a step, whose rows train_rows_step has read, get the weights of their losses; *sums
 * are this rank's. Collective, blocks. */
int train_dpo_weigh(struct train_dpo *dpo, struct train_rows *rows, const struct train_state *state,
                    struct train_dpo_sums *sums, struct fsdp_err *err);
/* Of B held-out pairs from row `first` on, which are in the places from 0 on; adds to *sums.
 * Collective, blocks. */
int train_dpo_evaluate(struct train_dpo *dpo, const struct train_rows *rows, uint64_t first, int B,
                       struct train_dpo_sums *sums, struct fsdp_err *err);

#endif
