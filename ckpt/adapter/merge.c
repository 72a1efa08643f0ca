/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters into the weights that they belong to: W + scale B A, or its transpose where the model's
 * matrices are (in, out). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "merge.h"
#include "source/source.h"
#include "util/convert.h"

/* ---- opening --------------------------------------------------------------------------------- */

int ckpt_adapters_open(struct ckpt_adapters **out, const char *const *paths, int npaths,
                       struct fsdp_err *err)
{
    struct ckpt_adapters *a = fsdp_alloc(1, sizeof *a, "adapters", err);
    int rc = a ? FSDP_OK : FSDP_ENOMEM;

    if (rc == FSDP_OK)
        pthread_mutex_init(&a->lengths.lock, NULL);
    if (rc == FSDP_OK && !(a->all = fsdp_alloc((size_t)npaths, sizeof *a->all, "adapters", err)))
        rc = FSDP_ENOMEM;
    for (int i = 0; rc == FSDP_OK && i < npaths; i++) {
        a->count++;
        rc = ckpt_weighted_parse(&a->all[i].path, &a->all[i].weight, paths[i], "adapter", err);
        if (rc == FSDP_OK)
            rc = ckpt_adapter_open(&a->all[i].adapter, a->all[i].path, err);
    }
    if (rc) {
        ckpt_adapters_close(a);
        return rc;
    }
    *out = a;
    return FSDP_OK;
}

void ckpt_adapters_close(struct ckpt_adapters *a)
{
    for (int i = 0; a && i < a->count; i++) {
        ckpt_adapter_close(a->all[i].adapter);
        fsdp_free(a->all[i].path);
    }
    if (a) {
        fsdp_free(a->all);
        ckpt_lengths_free(&a->lengths);
    }
    fsdp_free(a);
}

bool ckpt_adapters_scale(const struct ckpt_adapters *a)
{
    bool scale = false;
    for (int i = 0; i < a->count; i++)
        scale |= ckpt_adapter_spec(a->all[i].adapter)->dora;
    return scale;
}

bool ckpt_adapters_change(const struct ckpt_adapters *a, const char *weight)
{
    struct ckpt_low low;

    for (int i = 0; a && i < a->count; i++)
        if (ckpt_adapter_tensor(a->all[i].adapter, weight) ||
            ckpt_merged_low(&low, &a->all[i], weight))
            return true;
    return false;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* values[n] of dtype += change[n], times scale[i * step] where that is there, rounded once, as PEFT
 * does; change is lost. Returns whether all that was finite is. */
static bool add_change(void *values, enum fsdp_dtype dtype, float *change, float *wide, size_t n,
                       const float *scale, size_t step)
{
    bool finite = true;

    ckpt_convert(wide, FSDP_F32, values, dtype, n);
    for (size_t i = 0; i < n; i++)
        change[i] = scale ? scale[i * step] * (wide[i] + change[i]) : wide[i] + change[i];
    ckpt_convert(values, dtype, change, FSDP_F32, n);
    ckpt_convert(change, FSDP_F32, values, dtype, n);
    for (size_t i = 0; i < n; i++)
        finite &= isfinite(change[i]) || !isfinite(wide[i]);
    return finite;
}

/* A matrix: a weight, or that of one expert in a weight of all. */
struct matrix {
    struct fsdp_tensor tensor;
    uint64_t expert;
};

/* The factors of all adapters of a matrix; *count: how many there are. */
static int read_all(struct ckpt_factors *all, int *count, const struct ckpt_adapters *a,
                    const struct matrix *x, const struct fsdp_box *box, struct fsdp_err *err)
{
    struct ckpt_low low;

    *count = 0;
    for (int i = 0; i < a->count; i++) {
        if (!ckpt_merged_low(&low, &a->all[i], x->tensor.name))
            continue;
        if (low.expert == CKPT_ALL_EXPERTS)
            low.expert = x->expert;
        FSDP_TRY(
            ckpt_factors_read(&all[(*count)++], &a->all[i], &low, box, x->tensor.shape[1], err));
    }
    return FSDP_OK;
}

/* What changes a box, and what is computed with. */
struct change {
    struct ckpt_factors *all;
    int count;
    struct ckpt_scales scales;
    float *rows; /* two of the box's width */
};

static void change_free(struct change *c)
{
    for (int i = 0; i < c->count; i++)
        ckpt_factors_free(&c->all[i]);
    fsdp_free(c->all);
    fsdp_free(c->scales.scale);
    fsdp_free(c->rows);
}

static int change_read(struct change *c, struct ckpt_adapters *a, const struct matrix *x,
                       const struct fsdp_box *box, struct fsdp_err *err)
{
    c->rows = fsdp_alloc(2 * (size_t)box->length[1], sizeof *c->rows, "rows of a weight", err);
    c->all = fsdp_alloc((size_t)a->count, sizeof *c->all, "adapters", err);
    if (!c->rows || !c->all)
        return FSDP_ENOMEM;
    FSDP_TRY(read_all(c->all, &c->count, a, x, box, err));
    return c->count ? ckpt_scales_read(&c->scales, a, &x->tensor, box, err) : FSDP_OK;
}

/* A box with several rows has whole ones. */
static int add_low(struct ckpt_adapters *a, const struct matrix *x, const struct fsdp_box *box,
                   char *values, struct fsdp_err *err)
{
    const struct fsdp_tensor *weight = &x->tensor;
    const size_t n = (size_t)box->length[1], elem = fsdp_dtype_nbytes(weight->dtype);
    struct change c = {0};
    int rc = change_read(&c, a, x, box, err);

    for (size_t row = 0; rc == FSDP_OK && c.count && row < box->length[0]; row++) {
        const float *scale =
            c.scales.scale && c.scales.by_row ? c.scales.scale + row : c.scales.scale;
        memset(c.rows, 0, n * sizeof *c.rows);
        for (int i = 0; i < c.count; i++)
            ckpt_factors_add(c.rows, c.rows + n, &c.all[i], row, (size_t)box->offset[1], n);
        if (!add_change(values + row * n * elem, weight->dtype, c.rows, c.rows + n, n, scale,
                        !c.scales.by_row))
            rc = fsdp_err_set(err, FSDP_EINVAL,
                              "%s has values beyond %s with the adapter; is its lora_alpha right?",
                              weight->name, fsdp_dtype_name(weight->dtype));
    }
    change_free(&c);
    return rc;
}

/* A box of (experts, rows, columns), one expert after the other. */
static int add_experts(struct ckpt_adapters *a, const struct fsdp_tensor *weight,
                       const struct fsdp_box *box, char *values, struct fsdp_err *err)
{
    const struct fsdp_box one = {.offset = {box->offset[1], box->offset[2]},
                                 .length = {box->length[1], box->length[2]}};
    const size_t nbytes = (size_t)fsdp_box_nelem(&one, 2) * fsdp_dtype_nbytes(weight->dtype);
    struct matrix x = {.tensor = {.name = weight->name,
                                  .dtype = weight->dtype,
                                  .ndim = 2,
                                  .shape = {weight->shape[1], weight->shape[2]}}};

    for (uint64_t i = 0; i < box->length[0]; i++) {
        x.expert = box->offset[0] + i;
        FSDP_TRY(add_low(a, &x, &one, values + i * nbytes, err));
    }
    return FSDP_OK;
}

int ckpt_adapters_apply(struct ckpt_adapters *a, const struct fsdp_tensor *weight,
                        const struct fsdp_box *box, void *values, struct fsdp_err *err)
{
    for (int i = 0; i < a->count; i++) {
        const struct ckpt_tensor *whole = ckpt_adapter_tensor(a->all[i].adapter, weight->name);
        if (whole)
            return ckpt_merged_read(values, ckpt_adapter_ckpt(a->all[i].adapter), &whole->tensor,
                                    box, weight->dtype, err);
    }
    const struct matrix x = {*weight, 0};
    return weight->ndim == 3   ? add_experts(a, weight, box, values, err)
           : weight->ndim == 2 ? add_low(a, &x, box, values, err)
                               : FSDP_OK;
}

const char *ckpt_adapters_folder(const struct ckpt_adapters *a, int i, const struct ckpt **ckpt)
{
    *ckpt = i < a->count ? ckpt_adapter_ckpt(a->all[i].adapter) : NULL;
    return *ckpt ? ckpt_adapter_folder(a->all[i].adapter) : NULL;
}

int ckpt_adapters_count(const struct ckpt_adapters *a)
{
    return a->count;
}

const char *ckpt_adapters_base(const struct ckpt_adapters *a, int i)
{
    return ckpt_adapter_spec(a->all[i].adapter)->base;
}

int ckpt_adapters_hash(uint64_t *hash, const struct ckpt_adapters *a, struct fsdp_err *err)
{
    for (int i = 0; i < a->count; i++) {
        const struct ckpt_adapter_spec *spec = ckpt_adapter_spec(a->all[i].adapter);
        const double factors[] = {a->all[i].weight, ckpt_adapter_scale(spec), spec->dora};
        const char *patterns[] = {spec->rank_pattern, spec->alpha_pattern};
        *hash = fsdp_hash(*hash, factors, sizeof factors);
        for (int k = 0; k < 2; k++)
            *hash = fsdp_hash(*hash, patterns[k] ? patterns[k] : "",
                              patterns[k] ? strlen(patterns[k]) + 1 : 1);
        FSDP_TRY(ckpt_source_hash(hash, ckpt_adapter_ckpt(a->all[i].adapter), err));
    }
    return FSDP_OK;
}
