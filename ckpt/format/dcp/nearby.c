/* SPDX-License-Identifier: Apache-2.0 */
/* A folder that is no checkpoint, and holds what torch wrote. */
#include <stdlib.h>
#include <string.h>

#include "dcp.h"
#include "format/hf/hf_names.h"

enum { MOST_NAMES = 1000 }; /* that are looked at */

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

int ckpt_dcp_explain(const struct ckpt *ckpt, const struct ckpt_names *names, struct fsdp_err *err)
{
    struct nearby near = {.ckpt = ckpt};
    int rc = FSDP_OK;

    for (int i = 0; rc == FSDP_OK && i < names->nnames && i < MOST_NAMES; i++)
        rc = look_nearby(&near, names->names[i], err);
    if (rc == FSDP_OK && near.torch_folder)
        rc = fsdp_err_set(err, FSDP_ENOTFOUND,
                          "'%s' is no checkpoint, but holds some of torch's: name one of them, "
                          "such as '%s/%s'",
                          ckpt->path, ckpt->path, near.torch_folder);
    else if (rc == FSDP_OK && near.torch_file)
        rc = fsdp_err_set(err, FSDP_ENOTFOUND,
                          "'%s' is no checkpoint; if '%s' is what torch.save wrote, name the file "
                          "itself: '%s/%s'",
                          ckpt->path, near.torch_file, ckpt->path, near.torch_file);
    fsdp_free(near.torch_folder);
    fsdp_free(near.torch_file);
    return rc;
}

/* ---- accelerate's folder --------------------------------------------------------------------- */

/* The weights of accelerate and of transformers' Trainer with FSDP are a checkpoint of torch's in a
 * folder of theirs, which also has optimizer_0, a checkpoint of its own. */
struct parts {
    char first[64], other[64]; /* pytorch_model_fsdp_0; "": none */
    char file[64];             /* accelerate's weights of another form next to it; "": none */
    bool whole;                /* weights that go before it */
};

static int note_part(void *ctx, const char *name, struct fsdp_err *err)
{
    static const char front[] = CKPT_ACCELERATE_FRONT;
    struct parts *parts = ctx;
    const char *number = name + sizeof front - 1;

    (void)err;
    parts->whole |= ckpt_hf_is_whole(name);
    const char *end = strrchr(name, '.');
    if (end && !strcmp(end, ".bin") && ckpt_hf_is_sharded(name) &&
        strlen(name) < sizeof parts->file)
        snprintf(parts->file, sizeof parts->file, "%s", name);
    if (strncmp(name, front, sizeof front - 1) != 0 || !*number ||
        number[strspn(number, "0123456789")] || strlen(name) >= sizeof parts->first)
        return FSDP_OK;
    snprintf(*parts->first ? parts->other : parts->first, sizeof parts->first, "%s", name);
    return FSDP_OK;
}

int ckpt_dcp_recognize_within(bool *out, struct ckpt *ckpt, struct fsdp_err *err)
{
    struct parts parts = {.whole = false};
    struct ckpt_store_stat st;

    *out = false;
    FSDP_TRY(ckpt_store_list(ckpt->store, ckpt->path, note_part, &parts, err));
    if (!*parts.first || parts.whole)
        return FSDP_OK;
    if (*parts.other)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "'%s' has the weights of two models, '%s' and '%s': name one of them",
                            ckpt->path, parts.first, parts.other);
    char *path = ckpt_path_join(ckpt->path, parts.first, err);
    if (!path)
        return FSDP_ENOMEM;
    fsdp_log(FSDP_LOG_INFO, "'%s': the weights are in '%s'", ckpt->path, parts.first);
    if (*parts.file)
        fsdp_log(FSDP_LOG_WARN, "'%s': '%s' is read, '%s' is not; to read that, name it",
                 ckpt->path, parts.first, parts.file);
    fsdp_free(ckpt->path);
    ckpt->path = path;
    FSDP_TRY(ckpt_store_stat(&st, ckpt->store, path, err));
    FSDP_TRY(ckpt_dcp_recognize(out, ckpt, &st, err));
    if (*out)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_ENOTFOUND,
                        "'%s' has no .metadata: the save never finished, or it is on the disk of "
                        "the node that had rank 0",
                        path);
}
