/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched.h: the schedule. A pure function from (modules, units, strategy, limits) to the whole
 * step's list of operations, with the buffers each touches and the edges between lanes.
 *
 * The list is in issue order. Operations of one lane run in that order; between lanes only the
 * edges (`waits`) order them. Three kinds of entries:
 *
 *   driven     MICRO_BEGIN, ENTER, LEAVE, MICRO_END, STEP: the model or training loop arrives here
 *   automatic  GATHER, REDUCE, ...: issued as soon as the cursor reaches them
 *   FREE       gives a slot back; nothing runs
 *
 * For FULL_SHARD with one unit of prefetch the forward pass of a root and units A, B reads
 *
 *   gather(root) gather(A) enter(root) gather(B) enter(A) leave(A) free(A) enter(B) leave(B) ...
 *
 * Slots: gathered parameters and unsharded gradients live in numbered slots that are reused; the
 * planner picks the slot and the edges make the reuse safe.
 */
#ifndef CORE_SCHED_H
#define CORE_SCHED_H

#include "fsdp/fsdp.h"

enum sched_kind {
    SCHED_MICRO_BEGIN,
    SCHED_ENTER,
    SCHED_LEAVE,
    SCHED_MICRO_END,
    SCHED_STEP,
    SCHED_LOAD, /* copy the shard of an offloaded flat from the host to its place in the slot */
    SCHED_OUTER_GATHER, /* two levels: all-gather over the nodes, into this rank's part of the slot
                         */
    SCHED_GATHER,       /* all-gather a flat into its slot; of two levels the inner */
    SCHED_UNPACK,       /* chunked flats: copy what was gathered into the slot, tensor by tensor */
    SCHED_KEEP_PART,    /* after forward: copy this rank's part of the flat out of its slot */
    SCHED_REGATHER,     /* in backward: all-gather the kept parts over the small group */
    SCHED_FREE,         /* the flat's slot may be reused */
    SCHED_PACK,         /* chunked flats: copy the gradients out of their slot, rank by rank */
    SCHED_REDUCE,       /* reduce-scatter the flat's gradients out of their slot */
    SCHED_OUTER_REDUCE, /* two levels: reduce-scatter over the nodes what REDUCE left in the slot */
    SCHED_ALL_REDUCE,   /* sum the gradient shard over the replicas */
    SCHED_NORM,         /* gradient hook, partial sum of squares of the gradient shard */
    SCHED_NORM_SUM,     /* one all-reduce of norm and control word, and the clip factor */
    SCHED_STORE_SCALARS, /* copy that factor, and the loss scale, to the host */
    SCHED_FETCH,         /* copy what the flat's update needs to a state slot */
    SCHED_UPDATE,        /* optimizer on the flat's shard */
    SCHED_STORE,         /* copy what the update wrote from the state slot to where it lives */
    SCHED_AMAX,          /* greatest absolute values of encoded tensors, over all ranks */
    SCHED_ENCODE,        /* what the flat's next gathers send, from its updated shard */
    SCHED_OFFLOAD,       /* after forward: copy what a module keeps from its place to the host */
    SCHED_RELOAD,        /* in backward: copy it back to its place */
    SCHED_FETCH_GRAD,    /* copy the flat's gradient shard from the host to its place */
    SCHED_STORE_GRAD,    /* copy it back */
    SCHED_NKINDS
};

enum sched_lane {
    SCHED_COMPUTE,
    SCHED_GATHERS,
    SCHED_REDUCES,
    SCHED_REPLICATES,
    SCHED_OUTER_GATHERS,
    SCHED_OUTER_REDUCES,
    SCHED_UPLOADS,   /* from host memory; the two directions do not wait for each other */
    SCHED_DOWNLOADS, /* to it */
    SCHED_UPDATES,   /* updates that run during the next forward pass, or on the host */
    SCHED_NLANES
};

struct sched_op {
    enum sched_kind kind;
    enum sched_lane lane;  /* its row's; meaningless for FREE and MICRO_* */
    enum fsdp_phase phase; /* ENTER, LEAVE */
    int module;            /* ENTER, LEAVE, OFFLOAD, RELOAD; else -1 */
    int flat;              /* of an operation on one flat; else -1 */
    int slot;              /* LOAD .. FREE: parameter slot; REDUCE: gradient slot; FETCH .. STORE:
                            * state slot, -1 where nothing passes through one; OFFLOAD, RELOAD:
                            * activation slot; FETCH_GRAD, STORE_GRAD: grad_place; else -1 */
    int micro;             /* micro-step it belongs to; accumulation count for the step's part */
    bool on_host;          /* UPDATE: it is computed there */
    int waits, nwaits;     /* entries of sched.waits that must complete first */
    bool waited_for;       /* some operation waits for it: record an event */
};

/* A flat buffer of a unit, as far as the schedule cares. */
struct sched_flat {
    int unit;
    bool trainable;
    bool whole;           /* never gathered */
    uint64_t full_nbytes; /* of the unsharded parameters */
    uint64_t grad_nbytes; /* of the unsharded gradients */
    bool encoded;         /* the gathered copy is made from the shard after its update */
    bool packed;          /* modules do not see the shard as it is: gathered even by one rank */
    bool offloaded;       /* its update works on a state slot, which is copied to and from */
    bool on_host;         /* its update runs on the host; only with offload_grads */
    bool chunked;         /* gathered and reduced through staging (fsdp_cut); of several ranks */
    bool grad_narrow; /* they, or the shard, not fp32: they cannot be written straight into it */
};

/* A unit, as far as the schedule cares. */
struct sched_unit {
    int module; /* its root */
    bool reshard_after_forward, reshard_after_backward;
    bool reshard_always; /* even the root and the last unit, which are kept otherwise */
    bool keep_part;      /* between forward and backward keep a part and regather from it */
};

/* What a module and those inside it keep from forward to backward, where activations are offloaded.
 * Modules take turns in the slots. Those that have them last in forward are the first in backward,
 * and stay there; the others are copied to the host and back. */
struct sched_act {
    int slot; /* -1: none of its own */
    bool copied;
    int before; /* the module that had the slot before this one and gets it back; -1: none */
};
/* Gives the modules that keep something, in execution order, their slots. Returns how many there
 * are: at most nslots. Pure. */
int sched_place_acts(struct sched_act *out, const bool *keeps, int nmodules, int nslots);

enum { SCHED_MAX_ACCUMULATION = 65536 }; /* the list is written out for every micro-step */

struct sched_input {
    enum fsdp_program program;
    int nmodules, nunits, nflats;
    const int *parent;         /* [nmodules], pre-order */
    const int *unit_of_module; /* [nmodules] */
    const bool *recompute;     /* [nmodules] RECOMPUTE before BACKWARD */
    const struct sched_unit *units;
    const struct sched_flat *flats;
    bool sharded;          /* shard group of more than one rank */
    bool replicated;       /* replicate group of more than one rank */
    bool two_level;        /* the shard group gathers over nodes, then inside the node */
    bool reduce_last;      /* gradients stay unsharded until the last micro-step */
    bool update_at_reduce; /* in the last micro-step, out of the slot: there is no gradient shard */
    bool update_at_forward; /* on a lane of their own, during the next forward pass */
    int accumulation;
    int forward_prefetch, backward_prefetch;
    int limit_all_gathers; /* 0: none */
    int grad_buffers;    /* gradients in flight: the reduction of one overlaps the next's compute */
    bool offload_params; /* shards are in host memory, and gathered even by one rank */
    int offload_slots;   /* through which offloaded state passes, and activations */
    /* Gradient shards are in host memory but for a reduction or an update, and pass through
     * offload_slots places, too. Not with update_at_reduce. */
    bool offload_grads;
    const struct sched_act *acts; /* [nmodules] NULL: activations are not offloaded */
};

/* Does the flat have to be gathered before it is used? */
static inline bool sched_is_gathered(const struct sched_input *in, int flat)
{
    return (in->sharded || in->offload_params || in->flats[flat].packed) && !in->flats[flat].whole;
}

/* Chunked flats that are encoded are unpacked where they are decoded. */
static inline bool sched_is_unpacked(const struct sched_input *in, int flat)
{
    return in->flats[flat].chunked && !in->flats[flat].encoded;
}

struct sched {
    int nops, nwaits;
    struct sched_op *ops;
    /* Index of the operation to wait for; one that is >= the waiting operation's own index is the
     * one of the previous step. */
    int *waits;
    int nparam_slots, ngrad_slots;
    uint64_t *param_slot_nbytes, *grad_slot_nbytes;
    /* Which slot each flat's gradients use in each micro-step: [accumulation][nflats], -1: none
     * (the gradients are written straight into the shard). */
    int *grad_slot;
    /* [nflats] of offload_grads, -1: not trained; NULL: shards are on the device */
    int *grad_place;
    int max_unsharded; /* most units gathered at once beyond those kept */
};

/* FSDP_EINVAL for limits that cannot work. Pure. */
int sched_create(struct sched *out, const struct sched_input *in, struct fsdp_err *err);
void sched_destroy(struct sched *sched);

/* One buffer that an operation touches. Every pair of accesses to one buffer of which one writes
 * must be ordered. */
enum sched_buffer {
    SCHED_PARAM_SHARD,
    SCHED_GRAD_SHARD,
    SCHED_KEPT_PART,
    SCHED_PARAM_SLOT,
    SCHED_GRAD_SLOT,
    SCHED_GATHER_STAGING,
    SCHED_REDUCE_STAGING,
    SCHED_HOST_PARAM,
    SCHED_HOST_STATE,
    SCHED_STATE_SLOT,
    SCHED_ACT_SLOT,
    SCHED_HOST_ACT,
    SCHED_HOST_GRAD,
    SCHED_HOST_SCALARS,
    SCHED_SCALARS
};
struct sched_access {
    enum sched_buffer buffer;
    int index; /* flat, slot, place or module; 0 for the staging and the scalars */
    bool write;
};
enum { SCHED_MAX_ACCESSES = 16 };
/* Slot in which a flat is gathered at operation i, by the latest gather before it; -1: none. */
int sched_slot_of(const struct sched *sched, int flat, int i);
/* Accesses of ops[i]: what ENTER and LEAVE bracket counts for both. Returns their number. */
int sched_accesses(const struct sched *sched, const struct sched_input *in, int i,
                   struct sched_access out[SCHED_MAX_ACCESSES]);

/* ---- what each operation is: op_info.c ------------------------------------------------------- */

/* What its bytes follow from: the ranks of each group, and a flat's bytes. */
struct sched_sizes {
    int world_nranks, shard_nranks, replicate_nranks, regather_nranks;
    int inner_nranks, outer_nranks;     /* on two levels; else 0 */
    uint64_t sent_nbytes;               /* what the shard group's ranks send to a gather together */
    uint64_t param_nbytes, grad_nbytes; /* unsharded */
    uint64_t shard_nbytes;              /* in fp32 */
    uint64_t state_nbytes;              /* offloaded, of this rank */
    uint64_t grad_shard_nbytes;         /* of this rank, as it is kept */
    uint64_t act_nbytes;                /* of a module's offloaded activations */
    uint64_t norm_nbytes, amax_nbytes;  /* of the step's sums, not of a flat */
};

struct sched_access_list;

/* A collective of groups whose ranks are `stride` apart. nbytes: what a rank has after a gather, or
 * before a reduction. */
struct sched_collective {
    enum fsdp_collective kind;
    int nranks, stride;
    uint64_t nbytes;
};

struct sched_op_info {
    const char *name;
    enum sched_lane lane;
    bool driven; /* the model or the training loop arrives here; others run as soon as the cursor
                  * reaches them */
    bool comm;   /* communication, wherever it runs */
    /* (optional) Adds its accesses. NULL: nothing runs on its lane, and nothing waits for it. */
    void (*accesses)(struct sched_access_list *out, const struct sched_op *op);
    /* (optional) Which collective it is. NULL: none. */
    struct sched_collective (*collective)(const struct sched_sizes *sizes);
    /* (optional) Bytes that it copies between the host and the device. NULL: 0. */
    uint64_t (*copied)(const struct sched_sizes *sizes);
    /* (optional) Bytes of the device's memory that it reads and writes, for the cost model. NULL:
     * not worth modelling. */
    double (*touched_nbytes)(const struct sched_sizes *sizes);
    enum fsdp_pass pass; /* of these bytes */
};
extern const struct sched_op_info sched_infos[SCHED_NKINDS];

/* Bytes that each rank receives, of other ranks (with ring algorithms) or of the host. */
uint64_t sched_received(const struct sched_op_info *info, const struct sched_sizes *sizes);

static inline bool sched_is_driven(enum sched_kind kind)
{
    return sched_infos[kind].driven;
}

static inline bool sched_is_comm(enum sched_kind kind)
{
    return sched_infos[kind].comm;
}

/* Of a module, in a phase. */
static inline bool sched_is_visit(enum sched_kind kind)
{
    return kind == SCHED_ENTER || kind == SCHED_LEAVE;
}

const char *sched_kind_name(enum sched_kind kind);
const char *sched_lane_name(enum sched_lane lane);
const char *fsdp_phase_name(enum fsdp_phase phase);
uint64_t sched_hash(const struct sched *sched);

#endif
