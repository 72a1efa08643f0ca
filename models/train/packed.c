/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "packed.h"
#include "weights/nf4.h"

int train_packed_open(struct train_packed *packed, const struct train_parts *parts,
                      struct ckpt *ckpt, struct fsdp_err *err)
{
    *packed = (struct train_packed){.parts = parts, .ckpt = ckpt};
    for (int i = 0; i < fsdp_param_count(parts->tree); i++)
        packed->any |= ckpt_is_quantized(ckpt, fsdp_param_tensor(parts->tree, i).name);
    return packed->any ? weights_check_packed(ckpt, parts->fsdp, parts->tree, err) : FSDP_OK;
}

/* ---- slices ---------------------------------------------------------------------------------- */

struct visiting {
    const struct train_packed *packed;
    fsdp_slice_f *fn;
    void *fn_ctx;
    bool raw; /* the visit is of what is quantized */
};

/* Does the checkpoint hold the parameter quantized whose slice this is, or a part of whose? */
static bool is_packed(const struct visiting *v, const char *name)
{
    static const char *const parts[] = {".absmax", ".nested_absmax"};
    const size_t nbytes = strlen(name);
    char stem[512];

    if (!v->raw || nbytes >= sizeof stem)
        return ckpt_is_quantized(v->packed->ckpt, name);
    memcpy(stem, name, nbytes + 1);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const size_t n = strlen(parts[i]);
        if (nbytes > n && !strcmp(name + nbytes - n, parts[i]))
            stem[nbytes - n] = 0;
    }
    return ckpt_is_quantized(v->packed->ckpt, stem);
}

static int visit_some(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                      const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    const struct visiting *v = ctx;
    if (is_packed(v, slice->tensor.name) != v->raw)
        return FSDP_OK;
    return v->fn(v->fn_ctx, kind, slice, io, err);
}

int train_packed_each(void *ctx, fsdp_slice_f *fn, void *fn_ctx, struct fsdp_err *err)
{
    const struct train_packed *packed = ctx;
    struct visiting plain = {packed, fn, fn_ctx, false}, raw = {packed, fn, fn_ctx, true};
    struct fsdp *f = packed->parts->fsdp;

    if (!packed->any)
        return fsdp_state_each(f, fn, fn_ctx, err);
    FSDP_TRY(fsdp_state_each(f, visit_some, &plain, err));
    return fsdp_nf4_each(f, visit_some, &raw, err);
}

/* ---- offsets --------------------------------------------------------------------------------- */

int train_packed_offsets(const struct train_packed *packed, struct train_base *base,
                         struct fsdp_err *err)
{
    const struct fsdp_module_tree *tree = packed->parts->tree;

    for (int i = 0; packed->any && i < fsdp_param_count(tree); i++) {
        const struct fsdp_tensor tensor = fsdp_param_tensor(tree, i);
        float offset;
        if (!ckpt_is_quantized(packed->ckpt, tensor.name))
            continue;
        FSDP_TRY(weights_packed_offset(&offset, packed->ckpt, &tensor, err));
        FSDP_TRY(fsdp_nf4_set_offset(packed->parts->fsdp, i, offset, err));
        char *name = fsdp_sprintf(err, "%s.nested_offset", tensor.name);
        if (!name)
            return FSDP_ENOMEM;
        if (base)
            train_base_loaded(base, name, ckpt_crc64(0, &offset, sizeof offset));
        fsdp_free(name);
    }
    return FSDP_OK;
}
