/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settings.h: the settings of an engine as tables: a row has all that is known of one, for the
 * engine, for programs that read a configuration (tunable.h), and for what they print.
 *
 *     ROW(section, key, kind, default, allowed, help, type, agreement, field)
 *
 * kind, default, allowed, help: as in tunable.h, FSDP_TUNABLE_<kind>. type: of the field of struct
 * fsdp_opts, and how it comes of a value of that kind:
 *
 *   INT BOOL UINT64 DOUBLE DOUBLES (two)   the same number
 *   WORD         an enum whose constants stand in the order of the words
 *   STRATEGY WRAP_POLICY DTYPE CODEC   what the word means
 *   GIB          bytes, of a number of GiB
 *   TEXT         the text, which is borrowed
 *   NAME POINTER what needs memory of its own: the caller's to set
 *
 * agreement:
 *
 *   AGREED       every rank needs the same value
 *   BY_OUTCOME   ranks compare what comes of it: units, parameters, modules
 *   OWN          may differ between ranks
 */
#ifndef FSDP_SETTINGS_H
#define FSDP_SETTINGS_H

#include "fsdp/fsdp.h"
#include "fsdp/tunable.h"

#ifdef __cplusplus
extern "C" {
#endif

/* clang-format off */

/* Initial values. */
#define FSDP_SETTINGS_MODEL(ROW) \
    ROW(model, seed, INT, "0", "0..", \
        "Seed of random initial values", UINT64, AGREED, seed)

/* The optimizer. */
#define FSDP_SETTINGS_OPTIM(ROW) \
    ROW(optim, name, CHOICE, "adamw", "adamw|adamw8bit|adam|adafactor|lion|muon|schedulefree|sgd", \
        "Optimizer (docs/optimizers.md)", NAME, AGREED, optim.name) \
    ROW(optim, betas, FLOATS, "0.9, 0.95", "0..<1", \
        "Decay rates of the moments; schedulefree: of the point between x and z, and of the second " \
        "moment (all but adafactor and sgd; muon: of what is no matrix)", DOUBLES, AGREED, optim.betas) \
    ROW(optim, eps, FLOAT, "1e-8", "0<..", \
        "Added to the root of the second moment (adamw, adamw8bit, adam, muon, schedulefree)", DOUBLE, AGREED, optim.eps) \
    ROW(optim, momentum, FLOAT, "0.9", "0..", \
        "Momentum (sgd, muon); 0: none", DOUBLE, AGREED, optim.momentum) \
    ROW(optim, dampening, FLOAT, "0", NULL, \
        "Dampening of the momentum (sgd)", DOUBLE, AGREED, optim.dampening) \
    ROW(optim, nesterov, BOOL, "false", NULL, \
        "Nesterov momentum (sgd, muon)", BOOL, AGREED, optim.nesterov) \
    ROW(optim, weight_decay, FLOAT, "0.1", "0..", \
        "Weight decay; adam, sgd: added to the gradient, others: decoupled", \
        DOUBLE, AGREED, optim.weight_decay) \
    ROW(optim, decay, CHOICE, "matrices", "all|matrices", \
        "Parameters that decay: all, or those with two or more dimensions", \
        WORD, AGREED, optim.decay) \
    ROW(optim, groups, LIST, "", NULL, \
        "Parameters with settings of their own, \"PATTERN...: KEY=VALUE...\"; keys: lr, " \
        "lr_scale, weight_decay, betas, optimizer; the first group that names a parameter counts", \
        POINTER, BY_OUTCOME, optim.groups) \
    ROW(optim, clip_grad_norm, FLOAT, "1.0", "0..", \
        "Bound of the global gradient norm; 0: none", DOUBLE, AGREED, optim.clip_grad_norm) \
    ROW(optim, clip_norm_type, CHOICE, "2", "2|inf", \
        "The norm that is bounded, and shown", WORD, AGREED, optim.clip_norm_type) \
    ROW(optim, clip_late, BOOL, "false", NULL, \
        "Clip a step by the factor that the norm of the step before gives (fsdp.update_at reduce)", \
        BOOL, AGREED, optim.clip_late) \
    ROW(optim, ema_decay, FLOAT, "0", "0..<1", \
        "Decay of a moving average of the weights, stored as state.NAME.ema; 0: none", \
        DOUBLE, AGREED, optim.ema_decay) \
    ROW(optim, moment_dtype, CHOICE, "float32", "float32|bfloat16|fp32|bf16", \
        "Type of the moments (adamw, adam); bfloat16: 4 bytes a parameter less, rounded " \
        "stochastically, so that they are right on average", DTYPE, AGREED, optim.moment_dtype) \
    ROW(optim, master, CHOICE, "whole", "whole|split|none", \
        "The fp32 master where fsdp.param_dtype is bfloat16. whole: next to the gathered copy; " \
        "split: only the 16 bits that the copy lacks, 2 bytes per parameter less with the same " \
        "arithmetic; none: weights in bfloat16, which each update rounds stochastically, 4 bytes " \
        "per parameter less (adamw, adamw8bit, adam, lion, sgd)", WORD, AGREED, optim.master)

/* What is sharded, and what a unit is. */
#define FSDP_SETTINGS_SHARDING(ROW) \
    ROW(fsdp, sharding_strategy, CHOICE, "FULL_SHARD", \
        "FULL_SHARD|SHARD_GRAD_OP|NO_SHARD|HYBRID_SHARD|HYBRID_SHARD_ZERO2|ZERO1", \
        "What is sharded, and over which ranks", STRATEGY, AGREED, sharding_strategy) \
    ROW(fsdp, reshard_after_forward, INT, "auto", "auto=-1|true=1|false=0|2..", \
        "Free a unit's gathered parameters after its forward pass; auto: as the strategy does", \
        INT, AGREED, reshard_after_forward) \
    ROW(fsdp, unit_overrides, LIST, "", NULL, \
        "Settings of single units that differ: \"model.layers.0 reshard_after_forward=false\", ...", \
        POINTER, BY_OUTCOME, unit_overrides) \
    ROW(fsdp, reduce_last, BOOL, "false", NULL, \
        "Accumulate unsharded gradients and reduce them in the last micro-step only", \
        BOOL, AGREED, reduce_last) \
    ROW(fsdp, wrap_policy, CHOICE, "transformer", "transformer|size|none|list", \
        "Which modules become units: by class, by min_num_params, none but the whole model, or " \
        "those of wrap_modules", WRAP_POLICY, BY_OUTCOME, wrap_policy) \
    ROW(fsdp, wrap_classes, LIST, "", NULL, \
        "Module classes of wrap_policy transformer; empty: the model's layers, and where they are " \
        "large their experts, and embedding and head if not tied", POINTER, BY_OUTCOME, wrap_classes) \
    ROW(fsdp, wrap_modules, LIST, "", NULL, \
        "Module names of wrap_policy list, such as model.layers.* or model.layers.*.mlp; a " \
        "star stays within its level", POINTER, BY_OUTCOME, wrap_modules) \
    ROW(fsdp, frozen, LIST, "", NULL, \
        "Names of parameters that are not trained, such as model.embed_tokens.*; patterns", \
        POINTER, BY_OUTCOME, frozen) \
    ROW(fsdp, ignored, LIST, "", NULL, \
        "Names of parameters that are not trained and not sharded: whole on every rank", \
        POINTER, BY_OUTCOME, ignored) \
    ROW(fsdp, min_num_params, INT, "100000000", "1..", \
        "Parameters that make a unit under wrap_policy size", UINT64, BY_OUTCOME, min_num_params)

/* Types. */
#define FSDP_SETTINGS_DTYPES(ROW) \
    ROW(fsdp, param_dtype, CHOICE, "float32", "float32|bfloat16|float16|fp32|bf16|fp16", \
        "Type of gathered parameters", DTYPE, AGREED, param_dtype) \
    ROW(fsdp, gather_dtype, CHOICE, "auto", "auto|float8_e4m3", \
        "Type that matrices are rounded to before a module sees them, and in which they are " \
        "sent; the same values at every number of ranks; auto: param_dtype", \
        CODEC, BY_OUTCOME, gather_codec) \
    ROW(fsdp, reduce_dtype, CHOICE, "float32", "float32|bfloat16|float16|fp32|bf16|fp16", \
        "Type in which gradients are reduced", DTYPE, AGREED, reduce_dtype) \
    ROW(fsdp, grad_dtype, CHOICE, "float32", "float32|bfloat16|fp32|bf16", \
        "Type of gradient shards, in which micro-steps are summed; bfloat16: 2 bytes a parameter " \
        "less, each sum rounded to the nearest (not adafactor and muon)", DTYPE, AGREED, grad_dtype)

/* When units are gathered and reduced, and what lives where. */
#define FSDP_SETTINGS_SCHEDULE(ROW) \
    ROW(fsdp, forward_prefetch, INT, "1", "true=1|false=0|0..64", \
        "Units gathered ahead in the forward pass", INT, AGREED, forward_prefetch) \
    ROW(fsdp, backward_prefetch, INT, "1", "true=1|false=0|0..64", \
        "Units gathered ahead in the backward pass", INT, AGREED, backward_prefetch) \
    ROW(fsdp, limit_all_gathers, INT, "2", "true=2|false=0|0..1024", \
        "Gathered units alive beyond those that the strategy keeps; 0: no limit", \
        INT, AGREED, limit_all_gathers) \
    ROW(fsdp, grad_buffers, INT, "2", "1..64", \
        "Buffers of unsharded gradients in rotation; all but one may be in reduction", \
        INT, AGREED, grad_buffers) \
    ROW(fsdp, update_at, CHOICE, "step", "step|reduce|forward", \
        "When a unit's parameters are updated. step: after the last gradient; reduce: as soon as its " \
        "gradients are reduced, so that there are no gradient shards, 4 bytes per parameter less " \
        "(with one micro-step, and optim.clip_late or no clipping; with several, fsdp.reduce_last keeps " \
        "all gradients on each rank); forward: during the next forward pass, which waits for each " \
        "unit's update where it needs the unit", \
        WORD, AGREED, update_at) \
    ROW(fsdp, offload, CHOICE, "none", "none|optimizer|params", \
        "What lives in host memory and is copied to the device when it is needed. optimizer: " \
        "its state, and masters kept next to the gathered copy; params: the shards that are " \
        "gathered, too", WORD, AGREED, offload) \
    ROW(fsdp, offload_update, CHOICE, "auto", "auto|device|host", \
        "Where offloaded optimizer state is updated. device: there, with copies in both directions; " \
        "host: by the threads of each rank (train.threads), while the device computes, with " \
        "offload_gradients; auto: host where gradients are offloaded, too, and a planned step is faster " \
        "by a tenth; else device", \
        WORD, AGREED, offload_update) \
    ROW(fsdp, offload_slots, INT, "2", "1..64", \
        "Units of offloaded state and of offloaded gradients, and layers of offloaded activations, " \
        "on the device at a time; with 2 one is copied while the other is updated, or computes", \
        INT, AGREED, offload_slots) \
    ROW(fsdp, offload_activations, BOOL, "false", NULL, \
        "Keep in host memory what layers keep from the forward to the backward pass: with " \
        "activation_checkpointing full their inputs. It is copied while other layers compute", \
        BOOL, AGREED, offload_activations) \
    ROW(fsdp, offload_gradients, BOOL, "false", NULL, \
        "Keep gradient shards in host memory from their reduction to the update, 4 bytes per parameter " \
        "less on the device (2 with grad_dtype bfloat16); with several micro-steps each of them " \
        "copies the sum in both directions (not update_at reduce, which has no shards)", \
        BOOL, AGREED, offload_gradients) \
    ROW(fsdp, offload_dir, STRING, "", NULL, \
        "A folder on fast local disks (NVMe) in which offloaded state lives, in a file for each " \
        "rank, instead of host memory; with offload params the shards that are gathered remain in " \
        "host memory; empty: none", \
        TEXT, OWN, offload_dir) \
    ROW(fsdp, activation_checkpointing, CHOICE, "none", "none|full|selective", \
        "Activations that are recomputed in the backward pass. full: all of a module's; selective: the " \
        "attention's output, which costs memory and little time", \
        WORD, AGREED, activation_checkpointing) \
    ROW(fsdp, checkpoint_modules, LIST, "", NULL, \
        "Modules that activation_checkpointing covers, by name (model.layers.*, " \
        "model.layers.*.mlp); empty: all layers", POINTER, BY_OUTCOME, checkpoint_modules) \
    ROW(fsdp, loss_scale, CHOICE, "auto", "auto|true|false", \
        "Scale the loss, and skip steps that overflow; auto: where a type is float16", \
        WORD, AGREED, loss_scale.mode) \
    ROW(fsdp, loss_scale_init, FLOAT, "65536", "0<..", \
        "Loss scale of the first step", DOUBLE, AGREED, loss_scale.init) \
    ROW(fsdp, loss_scale_growth, FLOAT, "2", "1..", \
        "Factor by which it grows", DOUBLE, AGREED, loss_scale.growth) \
    ROW(fsdp, loss_scale_backoff, FLOAT, "0.5", "0<..1", \
        "Factor by which it shrinks at an overflow", DOUBLE, AGREED, loss_scale.backoff) \
    ROW(fsdp, loss_scale_interval, INT, "2000", "0..1000000000", \
        "Steps without overflow before it grows; 0: never", INT, AGREED, loss_scale.interval) \
    ROW(fsdp, memory_limit, FLOAT, "0", "0..1000000", \
        "GiB that the plan of a rank may take; a larger plan is refused with the settings that " \
        "save most; 0: what the device gives", GIB, AGREED, memory_limit)
/* clang-format on */

/* All of them. */
#define FSDP_SETTINGS(ROW)                                                                         \
    FSDP_SETTINGS_MODEL(ROW)                                                                       \
    FSDP_SETTINGS_OPTIM(ROW)                                                                       \
    FSDP_SETTINGS_SHARDING(ROW)                                                                    \
    FSDP_SETTINGS_DTYPES(ROW)                                                                      \
    FSDP_SETTINGS_SCHEDULE(ROW)

/* Sets the field of a row's key from its value, which lies in `base` as tunable.h has it. Keys that
 * are no settings of the engine change nothing, and neither do NAME and POINTER. Texts are borrowed
 * as long as opts. FSDP_EINVAL: a word that means nothing. Local. */
int fsdp_opts_take(struct fsdp_opts *opts, const struct fsdp_tunable *row, const void *base,
                   struct fsdp_err *err);

#ifdef __cplusplus
}
#endif
#endif
