/* SPDX-License-Identifier: Apache-2.0 */
/* keep.h: checkpoints of a program of one's own, with the checkpoint library. */
#ifndef KEEP_H
#define KEEP_H

#include <fsdp/fsdp.h>

/* Saves the state after `step` steps as folder/step-%08d. Collective. */
int keep_save(struct fsdp *f, const char *folder, int step, struct fsdp_oob *oob,
              struct fsdp_err *err);
/* Loads the newest checkpoint in folder, whatever number of ranks wrote it. *step: its steps, or 0
 * where there is no checkpoint yet. Collective. */
int keep_load(int *step, struct fsdp *f, const char *folder, struct fsdp_oob *oob,
              struct fsdp_err *err);

#endif
