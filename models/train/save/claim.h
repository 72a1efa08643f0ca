/* SPDX-License-Identifier: Apache-2.0 */
/*
 * claim.h: one run at a time in a folder of checkpoints. Two would remove each other's, and
 * publish steps of two runs side by side.
 *
 * While a run lasts, its rank 0 keeps a note `running.json` in checkpoint.path (a folder or a
 * store): who it is, and a number that it counts up every few seconds. A run that ends takes the
 * note away; one that was killed leaves it. So a run that finds a note asks whether its owner
 * lives:
 *
 *     the same kernel and process namespace   is there such a process, begun at that time?
 *     a Slurm job that was started again      its earlier start is over
 *     anything else                           does the number change within four of its periods?
 *
 * The last needs no clocks that agree, no locks that a file system may lack and no answer of the
 * other machine; over NFS it holds because a file that is opened anew is read anew, and the note is
 * replaced whole. A run that could not write for so long, and was succeeded, finds the successor's
 * note before it saves or removes anything, and ends.
 */
#ifndef TRAIN_CLAIM_H
#define TRAIN_CLAIM_H

#include "config/config.h"

struct train_claim;

/* Rank 0's. Without checkpoint.path *out is NULL. FSDP_EEXIST, naming host and process: another run
 * lives there. Local, blocks: up to four periods where its owner must be watched. */
int train_claim_take(struct train_claim **out, const struct config *config, struct fsdp_err *err);
/* FSDP_EEXIST where another run has taken the folder since. A NULL claim is good. Local, blocks. */
int train_claim_check(struct train_claim *claim, struct fsdp_err *err);
/* Has that been seen already? Local. */
bool train_claim_is_lost(struct train_claim *claim);
/* Takes the note away if it is still this run's; NULL is allowed. Local, blocks. */
void train_claim_release(struct train_claim *claim);

#endif
