/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of a token against numbers worked out by hand, and the table of GPUs. */
#include <math.h>
#include <string.h>

#include "plan/flops.h"
#include "plan/gpus.h"
#include "tap.h"

/* The means of what each token of a row sees, one by one. */
static double keys_counted(int64_t T, int64_t window, bool bidirectional)
{
    double seen = 0;

    for (int64_t t = 0; t < T; t++)
        for (int64_t k = 0; k < T; k++)
            if (bidirectional ? !window || k < window : k <= t && (!window || t - k < window))
                seen++;
    return T ? seen / (double)T : 0;
}

static void test_keys(void)
{
    bool good = true;

    for (int64_t T = 0; T <= 12; T++)
        for (int64_t window = 0; window <= 14; window++)
            for (int both = 0; both <= 1; both++)
                good &= fabs(flops_keys(T, window, both) - keys_counted(T, window, both)) < 1e-12;
    ok(good, "what a token sees, against counting");
    ok(flops_keys(4, 0, false) == 2.5, "(1 + 2 + 3 + 4) / 4");
    ok(flops_keys(4, 2, false) == 1.75, "(1 + 2 + 2 + 2) / 4");
    ok(flops_keys(4, 0, true) == 4, "all of four");
    ok(flops_keys(4096, 4096, false) == flops_keys(4096, 0, false), "a window as long as the row");
}

static void test_models(void)
{
    /* Llama 3 8B: dim 4096, 32 heads of 128, 8 of keys, ffn 14336, 32 layers, vocabulary 128256. A
     * layer: q and o 2 * 4096 * 4096, k and v 2 * 4096 * 1024, the MLP 3 * 4096 * 14336. */
    struct flops_model m = {.nlayers = 32,
                            .layer = 33554432.0 + 8388608 + 176160768,
                            .nheads = 32,
                            .head_dim = 128,
                            .head = 525336576};
    /* 2 * (32 * 218103808 + 525336576) = 15009316864; a key: 2 * 32 * 32 * 256 = 524288, and
     * 4096.5 of them at T 8192: 2147745792. */
    ok(flops_forward(&m, 8192) == 15009316864.0 + 2147745792.0, "Llama 3 8B forward");
    ok(flops_train(&m, 8192) == 3 * 17157062656.0, "and with backward");
    m.frozen = 1000;
    ok(flops_train(&m, 8192) == 3 * 17157062656.0 - 2000, "a frozen matrix has no gradient");
    m.frozen = 0;
    m.bidirectional = true;
    ok(flops_forward(&m, 8192) == 15009316864.0 + 524288.0 * 8192, "if it saw what follows");
    m.bidirectional = false;
    m.nwindowed = 16;
    m.window = 1024;
    /* Half of the layers see (1024 * 1025 / 2 + 7168 * 1024) / 8192 = 960.0625. */
    ok(flops_forward(&m, 8192) == 15009316864.0 + 262144.0 * (4096.5 + 960.0625),
       "if half of its layers had a window");
    m = (struct flops_model){.nlayers = 2,
                             .layer = 100,
                             .expert = 10,
                             .active = 3,
                             .nheads = 2,
                             .head_dim = 4,
                             .value_dim = 6,
                             .head = 50};
    /* 2 * (2 * 130 + 50 + 2 layers * 2 heads * 10 * 1.5 keys) */
    ok(flops_forward(&m, 2) == 740, "experts that are active; values of another size");
    m.active = 8;
    ok(flops_forward(&m, 2) == 940, "more of them");
}

static void test_gpus(void)
{
    const struct gpu_peak *gpu = gpu_find("NVIDIA H100 80GB HBM3");
    bool good = true;

    ok(gpu && gpu_tflops(gpu, FSDP_BF16) == 989 && gpu_tflops(gpu, FSDP_F8_E4M3) == 1979 &&
           gpu->memory_gb == 80 && gpu->bandwidth_gbs == 3350,
       "an H100");
    gpu = gpu_find("NVIDIA H100 PCIe");
    ok(gpu && gpu->bf16 == 756, "its PCIe board is another");
    gpu = gpu_find("NVIDIA H200");
    ok(gpu && !strcmp(gpu->name, "H200"), "an H200 is no H20");
    gpu = gpu_find("NVIDIA GH200 480GB");
    ok(gpu && !strcmp(gpu->name, "GH200"), "nor a GH200 an H200");
    gpu = gpu_find("NVIDIA A10G");
    ok(gpu && gpu->bf16 == 70, "nor an A10G an A10");
    gpu = gpu_find("Tesla V100-SXM2-32GB");
    ok(gpu && gpu_tflops(gpu, FSDP_F16) == 125 && gpu_tflops(gpu, FSDP_BF16) == 0,
       "a V100 has no bf16");
    ok(!gpu_find("cpu") && gpu_tflops(NULL, FSDP_BF16) == 0, "what is not known has no peak");
    ok(gpu_tflops(gpu_find("NVIDIA L4"), FSDP_F32) == 0, "nor has F32");
    for (int i = 0; i < gpu_count(); i++) {
        gpu = gpu_at(i);
        /* The first row that matches is its own: no name hides a longer one. */
        good &= gpu_find(gpu->name) == gpu && gpu->f16 > 0 && gpu->memory_gb > 0 &&
                gpu->bandwidth_gbs > 0 && gpu->source[0] &&
                (!gpu->f8 || fabs(gpu->f8 / gpu->f16 - 2) < 0.03);
    }
    ok(good, "every row is found by its name and is plausible");
}

int main(void)
{
    test_keys();
    test_models();
    test_gpus();
    return tap_done();
}
