/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSpeed's JSON ("DeepSpeed Configuration JSON" of its documentation, 0.1x). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "job.h"
#include "words.h"

/* ---- types and the loss scale ---- */

static void set_enabled(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    from_set(job, row->ours, leaf->path, strstr(row->theirs, "fp16") ? "float16" : "bfloat16");
}

static void set_no_masters(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    from_set(job, row->ours, leaf->path, "none");
    if (!from_get(job, "data_types.grad_accum_dtype"))
        from_set(job, "fsdp.grad_dtype", leaf->path, "bfloat16");
}

static void set_autocast(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    if (from_is_true(from_get(job, "torch_autocast.enabled")))
        from_set_dtype(job, row, leaf);
    else
        from_remark(job, FROM_HAVE, leaf, "torch_autocast is not enabled");
}

static bool uses_fp16(const struct from_job *job)
{
    const char *enabled = from_get(job, "fp16.enabled");
    return from_is_true(enabled) || from_is_auto(enabled);
}

/* Of fp16 where it is in use: a file often has its section and leaves it off. */
static void set_scale(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    double value;
    if (!uses_fp16(job))
        from_remark(job, FROM_HAVE, leaf, "fp16 is not enabled");
    else if (!from_number(&value, leaf->value))
        from_remark(job, FROM_LOST, leaf, "not a number");
    else if (!strcmp(row->theirs, "fp16.initial_scale_power"))
        from_set(job, row->ours, leaf->path, "%.12g", ldexp(1, (int)value));
    else if (!strcmp(row->theirs, "fp16.loss_scale_window"))
        from_set(job, row->ours, leaf->path, "%.12g", value);
    else if (value > 0) { /* a static scale: it starts so, and never changes */
        from_set(job, "fsdp.loss_scale_interval", leaf->path, "0");
        from_set(job, "fsdp.loss_scale_backoff", leaf->path, "1");
        from_set(job, row->ours, leaf->path, "%.12g", value);
    }
}

/* ---- optimizer and schedule ---- */

static void set_optimizer(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    const bool adam = !strcasecmp(leaf->value, "Adam") || !strcasecmp(leaf->value, "AdamW") ||
                      !strcasecmp(leaf->value, "FusedAdam");
    if (adam)
        from_set(job, row->ours, leaf->path, "adamw");
    else if (!strcasecmp(leaf->value, "SGD"))
        from_set(job, row->ours, leaf->path, "sgd");
    else if (!strcasecmp(leaf->value, "Lion") || !strcasecmp(leaf->value, "FusedLion"))
        from_set(job, row->ours, leaf->path, "lion");
    else
        from_remark(job, FROM_LOST, leaf,
                    "optim.name has no such optimizer; what is below is adamw");
}

static void set_list(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    if (leaf->value[strspn(leaf->value, "0123456789.+-eE[], ")])
        from_remark(job, FROM_LOST, leaf, "not numbers, as %s expects them", row->ours);
    else
        from_set(job, row->ours, leaf->path, "%s", leaf->value);
}

static void set_schedule(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    const char *name = !strcmp(leaf->value, "WarmupLR")         ? "constant"
                       : !strcmp(leaf->value, "WarmupDecayLR")  ? "linear"
                       : !strcmp(leaf->value, "WarmupCosineLR") ? "cosine"
                                                                : NULL;
    if (name)
        from_set(job, row->ours, leaf->path, "%s", name);
    else
        from_remark(job, FROM_LOST, leaf, "there are constant, linear, cosine and wsd");
}

/* min_lr is a rate, theirs is a part of the peak. */
static void set_min_ratio(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    double ratio, peak;
    if (!from_number(&ratio, leaf->value))
        from_remark(job, FROM_LOST, leaf, "not a number");
    else if (!from_number(&peak, from_get(job, "optimizer.params.lr")))
        from_remark(job, FROM_OPEN, leaf, "%s is this times %s", row->ours, "optim.lr");
    else
        from_set(job, row->ours, leaf->path, "%.12g", ratio * peak);
}

static void judge_warmup(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    double low;
    if (from_is_auto(leaf->value) || (from_number(&low, leaf->value) && low == 0))
        from_remark(job, FROM_HAVE, leaf, "warm-up begins at 0");
    else
        from_remark(job, FROM_LOST, leaf, "%s", row->note);
}

/* ---- ZeRO ---- */

static void set_offload(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    const bool params = strstr(row->theirs, "param") != NULL;
    if (params || !from_has(job, row->ours))
        from_set(job, row->ours, leaf->path, params ? "params" : "optimizer");
    if (params && !strcmp(leaf->value, "nvme"))
        from_remark(job, FROM_LOST, leaf, "parameters live in host memory, not on a disk");
}

static void set_folder(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    const char *device = from_get(job, "zero_optimization.offload_optimizer.device");
    if (device && !strcmp(device, "nvme"))
        from_set_folder(job, row, leaf);
    else
        from_remark(job, FROM_HAVE, leaf, "the device is not nvme");
}

static void set_hpz(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    if (atoi(leaf->value) >= 2)
        from_set(job, row->ours, leaf->path, "%d", atoi(leaf->value));
    else
        from_remark(job, FROM_LOST, leaf, "expected a number of ranks");
}

static void set_mics(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    if (atoi(leaf->value) < 1) {
        from_remark(job, FROM_HAVE, leaf, "asks for nothing");
        return;
    }
    from_set(job, "fsdp.sharding_strategy", leaf->path, "HYBRID_SHARD");
    from_set(job, row->ours, leaf->path, "%d", atoi(leaf->value));
}

/* ---- the rest ---- */

/* Their section only says how; what is recomputed, the model's code says. */
static void set_recompute(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    from_set(job, row->ours, leaf->path, "full");
    from_remark(job, FROM_HAVE, leaf, "%s", row->note);
}

static void set_tensorboard(struct from_job *job, const struct from_row *row,
                            struct from_leaf *leaf)
{
    if (from_is_true(from_get(job, "tensorboard.enabled")))
        from_set_folder(job, row, leaf);
    else
        from_remark(job, FROM_HAVE, leaf, "tensorboard is not enabled");
}

static void set_accumulation(struct from_job *job, const struct from_row *row,
                             struct from_leaf *leaf)
{
    (void)row;
    from_remark(job, FROM_HAVE, leaf, "follows from global and micro batch size and ranks");
}

static void set_grad_dtype(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    const char *type = from_dtype(leaf->value);
    if (type && strcmp(type, "float16") != 0)
        from_set_dtype(job, row, leaf);
    else
        from_remark(job, FROM_LOST, leaf, "%s", row->note);
}

#define Z "zero_optimization."
#define UNITS "the units of fsdp.wrap_policy are the buckets"
#define ALWAYS "always so"
#define PARALLEL "no tensor, sequence, pipeline or expert parallelism"

static const struct from_row rows[] = {
    {"train_batch_size", FROM_SET, "train.global_batch_size", NULL, NULL, NULL},
    {"train_micro_batch_size_per_gpu", FROM_SET, "train.micro_batch_size", NULL, NULL, NULL},
    {"gradient_accumulation_steps", FROM_HAVE, "train.global_batch_size", set_accumulation, NULL,
     "follows from global and micro batch size and ranks"},
    {"managed_gradient_accumulation", FROM_HAVE, NULL, NULL, NULL, ALWAYS},
    {"seed", FROM_SET, "train.seed", NULL, NULL, NULL},

    {"optimizer.type", FROM_SET, "optim.name", set_optimizer, NULL,
     "Adam, AdamW: adamw; Lion: lion; SGD: sgd"},
    {"optimizer.params.lr", FROM_SET, "optim.lr", NULL, NULL, NULL},
    {"optimizer.params.betas", FROM_SET, "optim.betas", set_list, NULL, NULL},
    {"optimizer.params.eps", FROM_SET, "optim.eps", NULL, NULL, NULL},
    {"optimizer.params.weight_decay", FROM_SET, "optim.weight_decay", NULL, NULL,
     "with optim.decay: all"},
    {"optimizer.params.momentum", FROM_SET, "optim.momentum", NULL, NULL, NULL},
    {"optimizer.params.dampening", FROM_SET, "optim.dampening", NULL, NULL, NULL},
    {"optimizer.params.nesterov", FROM_SET, "optim.nesterov", from_set_bool, NULL, NULL},
    {"optimizer.params.adam_w_mode", FROM_LOST, NULL, NULL, "true", "weight decay is decoupled"},
    {"optimizer.params.torch_adam", FROM_HAVE, NULL, NULL, NULL, "one implementation"},
    {"optimizer.params.bias_correction", FROM_LOST, NULL, NULL, "true", "moments are corrected"},
    {"optimizer.params.amsgrad", FROM_LOST, NULL, NULL, "false", "no AMSGrad"},
    {"optimizer.params.*", FROM_LOST, NULL, NULL, NULL, "the optimizer has no such setting"},
    {"optimizer.legacy_fusion", FROM_HAVE, NULL, NULL, NULL, "one implementation"},

    {"scheduler.type", FROM_SET, "optim.schedule", set_schedule, NULL,
     "WarmupLR: constant, WarmupDecayLR: linear, WarmupCosineLR: cosine"},
    {"scheduler.params.warmup_max_lr", FROM_SET, "optim.lr", NULL, NULL, NULL},
    {"scheduler.params.warmup_num_steps", FROM_SET, "optim.warmup_steps", NULL, NULL, NULL},
    {"scheduler.params.total_num_steps", FROM_SET, "train.steps", NULL, NULL, NULL},
    {"scheduler.params.warmup_min_lr", FROM_LOST, NULL, judge_warmup, NULL, "warm-up begins at 0"},
    {"scheduler.params.warmup_min_ratio", FROM_LOST, NULL, judge_warmup, NULL,
     "warm-up begins at 0"},
    {"scheduler.params.cos_min_ratio", FROM_SET, "optim.min_lr", set_min_ratio, NULL,
     "a rate, not a part of the peak"},
    {"scheduler.params.warmup_type", FROM_LOST, NULL, NULL, "linear", "warm-up is linear"},
    {"scheduler.params.*", FROM_LOST, NULL, NULL, NULL, "schedules have no such setting"},

    {"bf16.enabled", FROM_SET, "fsdp.param_dtype", set_enabled, "false", "bfloat16"},
    {"bfloat16.enabled", FROM_SET, "fsdp.param_dtype", set_enabled, "false", "the older name"},
    {"bf16.bf16_master_weights_and_grads", FROM_SET, "optim.master", set_no_masters, "false",
     "none, and fsdp.grad_dtype bfloat16; weights are rounded stochastically"},
    {"bf16.bf16_optimizer_states", FROM_SET, "optim.moment_dtype", set_enabled, "false",
     "bfloat16, rounded stochastically"},
    {"bf16.*", FROM_HAVE, NULL, NULL, NULL, "overflows are noticed in the gradient norm"},
    {"fp16.enabled", FROM_SET, "fsdp.param_dtype", set_enabled, "false", "float16"},
    {"fp16.loss_scale", FROM_SET, "fsdp.loss_scale_init", set_scale, "0",
     "above 0: with loss_scale_interval 0 and loss_scale_backoff 1"},
    {"fp16.initial_scale_power", FROM_SET, "fsdp.loss_scale_init", set_scale, NULL,
     "2 to that power"},
    {"fp16.loss_scale_window", FROM_SET, "fsdp.loss_scale_interval", set_scale, NULL, NULL},
    {"fp16.hysteresis", FROM_LOST, NULL, NULL, "1", "the scale shrinks at the first overflow"},
    {"fp16.consecutive_hysteresis", FROM_LOST, NULL, NULL, "false",
     "the scale shrinks at the first overflow"},
    {"fp16.min_loss_scale", FROM_LOST, NULL, NULL, "1", "the scale has no lower bound"},
    {"fp16.auto_cast", FROM_HAVE, NULL, NULL, NULL, "inputs are token ids"},
    {"fp16.fp16_master_weights_and_grads", FROM_LOST, NULL, NULL, "false", "masters are float32"},
    {"amp.enabled", FROM_LOST, NULL, NULL, "false", "use fsdp.param_dtype"},
    {"amp.*", FROM_LOST, NULL, NULL, NULL, "use fsdp.param_dtype"},
    {"torch_autocast.enabled", FROM_HAVE, NULL, NULL, NULL, "its dtype says the rest"},
    {"torch_autocast.dtype", FROM_SET, "fsdp.param_dtype", set_autocast, NULL, NULL},
    {"torch_autocast.*", FROM_HAVE, NULL, NULL, NULL, "norms and the loss are computed in float32"},
    {"data_types.grad_accum_dtype", FROM_SET, "fsdp.grad_dtype", set_grad_dtype, NULL,
     "float32 or bfloat16"},
    {"communication_data_type", FROM_SET, "fsdp.reduce_dtype", from_set_dtype, NULL, NULL},
    {"seq_parallel_communication_data_type", FROM_LOST, NULL, NULL, NULL, PARALLEL},
    {"prescale_gradients", FROM_HAVE, NULL, NULL, NULL,
     "float16 divides before and after the sum by itself"},
    {"gradient_predivide_factor", FROM_HAVE, NULL, NULL, NULL,
     "float16 divides before and after the sum by itself"},
    {"gradient_allreduce_op", FROM_LOST, NULL, NULL, "mean", "gradients are averaged"},
    {"sparse_gradients", FROM_LOST, NULL, NULL, "false", "gradients are dense"},
    {"gradient_clipping", FROM_SET, "optim.clip_grad_norm", NULL, NULL, "absent: 0"},

    {Z "stage", FROM_SET, "fsdp.sharding_strategy", from_set_stage, NULL,
     "0: NO_SHARD, 1: ZERO1, 2: SHARD_GRAD_OP, 3: FULL_SHARD"},
    {Z "offload_optimizer.device", FROM_SET, "fsdp.offload", set_offload, "none", "optimizer"},
    {Z "offload_optimizer.nvme_path", FROM_SET, "fsdp.offload_dir", set_folder, NULL,
     "with device nvme"},
    {Z "offload_optimizer.*", FROM_HAVE, "fsdp.offload_slots", NULL, NULL,
     "buffers are pinned; fsdp.offload_slots counts them"},
    {Z "offload_param.device", FROM_SET, "fsdp.offload", set_offload, "none", "params"},
    {Z "offload_param.nvme_path", FROM_LOST, NULL, NULL, NULL,
     "parameters live in host memory, not on a disk"},
    {Z "offload_param.*", FROM_HAVE, NULL, NULL, NULL, "buffers are pinned"},
    {Z "cpu_offload", FROM_SET, "fsdp.offload", set_offload, "false", "the older name: optimizer"},
    {Z "cpu_offload_params", FROM_SET, "fsdp.offload", set_offload, "false",
     "the older name: params"},
    {Z "cpu_offload_param", FROM_SET, "fsdp.offload", set_offload, "false",
     "the older name: params"},
    {Z "cpu_offload_use_pin_memory", FROM_HAVE, NULL, NULL, NULL, "buffers are pinned"},
    {Z "zero_hpz_partition_size", FROM_SET, "fsdp.reshard_after_forward", set_hpz, "1",
     "the backward pass gathers from that many ranks"},
    {Z "mics_shard_size", FROM_SET, "fsdp.shard_size", set_mics, NULL, "with HYBRID_SHARD"},
    {Z "mics_hierarchical_params_gather", FROM_SET, "fsdp.two_level", from_set_bool, "false", NULL},
    {Z "zero_quantized_weights", FROM_LOST, "fsdp.gather_dtype", NULL, "false",
     "not these 8 bits; fsdp.gather_dtype: float8_e4m3 is near"},
    {Z "zero_quantized_nontrainable_weights", FROM_LOST, NULL, NULL, "false",
     "frozen weights are sent as they are"},
    {Z "zero_quantized_gradients", FROM_LOST, NULL, NULL, "false",
     "gradients are sent in fsdp.reduce_dtype"},
    {Z "zeropp_loco_param*", FROM_LOST, NULL, NULL, NULL,
     "gradients are sent in fsdp.reduce_dtype"},
    {Z "overlap_comm", FROM_HAVE, NULL, NULL, NULL, ALWAYS},
    {Z "contiguous_gradients", FROM_HAVE, NULL, NULL, NULL, ALWAYS},
    {Z "reduce_scatter", FROM_HAVE, NULL, NULL, NULL, ALWAYS},
    {Z "allgather_partitions", FROM_HAVE, NULL, NULL, NULL, ALWAYS},
    {Z "allgather_sequential", FROM_HAVE, NULL, NULL, NULL, ALWAYS},
    {Z "use_multi_rank_bucket_allreduce", FROM_HAVE, NULL, NULL, NULL, UNITS},
    {Z "allgather_bucket_size", FROM_HAVE, "fsdp.wrap_policy", NULL, NULL, UNITS},
    {Z "reduce_bucket_size", FROM_HAVE, "fsdp.wrap_policy", NULL, NULL, UNITS},
    {Z "sub_group_size", FROM_HAVE, NULL, NULL, NULL, "the optimizer goes unit by unit"},
    {Z "prefetch_bucket_size", FROM_HAVE, "fsdp.forward_prefetch", NULL, NULL,
     "fsdp.forward_prefetch and backward_prefetch count units"},
    {Z "stage3_prefetch_bucket_size", FROM_HAVE, "fsdp.forward_prefetch", NULL, NULL,
     "fsdp.forward_prefetch and backward_prefetch count units"},
    {Z "stage3_max_live_parameters", FROM_HAVE, "fsdp.limit_all_gathers", NULL, NULL,
     "fsdp.limit_all_gathers counts units"},
    {Z "max_live_parameters", FROM_HAVE, "fsdp.limit_all_gathers", NULL, NULL,
     "fsdp.limit_all_gathers counts units"},
    {Z "stage3_max_reuse_distance", FROM_HAVE, NULL, NULL, NULL, "the schedule is planned ahead"},
    {Z "max_reuse_distance", FROM_HAVE, NULL, NULL, NULL, "the schedule is planned ahead"},
    {Z "stage3_param_persistence_threshold", FROM_HAVE, NULL, NULL, NULL,
     "small parameters travel with their unit"},
    {Z "stage3_model_persistence_threshold", FROM_HAVE, NULL, NULL, NULL,
     "small parameters travel with their unit"},
    {Z "stage3_gather_16bit_weights_on_model_save", FROM_HAVE, NULL, NULL, NULL,
     "ckpt-merge --dtype makes 16-bit weights of a checkpoint"},
    {Z "stage3_gather_fp16_weights_on_model_save", FROM_HAVE, NULL, NULL, NULL,
     "ckpt-merge --dtype makes 16-bit weights of a checkpoint"},
    {Z "stage3_module_granularity_threshold", FROM_HAVE, "fsdp.wrap_policy", NULL, NULL, UNITS},
    {Z "stage3_use_all_reduce_for_fetch_params", FROM_HAVE, NULL, NULL, NULL,
     "parameters are gathered"},
    {Z "stage3_allgather_sequential", FROM_HAVE, NULL, NULL, NULL, ALWAYS},
    {Z "load_from_fp32_weights", FROM_HAVE, NULL, NULL, NULL, "checkpoints hold float32 masters"},
    {Z "elastic_checkpoint", FROM_HAVE, NULL, NULL, NULL,
     "every checkpoint resumes on any number of ranks"},
    {Z "round_robin_gradients", FROM_HAVE, NULL, NULL, NULL, "every rank has an equal part"},
    {Z "ignore_unused_parameters", FROM_HAVE, NULL, NULL, NULL, "models use all parameters"},
    {Z "legacy_stage1", FROM_HAVE, NULL, NULL, NULL, "one implementation"},
    {Z "memory_efficient_linear", FROM_HAVE, NULL, NULL, NULL, ALWAYS},
    {Z "pipeline_loading_checkpoint", FROM_HAVE, NULL, NULL, NULL,
     "a rank reads its own part of the weights"},
    {Z "override_module_apply", FROM_HAVE, NULL, NULL, NULL, "there are no Python modules"},
    {Z "log_trace_cache_warnings", FROM_HAVE, NULL, NULL, NULL, "the schedule is planned ahead"},
    {Z "enable_sanity_checks", FROM_HAVE, NULL, NULL, NULL, ALWAYS},
    {Z "grad_hooks", FROM_HAVE, NULL, NULL, NULL, ALWAYS},
    {Z "zenflow*", FROM_LOST, NULL, NULL, NULL, "updates are never delayed"},
    {Z "leaf_module*", FROM_LOST, "fsdp.wrap_modules", NULL, NULL, "fsdp.wrap_modules names units"},
    {"zero_allow_untested_optimizer", FROM_HAVE, NULL, NULL, NULL, "all optimizers are tested"},
    {"zero_force_ds_cpu_optimizer", FROM_HAVE, NULL, NULL, NULL,
     "the optimizer runs on the device, unit by unit"},
    {"disable_allgather", FROM_HAVE, NULL, NULL, "false", "the schedule is planned ahead"},

    {"activation_checkpointing.cpu_checkpointing", FROM_SET, "fsdp.offload_activations",
     from_set_bool, "false", NULL},
    {"activation_checkpointing.partition_activations", FROM_LOST, NULL, NULL, "false", PARALLEL},
    {"activation_checkpointing.number_checkpoints", FROM_SET, "fsdp.activation_checkpointing",
     set_recompute, NULL, "which ones: fsdp.checkpoint_modules"},
    {"activation_checkpointing.*", FROM_HAVE, "fsdp.activation_checkpointing", NULL, NULL,
     "fsdp.activation_checkpointing turns it on; their model's code does"},

    {"steps_per_print", FROM_SET, "log.interval", NULL, "inf", NULL},
    {"wall_clock_breakdown", FROM_HAVE, "log.trace", NULL, NULL,
     "log.metrics has the times of a step, log.trace its parts"},
    {"memory_breakdown", FROM_HAVE, NULL, NULL, NULL, "the plan of the memory is printed"},
    {"dump_state", FROM_HAVE, NULL, NULL, NULL, "--print-config prints all settings"},
    {"flops_profiler.*", FROM_HAVE, "log.trace", NULL, NULL,
     "log.metrics has the times of a step, log.trace its parts"},
    {"comms_logger.*", FROM_HAVE, "log.trace", NULL, NULL, "log.trace has every transfer"},
    {"csv_monitor.*", FROM_HAVE, "log.metrics", NULL, NULL, "log.metrics writes JSON lines"},
    {"tensorboard.output_path", FROM_SET, "log.tensorboard", set_tensorboard, NULL, "a folder"},
    {"tensorboard.enabled", FROM_HAVE, "log.tensorboard", NULL, "false",
     "log.tensorboard names a folder"},
    {"tensorboard.*", FROM_HAVE, NULL, NULL, NULL, "the folder's name is the run's"},
    {"wandb.*", FROM_LOST, "log.metrics", NULL, "false", "log.metrics writes JSON lines"},
    {"comet.*", FROM_LOST, "log.metrics", NULL, "false", "log.metrics writes JSON lines"},
    {"log_level", FROM_LINE, "-v", NULL, NULL, "fsdp-launch -v logs more"},

    {"checkpoint.use_node_local_storage", FROM_LOST, "checkpoint.staging", NULL, "false",
     "checkpoint.staging makes them on a node's disk and copies them"},
    {"checkpoint.*", FROM_HAVE, NULL, NULL, NULL, "ranks write their parts at once, and agree"},
    {"nebula.*", FROM_LOST, "checkpoint.async", NULL, "false",
     "checkpoint.async writes in the background"},
    {"aio.*", FROM_HAVE, NULL, NULL, NULL, "chosen by the program"},
    {"dataloader_drop_last", FROM_HAVE, NULL, NULL, NULL, "every step has all its rows"},
    {"data_efficiency.*", FROM_LOST, NULL, NULL, "false", "data come in one order"},
    {"curriculum_learning.*", FROM_LOST, NULL, NULL, "false", "data come in one order"},
    {"progressive_layer_drop.*", FROM_LOST, NULL, NULL, "false", "all layers are computed"},
    {"eigenvalue.*", FROM_LOST, NULL, NULL, "false", "not computed"},
    {"compression_training.*", FROM_LOST, NULL, NULL, "false", "no pruning or quantized training"},
    {"sparse_attention.*", FROM_LOST, NULL, NULL, NULL,
     "attention is as the model's config.json says"},
    {"autotuning.*", FROM_LOST, NULL, NULL, "false", "--dump-schedule shows a plan"},
    {"elasticity.*", FROM_HAVE, NULL, NULL, NULL,
     "every checkpoint resumes on any number of ranks"},
    {"compile.*", FROM_LOST, NULL, NULL, "false", "nothing is compiled at run time"},
    {"hybrid_engine.*", FROM_LOST, NULL, NULL, "false", "fsdp-generate generates text"},
    {"pipeline.*", FROM_LOST, NULL, NULL, NULL, PARALLEL},
    {"tensor_parallel.*", FROM_LOST, NULL, NULL, "0", PARALLEL},
    {"expert_parallel.*", FROM_LOST, NULL, NULL, "false", PARALLEL},
    {"sequence_parallel_size", FROM_LOST, NULL, NULL, "1", PARALLEL},
    {"data_parallel_size", FROM_LINE, "-n", NULL, NULL, "the number of ranks"},
    {"communication_backend*", FROM_HAVE, "fsdp.backend", NULL, NULL, "fsdp.backend: auto"},
};

/* Unless their key is there: then it has been set, or its "auto" is to be filled in. */
static void set_absent(struct from_job *job, const char *key, const char *theirs, const char *value)
{
    if (!from_get(job, theirs) && !from_has(job, key))
        from_set(job, key, "their default", "%s", value);
}

static void finish_batch(struct from_job *job)
{
    double micro, times;
    if (from_has(job, "train.global_batch_size") ||
        !from_number(&micro, from_get(job, "train_micro_batch_size_per_gpu")))
        return;
    if (!from_number(&times, from_get(job, "gradient_accumulation_steps")))
        times = 1;
    if (job->nranks)
        from_set(job, "train.global_batch_size", "micro batch x accumulation x ranks", "%.12g",
                 micro * times * job->nranks);
    else
        from_set(job, "train.global_batch_size",
                 "micro batch x accumulation: MULTIPLY BY THE NUMBER OF RANKS", "%.12g",
                 micro * times);
}

/* What they do where nothing is said, and we do not. */
static void finish_deepspeed(struct from_job *job)
{
    const char *name = from_get(job, "optimizer.type");

    finish_batch(job);
    set_absent(job, "optim.clip_grad_norm", "gradient_clipping", "0");
    set_absent(job, "fsdp.sharding_strategy", "zero_optimization.stage", "NO_SHARD");
    if (!name)
        return;
    const bool sgd = !strcasecmp(name, "SGD");
    set_absent(job, "optim.decay", "none", "all");
    set_absent(job, "optim.weight_decay", "optimizer.params.weight_decay",
               from_is_true(from_get(job, "optimizer.params.torch_adam")) ? "0.01" : "0");
    if (sgd)
        set_absent(job, "optim.momentum", "optimizer.params.momentum", "0");
    else
        set_absent(job, "optim.betas", "optimizer.params.betas", "[0.9, 0.999]");
    set_absent(job, "optim.schedule", "scheduler.type", "constant");
    if (!from_get(job, "scheduler.type"))
        return;
    set_absent(job, "optim.warmup_steps", "scheduler.params.warmup_num_steps", "1000");
    const struct from_leaf absent = {.path = "scheduler.params.warmup_type", .value = "(log)"};
    if (!from_get(job, absent.path))
        from_remark(job, FROM_LOST, &absent, "their default; warm-up is linear");
}

const struct from_source from_deepspeed = {"deepspeed", "DeepSpeed", rows,
                                           sizeof rows / sizeof rows[0], finish_deepspeed};
