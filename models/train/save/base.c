/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"

/* ---- what is what ---------------------------------------------------------------------------- */

static int kind_of(const char *name, bool trainable)
{
    return !trainable ? TRAIN_BASE : strstr(name, ".lora_") ? TRAIN_ADAPTERS : TRAIN_WHOLE;
}

static int list_flat(struct train_base *base, const struct fsdp_flat_desc *flat,
                     struct fsdp_err *err)
{
    for (int i = 0; i < flat->ntensors; i++) {
        const char *name = flat->tensors[i].name;
        if (json_object_set_new(base->kinds, name, json_integer(kind_of(name, flat->trainable))))
            return fsdp_err_set(err, FSDP_ENOMEM, "parameters: out of memory");
    }
    if (flat->trainable)
        base->flats[base->layout.nflats++] = *flat;
    return FSDP_OK;
}

int train_base_open(struct train_base *base, const struct train_parts *parts, struct fsdp_err *err)
{
    const struct fsdp_state_layout *all = fsdp_state_layout(parts->fsdp);

    base->parts = parts;
    if (!train_adapter_is_on(&parts->adapter))
        return FSDP_OK;
    base->kinds = json_object();
    base->prints = json_object();
    base->flats = fsdp_alloc((size_t)all->nflats, sizeof *base->flats, "state layout", err);
    if (!base->kinds || !base->prints || !base->flats)
        return fsdp_err_set(err, FSDP_ENOMEM, "parameters: out of memory");
    base->layout = *all;
    base->layout.flats = base->flats;
    base->layout.nflats = 0;
    for (int k = 0; k < all->nflats; k++)
        FSDP_TRY(list_flat(base, &all->flats[k], err));
    return FSDP_OK;
}

void train_base_close(struct train_base *base)
{
    json_decref(base->kinds);
    json_decref(base->prints);
    fsdp_free(base->flats);
    *base = (struct train_base){0};
}

const struct fsdp_state_layout *train_base_layout(const struct train_base *base)
{
    return train_base_is_on(base) ? &base->layout : fsdp_state_layout(base->parts->fsdp);
}

/* ---- slices ---------------------------------------------------------------------------------- */

struct visiting {
    const struct train_base_slices *of;
    fsdp_slice_f *fn;
    void *fn_ctx;
};

/* Optimizers have state of what is trained alone. */
static bool is_wanted(const struct train_base_slices *of, enum fsdp_slice_kind kind,
                      const char *name)
{
    const json_t *which = json_object_get(of->base->kinds, name);
    return kind == FSDP_SLICE_OPTIM || !which || json_integer_value(which) & of->kinds;
}

/* In PEFT's file; freed with fsdp_free. One that it has not is looked for in vain. */
static char *name_in(const struct ckpt_adapter *adapter, const char *parameter,
                     struct fsdp_err *err)
{
    const struct ckpt_tensor *t = ckpt_adapter_tensor(adapter, parameter);
    return t ? fsdp_strdup(t->tensor.name, err)
             : fsdp_sprintf(err, CKPT_ADAPTER_PREFIX "%s", parameter);
}

static int visit_some(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                      const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    const struct visiting *v = ctx;
    struct fsdp_slice named = *slice;

    if (!is_wanted(v->of, kind, slice->tensor.name))
        return FSDP_OK;
    if (!v->of->names || kind != FSDP_SLICE_MODEL)
        return v->fn(v->fn_ctx, kind, slice, io, err);
    char *name = name_in(v->of->names, slice->tensor.name, err);
    if (!name)
        return FSDP_ENOMEM;
    named.tensor.name = name;
    const int rc = v->fn(v->fn_ctx, kind, &named, io, err);
    fsdp_free(name);
    return rc;
}

int train_base_each(void *ctx, fsdp_slice_f *fn, void *fn_ctx, struct fsdp_err *err)
{
    const struct train_base_slices *of = ctx;
    struct visiting v = {of, fn, fn_ctx};
    return of->slices(of->ctx, visit_some, &v, err);
}

/* ---- fingerprints ---------------------------------------------------------------------------- */

void train_base_loaded(void *ctx, const char *name, uint64_t fingerprint)
{
    const struct train_base *base = ctx;
    const json_t *kind = json_object_get(base->kinds, name);
    char hex[20];

    snprintf(hex, sizeof hex, "%016" PRIx64, fingerprint);
    if (json_integer_value(kind) != TRAIN_WHOLE) /* what is lost here, train_base_check misses */
        json_object_set_new(base->prints, name, json_string(hex));
}

/* The whole path, where it is one of this machine. */
char *train_base_path(const struct train_base *base, struct fsdp_err *err)
{
    const char *path = base->parts->config->model.path;
    char *whole = ckpt_path_is_url(path) ? NULL : realpath(path, NULL);
    char *out = fsdp_strdup(whole ? whole : path, err);
    free(whole);
    return out;
}

/* How it is held while adapters are trained: lora.base. */
static const char *held(const struct train_base *base)
{
    static const char *const names[] = {[CONFIG_BASE_AUTO] = "auto",
                                        [CONFIG_BASE_NF4] = "nf4",
                                        [CONFIG_BASE_NF4_EXPERTS] = "nf4-experts"};
    return names[base->parts->config->lora.base];
}

/* Kinds of what is trained, by name. */
static json_t *trained_json(const struct train_base *base)
{
    json_t *out = json_object(), *kind;
    const char *name;

    json_object_foreach(base->kinds, name, kind)
    {
        if (json_integer_value(kind) & TRAIN_TRAINED && json_object_set(out, name, kind)) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

json_t *train_base_json(const struct train_base *base)
{
    char *path = train_base_path(base, NULL);
    char *patterns = train_adapter_patterns(&base->parts->adapter);
    json_t *trained = trained_json(base), *out = NULL;

    if (path && trained && patterns)
        out = json_pack("{s:s, s:O, s:O, s:f, s:s, s:s}", "path", path, "tensors", base->prints,
                        "trained", trained, "scale", base->parts->adapter.lora.scale, "patterns",
                        patterns, "held", held(base));
    json_decref(trained);
    fsdp_free(patterns);
    fsdp_free(path);
    return out;
}

/* ---- is it the same model, with the same adapters? ------------------------------------------- */

/* What adapters have learned belongs to the factor that they had. */
static int compare_scale(const struct train_base *base, json_t *saved, const char *path,
                         struct fsdp_err *err)
{
    const json_t *scale = json_object_get(saved, "scale");
    const double was = json_real_value(scale), now = base->parts->adapter.lora.scale;

    if (!scale || fabs(now - was) <= 1e-6 * fabs(was))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EMISMATCH,
                        "lora.alpha: the adapters of %s were trained times %g, and are times %g "
                        "now; set lora.r, lora.alpha and lora.rslora as they were",
                        path, was, now);
}

/* And to those of single maps. */
static int compare_patterns(const struct train_base *base, json_t *saved, const char *path,
                            struct fsdp_err *err)
{
    const char *then = json_string_value(json_object_get(saved, "patterns"));
    char *now = train_adapter_patterns(&base->parts->adapter);
    const char *was = then ? then : "";
    int rc = now ? FSDP_OK : fsdp_err_set(err, FSDP_ENOMEM, "patterns: out of memory");

    if (now && strcmp(was, now) != 0)
        rc = fsdp_err_set(err, FSDP_EMISMATCH,
                          "lora.path: the adapters of %s were trained with rank_pattern and "
                          "alpha_pattern %.200s, and these are %.200s now; set lora.path to the "
                          "adapter that they began from, or to %s",
                          path, *was ? was : "{}", *now ? now : "{}", path);
    fsdp_free(now);
    return rc;
}

/* Adapters make up for what quantization changes, too. */
static int compare_held(const struct train_base *base, json_t *saved, const char *path,
                        struct fsdp_err *err)
{
    const char *then = json_string_value(json_object_get(saved, "held"));
    const char *was = then ? then : "auto", *now = held(base);

    if (!strcmp(was, now))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EMISMATCH,
                        "lora.base: the adapters of %s were trained with %s, and it is %s now; set "
                        "it as it was",
                        path, was, now);
}

/* The first tensor that is trained by `of` and not by `by`; NULL: there is none. */
static const char *find_extra(const json_t *of, const json_t *by, json_t **kind)
{
    const char *name;

    json_object_foreach((json_t *)(uintptr_t)of, name, *kind)
    {
        if (json_integer_value(*kind) & TRAIN_TRAINED &&
            !(json_integer_value(json_object_get(by, name)) & TRAIN_TRAINED))
            return name;
    }
    return NULL;
}

static int compare_trained(const struct train_base *base, json_t *saved, const char *path,
                           struct fsdp_err *err)
{
    const json_t *then = json_object_get(saved, "trained");
    json_t *kind = NULL;
    const char *name = then ? find_extra(then, base->kinds, &kind) : NULL;
    const bool was = name != NULL;

    if (then && !was)
        name = find_extra(base->kinds, then, &kind);
    if (!name)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EMISMATCH,
                        "%s: tensor %s is %s, and is %s in %s; set lora.targets, "
                        "lora.target_parameters, lora.dora and lora.modules_to_save as they were",
                        json_integer_value(kind) == TRAIN_WHOLE ? "lora.modules_to_save"
                        : strstr(name, MODEL_MAGNITUDE)         ? "lora.dora"
                        : strstr(name, ".experts.")             ? "lora.target_parameters"
                                                                : "lora.targets",
                        name, was ? "not trained" : "trained", was ? "trained" : "not", path);
}

static int compare(const struct train_base *base, json_t *saved, const char *path,
                   struct fsdp_err *err)
{
    const char *was = json_string_value(json_object_get(saved, "path")), *name;
    const char *now = base->parts->config->model.path;
    json_t *print;

    json_object_foreach(json_object_get(saved, "tensors"), name, print)
    {
        const json_t *here = json_object_get(base->prints, name);
        if (!here || strcmp(json_string_value(here), json_string_value(print)))
            return fsdp_err_set(err, FSDP_EMISMATCH,
                                "model.path: %s is not the model that the adapters of %s were "
                                "trained on (%s): tensor %s %s; set model.path to that model",
                                now, path, was ? was : "?", name, here ? "differs" : "is missing");
    }
    return FSDP_OK;
}

int train_base_check(const struct train_base *base, const char *state_json, const char *path,
                     struct fsdp_err *err)
{
    json_t *state = state_json ? json_loads(state_json, 0, NULL) : NULL;
    json_t *saved = json_object_get(state, "base");
    const bool on = train_base_is_on(base);
    int rc = FSDP_OK;

    if (on && !saved)
        rc = fsdp_err_set(err, FSDP_EMISMATCH,
                          "%s: was not saved by a run with adapters; for adapters on its weights, "
                          "set model.path to it and checkpoint.resume to never",
                          path);
    else if (!on && saved)
        rc = fsdp_err_set(err, FSDP_EMISMATCH,
                          "%s: holds adapters and not the model; set lora.r as it was, or merge "
                          "them into the model with ckpt-merge --adapter",
                          path);
    else if (on)
        rc = compare_scale(base, saved, path, err);
    if (on && rc == FSDP_OK)
        rc = compare_patterns(base, saved, path, err);
    if (on && rc == FSDP_OK)
        rc = compare_held(base, saved, path, err);
    if (on && rc == FSDP_OK)
        rc = compare_trained(base, saved, path, err);
    if (on && rc == FSDP_OK)
        rc = compare(base, saved, path, err);
    json_decref(state);
    return rc;
}
