/* SPDX-License-Identifier: Apache-2.0 */
/* The suite of tests/models on CUDA's operators, emulated on the CPU. */
/* run: timeout=300 */
#include "../models/suite_dropout.h"

#include "../models/nn_mirror.h"
#include "fsdp/sys/cuda.h"
#include "fsdp/sys/device_ops.h"

extern const struct nn_ops nn_cuda_ops;

int main(void)
{
    struct fsdp_device *device;

    if (fsdp_device_open_ops(&device, &fsdp_device_cuda_ops, 0, 0, &err))
        return 1;
    mirror_use(&nn_cuda_ops, device);
    run_dropout();
    return tap_done();
}
