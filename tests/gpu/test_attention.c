/* SPDX-License-Identifier: Apache-2.0 */
/* The suite of attention on a GPU: the plain kernels, in fp32. */
/* run: timeout=400 */
#include "../models/suite_attention.h"

#include "../models/nn_mirror.h"

int main(void)
{
    struct fsdp_device *device;
    const struct nn_ops *ops;

    if (fsdp_device_open(&device, "cuda", 0, &err) || nn_ops_of(&ops, device, &err)) {
        ok(false, "a GPU: %s", err.text);
        return tap_done();
    }
    mirror_use(ops, device);
    run_attention();
    return tap_done();
}
