/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "data.h"

#define ROW(section, key, kind, def, allowed, help)                                                \
    {                                                                                              \
#section "." #key, FSDP_TUNABLE_##kind, def, help, allowed,                                \
            offsetof(struct config, section.key)                                                   \
    }
#define DTYPES "float32|bfloat16|float16|fp32|bf16|fp16"

static const struct fsdp_tunable table[] = {
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
        "Type of the moments (adamw); bfloat16: 4 bytes a parameter less, rounded by chance so "
        "that they are right on average"),
    ROW(optim, master, CHOICE, "whole", "whole|split",
        "The fp32 master where fsdp.param_dtype is bfloat16: beside what is gathered, or split "
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
        "Module classes of wrap_policy transformer; empty: the model's layers"),
    ROW(fsdp, wrap_modules, LIST, "", NULL,
        "Module names of wrap_policy list, such as model.layers.*; a star stays within its level"),
    ROW(fsdp, frozen, LIST, "", NULL,
        "Names of parameters that are not trained, such as model.embed_tokens.*; patterns"),
    ROW(fsdp, ignored, LIST, "", NULL,
        "Names of parameters that are not trained and not sharded: whole on every rank"),
    ROW(fsdp, min_num_params, INT, "100000000", "1..",
        "Parameters that make a unit under wrap_policy size"),
    ROW(fsdp, param_dtype, CHOICE, "float32", DTYPES, "Type of gathered parameters"),
    ROW(fsdp, gather_dtype, CHOICE, "auto", "auto|float8_e4m3",
        "Type in which matrices travel where they are gathered; auto: param_dtype"),
    ROW(fsdp, reduce_dtype, CHOICE, "float32", DTYPES, "Type in which gradients are reduced"),
    ROW(fsdp, output_dtype, CHOICE, "float32", DTYPES,
        "Type that the model's outputs (logits) and their gradients are rounded to"),
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
        "state, and masters beside what is gathered; params: the shards that are gathered, too"),
    ROW(fsdp, offload_slots, INT, "2", "1..64",
        "Units of offloaded state on the device at a time; with 2 one is copied while the other is "
        "updated"),
    ROW(fsdp, offload_dir, STRING, "", NULL,
        "With offload optimizer: a folder on fast local disks (NVMe) in which that state lives, in "
        "a "
        "file for each rank, instead of host memory; empty: none"),
    ROW(fsdp, activation_checkpointing, CHOICE, "none", "none|full|selective",
        "Activations made again in the backward pass. full: all of a layer's; selective: the "
        "attention's, which cost memory and little time"),
    ROW(fsdp, checkpoint_modules, LIST, "", NULL,
        "Modules that activation_checkpointing covers, by name (model.layers.*); empty: all"),
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
    ROW(fsdp, backend, CHOICE, "auto", "auto|self|host|mpi|nccl",
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
        "Newest checkpoints kept there, beside those that are not yet copied"),
    ROW(checkpoint, resume, STRING, "auto", NULL,
        "auto: from the newest checkpoint if there is one; never; must; or a checkpoint's path, "
        "from which a job begins that, started again by Slurm, goes on from its own"),
    ROW(checkpoint, data_position, CHOICE, "restore", "restore|restart",
        "On resume: go on where the data was, and refuse other data; or start the data anew"),
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
enum { NROWS = sizeof table / sizeof table[0] };
_Static_assert(NROWS <= CONFIG_MAX_KEYS, "struct config has a line per key");

static int row_of(const char *key)
{
    int row = 0;
    fsdp_tunable_find(&row, table, NROWS, "", key, NULL);
    return row;
}

const char *config_where(char *out, size_t out_nbytes, const struct config *config, const char *key)
{
    int line = config->line[row_of(key)];
    if (line > 0)
        snprintf(out, out_nbytes, "%s:%d: %s", config->file, line, key);
    else if (line < 0 || !config->file[0])
        snprintf(out, out_nbytes, "command line: %s", key);
    else
        snprintf(out, out_nbytes, "%s: %s", config->file, key);
    return out;
}

/* The engine's settings are the keys of two sections. */
int config_blame(const struct config *config, int status, struct fsdp_err *err)
{
    static const char *const sections[] = {"fsdp", "optim"};
    char key[64], where[CONFIG_TEXT + 128];
    struct fsdp_err why = *err;

    for (size_t i = 0; status && why.setting[0] && i < sizeof sections / sizeof sections[0]; i++) {
        int row = -1;
        snprintf(key, sizeof key, "%s.%s", sections[i], why.setting);
        if (fsdp_tunable_find(&row, table, NROWS, "", key, NULL))
            continue;
        fsdp_err_set(err, status, "%.300s: %.700s", config_where(where, sizeof where, config, key),
                     why.text);
        return fsdp_err_blame(err, status, key);
    }
    return status;
}

const char *config_word(char *out, size_t out_nbytes, const struct config *config, const char *key)
{
    const struct fsdp_tunable *row = &table[row_of(key)];
    fsdp_tunable_word(out, out_nbytes, row,
                      *(const int *)(const void *)((const char *)config + row->offset));
    return out;
}

void config_value(char *out, const struct config *config, const char *key)
{
    fsdp_tunable_format(out, &table[row_of(key)], config);
}

/* ---- loading --------------------------------------------------------------------------------- */

static int unknown_section(const char *where, const char *section, struct fsdp_err *err)
{
    char known[200] = "", *to = known;
    size_t len = strlen(section);

    for (int i = 0; i < NROWS; i++) {
        size_t dot = strcspn(table[i].name, ".");
        if (dot == len && strncmp(table[i].name, section, len) == 0)
            return FSDP_OK;
        if (i == 0 || strncmp(table[i].name, table[i - 1].name, dot + 1) != 0)
            to += sprintf(to, "%s%.*s", i ? ", " : "", (int)dot, table[i].name);
    }
    return fsdp_err_set(err, FSDP_EINVAL, "%s: unknown section '%.60s'; sections are %s", where,
                        section, known);
}

static int set_from_yaml(void *ctx, int line, const char *key, const char *value,
                         const char *const *values, int nvalues, struct fsdp_err *err)
{
    struct config *config = ctx;
    char where[CONFIG_TEXT + 16];

    snprintf(where, sizeof where, "%s:%d", config->file, line);
    if (value)
        FSDP_TRY(fsdp_tunable_set(table, NROWS, config, where, key, value, err));
    else if (values)
        FSDP_TRY(fsdp_tunable_set_list(table, NROWS, config, where, key, values, nvalues, err));
    else
        return unknown_section(where, key, err);
    config->line[row_of(key)] = line;
    return FSDP_OK;
}

static int set_override(struct config *config, const char *text, struct fsdp_err *err)
{
    char key[128];
    const char *eq = strchr(text, '=');

    if (!eq || eq == text || (size_t)(eq - text) >= sizeof key)
        return fsdp_err_set(err, FSDP_EINVAL, "command line: '%.100s' is not section.key=value",
                            text);
    snprintf(key, sizeof key, "%.*s", (int)(eq - text), text);
    FSDP_TRY(fsdp_tunable_set(table, NROWS, config, "command line", key, eq + 1, err));
    config->line[row_of(key)] = -1;
    return FSDP_OK;
}

int config_load_unchecked(struct config **out, const char *path, int noverrides,
                          char *const *overrides, struct fsdp_err *err)
{
    struct config *config = fsdp_alloc(1, sizeof *config, "configuration", err);
    int rc;

    if (!config)
        return FSDP_ENOMEM;
    FSDP_TRY_GOTO(fsdp_tunable_defaults(table, NROWS, config, err), out);
    if (path) {
        if (strlen(path) >= sizeof config->file) {
            rc = fsdp_err_set(err, FSDP_EINVAL, "%.60s...: path too long", path);
            goto out;
        }
        strcpy(config->file, path);
        FSDP_TRY_GOTO(config_yaml_read(path, set_from_yaml, config, err), out);
    }
    for (int i = 0; i < noverrides; i++)
        FSDP_TRY_GOTO(set_override(config, overrides[i], err), out);
    *out = config;
    config = NULL;
out:
    fsdp_free(config);
    return rc;
}

/* ---- checks over several keys ---------------------------------------------------------------- */

static int refuse(const struct config *config, const char *key, struct fsdp_err *err,
                  const char *fmt, ...) FSDP_PRINTF(4, 5);

static int refuse(const struct config *config, const char *key, struct fsdp_err *err,
                  const char *fmt, ...)
{
    char where[CONFIG_TEXT + 128], text[FSDP_ERR_TEXT_NBYTES / 2];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fsdp_err_set(err, FSDP_EINVAL, "%.480s: %s", config_where(where, sizeof where, config, key),
                 text);
    return fsdp_err_blame(err, FSDP_EINVAL, key);
}

/* Only checkpoints have stores; elsewhere an address would become an odd folder. Its user part
 * would be printed, and kept in every checkpoint. */
static int check_path(const struct config *c, const char *key, const char *path, const char *mend,
                      struct fsdp_err *err)
{
    const char *scheme = strstr(path, "://");

    if (!scheme)
        return FSDP_OK;
    if (mend)
        return refuse(c, key, err, "%s: this is read and written as a file%s", path, mend);
    if (memchr(scheme + 3, '@', strcspn(scheme + 3, "/")))
        return refuse(c, key, err,
                      "an address must not hold a name or secret before '@'; credentials come from "
                      "the environment or the profile's files");
    return FSDP_OK;
}

static int check_paths(const struct config *c, struct fsdp_err *err)
{
    static const char copy_first[] = "; ckpt-cp copies a checkpoint from a store to a folder";
    const struct {
        const char *key, *path, *mend; /* NULL: a store will do */
    } paths[] = {{"model.path", c->model.path, copy_first},
                 {"checkpoint.path", c->checkpoint.path, NULL},
                 {"checkpoint.resume", c->checkpoint.resume, NULL},
                 {"checkpoint.staging", c->checkpoint.staging, ""},
                 {"checkpoint.switches", c->checkpoint.switches, ""},
                 {"log.metrics", c->log.metrics, ""},
                 {"log.trace", c->log.trace, ""}};
    const struct {
        const char *key;
        const struct fsdp_tunable_list *list;
    } lists[] = {{"data.path", &c->data.path}, {"data.eval_path", &c->data.eval_path}};

    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        FSDP_TRY(check_path(c, paths[i].key, paths[i].path, paths[i].mend, err));
    for (size_t k = 0; k < sizeof lists / sizeof lists[0]; k++)
        for (int i = 0; i < lists[k].list->nelem; i++)
            FSDP_TRY(check_path(c, lists[k].key, fsdp_tunable_list_at(lists[k].list, i), "", err));
    return FSDP_OK;
}

static int check_given(const struct config *c, struct fsdp_err *err)
{
    for (int i = 0; i < NROWS; i++)
        if (!table[i].def && !c->line[i])
            return refuse(c, table[i].name, err, "must be given: %s", table[i].help);
    if (!c->model.path[0])
        return refuse(c, "model.path", err, "must be given: %s", table[row_of("model.path")].help);
    if (c->train.steps > 0 && c->data.path.nelem == 0)
        return refuse(c, "data.path", err, "must be given where train.steps is not 0: %s",
                      table[row_of("data.path")].help);
    return check_paths(c, err);
}

static int check_optim(const struct config *c, struct fsdp_err *err)
{
    if (c->optim.min_lr > c->optim.lr)
        return refuse(c, "optim.min_lr", err, "%g is above optim.lr, %g", c->optim.min_lr,
                      c->optim.lr);
    if (c->optim.decay_steps > 0 && c->optim.warmup_steps + c->optim.decay_steps > c->train.steps)
        return refuse(c, "optim.decay_steps", err,
                      "%" PRId64 " steps of decay after %" PRId64
                      " of warm-up do not fit into %" PRId64 " steps",
                      c->optim.decay_steps, c->optim.warmup_steps, c->train.steps);
    return FSDP_OK;
}

static int check_data(const struct config *c, struct fsdp_err *err)
{
    if (c->data.document_end >= 0 && c->data.format != DATA_JSONL &&
        c->data.pack != CONFIG_PACK_DOCUMENTS)
        return refuse(c, "data.document_end", err,
                      "has no effect unless data.pack is documents or data.format is jsonl");
    return FSDP_OK;
}

static int check_rest(const struct config *c, struct fsdp_err *err)
{
    if (c->fsdp.checkpoint_modules.nelem &&
        c->fsdp.activation_checkpointing == CONFIG_CHECKPOINTING_NONE)
        return refuse(c, "fsdp.checkpoint_modules", err,
                      "has no effect while fsdp.activation_checkpointing is none");
    if (strcmp(c->checkpoint.resume, "must") == 0 && !c->checkpoint.path[0])
        return refuse(c, "checkpoint.resume", err, "must resume, but checkpoint.path is not set");
    if (c->checkpoint.staging[0] && c->checkpoint.staging[0] != '/')
        return refuse(
            c, "checkpoint.staging", err,
            "'%s' is not a whole path: it is a folder of each node, which may be elsewhere "
            "than where the run was started",
            c->checkpoint.staging);
    for (const char *at = strchr(c->checkpoint.staging, '%'); at; at = strchr(at + 2, '%'))
        if (!at[1] || !strchr("hn%", at[1]))
            return refuse(c, "checkpoint.staging", err, "'%.2s': only %%h, %%n and %%%% are known",
                          at);
    if (!c->checkpoint.resume[0])
        return refuse(c, "checkpoint.resume", err,
                      "is empty; allowed: auto, never, must, or a "
                      "checkpoint's path");
    return FSDP_OK;
}

int config_load(struct config **out, const char *path, int noverrides, char *const *overrides,
                struct fsdp_err *err)
{
    struct config *config = NULL;
    int rc;

    FSDP_TRY(config_load_unchecked(&config, path, noverrides, overrides, err));
    FSDP_TRY_GOTO(check_given(config, err), out);
    FSDP_TRY_GOTO(check_optim(config, err), out);
    FSDP_TRY_GOTO(check_data(config, err), out);
    FSDP_TRY_GOTO(check_rest(config, err), out);
    *out = config;
    config = NULL;
out:
    fsdp_free(config);
    return rc;
}

/* ---- the division of a batch ----------------------------------------------------------------- */

/* The multiples of `unit` around `value`, for an error's mend: "12 or 16". */
static void around(char *out, size_t out_nbytes, int64_t value, int64_t unit)
{
    int64_t below = value / unit * unit;
    if (below > 0)
        snprintf(out, out_nbytes, "%" PRId64 " or %" PRId64, below, below + unit);
    else
        snprintf(out, out_nbytes, "%" PRId64 " or %" PRId64, unit, 2 * unit);
}

/* The divisors of `value`, for an error's mend: "1, 2, 3, 6". */
static void divisors(char *out, size_t out_nbytes, int64_t value)
{
    size_t len = 0;
    int shown = 0;

    out[0] = 0;
    for (int64_t d = 1; d <= value && shown < 16 && len < out_nbytes; d++) {
        if (value % d)
            continue;
        int added = snprintf(out + len, out_nbytes - len, "%s%" PRId64, shown ? ", " : "", d);
        len += (size_t)added;
        shown++;
    }
}

/* The most rows at once that divide the rank's rows and stay within a moderate number of tokens. */
static int64_t auto_micro_rows(int64_t rank_rows, int64_t seq_len)
{
    enum { MODERATE_NTOKENS = 8192 };
    int64_t best = 1;
    for (int64_t d = 1; d <= rank_rows && d * (seq_len ? seq_len : 1) <= MODERATE_NTOKENS; d++)
        if (rank_rows % d == 0)
            best = d;
    return best;
}

static int divide(struct config_batch *out, const struct config *c, int ranks, struct fsdp_err *err)
{
    int64_t rows = c->train.global_batch_size, micro = c->train.micro_batch_size;
    char would[200];

    if (ranks > rows)
        return refuse(c, "train.global_batch_size", err,
                      "%d ranks are more than the %" PRId64 " rows of a step; use at most %" PRId64
                      " ranks, or %d rows or a multiple of that",
                      ranks, rows, rows, ranks);
    if (rows % ranks) {
        around(would, sizeof would, rows, ranks * (micro ? micro : 1));
        return refuse(c, "train.global_batch_size", err,
                      "%" PRId64 " rows do not divide among %d ranks%s; %s would", rows, ranks,
                      micro > 1 ? " and micro-batches" : "", would);
    }
    int64_t rank_rows = rows / ranks;
    if (!micro)
        micro = auto_micro_rows(rank_rows, c->data.seq_len);
    if (rank_rows % micro) {
        divisors(would, sizeof would, rank_rows);
        return refuse(c, "train.micro_batch_size", err,
                      "%" PRId64 " does not divide the %" PRId64 " rows of a rank (%" PRId64
                      " rows on %d ranks); values that would: %s",
                      micro, rank_rows, rows, ranks, would);
    }
    *out = (struct config_batch){ranks, (int)micro, (int)(rank_rows / micro)};
    return FSDP_OK;
}

int config_divide(struct config_batch *out, const struct config *config, int ranks,
                  struct fsdp_err *err)
{
    if (config->train.steps > 0 || divide(out, config, ranks, NULL) == FSDP_OK)
        return config->train.steps > 0 ? divide(out, config, ranks, err) : FSDP_OK;
    *out = (struct config_batch){ranks, 1, 1};
    return FSDP_OK;
}

/* ---- printing -------------------------------------------------------------------------------- */

int config_print(const struct config *config, bool help, FILE *to, struct fsdp_err *err)
{
    char allowed[400];
    char *value = fsdp_alloc(FSDP_TUNABLE_FORMAT_NBYTES, 1, "setting", err);
    const char *last = "";

    if (!value)
        return FSDP_ENOMEM;
    for (int i = 0; i < NROWS; i++) {
        const struct fsdp_tunable *row = &table[i];
        const char *dot = strchr(row->name, '.');
        size_t len = (size_t)(dot - row->name);
        if (strncmp(row->name, last, len + 1) != 0)
            fprintf(to, "%s%.*s:\n", *last && help ? "\n" : "", (int)len, row->name);
        last = row->name;
        fsdp_tunable_format(value, row, config);
        fsdp_tunable_allowed(allowed, sizeof allowed, row);
        if (help)
            fprintf(to, "  # %s.\n  # %s%s; allowed: %s.\n", row->help,
                    row->def ? "Default: " : "Must be given",
                    !row->def   ? ""
                    : *row->def ? row->def
                                : "empty",
                    allowed);
        if (!row->def && !config->line[i])
            fprintf(to, "  # %s:\n", dot + 1);
        else
            fprintf(to, "  %s: %s\n", dot + 1, value);
    }
    fsdp_free(value);
    return ferror(to) ? fsdp_err_set(err, FSDP_EIO, "cannot write the configuration") : FSDP_OK;
}

/* Opens a stream into memory; its text is copied to *out by finish_text. */
static int finish_text(char **out, FILE *stream, char **buffer, struct fsdp_err *err)
{
    int bad = ferror(stream) | fclose(stream);
    char *text = bad || !*buffer ? NULL : fsdp_strdup(*buffer, err);

    free(*buffer);
    if (!text)
        return fsdp_err_set(err, FSDP_ENOMEM, "configuration: out of memory");
    *out = text;
    return FSDP_OK;
}

int config_text(char **out, const struct config *config, struct fsdp_err *err)
{
    char *buffer = NULL;
    size_t nbytes = 0;
    FILE *stream = open_memstream(&buffer, &nbytes);

    if (!stream)
        return fsdp_err_sys(err, errno, "configuration");
    config_print(config, false, stream, NULL);
    return finish_text(out, stream, &buffer, err);
}

/* What may differ between ranks: how a rank talks and computes, not what. A trace is gathered from
 * all. */
static bool is_local(const char *key)
{
    if (strncmp(key, "log.trace", 9) == 0)
        return false;
    return strncmp(key, "log.", 4) == 0 || strcmp(key, "train.threads") == 0 ||
           strcmp(key, "train.bind") == 0;
}

int config_agree_text(char **out, const struct config *config, struct fsdp_err *err)
{
    char *buffer = NULL, *value = fsdp_alloc(FSDP_TUNABLE_FORMAT_NBYTES, 1, "setting", err);
    size_t nbytes = 0;
    FILE *stream = value ? open_memstream(&buffer, &nbytes) : NULL;

    if (!stream) {
        fsdp_free(value);
        return value ? fsdp_err_sys(err, errno, "configuration") : FSDP_ENOMEM;
    }
    for (int i = 0; i < NROWS; i++) {
        if (is_local(table[i].name))
            continue;
        fsdp_tunable_format(value, &table[i], config);
        fprintf(stream, "%s = %s\n", table[i].name, value);
    }
    fsdp_free(value);
    return finish_text(out, stream, &buffer, err);
}
