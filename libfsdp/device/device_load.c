/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and opens libfsdp-cuda.so, once per process. */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_load.h"
#include "fsdp/sys/device_ops.h"
#include "fsdp/sys/library.h"

#define LIBRARY "libfsdp-cuda.so"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct fsdp_cuda_backend *loaded;

static void forward_log(void *ctx, enum fsdp_log_level level, const char *text)
{
    (void)ctx;
    fsdp_log(level, "%s", text);
}

/* What the library links to is large: its driver is asked for first. */
static int driver_is_there(struct fsdp_err *err)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!driver)
        return fsdp_err_set(err, FSDP_ENOTFOUND,
                            "device cuda: this machine has no NVIDIA driver (libcuda.so.1); "
                            "install one, or use device cpu");
    dlclose(driver);
    return FSDP_OK;
}

static int load(const char *path, struct fsdp_err *err)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "device cuda: %s cannot be opened: %s", path,
                            dlerror());
    const struct fsdp_cuda_backend *backend = dlsym(library, FSDP_CUDA_SYMBOL);
    if (!backend || backend->abi != FSDP_CUDA_ABI || strcmp(backend->version, fsdp_version()) ||
        backend->device_ops->abi != FSDP_DEVICE_OPS_ABI) {
        dlclose(library);
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "device cuda: %s is not of this build (version %s); build or install "
                            "both together",
                            path, fsdp_version());
    }
    backend->log_set(forward_log, NULL, FSDP_LOG_DEBUG);
    loaded = backend;
    return FSDP_OK;
}

static int open_library(struct fsdp_err *err)
{
    const char *given = getenv("FSDP_CUDA_LIBRARY");
    char path[PATH_MAX];

    if (loaded)
        return FSDP_OK;
    if (given && *given)
        return load(given, err);
    if (!fsdp_library_find(path, sizeof path, LIBRARY))
        return fsdp_err_set(
            err, FSDP_EUNSUPPORTED,
            "device cuda: there is no " LIBRARY " next to this program, in ../lib "
            "of there or next to libfsdp.so; build with CUDA (make WITH_CUDA=1), or "
            "name the file in FSDP_CUDA_LIBRARY");
    FSDP_TRY(driver_is_there(err));
    return load(path, err);
}

int device_load_cuda(const struct fsdp_cuda_backend **out, int *ndevices, struct fsdp_err *err)
{
    pthread_mutex_lock(&lock);
    int rc = open_library(err);
    pthread_mutex_unlock(&lock);
    if (rc)
        return rc;
    *out = loaded;
    return loaded->probe(ndevices, err);
}

const struct fsdp_cuda_backend *device_loaded_cuda(void)
{
    pthread_mutex_lock(&lock);
    const struct fsdp_cuda_backend *backend = loaded;
    pthread_mutex_unlock(&lock);
    return backend;
}
