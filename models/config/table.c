/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of a run: keys, types, defaults, what is allowed, help. */
#include "config_impl.h"
#include "fsdp/comm.h"

#define ROW(section, key, kind, def, allowed, help)                                                \
    {                                                                                              \
#section "." #key, FSDP_TUNABLE_##kind, def, help, allowed,                                \
            offsetof(struct config, section.key)                                                   \
    }
#define DTYPES "float32|bfloat16|float16|fp32|bf16|fp16"

const struct fsdp_tunable config_table[] = {
    ROW(model, path, STRING, NULL, NULL,
        "Folder with config.json (Hugging Face), and the weights where init is pretrained"),
    ROW(model, init, CHOICE, "pretrained", "pretrained|random",
        "Start from the weights in model.path, or from random values"),
    ROW(model, seed, INT, "0", "0..", "Seed of random initial values"),
    ROW(model, dropout, FLOAT, "auto", "auto=-1|0..<1",
        "Probability of all of the model's dropouts in training; auto: each as config.json says"),

    ROW(data, path, LIST, "", NULL,
        "Files or folders (recursively, sorted by path) of training data; one or a list"),
    ROW(data, format, CHOICE, "text", "text|u16|u32|llmc|jsonl",
        "text: bytes are tokens; u16, u32: raw little-endian token ids; llmc: llm.c's .bin; jsonl: "
        "a document a line, {\"text\"}, {\"prompt\", \"completion\"} of which the completion is "
        "learned, or {\"input_ids\", \"labels\"}"),
    ROW(data, tokenizer, CHOICE, "auto", "auto|bytes",
        "How text becomes tokens. auto: byte by byte for a model with 256 tokens; for others, text "
        "is refused. bytes: byte by byte for any model"),
    ROW(data, layout, CHOICE, "stream", "stream|rows",
        "stream: windows of seq_len+1 tokens in a seeded order; rows: consecutive rows of "
        "seq_len+1; of jsonl: rows in a seeded order, or as they stand"),
    ROW(data, pack, CHOICE, "auto", "auto|none|documents",
        "documents: those in a row do not see each other, and positions begin anew; none: they do, "
        "and of jsonl a row is one document; auto: documents for jsonl, else none"),
    ROW(data, document_end, INT, "auto", "auto=-1|none=-2|0..2147483647",
        "Token that ends a document; jsonl: added to texts; auto: the model's eos_token_id"),
    ROW(data, seq_len, INT, "auto", "auto=0|1..1048576",
        "Tokens predicted per row; auto: 256, or the model's limit if that is less"),
    ROW(data, eval_path, LIST, "", NULL, "Held-out data, in the same format and layout"),
    ROW(data, eval_rows, INT, "auto", "auto=0|1..",
        "Rows of held-out data per evaluation, spread evenly; auto: all"),

    ROW(train, steps, INT, NULL, "0..", "Optimizer steps in all; 0 saves the initial state"),
    ROW(train, global_batch_size, INT, "8", "1..2147483647",
        "Rows per optimizer step, whatever the number of ranks"),
    ROW(train, micro_batch_size, INT, "auto", "auto=0|1..2147483647",
        "Rows a rank computes at once; the rest is accumulated; auto: up to 8192 tokens"),
    ROW(train, seed, INT, "0", "0..", "Seed of the order of the data, and of dropout"),
    ROW(train, eval_interval, INT, "0", "0..",
        "Steps between evaluations on data.eval_path; 0: only at the end"),
    ROW(train, on_nonfinite, CHOICE, "warn", "warn|stop",
        "What to do when the loss or the gradient norm is not finite"),
    ROW(train, threads, INT, "auto", "auto=0|1..1024",
        "Threads that a rank computes with; auto: the cores that it may use, divided by their "
        "ranks"),
    ROW(train, bind, CHOICE, "auto", "auto|none",
        "Ranks of a machine that may all run on the same cores: auto gives each whole cores of its "
        "own, near its GPU"),
    ROW(train, peak_tflops, FLOAT, "auto", "auto=0|0<..",
        "Peak TFLOP/s of a rank's device, for MFU; auto: that of a known GPU with 16-bit "
        "parameters, else MFU is not shown"),
    ROW(train, late_results, INT, "auto", "auto=-1|true=1|false=0",
        "Read a step's loss while the next one runs; auto: where the device works on its own"),

    ROW(optim, name, CHOICE, "adamw", "adamw|sgd", "Optimizer"),
    ROW(optim, lr, FLOAT, "1e-3", "0..", "Peak learning rate"),
    ROW(optim, betas, FLOATS, "0.9, 0.95", "0..<1", "Decay rates of the two moments (adamw)"),
    ROW(optim, eps, FLOAT, "1e-8", "0<..", "Added to the root of the second moment (adamw)"),
    ROW(optim, momentum, FLOAT, "0.9", "0..", "Momentum (sgd); 0: none"),
    ROW(optim, dampening, FLOAT, "0", NULL, "Dampening of the momentum (sgd)"),
    ROW(optim, nesterov, BOOL, "false", NULL, "Nesterov momentum (sgd)"),
    ROW(optim, weight_decay, FLOAT, "0.1", "0..",
        "Weight decay; adamw: decoupled, sgd: added to the gradient"),
    ROW(optim, decay, CHOICE, "matrices", "all|matrices",
        "Parameters that decay: all, or those with two or more dimensions"),
    ROW(optim, groups, LIST, "", NULL,
        "Parameters with settings of their own, \"PATTERN...: KEY=VALUE...\"; keys: lr, lr_scale, "
        "weight_decay, betas; the first group that names a parameter counts"),
    ROW(optim, clip_grad_norm, FLOAT, "1.0", "0..", "Bound of the global gradient norm; 0: none"),
    ROW(optim, clip_norm_type, CHOICE, "2", "2|inf", "The norm that is bounded, and shown"),
    ROW(optim, ema_decay, FLOAT, "0", "0..<1",
        "Decay of a moving average of the weights, stored as state.NAME.ema; 0: none"),
    ROW(optim, moment_dtype, CHOICE, "float32", "float32|bfloat16|fp32|bf16",
        "Type of the moments (adamw); bfloat16: 4 bytes a parameter less, rounded stochastically, "
        "so "
        "that they are right on average"),
    ROW(optim, master, CHOICE, "whole", "whole|split",
        "The fp32 master where fsdp.param_dtype is bfloat16: next to the gathered copy, or split "
        "into that and the 16 bits it lacks: 2 bytes a parameter less, the same arithmetic"),
    ROW(optim, schedule, CHOICE, "cosine", "constant|linear|cosine|wsd",
        "Learning rate after the warm-up; wsd: stable, then linear decay"),
    ROW(optim, warmup_steps, INT, "0", "0..", "Steps of linear warm-up"),
    ROW(optim, min_lr, FLOAT, "0", "0..", "Learning rate of the last step (linear, cosine, wsd)"),
    ROW(optim, decay_steps, INT, "auto", "auto=-1|0..",
        "Steps of decay at the end of wsd; auto: a fifth of train.steps"),

    ROW(fsdp, sharding_strategy, CHOICE, "FULL_SHARD",
        "FULL_SHARD|SHARD_GRAD_OP|NO_SHARD|HYBRID_SHARD|HYBRID_SHARD_ZERO2|ZERO1",
        "What is sharded, and over whom"),
    ROW(fsdp, shard_size, INT, "auto", "auto=0|1..",
        "Ranks per shard group; auto: all, under HYBRID_* those of a node"),
    ROW(fsdp, reshard_after_forward, INT, "auto", "auto=-1|true=1|false=0|2..",
        "Free a unit's gathered parameters after its forward pass; auto: as the strategy does"),
    ROW(fsdp, two_level, BOOL, "false", NULL,
        "Gather over the nodes first, then inside each; reduce the other way round"),
    ROW(fsdp, unit_overrides, LIST, "", NULL,
        "What single units do otherwise: \"model.layers.0 reshard_after_forward=false\", ..."),
    ROW(fsdp, reduce_last, BOOL, "false", NULL,
        "Accumulate unsharded gradients and reduce them in the last micro-step only"),
    ROW(fsdp, wrap_policy, CHOICE, "transformer", "transformer|size|none|list",
        "Which modules become units: by class, by min_num_params, none but the whole model, or "
        "those "
        "of wrap_modules"),
    ROW(fsdp, wrap_classes, LIST, "", NULL,
        "Module classes of wrap_policy transformer; empty: the model's layers, and its embedding "
        "and "
        "head where they are large and not tied"),
    ROW(fsdp, wrap_modules, LIST, "", NULL,
        "Module names of wrap_policy list, such as model.layers.* or model.layers.*.mlp; a star "
        "stays within its level"),
    ROW(fsdp, frozen, LIST, "", NULL,
        "Names of parameters that are not trained, such as model.embed_tokens.*; patterns"),
    ROW(fsdp, ignored, LIST, "", NULL,
        "Names of parameters that are not trained and not sharded: whole on every rank"),
    ROW(fsdp, min_num_params, INT, "100000000", "1..",
        "Parameters that make a unit under wrap_policy size"),
    ROW(fsdp, param_dtype, CHOICE, "float32", DTYPES, "Type of gathered parameters"),
    ROW(fsdp, gather_dtype, CHOICE, "auto", "auto|float8_e4m3",
        "Type that matrices are rounded to before a module sees them, and in which they are sent; "
        "the same values at every number of ranks; auto: param_dtype"),
    ROW(fsdp, reduce_dtype, CHOICE, "float32", DTYPES, "Type in which gradients are reduced"),
    ROW(fsdp, output_dtype, CHOICE, "auto", "auto|" DTYPES,
        "Type that the model's outputs (logits) and their gradients are rounded to; auto: "
        "param_dtype on a GPU, float32 on the CPU"),
    ROW(fsdp, buffer_dtype, CHOICE, "float32", DTYPES,
        "Type that tables of positions are rounded to"),
    ROW(fsdp, forward_prefetch, INT, "1", "true=1|false=0|0..64",
        "Units gathered ahead in the forward pass"),
    ROW(fsdp, backward_prefetch, INT, "1", "true=1|false=0|0..64",
        "Units gathered ahead in the backward pass"),
    ROW(fsdp, limit_all_gathers, INT, "2", "true=2|false=0|0..1024",
        "Gathered units alive beyond those that the strategy keeps; 0: no limit"),
    ROW(fsdp, grad_buffers, INT, "2", "1..64",
        "Buffers of unsharded gradients in rotation; all but one may be in reduction"),
    ROW(fsdp, offload, CHOICE, "none", "none|optimizer|params",
        "What lives in host memory and is copied to the device when it is needed. optimizer: its "
        "state, and masters kept next to the gathered copy; params: the shards that are gathered, "
        "too"),
    ROW(fsdp, offload_slots, INT, "2", "1..64",
        "Units of offloaded state on the device at a time; with 2 one is copied while the other is "
        "updated"),
    ROW(fsdp, offload_dir, STRING, "", NULL,
        "With offload optimizer: a folder on fast local disks (NVMe) in which that state lives, in "
        "a "
        "file for each rank, instead of host memory; empty: none"),
    ROW(fsdp, activation_checkpointing, CHOICE, "none", "none|full|selective",
        "Activations made again in the backward pass. full: all of a module's; selective: the "
        "attention's output, which costs memory and little time"),
    ROW(fsdp, checkpoint_modules, LIST, "", NULL,
        "Modules that activation_checkpointing covers, by name (model.layers.*, "
        "model.layers.*.mlp); empty: all layers"),
    ROW(fsdp, loss_scale, CHOICE, "auto", "auto|true|false",
        "Scale the loss, and skip steps that overflow; auto: where a type is float16"),
    ROW(fsdp, loss_scale_init, FLOAT, "65536", "0<..", "Loss scale of the first step"),
    ROW(fsdp, loss_scale_growth, FLOAT, "2", "1..", "What it grows by"),
    ROW(fsdp, loss_scale_backoff, FLOAT, "0.5", "0<..1", "What it shrinks by at an overflow"),
    ROW(fsdp, loss_scale_interval, INT, "2000", "0..1000000000",
        "Steps without overflow before it grows; 0: never"),
    ROW(fsdp, memory_limit, FLOAT, "0", "0..",
        "GiB that the plan of a rank may take; beyond, the run is refused and told what saves how "
        "much; 0: what the device gives"),
    ROW(fsdp, backend, CHOICE, "auto", fsdp_comm_backend_words,
        "Communication backend; mpi and nccl are libraries of their own, opened when a run takes "
        "them, and refused where they are not"),
    ROW(fsdp, device, CHOICE, "auto", "auto|cpu|cuda",
        "Device; cuda is a library of its own, too; auto: a GPU where one can be used"),
    ROW(fsdp, timeout, FLOAT, "600", "0<..", "Seconds after which a silent rank ends the job"),
    ROW(fsdp, hang_timeout, FLOAT, "60", "0..",
        "Seconds without progress in a step that end the job, or ten of the longest step if that "
        "is "
        "more; 0: no watchdog"),

    ROW(checkpoint, path, STRING, "", NULL,
        "Folder of checkpoints, shared by all ranks, or a store's address; empty: none"),
    ROW(checkpoint, interval, INT, "0", "0..",
        "Steps between checkpoints; 0: only at the end and when stopped"),
    ROW(checkpoint, keep, INT, "0", "0..", "Newest checkpoints kept; 0: all"),
    ROW(checkpoint, staging, STRING, "", NULL,
        "Folder on each node's own disk or in its memory in which checkpoints are made, to be "
        "copied to checkpoint.path behind the training; %h: the node's name, %n: its number, "
        "%%: a %; empty: none"),
    ROW(checkpoint, staging_keep, INT, "1", "1..1000",
        "Newest checkpoints kept there, besides those that are not yet copied"),
    ROW(checkpoint, resume, STRING, "auto", NULL,
        "auto: from the newest checkpoint if there is one; never; must; or a checkpoint's path, "
        "from which a job begins that, started again by Slurm, resumes from its own"),
    ROW(checkpoint, data_position, CHOICE, "restore", "restore|restart",
        "On resume: resume where the data was, and refuse other data; or start the data anew"),
    ROW(checkpoint, async, BOOL, "false", NULL,
        "Write checkpoints in the background, from a copy of the state in host memory"),
    ROW(checkpoint, async_memory, INT, "0", "0..",
        "MiB a rank for that copy; what has no room holds its update back; 0: as much as it needs"),
    ROW(checkpoint, async_busy, CHOICE, "wait", "wait|skip",
        "When a save is due while the one before is still being written: wait for it, or skip"),
    ROW(checkpoint, compress, CHOICE, "auto", "none|zstd|auto",
        "Compress checkpoints; auto: where they go over a network to one server (NFS, CIFS)"),
    ROW(checkpoint, switches, STRING, "auto", NULL,
        "Folder where files checkpoint-now and stop are looked for; auto: checkpoint.path, unless "
        "that is an address"),
    ROW(checkpoint, before_end, FLOAT, "auto", "auto=-1|0..",
        "Seconds before the job's end (as Slurm has it) at which the last checkpoint is begun; "
        "auto: "
        "by the time that saves take; 0: never"),
    ROW(checkpoint, fsync, BOOL, "true", NULL, "Wait until a checkpoint is on the disk"),

    ROW(log, metrics, STRING, "", NULL, "File of JSON lines, one per step; empty: none"),
    ROW(log, interval, INT, "1", "1..", "Steps between lines where the output is no terminal"),
    ROW(log, progress, CHOICE, "auto", "auto|line|plain",
        "line: one line rewritten in place; plain: a line per interval; auto: line on a terminal"),
    ROW(log, trace, STRING, "", NULL,
        "File of a Chrome/Perfetto trace of some steps of all ranks (docs/schedule.md); empty: "
        "none"),
    ROW(log, trace_begin, INT, "2", "1..",
        "First step in log.trace, counted from where this run begins"),
    ROW(log, trace_steps, INT, "3", "1..1000", "Steps in log.trace"),
    ROW(log, color, CHOICE, "auto", "auto|always|never", "Colours; auto: on a terminal"),
};
enum { NROWS = sizeof config_table / sizeof config_table[0] };
const int config_nrows = NROWS;
_Static_assert(NROWS <= CONFIG_MAX_KEYS, "struct config has a line per key");

int config_row_of(const char *key)
{
    int row = 0;
    fsdp_tunable_find(&row, config_table, config_nrows, "", key, NULL);
    return row;
}
