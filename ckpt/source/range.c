/* SPDX-License-Identifier: Apache-2.0 */
/* Where a tensor's bytes lie as they are in memory. */
#include <stdio.h>
#include <string.h>

#include "format_ops.h"
#include "store/store.h"
#include "unpack.h"

/* Why a tensor does not lie so; NULL where it does. */
static const char *hindrance(struct ckpt *ckpt, int tensor)
{
    const struct ckpt_layout *layout = &ckpt->m.layout;
    const size_t first = layout->first[tensor];
    const struct ckpt_piece *piece = &layout->pieces[first];
    if (!ckpt_store_can_rename(ckpt->store))
        return "it lies in a store";
    if (ckpt_packed_find(ckpt, tensor))
        return "it is stored quantized";
    if (layout->first[tensor + 1] - first != 1)
        return "it is cut among files";
    if (ckpt->format->read_extent)
        return "it lies in an archive of torch";
    if (ckpt_codec_is_name(layout->files[piece->file].path))
        return "its file is compressed";
    if (piece->pos % fsdp_dtype_nbytes(layout->tensors[tensor].tensor.dtype))
        return "its bytes in the file are not aligned to its elements";
    return NULL;
}

int ckpt_tensor_range(struct ckpt_file_range *out, struct ckpt *ckpt, const char *name,
                      struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &ckpt->m.layout;
    const int tensor = ckpt_tensor_index(ckpt, name);
    const char *why = tensor < 0 ? ckpt_unread_why(ckpt, name) : NULL;
    if (why)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s", why);
    if (tensor < 0)
        return fsdp_err_set(err, FSDP_ENOTFOUND, "'%s' has no tensor '%s'", ckpt->path, name);
    const struct fsdp_tensor *t = &layout->tensors[tensor].tensor;
    memset(out, 0, sizeof *out);
    out->nbytes = fsdp_tensor_nelem(t) * fsdp_dtype_nbytes(t->dtype);
    why = out->nbytes ? hindrance(ckpt, tensor) : "it has no elements";
    if (why)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "'%s': tensor '%s' cannot be mapped, for %s; read it instead",
                            ckpt->path, name, why);
    const struct ckpt_piece *piece = &layout->pieces[layout->first[tensor]];
    char *path = ckpt_path_join(ckpt->folder, layout->files[piece->file].path, err);
    if (!path)
        return FSDP_ENOMEM;
    const bool fits = strlen(path) < sizeof out->path;
    if (fits)
        strcpy(out->path, path);
    out->pos = piece->pos;
    fsdp_free(path);
    return fits ? FSDP_OK
                : fsdp_err_set(err, FSDP_EINVAL, "tensor '%s': its file's path is too long", name);
}
