/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FSDP1's LOCAL_STATE_DICT: each rank's part of each unit's flat parameter, from torch.save (a file
 * a rank) or from torch.distributed.checkpoint. Opening gives vectors, called
 * model.layers.0._flat_param; name.c makes tensors of them.
 */
#include <string.h>

#include "format/dcp/dcp.h"
#include "format/hf/extras.h"
#include "format/hf/hf_names.h"
#include "ranks.h"

#define ACCELERATE CKPT_ACCELERATE_FRONT /* rank0.bin, and 1_rank0.bin of a second model */

/* What the files of the ranks begin with. Those of accelerate's models go before others. */
struct fronts {
    char *first, *other; /* owned */
    bool whole;          /* there are weights that go before them */
    bool full;           /* and accelerate's whole weights, which do not */
};

static bool is_accelerates(const char *front)
{
    return front && !strncmp(front, ACCELERATE, sizeof ACCELERATE - 1);
}

/* Keeps a front, which is owned from now on. */
static void keep_front(struct fronts *fronts, char *front)
{
    if (fronts->first && !strcmp(front, fronts->first)) {
        fsdp_free(front);
        return;
    }
    if (!fronts->first || (is_accelerates(front) && !is_accelerates(fronts->first))) {
        fsdp_free(fronts->first);
        fsdp_free(fronts->other); /* two others may have come before */
        fronts->first = front;
        fronts->other = NULL;
        return;
    }
    if (!fronts->other && is_accelerates(front) == is_accelerates(fronts->first))
        fronts->other = front;
    else
        fsdp_free(front);
}

static int note_name(void *ctx, const char *name, struct fsdp_err *err)
{
    struct fronts *fronts = ctx;
    size_t nbytes;
    int rank;

    fronts->whole |= ckpt_hf_is_whole(name);
    fronts->full |= !strcmp(name, CKPT_ACCELERATE_FULL);
    if (!ckpt_fsdp1_is_rank(&rank, &nbytes, name))
        return FSDP_OK;
    char *front = fsdp_sprintf(err, "%.*s", (int)nbytes, name);
    if (!front)
        return FSDP_ENOMEM;
    keep_front(fronts, front);
    return FSDP_OK;
}

static void free_fronts(struct fronts *fronts)
{
    fsdp_free(fronts->first);
    fsdp_free(fronts->other);
}

static int find_fronts(struct fronts *out, const struct ckpt *ckpt, struct fsdp_err *err)
{
    *out = (struct fronts){.whole = false};
    const int rc = ckpt_store_list(ckpt->store, ckpt->path, note_name, out, err);
    if (rc)
        free_fronts(out);
    return rc;
}

static int recognize_within(bool *out, struct ckpt *ckpt, struct fsdp_err *err)
{
    struct fronts fronts;

    FSDP_TRY(find_fronts(&fronts, ckpt, err));
    *out = fronts.first && !fronts.whole;
    free_fronts(&fronts);
    return FSDP_OK;
}

/* One rank's file: its folder has those of all, and maybe those of another model. */
static int recognize_file(bool *out, struct ckpt *ckpt, const struct ckpt_store_stat *st,
                          struct fsdp_err *err)
{
    const char *name = ckpt_path_base(ckpt->path);
    size_t nbytes;
    int rank;

    *out = !st->is_folder && !strncmp(name, ACCELERATE, sizeof ACCELERATE - 1) &&
           ckpt_fsdp1_is_rank(&rank, &nbytes, name);
    if (!*out)
        return FSDP_OK;
    fsdp_log(FSDP_LOG_INFO, "'%s' is one rank's part: the files of all ranks are read", ckpt->path);
    char *folder = ckpt_path_parent(ckpt->path, err);
    ckpt->front = fsdp_sprintf(err, "%.*s", (int)nbytes, name);
    if (!folder || !ckpt->front) {
        fsdp_free(folder);
        return FSDP_ENOMEM;
    }
    fsdp_free(ckpt->path);
    ckpt->path = folder;
    return FSDP_OK;
}

/* fronts->first becomes that of the files to read. */
static int choose_front(struct fronts *fronts, const struct ckpt *ckpt, struct fsdp_err *err)
{
    if (ckpt->front) {
        fsdp_free(fronts->first);
        fronts->first = fsdp_strdup(ckpt->front, err);
        return fronts->first ? FSDP_OK : FSDP_ENOMEM;
    }
    if (fronts->other && is_accelerates(fronts->first))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "'%s' has the weights of two models, '%sN' and '%sN': name a file of "
                            "one of them",
                            ckpt->path, fronts->first, fronts->other);
    if (fronts->other)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "'%s' has files of ranks of two kinds, '%sN' and '%sN': move one "
                            "of them to another folder",
                            ckpt->path, fronts->first, fronts->other);
    if (fronts->full)
        fsdp_log(FSDP_LOG_WARN,
                 "'%s': the files of ranks are read, '" CKPT_ACCELERATE_FULL "' is not; to read "
                 "that, name it",
                 ckpt->path);
    return FSDP_OK;
}

static int open_fsdp1(struct ckpt *ckpt, struct fsdp_err *err)
{
    struct ckpt_plain_storages *storages;
    struct fronts fronts;
    int rc;

    ckpt->m.step = -1;
    ckpt->m.shard_size = ckpt->m.replicate_size = 1;
    ckpt->has_flat = true;
    FSDP_TRY(find_fronts(&fronts, ckpt, err));
    FSDP_TRY_GOTO(choose_front(&fronts, ckpt, err), out);
    FSDP_TRY_GOTO(ckpt_plain_begin(&storages, ckpt, err), out);
    FSDP_TRY_GOTO(ckpt_fsdp1_ranks_take(ckpt, storages, fronts.first, err), out);
    FSDP_TRY_GOTO(ckpt_plain_end(ckpt, err), out);
    FSDP_TRY_GOTO(ckpt_layout_index(&ckpt->m.layout, err), out);
    FSDP_TRY_GOTO(ckpt_layout_seal(&ckpt->m.layout, err), out);
    FSDP_TRY_GOTO(ckpt_extras_find_here(ckpt, err), out);
    rc = ckpt_dcp_finish(ckpt, err);
out:
    free_fronts(&fronts);
    return rc;
}

const struct ckpt_format_ops ckpt_fsdp1_ops = {
    .id = CKPT_FSDP1,
    .identity = CKPT_IDENTITY_MTIME,
    .recognize = recognize_file,
    .recognize_within = recognize_within,
    .open = open_fsdp1,
    .close = ckpt_plain_close,
    .read_extent = ckpt_plain_read_extent,
    .check_piece = ckpt_plain_check_piece,
    .check_rest = ckpt_plain_check_rest,
};
