/* SPDX-License-Identifier: Apache-2.0 */
#include <cuda_runtime_api.h>

#include "nn_cuda.h"

int nn_cuda_capability(int *out, int ordinal, struct fsdp_err *err)
{
    int major = 0, minor = 0;
    cudaError_t e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);

    e = e ? e : cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal);
    *out = 10 * major + minor;
    return fsdp_cuda_check((int)e, err, "asking for the GPU's compute capability");
}

int nn_cuda_current_capability(void)
{
    int ordinal, capability;

    if (cudaGetDevice(&ordinal) || nn_cuda_capability(&capability, ordinal, NULL))
        return 0;
    return capability;
}
