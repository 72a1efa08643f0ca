/* SPDX-License-Identifier: Apache-2.0 */
/* Settings that have no effect, or not the one meant, because of what another one says. */
#include <inttypes.h>
#include <string.h>

#include "config.h"

/* Of fsdp.loss_scale: true, or auto while a type is float16. */
static const char SCALED[] = "true";
/* Of lora.r: above 0, or with the adapters of lora.path. */
static const char ADAPTED[] = "";

/* `key` has an effect where `needs` is one of the words (NULL: where it is not empty). */
static const struct {
    const char *key, *needs, *words;
} idle[] = {
    {"model.seed", "model.init", "random"},
    {"model.linear_grad_dtype", "model.linear_dtype", "float8_e4m3"},
    {"model.linear_scales", "model.linear_dtype", "float8_e4m3"},
    {"model.linear_targets", "model.linear_dtype", "float8_e4m3"},
    {"lora.alpha", "lora.r", ADAPTED},
    {"lora.dropout", "lora.r", ADAPTED},
    {"lora.targets", "lora.r", ADAPTED},
    {"lora.target_parameters", "lora.r", ADAPTED},
    {"lora.modules_to_save", "lora.r", ADAPTED},
    {"lora.rslora", "lora.r", ADAPTED},
    {"lora.dora", "lora.r", ADAPTED},
    {"data.text_key", "data.format", "jsonl"},
    {"data.train_on", "data.format", "jsonl"},
    {"data.on_bad_line", "data.format", "jsonl"},
    {"data.weight_key", "data.format", "jsonl"},
    {"data.too_long", "data.format", "jsonl"},
    {"data.eval_rows", "data.eval_path", NULL},
    {"train.dpo_beta", "train.objective", "dpo"},
    {"train.dpo_label_smoothing", "train.objective", "dpo"},
    {"train.eval_interval", "data.eval_path", NULL},
    {"optim.betas", "optim.name", "adamw|adamw8bit|adam|lion|muon|schedulefree"},
    {"optim.eps", "optim.name", "adamw|adamw8bit|adam|muon|schedulefree"},
    {"optim.master", "fsdp.param_dtype", "bfloat16|bf16"},
    {"optim.momentum", "optim.name", "sgd|muon"},
    {"optim.dampening", "optim.name", "sgd"},
    {"optim.nesterov", "optim.name", "sgd|muon"},
    {"optim.min_lr", "optim.schedule", "linear|cosine|wsd"},
    {"optim.decay_steps", "optim.schedule", "wsd"},
    {"fsdp.reshard_after_forward", "fsdp.sharding_strategy",
     "FULL_SHARD|SHARD_GRAD_OP|HYBRID_SHARD|HYBRID_SHARD_ZERO2|ZERO1"},
    {"fsdp.two_level", "fsdp.sharding_strategy",
     "FULL_SHARD|SHARD_GRAD_OP|HYBRID_SHARD|HYBRID_SHARD_ZERO2|ZERO1"},
    {"fsdp.wrap_classes", "fsdp.wrap_policy", "transformer"},
    {"fsdp.wrap_modules", "fsdp.wrap_policy", "list"},
    {"fsdp.min_num_params", "fsdp.wrap_policy", "size"},
    {"fsdp.offload_slots", "fsdp.offload", "optimizer|params"},
    {"fsdp.offload_update", "fsdp.offload", "optimizer|params"},
    {"fsdp.offload_dir", "fsdp.offload", "optimizer|params"},
    {"fsdp.loss_scale_init", "fsdp.loss_scale", SCALED},
    {"fsdp.loss_scale_growth", "fsdp.loss_scale", SCALED},
    {"fsdp.loss_scale_backoff", "fsdp.loss_scale", SCALED},
    {"fsdp.loss_scale_interval", "fsdp.loss_scale", SCALED},
    {"checkpoint.interval", "checkpoint.path", NULL},
    {"checkpoint.keep", "checkpoint.path", NULL},
    {"checkpoint.async", "checkpoint.path", NULL},
    {"checkpoint.staging", "checkpoint.path", NULL},
    {"checkpoint.staging_keep", "checkpoint.staging", NULL},
    {"checkpoint.async_memory", "checkpoint.async", "true"},
    {"log.tensorboard_histograms", "log.tensorboard", NULL},
    {"log.trace_begin", "log.trace", NULL},
    {"log.trace_steps", "log.trace", NULL},
};
enum { NIDLE = sizeof idle / sizeof idle[0] };

static bool is_one_of(const char *value, const char *words)
{
    const size_t len = strlen(value);

    for (const char *at = words; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (!strncmp(at, value, len) && (at[len] == '|' || !at[len]))
            return true;
    return false;
}

/* As fsdp_scaler_opts says of FSDP_SCALER_AUTO. */
static bool any_float16(const struct config *config, char *value)
{
    static const char *const keys[] = {"fsdp.param_dtype", "fsdp.reduce_dtype"};

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        config_value(value, config, keys[i]);
        if (is_one_of(value, "float16|fp16"))
            return true;
    }
    config_value(value, config, "fsdp.unit_overrides");
    return strstr(value, "=float16") || strstr(value, "=fp16");
}

static bool has_effect(const struct config *config, int i, char *value)
{
    const bool half = idle[i].words == SCALED && any_float16(config, value);
    if (!strcmp(idle[i].key, "optim.master")) { /* of some units' types, too */
        config_value(value, config, "fsdp.unit_overrides");
        if (strstr(value, "param_dtype=bf"))
            return true;
    }

    if (idle[i].words == ADAPTED) {
        config_value(value, config, "lora.path");
        const bool has_path = *value && strcmp(value, "\"\"") != 0;
        config_value(value, config, "lora.r");
        return has_path || config->lora.r > 0;
    }
    if (!strcmp(idle[i].key, "fsdp.offload_slots") &&
        (config->fsdp.offload_activations || config->fsdp.offload_gradients))
        return true;
    if (!strcmp(idle[i].key, "model.seed")) { /* of the rounding of weights, too */
        config_value(value, config, "optim.master");
        if (!strcmp(value, "none"))
            return true;
    }

    if (!strcmp(idle[i].needs, "optim.name")) { /* of a group's optimizer, perhaps */
        config_value(value, config, "optim.groups");
        if (strstr(value, "optimizer="))
            return true;
    }

    if (config->nsources && !strcmp(idle[i].needs, "data.format"))
        return true; /* of some source, perhaps */
    config_value(value, config, idle[i].needs);
    if (idle[i].words)
        return is_one_of(value, idle[i].words) || (half && is_one_of(value, "auto"));
    return *value && strcmp(value, "\"\"") != 0 && strcmp(value, "[]") != 0;
}

/* Is a key given that says what is so anyway? All are, in what --print-config wrote. */
static bool is_default(const struct config *config, const struct config *defaults, int i,
                       char *value)
{
    char other[FSDP_TUNABLE_STRING_NBYTES];

    config_value(value, defaults, idle[i].key);
    snprintf(other, sizeof other, "%s", value);
    config_value(value, config, idle[i].key);
    return !strncmp(value, other, sizeof other - 1);
}

static bool is_constant(const struct config *config, char *value)
{
    config_value(value, config, "optim.schedule");
    return !strcmp(value, "constant");
}

void config_warn_idle(const struct config *config)
{
    char *value = fsdp_alloc(FSDP_TUNABLE_FORMAT_NBYTES, 1, "setting", NULL);
    struct config *defaults = NULL;
    char where[CONFIG_TEXT + 128];

    if (value && config_load_unchecked(&defaults, NULL, 0, NULL, NULL) == FSDP_OK)
        for (int i = 0; i < NIDLE; i++)
            if (!is_default(config, defaults, i, value) && !has_effect(config, i, value))
                fsdp_log(FSDP_LOG_WARN, "%s has no effect while %s is %s%s",
                         config_where(where, sizeof where, config, idle[i].key), idle[i].needs,
                         idle[i].words ? value : "empty",
                         idle[i].words == SCALED && is_one_of(value, "auto")
                             ? " and no type is float16"
                             : "");
    if (config->fsdp.limit_all_gathers > 0 &&
        config->fsdp.forward_prefetch > config->fsdp.limit_all_gathers)
        fsdp_log(FSDP_LOG_WARN,
                 "%s: %" PRId64 " units cannot be gathered ahead while fsdp.limit_all_gathers "
                 "is %" PRId64,
                 config_where(where, sizeof where, config, "fsdp.forward_prefetch"),
                 config->fsdp.forward_prefetch, config->fsdp.limit_all_gathers);
    if (value)
        config_value(value, config, "optim.name");
    if (value && !strcmp(value, "schedulefree") && !is_constant(config, value))
        fsdp_log(FSDP_LOG_WARN,
                 "%s: schedulefree is meant for a rate that stays: set optim.schedule constant",
                 config_where(where, sizeof where, config, "optim.schedule"));
    if (config->train.steps > 0 && config->optim.warmup_steps > config->train.steps)
        fsdp_log(FSDP_LOG_WARN,
                 "%s: %" PRId64 " steps of warm-up are more than the run's %" PRId64
                 ": it ends before optim.lr is reached",
                 config_where(where, sizeof where, config, "optim.warmup_steps"),
                 config->optim.warmup_steps, config->train.steps);
    fsdp_free(defaults);
    fsdp_free(value);
}
