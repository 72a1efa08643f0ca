/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/hf/hf_names.h"
#include "format/torch/torch_write.h"
#include "sizes.h"
#include "source/format_ops.h"
#include "util/limits.h"
#include "util/text.h"
#include "util/family.h"

enum { TEXT_NBYTES = 2 * CKPT_MAX_NAME_NBYTES + 1024, SHAPE_NBYTES = 256 };

struct check {
    struct ckpt_check_result *out;
    struct ckpt *ckpt;
    ckpt_mismatch_f *report;
    void *ctx;
    struct ckpt_check_model model;
    struct named {
        const char *name;
        int tensor;
    } * sorted; /* [nweights] by name */
    int nweights;
    bool *known; /* [tensors] the model has it */
    int nmissing;
    char missing[CKPT_MAX_NAME_NBYTES]; /* the first of these */
    char text[TEXT_NBYTES];
};

static void add_fault(struct check *c, const char *tensor, const char *file, const char *fmt, ...)
    FSDP_PRINTF(4, 5);
static void add_fault(struct check *c, const char *tensor, const char *file, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(c->text, sizeof c->text, fmt, args);
    va_end(args);
    const struct ckpt_mismatch mismatch = {.tensor = tensor, .file = file, .text = c->text};
    c->out->nmismatches++;
    c->report(c->ctx, &mismatch);
}

/* ---- tensors by name ------------------------------------------------------------------------- */

static const struct ckpt_tensor *tensor_at(const struct check *c, int at)
{
    return &c->ckpt->m.layout.tensors[at];
}

static const char *file_of(const struct check *c, int at)
{
    const struct ckpt_layout *layout = &c->ckpt->m.layout;
    return layout->first[at] < layout->first[at + 1]
               ? layout->files[layout->pieces[layout->first[at]].file].path
               : ckpt_path_base(c->ckpt->path);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

static int list_weights(struct check *c, struct fsdp_err *err)
{
    const size_t count = (size_t)c->ckpt->m.layout.ntensors;
    c->sorted = fsdp_alloc(count, sizeof *c->sorted, "names", err);
    c->known = fsdp_alloc(count, sizeof *c->known, "names", err);
    if (!c->sorted || !c->known)
        return FSDP_ENOMEM;
    for (int i = 0; i < (int)count; i++)
        if (tensor_at(c, i)->kind == FSDP_SLICE_MODEL)
            c->sorted[c->nweights++] = (struct named){ckpt_own_name(tensor_at(c, i)), i};
    qsort(c->sorted, (size_t)c->nweights, sizeof *c->sorted, compare_names);
    return FSDP_OK;
}

/* -1: there is none. */
static int find_weight(const struct check *c, const char *name)
{
    static const char prefix[] = "transformer."; /* which GPT-2's own files leave out */
    const struct named key = {name, 0};
    const struct named *found =
        bsearch(&key, c->sorted, (size_t)c->nweights, sizeof key, compare_names);
    if (found)
        return found->tensor;
    return !strncmp(name, prefix, sizeof prefix - 1) ? find_weight(c, name + sizeof prefix - 1)
                                                     : -1;
}

static bool has_alias(const struct check *c, const char *name)
{
    for (int i = 0; i < c->ckpt->m.naliases; i++)
        if (!strcmp(c->ckpt->m.aliases[i].name, name))
            return true;
    return false;
}

/* ---- names and shapes ------------------------------------------------------------------------ */

static void shape_text(char out[SHAPE_NBYTES], const uint64_t *shape, int ndim)
{
    struct ckpt_text text = {0};
    ckpt_text_dims(&text, shape, ndim);
    snprintf(out, SHAPE_NBYTES, "%s", text.data ? text.data : "");
    ckpt_text_free(&text);
}

static int shape_of(uint64_t shape[FSDP_MAX_DIMS], const struct check *c, const char *dims)
{
    int ndim = 0;
    for (; dims[ndim]; ndim++)
        shape[ndim] = c->model.sizes.size[(unsigned char)dims[ndim]];
    return ndim;
}

static void check_shape(struct check *c, int at, const char *dims)
{
    const struct fsdp_tensor *t = &tensor_at(c, at)->tensor;
    uint64_t shape[FSDP_MAX_DIMS];
    char has[SHAPE_NBYTES], needs[SHAPE_NBYTES];
    const int ndim = shape_of(shape, c, dims);
    if (t->ndim == ndim && !memcmp(t->shape, shape, (size_t)ndim * sizeof *shape))
        return;
    shape_text(has, t->shape, t->ndim);
    shape_text(needs, shape, ndim);
    const char *name = ckpt_own_name(tensor_at(c, at));
    add_fault(c, name, file_of(c, at), "tensor '%s' in '%s' has shape %s; config.json needs %s",
              name, file_of(c, at), has, needs);
}

static void check_name(struct check *c, const char *name, const struct ckpt_check_row *row,
                       int64_t layer)
{
    uint64_t shape[FSDP_MAX_DIMS];
    char needs[SHAPE_NBYTES];
    const bool has = ckpt_check_model_has(&c->model, row, layer);
    const char *other = row->when & CKPT_IF_HEAD ? c->model.family->other_head : NULL;
    int at = find_weight(c, name);
    if (at < 0 && other)
        at = find_weight(c, other);
    if (at >= 0 && (has || row->when & CKPT_IF_HEAD)) { /* a tied head may be stored, too */
        c->known[at] = true;
        check_shape(c, at, row->dims);
    } else if (has && !(row->when & CKPT_IF_HEAD && has_alias(c, name))) {
        shape_text(needs, shape, shape_of(shape, c, row->dims));
        if (!c->nmissing++)
            snprintf(c->missing, sizeof c->missing, "%s", name);
        add_fault(c, name, NULL, "tensor '%s' of shape %s is missing", name, needs);
    }
}

static void check_row(struct check *c, const struct ckpt_check_row *row, int64_t layer)
{
    char name[CKPT_MAX_NAME_NBYTES], before[128] = "";
    const char *mark = row->when & CKPT_EACH_EXPERT ? strstr(row->name, "%d") : NULL;
    if (layer >= 0)
        snprintf(before, sizeof before, "%s.%lld", c->model.family->layers, (long long)layer);
    for (uint64_t e = 0; e < (mark ? c->model.nexperts : 1); e++) {
        if (mark)
            snprintf(name, sizeof name, "%s%.*s%llu%s", before, (int)(mark - row->name), row->name,
                     (unsigned long long)e, mark + 2);
        else
            snprintf(name, sizeof name, "%s%s", before, row->name);
        check_name(c, name, row, layer);
    }
}

static void check_others(struct check *c)
{
    const char *prefix = c->model.family->prefix;
    for (int i = 0; i < c->nweights; i++) {
        const struct named *w = &c->sorted[i];
        if (c->known[w->tensor] || ckpt_is_derived_buffer(w->name) ||
            (prefix && strncmp(w->name, prefix, strlen(prefix)) != 0))
            continue;
        add_fault(c, w->name, file_of(c, w->tensor),
                  "tensor '%s' in '%s' is not one that a model of type '%s' has", w->name,
                  file_of(c, w->tensor), c->model.family->type);
    }
}

static void check_family(struct check *c)
{
    const struct ckpt_check_family *f = c->model.family;
    for (const struct ckpt_check_row *row = f->outside; row->name; row++)
        check_row(c, row, -1);
    for (uint64_t layer = 0; layer < c->model.sizes.nlayers; layer++)
        for (int i = 0; i < CKPT_CHECK_LISTS && f->inside[i]; i++)
            for (const struct ckpt_check_row *row = f->inside[i]; row->name; row++)
                check_row(c, row, (int64_t)layer);
    check_others(c);
}

/* ---- types ----------------------------------------------------------------------------------- */

static const char *dtype_text(enum fsdp_dtype dtype)
{
    const char *name = ckpt_hf_dtype_name(dtype);
    return name ? name : fsdp_dtype_name(dtype);
}

/* What config.json says; false: nothing. A word that is no type of weights is a fault, and so are
 * two types. */
static bool dtype_said(enum fsdp_dtype *out, const char **key, struct check *c,
                       const json_t *config)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    bool said = false;
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(config, keys[i]);
        const char *text = json_string_value(value);
        struct fsdp_err quiet = FSDP_ERR_INIT;
        enum fsdp_dtype dtype;
        if (!value || json_is_null(value) || (text && !strcmp(text, "auto")))
            continue;
        if (text && !strncmp(text, "torch.", 6))
            text += 6;
        if (!text || fsdp_dtype_parse(&dtype, text, &quiet) || !fsdp_dtype_is_float(dtype)) {
            char *shown = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
            add_fault(c, NULL, "config.json",
                      "config.json says %s %.100s, which is no type of weights (float32, bfloat16, "
                      "float16, ...)",
                      keys[i], shown ? shown : "");
            free(shown);
        } else if (said && dtype != *out) {
            add_fault(c, NULL, "config.json", "config.json says %s '%s', and %s '%s'", *key,
                      dtype_text(*out), keys[i], dtype_text(dtype));
        } else {
            said = true;
            *out = dtype;
            *key = keys[i];
        }
    }
    return said;
}

/* A model of unknown type may keep some tensors in another type, so that they are not judged one by
 * one. judged: else only what config.json itself says. */
static void check_dtypes(struct check *c, const json_t *config, bool judged)
{
    enum fsdp_dtype said = FSDP_F32;
    const char *key;
    int nfloat = 0, nother = 0, first = -1;
    bool alike = true;
    if (!dtype_said(&said, &key, c, config) || !judged)
        return;
    for (int i = 0; i < c->nweights; i++) {
        const enum fsdp_dtype dtype = tensor_at(c, c->sorted[i].tensor)->tensor.dtype;
        if (!fsdp_dtype_is_float(dtype))
            continue;
        nfloat++;
        if (dtype == said)
            continue;
        nother++;
        first = first < 0 ? i : first;
        alike &= dtype == tensor_at(c, c->sorted[first].tensor)->tensor.dtype;
    }
    if (nother && nother == nfloat && alike) {
        const enum fsdp_dtype dtype = tensor_at(c, c->sorted[first].tensor)->tensor.dtype;
        add_fault(c, NULL, "config.json", "config.json says %s '%s'; all %d tensors are %s", key,
                  dtype_text(said), nfloat, dtype_text(dtype));
        return;
    }
    for (int i = 0; nother && c->out->by_family && i < c->nweights; i++) {
        const int at = c->sorted[i].tensor;
        const enum fsdp_dtype dtype = tensor_at(c, at)->tensor.dtype;
        if (fsdp_dtype_is_float(dtype) && dtype != said)
            add_fault(c, c->sorted[i].name, file_of(c, at),
                      "tensor '%s' in '%s' is %s; config.json says %s '%s'", c->sorted[i].name,
                      file_of(c, at), dtype_text(dtype), key, dtype_text(said));
    }
}

/* Of a model that is known and not quantized, whose weights are numbers. */
static void check_integers(struct check *c)
{
    for (int i = 0; i < c->nweights; i++) {
        const int at = c->sorted[i].tensor;
        const enum fsdp_dtype dtype = tensor_at(c, at)->tensor.dtype;
        if (c->known[at] && !fsdp_dtype_is_float(dtype))
            add_fault(c, c->sorted[i].name, file_of(c, at),
                      "tensor '%s' in '%s' is %s, which is no type of weights", c->sorted[i].name,
                      file_of(c, at), fsdp_dtype_name(dtype));
    }
}

/* ---- the files ------------------------------------------------------------------------------- */

/* A JSON file of the folder; *out is NULL where it is not there, or is no object. */
static int json_load(json_t **out, struct check *c, const char *path, const char *name,
                     struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    char *data = NULL;
    size_t nbytes = 0;
    *out = NULL;
    int rc = ckpt_store_get(&data, &nbytes, c->ckpt->store, path, CKPT_MAX_INDEX_NBYTES, &why);
    if (rc == FSDP_ENOTFOUND)
        return FSDP_OK;
    if (rc)
        return fsdp_err_pass(err, rc, &why);
    if (ckpt_json_parse(out, data, nbytes, path, &why)) {
        *out = NULL;
        add_fault(c, NULL, name, "%s", why.text);
    }
    fsdp_free(data);
    return FSDP_OK;
}

/* That which goes along with the weights; of a single file, what lies next to it. */
static int config_load(json_t **out, struct check *c, struct fsdp_err *err)
{
    static const char name[] = "config.json";
    const char *extra = ckpt_extra_path(c->ckpt, name);
    char *path = extra ? fsdp_strdup(extra, err) : ckpt_path_join(c->ckpt->folder, name, err);
    const int rc = path ? json_load(out, c, path, name, err) : FSDP_ENOMEM;
    fsdp_free(path);
    return rc;
}

static uint64_t tensor_nbytes(const struct check *c, int at)
{
    const struct fsdp_tensor *t = &tensor_at(c, at)->tensor;
    return fsdp_tensor_nelem(t) * fsdp_dtype_nbytes(t->dtype);
}

/* Which file holds which tensor was compared when the checkpoint was opened. Old programs count a
 * tensor of two names twice. */
static int check_index(struct check *c, struct fsdp_err *err)
{
    const char *name =
        c->ckpt->format->id == CKPT_TORCH ? CKPT_TORCH_INDEX_NAME : CKPT_HF_INDEX_NAME;
    uint64_t nbytes = 0, nshared = 0;
    json_t *index = NULL;
    char *path = ckpt_path_join(c->ckpt->folder, name, err);
    int rc = path ? json_load(&index, c, path, name, err) : FSDP_ENOMEM;
    const json_t *said = json_object_get(json_object_get(index, "metadata"), "total_size");
    for (int i = 0; i < c->ckpt->m.layout.ntensors; i++)
        nbytes += tensor_nbytes(c, i);
    for (int i = 0, at; i < c->ckpt->m.naliases; i++)
        if ((at = ckpt_layout_find(&c->ckpt->m.layout, c->ckpt->m.aliases[i].target)) >= 0)
            nshared += tensor_nbytes(c, at);
    if (json_is_number(said) && !c->ckpt->npacked && json_number_value(said) != (double)nbytes &&
        json_number_value(said) != (double)(nbytes + nshared))
        add_fault(c, NULL, name, "'%s' says a total_size of %.0f bytes; the tensors have %llu",
                  name, json_number_value(said), (unsigned long long)nbytes);
    json_decref(index);
    fsdp_free(path);
    return rc;
}

static void check_unread(struct check *c)
{
    for (int i = 0; i < c->ckpt->nunread; i++)
        add_fault(c, c->ckpt->unread[i].tensor.tensor.name, NULL, "%s", c->ckpt->unread[i].why);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* A file whose name says that there are others: model-00001-of-00002.safetensors. */
static bool is_part(const struct ckpt *ckpt)
{
    const char *of = strstr(ckpt_path_base(ckpt->path), "-of-");
    return strcmp(ckpt->folder, ckpt->path) != 0 && of && strtoul(of + 4, NULL, 10) > 1;
}

/* The model, if it is known; else out->why says what is not. */
static bool know_model(struct check *c, const json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const struct ckpt_check_family *family = type ? ckpt_check_family_of(type) : NULL;
    char *why = c->out->why, lacks[256];
    if (type)
        snprintf(c->out->family, sizeof c->out->family, "%s", type);
    if (!config) {
        snprintf(why, CKPT_CHECK_WHY,
                 c->out->nmismatches ? "config.json cannot be read" : "there is no config.json");
    } else if (is_part(c->ckpt)) {
        snprintf(why, CKPT_CHECK_WHY, "this is one of several files of a model: name its folder");
    } else if (!type) {
        snprintf(why, CKPT_CHECK_WHY, "config.json has no model_type");
    } else if (!family) {
        snprintf(why, CKPT_CHECK_WHY, "the tensors of model_type '%.64s' are not known", type);
    } else if (json_object_get(config, "quantization_config") && !c->ckpt->npacked) {
        snprintf(why, CKPT_CHECK_WHY, "the model is quantized (quantization_config)");
    } else if (!ckpt_check_model_read(&c->model, lacks, config, family)) {
        snprintf(why, CKPT_CHECK_WHY, "config.json does not describe the model: %s", lacks);
        add_fault(c, NULL, "config.json", "config.json: %s, which a model of type '%s' needs",
                  lacks, family->type);
    } else {
        return true;
    }
    return false;
}

int ckpt_check(struct ckpt_check_result *out, struct ckpt *ckpt, ckpt_mismatch_f *report, void *ctx,
               struct fsdp_err *err)
{
    struct check *c = fsdp_alloc(1, sizeof *c, "check", err);
    json_t *config = NULL;
    if (!c)
        return FSDP_ENOMEM;
    *c = (struct check){.out = out, .ckpt = ckpt, .report = report, .ctx = ctx};
    *out = (struct ckpt_check_result){.nmismatches = 0};
    int rc = ckpt_unpack(ckpt, err);
    if (rc == FSDP_OK)
        rc = list_weights(c, err);
    if (rc == FSDP_OK)
        rc = config_load(&config, c, err);
    if (rc == FSDP_OK) {
        out->ntensors = c->nweights;
        out->ndecoded = ckpt->npacked;
        out->by_family = know_model(c, config);
        if (out->by_family)
            check_family(c);
        /* The types of codes are none that it says. */
        const bool judged = !json_object_get(config, "quantization_config") || ckpt->npacked;
        if (out->by_family && judged)
            check_integers(c);
        if (config)
            check_dtypes(c, config, judged);
        check_unread(c);
        if (rc == FSDP_OK && !is_part(ckpt))
            rc = check_index(c, err);
    }
    json_decref(config);
    fsdp_free(c->sorted);
    fsdp_free(c->known);
    fsdp_free(c);
    return rc;
}

/* ---- what is missing ------------------------------------------------------------------------- */

static void ignore(void *ctx, const struct ckpt_mismatch *mismatch)
{
    (void)ctx;
    (void)mismatch;
}

/* Is it a model with a head for text? Others, such as classifiers, have a model_type, too. */
static bool has_text_head(const json_t *config)
{
    static const char *const ends[] = {"ForCausalLM", "LMHeadModel", "ForConditionalGeneration"};
    const char *name =
        json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    for (size_t i = 0; name && i < sizeof ends / sizeof ends[0]; i++)
        if (fsdp_text_ends(name, ends[i]))
            return true;
    return !name;
}

int ckpt_warn_missing(struct ckpt *ckpt, struct fsdp_err *err)
{
    struct ckpt_check_result result = {.nmismatches = 0};
    struct fsdp_err quiet = FSDP_ERR_INIT;
    struct check *c = fsdp_alloc(1, sizeof *c, "check", err);
    json_t *config = NULL;
    int nknown = 0;
    if (!c)
        return FSDP_ENOMEM;
    *c = (struct check){.out = &result, .ckpt = ckpt, .report = ignore};
    const int rc = list_weights(c, err);
    if (rc == FSDP_OK && config_load(&config, c, &quiet))
        config = NULL; /* whoever needs it says so */
    if (rc == FSDP_OK && has_text_head(config) && know_model(c, config))
        check_family(c);
    for (int i = 0; c->nmissing && i < ckpt->m.layout.ntensors; i++)
        nknown += c->known[i];
    if (nknown) /* else they have names of their own */
        fsdp_log(FSDP_LOG_WARN,
                 "'%s' lacks %d tensor%s that a model of type '%s' has, such as '%s'; is a file "
                 "missing? ckpt-merge --check lists them",
                 ckpt->path, c->nmissing, c->nmissing == 1 ? "" : "s", result.family, c->missing);
    json_decref(config);
    fsdp_free(c->sorted);
    fsdp_free(c->known);
    fsdp_free(c);
    return rc;
}
