/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_runtime_api.h: of CUDA's runtime what this project calls, on the CPU
 * (tests/simt/runtime.cc).
 *
 * It is stricter than a GPU. Work of a stream runs when somebody waits for it, and no earlier;
 * device memory may be touched by work alone: the host faults. Kernels may be given no memory of
 * the host that is not page-locked. Kernels' threads run in an order
 * drawn anew for every launch (SIMT_SEED=N).
 */
#ifndef SIMT_CUDA_RUNTIME_API_H
#define SIMT_CUDA_RUNTIME_API_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUDART_VERSION 13000
#define CUDART_CB

typedef enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchFailure = 719,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureIsolation = 905,
} cudaError_t;

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
};
typedef void (*cudaHostFn_t)(void *arg);
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76
};
enum {
    cudaStreamNonBlocking = 1,
    cudaEventDefault = 0,
    cudaEventDisableTiming = 2,
    cudaHostAllocPortable = 1
};

struct cudaDeviceProp {
    char name[256];
    int multiProcessorCount;
};

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *props, int device);
cudaError_t cudaMemGetInfo(size_t *nfree, size_t *total);
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *ndevices);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaDeviceSynchronize(void);

cudaError_t cudaMalloc(void **ptr, size_t nbytes);
cudaError_t cudaFree(void *ptr);
cudaError_t cudaHostAlloc(void **ptr, size_t nbytes, unsigned flags);
cudaError_t cudaFreeHost(void *ptr);
cudaError_t cudaMemset(void *ptr, int value, size_t nbytes);
cudaError_t cudaMemsetAsync(void *ptr, int value, size_t nbytes, cudaStream_t stream);
cudaError_t cudaMemcpy(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream);

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream);

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *arg);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end);

/* A capture refuses what a GPU refuses, and events besides: calls that wait or allocate, by the
 * thread that began it, and the default stream. It is then lost as a whole. */
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                          unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

/* ---- beyond CUDA ----------------------------------------------------------------------------- */

/* A library call in place of a kernel (a matrix product): fn(arg copy) runs in the stream's order,
 * with device memory open. arg is copied. */
void simt_call(cudaStream_t stream, void (*fn)(void *arg), const void *arg, size_t arg_nbytes);
/* In simt_call's fn: the work takes so long by the clock of events. */
void simt_spend(double seconds);
/* What the next cudaGetDeviceCount gives, for tests of a missing GPU; cudaSuccess: one GPU. */
void simt_set_device(cudaError_t error, int driver_version);
/* The next launch of a kernel fails with this error. */
void simt_fail_launch(cudaError_t error);
/* From here on streams do nothing more and every call on them gives this error; cudaSuccess: well
 * again. */
void simt_lose_gpu(cudaError_t error);
/* Ends the process where ptr is neither NULL nor memory of the device or page-locked: `what` was
 * given it. */
void simt_check_pointer(const void *ptr, const char *what);
/* The GPU's compute capability, 90 for 9.0, which it is at first. */
void simt_set_capability(int capability);
/* The next graphs cannot be made: they fail with this error until it is cudaSuccess. */
void simt_fail_graphs(cudaError_t error);
/* Graphs launched so far, and those that are there. */
struct simt_graph_counts {
    int launched, there;
};
struct simt_graph_counts simt_graphs(void);
/* Calls of threads that had not chosen a GPU before: the runtime takes the first one for them. */
int simt_unchosen(void);

#ifdef __cplusplus
}
#endif
#endif
