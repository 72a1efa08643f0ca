/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adapters into the weights that they belong to: W + scale B A, or its transpose where the model's
 * matrices are (in, out). Of a weight a block of rows is changed at a time; for it, A or the rows
 * of B are read anew, so that memory does not grow with the adapters.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "merge.h"
#include "source/source.h"
#include "util/convert.h"

enum { NAME_NBYTES = 1024 };
#define WEIGHT ".weight"

/* ---- opening --------------------------------------------------------------------------------- */

static bool exists(const char *path)
{
    return !ckpt_path_is_url(path) && access(path, F_OK) == 0;
}

/* PATH=WEIGHT, where WEIGHT is a number; else all of it is the path, as where only that exists. */
static int parse(struct ckpt_merged *m, const char *text, struct fsdp_err *err)
{
    const char *eq = strrchr(text, '=');
    char *end = NULL;
    const double weight = eq ? strtod(eq + 1, &end) : 1;
    const bool given = eq && eq[1] && !*end;

    m->weight = 1;
    if (!(m->path = fsdp_sprintf(err, "%.*s", given ? (int)(eq - text) : (int)strlen(text), text)))
        return FSDP_ENOMEM;
    if (given && exists(text)) {
        if (exists(m->path))
            return fsdp_err_set(err, FSDP_EINVAL,
                                "adapter %s: there are '%s' and '%s'; write %s=1 or %s/%s", text,
                                text, m->path, text, m->path, eq);
        fsdp_free(m->path);
        m->path = fsdp_strdup(text, err);
        return m->path ? FSDP_OK : FSDP_ENOMEM;
    }
    m->weight = weight;
    return isfinite(weight)
               ? FSDP_OK
               : fsdp_err_set(err, FSDP_EINVAL, "adapter %s: its weight must be finite", text);
}

int ckpt_adapters_open(struct ckpt_adapters **out, const char *const *paths, int npaths,
                       struct fsdp_err *err)
{
    struct ckpt_adapters *a = fsdp_alloc(1, sizeof *a, "adapters", err);
    int rc = a ? FSDP_OK : FSDP_ENOMEM;

    if (rc == FSDP_OK && !(a->all = fsdp_alloc((size_t)npaths, sizeof *a->all, "adapters", err)))
        rc = FSDP_ENOMEM;
    for (int i = 0; rc == FSDP_OK && i < npaths; i++) {
        a->count++;
        rc = parse(&a->all[i], paths[i], err);
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
    if (a)
        fsdp_free(a->all);
    fsdp_free(a);
}

/* ---- names ----------------------------------------------------------------------------------- */

const struct ckpt_tensor *ckpt_merged_part(const struct ckpt_merged *m, const char *weight,
                                           const char *part)
{
    char name[NAME_NBYTES];
    const size_t n = strlen(weight), suffix = strlen(WEIGHT);

    if (n < suffix || strcmp(weight + n - suffix, WEIGHT))
        return NULL;
    const int len =
        snprintf(name, sizeof name, CKPT_ADAPTER_PREFIX "%.*s.%s", (int)(n - suffix), weight, part);
    return len < (int)sizeof name ? ckpt_tensor_find(ckpt_adapter_ckpt(m->adapter), name) : NULL;
}

const struct ckpt_tensor *ckpt_merged_whole(const struct ckpt_merged *m, const char *weight)
{
    char name[NAME_NBYTES];
    const int len = snprintf(name, sizeof name, CKPT_ADAPTER_PREFIX "%s", weight);
    return len < (int)sizeof name ? ckpt_tensor_find(ckpt_adapter_ckpt(m->adapter), name) : NULL;
}

bool ckpt_adapters_change(const struct ckpt_adapters *a, const char *weight)
{
    for (int i = 0; a && i < a->count; i++)
        if (ckpt_merged_whole(&a->all[i], weight) ||
            ckpt_merged_part(&a->all[i], weight, "lora_A.weight"))
            return true;
    return false;
}

/* ---- merging --------------------------------------------------------------------------------- */

static int take(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *err)
{
    (void)err;
    memcpy((char *)ctx + pos, src, nbytes);
    return FSDP_OK;
}

/* A box of a tensor of the adapter, in `dtype`. */
static int read_box(void *out, const struct ckpt_merged *m, const struct ckpt_tensor *t,
                    const struct fsdp_box *box, enum fsdp_dtype dtype, struct fsdp_err *err)
{
    struct fsdp_slice slice = {.tensor = t->tensor, .box = *box, .nreplica = 1};
    const struct fsdp_slice_io io = {.ctx = out, .write = take};
    slice.tensor.dtype = dtype;
    return ckpt_read_slice(ckpt_adapter_ckpt(m->adapter), &slice, &io, err);
}

/* out (rows, cols) = x (cols, rows)ᵀ */
static void transpose(float *out, const float *x, size_t rows, size_t cols)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            out[i * cols + j] = x[j * rows + i];
}

/* Rows [first, first + n) along dimension `dim` of a matrix with two dimensions, as fp32; turned:
 * as its transpose. *out is freed with fsdp_free. */
struct strip {
    int dim;
    uint64_t first, n;
    bool turned;
};

static int read_strip(float **out, const struct ckpt_merged *m, const struct ckpt_tensor *t,
                      const struct strip *s, struct fsdp_err *err)
{
    struct fsdp_box box = {.length = {t->tensor.shape[0], t->tensor.shape[1]}};
    box.offset[s->dim] = s->first;
    box.length[s->dim] = s->n;
    const size_t rows = (size_t)box.length[0], cols = (size_t)box.length[1];
    float *x = fsdp_alloc(rows * cols, sizeof *x, "adapter", err);
    float *turned = s->turned && x ? fsdp_alloc(rows * cols, sizeof *x, "adapter", err) : NULL;
    int rc = x && (turned || !s->turned) ? read_box(x, m, t, &box, FSDP_F32, err) : FSDP_ENOMEM;

    if (rc == FSDP_OK && turned)
        transpose(turned, x, cols, rows);
    *out = turned ? turned : x;
    if (turned || rc)
        fsdp_free(x);
    if (rc) {
        fsdp_free(turned);
        *out = NULL;
    }
    return rc;
}

/* The change of a block is left (rows, r) times right (r, columns of the weight). */
struct factors {
    float *left, *right;
    size_t r, ncols;
    double scale;
};

static int read_factors(struct factors *f, const struct ckpt_merged *m,
                        const struct fsdp_tensor *weight, const struct fsdp_box *box,
                        struct fsdp_err *err)
{
    const struct ckpt_adapter_spec *spec = ckpt_adapter_spec(m->adapter);
    const struct ckpt_tensor *a = ckpt_merged_part(m, weight->name, "lora_A.weight");
    const struct ckpt_tensor *b = ckpt_merged_part(m, weight->name, "lora_B.weight");
    const uint64_t first = box->offset[0], n = box->length[0];
    const bool across = spec->transposed;
    const struct strip left = {across ? 1 : 0, first, n, across};
    const struct strip right = {0, 0, across ? b->tensor.shape[0] : a->tensor.shape[0], across};

    *f = (struct factors){.r = (size_t)spec->r,
                          .ncols = (size_t)weight->shape[1],
                          .scale = ckpt_adapter_scale(spec) * m->weight};
    FSDP_TRY(read_strip(&f->left, m, across ? a : b, &left, err));
    return read_strip(&f->right, m, across ? b : a, &right, err);
}

/* change[n] += scale * (left right)[row, first + ...]. sum: n elements of scratch. */
static void add_row(float *change, float *sum, const struct factors *f, size_t row, size_t first,
                    size_t n)
{
    memset(sum, 0, n * sizeof *sum);
    for (size_t k = 0; k < f->r; k++) {
        const float left = f->left[row * f->r + k], *right = f->right + k * f->ncols + first;
        for (size_t j = 0; j < n; j++)
            sum[j] += left * right[j];
    }
    for (size_t j = 0; j < n; j++)
        change[j] += (float)(sum[j] * f->scale);
}

/* values[n] of dtype += change[n], rounded once, as PEFT does; change is lost. Returns whether all
 * that was finite is. */
static bool add_change(void *values, enum fsdp_dtype dtype, float *change, float *wide, size_t n)
{
    bool finite = true;

    ckpt_convert(wide, FSDP_F32, values, dtype, n);
    for (size_t i = 0; i < n; i++)
        change[i] = wide[i] + change[i];
    ckpt_convert(values, dtype, change, FSDP_F32, n);
    ckpt_convert(change, FSDP_F32, values, dtype, n);
    for (size_t i = 0; i < n; i++)
        finite &= isfinite(change[i]) || !isfinite(wide[i]);
    return finite;
}

/* The factors of all adapters of a weight; *count: how many there are. */
static int read_all(struct factors *all, int *count, const struct ckpt_adapters *a,
                    const struct fsdp_tensor *weight, const struct fsdp_box *box,
                    struct fsdp_err *err)
{
    *count = 0;
    for (int i = 0; i < a->count; i++)
        if (ckpt_merged_part(&a->all[i], weight->name, "lora_A.weight"))
            FSDP_TRY(read_factors(&all[(*count)++], &a->all[i], weight, box, err));
    return FSDP_OK;
}

/* A box with several rows has whole ones. */
static int add_low(const struct ckpt_adapters *a, const struct fsdp_tensor *weight,
                   const struct fsdp_box *box, char *values, struct fsdp_err *err)
{
    const size_t n = (size_t)box->length[1], elem = fsdp_dtype_nbytes(weight->dtype);
    float *rows = fsdp_alloc(2 * n, sizeof *rows, "rows of a weight", err);
    struct factors *all = fsdp_alloc((size_t)a->count, sizeof *all, "adapters", err);
    int count = 0, rc = rows && all ? read_all(all, &count, a, weight, box, err) : FSDP_ENOMEM;

    for (size_t row = 0; rc == FSDP_OK && count && row < box->length[0]; row++) {
        memset(rows, 0, n * sizeof *rows);
        for (int i = 0; i < count; i++)
            add_row(rows, rows + n, &all[i], row, (size_t)box->offset[1], n);
        if (!add_change(values + row * n * elem, weight->dtype, rows, rows + n, n))
            rc = fsdp_err_set(err, FSDP_EINVAL,
                              "%s has values beyond %s with the adapter; is its lora_alpha right?",
                              weight->name, fsdp_dtype_name(weight->dtype));
    }
    for (int i = 0; i < count; i++) {
        fsdp_free(all[i].left);
        fsdp_free(all[i].right);
    }
    fsdp_free(all);
    fsdp_free(rows);
    return rc;
}

int ckpt_adapters_apply(const struct ckpt_adapters *a, const struct fsdp_tensor *weight,
                        const struct fsdp_box *box, void *values, struct fsdp_err *err)
{
    for (int i = 0; i < a->count; i++) {
        const struct ckpt_tensor *whole = ckpt_merged_whole(&a->all[i], weight->name);
        if (whole)
            return read_box(values, &a->all[i], whole, box, weight->dtype, err);
    }
    return weight->ndim == 2 ? add_low(a, weight, box, values, err) : FSDP_OK;
}

const char *ckpt_adapters_folder(const struct ckpt_adapters *a, int i, const struct ckpt **ckpt)
{
    *ckpt = i < a->count ? ckpt_adapter_ckpt(a->all[i].adapter) : NULL;
    return *ckpt ? ckpt_adapter_folder(a->all[i].adapter) : NULL;
}

int ckpt_adapters_hash(uint64_t *hash, const struct ckpt_adapters *a, struct fsdp_err *err)
{
    for (int i = 0; i < a->count; i++) {
        const double scale = ckpt_adapter_scale(ckpt_adapter_spec(a->all[i].adapter));
        const double factors[] = {a->all[i].weight, scale};
        *hash = fsdp_hash(*hash, factors, sizeof factors);
        FSDP_TRY(ckpt_source_hash(hash, ckpt_adapter_ckpt(a->all[i].adapter), err));
    }
    return FSDP_OK;
}
