/* SPDX-License-Identifier: Apache-2.0 */
/* The files of `accelerate config`: ClusterConfig and the fields of its plugins (accelerate 1.x).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "job.h"
#include "words.h"

/* ---- what runs where ---- */

static void set_type(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    const char *type = leaf->value;
    (void)row;
    if (!strcmp(type, "FSDP") || !strcmp(type, "DEEPSPEED"))
        from_remark(job, FROM_HAVE, leaf, "its own section says the rest");
    else if (!strcmp(type, "NO"))
        from_remark(job, FROM_HAVE, leaf, "one rank shards nothing");
    else if (!strncmp(type, "MULTI_", 6)) {
        from_set(job, "fsdp.sharding_strategy", leaf->path, "NO_SHARD");
        if (!strcmp(type, "MULTI_CPU"))
            from_set(job, "fsdp.device", leaf->path, "cpu");
        else if (strcmp(type, "MULTI_GPU"))
            from_remark(job, FROM_LOST, leaf, "devices are CUDA GPUs and CPUs");
    } else
        from_remark(job, FROM_LOST, leaf, "there is data parallelism on CUDA GPUs and CPUs alone");
}

static void set_cpu(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    (void)row;
    from_set(job, "fsdp.device", leaf->path, "cpu");
}

static void set_precision(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    const char *type = from_dtype(leaf->value);
    if (!strcasecmp(leaf->value, "fp8")) {
        from_set(job, row->ours, leaf->path, "bfloat16");
        from_set(job, "model.linear_dtype", leaf->path, "float8_e4m3");
    } else if (type)
        from_set(job, row->ours, leaf->path, "%s", type);
    else
        from_remark(job, FROM_LOST, leaf, "no type of that name");
}

/* A recipe of Transformer Engine. */
static void set_blocks(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    if (from_is_true(leaf->value))
        from_set(job, row->ours, leaf->path, "block");
    else
        from_remark(job, FROM_HAVE, leaf, "one scale a tensor");
}

static void take_count(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    const int value = atoi(leaf->value);
    const bool nodes = strcmp(row->theirs, "num_machines") == 0;
    const bool rank = strcmp(row->theirs, "machine_rank") == 0;
    if (value >= 0 && value < 1 << 20)
        *(nodes ? &job->nnodes : rank ? &job->node_rank : &job->nranks) = value;
    from_remark(job, FROM_LINE, leaf, "%s", row->note);
}

static void take_master(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    const bool is_host = !strcmp(row->theirs, "main_process_ip");
    const char *const allowed = is_host ? FROM_LETTERS ".:-" : "0123456789";

    /* They become words of a command that somebody types. */
    if (leaf->value[strspn(leaf->value, allowed)])
        ;
    else if (is_host)
        snprintf(job->master, sizeof job->master, "%.79s", leaf->value);
    else
        snprintf(job->port, sizeof job->port, "%.15s", leaf->value);
    from_remark(job, FROM_LINE, leaf, "%s", row->note);
}

/* ---- FSDP ---- */

static const char *strategy(const char *value)
{
    static const char *const names[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                                        "HYBRID_SHARD_ZERO2"};
    for (int i = 0; i < 5; i++)
        if (!strcasecmp(names[i], value) || (value[0] == '1' + i && !value[1]))
            return names[i];
    return strcmp(value, "_HYBRID_SHARD_ZERO2") ? NULL : names[4];
}

static void set_strategy(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    const char *name = strategy(leaf->value);
    if (name)
        from_set(job, row->ours, leaf->path, "%s", name);
    else
        from_remark(job, FROM_LOST, leaf, "no strategy of that name");
}

/* FSDP 1 names a strategy here, FSDP 2 says whether. */
static void set_reshard(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    if (!strcasecmp(leaf->value, "true") || !strcasecmp(leaf->value, "false"))
        from_set(job, "fsdp.reshard_after_forward", leaf->path, "%s",
                 from_is_true(leaf->value) ? "true" : "false");
    else
        set_strategy(job, row, leaf);
}

static void set_wrap(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    const char *policy = !strcasecmp(leaf->value, "TRANSFORMER_BASED_WRAP") ? "transformer"
                         : !strcasecmp(leaf->value, "SIZE_BASED_WRAP")      ? "size"
                         : !strcasecmp(leaf->value, "NO_WRAP")              ? "none"
                                                                            : NULL;
    if (policy)
        from_set(job, row->ours, leaf->path, "%s", policy);
    else
        from_remark(job, FROM_LOST, leaf, "no policy of that name");
}

/* "A,B" or a list. */
static void set_classes(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    char list[FROM_VALUE_NBYTES];
    const char *at = leaf->value;
    size_t len = strlen(at);
    if (at[0] == '[' && len > 1) {
        at++;
        len -= 2;
    }
    snprintf(list, sizeof list, "%.*s", (int)len, at);
    if (list[strspn(list, FROM_LETTERS "., ")])
        from_remark(job, FROM_LOST, leaf, "not names of classes");
    else
        from_set(job, row->ours, leaf->path, "[%.1000s]", list);
}

static void set_backward(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    bool pre = !strcasecmp(leaf->value, "BACKWARD_PRE") || !strcmp(leaf->value, "1");
    from_set(job, row->ours, leaf->path, "%d", pre);
    if (!strcasecmp(leaf->value, "BACKWARD_POST") || !strcmp(leaf->value, "2"))
        from_remark(job, FROM_LOST, leaf,
                    "a unit is gathered before the one in work has its gradients (1), or not "
                    "ahead (0)");
}

static void set_offload(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    from_set(job, row->ours, leaf->path, "params");
}

static void set_recompute(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    from_set(job, row->ours, leaf->path, "full");
}

static void set_state_dict(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    (void)row;
    from_remark(job, FROM_HAVE, leaf,
                strstr(leaf->value, "FULL")
                    ? "checkpoints are sharded; ckpt-merge makes the full weights of one"
                    : "checkpoints are sharded");
}

/* ---- its section for DeepSpeed ---- */

static void set_offload_device(struct from_job *job, const struct from_row *row,
                               struct from_leaf *leaf)
{
    const bool params = strstr(row->theirs, "param") != NULL;
    if (params || !from_has(job, row->ours))
        from_set(job, row->ours, leaf->path, params ? "params" : "optimizer");
    if (params && !strcmp(leaf->value, "nvme"))
        from_remark(job, FROM_LOST, leaf, "parameters live in host memory, not on a disk");
}

static void read_nested(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    char path[2 * FROM_VALUE_NBYTES];
    const char *slash = strrchr(job->path, '/');
    struct fsdp_err err = FSDP_ERR_INIT;
    (void)row;

    /* As accelerate does; but a path next to the file is found from elsewhere, too. */
    snprintf(path, sizeof path, "%.1000s", leaf->value);
    FILE *file = fopen(path, "re");
    if (!file && slash && leaf->value[0] != '/')
        snprintf(path, sizeof path, "%.*s/%.1000s", (int)(slash - job->path), job->path,
                 leaf->value);
    if (file)
        fclose(file);
    const struct from_leaf at = *leaf; /* reading more moves the list */
    const char *nranks = from_get(job, "num_processes");
    job->nranks = nranks ? atoi(nranks) : 0;
    snprintf(job->prefix, sizeof job->prefix, "(file)");
    if (from_leaves_read(&job->leaves, path, job->prefix, &err))
        from_remark(job, FROM_OPEN, &at, "not read: %.180s", err.text);
    else {
        from_remark(job, FROM_HAVE, &at, "read as well; its keys are marked (file)");
        from_run(job, &from_deepspeed);
    }
    job->prefix[0] = 0;
}

static void set_batch(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    (void)row;
    from_remark(job, FROM_OPEN, leaf,
                "train.global_batch_size is rows of a step over all ranks: their batch size x "
                "ranks x %.20s",
                leaf->value);
}

static void set_parallel(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    const char *replicas = from_get(job, "parallelism_config.parallelism_config_dp_replicate_size");
    if (strstr(row->theirs, "replicate")) {
        from_set(job, "fsdp.sharding_strategy", leaf->path, "HYBRID_SHARD");
        return;
    }
    if (replicas && atoi(replicas) > 1)
        from_set(job, "fsdp.shard_size", leaf->path, "%d", atoi(leaf->value));
    else
        from_remark(job, FROM_HAVE, leaf, "all ranks shard");
}

/* ---- the table ---- */

#define F "fsdp_config.fsdp_"
#define D "deepspeed_config."
#define P "parallelism_config.parallelism_config_"

static const struct from_row rows[] = {
    {"compute_environment", FROM_LOST, NULL, NULL, "LOCAL_MACHINE", "a cloud's own service"},
    {"distributed_type", FROM_SET, "fsdp.sharding_strategy", set_type, NULL,
     "MULTI_GPU: NO_SHARD; FSDP and DEEPSPEED: as their sections say"},
    {"mixed_precision", FROM_SET, "fsdp.param_dtype", set_precision, "no",
     "masters and sums of gradients stay float32"},
    {"fp16", FROM_SET, "fsdp.param_dtype", set_precision, "false", "the older name"},
    {"downcast_bf16", FROM_LOST, NULL, NULL, "no|false", "there are no TPUs"},
    {"use_cpu", FROM_SET, "fsdp.device", set_cpu, "false", "true: cpu"},
    {"num_processes", FROM_LINE, "-n", take_count, NULL,
     "fsdp-launch -n, or srun --ntasks; theirs counts all machines, -n one"},
    {"num_machines", FROM_LINE, "--nnodes", take_count, "1",
     "fsdp-launch --nnodes, or srun --nodes"},
    {"machine_rank", FROM_LINE, "--node-rank", take_count, NULL, "fsdp-launch --node-rank"},
    {"main_process_ip", FROM_LINE, "--master-addr", take_master, NULL, "fsdp-launch --master-addr"},
    {"main_process_port", FROM_LINE, "--master-port", take_master, NULL,
     "fsdp-launch --master-port"},
    {"rdzv_backend", FROM_HAVE, NULL, NULL, "static", "nodes meet at --master-addr"},
    {"same_network", FROM_HAVE, NULL, NULL, "true|false", "BOOT_INTERFACE names a network"},
    {"main_training_function", FROM_HAVE, NULL, NULL, "main", "there is no script"},
    {"gpu_ids", FROM_LINE, "CUDA_VISIBLE_DEVICES", NULL, "all", "set CUDA_VISIBLE_DEVICES"},
    {"enable_cpu_affinity", FROM_HAVE, "train.bind", NULL, NULL,
     "train.bind: auto, the default, gives each rank cores near its GPU"},
    {"debug", FROM_HAVE, NULL, NULL, "false", "ranks always compare what they do"},
    {"dynamo_config*", FROM_LOST, NULL, NULL, "{}|NO|no", "nothing is compiled at run time"},
    {"dynamo_backend", FROM_LOST, NULL, NULL, "NO", "nothing is compiled at run time"},
    {"mpirun_config*", FROM_LINE, "mpirun", NULL, "{}",
     "options of mpirun, which fsdp-launch takes"},
    {"tpu_*", FROM_LOST, NULL, NULL, "false|[]", "there are no TPUs"},
    {"command_file", FROM_LOST, NULL, NULL, NULL, "there are no TPU pods"},
    {"commands", FROM_LOST, NULL, NULL, NULL, "there are no TPU pods"},
    {"fp8_config.use_mxfp8_block_scaling", FROM_SET, "model.linear_scales", set_blocks, NULL, NULL},
    {"fp8_config*", FROM_LOST, NULL, NULL, "{}",
     "recipes of products in 8 bits; model.linear_scales has other scales (docs/fp8.md)"},
    {"megatron_lm_config.megatron_lm_gradient_clipping", FROM_SET, "optim.clip_grad_norm", NULL,
     NULL, NULL},
    {"megatron_lm_config*", FROM_LOST, NULL, NULL, "{}", "no tensor or pipeline parallelism"},
    {"gradient_accumulation_steps", FROM_OPEN, "train.global_batch_size", set_batch, NULL,
     "rows of a step over all ranks; micro_batch_size says how many at once"},
    {"gradient_clipping", FROM_SET, "optim.clip_grad_norm", NULL, NULL, NULL},

    {F "version", FROM_HAVE, NULL, NULL, NULL, "checkpoints of both are read"},
    {F "sharding_strategy", FROM_SET, "fsdp.sharding_strategy", set_strategy, NULL,
     "the same names; 1 to 5, too"},
    {F "reshard_after_forward", FROM_SET, "fsdp.sharding_strategy", set_reshard, NULL,
     "true, false (FSDP 2): fsdp.reshard_after_forward"},
    {F "auto_wrap_policy", FROM_SET, "fsdp.wrap_policy", set_wrap, NULL, "transformer, size, none"},
    {F "transformer_layer_cls_to_wrap", FROM_SET, "fsdp.wrap_classes", set_classes, NULL,
     "the same class names"},
    {F "min_num_params", FROM_SET, "fsdp.min_num_params", NULL, NULL, NULL},
    {F "offload_params", FROM_SET, "fsdp.offload", set_offload, "false", "true: params"},
    {F "backward_prefetch_policy", FROM_SET, "fsdp.backward_prefetch", set_backward, NULL,
     "the older name"},
    {F "backward_prefetch", FROM_SET, "fsdp.backward_prefetch", set_backward, NULL,
     "BACKWARD_PRE: 1; BACKWARD_POST, NO_PREFETCH: 0"},
    {F "forward_prefetch", FROM_SET, "fsdp.forward_prefetch", from_set_bool, NULL,
     "a number of units, too"},
    {F "limit_all_gathers", FROM_SET, "fsdp.limit_all_gathers", from_set_bool, NULL,
     "a number of units, too"},
    {F "use_orig_params", FROM_HAVE, NULL, NULL, NULL,
     "always: groups and frozen parameters by name"},
    {F "cpu_ram_efficient_loading", FROM_HAVE, NULL, NULL, NULL,
     "always: a rank reads its own part of the weights"},
    {F "sync_module_states", FROM_HAVE, NULL, NULL, NULL, "always: all ranks begin alike"},
    {F "state_dict_type", FROM_HAVE, NULL, set_state_dict, NULL,
     "sharded; ckpt-merge makes full weights"},
    {F "activation_checkpointing", FROM_SET, "fsdp.activation_checkpointing", set_recompute,
     "false", "true: full; there is selective, too"},
    {F "enable_cpu_affinity", FROM_HAVE, "train.bind", NULL, NULL, "train.bind: auto"},
    {F "ignored_modules", FROM_LOST, NULL, NULL, NULL,
     "fsdp.ignored takes parameters out of sharding, but also out of training"},

    {P "dp_replicate_size", FROM_SET, "fsdp.sharding_strategy", set_parallel, "1",
     "above 1: HYBRID_SHARD"},
    {P "dp_shard_size", FROM_SET, "fsdp.shard_size", set_parallel, "1", NULL},
    {"parallelism_config*", FROM_LOST, NULL, NULL, "{}|1|false|allgather|alltoall",
     "no tensor, context, sequence or expert parallelism"},

    {D "deepspeed_config_file", FROM_SET, "its own table", read_nested, NULL,
     "the file is read as well"},
    {D "zero_stage", FROM_SET, "fsdp.sharding_strategy", from_set_stage, NULL,
     "0: NO_SHARD, 1: ZERO1, 2: SHARD_GRAD_OP, 3: FULL_SHARD"},
    {D "offload_optimizer_device", FROM_SET, "fsdp.offload", set_offload_device, "none",
     "optimizer"},
    {D "offload_param_device", FROM_SET, "fsdp.offload", set_offload_device, "none", "params"},
    {D "offload_optimizer_nvme_path", FROM_SET, "fsdp.offload_dir", from_set_folder, NULL, NULL},
    {D "offload_param_nvme_path", FROM_LOST, NULL, NULL, NULL,
     "parameters live in host memory, not on a disk"},
    {D "gradient_accumulation_steps", FROM_OPEN, "train.global_batch_size", set_batch, NULL,
     "rows of a step over all ranks; micro_batch_size says how many at once"},
    {D "gradient_clipping", FROM_SET, "optim.clip_grad_norm", NULL, NULL, NULL},
    {D "zero3_init_flag", FROM_HAVE, NULL, NULL, NULL,
     "always: no rank has the whole model in memory"},
    {D "zero3_save_16bit_model", FROM_HAVE, NULL, NULL, NULL,
     "ckpt-merge --dtype makes 16-bit weights of a checkpoint"},
    {D "deepspeed_moe_layer_cls_names", FROM_LOST, NULL, NULL, NULL,
     "experts are sharded like other layers"},
    {D "deepspeed_multinode_launcher", FROM_LINE, "srun, --nnodes", NULL, NULL,
     "srun, mpirun, or --nnodes on each node"},
    {D "deepspeed_hostfile", FROM_LINE, "srun, --nnodes", NULL, NULL,
     "srun, mpirun, or --nnodes on each node"},
    {D "deepspeed_*", FROM_LINE, "srun, --nnodes", NULL, "{}", "say which nodes to srun or mpirun"},
    {"deepspeed_config", FROM_HAVE, NULL, NULL, "{}", "empty"},
    {"fsdp_config", FROM_HAVE, NULL, NULL, "{}", "empty"},
};

/* accelerate wraps nothing unless it is told to; here the layers are units unless told otherwise.
 */
static void finish_accelerate(struct from_job *job)
{
    const char *type = from_get(job, "distributed_type");
    if (type && !strcmp(type, "FSDP") && !from_has(job, "fsdp.wrap_policy"))
        from_set(job, "fsdp.wrap_policy", "no policy: NO_WRAP", "none");
}

const struct from_source from_accelerate = {"accelerate", "accelerate", rows,
                                            sizeof rows / sizeof rows[0], finish_accelerate};
