/* SPDX-License-Identifier: Apache-2.0 */
/* From stored tensors to output tensors. */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "average/average.h"
#include "util/convert.h"
#include "writer.h"
#include "layout/tensor_name.h"
#include "source/format_ops.h"

void ckpt_job_tensors_free(struct ckpt_job *job)
{
    for (int i = 0; i < job->naliases; i++)
        fsdp_free(job->aliases[i].name);
    fsdp_free(job->aliases);
    ckpt_job_quant_free(job);
    fsdp_free(job->tensors);
    ckpt_pool_free(&job->names);
    fsdp_free(job->parts);
    fsdp_free(job->order);
}

uint64_t ckpt_job_src_row(const struct ckpt_job_part *part, uint64_t row)
{
    uint64_t at = row - part->row;
    if (part->order == CKPT_ROWS_SAME || part->order == CKPT_ROWS_COLUMNS)
        return part->src_row + at * (1 + (uint64_t)part->skip);
    uint64_t in = at % part->group, half = part->group / 2;
    uint64_t from =
        part->order == CKPT_ROWS_TO_HALVES ? in % half * 2 + in / half : in % 2 * half + in / 2;
    return part->src_row + at - in + from;
}

/* ---- the selection --------------------------------------------------------------------------- */

static bool matches(const char *name, const char *const *globs, int nglobs)
{
    for (int i = 0; i < nglobs; i++)
        if (fnmatch(globs[i], name, 0) == 0)
            return true;
    return false;
}

bool ckpt_select_matches(const struct ckpt_select *select, const char *name)
{
    return (!select->ninclude || matches(name, select->include, select->ninclude)) &&
           !matches(name, select->exclude, select->nexclude);
}

/* The average of a weight: its index, -1 if there is none. */
static int average_of(const struct ckpt *ckpt, const struct ckpt_tensor *weight)
{
    char name[CKPT_MAX_NAME_NBYTES + 16];
    snprintf(name, sizeof name, "state.%s.ema", weight->tensor.name);
    return ckpt_layout_find(&ckpt->m.layout, name);
}

/* Where the values of a stored tensor are taken from: it, or its average. */
static int source_of(const struct ckpt_job *job, int index)
{
    const int average =
        job->args->ema ? average_of(job->ckpt, &job->ckpt->m.layout.tensors[index]) : -1;
    return average < 0 ? index : average;
}

static bool wanted(const void *ctx, const struct ckpt_tensor *t)
{
    const struct ckpt_job *job = ctx;
    const struct ckpt_reshard_args *args = job->args;
    if (t->kind != FSDP_SLICE_MODEL && !args->all)
        return false;
    return ckpt_select_matches(&args->select, t->tensor.name);
}

static uint64_t rows_of(const struct fsdp_tensor *tensor)
{
    return tensor->ndim ? tensor->shape[0] : 1;
}

static int add_stored(struct ckpt_job *job, int index, struct fsdp_err *err)
{
    const struct ckpt_tensor *t = &job->ckpt->m.layout.tensors[index];
    struct ckpt_job_part part = {.tensor = source_of(job, index), .nrows = rows_of(&t->tensor)};
    struct fsdp_tensor tensor = t->tensor;
    tensor.dtype = job->ckpt->m.layout.tensors[part.tensor].tensor.dtype;
    /* With --all, the names that torch gave tell all tensors apart. */
    if (job->writer->outer_names && job->args->all)
        tensor.name = t->stored;
    else if (t->kind == FSDP_SLICE_MODEL && (!job->writer->outer_names || job->one_container))
        tensor.name = ckpt_own_name(t);
    FSDP_TRY(ckpt_job_add_tensor(job, &tensor, t->kind, err));
    struct ckpt_job_tensor *mine = &job->tensors[job->ntensors - 1];
    mine->role = t->role;
    mine->stored = job->ckpt->format->keeps_names ? t->stored : NULL;
    mine->own = ckpt_own_name(t);
    return ckpt_job_add_part(job, &part, err);
}

/* Bytes of the stored name before the own one. */
static size_t container_nbytes(const struct ckpt_tensor *t)
{
    return strlen(t->stored) - strlen(ckpt_own_name(t));
}

/* A script that saves {'app': {'model': ..., 'optim': ...}} means the weights' own names, if these
 * are all the weights there are. */
static bool in_one_container(const struct ckpt *ckpt)
{
    const struct ckpt_tensor *first = NULL;
    for (int i = 0; ckpt->format->keeps_names && i < ckpt->m.layout.ntensors; i++) {
        const struct ckpt_tensor *t = &ckpt->m.layout.tensors[i];
        if (t->kind != FSDP_SLICE_MODEL)
            continue;
        first = first ? first : t;
        if (container_nbytes(t) != container_nbytes(first) ||
            memcmp(t->stored, first->stored, container_nbytes(t)))
            return false;
    }
    return first != NULL;
}

/* state.P.exp_avg in a container; or what an optimizer without one counts, state.P.step. */
static bool is_of_optim(const struct ckpt_tensor *t)
{
    const char *own = ckpt_own_name(t), *dot = strrchr(own, '.');
    return strncmp(own, "state.", 6) == 0 && (container_nbytes(t) || strcmp(dot, ".step") == 0);
}

/* What a merge leaves out for not being a weight. */
static void note_others(const struct ckpt_job *job)
{
    const struct ckpt_layout *layout = &job->ckpt->m.layout;
    char text[200];
    size_t len = 0;
    int count = 0;
    for (int i = 0; i < layout->ntensors; i++) {
        const struct ckpt_tensor *t = &layout->tensors[i];
        if (t->role != CKPT_ROLE_OTHER || is_of_optim(t) || job->args->all ||
            !ckpt_select_matches(&job->args->select, t->tensor.name))
            continue;
        count++;
        if (len < sizeof text / 2)
            len += (size_t)snprintf(text + len, sizeof text - len, "%s'%.60s'", len ? ", " : "",
                                    t->stored);
        else if (len < sizeof text - 8 && text[len - 1] != '.')
            len += (size_t)snprintf(text + len, sizeof text - len, ", ...");
    }
    if (count)
        fsdp_log(FSDP_LOG_INFO, "'%s': %d tensor%s outside of the model %s left out (--all): %s",
                 job->ckpt->path, count, count == 1 ? "" : "s", count == 1 ? "is" : "are", text);
}

/* ---- what follows from it -------------------------------------------------------------------- */

/* Types of a small range, which have no place for most second moments, are for weights alone. */
static bool is_cast(const struct ckpt_job *job, const struct ckpt_job_tensor *t)
{
    const bool wide = job->dtype == FSDP_F64 || job->dtype == FSDP_F32 || job->dtype == FSDP_BF16;
    return fsdp_dtype_is_float(t->tensor.dtype) && (wide || t->role != CKPT_ROLE_OPTIM);
}

static void cast(struct ckpt_job *job)
{
    for (int i = 0; job->cast && i < job->ntensors; i++)
        if (is_cast(job, &job->tensors[i]))
            job->tensors[i].tensor.dtype = job->dtype;
}

/* Largest elements first, so that every tensor is aligned; else in the order of the list. */
static int sort_tensors(struct ckpt_job *job, struct fsdp_err *err)
{
    int count = 0;
    job->order = fsdp_alloc((size_t)job->ntensors, sizeof *job->order, "job order", err);
    if (!job->order)
        return FSDP_ENOMEM;
    for (size_t elem_nbytes = 8; elem_nbytes; elem_nbytes /= 2)
        for (int i = 0; i < job->ntensors; i++)
            if (job->writer->in_order
                    ? elem_nbytes == 1
                    : fsdp_dtype_nbytes(job->tensors[i].tensor.dtype) == elem_nbytes)
                job->order[count++] = i;
    return FSDP_OK;
}

struct by_name {
    const char *name;
    int index;
};

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct by_name *)a)->name, ((const struct by_name *)b)->name);
}

static int find_name(const struct by_name *sorted, int count, const char *name, size_t len)
{
    int low = 0, high = count;
    while (low < high) {
        int mid = low + (high - low) / 2;
        int order = strncmp(name, sorted[mid].name, len);
        if (order == 0 && sorted[mid].name[len])
            order = -1;
        if (order == 0)
            return sorted[mid].index;
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return -1;
}

static struct by_name *sort_names(const struct ckpt_job *job, struct fsdp_err *err)
{
    struct by_name *sorted = fsdp_alloc((size_t)job->ntensors, sizeof *sorted, "job names", err);
    for (int i = 0; sorted && i < job->ntensors; i++)
        sorted[i] = (struct by_name){job->tensors[i].tensor.name, i};
    if (sorted)
        qsort(sorted, (size_t)job->ntensors, sizeof *sorted, compare_names);
    return sorted;
}

static const struct ckpt_tensor *source_tensor(const struct ckpt_job *job, int tensor)
{
    const struct ckpt_job_part *part = &job->parts[job->tensors[tensor].first_part];
    return &job->ckpt->m.layout.tensors[part->tensor];
}

/* Puts the containers back into names that would be equal without them. */
static int restore_containers(struct ckpt_job *job, struct fsdp_err *err)
{
    struct by_name *sorted = sort_names(job, err);
    bool same = false; /* as the one before */
    for (int i = 0; sorted && i < job->ntensors; i++) {
        const struct ckpt_tensor *from = source_tensor(job, sorted[i].index);
        const char *old = sorted[i].name;
        bool next = i + 1 < job->ntensors && !strcmp(old, sorted[i + 1].name);
        if ((same || next) && strcmp(old, from->tensor.name))
            job->tensors[sorted[i].index].tensor.name = from->tensor.name;
        same = next;
    }
    fsdp_free(sorted);
    return sorted ? FSDP_OK : FSDP_ENOMEM;
}

/* Two tensors of one name are refused; "state.<parameter>.<name>" finds its parameter. */
static int relate(struct ckpt_job *job, struct fsdp_err *err)
{
    static const char prefix[] = "state.";
    struct by_name *sorted = sort_names(job, err);
    int rc = FSDP_OK;
    if (!sorted)
        return FSDP_ENOMEM;
    for (int i = 1; rc == FSDP_OK && i < job->ntensors; i++)
        if (!strcmp(sorted[i].name, sorted[i - 1].name))
            rc = fsdp_err_set(err, FSDP_EINVAL,
                              "'%s': two tensors would be called '%s': '%s' and '%s'; leave one of "
                              "them out (--exclude)",
                              job->ckpt->path, sorted[i].name,
                              source_tensor(job, sorted[i - 1].index)->tensor.name,
                              source_tensor(job, sorted[i].index)->tensor.name);
    for (int i = 0; i < job->ntensors; i++) {
        struct ckpt_job_tensor *t = &job->tensors[i];
        const char *name = t->tensor.name, *dot = strrchr(name, '.');
        if (t->kind == FSDP_SLICE_MODEL)
            t->param = i;
        else if (!strncmp(name, prefix, sizeof prefix - 1) && dot >= name + sizeof prefix)
            t->param = find_name(sorted, job->ntensors, name + sizeof prefix - 1,
                                 (size_t)(dot - name) - (sizeof prefix - 1));
    }
    fsdp_free(sorted);
    return rc;
}

/* A name that the output cannot hold must fail before anything is written. */
static int check_name(const struct ckpt_job *job, const char *name, struct fsdp_err *err)
{
    const char *wrong = ckpt_tensor_name_wrong(name, job->writer->any_name);
    if (!wrong)
        return FSDP_OK;
    return fsdp_err_set(
        err, FSDP_EINVAL,
        "'%s': tensor '%.200s' cannot be stored: %s; rename it (--map), or leave it out "
        "(--exclude)",
        job->ckpt->path, name, wrong);
}

static int check_names(const struct ckpt_job *job, struct fsdp_err *err)
{
    for (int i = 0; i < job->ntensors; i++)
        FSDP_TRY(check_name(job, job->tensors[i].tensor.name, err));
    for (int i = 0; i < job->naliases; i++)
        FSDP_TRY(check_name(job, job->aliases[i].name, err));
    return FSDP_OK;
}

static int list_aliases(struct ckpt_job *job, struct fsdp_err *err)
{
    const struct ckpt_manifest *m = &job->ckpt->m;
    job->aliases = fsdp_alloc((size_t)m->naliases, sizeof *job->aliases, "job aliases", err);
    if (!job->aliases)
        return FSDP_ENOMEM;
    for (int i = 0; i < m->naliases; i++) {
        struct ckpt_job_alias *alias = &job->aliases[job->naliases];
        alias->stored = source_of(job, ckpt_layout_find(&m->layout, m->aliases[i].target));
        if (!(alias->name = fsdp_strdup(m->aliases[i].name, err)))
            return FSDP_ENOMEM;
        job->naliases++;
    }
    return FSDP_OK;
}

int ckpt_job_find_stored(const struct ckpt_job *job, int stored)
{
    const struct fsdp_tensor *t = &job->ckpt->m.layout.tensors[stored].tensor;
    for (int i = 0; i < job->ntensors; i++) {
        const struct ckpt_job_part *part = &job->parts[job->tensors[i].first_part];
        if (job->tensors[i].nparts == 1 && part->tensor == stored && part->nrows == rows_of(t))
            return i;
    }
    return -1;
}

static int check_averages(const struct ckpt_job *job, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &job->ckpt->m.layout;
    int naverages = 0;
    for (int i = 0; i < layout->ntensors; i++) {
        const int average = average_of(job->ckpt, &layout->tensors[i]);
        const struct fsdp_tensor *a = &layout->tensors[i].tensor;
        const struct fsdp_tensor *b = average < 0 ? a : &layout->tensors[average].tensor;
        if (a->ndim != b->ndim || memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape))
            return fsdp_err_set(err, FSDP_ECORRUPT, "'%s': '%s' has another shape than '%s'",
                                job->ckpt->path, b->name, a->name);
        naverages += average >= 0;
    }
    return naverages ? FSDP_OK
                     : fsdp_err_set(err, FSDP_ENOTFOUND,
                                    "'%s' holds no moving average of the weights: the run that "
                                    "wrote it had no optim.ema_decay (averages of adapters are "
                                    "not merged)",
                                    job->ckpt->path);
}

/* The other checkpoints of an average have what is taken, and nothing more of what is wanted. */
static int take_average(struct ckpt_job *job, struct fsdp_err *err)
{
    if (!job->args->average)
        return FSDP_OK;
    for (int i = 0; i < job->nparts; i++)
        FSDP_TRY(ckpt_average_take(job->args->average, job->parts[i].tensor, err));
    return ckpt_average_check_rest(job->args->average, wanted, job, err);
}

int ckpt_job_select_all(struct ckpt_job *job, struct fsdp_err *err)
{
    for (int i = 0; i < job->ckpt->m.layout.ntensors; i++)
        FSDP_TRY(add_stored(job, i, err));
    FSDP_TRY(list_aliases(job, err));
    FSDP_TRY(restore_containers(job, err));
    FSDP_TRY(ckpt_job_map(job, false, err));
    return relate(job, err);
}

/* The error names the first that the output needs; the others are logged. */
static int check_unread(const struct ckpt_job *job, struct fsdp_err *err)
{
    const char *why = NULL;
    for (int i = 0; i < job->ckpt->nunread; i++)
        if (!why && wanted(job, &job->ckpt->unread[i].tensor))
            why = job->ckpt->unread[i].why;
        else
            fsdp_log(FSDP_LOG_WARN, "%s", job->ckpt->unread[i].why);
    return why ? fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s; --exclude it to go without", why)
               : FSDP_OK;
}

int ckpt_job_select(struct ckpt_job *job, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &job->ckpt->m.layout;
    if (job->args->ema && job->args->all)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "averages in place of weights, or all tensors: not both");
    if (job->args->ema)
        FSDP_TRY(check_averages(job, err));
    job->one_container = in_one_container(job->ckpt);
    note_others(job);
    for (int i = 0; i < layout->ntensors; i++)
        if (wanted(job, &layout->tensors[i]))
            FSDP_TRY(add_stored(job, i, err));
    FSDP_TRY(check_unread(job, err));
    if (!job->ntensors)
        return fsdp_err_set(err, FSDP_EINVAL, "'%s' holds no tensors %s", job->ckpt->path,
                            layout->ntensors ? "that were asked for" : "at all");
    FSDP_TRY(take_average(job, err));
    FSDP_TRY(list_aliases(job, err));
    /* The others know a weight by its own name alone, and would take another tensor for it. */
    if (job->writer->containers)
        FSDP_TRY(restore_containers(job, err));
    FSDP_TRY(ckpt_job_map(job, true, err));
    cast(job);
    if (job->args->quantize)
        FSDP_TRY(ckpt_job_quantize(job, err));
    if (job->writer->plan)
        FSDP_TRY(job->writer->plan(job, err));
    FSDP_TRY(check_names(job, err));
    FSDP_TRY(relate(job, err));
    return sort_tensors(job, err);
}
