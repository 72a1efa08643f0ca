/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_ops.h: what a device backend implements; the semantics are those of device.h. device.c has
 * checked arguments and sticky errors before it calls.
 */
#ifndef FSDP_SYS_DEVICE_OPS_H
#define FSDP_SYS_DEVICE_OPS_H

#include "fsdp/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FSDP_DEVICE_OPS_ABI 11

struct fsdp_device_ops {
    uint32_t abi;
    const char *name;
    bool is_host; /* the host may read and write its memory */
    int (*open)(void **state, int ordinal, unsigned flags, struct fsdp_err *err);
    void (*close)(void *state);
    void *(*alloc)(void *state, size_t nbytes, const char *name, struct fsdp_err *err);
    void (*free)(void *state, void *ptr);
    void *(*host_alloc)(void *state, size_t nbytes, const char *name, struct fsdp_err *err);
    void (*host_free)(void *state, void *ptr);
    int (*lane_create)(void **lane, void *state, const char *name, bool urgent,
                       struct fsdp_err *err);
    void (*lane_destroy)(void *lane);
    int (*lane_sync)(void *lane, struct fsdp_err *err);
    int (*lane_call)(void *lane, fsdp_lane_f *fn, const void *arg, size_t arg_nbytes,
                     struct fsdp_err *err);
    int (*event_create)(void **event, void *state, bool timed, struct fsdp_err *err);
    void (*event_destroy)(void *event);
    int (*event_record)(void *event, void *lane, struct fsdp_err *err);
    int (*event_wait)(void *event, void *lane, struct fsdp_err *err);
    int (*event_done)(void *event, bool *done, struct fsdp_err *err);
    int (*event_seconds)(void *from, void *to, double *seconds, struct fsdp_err *err);
    int (*copy)(void *lane, void *dst, const void *src, size_t nbytes, struct fsdp_err *err);
    int (*copy_pieces)(void *lane, void *dst, const void *src, size_t nbytes,
                       const struct fsdp_pieces *pieces, struct fsdp_err *err);
    int (*zero)(void *lane, void *dst, size_t nbytes, struct fsdp_err *err);
    int (*cast)(void *lane, void *dst, enum fsdp_dtype dst_dtype, const void *src,
                enum fsdp_dtype src_dtype, size_t nelem, struct fsdp_err *err);
    int (*accumulate)(void *lane, void *dst, enum fsdp_dtype dst_dtype, const void *src,
                      enum fsdp_dtype src_dtype, size_t nelem, struct fsdp_err *err);
    int (*sumsq)(void *lane, double *out, const void *x, enum fsdp_dtype dtype, size_t nelem,
                 struct fsdp_err *err);
    int (*absmax)(void *lane, double *out, const void *x, enum fsdp_dtype dtype, size_t nelem,
                  struct fsdp_err *err);
    int (*max_rows)(void *lane, double *out, const double *in, size_t nrows, size_t ncols,
                    struct fsdp_err *err);
    int (*quantize)(void *lane, void *dst, enum fsdp_dtype narrow, const float *src, size_t nelem,
                    const double *amax, struct fsdp_err *err);
    int (*dequantize)(void *lane, const struct fsdp_dequantize_args *args, struct fsdp_err *err);
    int (*nf4_decode)(void *lane, const struct fsdp_nf4_args *args, struct fsdp_err *err);
    int (*clip_coef)(void *lane, const struct fsdp_clip_args *args, struct fsdp_err *err);
    int (*loss_scale_update)(void *lane, struct fsdp_loss_scale *scale, const float *norm,
                             struct fsdp_loss_scale_rule rule, struct fsdp_err *err);
    int (*adamw)(void *lane, const struct fsdp_adamw_args *args, struct fsdp_err *err);
    int (*split)(void *lane, void *param, uint16_t *rest, const float *x, size_t nelem,
                 struct fsdp_err *err);
    int (*join)(void *lane, float *x, const void *param, const uint16_t *rest, size_t nelem,
                struct fsdp_err *err);
    int (*narrow)(void *lane, void *dst, const float *src, size_t nelem,
                  const struct fsdp_rounding *rounding, struct fsdp_err *err);
    int (*sgd)(void *lane, const struct fsdp_sgd_args *args, struct fsdp_err *err);
    int (*lion)(void *lane, const struct fsdp_lion_args *args, struct fsdp_err *err);
    int (*adamw8bit)(void *lane, const struct fsdp_adamw8bit_args *args, struct fsdp_err *err);
    int (*schedulefree)(void *lane, const struct fsdp_schedulefree_args *args,
                        struct fsdp_err *err);
    int (*schedulefree_y)(void *lane, void *y, enum fsdp_dtype y_dtype, const float *x,
                          const float *z, size_t nelem, double beta1, struct fsdp_err *err);
    int (*ema)(void *lane, float *average, const float *x, size_t nelem, double decay,
               struct fsdp_err *err);
    int (*init_fill)(void *lane, float *dst, uint64_t first, size_t nelem, struct fsdp_init init,
                     uint64_t seed, uint64_t stream, struct fsdp_err *err);
    int (*adafactor)(void *lane, const struct fsdp_adafactor_args *args, struct fsdp_err *err);
    int (*muon_begin)(void *lane, const struct fsdp_muon_args *args, struct fsdp_err *err);
    int (*muon_end)(void *lane, const struct fsdp_muon_args *args, struct fsdp_err *err);
    int (*muon_unit)(void *lane, const struct fsdp_muon_matrix *args, struct fsdp_err *err);
    int (*muon_back)(void *lane, const struct fsdp_muon_matrix *args, struct fsdp_err *err);
    int (*matmul)(void *lane, const struct fsdp_matmul_args *args, struct fsdp_err *err);
    /* (optional) */
    void *(*lane_native)(void *lane);
    /* (optional) device.c falls back to a lane_call that reads the clock. */
    int (*lane_stamp)(void *lane, double *to, struct fsdp_err *err);
    /* (optional, all or none) Does a profiler listen; and for it, named ranges of the calling
     * thread, which nest. */
    bool (*is_profiled)(void);
    void (*range_push)(const char *name);
    void (*range_pop)(void);
    /* (optional) out is zeroed. */
    int (*look)(void *state, struct fsdp_device_look *out, struct fsdp_err *err);
    /* (optional, all or none) fsdp_graph. capture_end: *graph NULL after an error. */
    int (*capture_begin)(void *lane, struct fsdp_err *err);
    int (*capture_end)(void **graph, void *lane, struct fsdp_err *err);
    int (*graph_launch)(void *graph, void *lane, struct fsdp_err *err);
    void (*graph_destroy)(void *graph);
};

extern const struct fsdp_device_ops fsdp_device_cpu_ops;

/* Scratch memory of a lane: each operation finds it undefined. nbytes is the same in every call;
 * the first call allocates, and the lane's end frees. Returns NULL with err set where there is no
 * memory. */
void *fsdp_lane_scratch(struct fsdp_lane *lane, size_t nbytes, struct fsdp_err *err);

/* ---- graphs -------------------------------------------------------------------------------------
 *
 * A list of enqueued work, with all of its arguments, that is enqueued again by one call. Between
 * begin and end, work of the calling thread on the lane is recorded and does not run. What has no
 * place in a graph is refused there, with an error that is not the lane's: waiting for the lane,
 * events, stamps, calls of the host, and allocations. The lane's scratch must be there before.
 *
 * A graph holds addresses: it may be launched while all memory that was given to the recorded work
 * is there, and where the same numbers are wanted. */
struct fsdp_graph;
/* Has the lane's device graphs? */
bool fsdp_lane_captures(const struct fsdp_lane *lane);
/* Local. */
int fsdp_capture_begin(struct fsdp_lane *lane, struct fsdp_err *err);
/* Ends the recording, whatever became of it; *out is the caller's to destroy, NULL after an error,
 * which is not the lane's. Local. */
int fsdp_capture_end(struct fsdp_graph **out, struct fsdp_lane *lane, struct fsdp_err *err);
/* Is this the scratch memory that the recorded work uses? */
bool fsdp_graph_fits(const struct fsdp_graph *graph, const struct fsdp_lane *lane);
/* Enqueues. */
int fsdp_graph_launch(struct fsdp_graph *graph, struct fsdp_lane *lane, struct fsdp_err *err);
/* Where no launch of it runs any more. NULL is allowed. */
void fsdp_graph_destroy(struct fsdp_graph *graph);

/* Ranges are pushed only where a profiler listens. Local. */
bool fsdp_device_is_profiled(const struct fsdp_device *device);
void fsdp_range_push(const struct fsdp_device *device, const char *name);
void fsdp_range_pop(const struct fsdp_device *device);

/* A device of this backend, whatever kind it is: for backends that are not in the tree, and tests.
 */
int fsdp_device_open_ops(struct fsdp_device **out, const struct fsdp_device_ops *ops, int ordinal,
                         unsigned flags, struct fsdp_err *err);

#ifdef __cplusplus
}
#endif
#endif
