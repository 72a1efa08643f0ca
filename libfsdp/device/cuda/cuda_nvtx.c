/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranges for Nsight Systems and other tools that listen to NVTX, in the domain "libfsdp". Without a
 * tool NVTX gives no domain.
 */
#include <pthread.h>
#include <stddef.h>

#include "cuda_nvtx.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static nvtxDomainHandle_t domain;

static void create_domain(void)
{
    domain = nvtxDomainCreateA("libfsdp");
}

bool device_cuda_is_profiled(void)
{
    pthread_once(&once, create_domain);
    return domain;
}

void device_cuda_range_push(const char *name)
{
    const nvtxEventAttributes_t range = {.version = NVTX_VERSION,
                                         .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                         .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                         .message.ascii = name};
    nvtxDomainRangePushEx(domain, &range);
}

void device_cuda_range_pop(void)
{
    nvtxDomainRangePop(domain);
}
#else /* CUDA without NVTX's headers, and the emulation */
bool device_cuda_is_profiled(void)
{
    return false;
}

void device_cuda_range_push(const char *name)
{
    (void)name;
}

void device_cuda_range_pop(void)
{
}
#endif
