/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/cuda_sizes.h"
#include "nn/nn.h"
#include "fsdp/sys/cuda.h"

int nn_ops_of(const struct nn_ops **out, const struct fsdp_device *device, struct fsdp_err *err)
{
    const struct fsdp_cuda_backend *cuda = fsdp_device_cuda_backend(device);
    int capability;

    if (fsdp_device_is_described(device, &capability) && capability) {
        *out = nn_cuda_described_ops(capability);
        return FSDP_OK;
    }
    if (!cuda) {
        *out = &nn_cpu_ops;
        return nn_blas_keep_room(err);
    }
    if (!cuda->nn_ops || cuda->nn_ops->abi != NN_OPS_ABI)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "device %s: this libfsdp-cuda.so has no operators for models; use "
                            "device cpu",
                            fsdp_device_name(device));
    *out = cuda->nn_ops;
    return FSDP_OK;
}

bool nn_multiplies(const struct fsdp_device *device, enum fsdp_dtype dtype)
{
    return !fsdp_device_is_host(device) || nn_cpu_multiplies(dtype);
}
