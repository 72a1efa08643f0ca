/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda.h: what libfsdp-cuda.so gives to the rest, and what its own parts share.
 *
 * The library is opened when somebody asks for device "cuda" or "auto": FSDP_CUDA_LIBRARY (a path),
 * else libfsdp-cuda.so next to the program or libfsdp.so, or in ../lib of there. It is complete in
 * itself: it holds its own copies of what it uses of libfsdp/base, so that nothing must be exported
 * by the program. Hence the version must be the same.
 */
#ifndef FSDP_SYS_CUDA_H
#define FSDP_SYS_CUDA_H

#include "fsdp/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FSDP_CUDA_ABI 1

struct fsdp_device_ops;
struct fsdp_comm_ops;
struct nn_ops;

struct fsdp_cuda_backend {
    uint32_t abi;
    const char *version; /* FSDP_VERSION_STRING of its build */
    const char *built;   /* versions of what it was built with, one line */
    /* The library's own fsdp_log_set. */
    void (*log_set)(fsdp_log_f *fn, void *ctx, enum fsdp_log_level max_level);
    /* How many GPUs there are that it can use. An error says what is missing and how to get
     * it. */
    int (*probe)(int *ndevices, struct fsdp_err *err);
    const struct fsdp_device_ops *device_ops;
    const struct fsdp_comm_ops *comm_ops; /* NULL: built without NCCL */
    const struct nn_ops *nn_ops;          /* models' operators; nn.h has their ABI */
};

/* The one symbol that libfsdp-cuda.so exports. */
#define FSDP_CUDA_SYMBOL "fsdp_cuda_backend"
extern const struct fsdp_cuda_backend fsdp_cuda_backend;

/* Of a device that is one of the library's; NULL for the CPU. Local. */
const struct fsdp_cuda_backend *fsdp_device_cuda_backend(const struct fsdp_device *device);

/* The backend's own lane; for CUDA see below. */
void *fsdp_lane_state(const struct fsdp_lane *lane);

/* ---- inside libfsdp-cuda.so ------------------------------------------------------------------ */

/* The backend's probe. */
int fsdp_cuda_probe(int *ndevices, struct fsdp_err *err);

/* GPU the lane belongs to. */
int fsdp_cuda_ordinal(const struct fsdp_lane *lane);
/* Before work is enqueued on a lane: FSDP_OK, or the lane's sticky error. Makes the lane's GPU the
 * thread's. */
int fsdp_cuda_enter(const struct fsdp_lane *lane, struct fsdp_err *err);
/* FSDP_OK for cudaSuccess; else sets "WHAT: CUDA's name and text of the error". */
int fsdp_cuda_check(int cuda_error, struct fsdp_err *err, const char *what, ...) FSDP_PRINTF(3, 4);
/* What the launch of a kernel on this lane left behind (cudaGetLastError); sticky on the lane. */
int fsdp_cuda_launched(const struct fsdp_lane *lane, const char *kernel, struct fsdp_err *err);

extern const struct fsdp_device_ops fsdp_device_cuda_ops;

#ifdef __cplusplus
}
#endif
#endif
