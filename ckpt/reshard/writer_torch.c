/* SPDX-License-Identifier: Apache-2.0 */
/* Output of whole tensors as torch.save writes a state dict: one file, or a folder that
 * transformers reads. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "average/average.h"
#include "ckpt/adapter.h"
#include "file/sink.h"
#include "format/torch/torch_write.h"
#include "source/format_ops.h"
#include "util/crc.h"
#include "writer.h"

/* A name of the dict. Tensors are those of the job, each of which has a storage. */
struct entry {
    const char *name;
    int tensor;
    bool alias;
};

struct plan {
    int nentries;
    struct entry *entries; /* in the order of the input; its other names of tensors are the last */
    int nfiles;
    size_t max_files;
    struct file {
        struct ckpt_torch_file made;
        atomic_size_t left; /* storages whose bytes are not all written */
    } * files;
};

/* ---- names and storages ---------------------------------------------------------------------- */

/* A whole stored tensor, as it is; -1: the output tensor is something else. */
static int whole_of(const struct ckpt_job *job, const struct ckpt_job_tensor *t)
{
    const struct ckpt_job_part *part = &job->parts[t->first_part];
    const struct ckpt_tensor *stored = &job->ckpt->m.layout.tensors[part->tensor];
    const uint64_t nrows = stored->tensor.ndim ? stored->tensor.shape[0] : 1;
    const bool whole = t->nparts == 1 && part->order == CKPT_ROWS_SAME && !part->skip &&
                       !part->in_slab && part->nrows == nrows;
    return whole && !ckpt_adapters_change(job->args->adapters, ckpt_own_name(stored)) ? part->tensor
                                                                                      : -1;
}

static bool same_places(const struct ckpt_layout *layout, int a, int b)
{
    const struct fsdp_tensor *x = &layout->tensors[a].tensor, *y = &layout->tensors[b].tensor;
    const size_t npieces = layout->first[a + 1] - layout->first[a];
    bool same = x->dtype == y->dtype && x->ndim == y->ndim &&
                !memcmp(x->shape, y->shape, (size_t)x->ndim * sizeof *x->shape) &&
                layout->first[b + 1] - layout->first[b] == npieces && npieces;
    for (size_t i = 0; same && i < npieces; i++) {
        const struct ckpt_piece *p = &layout->pieces[layout->first[a] + i];
        const struct ckpt_piece *q = &layout->pieces[layout->first[b] + i];
        same = p->file == q->file && p->pos == q->pos &&
               !memcmp(p->offset, q->offset, (size_t)x->ndim * sizeof *p->offset) &&
               !memcmp(p->length, q->length, (size_t)x->ndim * sizeof *p->length);
    }
    return same;
}

/* Do two stored tensors have the very same bytes? */
static bool are_tied(const struct ckpt *ckpt, int a, int b)
{
    return same_places(&ckpt->m.layout, a, b) &&
           (!ckpt->format->read_extent ||
            (ckpt->format->same_view && ckpt->format->same_view(ckpt, a, b)));
}

/* An average has the same values only where all of its checkpoints have. */
static bool stay_tied(const struct ckpt_job *job, int a, int b)
{
    return job->args->average ? ckpt_average_every(job->args->average, are_tied, a, b)
                              : are_tied(job->ckpt, a, b);
}

/* Where the first piece of a whole tensor lies. */
struct place {
    int file, tensor, stored;
    uint64_t pos;
};

static int compare_places(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->pos != y->pos)
        return x->pos < y->pos ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

/* first[i]: the first tensor with the bytes of tensor i: itself, where there is none before. */
static int find_tied(int *first, const struct ckpt_job *job, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &job->ckpt->m.layout;
    struct place *places =
        fsdp_alloc((size_t)job->ntensors, sizeof *places, "places of tensors", err);
    size_t count = 0;
    if (!places)
        return FSDP_ENOMEM;
    for (int i = 0; i < job->ntensors; i++) {
        const int stored = whole_of(job, &job->tensors[i]);
        first[i] = i;
        if (stored < 0 || layout->first[stored] == layout->first[stored + 1])
            continue;
        const struct ckpt_piece *piece = &layout->pieces[layout->first[stored]];
        places[count++] = (struct place){piece->file, i, stored, piece->pos};
    }
    qsort(places, count, sizeof *places, compare_places);
    for (size_t i = 1; i < count; i++)
        for (size_t k = i;
             k-- && places[k].file == places[i].file && places[k].pos == places[i].pos;)
            if (stay_tied(job, places[k].stored, places[i].stored)) {
                first[places[i].tensor] = first[places[k].tensor];
                break;
            }
    fsdp_free(places);
    return FSDP_OK;
}

/* Takes the tied ones out of the job's list, which keeps its order; first[i] becomes the place of
 * tensor i, or of the one that it is tied to, in the new list. */
static void drop_tied(struct ckpt_job *job, int *first)
{
    int ntensors = 0, nparts = 0;
    for (int i = 0; i < job->ntensors; i++) {
        struct ckpt_job_tensor t = job->tensors[i];
        if (first[i] != i) {
            first[i] = first[first[i]];
            continue;
        }
        memmove(&job->parts[nparts], &job->parts[t.first_part],
                (size_t)t.nparts * sizeof *job->parts);
        t.first_part = nparts;
        nparts += t.nparts;
        first[i] = ntensors;
        job->tensors[ntensors++] = t;
    }
    job->ntensors = ntensors;
    job->nparts = nparts;
}

static bool has_name(const struct plan *plan, const char *name)
{
    for (int i = 0; i < plan->nentries; i++)
        if (!strcmp(plan->entries[i].name, name))
            return true;
    return false;
}

/* The other names that the input has for tensors. */
static void add_aliases(struct plan *plan, const struct ckpt_job *job)
{
    for (int i = 0; i < job->naliases; i++) {
        const struct ckpt_job_alias *alias = &job->aliases[i];
        const int target = ckpt_job_find_stored(job, alias->stored);
        if (target >= 0 && ckpt_select_matches(&job->args->select, alias->name) &&
            !has_name(plan, alias->name))
            plan->entries[plan->nentries++] = (struct entry){alias->name, target, true};
    }
}

static int plan_torch(struct ckpt_job *job, struct fsdp_err *err)
{
    const size_t most = (size_t)job->ntensors + (size_t)job->naliases;
    struct plan *plan = job->plan = fsdp_alloc(1, sizeof *plan, "plan", err);
    if (!plan || !(plan->entries = fsdp_alloc(most, sizeof *plan->entries, "names", err)))
        return FSDP_ENOMEM;
    int *first = fsdp_alloc((size_t)job->ntensors, sizeof *first, "tied tensors", err);
    int rc = first ? find_tied(first, job, err) : FSDP_ENOMEM;
    if (rc == FSDP_OK) {
        for (int i = 0; i < job->ntensors; i++)
            plan->entries[plan->nentries++] =
                (struct entry){job->tensors[i].tensor.name, i, first[i] != i};
        drop_tied(job, first);
        for (int i = 0; i < plan->nentries; i++)
            plan->entries[i].tensor = first[i];
        add_aliases(plan, job);
    }
    fsdp_free(first);
    job->plan_hash = FSDP_HASH_SEED;
    for (int i = 0; i < plan->nentries; i++) {
        const struct entry *entry = &plan->entries[i];
        job->plan_hash = fsdp_hash(job->plan_hash, entry->name, strlen(entry->name) + 1);
        job->plan_hash = fsdp_hash(job->plan_hash, &entry->tensor, sizeof entry->tensor);
    }
    return rc;
}

static void end_torch(struct ckpt_job *job)
{
    struct plan *plan = job->plan;
    if (!plan)
        return;
    for (int i = 0; i < plan->nfiles; i++) {
        fsdp_free(plan->files[i].made.entries);
        fsdp_free(plan->files[i].made.storages);
    }
    fsdp_free(plan->files);
    fsdp_free(plan->entries);
    fsdp_free(plan);
    job->plan = NULL;
}

/* ---- a file ---------------------------------------------------------------------------------- */

/* The dict of one file; storage_of: [ntensors] the storage of a tensor that is in it, plus one. */
static int list_entries(struct ckpt_torch_file *made, const struct ckpt_job *job,
                        const size_t *storage_of, struct fsdp_err *err)
{
    const struct plan *plan = job->plan;
    size_t count = 0;
    for (int i = 0; i < plan->nentries; i++)
        count += storage_of[plan->entries[i].tensor] != 0;
    if (!(made->entries = fsdp_alloc(count, sizeof *made->entries, "names", err)))
        return FSDP_ENOMEM;
    for (int i = 0; i < plan->nentries; i++) {
        const struct entry *entry = &plan->entries[i];
        if (storage_of[entry->tensor])
            made->entries[made->nentries++] =
                (struct ckpt_torch_entry){.name = entry->name,
                                          .tensor = &job->tensors[entry->tensor].tensor,
                                          .storage = storage_of[entry->tensor] - 1};
    }
    return FSDP_OK;
}

static int make_file(struct ckpt_torch_file *made, const struct ckpt_job *job,
                     const struct ckpt_job_piece *pieces, int npieces, struct fsdp_err *err)
{
    size_t *storage_of =
        fsdp_alloc((size_t)job->ntensors, sizeof *storage_of, "storages of tensors", err);
    made->storages = fsdp_alloc((size_t)npieces, sizeof *made->storages, "storages", err);
    int rc = storage_of && made->storages ? FSDP_OK : FSDP_ENOMEM;
    made->nstorages = (size_t)npieces;
    for (int i = 0; rc == FSDP_OK && i < npieces; i++) {
        const struct ckpt_job_tensor *t = &job->tensors[pieces[i].tensor];
        storage_of[pieces[i].tensor] = (size_t)i + 1;
        made->storages[i].nbytes = ckpt_job_nbytes(t, fsdp_tensor_nelem(&t->tensor));
    }
    if (rc == FSDP_OK)
        rc = list_entries(made, job, storage_of, err);
    fsdp_free(storage_of);
    return rc ? rc : ckpt_torch_file_place(made, err);
}

/* Files are made in their order before any is written; then they stay where they are. */
static struct file *take_file(struct ckpt_job *job, int index, struct fsdp_err *err)
{
    struct plan *plan = job->plan;
    if (index < plan->nfiles)
        return &plan->files[index];
    struct file *grown = fsdp_alloc_grow(plan->files, (size_t)plan->nfiles, &plan->max_files,
                                         sizeof *grown, "files", err);
    if (!grown)
        return NULL;
    plan->files = grown;
    memset(&grown[plan->nfiles], 0, sizeof *grown);
    return &grown[plan->nfiles++];
}

static int place_storages(struct ckpt_job_piece *pieces, int npieces, struct ckpt_job *job,
                          int index, struct fsdp_err *err)
{
    struct file *file = take_file(job, index, err);
    char *head;
    size_t head_nbytes, left = 0;
    if (!file)
        return FSDP_ENOMEM;
    if (!file->made.storages)
        FSDP_TRY(make_file(&file->made, job, pieces, npieces, err));
    for (int i = 0; i < npieces; i++) {
        pieces[i].pos = file->made.storages[i].pos;
        pieces[i].nbytes = file->made.storages[i].nbytes;
        left += pieces[i].nbytes != 0;
    }
    atomic_store(&file->left, left);
    FSDP_TRY(ckpt_torch_file_head(&head, &head_nbytes, &file->made, err));
    fsdp_free(head);
    job->files[index].header_nbytes = head_nbytes;
    job->files[index].nbytes = file->made.nbytes;
    return FSDP_OK;
}

static char *make_header(const struct ckpt_job *job, int index, struct fsdp_err *err)
{
    const struct plan *plan = job->plan;
    char *head;
    size_t nbytes;
    return ckpt_torch_file_head(&head, &nbytes, &plan->files[index].made, err) ? NULL : head;
}

/* The storage that begins at a place: they lie in order. */
static size_t storage_at(const struct ckpt_torch_file *made, uint64_t pos)
{
    size_t low = 0, high = made->nstorages;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (made->storages[mid].pos < pos)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static int put_gap(struct ckpt_job *job, int index, size_t storage, struct fsdp_err *err)
{
    const struct plan *plan = job->plan;
    const struct ckpt_torch_file *made = &plan->files[index].made;
    const uint64_t pos = made->storages[storage].pos + made->storages[storage].nbytes;
    char *gap;
    size_t nbytes;
    FSDP_TRY(ckpt_torch_file_gap(&gap, &nbytes, made, storage, err));
    const int rc = ckpt_job_sink_put(job->files[index].sink, gap, nbytes, pos,
                                     ckpt_crc32c(0, gap, nbytes), err);
    fsdp_free(gap);
    return rc;
}

/* The file's end has all checksums: whoever is the last writes it. */
static int wrap_storage(struct ckpt_job *job, int index, const struct ckpt_job_piece *piece,
                        uint32_t crc32, struct fsdp_err *err)
{
    const struct plan *plan = job->plan;
    struct file *file = &plan->files[index];
    struct ckpt_torch_file *made = &file->made;
    const size_t storage = storage_at(made, piece->pos);
    made->storages[storage].crc32 = crc32;
    const bool last = ckpt_torch_file_is_last(made, storage);
    const bool whole = atomic_fetch_sub(&file->left, 1) == 1;
    if (!last)
        FSDP_TRY(put_gap(job, index, storage, err));
    if (!whole)
        return FSDP_OK;
    size_t end = made->nstorages - 1;
    while (!made->storages[end].nbytes)
        end--;
    return put_gap(job, index, end, err);
}

/* ---- a folder -------------------------------------------------------------------------------- */

static int finish_folder(struct ckpt_job *job, const struct ckpt_extra *extras, int nextras,
                         struct fsdp_err *err)
{
    const struct plan *plan = job->plan;
    (void)extras;
    (void)nextras;
    struct ckpt_alias *more = fsdp_alloc((size_t)plan->nentries, sizeof *more, "index", err);
    const char **files = fsdp_alloc((size_t)job->ntensors, sizeof *files, "files of tensors", err);
    int nmore = 0, rc = more && files ? FSDP_OK : FSDP_ENOMEM;
    for (int f = 0; rc == FSDP_OK && f < job->nfiles; f++)
        for (int i = 0; i < job->files[f].ntensors; i++)
            files[job->order[job->files[f].first + i]] = job->files[f].name;
    for (int i = 0; rc == FSDP_OK && i < plan->nentries; i++)
        if (plan->entries[i].alias)
            more[nmore++] =
                (struct ckpt_alias){plan->entries[i].name, files[plan->entries[i].tensor]};
    if (rc == FSDP_OK)
        rc = ckpt_job_finish_folder(job, more, nmore, err);
    fsdp_free(files);
    fsdp_free(more);
    return rc;
}

const struct ckpt_writer_ops ckpt_writer_torch = {
    .id = CKPT_OUTPUT_TORCH,
    .place = CKPT_PLACE_TORCH,
    .single_file = true,
    .outer_names = true,
    .has_card = true,
    .in_order = true,
    .index_name = CKPT_TORCH_INDEX_NAME,
    .stem = CKPT_TORCH_WEIGHTS_STEM,
    .ext = ".bin",
    .file_ends = ".pt, .pth or .bin",
    .names_file = ckpt_torch_is_file_name,
    .plan = plan_torch,
    .end = end_torch,
    .header = make_header,
    .place_pieces = place_storages,
    .wrap = wrap_storage,
    .finish = finish_folder,
};
