/* SPDX-License-Identifier: Apache-2.0 */
/* cpu.h: private to the CPU device: lanes in cpu.c, arithmetic in cpu_math.c
 * and cpu_optim.c.
 * Arithmetic runs through lane_call like everything else, so it is in lane order. */
#ifndef FSDP_DEVICE_CPU_H
#define FSDP_DEVICE_CPU_H

#include "fsdp/sys/device_ops.h"

/* Elements that a thread takes at least: a memory page or more of each operand. */
enum { DEVICE_CPU_GRAIN = 1 << 14 };

int device_cpu_lane_call(void *lane, fsdp_lane_f *fn, const void *arg, size_t arg_nbytes,
                         struct fsdp_err *err);

int device_cpu_copy(void *lane, void *dst, const void *src, size_t nbytes, struct fsdp_err *err);
int device_cpu_copy_pieces(void *lane, void *dst, const void *src, size_t nbytes,
                           const struct fsdp_pieces *pieces, struct fsdp_err *err);
int device_cpu_zero(void *lane, void *dst, size_t nbytes, struct fsdp_err *err);
int device_cpu_cast(void *lane, void *dst, enum fsdp_dtype dst_dtype, const void *src,
                    enum fsdp_dtype src_dtype, size_t nelem, struct fsdp_err *err);
int device_cpu_accumulate(void *lane, void *dst, enum fsdp_dtype dst_dtype, const void *src,
                          enum fsdp_dtype src_dtype, size_t nelem, struct fsdp_err *err);
int device_cpu_sumsq(void *lane, double *out, const void *x, enum fsdp_dtype dtype, size_t nelem,
                     struct fsdp_err *err);
int device_cpu_absmax(void *lane, double *out, const void *x, enum fsdp_dtype dtype, size_t nelem,
                      struct fsdp_err *err);
int device_cpu_max_rows(void *lane, double *out, const double *in, size_t nrows, size_t ncols,
                        struct fsdp_err *err);
int device_cpu_quantize(void *lane, void *dst, enum fsdp_dtype narrow, const float *src,
                        size_t nelem, const double *amax, struct fsdp_err *err);
int device_cpu_dequantize(void *lane, const struct fsdp_dequantize_args *args,
                          struct fsdp_err *err);
int device_cpu_nf4_decode(void *lane, const struct fsdp_nf4_args *args, struct fsdp_err *err);
int device_cpu_clip_coef(void *lane, const struct fsdp_clip_args *args, struct fsdp_err *err);
int device_cpu_loss_scale_update(void *lane, struct fsdp_loss_scale *scale, const float *norm,
                                 struct fsdp_loss_scale_rule rule, struct fsdp_err *err);
int device_cpu_adamw(void *lane, const struct fsdp_adamw_args *args, struct fsdp_err *err);
/* One step of elements whose moments are fp32, at once. */
struct adamw;
void device_cpu_adamw_loop(const struct adamw *w, float *p, float *m, float *v, const float *g,
                           size_t nelem);
int device_cpu_split(void *lane, void *param, uint16_t *rest, const float *x, size_t nelem,
                     struct fsdp_err *err);
int device_cpu_join(void *lane, float *x, const void *param, const uint16_t *rest, size_t nelem,
                    struct fsdp_err *err);
int device_cpu_narrow(void *lane, void *dst, const float *src, size_t nelem,
                      const struct fsdp_rounding *rounding, struct fsdp_err *err);
int device_cpu_sgd(void *lane, const struct fsdp_sgd_args *args, struct fsdp_err *err);
int device_cpu_lion(void *lane, const struct fsdp_lion_args *args, struct fsdp_err *err);
int device_cpu_adamw8bit(void *lane, const struct fsdp_adamw8bit_args *args, struct fsdp_err *err);
int device_cpu_adafactor(void *lane, const struct fsdp_adafactor_args *args, struct fsdp_err *err);
int device_cpu_muon_begin(void *lane, const struct fsdp_muon_args *args, struct fsdp_err *err);
int device_cpu_muon_end(void *lane, const struct fsdp_muon_args *args, struct fsdp_err *err);
int device_cpu_muon_unit(void *lane, const struct fsdp_muon_matrix *args, struct fsdp_err *err);
int device_cpu_muon_back(void *lane, const struct fsdp_muon_matrix *args, struct fsdp_err *err);
int device_cpu_matmul(void *lane, const struct fsdp_matmul_args *args, struct fsdp_err *err);
int device_cpu_schedulefree(void *lane, const struct fsdp_schedulefree_args *args,
                            struct fsdp_err *err);
int device_cpu_schedulefree_y(void *lane, void *y, enum fsdp_dtype y_dtype, const float *x,
                              const float *z, size_t nelem, double beta1, struct fsdp_err *err);
int device_cpu_ema(void *lane, float *average, const float *x, size_t nelem, double decay,
                   struct fsdp_err *err);
int device_cpu_init_fill(void *lane, float *dst, uint64_t first, size_t nelem,
                         struct fsdp_init init, uint64_t seed, uint64_t stream,
                         struct fsdp_err *err);

#endif
