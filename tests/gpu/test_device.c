/* SPDX-License-Identifier: Apache-2.0 */
/* The device's suite on a GPU. */
#include "../device/device_suite.h"

int main(void)
{
    struct fsdp_device *device;
    struct fsdp_lane *lane;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (fsdp_device_open(&device, "cuda", 0, &err) ||
        fsdp_lane_create(&lane, device, "test", &err)) {
        ok(false, "a GPU: %s", err.text);
        return tap_done();
    }
    run_arithmetic(lane);
    fsdp_lane_destroy(lane);
    test_lanes("cuda", device, true);
    test_blocked(device);
    fsdp_device_close(device);
    return tap_done();
}
