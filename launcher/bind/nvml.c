/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <stddef.h>

#include "nvml.h"

static bool find_library(struct nvml *nvml)
{
    const struct {
        const char *name;
        void **to;
        bool needed;
    } symbols[] = {
        {"nvmlInit_v2", (void **)(void *)&nvml->init, true},
        {"nvmlShutdown", (void **)(void *)&nvml->shutdown, true},
        {"nvmlDeviceGetCount_v2", (void **)(void *)&nvml->count, true},
        {"nvmlDeviceGetHandleByIndex_v2", (void **)(void *)&nvml->handle, true},
        {"nvmlDeviceGetPciInfo_v3", (void **)(void *)&nvml->pci, true},
        {"nvmlDeviceGetNvLinkRemotePciInfo_v2", (void **)(void *)&nvml->remote, true},
        {"nvmlDeviceGetHandleByUUID", (void **)(void *)&nvml->handle_of_uuid, false},
        {"nvmlDeviceGetCpuAffinity", (void **)(void *)&nvml->affinity, false},
        {"nvmlDeviceGetMemoryInfo", (void **)(void *)&nvml->memory, false},
        {"nvmlDeviceGetNvLinkState", (void **)(void *)&nvml->link_state, false},
        {"nvmlDeviceGetCurrPcieLinkWidth", (void **)(void *)&nvml->lanes, false},
        {"nvmlDeviceGetMaxPcieLinkWidth", (void **)(void *)&nvml->lanes_max, false},
    };

    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++)
        if (!(*symbols[i].to = dlsym(nvml->library, symbols[i].name)) && symbols[i].needed)
            return false;
    return true;
}

bool nvml_open(struct nvml *out)
{
    *out = (struct nvml){.library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL)};
    if (!out->library)
        return false;
    if (find_library(out) && out->init() == 0)
        return true;
    dlclose(out->library);
    out->library = NULL;
    return false;
}

void nvml_close(struct nvml *nvml)
{
    nvml->shutdown();
    dlclose(nvml->library);
}
