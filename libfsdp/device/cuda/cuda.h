/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.h: private to the CUDA device: lanes in cuda.c, arithmetic in the .cu files.
 */
#ifndef FSDP_DEVICE_CUDA_H
#define FSDP_DEVICE_CUDA_H

#include <cuda_runtime_api.h>

#include "fsdp/sys/cuda.h"
#include "fsdp/sys/device_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_lane;

/* cuda_stamp.c: fsdp_lane_stamp. Zeroed: none. */
struct cuda_stamps {
    struct cuda_stamp *stamps; /* [max_stamps] */
    int nstamps, max_stamps;
    cudaEvent_t origin; /* passed at origin_time */
    double origin_time;
};
int cuda_stamps_add(struct cuda_stamps *s, cudaStream_t stream, double *to, struct fsdp_err *err);
/* The lane was synced. */
void cuda_stamps_read(struct cuda_stamps *s);
void cuda_stamps_free(struct cuda_stamps *s);

enum { CUDA_PARTIALS = 1024 };

cudaStream_t device_cuda_stream(const struct cuda_lane *lane);
/* As fsdp_cuda_enter and fsdp_cuda_launched. */
int device_cuda_enter(struct cuda_lane *lane, struct fsdp_err *err);
int device_cuda_launched(struct cuda_lane *lane, const char *kernel, struct fsdp_err *err);
/* [CUDA_PARTIALS], the lane's scratch for sums: on the device. */
double *device_cuda_partials(const struct cuda_lane *lane);

int device_cuda_cast(void *lane, void *dst, enum fsdp_dtype dst_dtype, const void *src,
                     enum fsdp_dtype src_dtype, size_t nelem, struct fsdp_err *err);
int device_cuda_accumulate(void *lane, void *dst, enum fsdp_dtype dst_dtype, const void *src,
                           enum fsdp_dtype src_dtype, size_t nelem, struct fsdp_err *err);
int device_cuda_sumsq(void *lane, double *out, const void *x, enum fsdp_dtype dtype, size_t nelem,
                      struct fsdp_err *err);
int device_cuda_absmax(void *lane, double *out, const void *x, enum fsdp_dtype dtype, size_t nelem,
                       struct fsdp_err *err);
int device_cuda_max_rows(void *lane, double *out, const double *in, size_t nrows, size_t ncols,
                         struct fsdp_err *err);
int device_cuda_quantize(void *lane, void *dst, enum fsdp_dtype narrow, const float *src,
                         size_t nelem, const double *amax, struct fsdp_err *err);
int device_cuda_dequantize(void *lane, const struct fsdp_dequantize_args *args,
                           struct fsdp_err *err);
int device_cuda_nf4_decode(void *lane, const struct fsdp_nf4_args *args, struct fsdp_err *err);
int device_cuda_clip_coef(void *lane, const struct fsdp_clip_args *args, struct fsdp_err *err);
int device_cuda_loss_scale_update(void *lane, struct fsdp_loss_scale *scale, const float *norm,
                                  struct fsdp_loss_scale_rule rule, struct fsdp_err *err);
int device_cuda_adamw(void *lane, const struct fsdp_adamw_args *args, struct fsdp_err *err);
int device_cuda_split(void *lane, void *param, uint16_t *rest, const float *x, size_t nelem,
                      struct fsdp_err *err);
int device_cuda_join(void *lane, float *x, const void *param, const uint16_t *rest, size_t nelem,
                     struct fsdp_err *err);
int device_cuda_narrow(void *lane, void *dst, const float *src, size_t nelem,
                       const struct fsdp_rounding *rounding, struct fsdp_err *err);
int device_cuda_sgd(void *lane, const struct fsdp_sgd_args *args, struct fsdp_err *err);
int device_cuda_lion(void *lane, const struct fsdp_lion_args *args, struct fsdp_err *err);
int device_cuda_adamw8bit(void *lane, const struct fsdp_adamw8bit_args *args, struct fsdp_err *err);
int device_cuda_muon_begin(void *lane, const struct fsdp_muon_args *args, struct fsdp_err *err);
int device_cuda_muon_end(void *lane, const struct fsdp_muon_args *args, struct fsdp_err *err);
int device_cuda_muon_unit(void *lane, const struct fsdp_muon_matrix *args, struct fsdp_err *err);
int device_cuda_muon_back(void *lane, const struct fsdp_muon_matrix *args, struct fsdp_err *err);
int device_cuda_matmul(void *lane, const struct fsdp_matmul_args *args, struct fsdp_err *err);
int device_cuda_adafactor(void *lane, const struct fsdp_adafactor_args *args, struct fsdp_err *err);
int device_cuda_schedulefree(void *lane, const struct fsdp_schedulefree_args *args,
                             struct fsdp_err *err);
int device_cuda_schedulefree_y(void *lane, void *y, enum fsdp_dtype y_dtype, const float *x,
                               const float *z, size_t nelem, double beta1, struct fsdp_err *err);
int device_cuda_ema(void *lane, float *average, const float *x, size_t nelem, double decay,
                    struct fsdp_err *err);
int device_cuda_init_fill(void *lane, float *dst, uint64_t first, size_t nelem,
                          struct fsdp_init init, uint64_t seed, uint64_t stream,
                          struct fsdp_err *err);
int device_cuda_capture_begin(void *lane, struct fsdp_err *err);
int device_cuda_capture_end(void **graph, void *lane, struct fsdp_err *err);
int device_cuda_graph_launch(void *graph, void *lane, struct fsdp_err *err);
void device_cuda_graph_destroy(void *graph);

#ifdef __cplusplus
}
#endif
#endif
