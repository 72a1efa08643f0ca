/* SPDX-License-Identifier: Apache-2.0 */
/* The suite of products in 8 bits on CUDA's operators, emulated on the CPU: by codes, and on a GPU
 * without such products by their values. */
/* run: timeout=300 */
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

int main(void)
{
    struct fsdp_device *device;

    fsdp_log_set(collect, NULL, FSDP_LOG_INFO);
    if (fsdp_device_open_ops(&device, &fsdp_device_cuda_ops, 0, 0, &err))
        return 1;
    mirror_use(&nn_cuda_ops, device);
    suite_bias_apart = true;
    run_f8(NN_F8_TENSOR);
    const int neights = simt_lt_eights();
    ok(neights >= 3 * 4 * 3 + 16 * 4, "%d products were in 8 bits", neights);
    ok(nlines == 1 && strstr(lines, "multiples of 16"), "others are told once: %s", lines);
    simt_set_capability(80);
    run_f8(NN_F8_TENSOR);
    ok(simt_lt_eights() == neights, "none on compute capability 8.0");
    ok(nlines == 2 && strstr(lines, "compute capability 8.0 has no"), "which is told once: %s",
       lines);
    return tap_done();
}
