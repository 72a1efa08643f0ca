/* SPDX-License-Identifier: Apache-2.0 */
/* peak.h: what a device could compute at most, for the model FLOPs utilization (MFU) of a run. */
#ifndef PEAK_H
#define PEAK_H

#include "fsdp/base.h"

/* Dense TFLOP/s of a GPU with operands of dtype, by the name that fsdp_device_name gives; 0: not
 * known. Source: NVIDIA's data sheets (tensor cores, no sparsity). Pure. */
double peak_tflops(const char *device_name, enum fsdp_dtype dtype);

#endif
