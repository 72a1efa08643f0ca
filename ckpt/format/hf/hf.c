/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain safetensors: one file, or a Hugging Face folder with or without
 * model.safetensors.index.json. Files that carry DCP_SHARDING_INFO (a native checkpoint's model/
 * folder, torch's sharded writer) are assembled from their boxes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "extras.h"
#include "hf_names.h"
#include "index.h"
#include "source/source.h"
#include "layout/tensor_name.h"
#include "util/text.h"
#include "source/format_ops.h"

static bool is_model_file(const char *name)
{
    return !strcmp(name, "model.safetensors") || !strncmp(name, "model-0", 7);
}

/* Mistral's own format, and the weights of an adapter. */
static bool is_first_set(const void *ctx, const char *name)
{
    (void)ctx;
    return strncmp(name, "consolidated", 12) && strcmp(name, "adapter_model.safetensors");
}

/* Without an index, these names are known to be another set where the model's are here. */
static void second_set_drop(struct ckpt_names *files, const struct ckpt *ckpt)
{
    static const struct ckpt_hf_belonging first = {
        is_first_set, NULL, "it is another set of weights than model*.safetensors"};
    for (int i = 0; i < files->nnames; i++)
        if (is_model_file(files->names[i])) {
            ckpt_hf_files_keep(files, &first, ckpt);
            return;
        }
}

/* The index's tensors must be where it says, and no others. */
static int index_match(struct ckpt_hf_index *index, const struct ckpt *ckpt,
                       const struct ckpt_st_header *headers, struct fsdp_err *err)
{
    for (int i = 0; i < ckpt->m.layout.nfiles; i++)
        for (int k = 0; k < headers[i].nentries; k++)
            FSDP_TRY(ckpt_hf_index_meet(index, headers[i].entries[k].name,
                                        ckpt->m.layout.files[i].path, err));
    return ckpt_hf_index_done(index, err);
}

struct part {
    const struct ckpt_st_entry *entry;
    int file;
};

static int compare_parts(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    int order = strcmp(x->entry->name, y->entry->name);
    if (order)
        return order;
    return x->file < y->file ? -1 : x->file > y->file;
}

/* The whole tensor that parts[0..count) belong to. Without a global_shape it is as large as the
 * parts reach, so that a lost tail cannot be noticed: torch's sharded files are like that. */
static int whole_shape(struct fsdp_tensor *out, const struct ckpt *ckpt, const struct part *parts,
                       size_t count, struct fsdp_err *err)
{
    const struct ckpt_st_entry *first = parts[0].entry;
    *out = (struct fsdp_tensor){.name = first->name, .dtype = first->dtype, .ndim = first->ndim};
    for (size_t i = 0; i < count; i++) {
        const struct ckpt_st_entry *entry = parts[i].entry;
        bool same = entry->dtype == first->dtype && entry->ndim == first->ndim &&
                    !entry->global_shape == !first->global_shape;
        for (int d = 0; same && d < entry->ndim; d++) {
            uint64_t end = entry->offset[d] + entry->shape[d];
            if (entry->global_shape)
                same = entry->global_shape[d] == first->global_shape[d];
            out->shape[d] = end > out->shape[d] ? end : out->shape[d];
        }
        if (!same)
            return fsdp_err_set(err, FSDP_ECORRUPT,
                                "tensor '%s': '%s' and '%s' disagree about its dtype or shape",
                                first->name, ckpt->m.layout.files[parts[0].file].path,
                                ckpt->m.layout.files[parts[i].file].path);
    }
    if (first->global_shape)
        memcpy(out->shape, first->global_shape, first->ndim * sizeof *out->shape);
    struct fsdp_err why = FSDP_ERR_INIT;
    if (fsdp_tensor_check(out, &why))
        return fsdp_err_pass(err, FSDP_ECORRUPT, &why);
    return FSDP_OK;
}

static int parts_take(struct ckpt *ckpt, const struct ckpt_st_header *headers,
                      const struct part *parts, size_t count, struct fsdp_err *err)
{
    struct ckpt_layout *layout = &ckpt->m.layout;
    struct fsdp_tensor tensor;
    for (size_t i = 0; i < count; i++) {
        const char *name = parts[i].entry->name;
        const char *why = ckpt_st_why(&headers[parts[i].file], parts[i].entry);
        if (why)
            return ckpt_unread_add(ckpt, name, name, CKPT_ROLE_MODEL, why, err);
    }
    FSDP_TRY(whole_shape(&tensor, ckpt, parts, count, err));
    for (size_t i = 1; i < count; i++)
        if (!headers[parts[i].file].sharded || !headers[parts[i - 1].file].sharded)
            return fsdp_err_set(err, FSDP_ECORRUPT, "tensor '%s' is in '%s' and in '%s'",
                                tensor.name, layout->files[parts[i - 1].file].path,
                                layout->files[parts[i].file].path);
    bool optim = headers[parts[0].file].sharded && ckpt_tensor_name_is_optim(tensor.name);
    FSDP_TRY(
        ckpt_layout_add_tensor(layout, &tensor, optim ? FSDP_SLICE_OPTIM : FSDP_SLICE_MODEL, err));
    for (size_t i = 0; i < count; i++) {
        const struct ckpt_st_entry *entry = parts[i].entry;
        const struct ckpt_piece piece = {.tensor = layout->ntensors - 1,
                                         .file = parts[i].file,
                                         .offset = entry->offset,
                                         .length = entry->shape,
                                         .pos = entry->pos};
        FSDP_TRY(ckpt_layout_add_piece(layout, &piece, err));
    }
    return FSDP_OK;
}

static int assemble(struct ckpt *ckpt, struct ckpt_st_header *headers, struct fsdp_err *err)
{
    size_t count = 0, n = 0;
    for (int i = 0; i < ckpt->m.layout.nfiles; i++) {
        ckpt->m.layout.files[i].header_nbytes = headers[i].header_nbytes;
        count += (size_t)headers[i].nentries;
    }
    struct part *parts = fsdp_alloc(count, sizeof *parts, "tensor parts", err);
    if (!parts)
        return FSDP_ENOMEM;
    for (int i = 0; i < ckpt->m.layout.nfiles; i++)
        for (int k = 0; k < headers[i].nentries; k++)
            parts[n++] = (struct part){&headers[i].entries[k], i};
    if (count)
        qsort(parts, count, sizeof *parts, compare_parts);
    int rc = ckpt_layout_reserve_pieces(&ckpt->m.layout, count, err);
    for (size_t i = 0, end; rc == FSDP_OK && i < count; i = end) {
        for (end = i + 1; end < count; end++)
            if (strcmp(parts[end].entry->name, parts[i].entry->name))
                break;
        rc = parts_take(ckpt, headers, parts + i, end - i, err);
    }
    fsdp_free(parts);
    FSDP_TRY(rc);
    FSDP_TRY(ckpt_layout_index(&ckpt->m.layout, err));
    return ckpt_layout_seal(&ckpt->m.layout, err);
}

/* torch keeps the pieces that it consolidated in sharded/. Up to 2.14 it writes zeros for tensors
 * without dimensions: these are read from the pieces. */
static int scalars_take(struct ckpt *ckpt, const char *name, struct fsdp_err *err)
{
    struct ckpt_layout *layout = &ckpt->m.layout;
    struct ckpt_st_header header = {0};
    struct ckpt_store_stat st;
    char *file = fsdp_sprintf(err, "sharded/%s", name);
    char *path = file ? ckpt_path_join(ckpt->folder, file, err) : NULL;
    int rc = path ? ckpt_store_stat(&st, ckpt->store, path, err) : FSDP_ENOMEM;
    bool added = false;
    if (rc == FSDP_OK)
        rc = ckpt_st_read(&header, &st, ckpt->store, path, ckpt->pool, err);
    for (int i = 0; rc == FSDP_OK && i < header.nentries; i++) {
        const struct ckpt_st_entry *entry = &header.entries[i];
        int at = ckpt_layout_find(layout, entry->name);
        const struct fsdp_tensor *tensor = at < 0 ? NULL : &layout->tensors[at].tensor;
        if (!tensor || entry->why || entry->ndim || tensor->ndim || entry->dtype != tensor->dtype)
            continue;
        if (!added)
            rc = ckpt_layout_add_file(layout, file, st.nbytes, err);
        added = true;
        struct ckpt_piece *piece = &layout->pieces[layout->first[at]];
        piece->file = layout->nfiles - 1;
        piece->pos = entry->pos;
    }
    ckpt_st_header_free(&header);
    fsdp_free(path);
    fsdp_free(file);
    return rc;
}

static int scalars_mend(struct ckpt *ckpt, struct fsdp_err *err)
{
    struct ckpt_names names;
    struct fsdp_err quiet = FSDP_ERR_INIT;
    bool any = false;
    for (int i = 0; i < ckpt->m.layout.ntensors; i++)
        any |= ckpt->m.layout.tensors[i].tensor.ndim == 0;
    if (!any || strcmp(ckpt->folder, ckpt->path))
        return FSDP_OK;
    char *folder = ckpt_path_join(ckpt->folder, "sharded", err);
    if (!folder)
        return FSDP_ENOMEM;
    int rc = ckpt_store_names(&names, ckpt->store, folder, &quiet);
    fsdp_free(folder);
    if (rc)
        return FSDP_OK; /* no such folder: nothing to repair it from */
    for (int i = 0; rc == FSDP_OK && i < names.nnames; i++)
        if (ckpt_hf_is_weights(names.names[i]))
            rc = scalars_take(ckpt, names.names[i], err);
    ckpt_names_free(&names);
    return rc;
}

/* Shapes that are only as large as the files reach: a lost tail is nothing that shows. Nor is a
 * file where neither an index nor names say how many there are. */
static void warn_of_guesses(struct ckpt *ckpt, const struct ckpt_st_header *headers, bool indexed)
{
    int nguessed = 0, nsharded = 0, nplain = 0;
    for (int i = 0; i < ckpt->m.layout.nfiles; i++) {
        nsharded += headers[i].sharded;
        nplain += !headers[i].sharded && !strstr(ckpt->m.layout.files[i].path, "-of-");
        for (int k = 0; headers[i].sharded && k < headers[i].nentries; k++)
            nguessed += headers[i].entries[k].ndim && !headers[i].entries[k].global_shape;
    }
    ckpt->is_guessed = nguessed || (!indexed && nplain && ckpt->m.layout.nfiles > 1);
    if (nguessed)
        fsdp_log(
            FSDP_LOG_WARN,
            "'%s': its %d sharded files do not say how large the tensors are; if the last ones "
            "are missing, it cannot be noticed",
            ckpt->path, nsharded);
}

/* The same weights as torch.save wrote them, or others: which one was not asked for. */
static void warn_of_torch(const struct ckpt *ckpt, const struct ckpt_names *all)
{
    const char *first = NULL;
    int count = 0;
    for (int i = 0; i < all->nnames; i++) {
        const char *name = all->names[i];
        if (!ckpt_hf_is_whole(name) || ckpt_hf_is_weights(name) || ckpt_hf_is_index(name) ||
            !strcmp(name, CKPT_ACCELERATE_FULL) || strstr(name, ".index."))
            continue;
        first = first && strcmp(first, name) < 0 ? first : name;
        count++;
    }
    if (count > 1)
        fsdp_log(FSDP_LOG_WARN,
                 "'%s/%s' and %d more files of torch.save are not read: the safetensors files are; "
                 "to read those, move them to a folder of their own",
                 ckpt->path, first, count - 1);
    else if (count)
        fsdp_log(FSDP_LOG_WARN,
                 "'%s/%s' is not read: the safetensors files are; to read that, name it",
                 ckpt->path, first);
}

static int files_find(struct ckpt *ckpt, struct ckpt_names *files, struct ckpt_hf_index *index,
                      struct fsdp_err *err)
{
    struct ckpt_names all;
    FSDP_TRY(ckpt_store_names(&all, ckpt->store, ckpt->path, err));
    int rc = ckpt_extras_find(ckpt, &all, err);
    for (int i = 0; rc == FSDP_OK && i < all.nnames; i++)
        if (ckpt_hf_is_weights(all.names[i]))
            rc = ckpt_names_add(files, all.names[i], err);
    if (rc == FSDP_OK)
        warn_of_torch(ckpt, &all);
    if (rc == FSDP_OK && ckpt_hf_names_have(&all, CKPT_HF_INDEX_NAME)) {
        rc = ckpt_hf_index_open(index, ckpt, CKPT_HF_INDEX_NAME, files, err);
    } else if (rc == FSDP_OK) {
        second_set_drop(files, ckpt);
        rc = ckpt_hf_refuse_incomplete(files, ckpt->path, "model", ".safetensors", err);
    }
    ckpt_names_free(&all);
    return rc;
}

static int open_hf(struct ckpt *ckpt, struct fsdp_err *err)
{
    struct ckpt_layout *layout = &ckpt->m.layout;
    struct ckpt_names files = {0};
    struct ckpt_st_header *headers = NULL;
    struct ckpt_hf_index index = {0};
    int rc, nread = 0;

    ckpt->m.step = -1;
    ckpt->m.shard_size = ckpt->m.replicate_size = 1;
    if (strcmp(ckpt->folder, ckpt->path))
        rc = ckpt_names_add(&files, ckpt_path_base(ckpt->path), err);
    else
        rc = files_find(ckpt, &files, &index, err);
    for (int i = 0; rc == FSDP_OK && i < files.nnames; i++) {
        struct ckpt_store_stat st;
        char *path = ckpt_path_join(ckpt->folder, files.names[i], err);
        rc = path ? ckpt_store_stat(&st, ckpt->store, path, err) : FSDP_ENOMEM;
        fsdp_free(path);
        if (rc == FSDP_OK)
            rc = ckpt_layout_add_file(layout, files.names[i], st.nbytes, err);
    }
    if (rc)
        goto out;
    FSDP_TRY_GOTO(ckpt_readers_create(ckpt, err), out);
    rc = FSDP_ENOMEM;
    if (!(headers = fsdp_alloc((size_t)layout->nfiles, sizeof *headers, "headers", err)))
        goto out;
    FSDP_TRY_GOTO(ckpt_headers_read(headers, ckpt, err), out);
    nread = layout->nfiles;
    if (index.map)
        FSDP_TRY_GOTO(index_match(&index, ckpt, headers, err), out);
    FSDP_TRY_GOTO(assemble(ckpt, headers, err), out);
    if (index.map)
        FSDP_TRY_GOTO(ckpt_hf_index_total(ckpt, &index, CKPT_HF_INDEX_NAME, err), out);
    warn_of_guesses(ckpt, headers, index.map != NULL);
    rc = scalars_mend(ckpt, err);
out:
    for (int i = 0; i < nread; i++)
        ckpt_st_header_free(&headers[i]);
    fsdp_free(headers);
    ckpt_hf_index_close(&index);
    ckpt_names_free(&files);
    return rc;
}

/* ---- recognizing ----------------------------------------------------------------------------- */

/* Any file that is none of another format: its header shows what it is. */
static int recognize_file(bool *out, struct ckpt *ckpt, const struct ckpt_store_stat *st,
                          struct fsdp_err *err)
{
    *out = !st->is_folder;
    if (*out && !(ckpt->folder = ckpt_path_parent(ckpt->path, err)))
        return FSDP_ENOMEM;
    return FSDP_OK;
}

struct seen {
    bool weights;
    char sharded[128]; /* what is there besides; "" nothing */
};

static int finds_safetensors(void *ctx, const char *name, struct fsdp_err *err)
{
    struct seen *seen = ctx;
    (void)err;
    seen->weights |= ckpt_hf_is_weights(name) || ckpt_hf_is_index(name);
    if (ckpt_hf_is_sharded(name))
        snprintf(seen->sharded, sizeof seen->sharded, "%s", name);
    return FSDP_OK;
}

static int recognize_folder(bool *out, struct ckpt *ckpt, struct fsdp_err *err)
{
    struct seen seen = {.weights = false};

    FSDP_TRY(ckpt_store_list(ckpt->store, ckpt->path, finds_safetensors, &seen, err));
    *out = seen.weights;
    if (*out && *seen.sharded)
        fsdp_log(
            FSDP_LOG_INFO,
            "'%s': its safetensors files are read; '%s' is there, too: name it for what the run "
            "saved",
            ckpt->path, seen.sharded);
    return FSDP_OK;
}

/* torch's Hugging Face layout has a .metadata, too. */
static const char *const heads[] = {CKPT_HF_INDEX_NAME, ".metadata", NULL};

const struct ckpt_format_ops ckpt_hf_ops = {
    .id = CKPT_HF,
    .identity = CKPT_IDENTITY_CTIME,
    .heads = heads,
    .recognize = recognize_file,
    .recognize_within = recognize_folder,
    .open = open_hf,
};
