/* SPDX-License-Identifier: Apache-2.0 */
/* train_gpu.h: this rank's GPU. */
#ifndef TRAIN_GPU_H
#define TRAIN_GPU_H

#include <stdio.h>

#include "boot.h"
#include "fsdp/device.h"
#include "gpu.h"

struct train_gpu {
    char device[16];          /* for fsdp_device_open: "cpu", "cuda:3" */
    char why_cpu[64];         /* why auto took the CPU, "": nobody asked for another */
    int ngpus;                /* that this process sees */
    char order[32];           /* by what the GPUs were ordered */
    char set[512], kept[512]; /* gpu_environment */
    struct gpu_look look;     /* what NVML says of it; look.pci "": nothing */
};

/* What fsdp.device (auto, cpu, cuda) means for this rank; sets the environment of CUDA and NCCL
 * where it is a GPU. Before anything else calls CUDA. Local. */
int train_gpu_choose(struct train_gpu *out, const char *kind, const struct boot_info *info,
                     struct fsdp_err *err);
/* Comment lines for --print-config: what gpu_environment would set. */
void train_gpu_print(FILE *to);

#endif
