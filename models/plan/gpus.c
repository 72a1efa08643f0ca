/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "gpus.h"

#define SHEET(gpu) "NVIDIA, data sheet of the " gpu
#define PAPER(architecture) "NVIDIA, white paper of the " architecture " architecture"

/* A name that is part of another comes after it. */
static const struct gpu_peak table[] = {
    /* name              bf16    f16    f8   tf32    GB   GB/s */
    {"B200", 2250, 2250, 4500, 1125, 180, 8000, SHEET("DGX B200")},
    {"GH200 144G", 989, 989, 1979, 494, 144, 4900, SHEET("GH200")},
    {"GH200", 989, 989, 1979, 494, 96, 4000, SHEET("GH200")},
    {"H200 NVL", 835, 835, 1671, 417, 141, 4800, SHEET("H200")},
    {"H200", 989, 989, 1979, 494, 141, 4800, SHEET("H200")},
    {"H100 PCIe", 756, 756, 1513, 378, 80, 2000, SHEET("H100")},
    {"H100 HBM2e", 989, 989, 1979, 494, 96, 2400, "torchtitan, benchmarks of December 2024"},
    {"H100 NVL", 835, 835, 1671, 417, 94, 3900, SHEET("H100")},
    {"H100", 989, 989, 1979, 494, 80, 3350, SHEET("H100")},
    {"H800", 989, 989, 1979, 494, 80, 3350, SHEET("H100")},
    {"H20", 148, 148, 296, 74, 96, 4000, SHEET("H20")},
    {"A100-SXM4-40GB", 312, 312, 0, 156, 40, 1555, SHEET("A100")},
    {"A100-PCIE-40GB", 312, 312, 0, 156, 40, 1555, SHEET("A100")},
    {"A100 80GB PCIe", 312, 312, 0, 156, 80, 1935, SHEET("A100")},
    {"A100", 312, 312, 0, 156, 80, 2039, SHEET("A100")},
    {"A800", 312, 312, 0, 156, 80, 2039, SHEET("A100")},
    {"RTX A6000", 154.8, 154.8, 0, 77.4, 48, 768, SHEET("RTX A6000")},
    {"RTX 6000 Ada", 364.2, 364.2, 728.5, 182.1, 48, 960, SHEET("RTX 6000 Ada")},
    {"RTX 4090", 165.2, 165.2, 330.3, 82.6, 24, 1008, PAPER("Ada")},
    {"A40", 149.7, 149.7, 0, 74.8, 48, 696, SHEET("A40")},
    {"A30", 165, 165, 0, 82, 24, 933, SHEET("A30")},
    {"A10G", 70, 70, 0, 35, 24, 600, SHEET("A10G")},
    {"A10", 125, 125, 0, 62.5, 24, 600, SHEET("A10")},
    {"L40S", 362, 362, 733, 183, 48, 864, SHEET("L40S")},
    {"L40", 181, 181, 362, 90.5, 48, 864, SHEET("L40")},
    {"L4", 121, 121, 242, 60, 24, 300, SHEET("L4")},
    {"V100-SXM2-16GB", 0, 125, 0, 0, 16, 900, SHEET("V100")},
    {"V100-PCIE", 0, 112, 0, 0, 32, 900, SHEET("V100")},
    {"V100", 0, 125, 0, 0, 32, 900, SHEET("V100")},
    {"T4", 0, 65, 0, 0, 16, 320, SHEET("T4")},
};
enum { NGPUS = sizeof table / sizeof table[0] };

int gpu_count(void)
{
    return NGPUS;
}

const struct gpu_peak *gpu_at(int i)
{
    return &table[i];
}

const struct gpu_peak *gpu_find(const char *model)
{
    for (int i = 0; i < NGPUS; i++)
        if (strstr(model, table[i].name))
            return &table[i];
    return NULL;
}

double gpu_tflops(const struct gpu_peak *gpu, enum fsdp_dtype dtype)
{
    if (!gpu)
        return 0;
    switch (dtype) {
    case FSDP_BF16:
        return gpu->bf16;
    case FSDP_F16:
        return gpu->f16;
    case FSDP_F8_E4M3:
    case FSDP_F8_E5M2:
        return gpu->f8;
    default:
        return 0;
    }
}
