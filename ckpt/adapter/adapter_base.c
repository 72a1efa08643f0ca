/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is the model that an adapter is added to the one that it was trained on? A checkpoint of a run
 * has the fingerprints of its model's tensors (models/train/save/base.h). Those of small tensors
 * are compared. A difference is a warning, because an adapter may be meant for another model.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "merge.h"
#include "source/source.h"
#include "util/crc.h"

/* The largest tensor that is read, and how much is read in all. */
static const uint64_t most_nbytes = (uint64_t)16 << 20, all_nbytes = (uint64_t)128 << 20;

struct compared {
    int count, ndifferent;
    const char *first; /* that differs; NULL: none */
    uint64_t nbytes;   /* read */
};

/* A tensor's fingerprint, made of pieces as they come. */
struct summing {
    struct fsdp_tensor flat; /* its elements in one dimension */
    struct fsdp_box done;
    uint64_t sum;
};

static int sum_piece(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *err)
{
    struct summing *s = ctx;

    (void)pos;
    (void)err;
    s->done.offset[0] += s->done.length[0];
    s->done.length[0] = nbytes / fsdp_dtype_nbytes(s->flat.dtype);
    s->sum ^= ckpt_fingerprint_part(&s->flat, &s->done, src);
    return FSDP_OK;
}

static int fingerprint_of(uint64_t *out, struct ckpt *model, const struct ckpt_tensor *t,
                          struct fsdp_err *err)
{
    struct fsdp_slice slice = {.tensor = t->tensor, .nreplica = 1};
    struct summing s = {.flat = t->tensor};
    const struct fsdp_slice_io io = {.ctx = &s, .write = sum_piece};

    s.flat.ndim = 1;
    s.flat.shape[0] = fsdp_tensor_nelem(&t->tensor);
    for (int d = 0; d < t->tensor.ndim; d++)
        slice.box.length[d] = t->tensor.shape[d];
    FSDP_TRY(ckpt_read_slice(model, &slice, &io, err));
    *out = s.sum;
    return FSDP_OK;
}

/* One that cannot be read is not compared: what needs it will say so. */
static void compare_tensor(struct compared *c, struct ckpt *model, const char *name,
                           const char *print)
{
    const struct ckpt_tensor *t = ckpt_adapter_find_stored(model, name);
    const uint64_t nbytes =
        t ? fsdp_tensor_nelem(&t->tensor) * fsdp_dtype_nbytes(t->tensor.dtype) : 0;
    struct fsdp_err none = FSDP_ERR_INIT;
    uint64_t own = 0;
    char hex[20];

    if (!print || !nbytes || nbytes > most_nbytes || c->nbytes + nbytes > all_nbytes ||
        fingerprint_of(&own, model, t, &none))
        return;
    snprintf(hex, sizeof hex, "%016" PRIx64, own);
    c->nbytes += nbytes;
    c->count++;
    if (!strcmp(hex, print))
        return;
    c->ndifferent++;
    c->first = c->first ? c->first : name;
}

/* The checkpoint that an adapter's folder is, or whose hf/ it is; freed with fsdp_free. */
static char *checkpoint_of(const char *folder)
{
    struct fsdp_err none = FSDP_ERR_INIT;
    char *whole = ckpt_path_is_url(folder) ? NULL : realpath(folder, NULL);
    char *path = fsdp_strdup(whole ? whole : folder, &none);

    free(whole);
    for (size_t n = path ? strlen(path) : 0; n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = 0;
    if (path && fsdp_text_ends(path, "/hf"))
        *strrchr(path, '/') = 0;
    return path;
}

/* The state of the run that saved the adapter. NULL: there is none, as of PEFT's own folders. A
 * folder of checkpoints, of which the newest would be opened, is not the adapter's. */
static json_t *run_state(const char *folder)
{
    struct fsdp_err none = FSDP_ERR_INIT;
    char *path = checkpoint_of(folder);
    struct ckpt *run = NULL;
    json_t *state = NULL;

    if (path && ckpt_open(&run, path, &none) == FSDP_OK && ckpt_state_json(run) &&
        !strcmp(ckpt_path(run), path))
        state = json_loads(ckpt_state_json(run), 0, NULL);
    ckpt_close(run);
    fsdp_free(path);
    return state;
}

void ckpt_adapter_warn_base(const struct ckpt_adapter *adapter, struct ckpt *model)
{
    json_t *state = run_state(ckpt_adapter_folder(adapter));
    json_t *base = json_object_get(state, "base"), *print;
    const char *path = json_string_value(json_object_get(base, "path")), *name;
    struct compared c = {.count = 0};

    json_object_foreach(json_object_get(base, "tensors"), name, print)
    {
        compare_tensor(&c, model, name, json_string_value(print));
    }
    if (c.ndifferent)
        fsdp_log(FSDP_LOG_WARN,
                 "adapter %s was trained on another model than %s: of %d tensors that were "
                 "compared %d differ, '%s' among them; it was trained on %s",
                 ckpt_adapter_folder(adapter), ckpt_path(model), c.count, c.ndifferent, c.first,
                 path ? path : "a model whose path it does not have");
    json_decref(state);
}
