/* SPDX-License-Identifier: Apache-2.0 */
/* One of two checkpoints that are compared: its tensors as stored, or as maps make them. */
#ifndef CKPT_DIFF_SIDE_H
#define CKPT_DIFF_SIDE_H

#include "reshard/job.h"

struct ckpt_diff_side {
    struct ckpt *ckpt;
    struct ckpt_reshard_args args;
    struct ckpt_job job;         /* that is never run: what each tensor is made of */
    struct ckpt_tensor *tensors; /* [job.ntensors]; a fingerprint where it is a stored tensor's */
    int *sorted;                 /* by name */
};

/* Containers around the model (app.model.) are part of names only where `other` has some, too.
 * FSDP_EINVAL: a map does not fit, or two tensors would have one name. */
int ckpt_diff_side_create(struct ckpt_diff_side *out, struct ckpt *ckpt, const struct ckpt *other,
                          const struct ckpt_select *select, struct fsdp_err *err);
void ckpt_diff_side_destroy(struct ckpt_diff_side *side);
/* By name or alias; -1: absent. */
int ckpt_diff_side_find(const struct ckpt_diff_side *side, const char *name);
/* A box of a tensor, row-major in its dtype. */
int ckpt_diff_side_read(const struct ckpt_diff_side *side, int tensor, const struct fsdp_box *box,
                        void *dst, void *scratch, size_t scratch_nbytes, struct fsdp_err *err);

#endif
