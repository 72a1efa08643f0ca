/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train_gpu.h"

enum { MAX_GPUS = 64 };

/* Nothing where this build has no CUDA: then nobody meant to use a GPU. */
static void explain_cpu(struct train_gpu *g, int status)
{
    if (status == FSDP_EUNSUPPORTED)
        return;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    snprintf(g->why_cpu, sizeof g->why_cpu, "%s: using the CPU",
             driver ? "no usable GPU (-v says why)" : "no NVIDIA driver");
    if (driver)
        dlclose(driver);
}

int train_gpu_choose(struct train_gpu *g, const char *kind, const struct boot_info *info,
                     struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    int order[MAX_GPUS], gpu = 0, ranks_per_gpu = gpu_ranks_per_gpu();

    *g = (struct train_gpu){.device = "cpu"};
    if (!strcmp(kind, "cpu"))
        return FSDP_OK;
    gpu_environment(info, ranks_per_gpu, g->set, sizeof g->set, g->kept, sizeof g->kept);
    int rc = fsdp_device_count(&g->ngpus, &why);
    if (rc && !strcmp(kind, "auto")) {
        fsdp_log(FSDP_LOG_DEBUG, "device auto: the CPU is used (%s)", why.text);
        explain_cpu(g, rc);
        *g->set = *g->kept = 0;
        return FSDP_OK;
    }
    if (rc) {
        if (err)
            *err = why;
        return rc;
    }
    const char *from;
    const bool known = gpu_order_read(order, MAX_GPUS, g->ngpus, &from);
    snprintf(g->order, sizeof g->order, "%s", from);
    FSDP_TRY(gpu_assign(&gpu, info, g->ngpus, ranks_per_gpu, known ? order : NULL, err));
    snprintf(g->device, sizeof g->device, "cuda:%d", gpu);
    if (gpu_look_at(&g->look, gpu, &why))
        fsdp_log(FSDP_LOG_DEBUG, "where GPU %d is: %s", gpu, why.text);
    return FSDP_OK;
}

void train_gpu_print(FILE *to)
{
    char set[512], kept[512];

    gpu_environment(NULL, gpu_ranks_per_gpu(), set, sizeof set, kept, sizeof kept);
    fprintf(to, "\n# Environment of a rank on a GPU, unless you set it otherwise:\n# %s\n%s%s%s",
            set, *kept ? "# Yours, kept:\n# " : "", kept, *kept ? "\n" : "");
}
