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
    {4, 4096, 32, 8, 128, FSDP_BF16, 0},  {8, 1024, 12, 12, 64, FSDP_BF16, 0},
    {1, 4096, 32, 8, 128, FSDP_BF16, 1},  {1, 1024, 12, 12, 64, FSDP_BF16, 1},
    {3, 1000, 6, 2, 64, FSDP_F16, 0},     {1, 8192, 32, 8, 128, FSDP_BF16, 0, 4096},
    {2, 1000, 4, 2, 64, FSDP_F16, 0, 33}, {1, 4096, 8, 2, 128, FSDP_BF16, 1, 512},
    {1, 500, 8, 2, 80, FSDP_BF16, 1},     {2, 513, 8, 4, 120, FSDP_BF16, 0},
    {2, 300, 4, 2, 256, FSDP_BF16, 0},  /* in both directions on Hopper alone */
    {2, 1024, 8, 8, 100, FSDP_BF16, 0}, /* no head that cuDNN has */
};

/* Dropout. */
static const struct sdpa_shape dropped_shapes[] = {
    {4, 4096, 32, 8, 128, FSDP_BF16, 0, .drop_p = 0.1f},
    {8, 1024, 12, 12, 64, FSDP_BF16, 0, .drop_p = 0.1f},
    {1, 1024, 12, 12, 64, FSDP_BF16, 1, .drop_p = 0.1f},
    {2, 1000, 4, 2, 64, FSDP_F16, 0, 33, .drop_p = 0.25f},
    {.B = 64,
     .T = 1024,
     .NH = 8,
     .NKV = 2,
     .D = 128,
     .dtype = FSDP_BF16,
     .packed = 1,
     .drop_p = 0.1f},
};

/* Packed documents. */
static const struct sdpa_shape packed_shapes[] = {
    {.B = 64, .T = 1024, .NH = 8, .NKV = 2, .D = 128, .dtype = FSDP_BF16, .packed = 1},
    {.B = 8, .T = 1000, .NH = 6, .NKV = 6, .D = 64, .dtype = FSDP_F16, .packed = 1},
    {.B = 128,
     .T = 500,
     .NH = 4,
     .NKV = 1,
     .D = 256,
     .dtype = FSDP_BF16,
     .window = 33,
     .packed = 1},
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
    const struct nn_cuda_way way = {.deterministic = s->deterministic,
                                    .documents = s->packed ? s->B : 0,
                                    .drops = s->drop_p > 0};
    return (long)(nbytes - (int64_t)nn_cuda_cudnn_workspace(&a, way, backward, capability));
}

static void ask(const struct sdpa_shape *s, bool backward, const struct cudnn_api *api,
                int capability, cudnnBackendDescriptor_t prop)
{
    struct graph g = {.api = api};
    struct fsdp_err err = FSDP_ERR_INIT;
    cudnnBackendDescriptor_t plan;
    int64_t nbytes;

    (backward ? sdpa_backward_graph : sdpa_forward_graph)(&g, s);
    int rc = graph_plan(&plan, &nbytes, &g, NULL, prop, &err);
    printf("%s%s B%d T%d heads %d/%d of %d %s%s%s%s: %s", s->packed ? "packed " : "",
           backward ? "backward" : "forward", s->B, s->T, s->NH, s->NKV, s->D,
           fsdp_dtype_name((enum fsdp_dtype)s->dtype), s->deterministic ? " deterministic" : "",
           s->window ? " window" : "", s->drop_p > 0 ? " dropout" : "",
           !rc                                     ? "planned"
           : strstr(err.text, "cuLibraryLoadData") ? "compiled"
                                                   : err.text);
    if (rc)
        putchar('\n');
    else
        printf(" (%ld bytes), bytes beyond ours: %ld\n", (long)nbytes,
               beyond(s, backward, capability, nbytes));
    graph_close(&g);
}

/* argv[1]: compute capability, 90 for 9.0; argv[2], argv[3], argv[4]: so many shapes, packed ones,
 * and ones with dropout, alone. */
int main(int argc, char **argv)
{
    const int capability = argc > 1 ? atoi(argv[1]) : 90;
    const size_t nshapes = argc > 2 ? (size_t)atoi(argv[2]) : sizeof shapes / sizeof *shapes;
    const size_t npacked =
        argc > 3 ? (size_t)atoi(argv[3]) : sizeof packed_shapes / sizeof *packed_shapes;
    const size_t ndropped =
        argc > 4 ? (size_t)atoi(argv[4]) : sizeof dropped_shapes / sizeof *dropped_shapes;
    const struct cudnn_api *api;
    struct fsdp_err err = FSDP_ERR_INIT;
    cudnnBackendDescriptor_t prop;

    if (cudnn_open(&api, &err)) {
        printf("missing: %s\n", err.text);
        return 0;
    }
    if (!(prop = described(api, capability)))
        return 1;
    for (size_t i = 0; i < 2 * nshapes; i++)
        ask(&shapes[i / 2], i % 2, api, capability, prop);
    for (size_t i = 0; i < 2 * npacked; i++)
        ask(&packed_shapes[i / 2], i % 2, api, capability, prop);
    for (size_t i = 0; i < 2 * ndropped; i++)
        ask(&dropped_shapes[i / 2], i % 2, api, capability, prop);
    return 0;
}
