/* SPDX-License-Identifier: Apache-2.0 */
/* device_load.h: libfsdp-cuda.so, opened on first use. */
#ifndef FSDP_DEVICE_LOAD_H
#define FSDP_DEVICE_LOAD_H

#include "fsdp/sys/cuda.h"

/* Opens the library and counts the GPUs. FSDP_EUNSUPPORTED: no library, or one of another build;
 * FSDP_ENOTFOUND: the library is there, but no driver or no GPU that it can use. */
int device_load_cuda(const struct fsdp_cuda_backend **out, int *ndevices, struct fsdp_err *err);
/* NULL before that. */
const struct fsdp_cuda_backend *device_loaded_cuda(void);

#endif
