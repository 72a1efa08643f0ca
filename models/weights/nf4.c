/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "nf4.h"

/* CRC-64 of the code books in fp32: the 16 values of NF4, and the 256 of scales. */
static const uint64_t crc_of_values = UINT64_C(0x71f6bf2642f37136),
                      crc_of_map = UINT64_C(0x43aea27ef6c8e5ec);

int weights_check_packed(const struct ckpt *ckpt, const struct fsdp *f,
                         const struct fsdp_module_tree *tree, struct fsdp_err *err)
{
    for (int i = 0; i < fsdp_param_count(tree); i++) {
        const char *name = fsdp_param_tensor(tree, i).name;
        if (ckpt_is_quantized(ckpt, name) && !fsdp_param_is_nf4(f, i))
            return fsdp_err_set(
                err, FSDP_EUNSUPPORTED,
                "%s: tensor '%s' is quantized by bitsandbytes: set lora.base to nf4 "
                "to train adapters on such a model, and train no part of it whole",
                ckpt_path(ckpt), name);
    }
    return FSDP_OK;
}

int weights_packed_offset(float *out, struct ckpt *ckpt, const struct fsdp_tensor *tensor,
                          struct fsdp_err *err)
{
    struct ckpt_nf4 nf4;

    FSDP_TRY(ckpt_nf4_read(&nf4, ckpt, tensor->name, err));
    *out = nf4.offset;
    if (nf4.tensor.ndim != tensor->ndim ||
        memcmp(nf4.tensor.shape, tensor->shape, sizeof *tensor->shape * (size_t)tensor->ndim))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: tensor '%s' is quantized with another shape than the model has",
                            ckpt_path(ckpt), tensor->name);
    if (ckpt_crc64(0, nf4.values, sizeof nf4.values) != crc_of_values ||
        ckpt_crc64(0, nf4.map, sizeof nf4.map) != crc_of_map)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "%s: tensor '%s' is quantized with other code books than bitsandbytes'",
                            ckpt_path(ckpt), tensor->name);
    return FSDP_OK;
}
