/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.h: LOCAL_STATE_DICT as torch.save wrote it, a file a rank: {unit._flat_param:
 * ShardedTensor}. */
#ifndef CKPT_FSDP1_RANKS_H
#define CKPT_FSDP1_RANKS_H

#include "format/torch/plain.h"

/* Is it the name of a rank's file, such as pytorch_model_fsdp_rank3.bin? *front: bytes before the
 * number, alike in the files of all ranks. */
bool ckpt_fsdp1_is_rank(int *rank, size_t *front, const char *name);

/* Fills in ckpt->m.layout: the flat parameters as vectors, each with the parts of all ranks, and
 * what no unit has (buffers, ignored modules). front: of the names of the files. Refuses by name
 * ranks that are missing, of another number of ranks, or there twice. */
int ckpt_fsdp1_ranks_take(struct ckpt *ckpt, struct ckpt_plain_storages *storages,
                          const char *front, struct fsdp_err *err);

#endif
