/* SPDX-License-Identifier: Apache-2.0 */
/* Reading an adapter, and what its configuration means. */
#include <ctype.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "merge.h"
#include "util/text.h"

enum { NAME_NBYTES = 1024 };

enum { MAX_CONFIG_NBYTES = 1 << 20, PATH_NBYTES = 4096 };
#define LORA_A ".lora_A.weight"

struct ckpt_adapter {
    struct ckpt_adapter_spec spec;
    json_t *json; /* what the spec's texts are of */
    struct ckpt *ckpt;
    char *folder;            /* of both files, or the checkpoint's */
    const char **texts;      /* of targets, then of modules_to_save */
    const char **parameters; /* of experts, [spec.nparameters]; then weights of modules */
    int nweights;
    char **names; /* [spec.ntargets] */
    struct ckpt_patterns *ranks, *alphas;
    char *rank_pattern, *alpha_pattern; /* as texts, freed with free */
};

double ckpt_adapter_scale(const struct ckpt_adapter_spec *spec)
{
    return spec->alpha / (spec->rslora ? sqrt(spec->r) : spec->r);
}

/* Does target_parameters name the weight, by the whole name or an end after a dot? */
static bool names_weight(const struct ckpt_adapter *a, const char *weight)
{
    const size_t nbytes = strlen(weight);

    for (int i = 0; i < a->nweights; i++) {
        const char *name = a->parameters[a->spec.nparameters + i];
        const size_t n = strlen(name);
        if (ckpt_name_ends(weight, nbytes, name) && (n == nbytes || weight[nbytes - n - 1] == '.'))
            return true;
    }
    return false;
}

/* Patterns match the names of what is targeted: modules, or parameters. */
struct ckpt_rank ckpt_adapter_rank(const struct ckpt_adapter *a, const char *module)
{
    char weight[PATH_NBYTES];

    snprintf(weight, sizeof weight, "%s.weight", module);
    if (names_weight(a, weight))
        module = weight;
    const struct ckpt_adapter_spec own = {
        .r = (int)ckpt_patterns_value(a->ranks, module, a->spec.r),
        .alpha = ckpt_patterns_value(a->alphas, module, a->spec.alpha),
        .rslora = a->spec.rslora};
    return (struct ckpt_rank){own.r, ckpt_adapter_scale(&own)};
}

/* ---- names ----------------------------------------------------------------------------------- */

static bool is_number(const char *text, size_t nbytes)
{
    size_t i = 0;
    while (i < nbytes && isdigit((unsigned char)text[i]))
        i++;
    return nbytes && i == nbytes;
}

const char *ckpt_adapter_target(size_t *nbytes, const char *name)
{
    const size_t n = strlen(name), suffix = strlen(LORA_A), prefix = strlen(CKPT_ADAPTER_PREFIX);
    const char *begin = strncmp(name, CKPT_ADAPTER_PREFIX, prefix) ? name : name + prefix;

    if (n < suffix || strcmp(name + n - suffix, LORA_A) || begin + suffix >= name + n)
        return NULL;
    for (const char *at = name; at < name + n - suffix; at += strcspn(at, ".") + 1)
        if (is_number(at, strcspn(at, ".")))
            begin = at + strcspn(at, ".") + 1;
    *nbytes = (size_t)(name + n - suffix - begin);
    return begin;
}

static bool is_known(const struct ckpt_adapter *a, const char *target, size_t nbytes)
{
    for (int i = 0; i < a->spec.ntargets; i++)
        if (!strncmp(a->names[i], target, nbytes) && !a->names[i][nbytes])
            return true;
    return false;
}

/* Is the lora_A of this name one of experts? */
static bool is_of_experts(const struct ckpt_adapter *a, const char *name)
{
    const char *module = name + strlen(CKPT_ADAPTER_PREFIX);
    return ckpt_adapter_is_expert(&a->spec, module, strlen(module) - strlen(LORA_A));
}

/* The file tells which modules have adapters better than target_modules, which may be a pattern. */
static int find_targets(struct ckpt_adapter *a, struct fsdp_err *err)
{
    const int ntensors = ckpt_ntensors(a->ckpt);

    if (!(a->names = fsdp_alloc((size_t)ntensors + 1, sizeof *a->names, "targets", err)))
        return FSDP_ENOMEM;
    for (int i = 0; i < ntensors; i++) {
        const char *name = ckpt_tensor_at(a->ckpt, i)->tensor.name;
        size_t nbytes;
        const char *target = ckpt_adapter_target(&nbytes, name);
        if (strncmp(name, CKPT_ADAPTER_PREFIX, strlen(CKPT_ADAPTER_PREFIX)))
            return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                                "%s: tensor '%s' is not of PEFT's LoRA: its name does not begin "
                                "with " CKPT_ADAPTER_PREFIX,
                                ckpt_path(a->ckpt), name);
        if (!target || is_known(a, target, nbytes) || is_of_experts(a, name))
            continue;
        if (!(a->names[a->spec.ntargets] = fsdp_sprintf(err, "%.*s", (int)nbytes, target)))
            return FSDP_ENOMEM;
        a->spec.ntargets++;
    }
    return FSDP_OK;
}

/* ---- adapter_config.json --------------------------------------------------------------------- */

/* Keys that must ask for nothing, because they change what is computed. */
static const char *const refused[] = {
    "lora_bias",     "layer_replication",       "use_qalora",        "use_bdlora",
    "velora_config", "trainable_token_indices", "monteclora_config", "alora_invocation_tokens",
};
/* Of init_lora_weights: those that change the model, too. */
static const char *const moved[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};

static bool asks_for_nothing(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_object(value) && !json_object_size(value)) ||
           (json_is_array(value) && !json_array_size(value));
}

static int refuse_key(const char *path, const char *key, const json_t *value, struct fsdp_err *err)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    fsdp_err_set(err, FSDP_EUNSUPPORTED,
                 "%s: %s %.80s is not supported: LoRA, rsLoRA and DoRA on linear maps are", path,
                 key, text ? text : "");
    free(text);
    return FSDP_EUNSUPPORTED;
}

/* Keys that are true or false. */
static const char *const flags[] = {"use_rslora", "use_dora", "fan_in_fan_out"};

static int check_flags(const json_t *json, const char *path, struct fsdp_err *err)
{
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        const json_t *value = json_object_get(json, flags[i]);
        if (!value || json_is_null(value) || json_is_boolean(value))
            continue;
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        fsdp_err_set(err, FSDP_EINVAL, "%s: %s is %.80s: neither true nor false", path, flags[i],
                     text ? text : "");
        free(text);
        return FSDP_EINVAL;
    }
    return FSDP_OK;
}

static int check_keys(const json_t *json, const char *path, struct fsdp_err *err)
{
    const char *type = json_string_value(json_object_get(json, "peft_type"));
    const char *bias = json_string_value(json_object_get(json, "bias"));
    const char *init = json_string_value(json_object_get(json, "init_lora_weights"));

    if (!type || strcmp(type, "LORA"))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s: peft_type is %s, only LORA is supported",
                            path, type ? type : "missing");
    if (bias && strcmp(bias, "none"))
        return refuse_key(path, "bias", json_object_get(json, "bias"), err);
    for (size_t i = 0; init && i < sizeof moved / sizeof moved[0]; i++)
        if (!strncmp(init, moved[i], strlen(moved[i])))
            return refuse_key(path, "init_lora_weights", json_object_get(json, "init_lora_weights"),
                              err);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const json_t *value = json_object_get(json, refused[i]);
        if (!asks_for_nothing(value))
            return refuse_key(path, refused[i], value, err);
    }
    return check_flags(json, path, err);
}

static int read_modules(struct ckpt_adapter *a, const char *path, struct fsdp_err *err)
{
    const json_t *list = json_object_get(a->json, "modules_to_save");
    const size_t n = json_array_size(list);

    a->texts = fsdp_alloc((size_t)a->spec.ntargets + n + 1, sizeof *a->texts, "modules", err);
    if (!a->texts)
        return FSDP_ENOMEM;
    for (int i = 0; i < a->spec.ntargets; i++)
        a->texts[i] = a->names[i];
    a->spec.targets = a->texts;
    a->spec.modules_to_save = a->texts + a->spec.ntargets;
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (!name)
            return fsdp_err_set(err, FSDP_EINVAL, "%s: modules_to_save is not a list of texts",
                                path);
        a->texts[a->spec.ntargets + a->spec.nmodules++] = name;
    }
    return FSDP_OK;
}

static int read_parameters(struct ckpt_adapter *a, const char *path, struct fsdp_err *err)
{
    const json_t *list = json_object_get(a->json, "target_parameters");
    const size_t n = json_array_size(list);

    if (!(a->parameters = fsdp_alloc(n + 1, sizeof *a->parameters, "parameters", err)))
        return FSDP_ENOMEM;
    const char **weight = a->parameters + n;
    if (!json_is_array(list) && !asks_for_nothing(list))
        return refuse_key(path, "target_parameters", list, err);
    a->spec.parameters = a->parameters;
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name && ckpt_name_ends(name, strlen(name), ".weight")) {
            *--weight = name; /* of a module, such as a router, which has an adapter like others */
            a->nweights++;
            continue;
        }
        if (!name || !ckpt_adapter_is_parameter(name))
            return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                                "%s: target_parameters names '%.80s', and gate_up_proj and "
                                "down_proj of experts and weights of linear maps are supported",
                                path, name ? name : "");
        a->parameters[a->spec.nparameters++] = name;
    }
    return FSDP_OK; /* all n are one of both */
}

/* Of the numbers that a pattern gives each, PEFT divides the one by the other. */
static int read_patterns(struct ckpt_adapter *a, const char *path, struct fsdp_err *err)
{
    FSDP_TRY(ckpt_patterns_read(&a->ranks, a->json, "rank_pattern", true, path, err));
    FSDP_TRY(ckpt_patterns_read(&a->alphas, a->json, "alpha_pattern", false, path, err));
    if (a->ranks)
        a->rank_pattern = json_dumps(json_object_get(a->json, "rank_pattern"), JSON_COMPACT);
    if (a->alphas)
        a->alpha_pattern = json_dumps(json_object_get(a->json, "alpha_pattern"), JSON_COMPACT);
    if ((a->ranks && !a->rank_pattern) || (a->alphas && !a->alpha_pattern))
        return fsdp_err_set(err, FSDP_ENOMEM, "%s: out of memory", path);
    a->spec.rank_pattern = a->rank_pattern;
    a->spec.alpha_pattern = a->alpha_pattern;
    return FSDP_OK;
}

/* What B A is multiplied with must be a number of the weights' precision. */
static int read_scale(struct ckpt_adapter *a, const char *path, struct fsdp_err *err)
{
    const json_t *r = json_object_get(a->json, "r");
    const json_t *alpha = json_object_get(a->json, "lora_alpha");

    if (!json_is_integer(r) || json_integer_value(r) < 1 || json_integer_value(r) > INT_MAX)
        return fsdp_err_set(err, FSDP_EINVAL, "%s: r is not a positive integer", path);
    if (!json_is_number(alpha))
        return fsdp_err_set(err, FSDP_EINVAL, "%s: lora_alpha is not a number", path);
    a->spec.r = (int)json_integer_value(r);
    a->spec.alpha = json_number_value(alpha);
    a->spec.rslora = json_is_true(json_object_get(a->json, "use_rslora"));
    return fabs(ckpt_adapter_scale(&a->spec)) <= FLT_MAX
               ? FSDP_OK
               : fsdp_err_set(err, FSDP_EINVAL,
                              "%s: lora_alpha is %g, and adapters times %g have no finite values",
                              path, a->spec.alpha, ckpt_adapter_scale(&a->spec));
}

static int read_config(struct ckpt_adapter *a, const char *path, struct fsdp_err *err)
{
    size_t nbytes;
    char *text;

    FSDP_TRY(ckpt_extra_read(&text, &nbytes, path, MAX_CONFIG_NBYTES, err));
    int rc = ckpt_json_parse(&a->json, text, nbytes, path, err);
    fsdp_free(text);
    FSDP_TRY(rc);
    FSDP_TRY(check_keys(a->json, path, err));
    FSDP_TRY(read_scale(a, path, err));
    FSDP_TRY(read_patterns(a, path, err));
    FSDP_TRY(read_parameters(a, path, err));
    a->spec.dropout = json_number_value(json_object_get(a->json, "lora_dropout"));
    a->spec.dora = json_is_true(json_object_get(a->json, "use_dora"));
    a->spec.transposed = json_is_true(json_object_get(a->json, "fan_in_fan_out"));
    if (a->spec.dora && a->spec.nparameters)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "%s: use_dora is true, and target_parameters have no magnitudes", path);
    a->spec.base = json_string_value(json_object_get(a->json, "base_model_name_or_path"));
    return FSDP_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int open_in(struct ckpt_adapter *a, const char *folder, struct fsdp_err *err)
{
    char *config = fsdp_sprintf(err, "%s/" CKPT_ADAPTER_CONFIG, folder);
    char *tensors = fsdp_sprintf(err, "%s/" CKPT_ADAPTER_TENSORS, folder);
    int rc = config && tensors ? read_config(a, config, err) : FSDP_ENOMEM;

    if (rc == FSDP_OK)
        rc = ckpt_open(&a->ckpt, tensors, err);
    if (rc == FSDP_OK)
        rc = find_targets(a, err);
    if (rc == FSDP_OK)
        rc = read_modules(a, config, err);
    fsdp_free(config);
    fsdp_free(tensors);
    return rc;
}

/* The folder itself, or where a checkpoint has it. */
static int open_at(struct ckpt_adapter *a, const char *path, struct fsdp_err *err)
{
    char latest[PATH_NBYTES], *folder;
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = open_in(a, path, &why);

    if (rc != FSDP_ENOTFOUND || a->json) {
        if (rc == FSDP_OK && !(a->folder = fsdp_strdup(path, &why)))
            rc = FSDP_ENOMEM;
        return rc ? fsdp_err_pass(err, rc, &why) : FSDP_OK;
    }
    if (ckpt_latest(latest, sizeof latest, path, NULL))
        snprintf(latest, sizeof latest, "%s", path);
    if (!(folder = fsdp_sprintf(err, "%s/hf", latest)))
        return FSDP_ENOMEM;
    rc = open_in(a, folder, &why);
    fsdp_free(folder);
    if (rc == FSDP_OK && !(a->folder = fsdp_strdup(latest, &why)))
        rc = FSDP_ENOMEM;
    if (rc == FSDP_ENOTFOUND && !a->json)
        return fsdp_err_set(err, FSDP_ENOTFOUND,
                            "%s: holds no " CKPT_ADAPTER_CONFIG
                            ": it is neither PEFT's folder of an adapter nor a checkpoint with one",
                            path);
    return rc ? fsdp_err_pass(err, rc, &why) : FSDP_OK;
}

int ckpt_adapter_open(struct ckpt_adapter **out, const char *path, struct fsdp_err *err)
{
    struct ckpt_adapter *a = fsdp_alloc(1, sizeof *a, "adapter", err);
    const int rc = a ? open_at(a, path, err) : FSDP_ENOMEM;

    if (rc) {
        ckpt_adapter_close(a);
        return rc;
    }
    *out = a;
    return FSDP_OK;
}

void ckpt_adapter_close(struct ckpt_adapter *a)
{
    if (!a)
        return;
    for (int i = 0; i < a->spec.ntargets; i++)
        fsdp_free(a->names[i]);
    fsdp_free(a->names);
    fsdp_free(a->folder);
    fsdp_free(a->texts);
    fsdp_free(a->parameters);
    ckpt_patterns_free(a->ranks);
    ckpt_patterns_free(a->alphas);
    free(a->rank_pattern);
    free(a->alpha_pattern);
    ckpt_close(a->ckpt);
    json_decref(a->json);
    fsdp_free(a);
}

const struct ckpt_adapter_spec *ckpt_adapter_spec(const struct ckpt_adapter *a)
{
    return &a->spec;
}

const char *ckpt_adapter_folder(const struct ckpt_adapter *a)
{
    return a->folder;
}

struct ckpt *ckpt_adapter_ckpt(const struct ckpt_adapter *a)
{
    return a->ckpt;
}

static const struct ckpt_tensor *find_tensor(const struct ckpt_adapter *a, const char *parameter)
{
    char name[NAME_NBYTES];
    const int len = snprintf(name, sizeof name, CKPT_ADAPTER_PREFIX "%s", parameter);
    return len < (int)sizeof name ? ckpt_tensor_find(a->ckpt, name) : NULL;
}

const struct ckpt_tensor *ckpt_adapter_tensor(const struct ckpt_adapter *a, const char *parameter)
{
    char other[NAME_NBYTES];
    const struct ckpt_tensor *own = find_tensor(a, parameter);
    return !own && ckpt_adapter_module_name(other, sizeof other, parameter) ? find_tensor(a, other)
                                                                            : own;
}
