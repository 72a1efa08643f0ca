/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)

/* ---- names ----------------------------------------------------------------------------------- */

/* Skips `text` at the front of *name. */
static bool skip_text(const char **name, const char *text)
{
    const size_t nbytes = strlen(text);
    if (strncmp(*name, text, nbytes) != 0)
        return false;
    *name += nbytes;
    return true;
}

/* At most nine digits. */
static bool skip_number(int *out, const char **name)
{
    const size_t ndigits = strspn(*name, "0123456789");
    if (!ndigits || ndigits > 9)
        return false;
    *out = (int)strtol(*name, NULL, 10);
    *name += ndigits;
    return true;
}

enum ckpt_ds_kind ckpt_ds_kind_of(int *rank, int *model_rank, const char *name)
{
    const char *at = name;

    *rank = *model_rank = 0;
    const bool typed = skip_text(&at, "bf16_") || skip_text(&at, "fp16_");
    const bool of_rank =
        skip_text(&at, "zero_pp_rank_") && skip_number(rank, &at) && skip_text(&at, "_");
    if (!skip_text(&at, "mp_rank_") || !skip_number(model_rank, &at))
        return CKPT_DS_OTHER;
    if (!strcmp(at, "_model_states.pt") && !typed)
        return of_rank ? CKPT_DS_MODEL_OF_RANK : CKPT_DS_MODEL;
    return !strcmp(at, "_optim_states.pt") && of_rank ? CKPT_DS_OPTIM : CKPT_DS_OTHER;
}

/* ---- which files there are ------------------------------------------------------------------- */

struct found {
    const struct ckpt *ckpt;
    const char *model;             /* mp_rank_00_model_states.pt */
    const char **models, **optims; /* [most] by rank; NULL: missing */
    int most, nmodels, noptims;    /* ranks from 0 up to the highest, plus one */
};

static int refuse_parallel(const struct found *f, const char *name, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                        "'%s/%s' is a part of a model that was split over ranks (tensor or "
                        "pipeline parallelism, or experts); only data-parallel checkpoints of "
                        "DeepSpeed are read: convert it with DeepSpeed's ds_to_universal.py",
                        f->ckpt->path, name);
}

static int note_rank(const char **files, int *count, int rank, const char *name,
                     const struct found *f, struct fsdp_err *err)
{
    if (rank < 0 || rank >= f->most)
        return fsdp_err_set(err, FSDP_ENOTFOUND,
                            "'%s/%s' is of rank %d, and there are files of fewer ranks: files are "
                            "missing",
                            f->ckpt->path, name, rank);
    if (files[rank])
        return BAD("'%s' has two files of rank %d: '%s' and '%s'", f->ckpt->path, rank, files[rank],
                   name);
    files[rank] = name;
    *count = rank + 1 > *count ? rank + 1 : *count;
    return FSDP_OK;
}

static int note_file(struct found *f, const char *name, struct fsdp_err *err)
{
    int rank, model_rank;

    const enum ckpt_ds_kind kind = ckpt_ds_kind_of(&rank, &model_rank, name);
    const bool layered = !strncmp(name, "layer_", 6) || strstr(name, "expert_") != NULL;
    if ((kind != CKPT_DS_OTHER && model_rank) ||
        (layered && strstr(name, "model_states.pt") != NULL))
        return refuse_parallel(f, name, err);
    if (kind == CKPT_DS_MODEL)
        f->model = name;
    if (kind == CKPT_DS_MODEL_OF_RANK)
        return note_rank(f->models, &f->nmodels, rank, name, f, err);
    if (kind == CKPT_DS_OPTIM)
        return note_rank(f->optims, &f->noptims, rank, name, f, err);
    return FSDP_OK;
}

static int refuse_missing(const struct found *f, const char *const *files, int count,
                          const char *what, struct fsdp_err *err)
{
    for (int i = 0; i < count; i++)
        if (!files[i])
            return fsdp_err_set(err, FSDP_ENOTFOUND,
                                "'%s': the %s file of rank %d of %d is missing", f->ckpt->path,
                                what, i, count);
    return FSDP_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int file_list(struct ckpt *ckpt, const char *name, struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    char *path = ckpt_path_join(ckpt->folder, name, err);
    const int rc = path ? ckpt_store_stat(&st, ckpt->store, path, err) : FSDP_ENOMEM;

    fsdp_free(path);
    return rc ? rc : ckpt_layout_add_file(&ckpt->m.layout, name, st.nbytes, err);
}

static int files_open(struct ckpt_ds_ranks *out, struct ckpt *ckpt, const struct found *f,
                      struct fsdp_err *err)
{
    const char *const *models = f->nmodels ? f->models : (const char *const *)&f->model;
    int file = ckpt->m.layout.nfiles;

    out->by_rank = f->nmodels > 0;
    out->nmodels = f->nmodels ? f->nmodels : 1;
    out->models = fsdp_alloc((size_t)out->nmodels, sizeof *out->models, "files of ranks", err);
    out->optims = fsdp_alloc((size_t)f->noptims, sizeof *out->optims, "files of ranks", err);
    if (!out->models || !out->optims)
        return FSDP_ENOMEM;
    for (int i = 0; i < out->nmodels; i++)
        FSDP_TRY(file_list(ckpt, models[i], err));
    for (int i = 0; i < f->noptims; i++)
        FSDP_TRY(file_list(ckpt, f->optims[i], err));
    FSDP_TRY(ckpt_readers_create(ckpt, err));
    for (; out->nopened_models < out->nmodels; out->nopened_models++)
        FSDP_TRY(ckpt_saved_open(&out->models[out->nopened_models], ckpt, file++,
                                 ckpt_pickle_parse_opaque, err));
    for (; out->nopened_optims < f->noptims; out->nopened_optims++)
        FSDP_TRY(ckpt_saved_open(&out->optims[out->nopened_optims], ckpt, file++,
                                 ckpt_pickle_parse_opaque, err));
    return FSDP_OK;
}

/* ---- do they belong together? ---------------------------------------------------------------- */

static int check_step(const struct ckpt_ds_ranks *ranks, struct fsdp_err *err)
{
    uint64_t first = 0, other = 0;

    for (int i = 0; i < ranks->nmodels; i++) {
        const struct ckpt_pk *root = ranks->models[i].pickle.root;
        if (!ckpt_pk_u64(&other, ckpt_pk_get(root, "global_steps")))
            return BAD("%s has no 'global_steps'", ranks->models[i].what);
        if (i && other != first)
            return BAD("%s is of step %llu, and %s of step %llu: they are of two saves",
                       ranks->models[i].what, (unsigned long long)other, ranks->models[0].what,
                       (unsigned long long)first);
        first = i ? first : other;
    }
    return FSDP_OK;
}

static int check_world(struct ckpt_ds_ranks *ranks, struct fsdp_err *err)
{
    for (int i = 0; i < ranks->nmodels; i++) {
        const struct ckpt_pk *root = ranks->models[i].pickle.root;
        uint64_t world = 0, split = 1;
        ckpt_pk_u64(&split, ckpt_pk_get(root, "mp_world_size"));
        if (split > 1)
            return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                                "%s: the model was split over %llu ranks; only data-parallel "
                                "checkpoints of DeepSpeed are read",
                                ranks->models[i].what, (unsigned long long)split);
        if (!ckpt_pk_u64(&world, ckpt_pk_get(root, "dp_world_size")))
            return BAD("%s has no 'dp_world_size'", ranks->models[i].what);
        if (ranks->nopened_optims && world != (uint64_t)ranks->nopened_optims)
            return fsdp_err_set(err, FSDP_ENOTFOUND,
                                "%s was saved by %llu ranks, and there are optimizer files of %d",
                                ranks->models[i].what, (unsigned long long)world,
                                ranks->nopened_optims);
        if (ranks->by_rank && world != (uint64_t)ranks->nmodels)
            return fsdp_err_set(err, FSDP_ENOTFOUND,
                                "%s was saved by %llu ranks, and there are model files of %d",
                                ranks->models[i].what, (unsigned long long)world, ranks->nmodels);
        ranks->world = (int)world;
    }
    return FSDP_OK;
}

static int names_note(struct found *f, const struct ckpt_names *names, struct fsdp_err *err)
{
    f->most = names->nnames;
    f->models = fsdp_alloc((size_t)f->most, sizeof *f->models, "names of files", err);
    f->optims = fsdp_alloc((size_t)f->most, sizeof *f->optims, "names of files", err);
    if (!f->models || !f->optims)
        return FSDP_ENOMEM;
    for (int i = 0; i < names->nnames; i++)
        FSDP_TRY(note_file(f, names->names[i], err));
    if (!f->nmodels && !f->model)
        return fsdp_err_set(err, FSDP_ENOTFOUND, "'%s/mp_rank_00_model_states.pt' is missing",
                            f->ckpt->path);
    FSDP_TRY(refuse_missing(f, f->models, f->nmodels, "model", err));
    return refuse_missing(f, f->optims, f->noptims, "optimizer", err);
}

int ckpt_ds_ranks_open(struct ckpt_ds_ranks *out, struct ckpt *ckpt, struct fsdp_err *err)
{
    struct found f = {.ckpt = ckpt};
    struct ckpt_names names;

    *out = (struct ckpt_ds_ranks){0};
    FSDP_TRY(ckpt_store_names(&names, ckpt->store, ckpt->path, err));
    int rc = names_note(&f, &names, err);
    if (rc == FSDP_OK)
        rc = files_open(out, ckpt, &f, err);
    if (rc == FSDP_OK)
        rc = check_world(out, err);
    if (rc == FSDP_OK)
        rc = check_step(out, err);
    fsdp_free(f.models);
    fsdp_free(f.optims);
    ckpt_names_free(&names);
    return rc;
}

void ckpt_ds_ranks_close(struct ckpt_ds_ranks *ranks)
{
    for (int i = 0; i < ranks->nopened_models; i++)
        ckpt_saved_close(&ranks->models[i]);
    for (int i = 0; i < ranks->nopened_optims; i++)
        ckpt_saved_close(&ranks->optims[i]);
    fsdp_free(ranks->models);
    fsdp_free(ranks->optims);
    *ranks = (struct ckpt_ds_ranks){0};
}
