/* SPDX-License-Identifier: Apache-2.0 */
/* Slots: the shapes of what an optimizer keeps of a parameter, and which part goes with a box. */
#include <string.h>

#include "fsdp/base.h"

static const char *const kinds[] = {
    [FSDP_PER_ELEMENT] = "element",
    [FSDP_PER_BLOCK] = "block",
    [FSDP_PER_ROW] = "row",
    [FSDP_PER_COLUMN] = "column",
};
enum { NKINDS = sizeof kinds / sizeof kinds[0] };

const char *fsdp_slot_kind_name(enum fsdp_slot_kind kind)
{
    return (unsigned)kind < NKINDS ? kinds[kind] : "?";
}

int fsdp_slot_kind_parse(enum fsdp_slot_kind *out, const char *text, struct fsdp_err *err)
{
    for (int i = 0; i < NKINDS; i++)
        if (!strcmp(text, kinds[i])) {
            *out = (enum fsdp_slot_kind)i;
            return FSDP_OK;
        }
    return fsdp_err_set(err, FSDP_EINVAL,
                        "unknown kind of slot '%.60s'; allowed: element, block, row, column", text);
}

static uint64_t blocks_of(uint64_t nelem)
{
    return nelem / FSDP_CUT_ALIGN + (nelem % FSDP_CUT_ALIGN != 0);
}

struct fsdp_tensor fsdp_slot_tensor(const struct fsdp_slot *slot, const struct fsdp_tensor *param)
{
    struct fsdp_tensor out = *param;

    out.dtype = slot->dtype;
    if (slot->kind == FSDP_PER_BLOCK) {
        out.ndim = 1;
        memset(out.shape, 0, sizeof out.shape);
        out.shape[0] = blocks_of(fsdp_tensor_nelem(param));
    }
    if (slot->kind == FSDP_PER_ROW && param->ndim >= 2)
        out.shape[param->ndim - 1] = 1;
    if (slot->kind == FSDP_PER_COLUMN && param->ndim >= 2)
        out.shape[param->ndim - 2] = 1;
    return out;
}

bool fsdp_slot_is_shared(const struct fsdp_slot *slot, const struct fsdp_tensor *param)
{
    return slot->kind == FSDP_PER_COLUMN && param->ndim == 2;
}

uint64_t fsdp_slot_box(struct fsdp_box *out, const struct fsdp_slot *slot,
                       const struct fsdp_tensor *param, const struct fsdp_box *box, uint64_t nelem)
{
    const struct fsdp_tensor tensor = fsdp_slot_tensor(slot, param);
    uint64_t first = param->ndim ? box->offset[0] * fsdp_tensor_row_nelem(param) : 0;

    memset(out, 0, sizeof *out);
    for (int d = 0; d < tensor.ndim; d++)
        out->length[d] = tensor.shape[d];
    if (fsdp_slot_is_shared(slot, param))
        return fsdp_tensor_nelem(&tensor);
    if (slot->kind == FSDP_PER_BLOCK) {
        out->offset[0] = blocks_of(first);
        out->length[0] = nelem ? blocks_of(first + nelem) - out->offset[0] : 0;
        return out->length[0];
    }
    if (tensor.ndim) {
        out->offset[0] = box->offset[0];
        out->length[0] = box->length[0];
        return fsdp_box_nelem(out, tensor.ndim);
    }
    return nelem;
}
