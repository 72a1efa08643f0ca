/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsdp.h: the engine. It shards a model's parameters, gradients and optimizer state over a mesh,
 * and moves them around the model's own forward and backward code.
 *
 * A training step:
 *
 *     for (int m = 0; m < accumulation; m++) {
 *         fsdp_micro_begin(f, m, err);
 *         // forward: enter and leave modules in tree order, children inside their parent
 *         fsdp_module_enter(f, root, FSDP_FORWARD, &view, err);
 *         for each child: enter, compute with view.param[...], leave
 *         fsdp_module_leave(f, root, FSDP_FORWARD, err);
 *         // backward: the same nest, children in reverse, writing view.grad[...]
 *         fsdp_micro_end(f, err);
 *     }
 *     fsdp_step(f, &args, NULL, err);
 *
 * The whole step is a list made before step one (sched.h): gathers, computations, reductions and
 * frees with the edges between them. The model drives a cursor through it: an enter that is not the
 * list's next is refused, naming the expected and the actual module. Modules that the wrap policy
 * did not make units are entered too; they live in the unit of their nearest wrapped ancestor, so a
 * model need not know the policy.
 *
 * FSDP: Zhao et al., PyTorch FSDP, arXiv 2304.11277; ZeRO: Rajbhandari et al., arXiv 1910.02054.
 */
#ifndef FSDP_FSDP_H
#define FSDP_FSDP_H

#include <stdio.h>

#include "fsdp/mesh.h"
#include "fsdp/module.h"
#include "fsdp/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fsdp;

/* Which modules become units, besides the root. */
enum fsdp_wrap_policy {
    FSDP_WRAP_TRANSFORMER, /* by class */
    FSDP_WRAP_SIZE,        /* by number of parameters */
    FSDP_WRAP_NONE,        /* the whole model is one unit */
    FSDP_WRAP_LIST,        /* by name */
    FSDP_WRAP_CALLBACK,
};
/* Is the module a unit? Pure, and the same on every rank. */
typedef bool fsdp_wrap_f(void *ctx, const struct fsdp_module_tree *tree, int module);
/* From "transformer", "size", "none" or "list"; FSDP_EINVAL lists them. Local. */
int fsdp_wrap_policy_parse(enum fsdp_wrap_policy *out, const char *text, struct fsdp_err *err);

/* What lives in host memory (fsdp_host_alloc) and is copied to the device when it is needed, on
 * lanes of its own. It is PyTorch's CPUOffload, but gradients stay unless offload_gradients, and
 * the optimizer runs on the device unless offload_update.
 *   OPTIMIZER  optimizer tensors, and masters that are not themselves the gathered copy; in a step
 *              they pass through offload_slots places on the device
 *   PARAMS     these, and the shards that are gathered
 * Masters of parameters that a codec encodes stay on the device, and so do parameters that are
 * whole on every rank (ignored). */
enum fsdp_offload { FSDP_OFFLOAD_NONE, FSDP_OFFLOAD_OPTIMIZER, FSDP_OFFLOAD_PARAMS };

/* Where offloaded optimizer state is updated.
 *   DEVICE  on the device, to which it is copied and from which it is copied back
 *   HOST    where it lives, by the threads of fsdp_cpu_set_threads, while the device computes.
 *           Gradient shards must live there, too (offload_gradients). With FSDP_OFFLOAD_OPTIMIZER,
 *           parameters are copied to the host and back. Results have the bits of the CPU device.
 *   AUTO    fsdp_create and fsdp_plan update on the device; fsdp-launch decides before it calls
 *           them. */
enum fsdp_offload_update {
    FSDP_OFFLOAD_UPDATE_AUTO,
    FSDP_OFFLOAD_UPDATE_DEVICE,
    FSDP_OFFLOAD_UPDATE_HOST
};

/* Activation checkpointing: what a module drops after forward and recomputes in backward. FULL:
 * all that it can; SELECTIVE: what is cheap to recompute (struct fsdp_act_bytes in module.h). */
enum { FSDP_AC_NONE, FSDP_AC_FULL, FSDP_AC_SELECTIVE };

/* Gathers parameters in another form than param_dtype: the rank that holds them encodes them from
 * the fp32 masters, and every rank decodes them to param_dtype. A group of one rank does both at
 * once, so that modules see the same values at every world size. Tensors that it does not apply to
 * are gathered in param_dtype, and ignored ones are not gathered. Borrowed as long as the engine
 * lives. */
struct fsdp_gather_codec {
    const char *name;   /* for tables, and for the agreement of ranks */
    size_t elem_nbytes; /* of an encoded element */
    bool (*applies)(const struct fsdp_tensor *tensor);
    /* Enqueue, for nelem elements of any rows of the tensor; decode for pieces of so many (NULL:
     * one). amax (device scalar): the whole tensor's greatest absolute value, the same on all
     * ranks. */
    int (*encode)(struct fsdp_lane *lane, void *dst, const float *src, size_t nelem,
                  const double *amax, struct fsdp_err *err);
    int (*decode)(struct fsdp_lane *lane, void *dst, enum fsdp_dtype dst_dtype, const void *src,
                  size_t nelem, const struct fsdp_pieces *pieces, const double *amax,
                  struct fsdp_err *err);
    /* F8_E4M3: encoded elements are those of fsdp_quantize, and are not decoded for modules that
     * take them so (FSDP_PARAM_CODES). 0: all are decoded. */
    enum fsdp_dtype codes;
};
/* Tensors of two and more dimensions in F8_E4M3, each with one scale, a power of two. */
extern const struct fsdp_gather_codec fsdp_gather_float8;

/* Settings of some units that differ from fsdp_opts. The modules that a row names become units of
 * their own. Of several rows that name a module the later ones win, setting by setting. */
enum { FSDP_KEEP = -1 }; /* what fsdp_opts or an earlier row says */
struct fsdp_unit_override {
    /* Pattern of fnmatch(3) for the module's name, wildcards within one of its levels ("" is the
     * root, "layers.*" its layers); NULL: any. */
    const char *module;
    const char *class_name;        /* NULL: any; one of the two must be given */
    int param_dtype, reduce_dtype; /* enum fsdp_dtype */
    int gather_codec;              /* 0: none for this unit; 1: as fsdp_opts says */
    /* As in fsdp_opts, but 1 and k also hold for the root and the last unit, which are kept from
     * forward to backward otherwise. */
    int reshard_after_forward;
};
#define FSDP_UNIT_OVERRIDE_INIT                                                                    \
    {                                                                                              \
        .param_dtype = FSDP_KEEP, .reduce_dtype = FSDP_KEEP, .gather_codec = FSDP_KEEP,            \
        .reshard_after_forward = FSDP_KEEP                                                         \
    }

/* When a unit's shard is updated. AT_STEP: in fsdp_step. AT_REDUCE: in the last micro-step, as soon
 * as its gradients are reduced, out of the buffer that they are reduced in, so that there is no
 * gradient shard. It needs fsdp_step_begin, accumulation 1 or reduce_last, no loss scale, no
 * gradient hooks, and no clipping but by the factor of the step before (optim.clip_late), 1 in the
 * first. AT_FORWARD: on a lane of its own, at the same time as the next forward pass, which waits
 * for each unit's update before it gathers or uses the unit. It needs an optimizer that updates
 * each element by itself, and no gather codec. With the same gradients all give the same bits. */
enum fsdp_update_at { FSDP_UPDATE_AT_STEP, FSDP_UPDATE_AT_REDUCE, FSDP_UPDATE_AT_FORWARD };

struct fsdp_opts {
    uint32_t version;
    enum fsdp_strategy sharding_strategy;
    /* -1: the strategy's own; 0: keep; 1: free; k > 1: keep part r mod k of the k equal parts of
     * what was gathered, and gather in backward over k consecutive ranks (mesh shape's
     * regather_size). */
    int reshard_after_forward;
    bool reduce_last; /* accumulate unsharded gradients, reduce in the last micro-step only:
                       * less traffic for more memory (no_sync in PyTorch) */
    enum fsdp_wrap_policy wrap_policy;
    const char *const *wrap_classes; /* TRANSFORMER: NULL-terminated class names */
    uint64_t min_num_params;         /* SIZE: a module with at least this many becomes a unit */
    /* LIST: NULL-terminated patterns of module names; a wildcard stays within one level. Here and
     * under CALLBACK all users of a tied parameter must be in one unit. */
    const char *const *wrap_modules;
    fsdp_wrap_f *wrap_callback; /* CALLBACK */
    void *wrap_ctx;
    /* NULL-terminated patterns of parameter names (fsdp_glob_match), besides those that the model
     * declared frozen or ignored. Frozen: gathered, no gradient. Ignored: whole on every rank, no
     * gradient; saved as any other. */
    const char *const *frozen, *const *ignored;
    /* What is not trained has no fp32 master where param_dtype is narrower: it is rounded when it
     * is loaded, and kept as it is gathered. A checkpoint has the rounded values. Not with a codec.
     */
    bool frozen_in_param_dtype;
    /* The matrices of linear maps that are not trained are held in 4 bits, as NF4 of bitsandbytes
     * (struct fsdp_nf4_args): quantized when they are loaded, sent so, and decoded to param_dtype
     * where they are gathered, even by a group of one rank. A checkpoint has the decoded values.
     * FSDP_EINVAL where there are none; FSDP_EUNSUPPORTED where a cut would fall within a block. */
    bool frozen_in_nf4;
    /* F32, BF16 or F16. Masters and optimizer state are fp32; their gathered copy, which modules
     * compute with, is in param_dtype. Gradients are written and reduced in reduce_dtype, and added
     * up over micro-steps in shards in grad_dtype, F32 or BF16: each sum is taken in fp32 and
     * rounded to the nearest. */
    enum fsdp_dtype param_dtype, reduce_dtype, grad_dtype;
    const struct fsdp_gather_codec *gather_codec;    /* NULL: modules see masters in param_dtype */
    const struct fsdp_unit_override *unit_overrides; /* [nunit_overrides], borrowed by the call */
    int nunit_overrides;
    int forward_prefetch, backward_prefetch; /* how many units ahead; 0: none */
    /* Buffers of unsharded gradients in rotation, besides those of enclosing units: 1 makes a
     * unit's backward wait for the reduction before it, n lets n - 1 reductions be under way
     * meanwhile. */
    int grad_buffers;
    enum fsdp_offload offload;
    enum fsdp_offload_update offload_update;
    /* Units of state on the device at a time, 1 to 64: 2 copy one while one is updated. */
    int offload_slots;
    /* What modules keep from forward to backward (module.h) lives in host memory in between: that
     * of each module directly inside the root, with the modules inside it, at once. They compute in
     * offload_slots places on the device; the last ones of a pass are not copied. */
    bool offload_activations;
    /* Gradient shards live in host memory between reductions and updates, for which they take turns
     * in offload_slots places. Their norm is taken as they are reduced: neither with hooks that
     * change gradients in fsdp_step, nor with AT_REDUCE. */
    bool offload_gradients;
    /* A folder for offloaded state, which lives in one unnamed file for each rank instead of in
     * host memory; of PARAMS the gathered copies' shards remain there. It may differ between hosts.
     * NULL or empty: none. */
    const char *offload_dir;
    int limit_all_gathers;        /* unsharded units alive beyond those kept; 0: no limit */
    int activation_checkpointing; /* FSDP_AC_* */
    /* Patterns of the names of modules that it covers ("model.layers.*"; a wildcard stays within a
     * level), NULL-terminated; NULL: all that can. */
    const char *const *checkpoint_modules;
    int accumulation; /* micro-steps per optimizer step */
    enum fsdp_update_at update_at;
    struct fsdp_optim_opts optim;
    struct fsdp_scaler_opts loss_scale; /* fp16 */
    uint64_t seed;                      /* of initial values */
    uint64_t memory_limit; /* bytes of a rank's plan beyond which creation fails; 0: none */
    /* Text of everything else that must be equal on all ranks (data, schedule, ...), one `key =
     * value` a line; part of the hash that ranks compare. May be NULL. */
    const char *agree;
};
#define FSDP_OPTS_VERSION 9
#define FSDP_OPTS_INIT                                                                             \
    {                                                                                              \
        .version = FSDP_OPTS_VERSION, .sharding_strategy = FSDP_FULL_SHARD,                        \
        .reshard_after_forward = -1, .wrap_policy = FSDP_WRAP_TRANSFORMER,                         \
        .min_num_params = 100000000, .param_dtype = FSDP_F32, .reduce_dtype = FSDP_F32,            \
        .forward_prefetch = 1, .backward_prefetch = 1, .limit_all_gathers = 2, .grad_buffers = 2,  \
        .offload_slots = 2, .accumulation = 1, .optim = FSDP_OPTIM_OPTS_INIT,                      \
        .loss_scale = FSDP_SCALER_OPTS_INIT                                                        \
    }

/* The group size that some unit's reshard_after_forward asks for, to be given to
 * fsdp_mesh_shape_regather; 0: none. Local. */
int fsdp_opts_regather_size(const struct fsdp_opts *opts);
/* From text, "PATTERN key=value ..." ("model.layers.3 reshard_after_forward=false"), where
 * class=NAME may stand for or next to the pattern of module names. The names point into text, which
 * is changed. FSDP_EINVAL names the known keys. Local. */
int fsdp_unit_override_parse(struct fsdp_unit_override *out, char *text, struct fsdp_err *err);

/* Plans, allocates, and compares the plan with the other ranks'. Parameters hold nothing until
 * fsdp_init_params or a load. The tree, device and mesh are borrowed until destroy. Collective,
 * blocks.
 * FSDP_ENOMEM says which settings would save most memory; a rank that lacks it logs its plan and
 * what every setting would save. FSDP_EMISMATCH names the first differing item and the rank. Where
 * a setting is at fault, err->setting names it. */
int fsdp_create(struct fsdp **out, const struct fsdp_module_tree *tree,
                const struct fsdp_opts *opts, struct fsdp_device *device, struct fsdp_mesh *mesh,
                struct fsdp_err *err);
void fsdp_destroy(struct fsdp *f);

/* Random initial values, the same tensors at every world size. Blocks; local, but collective with a
 * gather codec and with frozen_in_nf4. */
int fsdp_init_params(struct fsdp *f, struct fsdp_err *err);

/* ---- programs and the cursor ----------------------------------------------------------------- */

enum fsdp_program { FSDP_TRAIN, FSDP_EVAL };
enum fsdp_phase { FSDP_FORWARD, FSDP_RECOMPUTE, FSDP_BACKWARD };

/* What a module sees between enter and leave. Parameters and gradients are indexed by the tree's
 * parameter index: view.param[i] is valid for the parameters of this module and its descendants
 * that live in the same unit, and for aliases of them. Layout: row-major, contiguous. */
struct fsdp_view {
    struct fsdp_lane *lane;                  /* where the module's work is enqueued */
    enum fsdp_dtype param_dtype, grad_dtype; /* of this module's parameters and gradients */
    const void *const *param;
    /* Device scalar of a parameter that is in codes, F8_E4M3, in place of param_dtype: the whole
     * tensor's greatest absolute value, from which their scale follows (fsdp_dequantize). NULL: it
     * is in param_dtype. */
    const double *const *amax;
    void *const *grad; /* BACKWARD only, of trainable parameters */
    /* Device scalar with which the gradient of the loss is multiplied, besides the model's own
     * factors: against underflow in fp16 (optim.h), else 1. It changes from step to step. */
    const float *loss_scale;
    void *saved, *recomputed, *work, *cheap; /* this module's activation memory (module.h) */
    struct fsdp *fsdp;
};
/* BACKWARD: what the next contribution to view->grad[param] multiplies the memory with: 0
 * (overwrite, it may hold anything) at the first, 1 (add) at later ones of this micro-step and,
 * where gradients accumulate in place, of later micro-steps. Asking is a promise to write the whole
 * tensor. A gradient that no module asked for is zero. 0 for a parameter that is not trained, whose
 * gradient is NULL. Local. */
float fsdp_view_grad_beta(const struct fsdp_view *view, int param);

/* Begins micro-step `index` (0 .. accumulation-1) of the training program, or an evaluation pass
 * (index 0); and ends it. FSDP_EINVAL where the schedule expects something else. Collective,
 * enqueue. */
int fsdp_micro_begin(struct fsdp *f, enum fsdp_program program, int index, struct fsdp_err *err);
int fsdp_micro_end(struct fsdp *f, struct fsdp_err *err);
/* Enters a module for a phase: *out shows its parameters (in BACKWARD also its gradients), valid
 * until the module is left. enter gathers what is not there yet, leave frees and reduces as the
 * schedule says. FSDP_EINVAL names the module that is expected instead. Collective, enqueue. */
int fsdp_module_enter(struct fsdp *f, int module, enum fsdp_phase phase, struct fsdp_view *out,
                      struct fsdp_err *err);
int fsdp_module_leave(struct fsdp *f, int module, enum fsdp_phase phase, struct fsdp_err *err);
/* Must the model call RECOMPUTE on this module before its BACKWARD? Local. */
bool fsdp_module_recomputes(const struct fsdp *f, int module);
/* FSDP_AC_* of a module: what RECOMPUTE has to make again, of the module itself or with the one
 * around it. Local. */
int fsdp_module_checkpointing(const struct fsdp *f, int module);
/* Abandons an unfinished step or pass (after a failure in the model). Local. */
void fsdp_step_reset(struct fsdp *f);

/* ---- the optimizer step ---------------------------------------------------------------------- */

/* Values reduced (summed) over all ranks together with the gradient norm, such as the loss and the
 * flags stop and save: nothing that only one rank knows may decide whether a collective runs. */
#define FSDP_CONTROL_NELEM 8

struct fsdp_step_args {
    int64_t step; /* optimizer step, 0 is the first; bias correction uses step + 1 */
    double lr;
    /* Device scalars to sum, written by the compute lane before this call; NULL: zeros. */
    const double *control;
};
struct fsdp_step_result {
    float grad_norm;  /* global, before clipping */
    float loss_scale; /* of the next step; 0: the loss is not scaled */
    bool skipped;     /* gradients were not finite, and the loss is scaled: nothing changed */
    double control[FSDP_CONTROL_NELEM]; /* summed over all ranks */
};
/* With FSDP_UPDATE_AT_REDUCE, before the first micro-step of a step: what its updates take. The
 * same step and rate are given to fsdp_step; control is read there. The gradients of a step that
 * was not begun are thrown away, as for fsdp_warm. Without it, nothing happens. FSDP_EINVAL in
 * mid-step. Local, enqueues. */
int fsdp_step_begin(struct fsdp *f, const struct fsdp_step_args *args, struct fsdp_err *err);
/* The optimizer step: the global gradient norm, clipping, the update of this rank's shards.
 * Collective, enqueues; with a result (not NULL) the host waits for this step, or with
 * FSDP_UPDATE_AT_FORWARD for all of it but the updates (fsdp_sync). */
int fsdp_step(struct fsdp *f, const struct fsdp_step_args *args, struct fsdp_step_result *result,
              struct fsdp_err *err);
/* The result of the latest step. Waits for the compute lane. Local. */
int fsdp_step_result(struct fsdp *f, struct fsdp_step_result *out, struct fsdp_err *err);
/* The loss scale, for checkpoints: a scale of 0 means that the loss is not scaled. Setting has no
 * effect on such an engine, nor with a scale of 0; FSDP_EINVAL for one outside of 2^-120 .. 2^120
 * or bad counts. Wait for the compute lane. Local; the same values on every rank. */
struct fsdp_scaler_state {
    double scale;
    int64_t good_steps, nskipped;
};
int fsdp_scaler_get(struct fsdp *f, struct fsdp_scaler_state *out, struct fsdp_err *err);
int fsdp_scaler_set(struct fsdp *f, const struct fsdp_scaler_state *state, struct fsdp_err *err);
/* The factor that clips the next step (optim.clip_late), for checkpoints; 1 without. Setting has no
 * effect then. FSDP_EINVAL for one that is not in 0 .. 1. Wait for the compute lane. Local; the
 * same value on every rank. */
int fsdp_clip_factor_get(struct fsdp *f, double *out, struct fsdp_err *err);
int fsdp_clip_factor_set(struct fsdp *f, double factor, struct fsdp_err *err);
/* Of an optimizer that averages weights over its steps (schedulefree): the greatest learning rate
 * until now and the sum of the steps' weights, for checkpoints. Local; the same on every rank. */
struct fsdp_averaging {
    double lr_max, weight_sum;
};
bool fsdp_averages(const struct fsdp *f);
void fsdp_averaging_get(const struct fsdp *f, struct fsdp_averaging *out);
int fsdp_averaging_set(struct fsdp *f, const struct fsdp_averaging *averaging,
                       struct fsdp_err *err);
/* Between the two, FSDP_EVAL passes see the weights that a checkpoint has, where an optimizer
 * trains with others (schedulefree). For other optimizers they do nothing. FSDP_EINVAL in a step.
 * Local, block. */
int fsdp_eval_begin(struct fsdp *f, struct fsdp_err *err);
int fsdp_eval_end(struct fsdp *f, struct fsdp_err *err);
/* Warm-up of what fsdp_step does for the first time, so that on a GPU the first real step is not
 * slow: communicators between replicas connect, and the kernels of the update are loaded. Call it
 * after micro-steps whose gradients are thrown away and fsdp_sync, and fsdp_step_reset after it.
 * Weights and optimizer state stay as they are. Collective, blocks. */
int fsdp_warm(struct fsdp *f, struct fsdp_err *err);
/* values[nelem], at most FSDP_CONTROL_NELEM on the device, become their sums over all ranks (an
 * evaluation's loss). Collective, blocks. */
int fsdp_control_sum(struct fsdp *f, double *values, int nelem, struct fsdp_err *err);
/* Between the modules of a pass: values[nelem] on the device become their sums over all ranks, on
 * the compute lane. For what a model needs of the whole micro-batch, such as how often each expert
 * was chosen. Collective, enqueues. */
int fsdp_model_sum(struct fsdp *f, double *values, size_t nelem, struct fsdp_err *err);
/* Waits for all lanes. Local, blocks. */
int fsdp_sync(struct fsdp *f, struct fsdp_err *err);

/* ---- state ----------------------------------------------------------------------------------- */

/* What this rank holds: a slice per parameter (kind MODEL, under its name the fp32 master, or the
 * weight in BF16 where FSDP_MASTER_NONE leaves it none) and per
 * optimizer tensor (kind OPTIM, state.<name>.exp_avg, ...), boxes that are empty included (but a
 * 0-d tensor, which has none, only on its owner), in the order of the layout. Local; call fsdp_sync
 * first. The checkpoint library and the tools see nothing else of libfsdp. */
int fsdp_state_each(struct fsdp *f, fsdp_slice_f *fn, void *ctx, struct fsdp_err *err);
/* The same on every rank; lives as long as f. */
const struct fsdp_state_layout *fsdp_state_layout(const struct fsdp *f);
/* What this rank holds of parameters in NF4, as bitsandbytes stores them, to be written where a
 * checkpoint has them so: slices NAME (U8, two elements a byte), NAME.absmax (U8) and
 * NAME.nested_absmax (F32, whole on every rank). They are written instead of the slice of
 * fsdp_state_each, and fsdp_nf4_set_offset says the rest. Local. */
int fsdp_nf4_each(struct fsdp *f, fsdp_slice_f *fn, void *ctx, struct fsdp_err *err);
/* Is the parameter held in NF4? Local. */
bool fsdp_param_is_nf4(const struct fsdp *f, int param);
/* nested_offset of a parameter in NF4; that of rank 0 counts. Local, blocks. */
int fsdp_nf4_set_offset(struct fsdp *f, int param, float offset, struct fsdp_err *err);
/* After slices were written: replica 0's values go to the other replicas and the gathered dtype is
 * refreshed from the masters. Collective, blocks. */
int fsdp_state_loaded(struct fsdp *f, struct fsdp_err *err);
/* since[nparams]: for each parameter of the tree, how many updates had been made (steps without
 * those that the loss scaler skipped) when it became trainable, its moments zero. The optimizer
 * counts its updates from there, as torch counts them per parameter. 0 unless set; the same on all
 * ranks, between steps. FSDP_EINVAL: a negative count. Local. */
int fsdp_param_set_since(struct fsdp *f, const int64_t *since, struct fsdp_err *err);
/* 0 where there is no such parameter. Local. */
int64_t fsdp_param_since(const struct fsdp *f, int param);

/* ---- hooks --------------------------------------------------------------------------------------
 *
 * What happens to a unit's gradients, in this order:
 *
 *   in every micro-step that reduces   the reduction hook, instead of the reduce-scatter over the
 *     (or the last, see reduce_last)     shard group (on two levels: of each); the sum is added to
 *                                        the fp32 shard
 *   in the last micro-step             the reduction hook, instead of the all-reduce over replicas
 *   in fsdp_step                       the gradient hook; the norm and the clip factor of all
 *                                      units together; the optimizer; the average of the weights
 *
 * Hooks run on the host when their operation is issued, and enqueue on the lane they are given, in
 * the same order on every rank. Setting one (NULL: none) belongs between steps and concerns the
 * steps that follow. */

/* One sum of a unit's gradients. */
struct fsdp_reduction {
    int module; /* root of the unit */
    int micro;
    struct fsdp_comm *comm; /* over whom */
    bool scatter;           /* recv is this rank's part of the sum, as in fsdp_comm_reduce_scatter,
                             * and may lie in send; else all of it, as in fsdp_comm_all_reduce */
    void *recv;
    const void *send;           /* may be changed; unspecified afterwards */
    uint64_t nelem, send_nelem; /* of recv and of send */
    enum fsdp_dtype dtype;      /* of both */
    struct fsdp_lane *lane;     /* where this is enqueued */
    void *scratch;              /* elem_nbytes for each element of send, this lane's own */
};
typedef int fsdp_reduce_hook_f(void *ctx, const struct fsdp_reduction *r, struct fsdp_err *err);
/* What is done without a hook; a hook may call it, before or after work of its own. Collective,
 * enqueues. */
int fsdp_reduction_run(const struct fsdp_reduction *r, struct fsdp_err *err);
/* elem_nbytes: scratch per element. Local, waits for all lanes. */
int fsdp_reduce_hook_set(struct fsdp *f, fsdp_reduce_hook_f *fn, void *ctx, size_t elem_nbytes,
                         struct fsdp_err *err);
/* A hook that sends fp32 gradients as BF16 or F16, whichever *ctx (enum fsdp_dtype) is; needs
 * elem_nbytes 2. torch's bf16_compress_hook and fp16_compress_hook. */
int fsdp_compress_hook(void *ctx, const struct fsdp_reduction *r, struct fsdp_err *err);

/* This rank's part of a parameter's gradient. */
struct fsdp_grad_part {
    int module; /* root of the unit */
    int param;
    struct fsdp_tensor tensor; /* the whole parameter */
    uint64_t first, nelem;     /* elements [first, first + nelem) of it, row-major */
    float *grad;               /* [nelem], to be changed */
    const float *loss_scale;   /* device scalar: what it is multiplied with (fsdp_view) */
    int64_t step;              /* as in fsdp_step_args */
    struct fsdp_lane *lane;    /* where changes are enqueued */
};
/* Replicas hold the same parts and must change them alike; what follows from (step, param, first)
 * alone is the same at every world size. */
typedef int fsdp_grad_hook_f(void *ctx, const struct fsdp_grad_part *part, struct fsdp_err *err);
/* Local. */
int fsdp_grad_hook_set(struct fsdp *f, fsdp_grad_hook_f *fn, void *ctx, struct fsdp_err *err);

/* ---- access between steps -----------------------------------------------------------------------
 *
 * These calls belong between steps (or between the last fsdp_micro_end and fsdp_step); elsewhere
 * they are refused with FSDP_EINVAL, which names where the step is. */

/* Gathers the unit of `module` by hand, into memory of its own, and keeps it until fsdp_reshard.
 * Not recursive: modules below it that are in other units stay as they are. The values do not
 * follow the weights: a training step is refused while a unit is unsharded by hand. Collective,
 * blocks. */
int fsdp_unshard(struct fsdp *f, int module, struct fsdp_err *err);
/* Frees that memory; does nothing where the unit is not unsharded by hand. Local, waits for all
 * lanes. */
int fsdp_reshard(struct fsdp *f, int module, struct fsdp_err *err);
/* A whole parameter of a unit that is unsharded by hand, in the unit's param_dtype; NULL
 * otherwise. Local. */
const void *fsdp_unsharded_param(const struct fsdp *f, int param);

struct fsdp_full_opts {
    uint32_t version;
    int module;      /* parameters of this module and those below it */
    bool recurse;    /* false: of the module's unit alone */
    int param;       /* this parameter alone; -1: as module says */
    bool rank0_only; /* the others take part, and hold no more than a few MiB */
    bool writeback;  /* what fn leaves in value and grad is written to the shards, by each rank to
                      * its own; replicas then take replica 0's. Not with rank0_only */
    bool with_grads; /* gradients of the latest micro-steps, as fsdp_step will see them or has seen
                      * them: reduced, not clipped, and times the loss scale of the step */
};
#define FSDP_FULL_OPTS_VERSION 1
#define FSDP_FULL_OPTS_INIT                                                                        \
    {                                                                                              \
        .version = FSDP_FULL_OPTS_VERSION, .recurse = true, .param = -1                            \
    }

/* A whole tensor in host memory, fp32 (the master). It lives until fn returns. */
struct fsdp_full_param {
    int param; /* index in the tree */
    struct fsdp_tensor tensor;
    float *value;
    float *grad; /* NULL without with_grads, and for a parameter that is not trained */
};
/* A nonzero return ends the calls on this rank, and becomes the result on every rank; the others
 * finish first. */
typedef int fsdp_full_param_f(void *ctx, const struct fsdp_full_param *param, struct fsdp_err *err);

/* Calls fn with one whole parameter after the other, in the order of the tree; one is in memory at
 * a time (FullyShardedDataParallel.summon_full_params). After a failure, parameters before it may
 * have been written back. Collective, blocks. */
int fsdp_full_params(struct fsdp *f, const struct fsdp_full_opts *opts, fsdp_full_param_f *fn,
                     void *ctx, struct fsdp_err *err);

/* ---- a copy of the state, to save it while training continues -------------------------------- */

struct fsdp_snapshot;
/* Host memory for this rank's masters and optimizer tensors: at most budget_nbytes; 0: as much as
 * they have. An engine has at most one. Destroy it before the engine. Local. */
int fsdp_snapshot_create(struct fsdp_snapshot **out, struct fsdp *f, uint64_t budget_nbytes,
                         double timeout_s, struct fsdp_err *err);
void fsdp_snapshot_destroy(struct fsdp_snapshot *snapshot);
/* Takes the state as it is after all that was enqueued so far. It is copied on a lane of its own,
 * one flat buffer of a unit after the other; the next update of a flat waits for its copy. What the
 * budget has no room for is not copied: it is read in place, and its next update waits on the host
 * until it was read (FSDP_ETIMEDOUT after timeout_s). Local, enqueues. */
int fsdp_snapshot_take(struct fsdp_snapshot *snapshot, struct fsdp_err *err);
/* fsdp_state_each for the state that was taken. Slices that were copied can be visited again; one
 * that was not is read in its first visit. io->write is refused. From one thread at a time, which
 * may be another than the engine's. Blocks. */
int fsdp_snapshot_each(struct fsdp_snapshot *snapshot, fsdp_slice_f *fn, void *ctx,
                       struct fsdp_err *err);
/* Nobody reads the snapshot any more, so that no update waits for a reader. Any thread. */
void fsdp_snapshot_release(struct fsdp_snapshot *snapshot);

/* ---- where a step is, for a watchdog --------------------------------------------------------- */

struct fsdp_position {
    bool eval;      /* an evaluation pass's list */
    bool comm;      /* a collective, which waits for other ranks */
    char text[160]; /* "ENTER of model.layers.3 (BACKWARD), micro-step 2"; "" before the first */
    double comm_seconds; /* so far: that collectives have held the caller; with fsdp_exposed_open,
                          * that the compute lane has waited for communication in training steps */
};
/* Operations so far, which at the same place is the same number on every rank, and what the latest
 * one is (out may be NULL). Any thread, also while another is inside the engine or hangs there.
 * Never blocks. */
uint64_t fsdp_progress(const struct fsdp *f, struct fsdp_position *out);

/* ---- what was planned ------------------------------------------------------------------------ */

struct fsdp_memory_row {
    const char *what; /* "parameters (fp32 master)", "unsharded units", ... */
    uint64_t nbytes;  /* on this rank */
    bool host;        /* not of the device: of the host's memory, or a file there */
    bool file;        /* a file (offload_dir); host is true, too */
    bool counts;      /* in what memory_limit bounds: the device's, and on a CPU the host's, too */
};
/* Rows of the memory plan in printing order, of fsdp_plan's engines too; returns their count,
 * writes at most max. Local. */
int fsdp_memory_plan(const struct fsdp *f, struct fsdp_memory_row *rows, int max);
/* Units, the root among them. Local. */
int fsdp_unit_count(const struct fsdp *f);
/* FNV hash of (units, schedule, options) that the ranks agreed on. */
uint64_t fsdp_plan_hash(const struct fsdp *f);

/* The mesh that it was planned for. */
struct fsdp_mesh_shape fsdp_planned_shape(const struct fsdp *f);

/* ---- the schedule, to look at (docs/schedule.md) --------------------------------------------- */

/* Plans as fsdp_create does for a mesh of this shape, whose ranks need not exist: no memory, no
 * communicators. The device may be a described one (fsdp_device_describe). Hash, lists and memory
 * are those of an engine of the same tree, options and shape. *out is good for fsdp_schedule_*,
 * fsdp_memory_plan, fsdp_plan_hash and fsdp_destroy alone.
 * FSDP_EINVAL for a shape or options that cannot work. Local. */
int fsdp_plan(struct fsdp **out, const struct fsdp_module_tree *tree, const struct fsdp_opts *opts,
              struct fsdp_device *device, struct fsdp_mesh_shape shape, struct fsdp_err *err);

/* The lists of both programs as text tables, each with its times under the clock. Local, blocks;
 * whether writing failed, ferror(to) says. FSDP_EINVAL names a number of the clock that makes no
 * sense. */
int fsdp_schedule_print(const struct fsdp *f, const struct fsdp_clock *clock, FILE *to,
                        struct fsdp_err *err);
/* In the first bytes of a Chrome trace that is written here; no other program writes it. */
#define FSDP_TRACE_MARK "\"generator\": \"libfsdp\""
/* The same as a Chrome trace (JSON, for ui.perfetto.dev): a process per program, a track per lane,
 * times under the clock. */
int fsdp_schedule_trace(const struct fsdp *f, const struct fsdp_clock *clock, FILE *to,
                        struct fsdp_err *err);

/* A pass that follows another one, in seconds. */
struct fsdp_schedule_times {
    int nops;
    double step_s;    /* the list, what the clock adds for a step, and waiting for slower ranks */
    double list_s;    /* of it the list */
    double compute_s; /* as in fsdp_trace_share, with what communication slows it */
    double comm_s, exposed_s;
    double slowed_s;                 /* of compute_s: because communication was under way */
    double work_s[FSDP_WORK_NKINDS]; /* of the modules, by kind, where nothing slows it */
    double again_s;                  /* of it what activation checkpointing repeats */
    double memory_s;                 /* the engine's own passes: update, norm, unpacking */
    double host_s; /* updates on the host, next to all of this where they do not hold it up */
    double link_s[FSDP_NLINKS];      /* a link would take for its bytes at its full rate */
    double link_nbytes[FSDP_NLINKS]; /* that a link carries: of a rank, or a node's cards */
    double ncollectives;
};
/* Times of a planned list, of fsdp_plan's engines too. Local. */
int fsdp_schedule_time(const struct fsdp *f, enum fsdp_program program,
                       const struct fsdp_clock *clock, struct fsdp_schedule_times *out,
                       struct fsdp_err *err);

/* ---- times of a real run --------------------------------------------------------------------- */

/* Seconds of one rank over all recorded steps. */
enum { FSDP_TRACE_MAX_LANES = 9 };
struct fsdp_trace_share {
    int nsteps;
    double wall_s;    /* from the first begin to the last end */
    double compute_s; /* something ran on the compute lane, communication there apart */
    double comm_s;    /* at least one collective was under way */
    double exposed_s; /* of comm_s, while nothing was computed */
    double lane_s[FSDP_TRACE_MAX_LANES]; /* by fsdp_trace_lane; each lane's own work */
};
/* Name of a lane, NULL past the last. Static. */
const char *fsdp_trace_lane(int lane);

/* comm_seconds (fsdp_progress) is measured on the lanes from here on, where the device has queues
 * of its own and the caller only enqueues: how long the compute lane waited for communication or
 * communicated itself. A step's share is added when a later step begins, once its events have come;
 * nothing waits for them. Between steps. Local. */
int fsdp_exposed_open(struct fsdp *f, struct fsdp_err *err);

/* Allocates room for the times of max_nsteps training steps. Local. */
int fsdp_trace_open(struct fsdp *f, int max_nsteps, struct fsdp_err *err);
/* The training step that begins next is recorded, under this number, if there is room. Begin and
 * end of every operation are taken on its lane; nothing is allocated, nothing waits. Local. */
void fsdp_trace_next(struct fsdp *f, int64_t step);
/* Ends recording. Rank 0 writes a Chrome trace to `to` (NULL elsewhere): a process per rank, a
 * track per lane, clocks of other machines brought to rank 0's; ferror(to) says whether that went
 * well. shares[world] is filled on every rank. Steps that did not end are left out. Collective,
 * blocks. */
int fsdp_trace_finish(struct fsdp *f, FILE *to, struct fsdp_trace_share *shares,
                      struct fsdp_err *err);

#ifdef __cplusplus
}
#endif
#endif
