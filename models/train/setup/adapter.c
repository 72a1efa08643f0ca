/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "adapter.h"

static int texts_of(const char ***out, const struct fsdp_tunable_list *list, struct fsdp_err *err)
{
    if (!(*out = fsdp_alloc((size_t)list->nelem + 1, sizeof **out, "adapters", err)))
        return FSDP_ENOMEM;
    for (int i = 0; i < list->nelem; i++)
        (*out)[i] = fsdp_tunable_list_at(list, i);
    return FSDP_OK;
}

static int from_settings(struct train_adapter *a, const struct config *c, struct fsdp_err *err)
{
    FSDP_TRY(texts_of(&a->targets, &c->lora.targets, err));
    FSDP_TRY(texts_of(&a->parameters, &c->lora.target_parameters, err));
    FSDP_TRY(texts_of(&a->modules, &c->lora.modules_to_save, err));
    a->rslora = c->lora.rslora;
    a->lora.dora = c->lora.dora;
    a->alpha = c->lora.alpha > 0 ? c->lora.alpha : (double)c->lora.r;
    a->lora.r = (int)c->lora.r;
    a->lora.targets = a->targets;
    a->lora.ntargets = c->lora.targets.nelem;
    a->lora.parameters = a->parameters;
    a->lora.nparameters = c->lora.target_parameters.nelem;
    a->lora.modules_to_save = a->modules;
    a->lora.nmodules = c->lora.modules_to_save.nelem;
    return FSDP_OK;
}

/* ---- from files ------------------------------------------------------------------------------ */

static int refuse_given(const struct config *c, const char *key, struct fsdp_err *err,
                        const char *theirs)
{
    char ours[FSDP_TUNABLE_STRING_NBYTES], name[32];

    snprintf(name, sizeof name, "lora.%s", key);
    config_value(ours, c, name);
    return fsdp_err_set_blame(err, FSDP_EINVAL, key,
                              "%s is %.200s, and the adapter of lora.path (%s) has "
                              "%.200s; leave out one of both",
                              name, ours, c->lora.path, theirs);
}

static bool has_text(const char *const *texts, int ntexts, const char *text)
{
    for (int i = 0; i < ntexts; i++)
        if (!strcmp(texts[i], text))
            return true;
    return false;
}

/* texts, as a list of YAML that ends where out does */
static void list_texts(char *out, size_t nbytes, const char *const *texts, int ntexts)
{
    size_t at = (size_t)snprintf(out, nbytes, "[");

    for (int i = 0; i < ntexts && at < nbytes; i++)
        at += (size_t)snprintf(out + at, nbytes - at, "%s%s", i ? ", " : "", texts[i]);
    if (at < nbytes)
        snprintf(out + at, nbytes - at, "]");
}

static int check_modules(const struct config *c, const struct ckpt_adapter_spec *spec,
                         struct fsdp_err *err)
{
    const struct fsdp_tunable_list *list = &c->lora.modules_to_save;
    char theirs[256];
    bool same = list->nelem == spec->nmodules;

    for (int i = 0; i < list->nelem; i++)
        same &= has_text(spec->modules_to_save, spec->nmodules, fsdp_tunable_list_at(list, i));
    list_texts(theirs, sizeof theirs, spec->modules_to_save, spec->nmodules);
    return same ? FSDP_OK : refuse_given(c, "modules_to_save", err, theirs);
}

/* all-linear, the default */
static bool takes_all(const struct fsdp_tunable_list *list)
{
    return list->nelem == 1 && !strcmp(fsdp_tunable_list_at(list, 0), "all-linear");
}

/* What the settings say besides is what the files say. Defaults say nothing: they are all in what
 * --print-config wrote. */
static int check_given(const struct config *c, const struct ckpt_adapter_spec *spec,
                       struct fsdp_err *err)
{
    char theirs[64];

    if (c->lora.r && c->lora.r != spec->r) {
        snprintf(theirs, sizeof theirs, "%d", spec->r);
        return refuse_given(c, "r", err, theirs);
    }
    if (c->lora.alpha > 0 && fabs(c->lora.alpha - spec->alpha) > 1e-9 * fabs(spec->alpha)) {
        snprintf(theirs, sizeof theirs, "%g", spec->alpha);
        return refuse_given(c, "alpha", err, theirs);
    }
    if (c->lora.rslora && !spec->rslora)
        return refuse_given(c, "rslora", err, "false");
    if (c->lora.dora && !spec->dora)
        return refuse_given(c, "dora", err, "false");
    return c->lora.modules_to_save.nelem ? check_modules(c, spec, err) : FSDP_OK;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* The names of A's tensors end so. */
#define LORA_A ".lora_A.weight"

/* What a pattern names, of the A with this name, which is freed with fsdp_free: the module, or the
 * parameter of experts. */
static char *named_by_pattern(const struct train_adapter *a, const char *name, struct fsdp_err *err)
{
    const struct ckpt_adapter_spec *spec = ckpt_adapter_spec(a->start);
    const char *module = name + strlen(CKPT_ADAPTER_PREFIX);
    const size_t nbytes = strlen(module) - strlen(LORA_A);
    char parameter[CONFIG_TEXT];

    if (ckpt_adapter_parameter(parameter, sizeof parameter, spec, module, nbytes))
        return fsdp_strdup(parameter, err);
    return fsdp_sprintf(err, "%.*s", (int)nbytes, module);
}

/* Where in a module's name that begins which all layers have. */
static const char *behind_layer(const char *module)
{
    const char *begin = module;

    for (const char *at = module; *at; at += strcspn(at, "."), at += *at == '.') {
        const size_t ndigits = strspn(at, "0123456789");
        if (ndigits && at[ndigits] == '.')
            begin = at + ndigits + 1;
    }
    return begin;
}

/* Adds those of a map, or compares them with those that another layer has. name is taken. */
static int add_rank(struct train_adapter *a, char *name, struct ckpt_rank rank,
                    const struct config *c, struct fsdp_err *err)
{
    for (int i = 0; i < a->lora.nranks; i++) {
        const struct model_lora_rank *x = &a->ranks[i];
        if (strcmp(x->name, name) != 0)
            continue;
        const bool same = x->r == rank.r && fabs(x->scale - rank.scale) <= 1e-9 * fabs(rank.scale);
        if (!same)
            fsdp_err_set(err, FSDP_EUNSUPPORTED,
                         "rank_pattern or alpha_pattern of %s gives the layers' %s different "
                         "values, and adapters of a run are of all layers alike: merge it into the "
                         "model with ckpt-merge --adapter, and train that",
                         c->lora.path, name);
        fsdp_free(name);
        return same ? FSDP_OK : fsdp_err_blame(err, FSDP_EUNSUPPORTED, "path");
    }
    a->ranks[a->lora.nranks++] = (struct model_lora_rank){name, rank.r, rank.scale};
    return FSDP_OK;
}

static int list_ranks(struct train_adapter *a, const struct config *c, struct fsdp_err *err)
{
    const struct ckpt *ckpt = ckpt_adapter_ckpt(a->start);
    const struct ckpt_adapter_spec *spec = ckpt_adapter_spec(a->start);
    const int ntensors = ckpt_ntensors(ckpt);

    if (!spec->rank_pattern && !spec->alpha_pattern)
        return FSDP_OK;
    if (!(a->ranks = fsdp_alloc((size_t)ntensors + 1, sizeof *a->ranks, "ranks", err)))
        return FSDP_ENOMEM;
    a->lora.ranks = a->ranks;
    for (int i = 0; i < ntensors; i++) {
        size_t nbytes;
        const char *name = ckpt_tensor_at(ckpt, i)->tensor.name;
        if (!ckpt_adapter_target(&nbytes, name))
            continue;
        char *module = named_by_pattern(a, name, err);
        char *map = module ? fsdp_strdup(behind_layer(module), err) : NULL;
        const struct ckpt_rank rank =
            module ? ckpt_adapter_rank(a->start, module) : (struct ckpt_rank){0};
        fsdp_free(module);
        if (!map)
            return FSDP_ENOMEM;
        FSDP_TRY(add_rank(a, map, rank, c, err));
    }
    return FSDP_OK;
}

char *train_adapter_patterns(const struct train_adapter *a)
{
    const struct ckpt_adapter_spec *spec = a->start ? ckpt_adapter_spec(a->start) : NULL;
    const char *r = spec && spec->rank_pattern ? spec->rank_pattern : "";
    const char *alpha = spec && spec->alpha_pattern ? spec->alpha_pattern : "";
    return fsdp_sprintf(NULL, "%s%s%s", r, *r && *alpha ? ", " : "", alpha);
}

static int from_files(struct train_adapter *a, const struct config *c, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_err_blame(err, ckpt_adapter_open(&a->start, c->lora.path, err), "path"));
    const struct ckpt_adapter_spec *spec = ckpt_adapter_spec(a->start);
    if (!spec->ntargets && !spec->nparameters)
        return fsdp_err_set_blame(err, FSDP_EUNSUPPORTED, "path",
                                  "%s has no lora_A of any layer, only modules that were "
                                  "trained whole: put them into the model with "
                                  "ckpt-merge --adapter, and train that",
                                  c->lora.path);
    FSDP_TRY(check_given(c, spec, err));
    if (!takes_all(&c->lora.targets)) {
        FSDP_TRY(texts_of(&a->targets, &c->lora.targets, err));
        a->lora.given = a->targets;
        a->lora.ngiven = c->lora.targets.nelem;
    }
    FSDP_TRY(texts_of(&a->parameters, &c->lora.target_parameters, err));
    a->lora.given_parameters = a->parameters;
    a->lora.ngiven_parameters = c->lora.target_parameters.nelem;
    a->rslora = spec->rslora;
    a->lora.dora = spec->dora;
    a->alpha = spec->alpha;
    a->lora.r = spec->r;
    a->lora.targets = spec->targets;
    a->lora.ntargets = spec->ntargets;
    a->lora.parameters = spec->parameters;
    a->lora.nparameters = spec->nparameters;
    a->lora.modules_to_save = spec->modules_to_save;
    a->lora.nmodules = spec->nmodules;
    return list_ranks(a, c, err);
}

int train_adapter_open(struct train_adapter *a, const struct config *c, struct fsdp_err *err)
{
    int rc = FSDP_OK;

    if (c->lora.path[0])
        rc = from_files(a, c, err);
    else if (c->lora.r)
        rc = from_settings(a, c, err);
    if (rc || !a->lora.r)
        return rc;
    const struct ckpt_adapter_spec spec = {.r = a->lora.r, .alpha = a->alpha, .rslora = a->rslora};
    a->lora.scale = ckpt_adapter_scale(&spec);
    a->lora.dropout = c->lora.dropout;
    a->lora.packs_experts = c->lora.base == CONFIG_BASE_NF4_EXPERTS;
    return FSDP_OK;
}

void train_adapter_close(struct train_adapter *a)
{
    ckpt_adapter_close(a->start);
    for (int i = 0; i < a->lora.nranks; i++)
        fsdp_free((char *)(uintptr_t)a->ranks[i].name);
    fsdp_free(a->ranks);
    fsdp_free(a->targets);
    fsdp_free(a->parameters);
    fsdp_free(a->modules);
    *a = (struct train_adapter){0};
}
