/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h: memory, lanes (ordered queues of work), events, and the arithmetic the engine needs.
 * Models' own operators are in models/nn.
 *
 * A lane runs its work in the order in which it was enqueued. Lanes are ordered among each other
 * only by events: record on one, wait on the other. On CUDA a lane is a stream. On the CPU a lane
 * runs its work at once in the calling thread (the default), or on a thread of its own
 * (FSDP_DEVICE_THREADED), or in a random order that the events allow (FSDP_DEVICE_SHUFFLED), which
 * is how tests find a missing event.
 *
 * Failures of enqueued work are sticky on the lane: fsdp_lane_sync and every later enqueue return
 * them.
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
    /* CPU, one thread: work is kept until a lane is synced, and then run in a random order that the
     * events allow; the bits from FSDP_DEVICE_SEED_SHIFT on are the seed. */
    FSDP_DEVICE_SHUFFLED = 2,
    FSDP_DEVICE_SEED_SHIFT = 8
};

/* ---- devices and memory ---------------------------------------------------------------------- */

/* kind: "cpu"; "cuda" or "cuda:N", the Nth GPU that this process sees (0 is the first); "auto", the
 * first GPU if libfsdp-cuda.so is found and can use one, else the CPU. flags: 0, except on the CPU.
 * FSDP_EUNSUPPORTED: no such kind, no libfsdp-cuda.so; FSDP_ENOTFOUND: no driver, no such GPU.
 * Local. */
int fsdp_device_open(struct fsdp_device **out, const char *kind, unsigned flags,
                     struct fsdp_err *err);
/* A device that is not opened and need not be here, for fsdp_plan alone: its name and
 * fsdp_device_is_host are those of its kind, lanes and events can be made, and memory is refused
 * (FSDP_EUNSUPPORTED). Nothing of CUDA is loaded. kind: "cpu"; "cuda", a GPU of compute capability
 * 9.0; "sm_80" and so on, one of another, 8.0. FSDP_EUNSUPPORTED: no such kind. Local. */
int fsdp_device_describe(struct fsdp_device **out, const char *kind, struct fsdp_err *err);
/* Was it described? *capability (may be NULL) = that of a described GPU, 90 for 9.0; else 0. */
bool fsdp_device_is_described(const struct fsdp_device *device, int *capability);
/* *out = GPUs that this process sees; errors as of fsdp_device_open("cuda"). Local. */
int fsdp_device_count(int *out, struct fsdp_err *err);
/* Call it after its lanes, events and memory are freed. NULL is allowed. */
void fsdp_device_close(struct fsdp_device *device);
/* "cpu" or "cuda". Static. */
const char *fsdp_device_name(const struct fsdp_device *device);
/* What hardware it is. */
struct fsdp_device_look {
    char model[128]; /* what its driver calls it, "NVIDIA H100 80GB HBM3"; "" on the CPU */
    /* Of its memory: taken, by other processes too, and there is. 0: not known, as on the CPU. */
    uint64_t used_nbytes, total_nbytes;
};
/* Does not wait for lanes. Local. */
int fsdp_device_look(const struct fsdp_device *device, struct fsdp_device_look *out,
                     struct fsdp_err *err);

/* Device memory, zeroed, 4096-byte aligned; name appears in errors. NULL with err set (FSDP_ENOMEM)
 * where there is none. Freed with fsdp_device_free (NULL is allowed). Not for the step loop.
 * Local. */
void *fsdp_device_alloc(struct fsdp_device *device, size_t nbytes, const char *name,
                        struct fsdp_err *err);
void fsdp_device_free(struct fsdp_device *device, void *ptr);
/* Host memory that the device can copy from and to directly (on CUDA page-locked), zeroed. The host
 * reads and writes this memory; the device's own it may touch only where fsdp_device_is_host.
 * Errors and freeing as above. Not for the step loop. Local. */
void *fsdp_host_alloc(struct fsdp_device *device, size_t nbytes, const char *name,
                      struct fsdp_err *err);
void fsdp_host_free(struct fsdp_device *device, void *ptr);
/* Is the device's memory the host's, as on the CPU? */
bool fsdp_device_is_host(const struct fsdp_device *device);
/* Counts an allocation in the statistics: for communicators, which allocate by other means. */
void fsdp_device_count_alloc(struct fsdp_device *device, size_t nbytes);

/* Since the device was opened: how often the host waited for a lane, and how many allocations, of
 * how many bytes, were made, those of communicators included. None of them grows in a step loop. */
struct fsdp_device_stats {
    uint64_t nsyncs, nallocs, alloc_nbytes;
};
struct fsdp_device_stats fsdp_device_stats(const struct fsdp_device *device);

/* ---- lanes ----------------------------------------------------------------------------------- */

/* The name is copied; it appears in errors and traces. Destroyed before the device. Local. */
int fsdp_lane_create(struct fsdp_lane **out, struct fsdp_device *device, const char *name,
                     struct fsdp_err *err);
/* The same; where the device has priorities, work of an urgent lane goes before that of others. */
int fsdp_lane_create_urgent(struct fsdp_lane **out, struct fsdp_device *device, const char *name,
                            struct fsdp_err *err);
void fsdp_lane_destroy(struct fsdp_lane *lane);
const char *fsdp_lane_name(const struct fsdp_lane *lane);
struct fsdp_device *fsdp_lane_device(const struct fsdp_lane *lane);
/* Blocks until all enqueued work ran; returns the lane's sticky error. */
int fsdp_lane_sync(struct fsdp_lane *lane, struct fsdp_err *err);
/* What the vendor's libraries call the queue: on CUDA the cudaStream_t; NULL on the CPU. Local. */
void *fsdp_lane_native(const struct fsdp_lane *lane);
/* Makes err the lane's sticky error unless it has one already: for a communicator that was aborted
 * and so knows that work on the lane has failed. Local; from any thread. */
void fsdp_lane_fail(struct fsdp_lane *lane, const struct fsdp_err *err);
/* *to = the time (fsdp_time_now) at which the lane reaches this point; valid once the lane was
 * synced. Enqueues. */
int fsdp_lane_stamp(struct fsdp_lane *lane, double *to, struct fsdp_err *err);

/* ---- events ---------------------------------------------------------------------------------- */

/* Local. */
int fsdp_event_create(struct fsdp_event **out, struct fsdp_device *device, struct fsdp_err *err);
void fsdp_event_destroy(struct fsdp_event *event);
/* The event completes when the work enqueued on lane so far has run. On the CPU an event belongs to
 * the lane that it is recorded on first: FSDP_EINVAL for another. Enqueues. */
int fsdp_event_record(struct fsdp_event *event, struct fsdp_lane *lane, struct fsdp_err *err);
/* Later work of lane starts only after the event's latest record completed. Enqueues. */
int fsdp_event_wait(struct fsdp_event *event, struct fsdp_lane *lane, struct fsdp_err *err);
/* *done = whether the event's latest record has completed; true if there was none. Local, never
 * blocks; from any thread. */
int fsdp_event_done(struct fsdp_event *event, bool *done, struct fsdp_err *err);
/* An event that knows when it completed. */
int fsdp_event_create_timed(struct fsdp_event **out, struct fsdp_device *device,
                            struct fsdp_err *err);
/* *seconds from the latest record of `from` to that of `to`. Both are timed and of one device, and
 * have completed. Local, never blocks. */
int fsdp_event_seconds(struct fsdp_event *from, struct fsdp_event *to, double *seconds,
                       struct fsdp_err *err);

/* Calls fn on the host, in lane order, with a copy of arg (at most FSDP_LANE_ARG_NBYTES bytes). A
 * nonzero return becomes the lane's sticky error. This is how CPU communication and CPU models run
 * on a lane. Enqueues. */
#define FSDP_LANE_ARG_NBYTES 256
typedef int fsdp_lane_f(void *arg, struct fsdp_err *err);
int fsdp_lane_call(struct fsdp_lane *lane, fsdp_lane_f *fn, const void *arg, size_t arg_nbytes,
                   struct fsdp_err *err);

/* ---- arithmetic on a lane. All enqueue; pointers are device memory ---------------------------
 *
 * Arrays are contiguous and aligned to their type; nelem may be 0. Ranges do not overlap. "Float
 * types" are F32, BF16 and F16; conversions round to nearest even. Errors: the lane's sticky one,
 * and FSDP_EINVAL for data types that an operation does not take. */

/* dst[0 .. nbytes) = src. Either may be host memory, best fsdp_host_alloc's. */
int fsdp_copy(struct fsdp_lane *lane, void *dst, const void *src, size_t nbytes,
              struct fsdp_err *err);
/* dst[0 .. nbytes) = 0 */
int fsdp_zero(struct fsdp_lane *lane, void *dst, size_t nbytes, struct fsdp_err *err);
/* dst[i] = src[i] for i < nelem, between float types. */
int fsdp_cast(struct fsdp_lane *lane, void *dst, enum fsdp_dtype dst_dtype, const void *src,
              enum fsdp_dtype src_dtype, size_t nelem, struct fsdp_err *err);
/* dst[i] += src[i] for i < nelem; src has a float type, the sum is fp32. */
int fsdp_accumulate(struct fsdp_lane *lane, float *dst, const void *src, enum fsdp_dtype src_dtype,
                    size_t nelem, struct fsdp_err *err);
/* The same where dst has a float type, too: each sum is taken in fp32 and rounded to the nearest.
 */
int fsdp_accumulate_to(struct fsdp_lane *lane, void *dst, enum fsdp_dtype dst_dtype,
                       const void *src, enum fsdp_dtype src_dtype, size_t nelem,
                       struct fsdp_err *err);
/* *out = sum of x[i]^2 for i < nelem, in double: partial sums of fixed length in a fixed order, so
 * that the result depends on nothing but x. */
int fsdp_sumsq(struct fsdp_lane *lane, double *out, const float *x, size_t nelem,
               struct fsdp_err *err);
/* The same of x in a float type. */
int fsdp_sumsq_of(struct fsdp_lane *lane, double *out, const void *x, enum fsdp_dtype dtype,
                  size_t nelem, struct fsdp_err *err);
/* *out = max(*out, |x[i]|) for i < nelem; NaN if an element is NaN. */
int fsdp_absmax(struct fsdp_lane *lane, double *out, const float *x, size_t nelem,
                struct fsdp_err *err);
int fsdp_absmax_of(struct fsdp_lane *lane, double *out, const void *x, enum fsdp_dtype dtype,
                   size_t nelem, struct fsdp_err *err);

/* out[j] = max of in[i][j] over i < nrows: in (nrows, ncols), out (ncols). NaN if one is. */
int fsdp_max_rows(struct fsdp_lane *lane, double *out, const double *in, size_t nrows, size_t ncols,
                  struct fsdp_err *err);

/* Several pieces of memory of one size in one call: of piece i the result lies i * dst_step bytes
 * behind that of the first, and what it is made of i * src_step bytes. */
struct fsdp_pieces {
    size_t count, dst_step, src_step;
};
/* The pieces of the result, of nbytes each, do not overlap, nor do they meet what is copied. */
int fsdp_copy_pieces(struct fsdp_lane *lane, void *dst, const void *src, size_t nbytes,
                     const struct fsdp_pieces *pieces, struct fsdp_err *err);

/* To a narrow type (F8_E4M3) and back, with one scale for all elements: the greatest power of two,
 * up to 2^110, with which *amax (device scalar), their greatest absolute value, is at most 448, the
 * greatest F8_E4M3.
 * quantize: dst[i] = src[i] * scale; NaN and infinities become NaN.
 * dequantize: dst[i] = src[i] / scale, in a float type. */
int fsdp_quantize(struct fsdp_lane *lane, void *dst, enum fsdp_dtype narrow, const float *src,
                  size_t nelem, const double *amax, struct fsdp_err *err);
struct fsdp_dequantize_args {
    void *dst;
    enum fsdp_dtype dst_dtype;
    const void *src;
    enum fsdp_dtype src_dtype; /* F8_E4M3 */
    size_t nelem;              /* of a piece */
    struct fsdp_pieces pieces; /* count 0: one */
    const double *amax;
};
int fsdp_dequantize(struct fsdp_lane *lane, const struct fsdp_dequantize_args *args,
                    struct fsdp_err *err);

/* Of weights in 4 bits (NF4 of QLoRA, Dettmers et al., arXiv 2305.14314), as bitsandbytes holds
 * them with its scales quantized, too: each block of FSDP_NF4_BLOCK elements of the flattened
 * tensor has a scale, in 8 bits, and each FSDP_NF4_SUPER blocks what these are scaled by. A call is
 * for elements that begin at a block. */
enum { FSDP_NF4_BLOCK = 64, FSDP_NF4_SUPER = 256 };
struct fsdp_nf4_args {
    void *dst; /* [nelem] of a float type */
    enum fsdp_dtype dst_dtype;
    const uint8_t *codes;       /* [ceil(nelem / 2)] */
    const uint8_t *scale_codes; /* [ceil(nelem / FSDP_NF4_BLOCK)] */
    const float *scales;        /* of the tensor, [ceil(its blocks / FSDP_NF4_SUPER)] */
    const float *offset;        /* of the tensor, [1] */
    uint64_t first_block;       /* which of the tensor's blocks is the call's first */
    size_t nelem;
    /* Of nelem elements each, a multiple of FSDP_NF4_BLOCK that follow each other in the tensor;
     * src_step is that of codes and of scale_codes. count 0: one, of any nelem. */
    struct fsdp_pieces pieces;
};
int fsdp_nf4_decode(struct fsdp_lane *lane, const struct fsdp_nf4_args *args, struct fsdp_err *err);

/* ---- gradient norm, clipping, loss scale ----------------------------------------------------- */

/* The loss scale (optim.h) as it is kept on the device: what the gradient of the loss is multiplied
 * by, and whether the latest step was skipped. */
struct fsdp_loss_scale {
    float factor;       /* of the loss gradient: scale * split */
    float inverse;      /* 1 / factor: of the gradients */
    float scale, split; /* split: the part of the ranks' divisor that is in factor, constant */
    int32_t good_steps; /* in a row, since the scale last changed */
    int32_t skip;       /* the latest step had gradients that are not finite */
    int64_t nskipped;   /* steps so far */
};
struct fsdp_loss_scale_rule {
    float growth, backoff;
    int32_t interval; /* 0: no growth */
};

enum fsdp_norm { FSDP_NORM_2, FSDP_NORM_INF };
struct fsdp_clip_args {
    float *coef, *norm; /* written */
    const double *partial;
    size_t npartials;
    enum fsdp_norm type;
    float max_norm;
    const struct fsdp_loss_scale *scale;
};
/* The norm of all gradients, and what they are multiplied with to clip it to max_norm, as
 * torch.nn.utils.clip_grad_norm_:
 *   *norm = inverse * sqrt(sum of partial[])  (NORM_2: of sums of squares, in order)
 *           inverse * max of partial[]        (NORM_INF)
 *   *coef = inverse * min(1, max_norm / (*norm + 1e-6)), or inverse where max_norm <= 0
 * inverse is scale->inverse, 1 where scale is NULL. coef, norm, partial[npartials] and scale are
 * device memory. */
int fsdp_clip_coef(struct fsdp_lane *lane, const struct fsdp_clip_args *args, struct fsdp_err *err);
/* Decides by *norm whether this step is skipped (it is not finite), and updates the scale for the
 * next step by the rule. */
int fsdp_loss_scale_update(struct fsdp_lane *lane, struct fsdp_loss_scale *scale, const float *norm,
                           struct fsdp_loss_scale_rule rule, struct fsdp_err *err);

/* ---- optimizers ------------------------------------------------------------------------------ */

/* The random bits of stochastic rounding, which do not depend on how a tensor is sharded: element i
 * of the range takes word (first + i) mod 4 of block (first + i) / 4 of Philox 4x32-10 under
 * (key, step): of moments the low half for exp_avg and the high half for exp_avg_sq, of weights the
 * low half. */
struct fsdp_rounding {
    uint64_t key;   /* the tensor's */
    uint64_t step;  /* the optimizer's */
    uint64_t first; /* the range's first element in the tensor */
};

/* One AdamW step on a range of the flat shard (torch.optim.AdamW, decoupled decay):
 *   p *= 1 - lr*decay; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
 *   p -= lr/bias1 * m / (sqrt(v)/sqrt(bias2) + eps)     with g scaled by *grad_scale first.
 * With decay_in_grad (torch.optim.Adam) the first line is g += decay*p instead.
 * bias1 = 1 - b1^t and bias2 = 1 - b2^t, in double; t counts the steps that were not skipped. Where
 * param is not NULL the new value is also written there in param_dtype.
 * Moments in BF16 are rounded stochastically after the step has used them: up with a probability
 * equal to the distance from the lower neighbour, so that their mean is right however small the
 * changes are. A master may be split (fsdp_split): then param and rest hold it. Where there is
 * none, param in BF16 is the weight: the step computes in fp32 and rounds the new one
 * stochastically. */
struct fsdp_adamw_args {
    float *master;              /* NULL: split, or none */
    void *exp_avg, *exp_avg_sq; /* in moment_dtype */
    const void *grad;           /* in grad_dtype */
    const float *grad_scale;    /* device scalar, NULL: 1 */
    /* On the device: skips the step, and counts those that were; NULL: none is. */
    const struct fsdp_loss_scale *loss_scale;
    void *param;
    uint16_t *rest; /* of a split master; NULL without one */
    enum fsdp_dtype param_dtype;
    enum fsdp_dtype moment_dtype;         /* F32 or BF16 */
    enum fsdp_dtype grad_dtype;           /* likewise */
    struct fsdp_rounding rounding;        /* of BF16 moments */
    struct fsdp_rounding weight_rounding; /* of param, without a master */
    size_t nelem;
    int64_t nsteps; /* with this one */
    double lr, beta1, beta2, eps, weight_decay;
    bool decay_in_grad;
};
int fsdp_adamw(struct fsdp_lane *lane, const struct fsdp_adamw_args *args, struct fsdp_err *err);

/* An fp32 master in two halves of 16 bits: param, which is x rounded to the nearest BF16 (ties away
 * from zero: ties to even would not leave enough bits), and rest, its low half. join gives x back
 * to the bit; a NaN comes back as a quiet one. */
int fsdp_split(struct fsdp_lane *lane, void *param, uint16_t *rest, const float *x, size_t nelem,
               struct fsdp_err *err);
int fsdp_join(struct fsdp_lane *lane, float *x, const void *param, const uint16_t *rest,
              size_t nelem, struct fsdp_err *err);

/* dst = src in BF16, rounded stochastically as weights are (fsdp_rounding); what BF16 has exactly
 * stays, and a NaN becomes a quiet one. */
int fsdp_narrow(struct fsdp_lane *lane, void *dst, const float *src, size_t nelem,
                const struct fsdp_rounding *rounding, struct fsdp_err *err);

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

/* One Lion step (Chen et al., arXiv 2302.06675), with g scaled by *grad_scale first:
 *   p *= 1 - lr*decay; p -= lr * sign(b1 m + (1-b1) g); m = b2 m + (1-b2) g. */
struct fsdp_lion_args {
    float *master, *exp_avg;
    const float *grad;
    const float *grad_scale;                  /* device scalar, NULL: 1 */
    const struct fsdp_loss_scale *loss_scale; /* as above */
    size_t nelem;
    double lr, beta1, beta2, weight_decay;
};
int fsdp_lion(struct fsdp_lane *lane, const struct fsdp_lion_args *args, struct fsdp_err *err);

/* One AdamW step with moments in 8 bits (Dettmers et al., arXiv 2110.02861; bitsandbytes'
 * AdamW8bit): each block of FSDP_CUT_ALIGN elements has codes of 8 bits and the number they are
 * scaled by. The arithmetic between is fsdp_adamw's. master, and all else, begins at a block. */
struct fsdp_adamw8bit_args {
    float *master;
    uint8_t *state1, *state2; /* [nelem] codes of exp_avg, exp_avg_sq */
    float *absmax1, *absmax2; /* [blocks] */
    const float *grad;
    const float *grad_scale;                  /* device scalar, NULL: 1 */
    const struct fsdp_loss_scale *loss_scale; /* as above */
    size_t nelem;
    int64_t nsteps; /* with this one */
    double lr, beta1, beta2, eps, weight_decay;
};
int fsdp_adamw8bit(struct fsdp_lane *lane, const struct fsdp_adamw8bit_args *args,
                   struct fsdp_err *err);

/* One Adafactor step (Shazeer and Stern, arXiv 1804.04235, as torch.optim.Adafactor) of a rank's
 * part of a parameter, in three calls. After the first the caller sums `sums` over the ranks, after
 * the second `update_sum`; both are zero before the first. With g scaled by *grad_scale first:
 *   row_var, col_var: averages of the means of g^2 over rows and columns; variance: of g^2
 *   u = g / sqrt(row_var col_var / mean(row_var)); p *= 1 - lr*decay;
 *   p -= max(eps2, rms(p)) min(lr, 1/sqrt(t)) u / max(1, rms(u)) */
enum fsdp_adafactor_phase {
    FSDP_ADAFACTOR_MEASURE,  /* rows, and this rank's part of columns and of rms(p) */
    FSDP_ADAFACTOR_ESTIMATE, /* columns; this rank's part of rms(u) */
    FSDP_ADAFACTOR_APPLY
};
/* Of sums; behind them is one for each column of a parameter that is a matrix. */
enum { FSDP_ADAFACTOR_NSUMS = 2 };
struct fsdp_adafactor_args {
    enum fsdp_adafactor_phase phase;
    float *master;
    const float *grad;
    const float *grad_scale;                  /* device scalar, NULL: 1 */
    const struct fsdp_loss_scale *loss_scale; /* as above */
    float *row_var, *col_var;                 /* NULL: a vector */
    float *variance;                          /* NULL: not one */
    double *sums, *update_sum;
    uint64_t nrows, ncols; /* of a matrix: all of them; of a vector 1 and its elements */
    uint64_t nmatrices;    /* those of the whole parameter */
    bool by_rows;          /* nelem is of rows of one matrix; else of whole matrices, or a vector */
    size_t nelem;
    int64_t nsteps; /* with this one */
    double lr, beta2_decay, eps2, weight_decay;
};
int fsdp_adafactor(struct fsdp_lane *lane, const struct fsdp_adafactor_args *args,
                   struct fsdp_err *err);

/* What Muon (Jordan et al., https://kellerjordan.github.io/posts/muon) is made of. With g scaled by
 * *grad_scale first:
 *   begin: momentum_buffer += (1 - momentum) (g - momentum_buffer); rows = momentum_buffer, or
 *          g + momentum (momentum_buffer - g) with nesterov
 *   end:   p = keep p - rate rows */
struct fsdp_muon_args {
    float *master, *momentum_buffer;
    const float *grad, *grad_scale;           /* grad_scale: device scalar, NULL: 1 */
    const struct fsdp_loss_scale *loss_scale; /* as above */
    double *rows;                             /* [nelem] of the matrix that ranks exchange */
    size_t nelem;
    float momentum, keep, rate;
    bool nesterov;
};
int fsdp_muon_begin(struct fsdp_lane *lane, const struct fsdp_muon_args *args,
                    struct fsdp_err *err);
int fsdp_muon_end(struct fsdp_lane *lane, const struct fsdp_muon_args *args, struct fsdp_err *err);

/* A matrix [rows, cols] and its copy in fp32, with as many rows as the shorter side: transposed,
 * where rows > cols. unit: x = wide / max(its norm, 1e-7); back: wide = x. */
struct fsdp_muon_matrix {
    double *wide;
    float *x;
    size_t rows, cols;
};
int fsdp_muon_unit(struct fsdp_lane *lane, const struct fsdp_muon_matrix *args,
                   struct fsdp_err *err);
int fsdp_muon_back(struct fsdp_lane *lane, const struct fsdp_muon_matrix *args,
                   struct fsdp_err *err);

/* c = alpha a b + beta add, in fp32: a [rows, inner], b [inner, cols] or, transposed,
 * [cols, inner], c and add [rows, cols]. c overlaps nothing. */
struct fsdp_matmul_args {
    float *c;
    const float *a, *b, *add; /* add may be NULL where beta is 0 */
    size_t rows, inner, cols;
    float alpha, beta;
    bool b_transposed;
};
int fsdp_matmul(struct fsdp_lane *lane, const struct fsdp_matmul_args *args, struct fsdp_err *err);

/* One step of schedule-free AdamW (Defazio et al., arXiv 2405.15682). Training computes gradients
 * at y = b1 x + (1-b1) z; the average x is the result. With g scaled by *grad_scale first:
 *   v = b2 v + (1-b2) g^2; d = g / (sqrt(v/bias2) + eps) + decay*y;
 *   z -= lr * d; x += weight * (z - x); then y is written in param_dtype.
 * weight: this step's part of the average, 1 in the first. */
struct fsdp_schedulefree_args {
    float *x, *z, *exp_avg_sq;
    const float *grad;
    const float *grad_scale; /* device scalar, NULL: 1 */
    void *y;                 /* in y_dtype */
    enum fsdp_dtype y_dtype;
    size_t nelem;
    int64_t nsteps; /* with this one */
    double lr, beta1, beta2, eps, weight_decay, weight;
};
int fsdp_schedulefree(struct fsdp_lane *lane, const struct fsdp_schedulefree_args *args,
                      struct fsdp_err *err);
/* y from x and z alone, with the same rounding. */
int fsdp_schedulefree_y(struct fsdp_lane *lane, void *y, enum fsdp_dtype y_dtype, const float *x,
                        const float *z, size_t nelem, double beta1, struct fsdp_err *err);

/* An exponential moving average: average += (1 - decay) (x - average), with the rounding of
 * torch.optim.swa_utils.get_ema_multi_avg_fn (torch.lerp). */
int fsdp_ema(struct fsdp_lane *lane, float *average, const float *x, size_t nelem, double decay,
             struct fsdp_err *err);

/* ---- initial values -------------------------------------------------------------------------- */

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
