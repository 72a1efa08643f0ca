/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for the driver's libnvidia-ml.so.1 on machines without one: the 8 GPUs of
 * tests/launcher/machine.awk, 80 GiB each, 12 NVLinks to a switch and 16 lanes of PCIe. NVML_SIM
 * changes some: "3:free=10,5:links=11,6:lanes=8" (GiB free, links that work, lanes in use). Only
 * what launcher/bind/nvml.c asks for.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../launcher/bind/nvml.h"

enum { NGPUS = 8, NLINKS = 12, NVML_BAD = 2 };

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *n);
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
int nvmlDeviceGetPciInfo_v3(void *device, struct nvml_pci *pci);
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, struct nvml_pci *pci);
int nvmlDeviceGetCpuAffinity(void *device, unsigned nwords, unsigned long *set);
int nvmlDeviceGetMemoryInfo(void *device, struct nvml_memory *memory);
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active);
int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *width);
int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *width);

static const unsigned buses[NGPUS] = {0x07, 0x0f, 0x47, 0x4f, 0x87, 0x8f, 0xc7, 0xcf};
static const unsigned numa_nodes[NGPUS] = {3, 3, 1, 1, 7, 7, 5, 5};
static char gpus[NGPUS];

static unsigned number_of(const void *device)
{
    return (unsigned)((const char *)device - gpus);
}

static unsigned changed(const void *device, const char *key, unsigned value)
{
    char pattern[32];
    const char *text = getenv("NVML_SIM"), *at;

    snprintf(pattern, sizeof pattern, "%u:%s=", number_of(device), key);
    at = text ? strstr(text, pattern) : NULL;
    return at ? (unsigned)atoi(at + strlen(pattern)) : value;
}

int nvmlInit_v2(void)
{
    return 0;
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = NGPUS;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device)
{
    *device = gpus + i;
    return i < NGPUS ? 0 : NVML_BAD;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    return strncmp(uuid, "GPU-", 4)
               ? NVML_BAD
               : nvmlDeviceGetHandleByIndex_v2((unsigned)atoi(uuid + 4), device);
}

int nvmlDeviceGetPciInfo_v3(void *device, struct nvml_pci *pci)
{
    *pci = (struct nvml_pci){.bus = buses[number_of(device)]};
    return 0;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, struct nvml_pci *pci)
{
    (void)device;
    *pci = (struct nvml_pci){.bus = 0xe0};
    return link < NLINKS ? 0 : NVML_BAD;
}

int nvmlDeviceGetCpuAffinity(void *device, unsigned nwords, unsigned long *set)
{
    if (nwords < 2)
        return NVML_BAD;
    set[0] = set[1] = 0xfful << (8 * numa_nodes[number_of(device)]);
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, struct nvml_memory *memory)
{
    unsigned long long free_gib = changed(device, "free", 79);
    *memory = (struct nvml_memory){80ull << 30, free_gib << 30, (80 - free_gib) << 30};
    return 0;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active)
{
    *active = link < changed(device, "links", NLINKS);
    return link < NLINKS ? 0 : NVML_BAD;
}

int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *width)
{
    *width = changed(device, "lanes", 16);
    return 0;
}

int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *width)
{
    (void)device;
    *width = 16;
    return 0;
}
