/* SPDX-License-Identifier: Apache-2.0 */
/* What the CUDA device finds on this machine. */
#include "cuda.h"

enum {
    LEAST_MAJOR = 8
}; /* compute capability; the Makefile's list of architectures begins there */

static int version_major(int version)
{
    return version / 1000;
}

static int version_minor(int version)
{
    return version % 1000 / 10;
}

/* The runtime reports a driver that is not there and one that is too old by the same number. */
static int explain_driver(cudaError_t e, struct fsdp_err *err)
{
    int driver = 0;
    if (e == cudaErrorInsufficientDriver) {
        cudaDriverGetVersion(&driver);
        if (driver)
            return fsdp_err_set(
                err, FSDP_ENOTFOUND,
                "device cuda: the NVIDIA driver is for CUDA %d.%d, but libfsdp-cuda.so is built "
                "with %d.%d; install a newer driver, or build with an older CUDA (CUDA_HOME)",
                version_major(driver), version_minor(driver), version_major(CUDART_VERSION),
                version_minor(CUDART_VERSION));
        return fsdp_err_set(err, FSDP_ENOTFOUND,
                            "device cuda: this machine has no NVIDIA driver (libcuda.so.1); "
                            "install one, or use device cpu");
    }
    if (e == cudaErrorNoDevice)
        return fsdp_err_set(err, FSDP_ENOTFOUND,
                            "device cuda: the driver shows no GPU to this process; ask Slurm for "
                            "one (--gres=gpu:1, --gpus-per-task=1), see CUDA_VISIBLE_DEVICES, or "
                            "use device cpu");
    int rc = fsdp_cuda_check((int)e, err, "device cuda: counting GPUs");
    return rc == FSDP_OK ? FSDP_OK : FSDP_ENOTFOUND;
}

int fsdp_cuda_probe(int *ndevices, struct fsdp_err *err)
{
    FSDP_TRY(explain_driver(cudaGetDeviceCount(ndevices), err));
    if (!*ndevices)
        return explain_driver(cudaErrorNoDevice, err);
    for (int i = 0; i < *ndevices; i++) {
        int major = 0, minor = 0;
        cudaError_t e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i);
        e = e ? e : cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, i);
        FSDP_TRY(explain_driver(e, err));
        if (major < LEAST_MAJOR)
            return fsdp_err_set(err, FSDP_ENOTFOUND,
                                "device cuda: GPU %d has compute capability %d.%d; %d.0 (A100) or "
                                "newer is needed",
                                i, major, minor, LEAST_MAJOR);
    }
    return FSDP_OK;
}
