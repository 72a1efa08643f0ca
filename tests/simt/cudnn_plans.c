/* SPDX-License-Identifier: Apache-2.0 */
/* For cudnn_plans.sh: cuDNN is asked for plans of attention for GPUs that are described to it, on a
 * machine without. It recognises the graphs and compiles its kernels; loading them needs a driver,
 * for which cudnn_driver.sh makes a stand-in. Then it also says what workspace a plan takes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cudnn_sdpa.h"
#include "nn/cuda_sizes.h"

static const char gpu[] =
    "{\"version\":1,\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
    "\"regsPerBlock\":65536,\"multiProcessorCount\":132,\"warpSize\":32,"
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448,"
    "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,"
    "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,"
    "\"supportCoopLaunch\":1,\"totalGlobalMem\":150754820096,\"smClockRateKHz\":1980000,"
    "\"memClockRateKHz\":3201000,\"l2CacheSize\":62914560,\"cudaDeviceId\":0,\"deviceVer\":%d0,"
    "\"driverVer\":13000,\"deviceName\":\"a GPU\"}";

static const struct sdpa_shape shapes[] = {
    {4, 4096, 32, 8, 128, FSDP_BF16, 0},
    {8, 1024, 12, 12, 64, FSDP_BF16, 0},
    {2, 1024, 8, 8, 128, FSDP_F16, 0},
    {1, 4096, 32, 8, 128, FSDP_BF16, 1},
    {1, 1024, 12, 12, 64, FSDP_BF16, 1},
    {3, 1000, 6, 2, 64, FSDP_F16, 0},
    {1, 8192, 32, 8, 128, FSDP_BF16, 0, 4096},
    {2, 1000, 4, 2, 64, FSDP_F16, 0, 33},
    {1, 4096, 8, 2, 128, FSDP_BF16, 1, 512},
    {1, 77, 8, 8, 64, FSDP_BF16, 1},
    {1, 500, 8, 2, 80, FSDP_BF16, 1},
    {2, 513, 8, 4, 120, FSDP_BF16, 0},
    {2, 130, 8, 1, 16, FSDP_BF16, 0},
    {2, 1024, 8, 8, 100, FSDP_BF16, 0}, /* no head that cuDNN has */
};

static cudnnBackendDescriptor_t described(const struct cudnn_api *api, int capability)
{
    char text[sizeof gpu + 16];
    cudnnBackendDescriptor_t prop = NULL;
    cudnnStatus_t s = api->create_descriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &prop);
    s = s ? s
          : api->set(prop, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                     snprintf(text, sizeof text, gpu, capability), text);
    s = s ? s : api->finalize(prop);
    if (s)
        printf("device: %s\n", api->error_string(s));
    return s ? NULL : prop;
}

/* How many bytes cuDNN's workspace is above ours. */
static long beyond(const struct sdpa_shape *s, bool backward, int capability, int64_t nbytes)
{
    const struct nn_attention a = {.B = s->B,
                                   .Tq = s->T,
                                   .Tk = s->T,
                                   .NH = s->NH,
                                   .NKV = s->NKV,
                                   .D = s->D,
                                   .window = s->window,
                                   .dtype = (enum fsdp_dtype)s->dtype};
    return (long)(nbytes -
                  (int64_t)nn_cuda_cudnn_workspace(&a, s->deterministic, backward, capability));
}

/* argv[1]: compute capability, 90 for 9.0; argv[2]: so many shapes alone. */
int main(int argc, char **argv)
{
    const int capability = argc > 1 ? atoi(argv[1]) : 90;
    const size_t nshapes = argc > 2 ? (size_t)atoi(argv[2]) : sizeof shapes / sizeof *shapes;
    const struct cudnn_api *api;
    struct fsdp_err err = FSDP_ERR_INIT;
    cudnnBackendDescriptor_t prop, plan;
    int64_t nbytes;

    if (cudnn_open(&api, &err)) {
        printf("missing: %s\n", err.text);
        return 0;
    }
    if (!(prop = described(api, capability)))
        return 1;
    for (size_t i = 0; i < 2 * nshapes; i++) {
        const struct sdpa_shape *s = &shapes[i / 2];
        struct graph g = {.api = api};
        err = (struct fsdp_err)FSDP_ERR_INIT;
        (i % 2 ? sdpa_backward_graph : sdpa_forward_graph)(&g, s);
        int rc = graph_plan(&plan, &nbytes, &g, NULL, prop, &err);
        printf("%s B%d T%d heads %d/%d of %d %s%s%s: %s", i % 2 ? "backward" : "forward", s->B,
               s->T, s->NH, s->NKV, s->D, fsdp_dtype_name((enum fsdp_dtype)s->dtype),
               s->deterministic ? " deterministic" : "", s->window ? " window" : "",
               !rc                                     ? "planned"
               : strstr(err.text, "cuLibraryLoadData") ? "compiled"
                                                       : err.text);
        if (rc)
            putchar('\n');
        else
            printf(", bytes beyond ours: %ld\n", beyond(s, i % 2, capability, nbytes));
        graph_close(&g);
    }
    return 0;
}
