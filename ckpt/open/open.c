/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a checkpoint of whatever kind, and questions about an opened one. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "source/unpack.h"

int ckpt_open(struct ckpt **out, const char *path, struct fsdp_err *err)
{
    return ckpt_open_with(out, path, NULL, err);
}

int ckpt_open_with(struct ckpt **out, const char *path, const char *config, struct fsdp_err *err)
{
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
    FSDP_TRY_GOTO(ckpt_format_find(&ckpt->format, ckpt, err), out);
    if (!ckpt->folder && !(ckpt->folder = fsdp_strdup(ckpt->path, err))) {
        rc = FSDP_ENOMEM;
        goto out;
    }
    rc = ckpt->format->open(ckpt, err);
    if (rc == FSDP_OK)
        ckpt_extras_drop_adapter(ckpt);
    if (rc == FSDP_OK && config)
        rc = ckpt_extras_replace(ckpt, config, err);
    if (rc == FSDP_OK && ckpt->has_flat)
        rc = ckpt_flat_name(ckpt, err);
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
    if (ckpt->format && ckpt->format->close)
        ckpt->format->close(ckpt);
    for (int i = 0; i < ckpt->nunread; i++) {
        fsdp_free((char *)(uintptr_t)ckpt->unread[i].tensor.tensor.name);
        fsdp_free((char *)(uintptr_t)ckpt->unread[i].tensor.stored);
        fsdp_free(ckpt->unread[i].why);
    }
    fsdp_free(ckpt->unread);
    fsdp_free(ckpt->contained);
    ckpt_packed_free(ckpt);
    ckpt_manifest_free(&ckpt->m);
    pthread_mutex_destroy(&ckpt->lock);
    fsdp_free(ckpt->lacks);
    fsdp_free(ckpt->head_path);
    fsdp_free(ckpt->folder);
    fsdp_free(ckpt->path);
    fsdp_free(ckpt->front);
    fsdp_free(ckpt);
}

const char *ckpt_path(const struct ckpt *ckpt)
{
    return ckpt->path;
}

enum ckpt_format ckpt_format(const struct ckpt *ckpt)
{
    return ckpt->format->id;
}

const char *ckpt_format_name(enum ckpt_format format)
{
    static const char *const names[] = {"native",    "safetensors", "dcp",  "torch.save",
                                        "deepspeed", "megatron",    "fsdp1"};
    return (size_t)format < sizeof names / sizeof *names ? names[format] : "unknown";
}

bool ckpt_has_checksums(const struct ckpt *ckpt)
{
    return ckpt->has_checksums;
}

bool ckpt_says_whole(const struct ckpt *ckpt)
{
    return !ckpt->is_guessed;
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
