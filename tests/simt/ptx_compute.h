/* SPDX-License-Identifier: Apache-2.0 */
/* ptx_compute.h: what an instruction of PTX computes, for tests in C. */
#ifndef SIMT_PTX_COMPUTE_H
#define SIMT_PTX_COMPUTE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bits of registers to those of the result; -1 where the instruction is not known. */
int simt_ptx_compute(const char *name, uint64_t a, uint64_t b, uint64_t c, uint64_t *out);

#ifdef __cplusplus
}
#endif

#endif
