/* SPDX-License-Identifier: Apache-2.0 */
/* gpus.h: what GPUs can do at most, by their makers' data sheets. Pure. */
#ifndef PLAN_GPUS_H
#define PLAN_GPUS_H

#include "fsdp/base.h"

/* TFLOP/s of dense products (data sheets often give twice that, for sparse ones) with sums in fp32;
 * 0: it has no such products. */
struct gpu_peak {
    const char *name; /* part of what its driver calls it */
    double bf16, f16, f8, tf32;
    double memory_gb;     /* 1e9 bytes */
    double bandwidth_gbs; /* of its memory, 1e9 bytes a second */
    const char *source;
};

/* By the model that fsdp_device_look tells; NULL: not known. */
const struct gpu_peak *gpu_find(const char *model);
/* The table, in the order in which names are looked for: the more special first. */
const struct gpu_peak *gpu_at(int i);
int gpu_count(void);
/* TFLOP/s of operands of that type; 0 where it is not known. F32 is not taken for TF32, which the
 * caller must know of. gpu NULL: 0. */
double gpu_tflops(const struct gpu_peak *gpu, enum fsdp_dtype dtype);

#endif
