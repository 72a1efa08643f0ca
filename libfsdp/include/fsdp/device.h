/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h: memory, lanes (ordered queues of work), events, and the arithmetic the engine needs.
 * Models' own operators are in models/nn.
 *
 * A lane runs its work in the order of enqueueing. Lanes are ordered among each other only by
 * events: record on one, wait on the other. On CUDA a lane is a stream. On the CPU a lane runs its
 * work at once in the calling thread (the default), or on a thread of its own
 * (FSDP_DEVICE_THREADED), or in an order drawn by lot (FSDP_DEVICE_SHUFFLED), which is how missing
 * edges are found.
 *
 * Failures of enqueued work are sticky on the lane and reported by fsdp_lane_sync and by every
 * later enqueue.
 */
#ifndef FSDP_DEVICE_H
#define FSDP_DEVICE_H

#include "fsdp/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fsdp_device;
struct fsdp_lane;
struct fsdp_event;

enum {
    FSDP_DEVICE_THREADED = 1, /* CPU: every lane has a thread */
    /* CPU, of one thread: work is kept until a lane is waited for, and then run in any order that
     * events allow; the bits from FSDP_DEVICE_SEED_SHIFT on choose which. */
    FSDP_DEVICE_SHUFFLED = 2,
    FSDP_DEVICE_SEED_SHIFT = 8
};

/* kind: "cpu"; "cuda" or "cuda:N", the Nth GPU that this process sees (0 is the first); "auto", the
 * first GPU if libfsdp-cuda.so is found and can use one, else the CPU. flags: 0 but for the CPU.
 * FSDP_EUNSUPPORTED: no such kind, no libfsdp-cuda.so; FSDP_ENOTFOUND: no driver, no such GPU.
 * Local. */
int fsdp_device_open(struct fsdp_device **out, const char *kind, unsigned flags,
                     struct fsdp_err *err);
/* *out = GPUs that this process sees; errors as of fsdp_device_open("cuda"). Local. */
int fsdp_device_count(int *out, struct fsdp_err *err);
void fsdp_device_close(struct fsdp_device *device);
const char *fsdp_device_name(const struct fsdp_device *device);

/* Device memory, zeroed, 4096-byte aligned. Not for the step loop. */
void *fsdp_device_alloc(struct fsdp_device *device, size_t nbytes, const char *name,
                        struct fsdp_err *err);
void fsdp_device_free(struct fsdp_device *device, void *ptr);
/* Host memory that the device copies from and to by itself, without a detour: zeroed. It is what
 * the host reads and writes; the device's own memory it may touch only where fsdp_device_is_host.
 * Not for the step loop. */
void *fsdp_host_alloc(struct fsdp_device *device, size_t nbytes, const char *name,
                      struct fsdp_err *err);
void fsdp_host_free(struct fsdp_device *device, void *ptr);
/* The device's memory is the host's: the CPU. */
bool fsdp_device_is_host(const struct fsdp_device *device);
/* For communicators, which take memory in their own ways: it counts, too. */
void fsdp_device_count_alloc(struct fsdp_device *device, size_t nbytes);

/* Since the device was opened: waits of the host for a lane, allocations and their bytes, those of
 * communicators included. A step loop adds to none of them. */
struct fsdp_device_stats {
    uint64_t nsyncs, nallocs, alloc_nbytes;
};
struct fsdp_device_stats fsdp_device_stats(const struct fsdp_device *device);

int fsdp_lane_create(struct fsdp_lane **out, struct fsdp_device *device, const char *name,
                     struct fsdp_err *err);
/* The same; where the device can, work of an urgent lane goes before that of others. */
int fsdp_lane_create_urgent(struct fsdp_lane **out, struct fsdp_device *device, const char *name,
                            struct fsdp_err *err);
void fsdp_lane_destroy(struct fsdp_lane *lane);
const char *fsdp_lane_name(const struct fsdp_lane *lane);
struct fsdp_device *fsdp_lane_device(const struct fsdp_lane *lane);
/* Blocks until all enqueued work ran; returns the lane's sticky error. */
int fsdp_lane_sync(struct fsdp_lane *lane, struct fsdp_err *err);
/* What libraries of the device's maker take for a queue: on CUDA the cudaStream_t; NULL where there
 * is no such thing. Local. */
void *fsdp_lane_native(const struct fsdp_lane *lane);
/* For who learns beside the lane that its work has failed (a communicator that was aborted): err
 * becomes the lane's sticky error unless it has one. Local; from any thread. */
void fsdp_lane_fail(struct fsdp_lane *lane, const struct fsdp_err *err);
/* *to = the time (fsdp_time_now) at which the lane comes here; there once the lane was synced.
 * Enqueues. */
int fsdp_lane_stamp(struct fsdp_lane *lane, double *to, struct fsdp_err *err);

int fsdp_event_create(struct fsdp_event **out, struct fsdp_device *device, struct fsdp_err *err);
void fsdp_event_destroy(struct fsdp_event *event);
/* The event completes when the work enqueued on lane so far has run. Enqueues. */
int fsdp_event_record(struct fsdp_event *event, struct fsdp_lane *lane, struct fsdp_err *err);
/* Later work of lane starts only after the event's latest record completed. Enqueues. */
int fsdp_event_wait(struct fsdp_event *event, struct fsdp_lane *lane, struct fsdp_err *err);
/* *done: the event's latest record completed, or there was none. Local, never blocks; from any
 * thread. */
int fsdp_event_done(struct fsdp_event *event, bool *done, struct fsdp_err *err);

/* Runs fn(arg copy) in lane order; arg (at most FSDP_LANE_ARG_NBYTES) is copied. A nonzero return
 * becomes the lane's sticky error. This is how CPU communication and CPU models run on a lane.
 * Enqueues. */
#define FSDP_LANE_ARG_NBYTES 256
typedef int fsdp_lane_f(void *arg, struct fsdp_err *err);
int fsdp_lane_call(struct fsdp_lane *lane, fsdp_lane_f *fn, const void *arg, size_t arg_nbytes,
                   struct fsdp_err *err);

/* ---- arithmetic on a lane. All enqueue; pointers are device memory. -------------------------- */

int fsdp_copy(struct fsdp_lane *lane, void *dst, const void *src, size_t nbytes,
              struct fsdp_err *err);
int fsdp_zero(struct fsdp_lane *lane, void *dst, size_t nbytes, struct fsdp_err *err);
int fsdp_cast(struct fsdp_lane *lane, void *dst, enum fsdp_dtype dst_dtype, const void *src,
              enum fsdp_dtype src_dtype, size_t nelem, struct fsdp_err *err);
/* dst[fp32] += src[dtype] */
int fsdp_accumulate(struct fsdp_lane *lane, float *dst, const void *src, enum fsdp_dtype src_dtype,
                    size_t nelem, struct fsdp_err *err);
/* *out = sum of squares of x[fp32], in double, partial sums of fixed length in fixed order, so that
 * the result depends on nothing but x. */
int fsdp_sumsq(struct fsdp_lane *lane, double *out, const float *x, size_t nelem,
               struct fsdp_err *err);
/* *out = the larger of *out and the greatest absolute value of x[fp32]; NaN if there is one. */
int fsdp_absmax(struct fsdp_lane *lane, double *out, const float *x, size_t nelem,
                struct fsdp_err *err);

/* The loss scale, on the device: what the gradient of the loss is multiplied with, and whether the
 * latest step is skipped (optim.h). */
struct fsdp_loss_scale {
    float factor;       /* of the loss gradient: scale * split */
    float inverse;      /* 1 / factor: of the gradients */
    float scale, split; /* split: of the ranks' divisor, constant */
    int32_t good_steps; /* in a row, since the scale last changed */
    int32_t skip;       /* the latest step had gradients that are not finite */
    int64_t nskipped;   /* steps so far */
};
struct fsdp_loss_scale_rule {
    float growth, backoff;
    int32_t interval; /* 0: no growth */
};

/* out[j] = the greatest of in[i][j] over i < nrows; NaN if one is. */
int fsdp_max_rows(struct fsdp_lane *lane, double *out, const double *in, size_t nrows, size_t ncols,
                  struct fsdp_err *err);

/* With a scale for all of them, so that the greatest absolute value *amax (device scalar) becomes
 * the greatest of the narrow type (F8_E4M3: 448); NaN and infinities become NaN. quantize: dst[i] =
 * src[i] * scale, rounded to nearest even; dequantize: dst[i] = src[i] / scale in F32, BF16, F16.
 */
int fsdp_quantize(struct fsdp_lane *lane, void *dst, enum fsdp_dtype narrow, const float *src,
                  size_t nelem, const double *amax, struct fsdp_err *err);
int fsdp_dequantize(struct fsdp_lane *lane, void *dst, enum fsdp_dtype dst_dtype, const void *src,
                    enum fsdp_dtype narrow, size_t nelem, const double *amax, struct fsdp_err *err);

enum fsdp_norm { FSDP_NORM_2, FSDP_NORM_INF };
/* *norm = scale->inverse times the root of the sum of partial[0 .. npartials), added in order
 * (NORM_2: partials are sums of squares), or times the greatest (NORM_INF). *coef, which gradients
 * are multiplied with: scale->inverse times min(1, max_norm / (*norm + 1e-6)), times 1 where
 * max_norm <= 0. As torch.nn.utils.clip_grad_norm_. scale NULL: 1. */
int fsdp_clip_coef(struct fsdp_lane *lane, float *coef, float *norm, const double *partial,
                   size_t npartials, enum fsdp_norm type, float max_norm,
                   const struct fsdp_loss_scale *scale, struct fsdp_err *err);
/* The step with this norm is skipped unless it is finite; the scale of the next one. */
int fsdp_loss_scale_update(struct fsdp_lane *lane, struct fsdp_loss_scale *scale, const float *norm,
                           struct fsdp_loss_scale_rule rule, struct fsdp_err *err);

/* Where the random bits of stochastic rounding come from, which so do not depend on how a tensor is
 * divided: element i of the range takes word (first + i) mod 4 of block (first + i) / 4 of
 * Philox 4x32-10 under (key, step), the low half for exp_avg and the high half for exp_avg_sq. */
struct fsdp_rounding {
    uint64_t key;   /* the tensor's */
    uint64_t step;  /* the optimizer's */
    uint64_t first; /* the range's first element in the tensor */
};

/* One AdamW step on a range of the flat shard (torch.optim.AdamW, decoupled decay):
 *   p *= 1 - lr*decay; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
 *   p -= lr/bias1 * m / (sqrt(v)/sqrt(bias2) + eps)     with g scaled by *grad_scale first.
 * bias1 = 1 - b1^t and bias2 = 1 - b2^t, in double, t the steps that were not skipped. Where param
 * is not NULL the new value is also written there in param_dtype.
 * Moments in BF16 are rounded stochastically after the step has used them: up with the probability
 * of what lies above the lower neighbour, so that they are right on average however small the
 * changes are. A master may be split (fsdp_split): then param and rest hold it. */
struct fsdp_adamw_args {
    float *master;              /* NULL: split */
    void *exp_avg, *exp_avg_sq; /* in moment_dtype */
    const float *grad;
    const float *grad_scale; /* device scalar, NULL: 1 */
    /* On the device: skips the step, and counts those that were; NULL: none is. */
    const struct fsdp_loss_scale *loss_scale;
    void *param;
    uint16_t *rest; /* of a split master */
    enum fsdp_dtype param_dtype;
    enum fsdp_dtype moment_dtype;  /* F32 or BF16 */
    struct fsdp_rounding rounding; /* of BF16 moments */
    size_t nelem;
    int64_t nsteps; /* with this one */
    double lr, beta1, beta2, eps, weight_decay;
};
int fsdp_adamw(struct fsdp_lane *lane, const struct fsdp_adamw_args *args, struct fsdp_err *err);

/* An fp32 master in two halves of 16 bits: param, which is x rounded to the nearest BF16 (of two
 * that are equally near the one that is farther from zero: a tie to even would not leave enough
 * bits), and rest, its low half. Joined they are x to the bit; a NaN is a quiet one. */
int fsdp_split(struct fsdp_lane *lane, void *param, uint16_t *rest, const float *x, size_t nelem,
               struct fsdp_err *err);
int fsdp_join(struct fsdp_lane *lane, float *x, const void *param, const uint16_t *rest,
              size_t nelem, struct fsdp_err *err);

/* One step of stochastic gradient descent (torch.optim.SGD), with g scaled by *grad_scale first:
 *   g += decay*p; b = momentum*b + (1-dampening) g, but b = g in the first step;
 *   p -= lr * (nesterov ? g + momentum*b : b)           without momentum: p -= lr * g.
 * Steps that were skipped do not count for the first. */
struct fsdp_sgd_args {
    float *master, *momentum_buffer; /* NULL without momentum */
    const float *grad;
    const float *grad_scale;                  /* device scalar, NULL: 1 */
    const struct fsdp_loss_scale *loss_scale; /* as above */
    size_t nelem;
    int64_t nsteps; /* with this one */
    double lr, momentum, dampening, weight_decay;
    bool nesterov;
};
int fsdp_sgd(struct fsdp_lane *lane, const struct fsdp_sgd_args *args, struct fsdp_err *err);

/* average = average + (1 - decay) (x - average), both fp32: an exponential moving average. As
 * torch.optim.swa_utils.get_ema_multi_avg_fn, rounding of torch.lerp included. */
int fsdp_ema(struct fsdp_lane *lane, float *average, const float *x, size_t nelem, double decay,
             struct fsdp_err *err);

/* Initial values from a counter-based generator (Philox 4x32-10): element i of the tensor depends
 * on (seed, stream, i) alone, so every sharding gives the same tensor. Fills dst[0..nelem) with the
 * tensor's elements first .. first + nelem - 1. */
enum fsdp_init_kind { FSDP_INIT_ZEROS, FSDP_INIT_ONES, FSDP_INIT_NORMAL, FSDP_INIT_UNIFORM };
struct fsdp_init {
    enum fsdp_init_kind kind;
    float scale; /* NORMAL: standard deviation; UNIFORM: values in [-scale, scale) */
};
int fsdp_init_fill(struct fsdp_lane *lane, float *dst, uint64_t first, size_t nelem,
                   struct fsdp_init init, uint64_t seed, uint64_t stream, struct fsdp_err *err);

#ifdef __cplusplus
}
#endif
#endif
