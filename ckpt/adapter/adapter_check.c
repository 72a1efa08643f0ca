/* SPDX-License-Identifier: Apache-2.0 */
/* Does an adapter fit the model that it is added to, and has it values? */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "merge.h"
#include "source/source.h"

enum { NAME_NBYTES = 1024 };
#define WEIGHT ".weight"

/* ---- values ---------------------------------------------------------------------------------- */

static int check_finite(void *ctx, uint64_t pos, const void *src, size_t nbytes,
                        struct fsdp_err *err)
{
    const struct ckpt_tensor *t = ctx;
    float x;

    (void)pos;
    for (size_t at = 0; at < nbytes; at += sizeof x) {
        memcpy(&x, (const char *)src + at, sizeof x);
        if (!isfinite(x))
            return fsdp_err_set(err, FSDP_EINVAL, "tensor '%s' holds %g, which is not finite",
                                t->tensor.name, x);
    }
    return FSDP_OK;
}

int ckpt_adapter_check_values(struct ckpt_adapter *adapter, struct fsdp_err *err)
{
    struct ckpt *ckpt = ckpt_adapter_ckpt(adapter);

    for (int i = 0; i < ckpt_ntensors(ckpt); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(ckpt, i);
        struct fsdp_slice slice = {.tensor = t->tensor, .nreplica = 1};
        const struct fsdp_slice_io io = {.ctx = (void *)(uintptr_t)t, .write = check_finite};
        if (!fsdp_dtype_is_float(t->tensor.dtype))
            continue;
        slice.tensor.dtype = FSDP_F32;
        for (int d = 0; d < t->tensor.ndim; d++)
            slice.box.length[d] = t->tensor.shape[d];
        const int rc = ckpt_read_slice(ckpt, &slice, &io, err);
        if (rc)
            return fsdp_err_prefix(err, rc, "%s: ", ckpt_path(ckpt));
    }
    return FSDP_OK;
}

/* ---- the model's own tensors ----------------------------------------------------------------- */

bool ckpt_adapter_is_base(char *weight, size_t weight_nbytes, const char *name)
{
    static const char end[] = ".base_layer" WEIGHT;
    const size_t prefix = strlen(CKPT_ADAPTER_PREFIX), suffix = sizeof end - 1, n = strlen(name);

    if (n <= prefix + suffix || strncmp(name, CKPT_ADAPTER_PREFIX, prefix) ||
        strcmp(name + n - suffix, end))
        return false;
    snprintf(weight, weight_nbytes, "%.*s" WEIGHT, (int)(n - prefix - suffix), name + prefix);
    return true;
}

/* Two rows of the same tensor, in the type that the model has it in. */
struct rows {
    void *own, *model;
    size_t nbytes;
};

static int compare_rows(bool *same, const struct rows *rows, struct ckpt_adapter *adapter,
                        struct ckpt *model, const struct ckpt_tensor *const both[2],
                        struct fsdp_err *err)
{
    struct fsdp_box box = {.length = {1, both[0]->tensor.shape[1]}};
    const enum fsdp_dtype dtype = both[1]->tensor.dtype;
    struct ckpt *own = ckpt_adapter_ckpt(adapter);

    for (; *same && box.offset[0] < both[0]->tensor.shape[0]; box.offset[0]++) {
        FSDP_TRY(ckpt_merged_read(rows->own, own, &both[0]->tensor, &box, dtype, err));
        FSDP_TRY(ckpt_merged_read(rows->model, model, &both[1]->tensor, &box, dtype, err));
        *same = !memcmp(rows->own, rows->model, rows->nbytes);
    }
    return FSDP_OK;
}

static bool is_alike(const struct fsdp_tensor *a, const struct fsdp_tensor *b)
{
    return a->ndim == 2 && b->ndim == 2 && a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1];
}

static int check_own(struct ckpt_adapter *adapter, struct ckpt *model,
                     const struct ckpt_tensor *own, const char *weight, struct fsdp_err *err)
{
    const struct ckpt_tensor *theirs = ckpt_adapter_find_stored(model, weight);
    const struct ckpt_tensor *const both[] = {own, theirs};
    bool same = theirs && is_alike(&own->tensor, &theirs->tensor);
    const size_t nelem = same ? (size_t)own->tensor.shape[1] : 0;
    const size_t elem = same ? fsdp_dtype_nbytes(theirs->tensor.dtype) : 1;
    const struct rows rows = {fsdp_alloc(nelem, elem, "row", err),
                              fsdp_alloc(nelem, elem, "row", err), nelem * elem};
    int rc = rows.own && rows.model ? FSDP_OK : FSDP_ENOMEM;

    if (rc == FSDP_OK && same)
        rc = compare_rows(&same, &rows, adapter, model, both, err);
    fsdp_free(rows.own);
    fsdp_free(rows.model);
    if (rc || same)
        return rc;
    return fsdp_err_set(err, FSDP_EMISMATCH,
                        "%s: '%s' is not %s of %s: its adapter was trained on "
                        "another model",
                        ckpt_path(ckpt_adapter_ckpt(adapter)), own->tensor.name, weight,
                        ckpt_path(model));
}

int ckpt_adapter_check_base(struct ckpt_adapter *adapter, struct ckpt *model, struct fsdp_err *err)
{
    const struct ckpt *own = ckpt_adapter_ckpt(adapter);
    char weight[NAME_NBYTES];

    for (int i = 0; i < ckpt_ntensors(own); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(own, i);
        if (ckpt_adapter_is_base(weight, sizeof weight, t->tensor.name))
            FSDP_TRY(check_own(adapter, model, t, weight, err));
    }
    return FSDP_OK;
}

/* ---- what belongs to what -------------------------------------------------------------------- */

static int refuse_weight(const struct ckpt_merged *m, const struct ckpt *model, const char *name,
                         const char *why, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EMISMATCH, "adapter %s does not belong to %s: %s %s", m->path,
                        ckpt_path(model), name, why);
}

/* The model's tensor that is merged under this name; NULL: there is none. Merging goes by tensors'
 * own names: to the other name of a tied tensor, or one with its containers, nothing is added. */
static const struct ckpt_tensor *find_weight(const struct ckpt *model, const char *weight)
{
    const struct ckpt_tensor *w = ckpt_tensor_find(model, weight);
    char stored[NAME_NBYTES];

    if (!w && ckpt_adapter_stored_name(stored, sizeof stored, weight)) {
        w = ckpt_tensor_find(model, stored);
        weight = stored;
    }
    return w && !strcmp(ckpt_own_name(w), weight) ? w : NULL;
}

static int refuse_absent(const struct ckpt_merged *m, const struct ckpt *model, const char *weight,
                         struct fsdp_err *err)
{
    const struct ckpt_tensor *tied = ckpt_tensor_find(model, weight);
    char why[NAME_NBYTES + 64];

    if (!tied)
        return refuse_weight(m, model, weight, "is not in the model", err);
    snprintf(why, sizeof why, "is not in the model but as another name of %.*s", NAME_NBYTES,
             tied->tensor.name);
    return refuse_weight(m, model, weight, why, err);
}

static bool is_matrix(const struct ckpt_tensor *t, uint64_t rows, uint64_t cols)
{
    return t && t->tensor.ndim == 2 && (!rows || t->tensor.shape[0] == rows) &&
           (!cols || t->tensor.shape[1] == cols);
}

/* DoRA's, which belong to the adapter; t NULL: it has none. */
static int check_magnitudes(const struct ckpt_merged *m, const struct ckpt *model,
                            const char *weight, const struct ckpt_tensor *t, bool alone,
                            struct fsdp_err *err)
{
    const struct ckpt_adapter_spec *spec = ckpt_adapter_spec(m->adapter);
    const uint64_t *shape = find_weight(model, weight)->tensor.shape;

    if (!t && !spec->dora)
        return FSDP_OK;
    if (!t || !spec->dora)
        return fsdp_err_set(err, FSDP_EMISMATCH, "%s: use_dora is %s, and of %s there is %s",
                            ckpt_path(ckpt_adapter_ckpt(m->adapter)), spec->dora ? "true" : "false",
                            weight, t ? "a lora_magnitude_vector" : "no lora_magnitude_vector");
    if (t->tensor.ndim != 1 || t->tensor.shape[0] != shape[spec->transposed ? 1 : 0])
        return refuse_weight(m, model, weight,
                             "has another shape there than lora_magnitude_vector fits", err);
    if (alone && m->weight == 1)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                        "adapter %s: it scales %s (DoRA): it can be added to no other adapter and "
                        "has no weight; merge this adapter alone",
                        m->path, weight);
}

/* A and B of a weight fit it, which may be of one expert or of all. */
static bool fits_weight(const struct ckpt_low *low, const struct ckpt_tensor *w)
{
    const uint64_t r = (uint64_t)low->rank.r;
    const bool all = w->tensor.ndim == 3;
    const uint64_t *shape = w->tensor.shape + all;
    const uint64_t nin = shape[low->across ? 0 : 1], nout = shape[low->across ? 1 : 0];

    return low->experts && (!all || w->tensor.shape[0] == low->experts) &&
           is_matrix(low->a, low->experts * r, nin) &&
           is_matrix(low->b, nout * low->nparts, low->experts * r);
}

static int check_pair(const struct ckpt_merged *m, const struct ckpt *model, const char *weight,
                      const struct ckpt_low *low, struct fsdp_err *err)
{
    if (!low->a || !low->b)
        return fsdp_err_set(err, FSDP_EMISMATCH, "%s: has lora_%c of %s, and no lora_%c",
                            ckpt_path(ckpt_adapter_ckpt(m->adapter)), low->a ? 'A' : 'B', weight,
                            low->a ? 'B' : 'A');
    if (!isfinite((float)low->rank.scale))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: the adapter of %s is times %g, which leaves no finite values",
                            ckpt_path(ckpt_adapter_ckpt(m->adapter)), weight, low->rank.scale);
    return fits_weight(low, find_weight(model, weight))
               ? FSDP_OK
               : refuse_weight(m, model, weight,
                               "has another shape there than lora_A and lora_B fit", err);
}

static int check_low(const struct ckpt_merged *m, const struct ckpt *model, const char *weight,
                     bool alone, struct fsdp_err *err)
{
    const struct ckpt_tensor *w = find_weight(model, weight);
    struct ckpt_low low;

    if (!w)
        return refuse_absent(m, model, weight, err);
    if (!is_matrix(w, 0, 0))
        return refuse_weight(m, model, weight, "is no matrix in the model", err);
    ckpt_merged_low(&low, m, weight);
    FSDP_TRY(check_pair(m, model, weight, &low, err));
    return check_magnitudes(m, model, weight, ckpt_merged_part(m, weight, "lora_magnitude_vector"),
                            alone, err);
}

/* The weights that files of way i have of a module of experts; *any: there are some. */
static int check_stored(bool *any, const struct ckpt_merged *m, const struct ckpt *model,
                        const char *module, int i, struct fsdp_err *err)
{
    const struct ckpt_adapter_spec *spec = ckpt_adapter_spec(m->adapter);
    char weight[2 * NAME_NBYTES];
    bool apart;
    struct ckpt_low low = {.experts = 1};
    uint64_t e = 0;

    for (; e < low.experts; e++) {
        if (!ckpt_expert_weight(weight, sizeof weight, &apart, i, e, spec, module))
            return FSDP_OK;
        const struct ckpt_tensor *w = find_weight(model, weight);
        if (!w && !e)
            return FSDP_OK;
        if (!w)
            return refuse_absent(m, model, weight, err);
        *any = true;
        ckpt_merged_low(&low, m, weight);
        if (w->tensor.ndim != (apart ? 2 : 3))
            return refuse_weight(m, model, weight, "is no matrix of experts in the model", err);
        FSDP_TRY(check_pair(m, model, weight, &low, err));
        if (!apart)
            return FSDP_OK;
    }
    ckpt_expert_weight(weight, sizeof weight, &apart, i, e, spec, module);
    return find_weight(model, weight)
               ? refuse_weight(m, model, weight, "is of an expert that the adapter has not", err)
               : FSDP_OK;
}

static int check_experts(const struct ckpt_merged *m, const struct ckpt *model, const char *module,
                         struct fsdp_err *err)
{
    bool any = false;

    for (int i = 0; i < ckpt_expert_nstored(); i++)
        FSDP_TRY(check_stored(&any, m, model, module, i, err));
    return any ? FSDP_OK : refuse_weight(m, model, module, "has no weights in the model", err);
}

static int check_whole(const struct ckpt_merged *m, const struct ckpt *model,
                       const struct ckpt_tensor *own, bool alone, struct fsdp_err *err)
{
    const char *weight = own->tensor.name + strlen(CKPT_ADAPTER_PREFIX);
    const struct ckpt_tensor *w = find_weight(model, weight);

    if (!w)
        return refuse_absent(m, model, weight, err);
    if (w->tensor.ndim != own->tensor.ndim ||
        memcmp(w->tensor.shape, own->tensor.shape,
               sizeof *w->tensor.shape * (size_t)w->tensor.ndim))
        return refuse_weight(m, model, weight, "has another shape there", err);
    if (ckpt_merged_part(m, weight, "lora_A.weight"))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "adapter %s: %s was trained whole (modules_to_save) and has an "
                            "adapter, too, which is not supported",
                            m->path, weight);
    if (alone && m->weight == 1)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                        "adapter %s: %s was trained whole (modules_to_save), and takes the place "
                        "of the model's: it can be added to no other adapter and has no weight; "
                        "merge this adapter alone",
                        m->path, weight);
}

static int check_tensor(const struct ckpt_merged *m, const struct ckpt *model,
                        const struct ckpt_tensor *own, bool alone, struct fsdp_err *err)
{
    static const char *const parts[] = {".lora_A.weight", ".lora_B.weight",
                                        ".lora_magnitude_vector"};
    const char *name = own->tensor.name + strlen(CKPT_ADAPTER_PREFIX);
    const size_t n = strlen(name);
    char weight[NAME_NBYTES];

    if (ckpt_adapter_is_base(weight, sizeof weight, own->tensor.name))
        return FSDP_OK; /* compared by ckpt_adapter_check_base */
    for (int i = 0; i < 3; i++) {
        const size_t suffix = strlen(parts[i]);
        if (n <= suffix || strcmp(name + n - suffix, parts[i]))
            continue;
        if (ckpt_adapter_is_expert(ckpt_adapter_spec(m->adapter), name, n - suffix)) {
            snprintf(weight, sizeof weight, "%.*s", (int)(n - suffix), name);
            return check_experts(m, model, weight, err);
        }
        snprintf(weight, sizeof weight, "%.*s" WEIGHT, (int)(n - suffix), name);
        return check_low(m, model, weight, alone, err);
    }
    return check_whole(m, model, own, alone, err);
}

int ckpt_adapters_check(struct ckpt_adapters *a, struct ckpt *model, struct fsdp_err *err)
{
    a->model = model;
    for (int i = 0; i < a->count; i++) {
        const struct ckpt *own = ckpt_adapter_ckpt(a->all[i].adapter);
        FSDP_TRY(ckpt_adapter_check_values(a->all[i].adapter, err));
        FSDP_TRY(ckpt_adapter_check_base(a->all[i].adapter, model, err));
        for (int t = 0; t < ckpt_ntensors(own); t++)
            FSDP_TRY(check_tensor(&a->all[i], model, ckpt_tensor_at(own, t), a->count == 1, err));
        ckpt_adapter_warn_base(a->all[i].adapter, model);
    }
    return FSDP_OK;
}

bool ckpt_holds_adapters(const struct ckpt *ckpt)
{
    const bool configured = ckpt_extra_path(ckpt, CKPT_ADAPTER_CONFIG) != NULL;
    bool low = false;
    size_t nbytes;

    for (int i = 0; configured && !low && i < ckpt_ntensors(ckpt); i++)
        low = ckpt_adapter_target(&nbytes, ckpt_tensor_at(ckpt, i)->tensor.name) != NULL;
    return low;
}
