/* SPDX-License-Identifier: Apache-2.0 */
/* Loading the settings of a run, and checks over several of them. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config_impl.h"
#include "data/data.h"
#include "yaml/sections.h"

/* The engine's settings are the keys of two sections. */
int config_blame(const struct config *config, int status, struct fsdp_err *err)
{
    static const char *const sections[] = {"fsdp", "optim", "lora", "model"};
    char key[64], where[CONFIG_TEXT + 128];
    const char *setting = err->setting;

    for (size_t i = 0; status && setting[0] && i < sizeof sections / sizeof sections[0]; i++) {
        int row = -1;
        snprintf(key, sizeof key, "%s.%s", sections[i], setting);
        if (fsdp_tunable_find(&row, config_table, config_nrows, "", key, NULL))
            continue;
        err->setting[0] = 0; /* the key takes its place */
        fsdp_err_prefix(err, status, "%s: ", config_where(where, sizeof where, config, key));
        return fsdp_err_blame(err, status, key);
    }
    return status;
}

const char *config_word(char *out, size_t out_nbytes, const struct config *config, const char *key)
{
    const struct fsdp_tunable *row = &config_table[config_row_of(key)];
    fsdp_tunable_word(out, out_nbytes, row,
                      *(const int *)(const void *)((const char *)config + row->offset));
    return out;
}

const char *config_index_word(char *out, size_t out_nbytes, const char *key, int index)
{
    fsdp_tunable_word(out, out_nbytes, &config_table[config_row_of(key)], index);
    return out;
}

void config_value(char *out, const struct config *config, const char *key)
{
    fsdp_tunable_format(out, &config_table[config_row_of(key)], config);
}

/* ---- loading --------------------------------------------------------------------------------- */

static int unknown_section(const char *where, const char *section, struct fsdp_err *err)
{
    char known[200] = "", *to = known;
    size_t len = strlen(section);

    for (int i = 0; i < config_nrows; i++) {
        size_t dot = strcspn(config_table[i].name, ".");
        if (dot == len && strncmp(config_table[i].name, section, len) == 0)
            return FSDP_OK;
        if (i == 0 || strncmp(config_table[i].name, config_table[i - 1].name, dot + 1) != 0)
            to += sprintf(to, "%s%.*s", i ? ", " : "", (int)dot, config_table[i].name);
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
    if (config_is_source_key(key))
        return config_source_set(config, where, line, key, value, values, nvalues, err);
    if (strchr(key, '['))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: %.*s: an element of the list is not a plain value", where,
                            (int)strcspn(key, "["), key);
    if (value)
        FSDP_TRY(fsdp_tunable_set(config_table, config_nrows, config, where, key, value, err));
    else if (values)
        FSDP_TRY(fsdp_tunable_set_list(config_table, config_nrows, config, where, key, values,
                                       nvalues, err));
    else
        return unknown_section(where, key, err);
    config->line[config_row_of(key)] = line;
    return FSDP_OK;
}

static bool is_utf8(const char *text)
{
    const char *end = text + strlen(text);
    uint32_t code;

    for (int n; text < end; text += n)
        if (!(n = fsdp_utf8_decode(&code, text, end)))
            return false;
    return true;
}

static int set_override(struct config *config, const char *text, struct fsdp_err *err)
{
    char key[128];
    const char *eq = strchr(text, '=');

    if (!eq || eq == text || (size_t)(eq - text) >= sizeof key)
        return fsdp_err_set(err, FSDP_EINVAL, "command line: '%.100s' is not section.key=value",
                            text);
    snprintf(key, sizeof key, "%.*s", (int)(eq - text), text);
    /* Neither YAML nor a checkpoint's JSON would take it, hours later. */
    if (!is_utf8(eq + 1))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "command line: %s: the value is not UTF-8; rename the file, or name it "
                            "by a link",
                            key);
    if (config_is_source_key(key))
        return config_source_set(config, "command line", -1, key, eq + 1, NULL, 0, err);
    FSDP_TRY(
        fsdp_tunable_set(config_table, config_nrows, config, "command line", key, eq + 1, err));
    config->line[config_row_of(key)] = -1;
    return FSDP_OK;
}

/* The length of a run has two keys, of which the command line's wins over the file's. */
static void choose_length(struct config *config)
{
    const int steps = config_row_of("train.steps"), epochs = config_row_of("train.epochs");

    if (config->train.steps < 0 || !(config->train.epochs > 0))
        return;
    if (config->line[steps] == -1 && config->line[epochs] > 0) {
        config->train.epochs = 0;
        config->line[epochs] = 0;
    } else if (config->line[epochs] == -1 && config->line[steps] > 0) {
        config->train.steps = -1;
        config->line[steps] = 0;
    }
}

int config_load_unchecked(struct config **out, const char *path, int noverrides,
                          char *const *overrides, struct fsdp_err *err)
{
    static const struct sections_form form = {.section = "train"};
    struct config *config = fsdp_alloc(1, sizeof *config, "configuration", err);
    int rc;

    if (!config)
        return FSDP_ENOMEM;
    FSDP_TRY_GOTO(fsdp_tunable_defaults(config_table, config_nrows, config, err), out);
    if (path) {
        if (strlen(path) >= sizeof config->file) {
            rc = fsdp_err_set(err, FSDP_EINVAL, "%.60s...: path too long", path);
            goto out;
        }
        strcpy(config->file, path);
        FSDP_TRY_GOTO(sections_read(path, &form, set_from_yaml, config, err), out);
    }
    for (int i = 0; i < noverrides; i++)
        FSDP_TRY_GOTO(set_override(config, overrides[i], err), out);
    choose_length(config);
    *out = config;
    config = NULL;
out:
    fsdp_free(config);
    return rc;
}

/* ---- checks over several keys ---------------------------------------------------------------- */

/* Only checkpoints have stores; elsewhere an address would become an odd folder. Its user part
 * would be printed, and kept in every checkpoint. */
static int check_path(const struct config *c, const char *key, const char *path, const char *hint,
                      struct fsdp_err *err)
{
    const char *scheme = strstr(path, "://");

    if (!scheme)
        return FSDP_OK;
    if (hint)
        return config_refuse(c, key, err, "%s: this is read and written as a file%s", path, hint);
    if (memchr(scheme + 3, '@', strcspn(scheme + 3, "/")))
        return config_refuse(
            c, key, err,
            "an address must not hold a name or secret before '@'; credentials come from "
            "the environment or the profile's files");
    return FSDP_OK;
}

/* Of a path that says none where it is empty: a word for that would be the name of a path. */
static int check_none(const struct config *c, const char *key, const char *path,
                      struct fsdp_err *err)
{
    static const char *const words[] = {"none", "off", "no", "false", "null"};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (!strcasecmp(path, words[i]))
            return config_refuse(c, key, err,
                                 "'%s' would be a path of that name; give '' for none, or ./%s",
                                 path, path);
    return FSDP_OK;
}

static int check_paths(const struct config *c, struct fsdp_err *err)
{
    static const char copy_first[] = "; ckpt-cp copies a checkpoint from a store to a folder";
    const struct {
        const char *key, *path, *hint; /* NULL: a store will do */
        bool may_be_none;
    } paths[] = {{"model.path", c->model.path, copy_first, false},
                 {"checkpoint.path", c->checkpoint.path, NULL, true},
                 {"checkpoint.resume", c->checkpoint.resume, NULL, false},
                 {"checkpoint.staging", c->checkpoint.staging, "", true},
                 {"checkpoint.switches", c->checkpoint.switches, "", true},
                 {"log.metrics", c->log.metrics, "", true},
                 {"log.tensorboard", c->log.tensorboard, "", true},
                 {"log.prometheus", c->log.prometheus, "", true},
                 {"log.html", c->log.html, "", true},
                 {"log.trace", c->log.trace, "", true}};
    const struct {
        const char *key;
        const struct fsdp_tunable_list *list;
    } lists[] = {{"data.path", &c->data.path}, {"data.eval_path", &c->data.eval_path}};

    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        FSDP_TRY(check_path(c, paths[i].key, paths[i].path, paths[i].hint, err));
        if (paths[i].may_be_none)
            FSDP_TRY(check_none(c, paths[i].key, paths[i].path, err));
    }
    for (size_t k = 0; k < sizeof lists / sizeof lists[0]; k++)
        for (int i = 0; i < lists[k].list->nelem; i++)
            FSDP_TRY(
                check_path(c, lists[k].key, fsdp_tunable_list_at(lists[k].list, i), NULL, err));
    for (int k = 0; k < c->nsources; k++)
        for (int i = 0; i < c->sources[k].path.nelem; i++)
            FSDP_TRY(check_path(c, "data.sources", fsdp_tunable_list_at(&c->sources[k].path, i),
                                NULL, err));
    return FSDP_OK;
}

static int check_given(const struct config *c, struct fsdp_err *err)
{
    for (int i = 0; i < config_nrows; i++)
        if (!config_table[i].def && !c->line[i])
            return config_refuse(c, config_table[i].name, err, "must be given: %s",
                                 config_table[i].help);
    if (!c->model.path[0])
        return config_refuse(c, "model.path", err, "must be given: %s",
                             config_table[config_row_of("model.path")].help);
    if (c->train.steps < 0 && !(c->train.epochs > 0))
        return config_refuse(c, "train.steps", err, "must be given, or train.epochs: %s",
                             config_table[config_row_of("train.steps")].help);
    if (c->train.steps >= 0 && c->train.epochs > 0)
        return config_refuse(c, "train.epochs", err,
                             "is given, and train.steps, too; leave out one of them");
    if (c->train.steps != 0 && c->data.path.nelem == 0 && !c->nsources)
        return config_refuse(c, "data.path", err, "must be given where train.steps is not 0: %s",
                             config_table[config_row_of("data.path")].help);
    return check_paths(c, err);
}

static int check_optim(const struct config *c, struct fsdp_err *err)
{
    if (c->optim.min_lr > c->optim.lr)
        return config_refuse(c, "optim.min_lr", err, "%g is above optim.lr, %g", c->optim.min_lr,
                             c->optim.lr);
    if (c->train.steps >= 0 && c->optim.decay_steps > 0 &&
        c->optim.warmup_steps + c->optim.decay_steps > c->train.steps)
        return config_refuse(c, "optim.decay_steps", err,
                             "%" PRId64 " steps of decay after %" PRId64
                             " of warm-up do not fit into %" PRId64 " steps",
                             c->optim.decay_steps, c->optim.warmup_steps, c->train.steps);
    return FSDP_OK;
}

int config_count_steps(struct config *c, uint64_t nrows, struct fsdp_err *err)
{
    const double rows = c->train.epochs * (double)nrows;
    const double steps = ceil(rows / (double)c->train.global_batch_size * (1 - 1e-12));

    if (c->train.steps >= 0)
        return FSDP_OK;
    if (!(steps <= 1e15))
        return config_refuse(c, "train.epochs", err, "%g passes over %" PRIu64 " rows are too many",
                             c->train.epochs, nrows);
    c->train.steps = (int64_t)steps;
    c->train.epochs = 0;
    return check_optim(c, err);
}

static int check_data(const struct config *c, struct fsdp_err *err)
{
    if (c->nsources)
        FSDP_TRY(config_sources_check(c, err));
    if (!c->data.text_key[0])
        return config_refuse(c, "data.text_key", err, "is empty; give the name of a field");
    if (c->data.document_end >= 0 && !c->nsources && c->data.format != DATA_JSONL &&
        (c->data.format != DATA_TEXT || !strcmp(c->data.tokenizer, "bytes")) &&
        c->data.pack != CONFIG_PACK_DOCUMENTS)
        return config_refuse(c, "data.document_end", err,
                             "has no effect unless data.pack is documents or data.format is jsonl");
    return FSDP_OK;
}

/* Histograms need a gradient hook. fsdp_grad_hook_set refuses one for the same reasons, but only
 * when the ranks have started. */
static int check_histograms(const struct config *c, struct fsdp_err *err)
{
    const char *against = c->fsdp.update_at == FSDP_UPDATE_AT_REDUCE ? "fsdp.update_at reduce"
                          : c->fsdp.offload_gradients                ? "fsdp.offload_gradients"
                          : c->fsdp.grad_dtype != FSDP_F32           ? "fsdp.grad_dtype bfloat16"
                                                                     : NULL;

    if (c->log.tensorboard_histograms < 1 || !against)
        return FSDP_OK;
    return config_refuse(c, "log.tensorboard_histograms", err,
                         "needs all gradients in fp32 after the last micro-step, and %s leaves "
                         "none; set one of the two to its default",
                         against);
}

/* What a run would write in a folder whose name is "~". */
static int check_home(const struct config *c, struct fsdp_err *err)
{
    const struct {
        const char *key, *path;
    } all[] = {{"checkpoint.path", c->checkpoint.path},
               {"checkpoint.staging", c->checkpoint.staging},
               {"data.cache", c->data.cache},
               {"log.metrics", c->log.metrics},
               {"log.tensorboard", c->log.tensorboard},
               {"log.prometheus", c->log.prometheus},
               {"log.html", c->log.html},
               {"log.trace", c->log.trace}};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!strncmp(all[i].path, "~/", 2))
            return config_refuse(c, all[i].key, err,
                                 "'%s' begins with ~, which only a shell replaces by the home "
                                 "folder: write the whole path (./~ is a folder of that name)",
                                 all[i].path);
    return FSDP_OK;
}

/* Node exporter passes other names over without a word. */
static int check_log(const struct config *c, struct fsdp_err *err)
{
    static const char suffix[] = ".prom";
    const char *path = c->log.prometheus, *slash = strrchr(path, '/');
    const size_t len = strlen(slash ? slash + 1 : path);

    if (path[0] && (len < sizeof suffix || strcmp(path + strlen(path) - strlen(suffix), suffix)))
        return config_refuse(c, "log.prometheus", err,
                             "'%s' does not end in NAME.prom, and node exporter reads only files "
                             "that do; try %s%s.prom",
                             path, path, slash && !slash[1] ? "fsdp" : "");
    const char *const keys[] = {"log.metrics", "log.prometheus", "log.html"};
    const char *const paths[] = {c->log.metrics, path, c->log.html};
    for (int i = 1; i < 3; i++)
        for (int k = 0; k < i; k++)
            if (paths[i][0] && !strcmp(paths[i], paths[k]))
                return config_refuse(c, keys[i], err, "'%s' is the file of %s, too; name another",
                                     paths[i], keys[k]);
    return check_histograms(c, err);
}

/* What DPO needs, and what its loss has no place for. */
static int check_dpo(const struct config *c, struct fsdp_err *err)
{
    const char *value = c->data.format != DATA_JSONL              ? "data.format"
                        : c->nsources                             ? "data.sources"
                        : c->data.weight_key[0]                   ? "data.weight_key"
                        : c->data.pack == CONFIG_PACK_DOCUMENTS   ? "data.pack"
                        : c->model.init != CONFIG_INIT_PRETRAINED ? "model.init"
                        : c->lora.dropout > 0                     ? "lora.dropout"
                        : c->model.dropout > 0                    ? "model.dropout"
                        : c->train.label_smoothing > 0            ? "train.label_smoothing"
                        : c->train.z_loss > 0                     ? "train.z_loss"
                        : c->train.router_z_loss > 0              ? "train.router_z_loss"
                                                                  : NULL;

    if (c->train.objective != CONFIG_DPO || !value)
        return FSDP_OK;
    return config_refuse(c, value, err,
                         "does not fit train.objective dpo, which takes pairs of one source "
                         "(data.format jsonl, data.path), begins with the weights of model.path, "
                         "and has a loss of its own without dropout");
}

static int check_lora(const struct config *c, struct fsdp_err *err)
{
    const bool on = c->lora.r > 0 || c->lora.path[0];

    if (on && c->model.init == CONFIG_INIT_RANDOM)
        return config_refuse(c, "model.init", err,
                             "adapters belong to a model that is stored: random has none");
    if (on && c->fsdp.frozen.nelem)
        return config_refuse(c, "fsdp.frozen", err,
                             "a run with adapters freezes the model itself, but for "
                             "lora.modules_to_save; leave this empty");
    if (!on && c->lora.base != CONFIG_BASE_AUTO)
        return config_refuse(
            c, "lora.base", err,
            "nf4 is for a model that is frozen; set lora.r to train adapters on it");
    if (c->lora.r > 0 && !c->lora.targets.nelem && !c->lora.target_parameters.nelem)
        return config_refuse(c, "lora.targets", err,
                             "names no linear map, nor lora.target_parameters a weight of "
                             "experts; all-linear takes all of the first");
    return FSDP_OK;
}

static int check_rest(const struct config *c, struct fsdp_err *err)
{
    if (c->fsdp.checkpoint_modules.nelem && c->fsdp.activation_checkpointing == FSDP_AC_NONE)
        return config_refuse(c, "fsdp.checkpoint_modules", err,
                             "has no effect while fsdp.activation_checkpointing is none");
    char policy[32];
    if (!strcmp(config_word(policy, sizeof policy, c, "fsdp.wrap_policy"), "list") &&
        !c->fsdp.wrap_modules.nelem)
        return config_refuse(
            c, "fsdp.wrap_modules", err,
            "names no module for fsdp.wrap_policy list; policy none makes one unit "
            "of the whole model");
    FSDP_TRY(check_dpo(c, err));
    if (c->train.early_stop > 0 && !c->train.eval_interval)
        return config_refuse(c, "train.early_stop", err,
                             "needs evaluations; set train.eval_interval and data.eval_path");
    if (c->train.early_stop > 0 && !c->data.eval_path.nelem)
        return config_refuse(c, "train.early_stop", err, "needs data.eval_path");
    if (c->checkpoint.keep_best && !c->data.eval_path.nelem)
        return config_refuse(c, "checkpoint.keep_best", err, "needs data.eval_path");
    if (strcmp(c->checkpoint.resume, "must") == 0 && !c->checkpoint.path[0])
        return config_refuse(c, "checkpoint.resume", err,
                             "must resume, but checkpoint.path is not set");
    if (c->checkpoint.staging[0] && c->checkpoint.staging[0] != '/')
        return config_refuse(
            c, "checkpoint.staging", err,
            "'%s' is not a whole path: it is a folder of each node, which may be elsewhere "
            "than where the run was started",
            c->checkpoint.staging);
    for (const char *at = strchr(c->checkpoint.staging, '%'); at; at = strchr(at + 2, '%'))
        if (!at[1] || !strchr("hn%", at[1]))
            return config_refuse(c, "checkpoint.staging", err,
                                 "'%.2s': only %%h, %%n and %%%% are known", at);
    if (!c->checkpoint.resume[0])
        return config_refuse(c, "checkpoint.resume", err,
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
    FSDP_TRY_GOTO(check_lora(config, err), out);
    FSDP_TRY_GOTO(check_home(config, err), out);
    FSDP_TRY_GOTO(check_log(config, err), out);
    FSDP_TRY_GOTO(check_rest(config, err), out);
    *out = config;
    config = NULL;
out:
    fsdp_free(config);
    return rc;
}

const struct fsdp_tunable *config_keys(int *nkeys)
{
    *nkeys = config_nrows;
    return config_table;
}
