/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of a run: keys, types, defaults, what is allowed, help. Those of the engine are its
 * own rows (fsdp/settings.h). */
#include "config_impl.h"
#include "fsdp/comm.h"
#include "fsdp/settings.h"

#define ROW(section, key, kind, def, allowed, help)                                                \
    {                                                                                              \
#section "." #key, FSDP_TUNABLE_##kind, def, help, allowed,                                \
            offsetof(struct config, section.key)                                                   \
    }
/* A row of the engine's table, in the place of its section and key. */
#define SETTING(section, key, kind, def, allowed, help, type, agreement, field)                    \
    ROW(section, key, kind, def, allowed, help),
#define DTYPES "float32|bfloat16|float16|fp32|bf16|fp16"

/* No comma stands behind the groups of rows, which clang-format does not know. */
/* clang-format off */
const struct fsdp_tunable config_table[] = {
    ROW(model, path, STRING, NULL, NULL,
        "Folder with config.json (Hugging Face), and the weights where init is pretrained"),
    ROW(model, init, CHOICE, "pretrained", "pretrained|random",
        "Start from the weights in model.path, or from random values"),
    FSDP_SETTINGS_MODEL(SETTING)
    ROW(model, dropout, FLOAT, "auto", "auto=-1|0..<1",
        "Probability of all of the model's dropouts in training; auto: each as config.json says"),
    ROW(model, attention_dropout, CHOICE, "exact", "exact|fast",
        "What dropout of attention drops (model.dropout is the probability). exact: the same everywhere; "
        "fast: on CUDA what cuDNN's kernels drop, which depends on how rows are divided among ranks and "
        "micro-batches"),
    ROW(model, linear_dtype, CHOICE, "auto", "auto|float8_e4m3",
        "Type that inputs and weights of the layers' linear maps are rounded to before they are "
        "multiplied (docs/fp8.md); auto: fsdp.param_dtype"),
    ROW(model, linear_grad_dtype, CHOICE, "float8_e4m3", "float8_e4m3|float8_e5m2",
        "The same of the gradients of their outputs, where linear_dtype is float8_e4m3"),
    ROW(model, linear_scales, CHOICE, "tensor", "tensor|row|block",
        "Elements of an operand that share a scale, where linear_dtype is float8_e4m3: all; those "
        "that one element of the product sums over; or 32 successive ones of these (MXFP8)"),
    ROW(model, linear_targets, LIST, "all-linear", NULL,
        "Linear maps that linear_dtype is for: names of modules or their ends, such as down_proj; "
        "all-linear: all of the layers but experts; experts, or experts.down_proj: those of a mixture"),
    ROW(model, cuda_graphs, BOOL, "false", NULL,
        "On GPUs, launch the kernels of each layer's attention and MLP as CUDA graphs (docs/gpu.md), for "
        "small models whose kernels run shorter than the host takes to launch them"),

    ROW(lora, r, INT, "0", "0..65536",
        "Rank of low-rank adapters (docs/adapters.md): they are trained, and the model is frozen; 0: "
        "the model itself is trained"),
    ROW(lora, alpha, FLOAT, "auto", "auto=-1|0<..",
        "What adapters give is multiplied by alpha / r; auto: r"),
    ROW(lora, dropout, FLOAT, "0", "0..<1", "Probability of dropout before an adapter"),
    ROW(lora, targets, LIST, "all-linear", NULL,
        "Linear maps that get adapters: names of modules or their ends, such as q_proj, or lm_head; "
        "all-linear: all of the layers"),
    ROW(lora, target_parameters, LIST, "", NULL,
        "Weights of experts that get adapters besides, by transformers' names or their ends, as in PEFT: "
        "mlp.experts.gate_up_proj, mlp.experts.down_proj"),
    ROW(lora, modules_to_save, LIST, "", NULL,
        "Modules that are trained whole besides, such as lm_head: names or their ends"),
    ROW(lora, rslora, BOOL, "false", NULL, "Multiply by alpha / sqrt(r) instead of alpha / r"),
    ROW(lora, dora, BOOL, "false", NULL,
        "DoRA: train the lengths of the rows of adapted weights, too, which is slower"),
    ROW(lora, base, CHOICE, "auto", "auto|nf4|nf4-experts",
        "How the frozen model is held. nf4: the linear maps of its layers in 4 bits, as NF4 with double "
        "quantization (QLoRA); nf4-experts: the weights of experts, too; auto: in fsdp.param_dtype"),
    ROW(lora, path, STRING, "", NULL,
        "Folder of a PEFT adapter to begin from, which says r, alpha, targets, target_parameters, "
        "modules_to_save, rslora and dora; empty: new adapters"),

    ROW(data, path, LIST, "", NULL,
        "Training data: files, folders (recursively) and patterns with * ? [ (sorted by path); one or a "
        "list"),
    {"data.sources", FSDP_TUNABLE_MAPS, "",
        "A mixture instead of path: - {path: a, weight: 3}, or passes instead of weight; a source "
        "takes the other keys from data unless it sets them",
        NULL, offsetof(struct config, sources)},
    ROW(data, format, CHOICE, "text", CONFIG_FORMATS,
        "text: each file is a document; u16, u32: raw little-endian token ids; llmc: llm.c's .bin; jsonl: "
        "one document a line, {\"text\"}, {\"prompt\", \"completion\"} with loss on the completion, "
        "a chat {\"messages\"}, or {\"input_ids\", \"labels\"}; megatron: Megatron-LM's .bin and .idx"),
    ROW(data, tokenizer, STRING, "auto", NULL,
        "Tokenizer of text. auto: the one in the model's folder; without one, bytes for a model with "
        "256 tokens, and an error for others. bytes: each byte is a token. Else the path of a "
        "tokenizer or of its folder"),
    ROW(data, cache, STRING, "auto", NULL,
        "Folder in which the tokens of text are cached for later runs; auto: fsdp in "
        "$XDG_CACHE_HOME, else ~/.cache/fsdp"),
    ROW(data, remote_cache, INT, "1024", "1..1048576",
        "MiB that a rank may use in TMPDIR for data that it reads ahead from a store"),
    ROW(data, special, CHOICE, "eos", "none|model|eos",
        "Special tokens of a text. none: no tokens; model: those that the tokenizer adds; eos: "
        "the same, and the end token after each document"),
    ROW(data, train_on, CHOICE, "assistant", "assistant|last|all",
        "Parts of a chat that the loss covers: the assistant's turns, the last of them, or all text"),
    ROW(data, date, STRING, "", NULL,
        "Date that chat templates see, as YYYY-MM-DD; empty: the date of tokenizing"),
    ROW(data, text_key, STRING, "text", NULL, "Field of a jsonl line that holds the text"),
    ROW(data, weight_key, STRING, "", NULL,
        "Field of a jsonl line of training data that holds the factor of its tokens' losses, at least "
        "0; a line without it has 1; empty: none"),
    ROW(data, on_bad_line, CHOICE, "stop", CONFIG_BAD_LINES,
        "A jsonl line that is not a document. stop: an error says what is wrong; skip: the line is "
        "left out, and the log counts such lines"),
    ROW(data, too_long, CHOICE, "split", CONFIG_TOO_LONG,
        "A jsonl document that is longer than a row: split it into rows, refuse it, keep its first "
        "row, or drop it; the log counts such documents"),
    ROW(data, layout, CHOICE, "stream", CONFIG_LAYOUTS,
        "stream: windows of seq_len+1 tokens in a seeded order; rows: consecutive rows of "
        "seq_len+1; of jsonl: rows in a seeded order, or as they stand"),
    ROW(data, pack, CHOICE, "auto", CONFIG_PACKS,
        "documents: attention stays within a document, and each has positions from 0; none: "
        "attention covers the row, and a row of jsonl is one document; auto: documents for jsonl, "
        "else none"),
    ROW(data, document_end, INT, "auto", CONFIG_DOCUMENT_ENDS,
        "Token that ends a document; data.special: eos adds it to jsonl and to tokenized text; "
        "auto: the model's eos_token_id"),
    ROW(data, seq_len, INT, "auto", "auto=0|1..1048576",
        "Tokens predicted per row; auto: 256, or the model's limit if that is less"),
    ROW(data, eval_path, LIST, "", NULL, "Held-out data, in the same format and layout"),
    ROW(data, eval_rows, INT, "auto", "auto=0|1..",
        "Rows of held-out data per evaluation, spread evenly; auto: all"),

    ROW(train, steps, INT, "auto", "auto=-1|0..",
        "Optimizer steps in all; 0 saves the initial state; auto: what train.epochs says"),
    ROW(train, epochs, FLOAT, "0", "0..",
        "Passes over the training data, in place of train.steps; the last step is a whole one"),
    ROW(train, global_batch_size, INT, "8", "1..2147483647",
        "Rows per optimizer step, whatever the number of ranks"),
    ROW(train, micro_batch_size, INT, "auto", "auto=0|1..2147483647",
        "Rows a rank computes at once; the rest is accumulated; auto: up to 8192 tokens"),
    ROW(train, seed, INT, "0", "0..", "Seed of the order of the data, and of dropout"),
    ROW(train, objective, CHOICE, "next_token", CONFIG_OBJECTIVES,
        "next_token: predict the next token; dpo: prefer the chosen answers of pairs to the rejected "
        "ones, with the weights of model.path as the frozen reference"),
    ROW(train, dpo_beta, FLOAT, "0.1", "0<..",
        "How strongly DPO holds the model to the reference"),
    ROW(train, dpo_label_smoothing, FLOAT, "0", "0..0.5",
        "Share of the pairs whose answers DPO takes to be the wrong way round"),
    ROW(train, label_smoothing, FLOAT, "0", "0..<1",
        "Share of each target that is spread over all tokens, in training"),
    ROW(train, z_loss, FLOAT, "0", "0..",
        "Factor of the square of log sum exp of the logits, which the training loss adds"),
    ROW(train, router_z_loss, FLOAT, "0", "0..",
        "Factor of the same of the logits of a mixture's routers, as a mean over tokens and layers"),
    ROW(train, eval_interval, INT, "0", "0..",
        "Steps between evaluations on data.eval_path; 0: only at the end"),
    ROW(train, early_stop, INT, "0", "0..",
        "Evaluations in a row without a better held-out loss after which the run ends; 0: never"),
    ROW(train, early_stop_delta, FLOAT, "0", "0..",
        "A loss is better for train.early_stop if it is lower by more than this"),
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
        "Read a step's loss while the next one runs; auto: true where the device is a GPU"),

    FSDP_SETTINGS_OPTIM(SETTING)
    ROW(optim, lr, FLOAT, "1e-3", "0..", "Peak learning rate"),
    ROW(optim, schedule, CHOICE, "cosine", "constant|linear|cosine|wsd",
        "Learning rate after the warm-up; wsd: stable, then linear decay"),
    ROW(optim, warmup_steps, INT, "0", "0..", "Steps of linear warm-up"),
    ROW(optim, min_lr, FLOAT, "0", "0..", "Learning rate of the last step (linear, cosine, wsd)"),
    ROW(optim, decay_steps, INT, "auto", "auto=-1|0..",
        "Steps of decay at the end of wsd; auto: a fifth of train.steps"),

    FSDP_SETTINGS_SHARDING(SETTING)
    ROW(fsdp, shard_size, INT, "auto", "auto=0|1..",
        "Ranks per shard group; auto: all, under HYBRID_* those of a node"),
    ROW(fsdp, two_level, BOOL, "false", NULL,
        "Gather over the nodes first, then inside each; reduce the other way round"),
    FSDP_SETTINGS_DTYPES(SETTING)
    ROW(fsdp, output_dtype, CHOICE, "auto", "auto|" DTYPES,
        "Type that the model's outputs (logits) and their gradients are rounded to; auto: "
        "param_dtype on GPUs and, of bfloat16, where every rank's CPU multiplies in it; else float32"),
    ROW(fsdp, buffer_dtype, CHOICE, "float32", DTYPES,
        "Type that tables of positions are rounded to"),
    FSDP_SETTINGS_SCHEDULE(SETTING)
    ROW(fsdp, backend, CHOICE, "auto", fsdp_comm_backend_words,
        "Communication backend; mpi and nccl are libraries of their own, opened when a run takes "
        "them, and refused where they are not"),
    ROW(fsdp, nccl_copy_engines, BOOL, "true", NULL,
        "Gather inside a node by the GPUs' copy engines, where NCCL can (2.28, NVLink, a driver of "
        "CUDA 12.5), so that products keep all multiprocessors; false: by kernels; with "
        "NCCL_CTA_POLICY set, as that says"),
    ROW(fsdp, nccl_max_ctas, INT, "auto", "auto=0|1..64",
        "Blocks of NCCL's kernels for gathers and reductions, at most: each occupies a "
        "multiprocessor next to products; auto: 16; with NCCL_MIN_CTAS, NCCL_MAX_CTAS or their "
        "NCHANNELS set, as those say"),
    ROW(fsdp, device, CHOICE, "auto", "auto|cpu|cuda",
        "Device; cuda is a library of its own, too; auto: a GPU where one can be used"),
    ROW(fsdp, timeout, FLOAT, "600", "0<..", "Seconds after which a silent rank ends the job"),
    ROW(fsdp, hang_timeout, FLOAT, "60", "0..",
        "Seconds without progress in a step that end the job, or ten of the longest step if that "
        "is more; 0: no watchdog"),

    ROW(checkpoint, path, STRING, "", NULL,
        "Folder of checkpoints, shared by all ranks, or a store's address; empty: none"),
    ROW(checkpoint, interval, INT, "0", "0..",
        "Steps between checkpoints; 0: only at the end and when stopped"),
    ROW(checkpoint, keep, INT, "0", "0..", "Newest checkpoints kept; 0: all"),
    ROW(checkpoint, keep_best, BOOL, "false", NULL,
        "Save the state whenever the held-out loss is the lowest so far, and keep the latest such "
        "checkpoint besides those of keep"),
    ROW(checkpoint, staging, STRING, "", NULL,
        "Folder on each node's own disk or in its memory in which checkpoints are made, to be "
        "copied to checkpoint.path behind the training; %h: the node's name, %n: its number, "
        "%%: a %; empty: none"),
    ROW(checkpoint, staging_keep, INT, "1", "1..1000",
        "Newest checkpoints kept there, besides those that are not yet copied"),
    ROW(checkpoint, resume, STRING, "auto", NULL,
        "auto: resume from the newest checkpoint if there is one; must: fail if there is none; "
        "never: begin anew; or the path of a checkpoint to begin from, whose job, requeued by "
        "Slurm, resumes from its own newest"),
    ROW(checkpoint, data_position, CHOICE, "restore", "restore|restart",
        "On resume. restore: continue at the same place of the data, and refuse data of other "
        "files, sizes or settings, and tokenized texts of other contents; "
        "restart: begin with the first row"),
    ROW(checkpoint, async, BOOL, "false", NULL,
        "Write checkpoints in the background, from a copy of the state in host memory"),
    ROW(checkpoint, async_memory, INT, "0", "0..",
        "MiB per rank for that copy; state without room is not updated until it is written; 0: as "
        "much as it needs"),
    ROW(checkpoint, async_busy, CHOICE, "wait", "wait|skip",
        "When a save is due while the one before is still being written: wait for it, or skip"),
    ROW(checkpoint, compress, CHOICE, "auto", "none|zstd|auto",
        "Compress checkpoints; auto: where they go over a network to one server (NFS, CIFS)"),
    ROW(checkpoint, switches, STRING, "auto", NULL,
        "Folder where files checkpoint-now and stop are looked for; auto: checkpoint.path, unless "
        "that is an address"),
    ROW(checkpoint, before_end, FLOAT, "auto", "auto=-1|0..",
        "Seconds before the job's end (as Slurm has it) at which the last checkpoint is begun; "
        "auto: by the time that saves take; 0: never"),
    ROW(checkpoint, fsync, BOOL, "true", NULL, "Wait until a checkpoint is on the disk"),

    ROW(log, metrics, STRING, "", NULL, "File of JSON lines, one per step; empty: none"),
    ROW(log, tensorboard, STRING, "", NULL,
        "Folder for TensorBoard: a file of events per start of the run; empty: none"),
    ROW(log, tensorboard_histograms, INT, "0", "0..",
        "Steps between the norms of each unit's gradients there, and their histogram; 0: none"),
    ROW(log, noise_scale, INT, "0", "0..",
        "Steps between estimates of the gradient noise scale; 0: none"),
    ROW(log, prometheus, STRING, "", NULL,
        "File NAME.prom for the textfile collector of Prometheus' node exporter; empty: none"),
    ROW(log, html, STRING, "", NULL,
        "Report of the run as one HTML page, written anew after each checkpoint; empty: none"),
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
/* clang-format on */
enum { NROWS = sizeof config_table / sizeof config_table[0] };
const int config_nrows = NROWS;
_Static_assert(NROWS <= CONFIG_MAX_KEYS, "struct config has a line per key");

int config_row_of(const char *key)
{
    int row = 0;
    fsdp_tunable_find(&row, config_table, config_nrows, "", key, NULL);
    return row;
}

int config_opts(struct fsdp_opts *opts, const struct config *config, struct fsdp_err *err)
{
    for (int i = 0; i < config_nrows; i++)
        FSDP_TRY(fsdp_opts_take(opts, &config_table[i], config, err));
    return FSDP_OK;
}
