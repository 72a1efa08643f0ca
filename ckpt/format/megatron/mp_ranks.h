/* SPDX-License-Identifier: Apache-2.0 */
/* mp_ranks.h: the files of the ranks of tensor and pipeline parallelism. */
#ifndef CKPT_MEGATRON_MP_RANKS_H
#define CKPT_MEGATRON_MP_RANKS_H

#include "format/torch/saved.h"

#define CKPT_MEGATRON_FILE "model_optim_rng.pt"

/* Is it the name of a rank's folder? *split: its rank of tensor parallelism, *stage: of pipeline
 * parallelism; *more: it has a rank of expert parallelism, too. */
bool ckpt_megatron_folder(int *split, int *stage, bool *more, const char *name);

struct ckpt_megatron_ranks {
    int nsplit, nstages;
    struct ckpt_saved *files; /* [nstages * nsplit], of one stage next to each other */
    int nopened;
};

/* Opens the files of ckpt->path, which are in the layout afterwards. Refuses by name a rank that is
 * missing or of another iteration. */
int ckpt_megatron_ranks_open(struct ckpt_megatron_ranks *out, struct ckpt *ckpt,
                             struct fsdp_err *err);
void ckpt_megatron_ranks_close(struct ckpt_megatron_ranks *ranks);

#endif
