/* SPDX-License-Identifier: Apache-2.0 */
/* comm_load.h: libfsdp-mpi.so, opened on first use. */
#ifndef FSDP_COMM_LOAD_H
#define FSDP_COMM_LOAD_H

#include "fsdp/sys/comm_ops.h"

/* NULL where there is no such library, or one of another build; `why` (one line) says which. */
const struct fsdp_comm_ops *comm_load_mpi(char *why, size_t why_nbytes);

#endif
