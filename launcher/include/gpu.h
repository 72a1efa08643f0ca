/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.h: which GPU of its node a rank gets, and what is set for CUDA and NCCL before they start. */
#ifndef GPU_H
#define GPU_H

#include <sched.h>

#include "boot.h"

/* order[i] is the GPU of place i. Place 0 has GPU 0; each next place has the GPU with most links to
 * the one before, of equals the lowest. links[a * ngpus + b]: NVLinks between a and b. Pure. */
void gpu_order_by_links(int *order, const int *links, int ngpus);

/* NVML's view of the node: ngpus GPUs in the order of the PCI bus, and their links. FSDP_ENOTFOUND:
 * there is no NVML, or it has another number of GPUs. Local. */
int gpu_links_read(int *links, int ngpus, struct fsdp_err *err);

/* order[i], for the ngpus GPUs of this process, and where it comes from, static. Returns false
 * where it is CUDA's numbering: NVML does not say more, or CUDA_VISIBLE_DEVICES has set the order.
 * Local.
 */
bool gpu_order_read(int *order, int max, int ngpus, const char **from);

/* What NVML says of one GPU; what it does not say is 0, or empty. */
struct gpu_look {
    char pci[16];          /* "0000:1b:00.0" */
    cpu_set_t near;        /* cores near it, as the driver says */
    double free, total;    /* bytes of its memory */
    int nlinks, nlinks_up; /* NVLinks that it has, and that work */
    int lanes, lanes_max;  /* of PCIe */
};

/* The GPU that CUDA numbers `gpu` in this process. FSDP_ENOTFOUND: there is no NVML, or it cannot
 * say which one that is (CUDA_VISIBLE_DEVICES names parts of GPUs, or CUDA_DEVICE_ORDER is not the
 * bus's). Local. */
int gpu_look_at(struct gpu_look *out, int gpu, struct fsdp_err *err);
/* NVML's index or UUID of a GPU, from the values of CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER
 * (NULL: not set). Returns false where they do not tell. Pure. */
bool gpu_name_of(char *out, size_t nbytes, int gpu, const char *visible, const char *order);

/* The GPU of a rank: place local_rank / ranks_per_gpu of the order. ngpus: those that the process
 * sees. Where a resource manager shows each rank one GPU, that is its own. FSDP_EINVAL: there are
 * more ranks on the node than GPUs, and what to change. order NULL: as they are numbered. Pure. */
int gpu_assign(int *gpu, const struct boot_info *info, int ngpus, int ranks_per_gpu,
               const int *order, struct fsdp_err *err);

/* How many ranks share a GPU: fsdp-launch --ranks-per-gpu, 1 without. Local. */
int gpu_ranks_per_gpu(void);
#define GPU_ENV_RANKS_PER_GPU "FSDP_RANKS_PER_GPU"

/* Sets the variables that the user has not set, before the first call of CUDA or NCCL. Writes
 * "NAME=value ..." of these to `set`, and of those that the user had set to another value to
 * `kept`. info NULL: sets nothing, and writes what would be set. Local. */
void gpu_environment(const struct boot_info *info, int ranks_per_gpu, char *set, size_t set_nbytes,
                     char *kept, size_t kept_nbytes);

#endif
