/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and opens libfsdp-mpi.so, once per process. */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm_load.h"
#include "fsdp/comm.h"
#include "fsdp/sys/library.h"
#include "fsdp/sys/mpi.h"

#define LIBRARY "libfsdp-mpi.so"

static const struct fsdp_mpi_backend *open_library(char *why, size_t why_nbytes)
{
    const char *given = getenv("FSDP_MPI_LIBRARY");
    char path[PATH_MAX];

    if (given && *given) {
        snprintf(path, sizeof path, "%s", given);
    } else if (!fsdp_library_find(path, sizeof path, LIBRARY)) {
        snprintf(why, why_nbytes,
                 "there is no " LIBRARY
                 " next to this program or libfsdp.so, or in ../lib of there; "
                 "build with MPI (make WITH_MPI=1), or name the file in FSDP_MPI_LIBRARY");
        return NULL;
    }
    /* What MPI itself opens later looks for MPI's symbols among those of everybody. */
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        snprintf(why, why_nbytes, "%s", dlerror());
        return NULL;
    }
    const struct fsdp_mpi_backend *backend = dlsym(library, FSDP_MPI_SYMBOL);
    if (backend && backend->abi == FSDP_MPI_ABI && !strcmp(backend->version, fsdp_version()) &&
        backend->comm_ops->abi == FSDP_COMM_OPS_ABI)
        return backend;
    dlclose(library);
    snprintf(why, why_nbytes, "%s is not of this build (version %s)", path, fsdp_version());
    return NULL;
}

static const struct fsdp_mpi_backend *load(char *why, size_t why_nbytes)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const struct fsdp_mpi_backend *loaded;

    pthread_mutex_lock(&lock);
    if (!loaded)
        loaded = open_library(why, why_nbytes);
    pthread_mutex_unlock(&lock);
    return loaded;
}

const struct fsdp_comm_ops *comm_load_mpi(char *why, size_t why_nbytes)
{
    const struct fsdp_mpi_backend *mpi = load(why, why_nbytes);
    return mpi ? mpi->comm_ops : NULL;
}

int fsdp_comm_begin_mpi(struct fsdp_err *err)
{
    char why[FSDP_ERR_TEXT_NBYTES];
    const struct fsdp_mpi_backend *mpi = load(why, sizeof why);
    return mpi ? mpi->begin(err) : FSDP_OK;
}
