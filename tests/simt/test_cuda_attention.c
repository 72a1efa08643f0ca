/* SPDX-License-Identifier: Apache-2.0 */
/* The suite of tests/models on CUDA's operators, emulated on the CPU. */
/* run: timeout=300 */
#include "../models/suite_attention.h"

#include "../models/nn_mirror.h"
#include "fsdp/sys/cuda.h"
#include "fsdp/sys/device_ops.h"

extern const struct nn_ops nn_cuda_ops;

static int nlines, nfp32;

static void count(void *ctx, enum fsdp_log_level level, const char *text)
{
    (void)ctx;
    (void)level;
    nlines += strstr(text, "attention: ") != NULL;
    nfp32 += strstr(text, "because of: fp32") != NULL;
}

int main(void)
{
    struct fsdp_device *device;

    fsdp_log_set(count, NULL, FSDP_LOG_INFO);
    if (fsdp_device_open_ops(&device, &fsdp_device_cuda_ops, 0, 0, &err))
        return 1;
    mirror_use(&nn_cuda_ops, device);
    run_attention();
    run_traits();
    ok(nfp32 == 1 && nlines == 1, "which way it took, and why, is said once");
    return tap_done();
}
