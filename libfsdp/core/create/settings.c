/* SPDX-License-Identifier: Apache-2.0 */
/* The table of an engine's settings, and the text of their values. */
#include "settings.h"

#include <inttypes.h>
#include <stddef.h>

static const char *const offload_words[] = {"none", "optimizer", "params", NULL};
static const char *const checkpointing_words[] = {"none", "full", "selective", NULL};
static const char *const decay_words[] = {"all", "matrices", NULL};
static const char *const norm_words[] = {"2", "inf", NULL};
static const char *const master_words[] = {"whole", "split", NULL};
static const char *const scaler_words[] = {"auto", "true", "false", NULL};

#define ROW(name, type, agreement, field)                                                          \
    {                                                                                              \
        name, SETTING_##type, SETTING_##agreement, NULL, offsetof(struct fsdp_opts, field)         \
    }
#define WORDS(name, words, field)                                                                  \
    {                                                                                              \
        name, SETTING_WORD, SETTING_AGREED, words, offsetof(struct fsdp_opts, field)               \
    }

/* In the order of the fields. Both versions and `agree` are no settings. */
const struct setting setting_table[] = {
    ROW("fsdp.sharding_strategy", STRATEGY, AGREED, strategy),
    ROW("fsdp.reshard_after_forward", INT, AGREED, reshard_after_forward),
    ROW("fsdp.reduce_last", BOOL, AGREED, reduce_last),
    ROW("fsdp.wrap_policy", INT, BY_OUTCOME, wrap_policy),
    ROW("fsdp.wrap_classes", POINTER, BY_OUTCOME, wrap_classes),
    ROW("fsdp.min_num_params", UINT64, BY_OUTCOME, min_num_params),
    ROW("fsdp.wrap_modules", POINTER, BY_OUTCOME, wrap_modules),
    ROW("wrap_callback", POINTER, BY_OUTCOME, wrap_callback),
    ROW("wrap_ctx", POINTER, BY_OUTCOME, wrap_ctx),
    ROW("fsdp.frozen", POINTER, BY_OUTCOME, frozen),
    ROW("fsdp.ignored", POINTER, BY_OUTCOME, ignored),
    ROW("fsdp.param_dtype", DTYPE, AGREED, param_dtype),
    ROW("fsdp.reduce_dtype", DTYPE, AGREED, reduce_dtype),
    ROW("fsdp.gather_dtype", POINTER, BY_OUTCOME, gather_codec),
    ROW("fsdp.unit_overrides", POINTER, BY_OUTCOME, overrides),
    ROW("fsdp.unit_overrides", INT, BY_OUTCOME, noverrides),
    ROW("fsdp.forward_prefetch", INT, AGREED, forward_prefetch),
    ROW("fsdp.backward_prefetch", INT, AGREED, backward_prefetch),
    ROW("fsdp.grad_buffers", INT, AGREED, grad_buffers),
    WORDS("fsdp.offload", offload_words, offload),
    ROW("fsdp.offload_slots", INT, AGREED, offload_slots),
    ROW("fsdp.offload_dir", TEXT, OWN, offload_dir),
    ROW("fsdp.limit_all_gathers", INT, AGREED, limit_all_gathers),
    WORDS("fsdp.activation_checkpointing", checkpointing_words, activation_checkpointing),
    ROW("fsdp.checkpoint_modules", POINTER, BY_OUTCOME, checkpoint_modules),
    ROW("accumulation", INT, AGREED, accumulation),
    ROW("optim.name", TEXT, AGREED, optim.name),
    ROW("optim.betas", DOUBLES, AGREED, optim.beta1),
    ROW("optim.eps", DOUBLE, AGREED, optim.eps),
    ROW("optim.momentum", DOUBLE, AGREED, optim.momentum),
    ROW("optim.dampening", DOUBLE, AGREED, optim.dampening),
    ROW("optim.nesterov", BOOL, AGREED, optim.nesterov),
    ROW("optim.weight_decay", DOUBLE, AGREED, optim.weight_decay),
    WORDS("optim.decay", decay_words, optim.decay),
    ROW("optim.clip_grad_norm", DOUBLE, AGREED, optim.clip_grad_norm),
    WORDS("optim.clip_norm_type", norm_words, optim.clip_norm_type),
    ROW("optim.ema_decay", DOUBLE, AGREED, optim.ema_decay),
    ROW("optim.moment_dtype", DTYPE, AGREED, optim.moment_dtype),
    WORDS("optim.master", master_words, optim.master),
    ROW("optim.groups", POINTER, BY_OUTCOME, optim.groups),
    ROW("optim.groups", INT, BY_OUTCOME, optim.ngroups),
    WORDS("fsdp.loss_scale", scaler_words, scaler.mode),
    ROW("fsdp.loss_scale_init", DOUBLE, AGREED, scaler.init),
    ROW("fsdp.loss_scale_growth", DOUBLE, AGREED, scaler.growth),
    ROW("fsdp.loss_scale_backoff", DOUBLE, AGREED, scaler.backoff),
    ROW("fsdp.loss_scale_interval", INT, AGREED, scaler.interval),
    ROW("model.seed", UINT64, AGREED, seed),
    ROW("fsdp.memory_limit", UINT64, AGREED, memory_limit),
};
const int setting_nrows = sizeof setting_table / sizeof setting_table[0];

size_t setting_nbytes(enum setting_type type)
{
    switch (type) {
    case SETTING_BOOL:
        return sizeof(bool);
    case SETTING_UINT64:
        return sizeof(uint64_t);
    case SETTING_DOUBLE:
        return sizeof(double);
    case SETTING_DOUBLES:
        return 2 * sizeof(double);
    case SETTING_TEXT:
    case SETTING_POINTER:
        return sizeof(void *);
    default:
        return sizeof(int);
    }
}

static const char *word_of(const struct setting *row, int value)
{
    for (int i = 0; row->words[i]; i++)
        if (i == value)
            return row->words[i];
    return "?";
}

static void write_value(FILE *to, const struct setting *row, const void *at)
{
    switch (row->type) {
    case SETTING_INT:
        fprintf(to, "%d", *(const int *)at);
        break;
    case SETTING_BOOL:
        fputs(*(const bool *)at ? "true" : "false", to);
        break;
    case SETTING_UINT64:
        fprintf(to, "%" PRIu64, *(const uint64_t *)at);
        break;
    case SETTING_DOUBLE:
        fprintf(to, "%.17g", *(const double *)at);
        break;
    case SETTING_DOUBLES:
        fprintf(to, "%.17g, %.17g", ((const double *)at)[0], ((const double *)at)[1]);
        break;
    case SETTING_TEXT:
        fputs(*(const char *const *)at ? *(const char *const *)at : "", to);
        break;
    case SETTING_STRATEGY:
        fputs(fsdp_strategy_name(*(const enum fsdp_strategy *)at), to);
        break;
    case SETTING_DTYPE:
        fputs(fsdp_dtype_name(*(const enum fsdp_dtype *)at), to);
        break;
    case SETTING_WORD:
        fputs(word_of(row, *(const int *)at), to);
        break;
    case SETTING_POINTER:
        break;
    }
}

void settings_write(FILE *to, const struct fsdp_opts *opts)
{
    for (const struct setting *row = setting_table; row < setting_table + setting_nrows; row++) {
        if (row->agreement != SETTING_AGREED)
            continue;
        fprintf(to, "%s = ", row->name);
        write_value(to, row, (const char *)opts + row->offset);
        fputc('\n', to);
    }
}
