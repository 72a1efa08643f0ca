/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSpeed's ZeRO, stages 1 to 3. A folder TAG has a file of model states (of all ranks, or one a
 * rank) and a file of optimizer states a rank; the folder above names the newest TAG in `latest`.
 *
 *     model states   param_shapes   [group] {parameter: shape}, in the order of the flat vectors
 *                    shared_params  {another name: parameter}
 *                    frozen_param_fragments, buffer_names, module, global_steps, dp_world_size
 *     optim states   the fp32 masters and what the optimizer keeps for them, as flat vectors
 *
 * A parameter's master is its weight here: module has it rounded to the run's dtype. What no
 * optimizer has (frozen parameters, buffers) is taken from the model states, as it is stored.
 * Without optimizer files it is a universal checkpoint (universal.c), or a run without ZeRO, whose
 * module is all there is.
 */
#include <stdlib.h>
#include <string.h>

#include "ckpt/ckpt.h"
#include "format/dcp/dcp.h"
#include "format/hf/extras.h"
#include "reader.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)
#define LATEST_NAME "latest"

enum { TAG_NBYTES = 256 };

/* Other names of parameters. */
static int aliases_take(struct ckpt_ds_reader *r, struct fsdp_err *err)
{
    const struct ckpt_pk *root = r->ranks.models[0].pickle.root;
    const struct ckpt_pk *shared = ckpt_pk_get(root, "shared_params");
    char name[CKPT_MAX_NAME_NBYTES + 1], target[CKPT_MAX_NAME_NBYTES + 1];
    const char *what = r->ranks.models[0].what;

    for (size_t i = 0; shared && shared->type == CKPT_PK_T_DICT && i + 1 < shared->nitems; i += 2) {
        FSDP_TRY(ckpt_ds_name(name, sizeof name, shared->u.items[i], what, err));
        FSDP_TRY(ckpt_ds_name(target, sizeof target, shared->u.items[i + 1], what, err));
        if (ckpt_layout_find(&r->ckpt->m.layout, target) < 0 ||
            ckpt_layout_find(&r->ckpt->m.layout, name) >= 0)
            return BAD("%s: 'shared_params' gives '%s' the name '%s', which cannot be", what,
                       target, name);
        FSDP_TRY(ckpt_alias_add(r->ckpt, name, target, err));
    }
    return FSDP_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int state_note(struct ckpt_ds_reader *r, struct fsdp_err *err)
{
    const struct ckpt_pk *root = r->ranks.models[0].pickle.root;
    uint64_t step = 0;

    ckpt_pk_u64(&step, ckpt_pk_get(root, "global_steps"));
    r->ckpt->m.state_json = fsdp_sprintf(err, "{\"values\":{\"global_step\":%llu},\"paths\":{}}",
                                         (unsigned long long)step);
    return r->ckpt->m.state_json ? FSDP_OK : FSDP_ENOMEM;
}

static int tensors_take(struct ckpt_ds_reader *r, struct fsdp_err *err)
{
    const struct ckpt_pk *root = r->ranks.models[0].pickle.root;
    const struct ckpt_pk *groups = ckpt_pk_get(root, "param_shapes");
    const bool zero = r->ranks.nopened_optims > 0;
    bool universal = false;

    if (!zero)
        FSDP_TRY(ckpt_ds_universal_take(&universal, r, groups, err));
    if (universal)
        return FSDP_OK;
    /* Without ZeRO the optimizer's state is in the file of the model states. */
    const struct ckpt_pk *optimizer = ckpt_pk_get(root, "optimizer");
    if (!zero && (r->ranks.by_rank || !optimizer || optimizer->type == CKPT_PK_T_NONE))
        return fsdp_err_set(err, FSDP_ENOTFOUND,
                            "'%s' has no *_optim_states.pt, which hold the fp32 weights of ZeRO; "
                            "bring the files of all ranks together",
                            r->ckpt->path);
    if (zero && (!ckpt_pk_is_list(groups) || !groups->nitems || groups->nitems > CKPT_MAX_UNITS))
        return BAD("%s has no 'param_shapes'", r->ranks.models[0].what);
    if (zero)
        FSDP_TRY(ckpt_ds_masters_take(r, groups, err));
    return ckpt_ds_frozen_take(r, zero ? groups : NULL, NULL, err);
}

static int open_deepspeed(struct ckpt *ckpt, struct fsdp_err *err)
{
    struct ckpt_ds_reader r = {.ckpt = ckpt};
    int rc = FSDP_ENOMEM;

    ckpt->m.step = -1;
    ckpt->m.shard_size = ckpt->m.replicate_size = 1;
    FSDP_TRY_GOTO(ckpt_plain_begin(&r.storages, ckpt, err), out);
    FSDP_TRY_GOTO(ckpt_ds_ranks_open(&r.ranks, ckpt, err), out);
    FSDP_TRY_GOTO(tensors_take(&r, err), out);
    FSDP_TRY_GOTO(ckpt_plain_end(ckpt, err), out);
    FSDP_TRY_GOTO(ckpt_layout_index(&ckpt->m.layout, err), out);
    FSDP_TRY_GOTO(ckpt_layout_seal(&ckpt->m.layout, err), out);
    FSDP_TRY_GOTO(aliases_take(&r, err), out);
    FSDP_TRY_GOTO(state_note(&r, err), out);
    FSDP_TRY_GOTO(ckpt_extras_find_here(ckpt, err), out);
    rc = ckpt_dcp_finish(ckpt, err);
out:
    for (int i = 0; i < r.nslots; i++) {
        for (int s = 0; r.slots[i].streams && s < r.nstreams; s++)
            ckpt_ds_stream_free(&r.slots[i].streams[s]);
        fsdp_free(r.slots[i].streams);
    }
    fsdp_free(r.pos);
    fsdp_free(r.steps);
    ckpt_ds_ranks_close(&r.ranks);
    return rc;
}

/* ---- recognizing ----------------------------------------------------------------------------- */

struct seen {
    bool states, latest;
};

static int note_name(void *ctx, const char *name, struct fsdp_err *err)
{
    struct seen *seen = ctx;
    int rank, model_rank;
    (void)err;
    seen->states |= ckpt_ds_kind_of(&rank, &model_rank, name) != CKPT_DS_OTHER;
    seen->latest |= !strcmp(name, LATEST_NAME);
    return FSDP_OK;
}

/* The folder that `latest` names becomes ckpt->path. */
static int follow_latest(bool *out, struct ckpt *ckpt, struct fsdp_err *err)
{
    struct seen seen = {false, false};
    struct fsdp_err quiet = FSDP_ERR_INIT;
    char *path = ckpt_path_join(ckpt->path, LATEST_NAME, err), *tag = NULL;
    size_t nbytes = 0;
    int rc = path ? ckpt_store_get(&tag, &nbytes, ckpt->store, path, TAG_NBYTES, err) : FSDP_ENOMEM;

    fsdp_free(path);
    path = NULL;
    while (rc == FSDP_OK && nbytes && strchr(" \r\n", tag[nbytes - 1]))
        tag[--nbytes] = 0;
    const bool plain =
        rc == FSDP_OK && nbytes && tag[0] != '.' && !strchr(tag, '/') && strlen(tag) == nbytes;
    if (plain && !(path = ckpt_path_join(ckpt->path, tag, err)))
        rc = FSDP_ENOMEM;
    if (path && ckpt_store_list(ckpt->store, path, note_name, &seen, &quiet) == FSDP_OK &&
        seen.states) {
        fsdp_log(FSDP_LOG_INFO, "'%s': '%s' is the latest", ckpt->path, tag);
        fsdp_free(ckpt->path);
        ckpt->path = path;
        path = NULL;
        *out = true;
    } else if (rc == FSDP_OK && nbytes)
        fsdp_log(FSDP_LOG_WARN,
                 "'%s/" LATEST_NAME "' names '%.100s', which is no folder of DeepSpeed's files "
                 "there; name the folder of a tag",
                 ckpt->path, tag);
    fsdp_free(path);
    fsdp_free(tag);
    return rc;
}

static int recognize_within(bool *out, struct ckpt *ckpt, struct fsdp_err *err)
{
    struct seen seen = {false, false};

    *out = false;
    FSDP_TRY(ckpt_store_list(ckpt->store, ckpt->path, note_name, &seen, err));
    *out = seen.states;
    return seen.states || !seen.latest ? FSDP_OK : follow_latest(out, ckpt, err);
}

const struct ckpt_format_ops ckpt_deepspeed_ops = {
    .id = CKPT_DEEPSPEED,
    .identity = CKPT_IDENTITY_MTIME,
    .recognize_within = recognize_within,
    .open = open_deepspeed,
    .close = ckpt_plain_close,
    .read_extent = ckpt_plain_read_extent,
    .check_piece = ckpt_plain_check_piece,
    .check_rest = ckpt_plain_check_rest,
};
