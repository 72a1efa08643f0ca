/* SPDX-License-Identifier: Apache-2.0 */
/* The suite of dropout on a GPU. */
/* run: timeout=400 */
#include "../models/suite_dropout.h"

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
    run_dropout();
    return tap_done();
}
