/* SPDX-License-Identifier: Apache-2.0 */
/* nvml.h: what is used of NVML, the library of NVIDIA's driver, which is looked for at run time. */
#ifndef NVML_H
#define NVML_H

#include <stdbool.h>

struct nvml_pci {
    char legacy_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
};
struct nvml_memory {
    unsigned long long total, free, used; /* bytes */
};
enum { NVML_MAX_LINKS = 18 };

/* Calls return 0, or an error of NVML's. Those of the second group may be NULL in an old driver. */
struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *n);
    int (*handle)(unsigned i, void **device);
    int (*pci)(void *device, struct nvml_pci *pci);
    int (*remote)(void *device, unsigned link, struct nvml_pci *pci);

    int (*handle_of_uuid)(const char *uuid, void **device);
    int (*affinity)(void *device, unsigned nwords, unsigned long *set);
    int (*memory)(void *device, struct nvml_memory *memory);
    int (*link_state)(void *device, unsigned link, unsigned *active);
    int (*lanes)(void *device, unsigned *width);
    int (*lanes_max)(void *device, unsigned *width);
};

/* False, and nothing to close, where there is none or it does not begin. Local. */
bool nvml_open(struct nvml *out);
void nvml_close(struct nvml *nvml);

#endif
