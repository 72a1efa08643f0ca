/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h: struct fsdp, the engine's whole state, shared by
 *
 *   create/   planning, memory, the agreement of ranks
 *   run/      the cursor through the schedule, what modules see, the optimizer step
 *   between/  what happens between steps: whole parameters
 *   trace/    what ran when
 *   state/    masters, their gathered copies, offloading, slices for checkpoints
 *
 * Each of them uses those below it, units/ and sched/.
 *
 * Memory of one rank for one flat, which is W shards of s elements:
 *
 *   master   [s]      fp32: the parameters that the optimizer updates. Where param_dtype is fp32 it
 *                     is also the shard that is gathered; NULL where it is split (master.c), where
 *                     there is none (FSDP_MASTER_NONE), or where what is frozen has none
 *                     (frozen_in_param_dtype, frozen_in_nf4)
 *   param    [s]      param_dtype: the shard that is gathered; of a split master the upper half; in
 *                     groups of one what modules see, with a gather codec the decoded values.
 *                     In NF4: the codes of its elements and of their scales (state/nf4.h)
 *   rest     [s]      16 bits: the lower half of a split master
 *   optim             exp_avg, momentum_buffer, z, ema, ..., of trainable flats: [s] of each slot
 *                     that all parameters have for each element, else what the shard's parameters
 *                     have, one after another (state/slots.h)
 *   grad     [s]      grad_dtype: the reduced gradient, accumulated over micro-steps; with
 *                     FSDP_UPDATE_AT_REDUCE where it was reduced, in reduce_dtype, until its
 *                     update; where it is offloaded, on the host (its place on the device is
 *                     grad_here)
 *   staging  [W * s]  chunks of a flat (fsdp_cut), gathered or to be reduced, one for each lane
 *   slots    [W * s]  unsharded parameters or gradients, shared by flats as the schedule says; of
 *                     parameters none where gathers are in place
 *
 * The first five are persistent. Those that are offloaded (offload.c) live in host memory or in a
 * file, and are copied to the place of an update, or into the slot that is gathered. Offloaded
 * activations (activations.h) are copied likewise.
 */
#ifndef CORE_ENGINE_H
#define CORE_ENGINE_H

#include "optim/optimizer.h"
#include <stdatomic.h>

#include "fsdp/fsdp.h"
#include "core/sched/sched.h"
#include "core/units/units.h"

/* Slots of all trainable parameters together: their optimizers', and an average. */
enum { MAX_SLOTS = 16 };

struct flat_state {
    float *master;
    uint16_t *rest;
    void *param;
    void *side_by_side;     /* [W * s] param of all ranks, where gathers are in place, or NULL */
    void *part;             /* [W * s / regather_size] kept from forward to backward, or NULL */
    void *grad;             /* flat_grad_dtype */
    void *optim[MAX_SLOTS]; /* as engine_optim.slots */
    void *by_hand;          /* [W * s] param_dtype, between fsdp_unshard and fsdp_reshard */
};

/* A piece of a flat's shard that one optimizer updates with one set of settings. */
struct update_run {
    int flat, tensor;    /* the first of it */
    uint64_t pos, nelem; /* within the shard */
    const struct optimizer *kind;
    int slots[OPTIMIZER_MAX_STATE];   /* as its state; -1: it keeps none */
    uint64_t at[OPTIMIZER_MAX_STATE]; /* where the run begins in each */
    struct optimizer_hyper hyper;
    /* Of runs of one tensor, as they are where something is rounded stochastically. */
    uint64_t key, weight_key, first; /* fsdp_rounding: of moments, of weights */
};

/* A program: its list, and an event per operation that another lane waits for. */
struct program {
    struct sched_input input;
    struct sched sched;
    struct fsdp_event **events; /* [nops], NULL where nobody waits */
};

struct module_mem {
    void *saved, *recomputed, *work, *cheap;
    /* Of a module whose activations are offloaded: those that it and the modules inside it keep, on
     * the device and on the host; home NULL: they stay there. */
    void *place, *home;
    uint64_t place_nbytes;
};

struct arena_row {
    char what[80];
    uint64_t nbytes;
    bool host, file;
};
enum { ARENA_MAX_ROWS = 36 };

/* ---- struct fsdp, part by part --------------------------------------------------------------- */

/* What was planned before step one. */
struct engine_plan {
    struct program programs[2]; /* by enum fsdp_program */
    int *parent;
    struct sched_unit *sched_units;
    struct sched_flat *sched_flats;
    bool *recompute;
    int *checkpointing; /* FSDP_AC_*; other than NONE where recompute, and inside */
    /* Shards of all ranks lie side by side in memory that they have in common. They are used there,
     * and no slot is gathered into. A rank uses the others' shards after the barrier of a gather,
     * which they enter when they have updated them. They update them again after the reduction of
     * the flat's gradients, which this rank enters when it has used them. What changes them between
     * two steps comes after the sum of norms, which every rank enters when it has used all. An
     * evaluation has neither, and ends with a barrier. */
    bool in_place;
    struct sched_act *acts; /* [nmodules] where their activations are; NULL: not offloaded */
    int nact_slots;
    struct fsdp_event *tails[SCHED_NLANES]; /* order one program after another */
};

/* Where the model is in the list. */
struct engine_cursor {
    struct program *program; /* NULL between programs */
    int index;               /* of its next operation */
    bool broken; /* a call was refused in mid-step: nothing continues until fsdp_step_reset */
    atomic_uint_least64_t progress, comm_ns; /* for other threads (progress.c) */
};

struct engine_optim {
    const struct optimizer *kind;
    const struct optimizer **kinds; /* [nparams] of those that are trained */
    int nslots, ema;                /* ema: which slot is the average, -1: none */
    struct fsdp_slot slots[MAX_SLOTS];
    bool from_weights[MAX_SLOTS]; /* slots that begin as the weights */
    uint32_t *kept;               /* [nparams] bit k: it has slot k */
    uint64_t *slot_nelem;         /* [nflats][MAX_SLOTS] of a rank's memory */
    uint64_t *slot_pos;           /* [nparams][MAX_SLOTS] where its part begins there */
    bool *written; /* [MAX_SLOTS][nparams] of those, by a load, since fsdp_state_loaded */
    struct optimizer_hyper *hyper; /* [nparams] of those that are trained */
    struct update_run *runs;       /* flat by flat */
    int nruns;
    struct fsdp_averaging averaging;        /* of the steps until now; where kind averages */
    double weight;                          /* of this step */
    const struct fsdp_step_args *step_args; /* during fsdp_step, or since fsdp_step_begin */
    struct fsdp_step_args begun;            /* what it points at then */
};

/* Of the user; NULL: none. */
struct engine_hooks {
    fsdp_reduce_hook_f *reduce;
    fsdp_grad_hook_f *grad;
    void *reduce_ctx, *grad_ctx;
    void *reduce_scratch[SCHED_NLANES]; /* of the lanes that reduce; NULL: none was asked for */
};

struct engine_mem {
    void *device, *gather, *reduce, *host;
    uint64_t reduce_nbytes;
    void **param_slots[2]; /* by program */
    void **grad_slots;
    void **grad_places; /* [offload.nslots] of gradient shards that are offloaded */
    double *sums;       /* of parameters that are updated in phases */
    float *room;        /* of one of them at a time */
    float *joined;      /* [MASTER_PIECE] of masters that are not whole, if there are any */
    float *wide_grad;   /* [GRAD_PIECE] of gradients in BF16, likewise */
    void *gather_staging, *reduce_staging; /* W * s elements of the largest chunked flat */
    void *replicate_staging; /* a shard in reduce_dtype, for the largest that is not fp32 */
    struct module_mem *modules;
    struct arena_row rows[ARENA_MAX_ROWS];
    int nrows;
};

/* What updates on the host read of engine_scalars: copies. */
struct host_scalars {
    float clip_coef;
    struct fsdp_loss_scale scale;
};

struct engine_offload {
    int nslots;   /* as the options say, at most as many as have something to pass */
    char **slots; /* [nslots] of offloaded state, or NULL */
    bool in_file; /* all but gathered copies, of which no file is made; those are on the host */
    /* Where that lives in a file; and what each slot passes through on the host, NULL where the
     * device can be read and written by it. For an update on the host, what lives in a file or on
     * the device is copied there. */
    struct offload_file *file;
    char **staged_slots;
    void *staged_mem;
    /* With updates on the host, else NULL: a CPU device, whose lane computes in the thread that
     * enqueues, and the step's scalars. Then slots has one slot, for work between steps. */
    struct fsdp_device *host;
    struct fsdp_lane *host_lane;
    struct host_scalars *host_scalars;
};

/* What views point at. */
struct engine_view {
    const void **param;
    const double **amax; /* [nparams] of those that are seen in codes */
    void **grad;
    bool *grad_written; /* [nparams] by a module, in this accumulation */
};

/* Scalars on the device. sums is what one all-reduce sums over the world: the control word,
 * then for the 2-norm a partial squared norm per flat, which only replica 0 fills, and for the
 * infinity norm the greatest value of each rank, which only that rank fills. */
struct engine_scalars {
    double *sums; /* [FSDP_CONTROL_NELEM + npartials] */
    size_t npartials;
    float *clip_coef, *grad_norm;
    struct fsdp_loss_scale *scale;
    bool scaled; /* the scale moves, and steps may be skipped */
};

/* Of encoded tensors, the trainable ones first (gather.h). */
struct engine_encoding {
    double *amax, *amax_rows; /* greatest absolute values; what of, a row per shard rank */
    int namax, namax_trainable;
    void *piece; /* of a flat, that is decoded at once (gather_encoded_nbytes) */
};

/* Of parameters in NF4 (state/nf4.h). */
struct nf4_tensor;
struct engine_nf4 {
    struct nf4_tensor *tensors; /* flat by flat */
    int ntensors;
};

struct engine_tracing {
    struct trace *trace;     /* NULL: nothing is recorded (trace.h) */
    struct exposed *exposed; /* NULL: not measured (exposed.h) */
    int nranges;             /* open ones (ranges.h) */
};

struct fsdp {
    const struct fsdp_module_tree *tree;
    struct fsdp_opts opts;
    struct fsdp_device *device;
    struct fsdp_mesh *mesh;
    struct fsdp_mesh planned_mesh; /* of fsdp_plan */
    struct fsdp_lane *lanes[SCHED_NLANES];
    struct units units;
    struct flat_state *flats;

    struct engine_plan plan;
    struct engine_cursor cursor;
    struct engine_optim optim;
    struct engine_hooks hooks;
    struct engine_mem mem;
    struct engine_offload offload;
    struct engine_view view;
    struct engine_scalars scalars;
    struct engine_encoding encoding;
    struct engine_nf4 nf4;
    struct engine_tracing tracing;

    struct fsdp_state_layout layout;
    struct fsdp_flat_desc *flat_descs;
    uint32_t *flat_slots;           /* what those point into */
    struct fsdp_snapshot *snapshot; /* NULL: none is ever taken */
    uint64_t hash;
};

static inline uint64_t flat_full_nelem(const struct flat *flat)
{
    return flat->cut.shard_nelem * (uint64_t)flat->cut.nranks;
}

/* Are its shards gathered and reduced as chunks, which a copy turns into whole tensors and back? On
 * one rank the two are the same. */
static inline bool flat_is_chunked(const struct flat *flat)
{
    return flat->cut.chunked && flat->cut.nranks > 1;
}

/* The shard of the flat that this rank holds. */
static inline int flat_shard(const struct fsdp *f, const struct flat *flat)
{
    return flat->whole ? 0 : f->mesh->shard_rank;
}

/* Is the weight in BF16 all there is, so that updates and checkpoints take it? */
static inline bool flat_is_bf16_alone(const struct fsdp *f, const struct flat *flat)
{
    return f->opts.optim.master == FSDP_MASTER_NONE && flat->param_dtype == FSDP_BF16 &&
           !flat->codec && !flat->nf4 && (flat->trainable || !f->opts.frozen_in_param_dtype);
}

/* Is the gathered copy all there is? */
static inline bool flat_has_no_master(const struct fsdp *f, const struct flat *flat)
{
    return flat->nf4 || flat_is_bf16_alone(f, flat) ||
           (f->opts.frozen_in_param_dtype && !flat->trainable && flat->param_dtype != FSDP_F32 &&
            !flat->codec);
}

/* Are the gathered copy and a 16-bit rest the master? */
static inline bool flat_has_split_master(const struct fsdp *f, const struct flat *flat)
{
    return f->opts.optim.master == FSDP_MASTER_SPLIT && flat->param_dtype == FSDP_BF16 &&
           !flat->codec && !flat_has_no_master(f, flat);
}

/* Does the optimizer write the gathered copy, which is not the master in another type? */
static inline bool flat_optimizer_writes_copy(const struct fsdp *f, const struct flat *flat)
{
    return flat->trainable && f->optim.kind->gathered;
}

/* Does the host update what is offloaded? */
static inline bool engine_updates_on_host(const struct fsdp *f)
{
    return f->opts.offload_update == FSDP_OFFLOAD_UPDATE_HOST;
}

/* Is there a whole master next to the gathered copy? */
static inline bool flat_has_separate_master(const struct fsdp *f, const struct flat *flat)
{
    return (flat->codec || flat->param_dtype != FSDP_F32 || flat_optimizer_writes_copy(f, flat)) &&
           !flat_has_split_master(f, flat) && !flat_has_no_master(f, flat);
}

/* Is the master itself gathered? */
static inline bool flat_gathers_master(const struct fsdp *f, const struct flat *flat)
{
    return !flat_has_separate_master(f, flat) && !flat_has_split_master(f, flat) &&
           !flat_has_no_master(f, flat);
}

/* Of its gradient shard. */
static inline enum fsdp_dtype flat_grad_dtype(const struct fsdp *f, const struct flat *flat)
{
    return f->opts.update_at == FSDP_UPDATE_AT_REDUCE ? flat->reduce_dtype : f->opts.grad_dtype;
}

static inline uint64_t flat_grad_nbytes(const struct fsdp *f, const struct flat *flat)
{
    return flat->cut.shard_nelem * fsdp_dtype_nbytes(flat_grad_dtype(f, flat));
}

/* Where reductions and updates find the gradient shard. */
static inline void *grad_here(const struct fsdp *f, int flat)
{
    const int *place = f->plan.programs[FSDP_TRAIN].sched.grad_place;
    return place ? f->mem.grad_places[place[flat]] : f->flats[flat].grad;
}

/* The gradient shard, where it is between steps, from an element on. */
static inline void *grad_at(const struct fsdp *f, int flat, uint64_t pos)
{
    const enum fsdp_dtype dtype = flat_grad_dtype(f, &f->units.flats[flat]);
    return (char *)f->flats[flat].grad + pos * fsdp_dtype_nbytes(dtype);
}

/* Slot k from an element on. */
static inline void *state_at(const struct engine_optim *optim, const struct flat_state *s, int k,
                             uint64_t pos)
{
    return (char *)s->optim[k] + pos * fsdp_dtype_nbytes(optim->slots[k].dtype);
}

/* Finds the optimizer. */
int update_choose(struct fsdp *f, struct fsdp_err *err);
/* Says which slots every parameter has, and divides the shards into runs of equal settings. */
int update_plan(struct fsdp *f, struct fsdp_err *err);
/* Doubles of f->mem.sums: 0 where no optimizer needs them. */
uint64_t update_shared_nsums(const struct fsdp *f);
/* Elements of f->mem.room likewise. */
uint64_t update_shared_nroom(const struct fsdp *f);
/* Room for pieces of gradients that an optimizer takes in F32 alone: 0 where there are none. */
uint64_t update_wide_grad_nbytes(const struct fsdp *f);
/* The kernels of fsdp_step but its collectives, once, on memory of their own. Blocks. */
int update_warm(struct fsdp *f, struct fsdp_err *err);
/* Fills layout: who owns which box, for checkpoints. */
int state_layout_create(struct fsdp *f, struct fsdp_err *err);
/* After masters were written: replica 0's go to the others, and the gathered dtype follows.
 * Collective, blocks. */
int state_masters_changed(struct fsdp *f, struct fsdp_err *err);
/* engine.c. FSDP_EINVAL unless the cursor stands between steps, or before fsdp_step; names the
 * call. */
int engine_between_steps(const struct fsdp *f, const char *call, struct fsdp_err *err);
/* What `after` does next comes after all that the lane `before` was given so far. */
int engine_order(struct fsdp *f, enum sched_lane before, struct fsdp_lane *after,
                 struct fsdp_err *err);
/* What the compute lane does next comes after the latest step's updates, where those have a lane of
 * their own: for what reads or writes state outside the schedule. */
int engine_join_updates(struct fsdp *f, struct fsdp_err *err);
/* FSDP_EINVAL names a unit that is unsharded by hand (fsdp_unshard), and the call that would change
 * its values. */
int engine_check_resharded(const struct fsdp *f, const char *call, struct fsdp_err *err);
bool engine_is_by_hand(const struct fsdp *f, const struct unit *unit);
/* An operation for a person: "enter 'model.layers.0' (forward)". Into text, of nbytes. */
void engine_describe(const struct fsdp_module_tree *tree, enum sched_kind kind, int module,
                     enum fsdp_phase phase, int micro, char *text, size_t nbytes);
/* Decides whether the loss is scaled. Then, with memory: where the scale begins. */
int scale_plan(struct fsdp *f, struct fsdp_err *err);
int scale_begin(struct fsdp *f, struct fsdp_err *err);

#endif
