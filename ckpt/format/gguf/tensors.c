/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensors.h"
#include "util/limits.h"
#include "util/text.h"
#include "util/family.h"

/* ---- inputs by name -------------------------------------------------------------------------- */

struct by_name {
    const char *name;
    int index;
    bool used;
};

struct lister {
    struct ckpt_gguf *out;
    const struct gguf_model *model;
    const struct ckpt_gguf_args *args;
    struct by_name *sorted; /* [args->ninputs] */
    size_t max_tensors, max_parts;
    struct fsdp_err *err;
};

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct by_name *)a)->name, ((const struct by_name *)b)->name);
}

static struct by_name *find(const struct lister *l, const char *name)
{
    const struct by_name key = {name, 0, false};
    return bsearch(&key, l->sorted, (size_t)l->args->ninputs, sizeof key, compare_names);
}

/* GPT-2's own files have no "transformer." before their names. */
static struct by_name *find_any(const struct lister *l, const char *name)
{
    static const char prefix[] = "transformer.";
    struct by_name *found = find(l, name);
    if (!found && !strncmp(name, prefix, sizeof prefix - 1))
        found = find(l, name + sizeof prefix - 1);
    return found;
}

/* ---- adding ---------------------------------------------------------------------------------- */

static struct ckpt_gguf_tensor *add_tensor(struct lister *l, const char *name)
{
    struct ckpt_gguf *out = l->out;
    struct ckpt_gguf_tensor *grown =
        fsdp_alloc_grow(out->tensors, (size_t)out->ntensors, &l->max_tensors, sizeof *grown,
                        "GGUF tensors", l->err);
    if (!grown)
        return NULL;
    out->tensors = grown;
    struct ckpt_gguf_tensor *t = &out->tensors[out->ntensors];
    *t = (struct ckpt_gguf_tensor){.name = fsdp_strdup(name, l->err), .first_part = out->nparts};
    if (!t->name)
        return NULL;
    out->ntensors++;
    return t;
}

static int add_part(struct lister *l, struct ckpt_gguf_tensor *t, const struct ckpt_gguf_part *part)
{
    struct ckpt_gguf *out = l->out;
    struct ckpt_gguf_part *grown = fsdp_alloc_grow(out->parts, (size_t)out->nparts, &l->max_parts,
                                                   sizeof *grown, "GGUF parts", l->err);
    if (!grown)
        return FSDP_ENOMEM;
    out->parts = grown;
    out->parts[out->nparts++] = *part;
    t->nparts++;
    return FSDP_OK;
}

static int refuse_shape(const struct lister *l, const struct fsdp_tensor *input, const char *what)
{
    struct ckpt_text shape = {0};
    ckpt_text_dims(&shape, input->shape, input->ndim);
    const int rc =
        fsdp_err_set(l->err, FSDP_EINVAL,
                     "tensor '%s' of shape %s is not %s: does '%s' belong to these "
                     "weights?",
                     input->name, shape.data ? shape.data : "", what, l->model->config->path);
    ckpt_text_free(&shape);
    return rc;
}

/* ---- the ways that a tensor goes ------------------------------------------------------------- */

static int take_heads(struct lister *l, struct ckpt_gguf_tensor *t, int input, uint64_t nheads)
{
    const struct fsdp_tensor *from = &l->args->inputs[input];
    if (from->shape[0] != nheads * l->model->head_dim || l->model->head_dim % 2)
        return refuse_shape(l, from, "rows of heads as config.json has them");
    const struct ckpt_gguf_part part = {.input = input,
                                        .nrows = from->shape[0],
                                        .order = CKPT_GGUF_PAIRS,
                                        .group = (uint32_t)l->model->head_dim};
    return add_part(l, t, &part);
}

/* Of each head q, k and v: all of q, then of k, then of v. */
static int take_fused_heads(struct lister *l, struct ckpt_gguf_tensor *t, int input)
{
    const struct fsdp_tensor *from = &l->args->inputs[input];
    const uint64_t nheads = l->model->nheads, dim = l->model->head_dim;
    if (from->shape[0] != 3 * nheads * dim)
        return refuse_shape(l, from, "rows of heads as config.json has them");
    for (uint64_t kind = 0; kind < 3; kind++)
        for (uint64_t head = 0; head < nheads; head++) {
            const struct ckpt_gguf_part part = {
                .input = input, .src_row = (3 * head + kind) * dim, .nrows = dim};
            FSDP_TRY(add_part(l, t, &part));
        }
    return FSDP_OK;
}

static int take_transposed(struct lister *l, struct ckpt_gguf_tensor *t, int input)
{
    const uint64_t nrows = t->dims[1];
    const struct ckpt_gguf_part part = {.input = input, .nrows = nrows, .order = CKPT_GGUF_COLUMNS};
    t->dims[1] = t->dims[0];
    t->dims[0] = nrows;
    return add_part(l, t, &part);
}

/* Half of the rows, or of those of each expert. */
static int take_half(struct lister *l, struct ckpt_gguf_tensor *t, int input, bool last)
{
    const struct fsdp_tensor *from = &l->args->inputs[input];
    const bool slabs = from->ndim == 3;
    if (from->ndim < 2 || from->shape[slabs] % 2)
        return refuse_shape(l, from, "of rows of gate and up");
    const uint64_t nrows = from->shape[slabs] / 2;
    t->dims[slabs] = nrows;
    for (uint64_t e = 0; e < (slabs ? from->shape[0] : 1); e++) {
        const struct ckpt_gguf_part part = {.input = input,
                                            .src_row = last ? nrows : 0,
                                            .nrows = nrows,
                                            .in_slab = slabs,
                                            .slab = e};
        FSDP_TRY(add_part(l, t, &part));
    }
    return FSDP_OK;
}

/* (experts, in, out) or (experts, out): of out all, or each second, from the first or the second
 * on. Of the former each expert is transposed. */
static int take_every(struct lister *l, struct ckpt_gguf_tensor *t, int input, unsigned how)
{
    const struct fsdp_tensor *from = &l->args->inputs[input];
    const bool second = how & (GGUF_EVEN | GGUF_ODD);
    if (from->ndim < 2 || from->ndim > 3 || (second && from->shape[from->ndim - 1] % 2))
        return refuse_shape(l, from, "of experts with columns of gate and up");
    const uint64_t nrows = from->shape[from->ndim - 1] / (second ? 2 : 1);
    t->dims[1] = nrows;
    if (from->ndim == 3)
        t->dims[2] = from->shape[1];
    for (uint64_t e = 0; e < from->shape[0]; e++) {
        const struct ckpt_gguf_part part = {.input = input,
                                            .src_row = how & GGUF_ODD ? 1 : 0,
                                            .nrows = nrows,
                                            .order = from->ndim == 3 ? CKPT_GGUF_COLUMNS
                                                                     : CKPT_GGUF_SAME,
                                            .skip = second,
                                            .in_slab = true,
                                            .slab = e};
        FSDP_TRY(add_part(l, t, &part));
    }
    return FSDP_OK;
}

/* Of three dimensions, slab by slab; else all rows. */
static int take_all(struct lister *l, struct ckpt_gguf_tensor *t, int input)
{
    const struct fsdp_tensor *from = &l->args->inputs[input];
    const bool slabs = from->ndim == 3;
    for (uint64_t e = 0; e < (slabs ? from->shape[0] : 1); e++) {
        const struct ckpt_gguf_part part = {
            .input = input, .nrows = from->shape[slabs], .in_slab = slabs, .slab = e};
        FSDP_TRY(add_part(l, t, &part));
    }
    return FSDP_OK;
}

static int take(struct lister *l, struct by_name *found, const char *to, unsigned how)
{
    const struct fsdp_tensor *from = &l->args->inputs[found->index];
    const struct gguf_model *model = l->model;
    struct ckpt_gguf_tensor *t = add_tensor(l, to);
    if (!t)
        return FSDP_ENOMEM;
    found->used = true;
    if (!fsdp_dtype_is_float(from->dtype))
        return fsdp_err_set(l->err, FSDP_EUNSUPPORTED,
                            "tensor '%s' is %s, not of a floating type, and cannot become a tensor "
                            "of a GGUF file",
                            from->name, fsdp_dtype_name(from->dtype));
    if (from->ndim < 1 || from->ndim > 3 || !fsdp_tensor_nelem(from))
        return refuse_shape(l, from, "of one to three dimensions with elements");
    t->ndim = from->ndim;
    memcpy(t->dims, from->shape, sizeof t->dims[0] * (size_t)from->ndim);
    t->offset = how & GGUF_NORM ? model->family->norm_offset : 0;
    if (how & (GGUF_QUERY | GGUF_KEY))
        return take_heads(l, t, found->index, how & GGUF_QUERY ? model->nheads : model->nkv_heads);
    if (how & GGUF_HEADS)
        return take_fused_heads(l, t, found->index);
    if (how & GGUF_TRANSPOSED && from->ndim == 2)
        return take_transposed(l, t, found->index);
    if (how & (GGUF_FIRST_HALF | GGUF_LAST_HALF))
        return take_half(l, t, found->index, how & GGUF_LAST_HALF);
    if (how & (GGUF_EVEN | GGUF_ODD | GGUF_ALL))
        return take_every(l, t, found->index, how);
    return take_all(l, t, found->index);
}

/* ---- one name -------------------------------------------------------------------------------- */

static int refuse_missing(const struct lister *l, const char *name)
{
    return fsdp_err_set(l->err, FSDP_ENOTFOUND,
                        "'%s' has no tensor '%s', which the model of '%s' needs",
                        l->args->ckpt->path, name, l->model->config->path);
}

/* All experts of a layer, one after the other. */
static int take_experts(struct lister *l, const char *before, const char *from, const char *to)
{
    struct ckpt_gguf_tensor *t = add_tensor(l, to);
    const struct fsdp_tensor *first = NULL;
    char name[CKPT_MAX_NAME_NBYTES];
    if (!t)
        return FSDP_ENOMEM;
    for (uint64_t e = 0; e < l->model->nexperts; e++) {
        const char *mark = strstr(from, "%d");
        snprintf(name, sizeof name, "%s%.*s%llu%s.weight", before, (int)(mark - from), from,
                 (unsigned long long)e, mark + 2);
        struct by_name *found = find(l, name);
        if (!found)
            return refuse_missing(l, name);
        const struct fsdp_tensor *input = &l->args->inputs[found->index];
        first = first ? first : input;
        if (input->ndim != 2 || memcmp(input->shape, first->shape, 2 * sizeof *input->shape))
            return refuse_shape(l, input, "of the shape of the other experts'");
        if (!fsdp_dtype_is_float(input->dtype))
            return refuse_shape(l, input, "of a floating type");
        found->used = true;
        t->ndim = 3;
        t->dims[0] = l->model->nexperts;
        t->dims[1] = input->shape[0];
        t->dims[2] = input->shape[1];
        const struct ckpt_gguf_part part = {.input = found->index, .nrows = input->shape[0]};
        FSDP_TRY(add_part(l, t, &part));
    }
    return FSDP_OK;
}

/* A row of the table, for what lies outside of layers or for one of them. */
static int take_name(struct lister *l, const struct gguf_name *row, const char *before,
                     const char *before_to)
{
    static const char *const ends[] = {".weight", ".bias"};
    char from[CKPT_MAX_NAME_NBYTES], to[128];
    if (row->how & GGUF_EXPERTS) {
        snprintf(to, sizeof to, "%s%s.weight", before_to, row->to);
        return take_experts(l, before, row->from, to);
    }
    const int nends = row->how & GGUF_BIAS ? 2 : 1;
    for (int i = 0; i < nends; i++) {
        const char *end = row->how & GGUF_BARE ? "" : ends[i];
        snprintf(from, sizeof from, "%s%s%s", before, row->from, end);
        snprintf(to, sizeof to, "%s%s%s", before_to, row->to, end);
        struct by_name *found = find_any(l, from);
        if (found)
            FSDP_TRY(take(l, found, to, row->how));
        else if (i == 0 && !(row->how & GGUF_OPTIONAL))
            return refuse_missing(l, from);
    }
    return FSDP_OK;
}

static int take_layer(struct lister *l, uint64_t layer)
{
    char before[64], before_to[32];
    const struct gguf_family *family = l->model->family;
    snprintf(before, sizeof before, "%s.%llu", family->layers, (unsigned long long)layer);
    snprintf(before_to, sizeof before_to, "blk.%llu.", (unsigned long long)layer);
    for (int i = 0; i < GGUF_MAX_LISTS && family->inside[i]; i++)
        for (const struct gguf_name *row = family->inside[i]; row->from; row++)
            FSDP_TRY(take_name(l, row, before, before_to));
    return FSDP_OK;
}

/* ---- the head -------------------------------------------------------------------------------- */

static bool has_alias(const struct lister *l, const char *name)
{
    for (int i = 0; i < l->args->naliases; i++)
        if (!strcmp(l->args->aliases[i], name))
            return true;
    return false;
}

/* llama.cpp takes the embedding where there is no output.weight. */
static int take_head(struct lister *l, const struct gguf_name *row)
{
    char name[64];
    snprintf(name, sizeof name, "%s.weight", row->from);
    struct by_name *found = find(l, name);
    if (!found) /* the name of all others, which some programs give this one, too */
        found = find(l, "lm_head.weight");
    const bool tied = l->model->tied || (!found && has_alias(l, name));
    if (!tied && l->model->family->only_tied)
        return gguf_refuse(l->model->config, "tie_word_embeddings", l->err,
                           "is false, and llama.cpp's '%s' takes the embedding for the head",
                           l->model->family->arch);
    if (found)
        found->used = true;
    if (found && tied) {
        l->out->embedding = l->out->parts[0].input;
        l->out->tied_head = found->index;
    }
    if (!tied && !found)
        return refuse_missing(l, name);
    if (tied && !l->model->family->copies_tied)
        return FSDP_OK;
    if (tied) {
        snprintf(name, sizeof name, "%s.weight", l->model->family->outside[0].from);
        found = find(l, name);
    }
    return found ? take(l, found, "output.weight", 0) : refuse_missing(l, name);
}

/* ---- all ------------------------------------------------------------------------------------- */

static int check_used(const struct lister *l)
{
    for (int i = 0; i < l->args->ninputs; i++)
        if (!l->sorted[i].used && !ckpt_is_derived_buffer(l->sorted[i].name))
            return fsdp_err_set(l->err, FSDP_EUNSUPPORTED,
                                "tensor '%s' has no place in GGUF's architecture '%s' (--exclude "
                                "it to go without)",
                                l->sorted[i].name, l->model->family->arch);
    return FSDP_OK;
}

static int take_everything(struct lister *l)
{
    const struct gguf_name *outside = l->model->family->outside;
    for (const struct gguf_name *row = outside; row->from; row++)
        FSDP_TRY(!strcmp(row->to, "output") ? take_head(l, row) : take_name(l, row, "", ""));
    if (l->out->tensors[0].dims[1] != l->model->dim)
        return refuse_shape(l, &l->args->inputs[l->out->parts[0].input],
                            "an embedding of the width in config.json");
    for (uint64_t layer = 0; layer < l->model->nlayers; layer++)
        FSDP_TRY(take_layer(l, layer));
    return check_used(l);
}

/* Those of images are left out. */
static void list_names(const struct lister *l)
{
    const char *prefix = l->model->config->prefix;
    const size_t nbytes = strlen(prefix);
    int nothers = 0;
    for (int i = 0; i < l->args->ninputs; i++) {
        const char *name = l->args->inputs[i].name;
        const bool other = strncmp(name, prefix, nbytes) != 0;
        l->sorted[i] = (struct by_name){other ? name : name + nbytes, i, other};
        nothers += other;
    }
    if (nothers)
        fsdp_log(FSDP_LOG_WARN,
                 "'%s': the file holds the text model alone; %d tensors of images are left out",
                 l->args->ckpt->path, nothers);
}

int gguf_tensors_list(struct ckpt_gguf *out, const struct gguf_model *model,
                      const struct ckpt_gguf_args *args, struct fsdp_err *err)
{
    struct lister l = {.out = out, .model = model, .args = args, .err = err};
    l.sorted = fsdp_alloc((size_t)args->ninputs, sizeof *l.sorted, "GGUF names", err);
    if (!l.sorted)
        return FSDP_ENOMEM;
    list_names(&l);
    qsort(l.sorted, (size_t)args->ninputs, sizeof *l.sorted, compare_names);
    const int rc = take_everything(&l);
    fsdp_free(l.sorted);
    return rc;
}
