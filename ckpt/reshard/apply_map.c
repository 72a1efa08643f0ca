/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Renaming, joining and splitting the output tensors, as ckpt_select.maps asks. An optimizer's
 * tensors follow their parameter.
 */
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "map.h"

static uint64_t rows_of(const struct ckpt_job_tensor *t)
{
    return t->tensor.ndim ? t->tensor.shape[0] : 1;
}

/* ---- names and the order of rows ------------------------------------------------------------- */

/* What an optimizer keeps per block or per column of a parameter has no rows of it. */
static int check_rows(const struct ckpt_job *job, const struct ckpt_job_tensor *t,
                      struct fsdp_err *err)
{
    const enum fsdp_slot_kind kind = ckpt_job_slot_kind(job, t);

    if (kind == FSDP_PER_ELEMENT || kind == FSDP_PER_ROW)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                        "tensor '%s' is kept per %s of its parameter, so that rows cannot be "
                        "ordered, joined or split: leave it out (--exclude 'state.*')",
                        t->tensor.name, fsdp_slot_kind_name(kind));
}

/* `name` with the module `from` (whole path elements) replaced; NULL, no error, if it has none. */
static char *replace_module(const char *name, const char *from, const char *to,
                            struct fsdp_err *err)
{
    size_t len = strlen(from);
    for (const char *p = strstr(name, from); p; p = strstr(p + 1, from))
        if ((p == name || p[-1] == '.') && (p[len] == '.' || !p[len]))
            return fsdp_sprintf(err, "%.*s%s%s", (int)(p - name), name, to, p + len);
    return NULL;
}

static bool has_module(const char *name, const char *module)
{
    size_t len = strlen(module);
    for (const char *p = strstr(name, module); p; p = strstr(p + 1, module))
        if ((p == name || p[-1] == '.') && (p[len] == '.' || !p[len]))
            return true;
    return false;
}

/* The rows of a layer's queries and keys, as they are stored, disprove most wrong heads. */
static int check_heads(const struct ckpt_job *job, const struct ckpt_job_part *part,
                       const struct ckpt_job_heads *heads, struct fsdp_err *err)
{
    static const char *const modules[][2] = {{"wq", "wk"}, {"q_proj", "k_proj"}};
    const struct fsdp_tensor *query = &job->ckpt->m.layout.tensors[part->tensor].tensor;

    for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++) {
        if (!has_module(query->name, modules[i][0]))
            continue;
        char *name = replace_module(query->name, modules[i][0], modules[i][1], err);
        if (!name)
            return FSDP_ENOMEM;
        const struct ckpt_tensor *key = ckpt_tensor_find(job->ckpt, name);
        const int rc = key ? ckpt_job_check_heads(heads, query, &key->tensor, err) : FSDP_OK;
        fsdp_free(name);
        FSDP_TRY(rc);
    }
    return FSDP_OK;
}

static int order_rows(struct ckpt_job *job, struct ckpt_job_tensor *t, const struct ckpt_map *map,
                      enum ckpt_map_rows rows, struct fsdp_err *err)
{
    struct ckpt_job_part *part = &job->parts[t->first_part];
    struct ckpt_job_heads heads;
    FSDP_TRY(ckpt_job_heads(&heads, job, t->tensor.name, err));
    uint64_t nheads = rows == CKPT_MAP_ROWS_QUERY ? heads.query : heads.key;
    uint64_t group = rows_of(t) / nheads;
    if (rows_of(t) % nheads || group % 2 || group > UINT32_MAX)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "tensor '%s' has %llu rows, which are not %llu heads of an even number "
                            "of rows: wrong --heads?",
                            t->tensor.name, (unsigned long long)rows_of(t),
                            (unsigned long long)nheads);
    enum ckpt_row_order order = map->to_pairs ? CKPT_ROWS_TO_PAIRS : CKPT_ROWS_TO_HALVES;
    if (t->nparts > 1 || (part->order != CKPT_ROWS_SAME && part->order == order))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "tensor '%s': its rows cannot be ordered again; give the maps in "
                            "another order, or one after the other",
                            t->tensor.name);
    if (rows == CKPT_MAP_ROWS_QUERY)
        FSDP_TRY(check_heads(job, part, &heads, err));
    part->order = part->order == CKPT_ROWS_SAME ? order : CKPT_ROWS_SAME;
    part->group = (uint32_t)group;
    return FSDP_OK;
}

static int rename_all(struct ckpt_job *job, const struct ckpt_map *map, int *nchanged,
                      struct fsdp_err *err)
{
    const bool same_rows = ckpt_job_turns_halves(job);

    for (int i = 0; i < job->ntensors; i++) {
        struct ckpt_job_tensor *t = &job->tensors[i];
        enum ckpt_map_rows rows;
        char *name =
            ckpt_map_tensor_name(map, t->tensor.name, t->kind == FSDP_SLICE_OPTIM, &rows, err);
        if (!name)
            return FSDP_ENOMEM;
        bool changes = strcmp(name, t->tensor.name) != 0;
        const char *kept = changes ? ckpt_job_keep_name(job, name, err) : t->tensor.name;
        fsdp_free(name);
        if (!kept)
            return FSDP_ENOMEM;
        t->tensor.name = kept;
        t->stored = changes ? NULL : t->stored;
        *nchanged += changes;
        /* A parameter's step, in an optimizer's state, is a number without rows. */
        if (rows == CKPT_MAP_ROWS_SAME || same_rows || !t->tensor.ndim)
            continue;
        FSDP_TRY(check_rows(job, t, err));
        FSDP_TRY(order_rows(job, t, map, rows, err));
    }
    for (int i = 0; i < job->naliases; i++) {
        char *name = ckpt_map_tensor_name(map, job->aliases[i].name, false, NULL, err);
        if (!name)
            return FSDP_ENOMEM;
        fsdp_free(job->aliases[i].name);
        job->aliases[i].name = name;
    }
    return FSDP_OK;
}

/* ---- joining and splitting ------------------------------------------------------------------- */

/* Tensors that are one, in the order of their rows. */
struct fusion {
    const char *whole;
    int nmembers;
    const char *members[3];
};
static const struct fusion qkv = {
    "self_attn.qkv_proj", 3, {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}};
static const struct fusion gate_up = {"mlp.gate_up_proj", 2, {"mlp.gate_proj", "mlp.up_proj"}};

/* The tensors before a map, while the job's list is made anew. */
struct old {
    int ntensors;
    struct ckpt_job_tensor *tensors;
    struct ckpt_job_part *parts;
};

static const struct ckpt_job_tensor *find_old(const struct old *old, const char *name)
{
    for (int i = 0; i < old->ntensors; i++)
        if (!strcmp(old->tensors[i].tensor.name, name))
            return &old->tensors[i];
    return NULL;
}

/* Rows [from, from + nrows) of an old tensor become the next rows of the newest one. */
static int add_rows(struct ckpt_job *job, const struct old *old, const struct ckpt_job_tensor *t,
                    uint64_t from, uint64_t nrows, uint64_t row, struct fsdp_err *err)
{
    for (int i = t->first_part; i < t->first_part + t->nparts; i++) {
        struct ckpt_job_part part = old->parts[i];
        uint64_t begin = part.row > from ? part.row : from, end = part.row + part.nrows;
        end = end < from + nrows ? end : from + nrows;
        if (begin >= end)
            continue;
        if (part.order != CKPT_ROWS_SAME && (begin - part.row) % part.group)
            return fsdp_err_set(err, FSDP_EUNSUPPORTED, "tensor '%s' is split inside of a head",
                                t->tensor.name);
        part.src_row += begin - part.row;
        part.row = row + begin - from;
        part.nrows = end - begin;
        FSDP_TRY(ckpt_job_add_part(job, &part, err));
    }
    return FSDP_OK;
}

static int add_like(struct ckpt_job *job, const struct ckpt_job_tensor *t, char *name,
                    uint64_t nrows, struct fsdp_err *err)
{
    struct fsdp_tensor tensor = t->tensor;
    if (!name)
        return FSDP_ENOMEM;
    tensor.name = ckpt_job_keep_name(job, name, err);
    if (tensor.ndim)
        tensor.shape[0] = nrows;
    int rc = tensor.name ? ckpt_job_add_tensor(job, &tensor, t->kind, err) : FSDP_ENOMEM;
    if (rc == FSDP_OK) {
        job->tensors[job->ntensors - 1].role = t->role;
        job->tensors[job->ntensors - 1].stored = strcmp(name, t->tensor.name) ? NULL : t->stored;
        job->tensors[job->ntensors - 1].own = t->own;
    }
    fsdp_free(name);
    return rc;
}

static bool fits(const struct fsdp_tensor *a, const struct fsdp_tensor *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim && a->ndim > 0 &&
           !memcmp(a->shape + 1, b->shape + 1, (size_t)(a->ndim - 1) * sizeof *a->shape);
}

static int fuse(struct ckpt_job *job, const struct old *old, const struct ckpt_job_tensor *first,
                const struct fusion *fusion, struct fsdp_err *err)
{
    const struct ckpt_job_tensor *members[3] = {first};
    uint64_t nrows = rows_of(first), row = 0;
    FSDP_TRY(check_rows(job, first, err));
    for (int i = 1; i < fusion->nmembers; i++) {
        char *name =
            replace_module(first->tensor.name, fusion->members[0], fusion->members[i], err);
        if (!name)
            return FSDP_ENOMEM;
        members[i] = find_old(old, name);
        int rc = FSDP_OK;
        if (!members[i] || !fits(&first->tensor, &members[i]->tensor))
            rc = fsdp_err_set(err, FSDP_EINVAL, "'%s' cannot be joined with '%s': %s",
                              first->tensor.name, name,
                              members[i] ? "another dtype or row" : "there is none");
        fsdp_free(name);
        FSDP_TRY(rc);
        nrows += rows_of(members[i]);
    }
    FSDP_TRY(add_like(job, first,
                      replace_module(first->tensor.name, fusion->members[0], fusion->whole, err),
                      nrows, err));
    for (int i = 0; i < fusion->nmembers; i++) {
        FSDP_TRY(add_rows(job, old, members[i], 0, rows_of(members[i]), row, err));
        row += rows_of(members[i]);
    }
    return FSDP_OK;
}

static int split_tensor(struct ckpt_job *job, const struct old *old,
                        const struct ckpt_job_tensor *t, const struct fusion *fusion,
                        struct fsdp_err *err)
{
    uint64_t shares[3] = {1, 1, 1}, all = 0, from = 0;
    struct ckpt_job_heads heads;
    FSDP_TRY(check_rows(job, t, err));
    if (fusion->nmembers == 3) {
        FSDP_TRY(ckpt_job_heads(&heads, job, t->tensor.name, err));
        shares[0] = heads.query;
        shares[1] = shares[2] = heads.key;
    }
    for (int i = 0; i < fusion->nmembers; i++)
        all += shares[i];
    if (!t->tensor.ndim || rows_of(t) % all)
        return fsdp_err_set(
            err, FSDP_EINVAL, "tensor '%s' has %llu rows, which are not %llu equal parts",
            t->tensor.name, (unsigned long long)rows_of(t), (unsigned long long)all);
    for (int i = 0; i < fusion->nmembers; i++) {
        uint64_t nrows = rows_of(t) / all * shares[i];
        FSDP_TRY(add_like(job, t,
                          replace_module(t->tensor.name, fusion->whole, fusion->members[i], err),
                          nrows, err));
        FSDP_TRY(add_rows(job, old, t, from, nrows, 0, err));
        from += nrows;
    }
    return FSDP_OK;
}

static int remake_one(struct ckpt_job *job, const struct old *old, const struct ckpt_job_tensor *t,
                      const struct fusion *fusion, bool join, struct fsdp_err *err)
{
    const char *name = t->tensor.name;
    if (join && has_module(name, fusion->members[0]))
        return fuse(job, old, t, fusion, err);
    for (int i = 1; join && i < fusion->nmembers; i++)
        if (has_module(name, fusion->members[i]))
            return FSDP_OK; /* it came with the first */
    if (!join && has_module(name, fusion->whole))
        return split_tensor(job, old, t, fusion, err);
    FSDP_TRY(add_like(job, t, fsdp_strdup(name, err), rows_of(t), err));
    return add_rows(job, old, t, 0, rows_of(t), 0, err);
}

/* Lists all tensors anew, with those of a fusion joined or split. */
static int remake(struct ckpt_job *job, const struct fusion *fusion, bool join,
                  struct fsdp_err *err)
{
    struct old old = {job->ntensors, job->tensors, job->parts};
    int rc = FSDP_OK;
    job->tensors = NULL;
    job->parts = NULL;
    job->ntensors = job->nparts = 0;
    job->max_tensors = job->max_parts = 0;
    for (int i = 0; rc == FSDP_OK && i < old.ntensors; i++)
        rc = remake_one(job, &old, &old.tensors[i], fusion, join, err);
    fsdp_free(old.tensors);
    fsdp_free(old.parts);
    return rc;
}

static int apply(struct ckpt_job *job, const struct ckpt_map *map, int *nchanged,
                 struct fsdp_err *err)
{
    int before = job->ntensors, rc;
    switch (map->action) {
    case CKPT_MAP_FUSE_QKV:
        rc = remake(job, &qkv, true, err);
        break;
    case CKPT_MAP_SPLIT_QKV:
        rc = remake(job, &qkv, false, err);
        break;
    case CKPT_MAP_FUSE_GATE_UP:
        rc = remake(job, &gate_up, true, err);
        break;
    case CKPT_MAP_SPLIT_GATE_UP:
        rc = remake(job, &gate_up, false, err);
        break;
    case CKPT_MAP_MEGATRON:
        *nchanged = 1;
        return ckpt_job_map_megatron(job, err);
    case CKPT_MAP_TITAN:
        FSDP_TRY(ckpt_job_map_experts(job, map->to_pairs, nchanged, err));
        return rename_all(job, map, nchanged, err);
    default:
        return rename_all(job, map, nchanged, err);
    }
    *nchanged = job->ntensors - before;
    return rc;
}

/* Megatron's names are of no use to programs that load Hugging Face's. */
static void tell_of_megatron(const struct ckpt_job *job)
{
    for (int i = 0; i < job->ntensors; i++)
        if (!strncmp(job->tensors[i].tensor.name, "decoder.layers.", 15) &&
            strstr(job->tensors[i].tensor.name, "self_attention.linear_qkv")) {
            fsdp_log(FSDP_LOG_INFO,
                     "'%s': its names are Megatron-Core's; --map megatron-to-hf gives those of "
                     "Hugging Face",
                     job->ckpt->path);
            return;
        }
}

/* Has the tensor a name that this map makes? The other map, `back`, changes all of them but those
 * of experts, which it does not join. */
static int is_mapped(bool *out, const struct ckpt_map *back, const char *name, struct fsdp_err *err)
{
    char *before = ckpt_map_tensor_name(back, name, false, NULL, err);
    if (!before)
        return FSDP_ENOMEM;
    *out = strcmp(before, name) || (back->to_pairs && strstr(name, ".mlp.experts."));
    fsdp_free(before);
    return FSDP_OK;
}

/* Half the names of one program and half of the other's load nowhere. */
static int tell_of_unmapped(const struct ckpt_job *job, const char *text,
                            const struct ckpt_map *map, struct fsdp_err *err)
{
    const char *first = NULL;
    int nunmapped = 0, nweights = 0, rc = FSDP_OK;
    struct ckpt_map back;

    FSDP_TRY(ckpt_map_create(&back, map->to_pairs ? CKPT_MAP_TO_HF : CKPT_MAP_TO_TITAN, err));
    for (int i = 0; rc == FSDP_OK && i < job->ntensors; i++) {
        const struct ckpt_job_tensor *t = &job->tensors[i];
        bool mapped = true;
        if (t->kind != FSDP_SLICE_MODEL)
            continue;
        rc = is_mapped(&mapped, &back, t->tensor.name, err);
        first = !mapped && !first ? t->tensor.name : first;
        nunmapped += !mapped;
        nweights++;
    }
    ckpt_map_destroy(&back);
    if (rc == FSDP_OK && nunmapped)
        fsdp_log(FSDP_LOG_WARN,
                 "map '%s' does not fit %d of %d tensors, which keep their names, such as '%s': "
                 "rename them before (--map FILE), or leave them out (--exclude)",
                 text, nunmapped, nweights, first);
    return rc;
}

int ckpt_job_map(struct ckpt_job *job, bool tell, struct fsdp_err *err)
{
    int rc = FSDP_OK;

    if (tell && !job->args->select.nmaps)
        tell_of_megatron(job);
    for (int i = 0; rc == FSDP_OK && i < job->args->select.nmaps; i++) {
        struct ckpt_map map;
        int nchanged = 0;
        FSDP_TRY(ckpt_map_create(&map, job->args->select.maps[i], err));
        rc = apply(job, &map, &nchanged, err);
        if (rc == FSDP_OK && tell && !nchanged)
            fsdp_log(FSDP_LOG_WARN, "map '%s' changes nothing: it fits no name, such as '%s'",
                     job->args->select.maps[i], job->tensors[0].tensor.name);
        else if (rc == FSDP_OK && tell && map.action == CKPT_MAP_TITAN)
            rc = tell_of_unmapped(job, job->args->select.maps[i], &map, err);
        ckpt_map_destroy(&map);
    }
    return rc;
}
