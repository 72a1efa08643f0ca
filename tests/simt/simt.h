// SPDX-License-Identifier: Apache-2.0
// simt.h: between runtime.cc, block.cc and ptx_run.cc.
#ifndef SIMT_H
#define SIMT_H

#include <vector>

#include "cuda_runtime.h"

void simt_run_kernel(dim3 grid, dim3 block, size_t nbytes, const char *name,
                     const std::function<void()> &body);

// Are kernels to be run as PTX (SIMT_PTX: the files, separated by blanks)?
bool simt_has_ptx();
// False, with nothing done, where the kernel has run SIMT_PTX_MOST instructions: its body is to
// run. Ends the process where the files have no such kernel.
bool simt_run_ptx(dim3 grid, dim3 block, size_t nbytes, const char *name, const void *kernel,
                  const std::vector<char> &arguments);
// The allocation that an address of the device's or of page-locked memory is in, [lo, hi).
bool simt_find_memory(uint64_t address, uint64_t *lo, uint64_t *hi);

#endif
