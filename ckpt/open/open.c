/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a checkpoint of whatever kind, and questions about an opened one. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "format/dcp/blob.h"
#include "format/dcp/dcp.h"
#include "format/hf/hf_names.h"
#include "source/source.h"

int ckpt_is_published(bool *out, const struct ckpt_store_ops *ops, const char *folder,
                      struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    struct fsdp_err why = FSDP_ERR_INIT;
    char *path = ckpt_path_join(folder, CKPT_MANIFEST_NAME, err);
    if (!path)
        return FSDP_ENOMEM;
    int rc = ckpt_store_stat(&st, ops, path, &why);
    *out = rc == FSDP_OK && !st.is_folder;
    fsdp_free(path);
    return rc == FSDP_OK || rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
}

int64_t ckpt_step_of_name(const char *name)
{
    static const char prefix[] = "step-";
    if (strncmp(name, prefix, sizeof prefix - 1))
        return -1;
    name += sizeof prefix - 1;
    size_t ndigits = strspn(name, "0123456789");
    if (ndigits < 8 || ndigits > 18 || name[ndigits])
        return -1;
    return (int64_t)strtoll(name, NULL, 10);
}

int ckpt_latest(char *out, size_t out_nbytes, const char *root, struct fsdp_err *err)
{
    const struct ckpt_store_ops *ops;
    struct ckpt_names names;
    int64_t newest = -1;
    int rc = FSDP_OK;

    FSDP_TRY(ckpt_store_of(&ops, root, err));
    FSDP_TRY(ckpt_store_names(&names, ops, root, err));
    char *best = NULL;
    for (int i = 0; rc == FSDP_OK && i < names.nnames; i++) {
        int64_t step = ckpt_step_of_name(names.names[i]);
        bool published = false;
        if (step <= newest)
            continue;
        char *path = ckpt_path_join(root, names.names[i], err);
        rc = path ? ckpt_is_published(&published, ops, path, err) : FSDP_ENOMEM;
        if (published) {
            newest = step;
            fsdp_free(best);
            best = path;
        } else {
            fsdp_free(path);
        }
    }
    if (rc)
        goto out;
    if (!best)
        rc = fsdp_err_set(err, FSDP_ENOTFOUND, "'%s' holds no finished checkpoint", root);
    else if (strlen(best) >= out_nbytes)
        rc = fsdp_err_set(err, FSDP_EINVAL, "'%s': path too long", best);
    else
        strcpy(out, best);
out:
    fsdp_free(best);
    ckpt_names_free(&names);
    return rc;
}

static int finds_safetensors(void *ctx, const char *name, struct fsdp_err *err)
{
    (void)err;
    *(bool *)ctx |= ckpt_hf_is_weights(name) || ckpt_hf_is_index(name);
    return FSDP_OK;
}

/* What lies in a folder that is no checkpoint, and may be what was meant. */
struct nearby {
    const struct ckpt *ckpt;
    char *torch_folder; /* a checkpoint of torch's, that of the highest number */
    char *torch_file;   /* what torch.save wrote */
    int64_t number;
};

static int64_t number_at_end(const char *name)
{
    size_t len = strlen(name), begin = len;
    while (begin && len - begin < 18 && name[begin - 1] >= '0' && name[begin - 1] <= '9')
        begin--;
    return begin < len ? (int64_t)strtoll(name + begin, NULL, 10) : -1;
}

static int keep(char **to, const char *name, struct fsdp_err *err)
{
    fsdp_free(*to);
    *to = fsdp_strdup(name, err);
    return *to ? FSDP_OK : FSDP_ENOMEM;
}

static int look_nearby(struct nearby *near, const char *name, struct fsdp_err *err)
{
    static const char *const ends[] = {".pt", ".pth", ".bin", ".ckpt"};
    const char *end = strrchr(name, '.');
    struct fsdp_err quiet = FSDP_ERR_INIT;
    struct ckpt_store_stat st;

    for (size_t i = 0; end && i < sizeof ends / sizeof ends[0]; i++)
        if (!strcmp(end, ends[i]))
            return keep(&near->torch_file, name, err);
    if (near->torch_folder && number_at_end(name) < near->number)
        return FSDP_OK;
    char *path = fsdp_sprintf(err, "%s/%s/" CKPT_DCP_METADATA_NAME, near->ckpt->path, name);
    int rc = path ? FSDP_OK : FSDP_ENOMEM;
    if (rc == FSDP_OK && ckpt_store_stat(&st, near->ckpt->store, path, &quiet) == FSDP_OK) {
        near->number = number_at_end(name);
        rc = keep(&near->torch_folder, name, err);
    }
    fsdp_free(path);
    return rc;
}

static int refuse_unknown(const struct ckpt *ckpt, struct fsdp_err *err)
{
    struct nearby near = {.ckpt = ckpt};
    struct ckpt_names names;

    FSDP_TRY(ckpt_store_names(&names, ckpt->store, ckpt->path, err));
    int rc = FSDP_OK;
    for (int i = 0; rc == FSDP_OK && i < names.nnames && i < 1000; i++)
        rc = look_nearby(&near, names.names[i], err);
    ckpt_names_free(&names);
    if (rc == FSDP_OK && near.torch_folder)
        rc = fsdp_err_set(err, FSDP_ENOTFOUND,
                          "'%s' is no checkpoint, but holds some of torch's: name one of them, "
                          "such as '%s/%s'",
                          ckpt->path, ckpt->path, near.torch_folder);
    else if (rc == FSDP_OK && near.torch_file)
        rc = fsdp_err_set(err, FSDP_ENOTFOUND,
                          "'%s' is no checkpoint: '%s' looks like torch.save's, which is not "
                          "read; this makes a folder that is: python -m "
                          "torch.distributed.checkpoint.format_utils torch_to_dcp '%s/%s' FOLDER",
                          ckpt->path, near.torch_file, ckpt->path, near.torch_file);
    else if (rc == FSDP_OK)
        rc = fsdp_err_set(err, FSDP_ENOTFOUND,
                          "'%s' is no checkpoint: it has no " CKPT_MANIFEST_NAME
                          " (a save that never finished has none), no .metadata of torch, no "
                          "*.safetensors and no finished step-*",
                          ckpt->path);
    fsdp_free(near.torch_folder);
    fsdp_free(near.torch_file);
    return rc;
}

/* Decides what path is; for a root of checkpoints, path becomes that of its newest. */
static int recognize(struct ckpt *ckpt, struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    bool has = false, published;
    char latest[4096];

    FSDP_TRY(ckpt_store_stat(&st, ckpt->store, ckpt->path, err));
    ckpt->format = CKPT_HF;
    if (!st.is_folder) {
        ckpt->folder = ckpt_path_parent(ckpt->path, err);
        return ckpt->folder ? FSDP_OK : FSDP_ENOMEM;
    }
    FSDP_TRY(ckpt_is_published(&published, ckpt->store, ckpt->path, err));
    if (published) {
        ckpt->format = CKPT_NATIVE;
        return FSDP_OK;
    }
    FSDP_TRY(ckpt_dcp_recognize(&has, ckpt, err));
    if (has) {
        ckpt->format = CKPT_DCP;
        return FSDP_OK;
    }
    int rc = ckpt_latest(latest, sizeof latest, ckpt->path, err);
    if (rc == FSDP_OK) {
        fsdp_free(ckpt->path);
        ckpt->format = CKPT_NATIVE;
        ckpt->path = fsdp_strdup(latest, err);
        return ckpt->path ? FSDP_OK : FSDP_ENOMEM;
    }
    if (rc != FSDP_ENOTFOUND)
        return rc;
    FSDP_TRY(ckpt_store_list(ckpt->store, ckpt->path, finds_safetensors, &has, err));
    return has ? FSDP_OK : refuse_unknown(ckpt, err);
}

/* A file may take two descriptors, and others need some. */
static int most_open(void)
{
    struct rlimit limit;
    bool known = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    rlim_t most = known ? limit.rlim_cur / 4 : CKPT_OPEN_FILES;
    return most < CKPT_OPEN_FILES ? (int)most : CKPT_OPEN_FILES;
}

int ckpt_readers_create(struct ckpt *ckpt, struct fsdp_err *err)
{
    int nfiles = ckpt->m.layout.nfiles;
    if (nfiles == ckpt->nreaders)
        return FSDP_OK;
    struct ckpt_reader *readers = fsdp_alloc((size_t)nfiles, sizeof *readers, "readers", err);
    if (!readers)
        return FSDP_ENOMEM;
    if (ckpt->nreaders)
        memcpy(readers, ckpt->readers, (size_t)ckpt->nreaders * sizeof *readers);
    fsdp_free(ckpt->readers);
    ckpt->readers = readers;
    ckpt->nreaders = nfiles;
    ckpt->most_open = most_open();
    return FSDP_OK;
}

int ckpt_open(struct ckpt **out, const char *path, struct fsdp_err *err)
{
    static int (*const openers[])(struct ckpt *, struct fsdp_err *) = {
        [CKPT_NATIVE] = ckpt_native_open,
        [CKPT_HF] = ckpt_hf_open,
        [CKPT_DCP] = ckpt_dcp_open,
    };
    struct ckpt *ckpt = fsdp_alloc(1, sizeof *ckpt, "checkpoint", err);
    int rc = FSDP_ENOMEM;
    if (!ckpt)
        return rc;
    pthread_mutex_init(&ckpt->lock, NULL);
    FSDP_TRY_GOTO(ckpt_store_of(&ckpt->store, path, err), out);
    FSDP_TRY_GOTO(ckpt_codec_pool_create(&ckpt->pool, err), out);
    rc = FSDP_ENOMEM;
    if (!(ckpt->path = fsdp_strdup(path, err)))
        goto out;
    for (size_t len = strlen(path); len > 1 && ckpt->path[len - 1] == '/'; len--)
        ckpt->path[len - 1] = 0;
    FSDP_TRY_GOTO(recognize(ckpt, err), out);
    if (!ckpt->folder && !(ckpt->folder = fsdp_strdup(ckpt->path, err))) {
        rc = FSDP_ENOMEM;
        goto out;
    }
    rc = openers[ckpt->format](ckpt, err);
    if (rc == FSDP_OK)
        rc = ckpt_readers_create(ckpt, err);
out:
    if (rc)
        ckpt_close(ckpt);
    else
        *out = ckpt;
    return rc;
}

void ckpt_close(struct ckpt *ckpt)
{
    if (!ckpt)
        return;
    for (int i = 0; i < ckpt->nreaders; i++)
        ckpt_data_close(ckpt->readers[i].data);
    fsdp_free(ckpt->readers);
    ckpt_codec_pool_destroy(ckpt->pool);
    ckpt_blobs_destroy(ckpt);
    for (int i = 0; i < ckpt->nunread; i++) {
        fsdp_free((char *)(uintptr_t)ckpt->unread[i].tensor.tensor.name);
        fsdp_free((char *)(uintptr_t)ckpt->unread[i].tensor.stored);
        fsdp_free(ckpt->unread[i].why);
    }
    fsdp_free(ckpt->unread);
    fsdp_free(ckpt->contained);
    ckpt_manifest_free(&ckpt->m);
    pthread_mutex_destroy(&ckpt->lock);
    fsdp_free(ckpt->head_path);
    fsdp_free(ckpt->folder);
    fsdp_free(ckpt->path);
    fsdp_free(ckpt);
}

const char *ckpt_path(const struct ckpt *ckpt)
{
    return ckpt->path;
}

enum ckpt_format ckpt_format(const struct ckpt *ckpt)
{
    return ckpt->format;
}

int64_t ckpt_step(const struct ckpt *ckpt)
{
    return ckpt->m.step;
}

const char *ckpt_state_json(const struct ckpt *ckpt)
{
    return ckpt->m.state_json;
}

void ckpt_mesh(const struct ckpt *ckpt, int *shard_size, int *replicate_size)
{
    *shard_size = ckpt->m.shard_size;
    *replicate_size = ckpt->m.replicate_size;
}

int ckpt_ntensors(const struct ckpt *ckpt)
{
    return ckpt->m.layout.ntensors;
}

const struct ckpt_tensor *ckpt_tensor_at(const struct ckpt *ckpt, int i)
{
    return i >= 0 && i < ckpt->m.layout.ntensors ? &ckpt->m.layout.tensors[i] : NULL;
}

static int compare_alias(const void *key, const void *alias)
{
    return strcmp(key, ((const struct ckpt_alias *)alias)->name);
}

static int compare_contained(const void *a, const void *b, void *ctx)
{
    const struct ckpt_tensor *tensors = ctx;
    int x = *(const int *)a, y = *(const int *)b;
    int order = strcmp(ckpt_own_name(&tensors[x]), ckpt_own_name(&tensors[y]));
    return order ? order : x < y ? -1 : x > y;
}

int ckpt_contained_find(struct ckpt *ckpt, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &ckpt->m.layout;
    for (int pass = 0; pass < 2; pass++) {
        ckpt->ncontained = 0;
        for (int i = 0; i < layout->ntensors; i++) {
            const struct ckpt_tensor *t = &layout->tensors[i];
            if (t->role != CKPT_ROLE_MODEL || !t->outer_nbytes)
                continue;
            if (pass)
                ckpt->contained[ckpt->ncontained] = i;
            ckpt->ncontained++;
        }
        size_t count = (size_t)ckpt->ncontained;
        if (!count)
            return FSDP_OK;
        if (!pass && !(ckpt->contained = fsdp_alloc(count, sizeof(int), "tensor names", err)))
            return FSDP_ENOMEM;
    }
    qsort_r(ckpt->contained, (size_t)ckpt->ncontained, sizeof(int), compare_contained,
            layout->tensors);
    return FSDP_OK;
}

/* The first weight of that name within containers around `model`. */
static int find_contained(const struct ckpt *ckpt, const char *name)
{
    const struct ckpt_tensor *tensors = ckpt->m.layout.tensors;
    int low = 0, high = ckpt->ncontained;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (strcmp(ckpt_own_name(&tensors[ckpt->contained[mid]]), name) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    bool found =
        low < ckpt->ncontained && !strcmp(ckpt_own_name(&tensors[ckpt->contained[low]]), name);
    return found ? ckpt->contained[low] : -1;
}

int ckpt_unread_add(struct ckpt *ckpt, const char *name, const char *stored, enum ckpt_role role,
                    const char *why, struct fsdp_err *err)
{
    struct ckpt_unread *grown =
        fsdp_alloc_grow(ckpt->unread, (size_t)ckpt->nunread, &ckpt->max_unread, sizeof *grown,
                        "unreadable tensors", err);
    if (!grown)
        return FSDP_ENOMEM;
    ckpt->unread = grown;
    struct ckpt_unread *mine = &grown[ckpt->nunread++];
    *mine = (struct ckpt_unread){.why = fsdp_strdup(why, err)};
    mine->tensor.role = role;
    mine->tensor.kind = role == CKPT_ROLE_MODEL ? FSDP_SLICE_MODEL : FSDP_SLICE_OPTIM;
    mine->tensor.tensor.name = fsdp_strdup(name, err);
    mine->tensor.stored = fsdp_strdup(stored, err);
    if (!mine->tensor.tensor.name || !mine->tensor.stored || !mine->why)
        return FSDP_ENOMEM;
    fsdp_log(FSDP_LOG_WARN, "%s", why);
    return FSDP_OK;
}

const char *ckpt_unread_why(const struct ckpt *ckpt, const char *name)
{
    for (int i = 0; i < ckpt->nunread; i++)
        if (!strcmp(ckpt->unread[i].tensor.tensor.name, name))
            return ckpt->unread[i].why;
    return NULL;
}

int ckpt_tensor_index(const struct ckpt *ckpt, const char *name)
{
    int at = ckpt_layout_find(&ckpt->m.layout, name);
    if (at < 0 || ckpt->m.layout.tensors[at].role != CKPT_ROLE_MODEL) {
        int contained = find_contained(ckpt, name);
        at = contained < 0 ? at : contained;
    }
    if (at >= 0 || !ckpt->m.naliases)
        return at;
    const struct ckpt_alias *alias =
        bsearch(name, ckpt->m.aliases, (size_t)ckpt->m.naliases, sizeof *alias, compare_alias);
    return alias ? ckpt_layout_find(&ckpt->m.layout, alias->target) : -1;
}

const struct ckpt_tensor *ckpt_tensor_find(const struct ckpt *ckpt, const char *name)
{
    return ckpt_tensor_at(ckpt, ckpt_tensor_index(ckpt, name));
}

int ckpt_naliases(const struct ckpt *ckpt)
{
    return ckpt->m.naliases;
}

struct ckpt_alias ckpt_alias_at(const struct ckpt *ckpt, int i)
{
    return ckpt->m.aliases[i];
}

int ckpt_nfiles(const struct ckpt *ckpt)
{
    return ckpt->m.layout.nfiles;
}

struct ckpt_file_info ckpt_file_at(const struct ckpt *ckpt, int i)
{
    const struct ckpt_layout_file *file = &ckpt->m.layout.files[i];
    return (struct ckpt_file_info){file->path, file->nbytes, file->crc32c, file->has_crc};
}

int ckpt_nextra(const struct ckpt *ckpt)
{
    return ckpt->m.nextras;
}

const char *ckpt_extra_at(const struct ckpt *ckpt, int i)
{
    return i >= 0 && i < ckpt->m.nextras ? ckpt->m.extras[i].full_path : NULL;
}

const char *ckpt_extra_path(const struct ckpt *ckpt, const char *name)
{
    for (int i = 0; i < ckpt->m.nextras; i++)
        if (!strcmp(ckpt_path_base(ckpt->m.extras[i].path), name))
            return ckpt->m.extras[i].full_path;
    return NULL;
}
