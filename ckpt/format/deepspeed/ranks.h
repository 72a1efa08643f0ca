/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.h: the files of a DeepSpeed checkpoint, by rank, and what they agree about. */
#ifndef CKPT_DEEPSPEED_RANKS_H
#define CKPT_DEEPSPEED_RANKS_H

#include "format/torch/saved.h"

/* Of the file name FILE: what it is of which rank. */
enum ckpt_ds_kind {
    CKPT_DS_OTHER,
    CKPT_DS_MODEL, /* mp_rank_00_model_states.pt: of all ranks */
    CKPT_DS_MODEL_OF_RANK,
    CKPT_DS_OPTIM,
};
enum ckpt_ds_kind ckpt_ds_kind_of(int *rank, int *model_rank, const char *name);

struct ckpt_ds_ranks {
    int world;                 /* data-parallel ranks */
    bool by_rank;              /* each rank has model states of its own */
    int nmodels;               /* 1, or `world` */
    struct ckpt_saved *models; /* [nmodels] */
    struct ckpt_saved *optims; /* [world]; NULL: without ZeRO */
    int nopened_models, nopened_optims;
};

/* Opens the files of ckpt->path, which are in the layout afterwards. Refuses by name a rank that is
 * missing or of another step, and model or pipeline parallelism. */
int ckpt_ds_ranks_open(struct ckpt_ds_ranks *out, struct ckpt *ckpt, struct fsdp_err *err);
void ckpt_ds_ranks_close(struct ckpt_ds_ranks *ranks);

#endif
