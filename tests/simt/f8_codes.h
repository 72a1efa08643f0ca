/* SPDX-License-Identifier: Apache-2.0 */
/* f8_codes.h: what the tests of products in 8 bits on CUDA's operators share. A process has one
 * GPU, whose compute capability does not change: plans of products are kept. */
#ifndef SIMT_F8_CODES_H
#define SIMT_F8_CODES_H

#include "../models/suite_f8.h"

#include "../models/nn_mirror.h"
#include "cublasLt.h"
#include "fsdp/sys/cuda.h"
#include "fsdp/sys/device_ops.h"

extern const struct nn_ops nn_cuda_ops;

static int nlines;
static char lines[2000];

static void collect(void *ctx, enum fsdp_log_level level, const char *text)
{
    (void)ctx, (void)level;
    if (!strstr(text, "8 bits"))
        return;
    nlines++;
    snprintf(lines + strlen(lines), sizeof lines - strlen(lines), "%s\n", text);
}

static int of_rows(void)
{
    return simt_lt_scaled(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
}

static int of_blocks(void)
{
    return simt_lt_scaled(CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0);
}

static bool open_cuda(int capability)
{
    struct fsdp_device *device;

    fsdp_log_set(collect, NULL, FSDP_LOG_INFO);
    simt_set_capability(capability);
    if (fsdp_device_open_ops(&device, &fsdp_device_cuda_ops, 0, 0, &err))
        return false;
    mirror_use(&nn_cuda_ops, device);
    suite_bias_apart = true;
    return true;
}

#endif
