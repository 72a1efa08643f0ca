/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoints of an average: opening, and do they hold the same tensors? */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "members.h"
#include "layout/layout.h"
#include "source/format_ops.h"

/* ---- opening --------------------------------------------------------------------------------- */

/* Values are added in an order that follows from the checkpoints, not from the command line: the
 * same ones give the same bits. */
static int compare_members(const void *one, const void *other)
{
    const struct ckpt_member *a = one, *b = other;
    if (a->weight != b->weight)
        return a->weight < b->weight ? -1 : 1;
    return a->hash < b->hash ? -1 : a->hash > b->hash;
}

/* Weights whose sums could leave the range of doubles, by a power of two: that changes no bit of an
 * average. */
static void scale_weights(struct ckpt_average *a)
{
    enum { FAR = 500 }; /* from 1, as an exponent of 2 */
    int most = 0, exponent;

    for (int i = 0; i < a->count; i++) {
        frexp(a->members[i].weight, &exponent);
        most = i == 0 || exponent > most ? exponent : most;
    }
    for (int i = 0; (most > FAR || most < -FAR) && i < a->count; i++)
        a->members[i].weight = ldexp(a->members[i].weight, -most);
}

/* Weights that are all equal are 1: sums of products with 1 are exact where sums are. */
static int weigh(struct ckpt_average *a, struct fsdp_err *err)
{
    bool equal = true;

    scale_weights(a);
    for (int i = 1; i < a->count; i++)
        equal &= a->members[i].weight == a->members[0].weight;
    for (int i = 0; i < a->count; i++) {
        if (equal && a->members[0].weight > 0)
            a->total += 1;
        else
            a->total += a->members[i].weight;
    }
    if (a->total <= 0)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "the weights of an average must have a sum above 0, and have %g",
                            a->total);
    for (int i = 0; equal && i < a->count; i++)
        a->members[i].weight = 1;
    return FSDP_OK;
}

static int open_member(struct ckpt_average *a, int i, const char *text, const char *config,
                       struct fsdp_err *err)
{
    struct ckpt_member *m = &a->members[i];
    m->hash = FSDP_HASH_SEED;
    FSDP_TRY(ckpt_weighted_parse(&m->path, &m->weight, text, "checkpoint", err));
    FSDP_TRY(ckpt_open_with(&m->ckpt, m->path, config, err));
    a->given[i] = m->ckpt;
    ckpt_warn_lacks(m->ckpt);
    FSDP_TRY(ckpt_unpack(m->ckpt, err));
    return ckpt_source_hash(&m->hash, m->ckpt, err);
}

static int make_index(struct ckpt_member *m, int ntensors, struct fsdp_err *err)
{
    if (!(m->index = fsdp_alloc((size_t)ntensors, sizeof *m->index, "tensors", err)))
        return FSDP_ENOMEM;
    for (int i = 0; i < ntensors; i++)
        m->index[i] = -1;
    return FSDP_OK;
}

int ckpt_average_open(struct ckpt_average **out, const char *const *paths, int npaths,
                      const char *config, struct fsdp_err *err)
{
    struct ckpt_average *a = fsdp_alloc(1, sizeof *a, "average", err);
    int rc = FSDP_ENOMEM;

    if (a) {
        a->members = fsdp_alloc((size_t)npaths, sizeof *a->members, "checkpoints", err);
        a->given = fsdp_alloc((size_t)npaths, sizeof *a->given, "checkpoints", err);
        rc = a->members && a->given ? FSDP_OK : FSDP_ENOMEM;
    }
    for (int i = 0; rc == FSDP_OK && i < npaths; i++) {
        a->count++;
        rc = open_member(a, i, paths[i], config, err);
        if (rc == FSDP_OK)
            rc = make_index(&a->members[i], a->given[0]->m.layout.ntensors, err);
    }
    if (rc == FSDP_OK)
        rc = weigh(a, err);
    if (rc) {
        ckpt_average_close(a);
        return rc;
    }
    qsort(a->members, (size_t)a->count, sizeof *a->members, compare_members);
    *out = a;
    return FSDP_OK;
}

void ckpt_average_close(struct ckpt_average *a)
{
    for (int i = 0; a && i < a->count; i++) {
        ckpt_close(a->members[i].ckpt);
        fsdp_free(a->members[i].path);
        fsdp_free(a->members[i].index);
    }
    if (a) {
        fsdp_free(a->members);
        fsdp_free(a->given);
    }
    fsdp_free(a);
}

struct ckpt *ckpt_average_member(const struct ckpt_average *a, int i)
{
    return i < a->count ? a->given[i] : NULL;
}

double ckpt_average_weight(const struct ckpt_average *a, int i)
{
    double weight = 1;
    for (int k = 0; k < a->count; k++)
        if (a->members[k].ckpt == a->given[i])
            weight = a->members[k].weight;
    return weight;
}

uint64_t ckpt_average_hash(const struct ckpt_average *a, uint64_t hash)
{
    for (int i = 0; i < a->count; i++) {
        hash = fsdp_hash(hash, &a->members[i].weight, sizeof a->members[i].weight);
        hash = fsdp_hash(hash, &a->members[i].hash, sizeof a->members[i].hash);
    }
    return hash;
}

/* ---- the same tensors? ----------------------------------------------------------------------- */

/* A tensor of one checkpoint in another, which may have containers around the names. */
static int find_in(const struct ckpt *ckpt, const struct ckpt_tensor *t)
{
    const int at = ckpt_tensor_index(ckpt, t->tensor.name);
    return at < 0 && t->kind == FSDP_SLICE_MODEL ? ckpt_tensor_index(ckpt, ckpt_own_name(t)) : at;
}

static int check_same(const struct ckpt_average *a, const struct ckpt_member *m,
                      const struct ckpt_tensor *mine, const struct ckpt_tensor *theirs,
                      struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &mine->tensor, *u = &theirs->tensor;
    const struct fsdp_box one = ckpt_box_whole(t), other = ckpt_box_whole(u);
    char ours[256], shape[256];

    if (t->ndim != u->ndim || memcmp(t->shape, u->shape, (size_t)t->ndim * sizeof *t->shape)) {
        ckpt_box_text(ours, sizeof ours, &one, t->ndim);
        ckpt_box_text(shape, sizeof shape, &other, u->ndim);
        return fsdp_err_set(err, FSDP_EMISMATCH, "tensor '%s': '%s' holds it as %s, '%s' as %s",
                            t->name, a->given[0]->path, ours, m->path, shape);
    }
    if (t->dtype == u->dtype || (fsdp_dtype_is_float(t->dtype) && fsdp_dtype_is_float(u->dtype)))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EMISMATCH, "tensor '%s': '%s' holds it as %s, '%s' as %s",
                        t->name, a->given[0]->path, fsdp_dtype_name(t->dtype), m->path,
                        fsdp_dtype_name(u->dtype));
}

int ckpt_average_take(struct ckpt_average *a, int stored, struct fsdp_err *err)
{
    const struct ckpt_tensor *t = &a->given[0]->m.layout.tensors[stored];
    for (int i = 0; i < a->count; i++) {
        struct ckpt_member *m = &a->members[i];
        const int at = m->ckpt == a->given[0] ? stored : find_in(m->ckpt, t);
        const char *why = at < 0 ? ckpt_unread_why(m->ckpt, t->tensor.name) : NULL;
        if (why)
            return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s", why);
        if (at < 0)
            return fsdp_err_set(err, FSDP_EMISMATCH,
                                "tensor '%s' is in '%s', and not in '%s'; an average is of "
                                "checkpoints with the same tensors (--exclude leaves one out)",
                                t->tensor.name, a->given[0]->path, m->path);
        FSDP_TRY(check_same(a, m, t, &m->ckpt->m.layout.tensors[at], err));
        m->index[stored] = at;
    }
    return FSDP_OK;
}

/* Tensor k, which the first checkpoint has as another name of a tensor that is taken. */
static int check_alias(const struct ckpt_average *a, const struct ckpt_member *m, int first, int k,
                       struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    const struct ckpt_tensor *tensors = m->ckpt->m.layout.tensors;
    const int at = m->index[first];
    if (at < 0 || at == k)
        return FSDP_OK;
    const int rc = ckpt_check_equal(m->ckpt, tensors[k].tensor.name, tensors[at].tensor.name, &why);
    if (rc != FSDP_EINVAL)
        return fsdp_err_pass(err, rc, &why);
    return fsdp_err_set(err, FSDP_EMISMATCH, "%s, and both are one tensor in '%s': give '%s' first",
                        why.text, a->given[0]->path, m->path);
}

int ckpt_average_check_rest(const struct ckpt_average *a, ckpt_average_wanted_f *wanted,
                            const void *ctx, struct fsdp_err *err)
{
    for (int i = 0; i < a->count; i++) {
        const struct ckpt_member *m = &a->members[i];
        for (int k = 0; m->ckpt != a->given[0] && k < m->ckpt->m.layout.ntensors; k++) {
            const struct ckpt_tensor *t = &m->ckpt->m.layout.tensors[k];
            if (!wanted(ctx, t))
                continue;
            const int first = find_in(a->given[0], t);
            if (first < 0)
                return fsdp_err_set(err, FSDP_EMISMATCH,
                                    "tensor '%s' is in '%s', and not in '%s'; an average is of "
                                    "checkpoints with the same tensors (--exclude leaves one out)",
                                    t->tensor.name, m->path, a->given[0]->path);
            FSDP_TRY(check_alias(a, m, first, k, err));
        }
    }
    return FSDP_OK;
}

bool ckpt_average_every(const struct ckpt_average *a, ckpt_average_pair_f *holds, int one,
                        int other)
{
    bool every = true;
    for (int i = 0; every && i < a->count; i++) {
        const struct ckpt_member *m = &a->members[i];
        every = holds(m->ckpt, m->index[one], m->index[other]);
    }
    return every;
}

uint64_t ckpt_average_elem_nbytes(const struct ckpt_average *a, int stored)
{
    uint64_t nbytes = 0;
    for (int i = 0; i < a->count; i++) {
        const struct ckpt_member *m = &a->members[i];
        const struct ckpt_tensor *t = &m->ckpt->m.layout.tensors[m->index[stored]];
        nbytes += fsdp_dtype_nbytes(t->tensor.dtype);
    }
    return nbytes;
}

int ckpt_average_unchanged(struct ckpt_average *a, struct fsdp_err *err)
{
    for (int i = 1; i < a->count; i++)
        FSDP_TRY(ckpt_unchanged(a->given[i], err));
    return FSDP_OK;
}

int ckpt_average_finish(struct ckpt_average *a, struct fsdp_err *err)
{
    for (int i = 1; i < a->count; i++)
        if (a->given[i]->format->check_rest)
            FSDP_TRY(a->given[i]->format->check_rest(a->given[i], err));
    return ckpt_average_unchanged(a, err);
}
