/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi.h: what libfsdp-mpi.so gives to the rest. It is opened when somebody asks for backend "mpi":
 * FSDP_MPI_LIBRARY (a path), else libfsdp-mpi.so next to the program or libfsdp.so, or in ../lib of
 * there, so that programs run where there is no MPI. It holds its own copies of what it uses of
 * libfsdp; hence the version must be the same.
 */
#ifndef FSDP_SYS_MPI_H
#define FSDP_SYS_MPI_H

#include "fsdp/sys/comm_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FSDP_MPI_ABI 2

struct fsdp_mpi_backend {
    uint32_t abi;
    const char *version; /* FSDP_VERSION_STRING of its build */
    const struct fsdp_comm_ops *comm_ops;
    int (*begin)(struct fsdp_err *err); /* fsdp_comm_begin_mpi */
};

/* The one symbol that libfsdp-mpi.so exports. */
#define FSDP_MPI_SYMBOL "fsdp_mpi_backend"
extern const struct fsdp_mpi_backend fsdp_mpi_backend;

#ifdef __cplusplus
}
#endif
#endif
