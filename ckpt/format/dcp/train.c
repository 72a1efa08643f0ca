/* SPDX-License-Identifier: Apache-2.0 */
/* What a torch checkpoint says about training: at which step it stands, and which tensors are an
 * optimizer's for a parameter. */
#include <jansson.h>
#include <string.h>

#include "util/convert.h"
#include "dcp.h"

/* ---- recognizing ----------------------------------------------------------------------------- */

struct seen {
    bool metadata, rank_metadata, data;
};

static int note_name(void *ctx, const char *name, struct fsdp_err *err)
{
    struct seen *seen = ctx;
    size_t len = strlen(name);
    (void)err;
    seen->metadata |= !strcmp(name, CKPT_DCP_METADATA_NAME);
    seen->rank_metadata |=
        !strncmp(name, "__", 2) && len > 9 && !strcmp(name + len - 9, ".metadata");
    seen->data |= len > 7 && !strcmp(name + len - 7, ".distcp");
    return FSDP_OK;
}

int ckpt_dcp_recognize(bool *out, struct ckpt *ckpt, const struct ckpt_store_stat *st,
                       struct fsdp_err *err)
{
    struct seen seen = {false, false, false};
    if (!st->is_folder)
        return FSDP_OK;
    FSDP_TRY(ckpt_store_list(ckpt->store, ckpt->path, note_name, &seen, err));
    *out = seen.metadata;
    if (seen.metadata || !(seen.data || seen.rank_metadata))
        return FSDP_OK;
    if (seen.rank_metadata)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "'%s' was saved by torch with use_collectives=False: each rank's part "
                            "stands for itself, and only as many ranks can load it",
                            ckpt->path);
    return fsdp_err_set(
        err, FSDP_ENOTFOUND,
        "'%s' holds *.distcp files but no .metadata: the save never finished, or it "
        "is on the disk of the node that had rank 0",
        ckpt->path);
}

/* ---- the step -------------------------------------------------------------------------------- */

struct number {
    enum fsdp_dtype dtype;
    double value;
};

static int number_write(void *ctx, uint64_t pos, const void *src, size_t nbytes,
                        struct fsdp_err *err)
{
    struct number *n = ctx;
    (void)err;
    if (pos == 0 && nbytes == fsdp_dtype_nbytes(n->dtype) && fsdp_dtype_is_float(n->dtype)) {
        float value;
        ckpt_convert(&value, FSDP_F32, src, n->dtype, 1);
        n->value = value;
    } else if (pos == 0 && nbytes <= 8) {
        uint64_t bits = 0;
        memcpy(&bits, src, nbytes);
        n->value = nbytes == 4 ? (double)(int32_t)bits : (double)(int64_t)bits;
    }
    return FSDP_OK;
}

int ckpt_scalar_read(int64_t *out, struct ckpt *ckpt, int tensor, struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &ckpt->m.layout.tensors[tensor].tensor;
    struct number n = {.dtype = t->dtype, .value = -1};
    struct fsdp_slice slice = {.tensor = *t, .box = ckpt_box_whole(t), .nreplica = 1};
    struct fsdp_slice_io io = {.ctx = &n, .write = number_write};
    FSDP_TRY(ckpt_read_slice(ckpt, &slice, &io, err));
    *out = n.value >= 0 && n.value < 9e15 ? (int64_t)(n.value + 0.5) : -1;
    return FSDP_OK;
}

/* How surely a tensor or value of this name is the training step; 0: it is not. An optimizer's own
 * counter is what its bias correction goes by. */
static int step_rank(const char *stored, enum ckpt_role role)
{
    if (role == CKPT_ROLE_OPTIM)
        return fsdp_text_ends(stored, ".step") ? 3 : 0;
    if (!strcmp(stored, "train_state.step"))
        return 2;
    return !strcmp(stored, "step") || !strcmp(stored, "global_step");
}

static int64_t step_of_values(const char *state_json)
{
    static const char *const names[] = {"step", "global_step", "train_state.step"};
    int64_t step = -1;
    json_t *root = state_json ? json_loads(state_json, 0, NULL) : NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        json_t *value = json_object_get(json_object_get(root, "values"), names[i]);
        if (json_is_integer(value) && json_integer_value(value) >= 0)
            step = json_integer_value(value);
    }
    json_decref(root);
    return step;
}

static int step_find(struct ckpt *ckpt, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &ckpt->m.layout;
    int best = -1, best_rank = 0;
    for (int i = 0; i < layout->ntensors; i++) {
        const struct ckpt_tensor *t = &layout->tensors[i];
        int rank = step_rank(t->stored, t->role);
        if (rank > best_rank && fsdp_tensor_nelem(&t->tensor) == 1) {
            best = i;
            best_rank = rank;
        }
    }
    ckpt->m.step = step_of_values(ckpt->m.state_json);
    return best < 0 ? FSDP_OK : ckpt_scalar_read(&ckpt->m.step, ckpt, best, err);
}

/* ---- the optimizer's tensors ----------------------------------------------------------------- */

/* Has the tensor the shape of a slot of the parameter? */
static bool is_slot(const struct fsdp_tensor *tensor, const struct fsdp_tensor *param)
{
    static const enum fsdp_slot_kind kinds[] = {FSDP_PER_ELEMENT, FSDP_PER_BLOCK, FSDP_PER_ROW,
                                                FSDP_PER_COLUMN};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const struct fsdp_slot slot = {.dtype = tensor->dtype, .kind = kinds[i]};
        const struct fsdp_tensor as = fsdp_slot_tensor(&slot, param);
        bool same = as.ndim == tensor->ndim;
        for (int d = 0; same && d < as.ndim; d++)
            same = as.shape[d] == tensor->shape[d];
        if (same)
            return true;
    }
    return false;
}

/* state.<parameter>.<name> of a slot's shape stays what it is; counters are something else. */
static void roles_settle(struct ckpt *ckpt)
{
    struct ckpt_layout *layout = &ckpt->m.layout;
    for (int i = 0; i < layout->ntensors; i++) {
        struct ckpt_tensor *t = &layout->tensors[i];
        const char *own = ckpt_own_name(t), *last = strrchr(own, '.');
        char name[CKPT_MAX_NAME_NBYTES + 1];
        if (t->role != CKPT_ROLE_OPTIM)
            continue;
        size_t len = (size_t)(last - own) - 6; /* without "state." */
        snprintf(name, sizeof name, "%.*s", (int)len, own + 6);
        int at = ckpt_tensor_index(ckpt, name);
        const struct fsdp_tensor *param = at < 0 ? NULL : &layout->tensors[at].tensor;
        bool same =
            param && layout->tensors[at].role == CKPT_ROLE_MODEL && is_slot(&t->tensor, param);
        if (!same || fsdp_text_ends(t->tensor.name, ".step"))
            t->role = CKPT_ROLE_OTHER;
    }
}

int ckpt_dcp_finish(struct ckpt *ckpt, struct fsdp_err *err)
{
    FSDP_TRY(step_find(ckpt, err));
    roles_settle(ckpt);
    return FSDP_OK;
}
