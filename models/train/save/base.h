/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base.h: a run that trains adapters reads the model that they are added to, its base, where that
 * lies. Its checkpoints hold what is trained, and of the base a path and the fingerprints of its
 * tensors.
 */
#ifndef TRAIN_BASE_H
#define TRAIN_BASE_H

#include <jansson.h>

#include "train/setup/setup.h"

/* Parameters of such a run. */
enum {
    TRAIN_BASE = 1,     /* frozen */
    TRAIN_WHOLE = 2,    /* of the model, and trained (lora.modules_to_save) */
    TRAIN_ADAPTERS = 4, /* A and B */
    TRAIN_TRAINED = TRAIN_WHOLE | TRAIN_ADAPTERS
};

struct train_base {
    const struct train_parts *parts;
    json_t *kinds;                   /* by name of a parameter; NULL: the run has no adapters */
    struct fsdp_state_layout layout; /* of what checkpoints have */
    struct fsdp_flat_desc *flats;
    json_t *prints; /* fingerprints of the base's tensors, by name, as they were loaded */
};

/* Local. */
int train_base_open(struct train_base *base, const struct train_parts *parts, struct fsdp_err *err);
void train_base_close(struct train_base *base);
static inline bool train_base_is_on(const struct train_base *base)
{
    return base->kinds != NULL;
}
/* Layout of checkpoints, of all runs. Lives as long as base and engine. */
const struct fsdp_state_layout *train_base_layout(const struct train_base *base);

/* Some of the slices that another function gives; as a ckpt_slices_f with this as its context. */
struct train_base_slices {
    const struct train_base *base;
    int kinds;                        /* TRAIN_... */
    const struct ckpt_adapter *names; /* whose names of parameters they get; NULL: their own */
    ckpt_slices_f *slices;
    void *ctx;
};
int train_base_each(void *ctx, fsdp_slice_f *fn, void *fn_ctx, struct fsdp_err *err);
/* ckpt_load_args.whole for a load of the base. ctx: struct train_base. */
void train_base_loaded(void *ctx, const char *name, uint64_t fingerprint);

/* model.path, whole where it is of this machine; freed with fsdp_free. */
char *train_base_path(const struct train_base *base, struct fsdp_err *err);
/* What a checkpoint's state says of the base; a new reference, NULL where memory is short. */
json_t *train_base_json(const struct train_base *base);
/* FSDP_EMISMATCH where the adapters are others than those of the run of this state, or have another
 * factor, or names the first tensor of the loaded base that is not the one that it was made with;
 * path: the checkpoint. Local. */
int train_base_check(const struct train_base *base, const char *state_json, const char *path,
                     struct fsdp_err *err);

/* ---- PEFT's files ---------------------------------------------------------------------------- */

/* What is trained, as PEFT stores it, in a temporary folder of rank 0. */
struct train_peft {
    char *folder, *config, *tensors; /* NULL but on rank 0 */
};
int train_peft_open(struct train_peft *peft, const struct train_base *base, bool lead,
                    struct fsdp_err *err);
/* Writes both files anew. Collective, blocks, agreed. */
int train_peft_write(const struct train_peft *peft, const struct train_base *base,
                     struct fsdp_oob *oob, struct fsdp_err *err);
/* Removes the files: a save has taken them, or has failed. */
void train_peft_clear(const struct train_peft *peft);
/* Removes files and folder. */
void train_peft_close(struct train_peft *peft);

#endif
