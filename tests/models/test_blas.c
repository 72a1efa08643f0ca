/* SPDX-License-Identifier: Apache-2.0 */
/* A process without memory for OpenBLAS, which would try for it without end, is told so before. */
#include <string.h>
#include <sys/resource.h>

#include "nn/nn.h"
#include "tap.h"

int main(void)
{
    const struct nn_ops *nn;
    struct fsdp_device *device;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct rlimit before, small;

    if (getrlimit(RLIMIT_AS, &before) || before.rlim_cur != RLIM_INFINITY) {
        tap_skip("address space is limited here");
        return tap_done();
    }
    ok(fsdp_device_open(&device, "cpu", 0, &err) == FSDP_OK, "the CPU: %s", err.text);
    ok(nn_ops_of(&nn, device, &err) == FSDP_OK, "without a limit there is room");
    small = before;
    small.rlim_cur = 1 << 20; /* less than is in use: no more is to be had */
    setrlimit(RLIMIT_AS, &small);
    int rc = nn_ops_of(&nn, device, &err);
    setrlimit(RLIMIT_AS, &before);
    ok(rc == FSDP_ENOMEM && strstr(err.text, "limited to 1 MiB (ulimit -v)"), "with one: %s",
       err.text);
    fsdp_device_close(device);
    return tap_done();
}
