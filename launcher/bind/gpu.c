/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "nvml.h"

/* ---- which one ------------------------------------------------------------------------------- */

void gpu_order_by_links(int *order, const int *links, int ngpus)
{
    for (int i = 0; i < ngpus; i++)
        order[i] = i;
    for (int i = 1; i < ngpus; i++) {
        const int *to = links + order[i - 1] * ngpus;
        int best = i;
        for (int k = i + 1; k < ngpus; k++)
            if (to[order[k]] > to[order[best]])
                best = k;
        int gpu = order[best];
        memmove(order + i + 1, order + i, (size_t)(best - i) * sizeof *order);
        order[i] = gpu;
    }
}

int gpu_assign(int *gpu, const struct boot_info *info, int ngpus, int ranks_per_gpu,
               const int *order, struct fsdp_err *err)
{
    bool given = strcmp(info->method, "local") != 0 && strcmp(info->method, "single") != 0;
    int needed = (info->local_size + ranks_per_gpu - 1) / ranks_per_gpu;

    if (ngpus == 1 && given && ranks_per_gpu == 1) {
        *gpu = 0;
        return FSDP_OK;
    }
    if (needed > ngpus)
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "%d ranks on host %s, where a process sees %d GPU%s%s: start at most %d there (srun "
            "--ntasks-per-node=%d, fsdp-launch -n %d), or for a test let them share: fsdp-launch "
            "--ranks-per-gpu %d",
            info->local_size, info->host, ngpus, ngpus == 1 ? "" : "s",
            getenv("CUDA_VISIBLE_DEVICES") ? " (CUDA_VISIBLE_DEVICES)" : "", ngpus * ranks_per_gpu,
            ngpus * ranks_per_gpu, ngpus * ranks_per_gpu, (info->local_size + ngpus - 1) / ngpus);
    int place = info->local_rank / ranks_per_gpu;
    *gpu = order ? order[place] : place;
    return FSDP_OK;
}

/* ---- what NVML knows ---- */

static bool same_place(const struct nvml_pci *a, const struct nvml_pci *b)
{
    return a->domain == b->domain && a->bus == b->bus && a->device == b->device;
}

/* A link to a switch leads to no GPU: all are equally near then. */
static bool links_count(const struct nvml *nvml, int *links, int ngpus, struct nvml_pci *at)
{
    struct nvml_pci remote;
    void *device;

    memset(links, 0, (size_t)ngpus * (size_t)ngpus * sizeof *links);
    for (int i = 0; i < ngpus; i++)
        if (nvml->handle((unsigned)i, &device) || nvml->pci(device, &at[i]))
            return false;
    for (int i = 0; i < ngpus; i++) {
        if (nvml->handle((unsigned)i, &device))
            return false;
        for (unsigned l = 0; l < NVML_MAX_LINKS; l++) {
            if (nvml->remote(device, l, &remote))
                continue;
            for (int k = 0; k < ngpus; k++)
                links[i * ngpus + k] += k != i && same_place(&remote, &at[k]);
        }
    }
    return true;
}

int gpu_links_read(int *links, int ngpus, struct fsdp_err *err)
{
    struct nvml nvml;
    unsigned count = 0;
    bool done = false;

    if (!nvml_open(&nvml))
        return fsdp_err_set(err, FSDP_ENOTFOUND, "there is no libnvidia-ml.so.1 that works");
    struct nvml_pci *at = fsdp_alloc((size_t)ngpus, sizeof *at, "GPUs of the node", err);
    if (at)
        done = nvml.count(&count) == 0 && count == (unsigned)ngpus &&
               links_count(&nvml, links, ngpus, at);
    fsdp_free(at);
    nvml_close(&nvml);
    return done
               ? FSDP_OK
               : fsdp_err_set(err, FSDP_ENOTFOUND, "NVML knows %u GPUs, and CUDA %d", count, ngpus);
}

bool gpu_order_read(int *order, int max, int ngpus, const char **from)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    bool linked = false;

    *from = "CUDA_VISIBLE_DEVICES";
    if (getenv("CUDA_VISIBLE_DEVICES"))
        return false;
    *from = "CUDA";
    if (ngpus < 1 || ngpus > max)
        return false;
    int *links = fsdp_alloc((size_t)ngpus * (size_t)ngpus, sizeof *links, "NVLinks", &why);
    if (!links || gpu_links_read(links, ngpus, &why)) {
        fsdp_log(FSDP_LOG_DEBUG, "GPUs are taken in CUDA's order: %s", why.text);
        fsdp_free(links);
        return false;
    }
    for (int i = 0; i < ngpus * ngpus; i++)
        linked |= links[i] > 0;
    gpu_order_by_links(order, links, ngpus);
    fsdp_free(links);
    *from = linked ? "PCI and NVLink" : "PCI";
    return true;
}

bool gpu_name_of(char *out, size_t nbytes, int gpu, const char *visible, const char *order)
{
    const char *at = visible;

    if (!order || strcmp(order, "PCI_BUS_ID") != 0) /* CUDA's numbers are not NVML's then */
        at = visible && strncmp(visible, "GPU-", 4) == 0 ? visible : NULL;
    else if (!visible)
        return snprintf(out, nbytes, "%d", gpu) > 0;
    for (int i = 0; at && i < gpu; i++)
        if ((at = strchr(at, ',')))
            at++;
    size_t len = at ? strcspn(at, ",") : 0;
    if (len == 0 || len >= nbytes || at[0] == '-')
        return false;
    memcpy(out, at, len);
    out[len] = 0;
    return true;
}

static bool handle_of(const struct nvml *nvml, const char *name, void **device)
{
    char *end;
    unsigned long index = strtoul(name, &end, 10);

    if (*name && !*end)
        return nvml->handle((unsigned)index, device) == 0;
    return nvml->handle_of_uuid && nvml->handle_of_uuid(name, device) == 0;
}

static void look_at(struct gpu_look *out, const struct nvml *nvml, void *device)
{
    enum { WORD_BITS = 8 * sizeof(unsigned long), NWORDS = CPU_SETSIZE / WORD_BITS };
    unsigned long near[NWORDS] = {0};
    struct nvml_memory memory;
    unsigned active, lanes, most;

    if (nvml->affinity && nvml->affinity(device, NWORDS, near) == 0)
        for (int i = 0; i < CPU_SETSIZE; i++)
            if (near[i / WORD_BITS] >> (i % WORD_BITS) & 1)
                CPU_SET(i, &out->near);
    if (nvml->memory && nvml->memory(device, &memory) == 0) {
        out->free = (double)memory.free;
        out->total = (double)memory.total;
    }
    for (unsigned l = 0; nvml->link_state && l < NVML_MAX_LINKS; l++)
        if (nvml->link_state(device, l, &active) == 0) {
            out->nlinks++;
            out->nlinks_up += active != 0;
        }
    if (nvml->lanes && nvml->lanes_max && nvml->lanes(device, &lanes) == 0 &&
        nvml->lanes_max(device, &most) == 0) {
        out->lanes = (int)lanes;
        out->lanes_max = (int)most;
    }
}

int gpu_look_at(struct gpu_look *out, int gpu, struct fsdp_err *err)
{
    char name[64];
    struct nvml nvml;
    struct nvml_pci pci;
    void *device;

    *out = (struct gpu_look){.total = 0};
    if (!gpu_name_of(name, sizeof name, gpu, getenv("CUDA_VISIBLE_DEVICES"),
                     getenv("CUDA_DEVICE_ORDER")))
        return fsdp_err_set(err, FSDP_ENOTFOUND, "which GPU is number %d of CUDA's is not known",
                            gpu);
    if (!nvml_open(&nvml))
        return fsdp_err_set(err, FSDP_ENOTFOUND, "there is no libnvidia-ml.so.1 that works");
    bool found = handle_of(&nvml, name, &device) && nvml.pci(device, &pci) == 0;
    if (found) {
        snprintf(out->pci, sizeof out->pci, "%04x:%02x:%02x.0", pci.domain & 0xffffu,
                 pci.bus & 0xffu, pci.device & 0xffu);
        look_at(out, &nvml, device);
    }
    nvml_close(&nvml);
    return found ? FSDP_OK : fsdp_err_set(err, FSDP_ENOTFOUND, "NVML does not know GPU %s", name);
}

/* ---- the environment ------------------------------------------------------------------------- */

struct setting {
    const char *name, *value;
};

/* Not NCCL_NVLS_ENABLE: 1 makes NCCL use the switch's multicast without asking the GPU for it, and
 * end the job where that does not work; unset, NCCL asks and does without. */
static const struct setting always[] = {
    {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"},   /* as NVML and Slurm number them */
    {"CUDA_DEVICE_MAX_CONNECTIONS", "32"}, /* a hardware queue for each lane */
    {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"},   /* communicators that overlap keep the host's order */
};

/* NCCL takes ranks of one host on one GPU for a mistake, so each is a host of its own
 * (NCCL_HOSTID), and they talk over sockets. With few blocks each, they fit the GPU side by side.
 */
static const struct setting shared[] = {
    {"NCCL_NET", "Socket"},   {"NCCL_NVLS_ENABLE", "0"}, {"NCCL_MNNVL_ENABLE", "0"},
    {"NCCL_RAS_ENABLE", "0"}, {"NCCL_MAX_CTAS", "2"},    {"NCCL_ALGO", "Ring"},
    {"NCCL_PROTO", "Simple"},
};

static void add_word(char *text, size_t nbytes, const char *name, const char *value)
{
    size_t len = strlen(text);
    snprintf(text + len, nbytes - len, "%s%s=%s", len ? " " : "", name, value);
}

struct account {
    char *set, *kept;
    size_t set_nbytes, kept_nbytes;
    bool dry;
};

static void offer(struct account *a, const char *name, const char *value)
{
    const char *theirs = getenv(name);

    if (theirs && strcmp(theirs, value) != 0) {
        add_word(a->kept, a->kept_nbytes, name, theirs);
        return;
    }
    add_word(a->set, a->set_nbytes, name, value);
    if (!a->dry)
        setenv(name, value, 0);
}

int gpu_ranks_per_gpu(void)
{
    const char *text = getenv(GPU_ENV_RANKS_PER_GPU);
    int n = text ? atoi(text) : 1;
    return n > 1 ? n : 1;
}

void gpu_environment(const struct boot_info *info, int ranks_per_gpu, char *set, size_t set_nbytes,
                     char *kept, size_t kept_nbytes)
{
    struct account a = {set, kept, set_nbytes, kept_nbytes, info == NULL};
    char id[96];

    *set = *kept = 0;
    /* NCCL meets over sockets, whatever carries its data: the network that the user chose for us.
     */
    if (ranks_per_gpu > 1 && info && info->nnodes == 1)
        offer(&a, "NCCL_SOCKET_IFNAME", "lo");
    else if (getenv("BOOT_INTERFACE") && *getenv("BOOT_INTERFACE"))
        offer(&a, "NCCL_SOCKET_IFNAME", getenv("BOOT_INTERFACE"));
    if (ranks_per_gpu > 1) {
        for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++)
            offer(&a, shared[i].name, shared[i].value);
        snprintf(id, sizeof id, "%s-rank-%d", info ? info->job : "JOB", info ? info->rank : 0);
        offer(&a, "NCCL_HOSTID", id);
    }
    for (size_t i = 0; i < sizeof always / sizeof always[0]; i++)
        offer(&a, always[i].name, always[i].value);
}
