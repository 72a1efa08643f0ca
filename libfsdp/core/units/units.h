/* SPDX-License-Identifier: Apache-2.0 */
/*
 * units.h: from a module tree and a wrap policy to units, and from units to flat buffers.
 *
 * A unit is a module with what is below it and not in a unit of its own. Its parameters form at
 * most five flat buffers ("flats"), trainable, frozen, frozen in NF4, ignored and carried, each
 * with its own cut (fsdp_cut); that of the ignored ones is for one rank. All of it is a pure
 * function of the arguments.
 */
#ifndef CORE_UNITS_H
#define CORE_UNITS_H

#include "fsdp/fsdp.h"
#include "module_tree.h"

struct flat {
    int unit;
    bool trainable;
    bool whole;   /* on every rank, never gathered: ignored parameters */
    bool carried; /* sharded, never gathered */
    int ntensors;
    struct fsdp_tensor *tensors; /* as stored; names borrowed from the tree */
    int *params;                 /* [ntensors] index in the tree */
    /* As modules see it, once it is planned (gather_plan): where each tensor begins, in bytes, and
     * the end of the last; whether it is codes. */
    uint64_t *seen; /* [ntensors + 1] */
    bool *codes;    /* [ntensors] before: may it be (FSDP_PARAM_CODES)? */
    /* [ntensors] of an encoded tensor, the index of the greatest value that decides its scale
     * (gather_plan); tensors that share a scale have the same. */
    int *amax;
    int *scale_of; /* [ntensors] the first tensor of its scale_group; itself: it has none */
    bool any_codes;
    struct fsdp_cut cut;
    enum fsdp_dtype param_dtype, reduce_dtype; /* of its unit */
    const struct fsdp_gather_codec *codec;     /* NULL: modules see the masters in param_dtype */
    bool nf4;      /* its tensors are held in NF4 (nf4.h); frozen, and without a codec */
    int first_nf4; /* of them among all such */
};

/* Do ranks send the flat encoded? In a group of one nothing is sent: with a codec its shard is
 * decoded as soon as it is encoded, and one in NF4 when it is gathered. */
static inline bool flat_travels_encoded(const struct flat *flat)
{
    return (flat->codec || flat->nf4) && flat->cut.nranks > 1;
}

/* What it is gathered in, for people. */
static inline const char *flat_sent_name(const struct flat *flat)
{
    return flat->nf4 ? "NF4" : flat->codec ? flat->codec->name : fsdp_dtype_name(flat->param_dtype);
}

enum { UNIT_TRAINABLE, UNIT_FROZEN, UNIT_NF4, UNIT_IGNORED, UNIT_CARRIED, UNIT_NFLATS };

struct unit {
    int module; /* its root */
    enum fsdp_dtype param_dtype, reduce_dtype;
    bool encoded;              /* the gathered copy is encoded, if anything can be */
    int reshard_after_forward; /* as in fsdp_opts */
    bool reshard_always;       /* an override says so: even the root and the last unit */
    int flats[UNIT_NFLATS];    /* index of each kind's flat, -1: none */
};

struct units {
    int nunits, nflats, nmodules, nparams;
    struct unit *units; /* in order of their modules; the first is the root unit */
    struct flat *flats;
    int *unit_of_module;
    int *flat_of_param, *index_in_flat; /* [nparams] */
};

int units_create(struct units *out, const struct fsdp_module_tree *tree,
                 const struct fsdp_opts *opts, int shard_size, struct fsdp_err *err);
void units_destroy(struct units *units);

#endif
