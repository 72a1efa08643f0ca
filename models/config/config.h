/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h: the settings of a training run: one YAML file of sections and keys, and
 * section.key=value overrides from the command line. The table in table.c is the only place
 * that names keys, defaults, help and what is allowed.
 */
#ifndef CONFIG_H
#define CONFIG_H

#include <stdio.h>

#include "fsdp/fsdp.h"
#include "fsdp/tunable.h"

#define CONFIG_TEXT FSDP_TUNABLE_STRING_NBYTES
#define CONFIG_MAX_KEYS 192

/* Positions of the words in the table's choices. */
enum config_init { CONFIG_INIT_PRETRAINED, CONFIG_INIT_RANDOM };
enum config_busy { CONFIG_BUSY_WAIT, CONFIG_BUSY_SKIP };
enum config_data_position { CONFIG_DATA_RESTORE, CONFIG_DATA_RESTART };
enum config_pack { CONFIG_PACK_AUTO, CONFIG_PACK_NONE, CONFIG_PACK_DOCUMENTS };
enum { CONFIG_DOCUMENT_END_AUTO = -1 };
enum config_bad_line { CONFIG_BAD_LINE_STOP, CONFIG_BAD_LINE_SKIP };
enum config_nonfinite { CONFIG_NONFINITE_WARN, CONFIG_NONFINITE_STOP };
#define CONFIG_OBJECTIVES "next_token|dpo"
enum config_objective { CONFIG_NEXT_TOKEN, CONFIG_DPO };
enum config_bind { CONFIG_BIND_AUTO, CONFIG_BIND_NONE };
enum config_progress { CONFIG_PROGRESS_AUTO, CONFIG_PROGRESS_LINE, CONFIG_PROGRESS_PLAIN };
enum config_base { CONFIG_BASE_AUTO, CONFIG_BASE_NF4, CONFIG_BASE_NF4_EXPERTS };
enum config_gather { CONFIG_GATHER_AUTO, CONFIG_GATHER_FLOAT8 };
enum config_attention_dropout { CONFIG_DROPOUT_EXACT, CONFIG_DROPOUT_FAST };
enum config_linear { CONFIG_LINEAR_AUTO, CONFIG_LINEAR_E4M3 };
enum config_linear_grad { CONFIG_LINEAR_GRAD_E4M3, CONFIG_LINEAR_GRAD_E5M2 };
enum config_linear_scales { CONFIG_LINEAR_TENSOR, CONFIG_LINEAR_ROW, CONFIG_LINEAR_BLOCK };
enum config_color { CONFIG_COLOR_AUTO, CONFIG_COLOR_ALWAYS, CONFIG_COLOR_NEVER };

/* A source of training data: an item of data.sources, or the data as data.path and the other keys
 * say. What an item does not give is as in `data`. */
enum { CONFIG_MAX_SOURCES = 64, CONFIG_SOURCE_KEYS = 16 };
struct config_source {
    struct fsdp_tunable_list path;
    double weight, passes; /* 0: not given */
    int format, layout, pack, too_long, on_bad_line;
    int64_t document_end;
    char text_key[CONFIG_TEXT];
    bool given[CONFIG_SOURCE_KEYS]; /* per key of the table */
    int line;                       /* of its first key; as config's */
};

struct config {
    struct {
        char path[CONFIG_TEXT];
        int init; /* enum config_init */
        int64_t seed;
        double dropout;                      /* -1: as config.json says */
        int attention_dropout;               /* enum config_attention_dropout */
        int linear_dtype, linear_grad_dtype; /* enum config_linear, config_linear_grad */
        int linear_scales;                   /* enum config_linear_scales */
        struct fsdp_tunable_list linear_targets;
        bool cuda_graphs;
    } model;
    struct {
        int64_t r;             /* 0: no adapters */
        double alpha, dropout; /* alpha -1: r */
        struct fsdp_tunable_list targets, target_parameters, modules_to_save;
        bool rslora, dora;
        int base; /* enum config_base */
        char path[CONFIG_TEXT];
    } lora;
    struct {
        struct fsdp_tunable_list path, eval_path;
        int format, layout, pack; /* enum data_format, data_layout, config_pack */
        char tokenizer[CONFIG_TEXT], cache[CONFIG_TEXT], date[CONFIG_TEXT];
        int special, train_on;     /* enum data_special, data_train_on */
        int too_long, on_bad_line; /* enum data_too_long, config_bad_line */
        char text_key[CONFIG_TEXT], weight_key[CONFIG_TEXT];
        int64_t document_end;       /* a token; -1: the model's, -2: none */
        int64_t seq_len, eval_rows; /* seq_len 0: auto; eval_rows 0: all */
        int64_t remote_cache;       /* MiB */
    } data;
    struct {
        int64_t steps;                               /* -1: not known before config_count_steps */
        int64_t global_batch_size, micro_batch_size; /* micro_batch_size 0: auto */
        int64_t seed, eval_interval, threads;        /* threads 0: auto */
        int on_nonfinite, bind;                      /* enum config_nonfinite, config_bind */
        int64_t late_results;                        /* -1 auto, 0, 1 */
        double epochs;                               /* 0: steps are given */
        double label_smoothing, z_loss, router_z_loss;
        int objective; /* enum config_objective */
        double dpo_beta, dpo_label_smoothing;
        int64_t early_stop; /* 0: never */
        double early_stop_delta;
        double peak_tflops; /* 0: auto */
    } train;
    struct {
        int name;
        double lr, betas[FSDP_TUNABLE_FLOATS_NELEM], eps, momentum, dampening, weight_decay;
        bool nesterov;
        int decay, schedule, clip_norm_type, master; /* enum fsdp_decay, _schedule_kind, _norm,
                                                        _master */
        int moment_dtype;
        double clip_grad_norm, min_lr, ema_decay;
        bool clip_late;
        struct fsdp_tunable_list groups;
        int64_t warmup_steps, decay_steps; /* decay_steps -1: auto */
    } optim;
    struct {
        int sharding_strategy, wrap_policy, param_dtype, reduce_dtype, grad_dtype, gather_dtype,
            output_dtype, buffer_dtype, activation_checkpointing;
        int backend, device;
        int offload, offload_update, update_at; /* enum fsdp_offload, _offload_update, _update_at */
        double memory_limit;                    /* GiB */
        int64_t shard_size, reshard_after_forward, min_num_params;
        int64_t forward_prefetch, backward_prefetch, limit_all_gathers, grad_buffers, offload_slots;
        char offload_dir[CONFIG_TEXT];
        struct fsdp_tunable_list wrap_classes;       /* empty: the model's own */
        struct fsdp_tunable_list checkpoint_modules; /* empty: all */
        struct fsdp_tunable_list wrap_modules, frozen, ignored;
        struct fsdp_tunable_list unit_overrides;
        bool two_level, reduce_last, offload_activations, offload_gradients, nccl_copy_engines;
        int64_t nccl_max_ctas; /* 0: auto */
        int loss_scale;        /* enum fsdp_scaler_mode */
        double loss_scale_init, loss_scale_growth, loss_scale_backoff;
        int64_t loss_scale_interval;
        double timeout, hang_timeout;
    } fsdp;
    struct {
        char path[CONFIG_TEXT], staging[CONFIG_TEXT], resume[CONFIG_TEXT], switches[CONFIG_TEXT];
        int64_t interval, keep, staging_keep, async_memory;
        double before_end;
        int data_position, compress, async_busy;
        bool fsync, async, keep_best;
    } checkpoint;
    struct {
        char metrics[CONFIG_TEXT], tensorboard[CONFIG_TEXT], prometheus[CONFIG_TEXT];
        char html[CONFIG_TEXT], trace[CONFIG_TEXT];
        int64_t noise_scale; /* 0: none */
        int64_t tensorboard_histograms, interval, trace_begin, trace_steps;
        int progress, color;
    } log;
    int nsources; /* of data.sources; 0: none is given */
    struct config_source sources[CONFIG_MAX_SOURCES];
    char file[CONFIG_TEXT];    /* the YAML file, "" where there was none */
    int line[CONFIG_MAX_KEYS]; /* per key: its line in the file, 0: default, -1: command line */
};

/* Defaults, then the file (NULL: none), then the overrides, then the checks that need no model,
 * data or ranks. Errors name file and line (or "command line"), key, and what is allowed. Freed
 * with fsdp_free. Local, blocks. */
int config_load(struct config **out, const char *path, int noverrides, char *const *overrides,
                struct fsdp_err *err);
/* The same without the checks that a run needs: to show what stands in an unfinished file. */
int config_load_unchecked(struct config **out, const char *path, int noverrides,
                          char *const *overrides, struct fsdp_err *err);
/* Where train.epochs is given, sets train.steps for data whose pass has nrows rows, and epochs to
 * 0; else nothing. FSDP_EINVAL names the key: too many steps, or too few for optim.decay_steps. */
int config_count_steps(struct config *config, uint64_t nrows, struct fsdp_err *err);
/* The table of keys. */
const struct fsdp_tunable *config_keys(int *nkeys);
/* Where a key got its value: "run.yaml:7", "command line", or "run.yaml" for a default; then ":
 * key". Into out, which is returned. For errors found later. */
const char *config_where(char *out, size_t out_nbytes, const struct config *config,
                         const char *key);
/* In the file, or on the command line. */
bool config_is_given(const struct config *config, const char *key);
/* An error's text begins with where the setting that it blames got its value. Returns status. */
int config_blame(const struct config *config, int status, struct fsdp_err *err);
/* Source i of the training data, with everything filled in: an item of data.sources, or the only
 * one, which data.path and the other keys make. i is less than config_nsources. */
void config_source(struct config_source *out, const struct config *config, int i);
/* The one that the keys of `data` make, also where there is data.sources. */
void config_source_plain(struct config_source *out, const struct config *config);
/* Its text_key, in config's memory. */
const char *config_source_text_key(const struct config *config, int i);
static inline int config_nsources(const struct config *config)
{
    return config->nsources ? config->nsources : 1;
}
/* Where a source is given, as config_where: "run.yaml:7: data.sources[1]". */
const char *config_where_source(char *out, size_t out_nbytes, const struct config *config, int i);
/* The word of a CHOICE key, such as "HYBRID_SHARD"; into out, which is returned. */
const char *config_word(char *out, size_t out_nbytes, const struct config *config, const char *key);
/* Word `index` of a CHOICE key. */
const char *config_index_word(char *out, size_t out_nbytes, const char *key, int index);
/* The value of a key as YAML, into out of FSDP_TUNABLE_FORMAT_NBYTES. */
void config_value(char *out, const struct config *config, const char *key);
/* Logs a warning for each setting that is not the default and has no effect, for what another one
 * says. */
void config_warn_idle(const struct config *config);
/* The engine's options that the settings say, but for lists and names, which need memory of their
 * own. Texts are borrowed from config. Local. */
int config_opts(struct fsdp_opts *opts, const struct config *config, struct fsdp_err *err);
/* All keys as YAML that config_load takes; with help, each under a comment with its help, default
 * and what is allowed. */
int config_print(const struct config *config, bool help, FILE *to, struct fsdp_err *err);
/* The same without help as text, for checkpoints; freed with fsdp_free. */
int config_text(char **out, const struct config *config, struct fsdp_err *err);
/* Everything that must be equal on all ranks, one "key = value" a line; freed with fsdp_free. */
int config_agree_text(char **out, const struct config *config, struct fsdp_err *err);

/* How the rows of one optimizer step are divided among ranks and micro-steps. Every rank runs every
 * micro-step with micro_rows rows. Where the ranks' micro-batches have more places than the step
 * has rows, the last places of a rank are padding, whose tokens predict nothing. */
struct config_batch {
    int ranks, micro_rows, accumulation;
    int64_t rows; /* train.global_batch_size; at most ranks * micro_rows * accumulation */
};
/* Any number of rows divides among any number of ranks. Pure. */
void config_divide(struct config_batch *out, const struct config *config, int ranks);
static inline int64_t config_batch_places(const struct config_batch *batch)
{
    return (int64_t)batch->ranks * batch->micro_rows * batch->accumulation;
}
/* Row of the optimizer step that micro-step `micro` of `rank` begins with; the others follow it.
 * Without padding the micro-steps of all ranks take turns. With padding, rank r of N takes rows
 * floor(r * rows / N) to floor((r + 1) * rows / N) - 1. */
static inline int64_t config_batch_first(const struct config_batch *batch, int rank, int micro)
{
    if (config_batch_places(batch) == batch->rows)
        return ((int64_t)micro * batch->ranks + rank) * batch->micro_rows;
    return rank * batch->rows / batch->ranks + (int64_t)micro * batch->micro_rows;
}
/* How many rows that micro-step has without padding: 0 to micro_rows. Together the ranks take every
 * row once. */
static inline int config_batch_nrows(const struct config_batch *batch, int rank, int micro)
{
    if (config_batch_places(batch) == batch->rows)
        return batch->micro_rows;
    const int64_t end = (rank + 1) * batch->rows / batch->ranks;
    const int64_t left = end - config_batch_first(batch, rank, micro);
    return left < 0 ? 0 : left < batch->micro_rows ? (int)left : batch->micro_rows;
}
/* The share of the places that is padding, 0 to 1. Pure. */
double config_batch_waste(const struct config_batch *batch);
/* The nearest number of rows that wastes nothing, and how it is divided; of two equally near, the
 * smaller. Pure. */
struct config_batch config_batch_better(const struct config_batch *batch,
                                        const struct config *config);
/* For a batch that wastes something: what it wastes, and the setting that does not. Into out, which
 * is returned. Pure. */
const char *config_batch_advice(char *out, size_t out_nbytes, const struct config_batch *batch,
                                const struct config *config);

#endif
