// SPDX-License-Identifier: Apache-2.0
// simt.h: between runtime.cc and block.cc.
#ifndef SIMT_H
#define SIMT_H

#include "cuda_runtime.h"

void simt_run_kernel(dim3 grid, dim3 block, size_t nbytes, const char *name,
                     const std::function<void()> &body);

#endif
