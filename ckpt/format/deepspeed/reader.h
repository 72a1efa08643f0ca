/* SPDX-License-Identifier: Apache-2.0 */
/* reader.h: what the parts of the reader of DeepSpeed's checkpoints share while one is opened. */
#ifndef CKPT_DEEPSPEED_READER_H
#define CKPT_DEEPSPEED_READER_H

#include "flat.h"
#include "ranks.h"

enum { CKPT_DS_MOST_SLOTS = 8, CKPT_DS_SLOT_NBYTES = 48 };

/* What the optimizer keeps for each element: the masters, and moments such as exp_avg. */
struct ckpt_ds_slot {
    char name[CKPT_DS_SLOT_NBYTES]; /* "" of the masters */
    struct ckpt_ds_stream *streams; /* [groups] of ZeRO 1 and 2, [world] of ZeRO 3 */
};

struct ckpt_ds_reader {
    struct ckpt *ckpt;
    struct ckpt_ds_ranks ranks;
    struct ckpt_plain_storages *storages; /* ckpt->format_state */
    bool by_rank;                         /* ZeRO 3: a stream is a rank's, not a group's */
    int nstreams;
    int nslots;
    struct ckpt_ds_slot slots[CKPT_DS_MOST_SLOTS];
    uint64_t *pos;                   /* [nstreams] where the next parameter begins */
    struct ckpt_plain_vector *steps; /* [vectors of a rank] its counter; nelem 0: no tensor */
};

/* vectors.c: the streams of all slots, and r->steps. */
int ckpt_ds_vectors_take(struct ckpt_ds_reader *r, int ngroups, struct fsdp_err *err);
/* ZeRO 1 and 2: do the ranks say that they have the parameter where it is taken from? */
int ckpt_ds_mapping_check(const struct ckpt_ds_reader *r, const char *param, int group,
                          uint64_t nelem, struct fsdp_err *err);

/* masters.c: parameters and what the optimizer keeps for them, of `param_shapes`. */
int ckpt_ds_masters_take(struct ckpt_ds_reader *r, const struct ckpt_pk *groups,
                         struct fsdp_err *err);
/* frozen.c: what no optimizer has: frozen parameters and buffers. groups: as above, NULL: none;
 * have: names that were taken already, NULL: none. */
int ckpt_ds_frozen_take(struct ckpt_ds_reader *r, const struct ckpt_pk *groups,
                        const struct ckpt_names *have, struct fsdp_err *err);

/* universal.c: what ds_to_universal.py wrote, if that is what lies there. */
int ckpt_ds_universal_take(bool *is, struct ckpt_ds_reader *r, const struct ckpt_pk *groups,
                           struct fsdp_err *err);

bool ckpt_ds_names_have(const struct ckpt_names *names, const struct ckpt_pk *name);
/* A name as text, checked. `what` names the file in errors. */
int ckpt_ds_name(char *out, size_t nbytes, const struct ckpt_pk *name, const char *what,
                 struct fsdp_err *err);
/* A shape as the pickle has it, checked; of fp32. */
int ckpt_ds_shape(struct fsdp_tensor *out, const char *name, const struct ckpt_pk *shape,
                  const char *what, struct fsdp_err *err);

#endif
