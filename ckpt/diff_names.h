/* SPDX-License-Identifier: Apache-2.0 */
/* What the tensors of one checkpoint are called where two are compared: as stored, or as maps say.
 */
#ifndef CKPT_DIFF_NAMES_H
#define CKPT_DIFF_NAMES_H

#include "ckpt/ckpt.h"

struct ckpt_diff_names {
    struct ckpt *ckpt;
    char **mapped; /* [ntensors] NULL: there are no maps */
    int *sorted;   /* tensors by mapped name */
};

/* FSDP_EUNSUPPORTED: a map does more than rename. FSDP_EINVAL: two tensors would have one name. */
int ckpt_diff_names_create(struct ckpt_diff_names *out, struct ckpt *ckpt,
                           const struct ckpt_select *select, struct fsdp_err *err);
void ckpt_diff_names_destroy(struct ckpt_diff_names *names);
const char *ckpt_diff_name(const struct ckpt_diff_names *names, int tensor);
/* By that name, or where nothing is mapped by alias; NULL if absent. */
const struct ckpt_tensor *ckpt_diff_find(const struct ckpt_diff_names *names, const char *name);

#endif
