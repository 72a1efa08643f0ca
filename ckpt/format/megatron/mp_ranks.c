/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "mp_ranks.h"

/* "_007": a number behind a line. */
static bool take_number(int *out, const char **name)
{
    const size_t ndigits = **name == '_' ? strspn(*name + 1, "0123456789") : 0;
    if (!ndigits || ndigits > 6)
        return false;
    *out = (int)strtol(*name + 1, NULL, 10);
    *name += 1 + ndigits;
    return true;
}

bool ckpt_megatron_folder(int *split, int *stage, bool *more, const char *name)
{
    static const char front[] = "mp_rank";
    int expert;

    *stage = 0;
    *more = false;
    if (strncmp(name, front, sizeof front - 1) != 0)
        return false;
    name += sizeof front - 1;
    if (!take_number(split, &name))
        return false;
    if (take_number(stage, &name))
        *more = take_number(&expert, &name);
    return !*name;
}

/* Counts the ranks, and which of them are there: seen[stage * most + split]. */
static int count_ranks(struct ckpt_megatron_ranks *out, const struct ckpt *ckpt,
                       const struct ckpt_names *names, struct fsdp_err *err)
{
    for (int i = 0; i < names->nnames; i++) {
        int split, stage;
        bool more;
        if (!ckpt_megatron_folder(&split, &stage, &more, names->names[i]))
            continue;
        if (more)
            return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                                "'%s/%s' is of a rank of expert parallelism, which is not read",
                                ckpt->path, names->names[i]);
        if (split >= names->nnames || stage >= names->nnames)
            return fsdp_err_set(err, FSDP_ENOTFOUND,
                                "'%s/%s': there are folders of fewer ranks: some are missing",
                                ckpt->path, names->names[i]);
        out->nsplit = split + 1 > out->nsplit ? split + 1 : out->nsplit;
        out->nstages = stage + 1 > out->nstages ? stage + 1 : out->nstages;
    }
    return FSDP_OK;
}

static const char *folder_of(const struct ckpt_names *names, int split, int stage)
{
    for (int i = 0; i < names->nnames; i++) {
        int a, b;
        bool more;
        if (ckpt_megatron_folder(&a, &b, &more, names->names[i]) && a == split && b == stage)
            return names->names[i];
    }
    return NULL;
}

static int files_list(const struct ckpt_megatron_ranks *ranks, struct ckpt *ckpt,
                      const struct ckpt_names *names, struct fsdp_err *err)
{
    for (int i = 0; i < ranks->nsplit * ranks->nstages; i++) {
        const int split = i % ranks->nsplit, stage = i / ranks->nsplit;
        const char *folder = folder_of(names, split, stage);
        struct ckpt_store_stat st;
        if (!folder)
            return fsdp_err_set(err, FSDP_ENOTFOUND,
                                "'%s': the folder of tensor rank %d of %d, stage %d of %d, is "
                                "missing",
                                ckpt->path, split, ranks->nsplit, stage, ranks->nstages);
        char *file = fsdp_sprintf(err, "%s/" CKPT_MEGATRON_FILE, folder);
        char *path = file ? ckpt_path_join(ckpt->folder, file, err) : NULL;
        int rc = path ? ckpt_store_stat(&st, ckpt->store, path, err) : FSDP_ENOMEM;
        if (rc == FSDP_OK)
            rc = ckpt_layout_add_file(&ckpt->m.layout, file, st.nbytes, err);
        fsdp_free(path);
        fsdp_free(file);
        FSDP_TRY(rc);
    }
    return ckpt_readers_create(ckpt, err);
}

static int check_rank(const struct ckpt_megatron_ranks *ranks, int i, struct fsdp_err *err)
{
    const struct ckpt_pk *root = ranks->files[i].pickle.root, *args = ckpt_pk_get(root, "args");
    const struct ckpt_pk *first = ranks->files[0].pickle.root;
    uint64_t nsplit = (uint64_t)ranks->nsplit, nstages = (uint64_t)ranks->nstages;
    uint64_t iteration = 0, begun = 0;

    ckpt_pk_u64(&nsplit, ckpt_pk_get(args, "tensor_model_parallel_size"));
    ckpt_pk_u64(&nstages, ckpt_pk_get(args, "pipeline_model_parallel_size"));
    if (nsplit != (uint64_t)ranks->nsplit || nstages != (uint64_t)ranks->nstages)
        return fsdp_err_set(err, FSDP_ENOTFOUND,
                            "%s was saved by %llu tensor ranks in %llu stages, and there are "
                            "folders of %d in %d",
                            ranks->files[i].what, (unsigned long long)nsplit,
                            (unsigned long long)nstages, ranks->nsplit, ranks->nstages);
    ckpt_pk_u64(&begun, ckpt_pk_get(first, "iteration"));
    ckpt_pk_u64(&iteration, ckpt_pk_get(root, "iteration"));
    if (iteration != begun)
        return fsdp_err_set(err, FSDP_ECORRUPT,
                            "%s is of iteration %llu, and %s of iteration %llu: they are of two "
                            "saves",
                            ranks->files[i].what, (unsigned long long)iteration,
                            ranks->files[0].what, (unsigned long long)begun);
    return FSDP_OK;
}

int ckpt_megatron_ranks_open(struct ckpt_megatron_ranks *out, struct ckpt *ckpt,
                             struct fsdp_err *err)
{
    struct ckpt_names names;
    int file = ckpt->m.layout.nfiles;

    *out = (struct ckpt_megatron_ranks){0};
    FSDP_TRY(ckpt_store_names(&names, ckpt->store, ckpt->path, err));
    int rc = count_ranks(out, ckpt, &names, err);
    const int nranks = out->nsplit * out->nstages;
    if (rc == FSDP_OK &&
        !(out->files = fsdp_alloc((size_t)nranks, sizeof *out->files, "files of ranks", err)))
        rc = FSDP_ENOMEM;
    if (rc == FSDP_OK)
        rc = files_list(out, ckpt, &names, err);
    for (; rc == FSDP_OK && out->nopened < nranks; out->nopened++)
        rc =
            ckpt_saved_open(&out->files[out->nopened], ckpt, file++, ckpt_pickle_parse_opaque, err);
    for (int i = 0; rc == FSDP_OK && i < nranks; i++)
        rc = check_rank(out, i, err);
    ckpt_names_free(&names);
    return rc;
}

void ckpt_megatron_ranks_close(struct ckpt_megatron_ranks *ranks)
{
    for (int i = 0; i < ranks->nopened; i++)
        ckpt_saved_close(&ranks->files[i]);
    fsdp_free(ranks->files);
    *ranks = (struct ckpt_megatron_ranks){0};
}
