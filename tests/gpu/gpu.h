/* SPDX-License-Identifier: Apache-2.0 */
/* How a suite of the operators is held on a GPU. Include it behind the suite. */
#ifndef GPU_H
#define GPU_H

#include "../models/nn_mirror.h"

/* The suite's calls go to the first GPU from now on. Where there is none, that is a failed check.
 */
static bool use_gpu(void)
{
    struct fsdp_device *device;
    const struct nn_ops *ops;

    if (fsdp_device_open(&device, "cuda", 0, &err) || nn_ops_of(&ops, device, &err))
        return ok(false, "a GPU: %s", err.text);
    mirror_use(ops, device);
    return true;
}

#endif
