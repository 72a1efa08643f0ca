/* SPDX-License-Identifier: Apache-2.0 */
/* comm_sum.h: sums, for the backends that make the collectives themselves, on the CPU (host, mpi).
 */
#ifndef COMM_SUM_H
#define COMM_SUM_H

#include "fsdp/base.h"

/* dst[i] = src[0][i] + src[1][i] + ... from left to right. dst may be one of the sources. */
void comm_sum(void *dst, const void *const *src, int nsrc, size_t nelem, enum fsdp_dtype dtype);

#endif
