/* SPDX-License-Identifier: Apache-2.0 */
/* The dispatcher: checks arguments and a lane's sticky error once, so that backends need not. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "device_handles.h"
#include "device_load.h"
#include "fsdp/sys/device_ops.h"

int fsdp_device_open_ops(struct fsdp_device **out, const struct fsdp_device_ops *ops, int ordinal,
                         unsigned flags, struct fsdp_err *err)
{
    struct fsdp_device *device = fsdp_alloc(1, sizeof *device, "device", err);
    if (!device)
        return FSDP_ENOMEM;
    device->ops = ops;
    int rc = ops->open(&device->state, ordinal, flags, err);
    if (rc) {
        fsdp_free(device);
        return rc;
    }
    *out = device;
    return FSDP_OK;
}

static int open_cuda(struct fsdp_device **out, int ordinal, unsigned flags, struct fsdp_err *err)
{
    const struct fsdp_cuda_backend *backend;
    int ndevices;

    FSDP_TRY(device_load_cuda(&backend, &ndevices, err));
    if (ordinal >= ndevices)
        return fsdp_err_set(err, FSDP_ENOTFOUND,
                            "device cuda:%d: this process sees %d GPU%s, numbered from 0 "
                            "(CUDA_VISIBLE_DEVICES says which)",
                            ordinal, ndevices, ndevices == 1 ? "" : "s");
    return fsdp_device_open_ops(out, backend->device_ops, ordinal, flags, err);
}

int fsdp_device_count(int *out, struct fsdp_err *err)
{
    const struct fsdp_cuda_backend *backend;
    return device_load_cuda(&backend, out, err);
}

/* Whoever has the library meant to use a GPU, and is told why not. */
static int open_auto(struct fsdp_device **out, unsigned flags, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = open_cuda(out, 0, flags, &why);
    if (!rc)
        return FSDP_OK;
    fsdp_log(rc == FSDP_EUNSUPPORTED ? FSDP_LOG_DEBUG : FSDP_LOG_INFO,
             "device auto: the CPU is used (%s)", why.text);
    return fsdp_device_open_ops(out, &fsdp_device_cpu_ops, 0, flags, err);
}

int fsdp_device_open(struct fsdp_device **out, const char *kind, unsigned flags,
                     struct fsdp_err *err)
{
    int ordinal = 0, end = 0;

    if (!strcmp(kind, "auto"))
        return open_auto(out, flags, err);
    if (!strcmp(kind, "cpu"))
        return fsdp_device_open_ops(out, &fsdp_device_cpu_ops, 0, flags, err);
    if (!strcmp(kind, "cuda"))
        return open_cuda(out, 0, flags, err);
    if (sscanf(kind, "cuda:%4d%n", &ordinal, &end) == 1 && !kind[end] && ordinal >= 0)
        return open_cuda(out, ordinal, flags, err);
    return fsdp_err_set(err, FSDP_EUNSUPPORTED, "device '%s': use auto, cpu, cuda or cuda:N", kind);
}

const struct fsdp_cuda_backend *fsdp_device_cuda_backend(const struct fsdp_device *device)
{
    const struct fsdp_cuda_backend *backend = device_loaded_cuda();
    return backend && device->ops == backend->device_ops ? backend : NULL;
}

void fsdp_device_close(struct fsdp_device *device)
{
    if (device) {
        device->ops->close(device->state);
        fsdp_free(device);
    }
}

const char *fsdp_device_name(const struct fsdp_device *device)
{
    return device->ops->name;
}

int fsdp_device_look(const struct fsdp_device *device, struct fsdp_device_look *out,
                     struct fsdp_err *err)
{
    *out = (struct fsdp_device_look){.model = ""};
    return device->ops->look ? device->ops->look(device->state, out, err) : FSDP_OK;
}

void *fsdp_device_alloc(struct fsdp_device *device, size_t nbytes, const char *name,
                        struct fsdp_err *err)
{
    fsdp_device_count_alloc(device, nbytes);
    return device->ops->alloc(device->state, nbytes, name, err);
}

void *fsdp_host_alloc(struct fsdp_device *device, size_t nbytes, const char *name,
                      struct fsdp_err *err)
{
    return device->ops->host_alloc(device->state, nbytes, name, err);
}

void fsdp_host_free(struct fsdp_device *device, void *ptr)
{
    if (ptr)
        device->ops->host_free(device->state, ptr);
}

bool fsdp_device_is_host(const struct fsdp_device *device)
{
    return device->ops->is_host;
}

struct fsdp_device_stats fsdp_device_stats(const struct fsdp_device *device)
{
    return (struct fsdp_device_stats){atomic_load(&device->nsyncs), atomic_load(&device->nallocs),
                                      atomic_load(&device->alloc_nbytes)};
}

void fsdp_device_free(struct fsdp_device *device, void *ptr)
{
    if (ptr)
        device->ops->free(device->state, ptr);
}

static int create_lane(struct fsdp_lane **out, struct fsdp_device *device, const char *name,
                       bool urgent, struct fsdp_err *err)
{
    struct fsdp_lane *lane = fsdp_alloc(1, sizeof *lane, "lane", err);
    if (!lane)
        return FSDP_ENOMEM;
    lane->device = device;
    strncpy(lane->name, name, sizeof lane->name - 1);
    int rc = device->ops->lane_create(&lane->state, device->state, lane->name, urgent, err);
    if (rc) {
        fsdp_free(lane);
        return rc;
    }
    pthread_mutex_init(&lane->lock, NULL);
    *out = lane;
    return FSDP_OK;
}

int fsdp_lane_create(struct fsdp_lane **out, struct fsdp_device *device, const char *name,
                     struct fsdp_err *err)
{
    return create_lane(out, device, name, false, err);
}

int fsdp_lane_create_urgent(struct fsdp_lane **out, struct fsdp_device *device, const char *name,
                            struct fsdp_err *err)
{
    return create_lane(out, device, name, true, err);
}

void fsdp_lane_destroy(struct fsdp_lane *lane)
{
    if (lane) {
        lane->device->ops->lane_destroy(lane->state);
        fsdp_device_free(lane->device, lane->scratch);
        pthread_mutex_destroy(&lane->lock);
        fsdp_free(lane);
    }
}

void *fsdp_lane_scratch(struct fsdp_lane *lane, size_t nbytes, struct fsdp_err *err)
{
    if (!lane->scratch)
        lane->scratch = fsdp_device_alloc(lane->device, nbytes, "a lane's scratch memory", err);
    return lane->scratch;
}

/* What was said of the lane by others. */
static int lane_failure(struct fsdp_lane *lane, struct fsdp_err *err)
{
    pthread_mutex_lock(&lane->lock);
    int rc = lane->failure.status;
    if (rc && err)
        *err = lane->failure;
    pthread_mutex_unlock(&lane->lock);
    return rc;
}

int fsdp_lane_sync(struct fsdp_lane *lane, struct fsdp_err *err)
{
    atomic_fetch_add(&lane->device->nsyncs, 1);
    int rc = lane->device->ops->lane_sync(lane->state, err), failed = lane_failure(lane, err);
    return failed ? failed : rc;
}

static int take_time(void *arg, struct fsdp_err *err)
{
    (void)err;
    **(double **)arg = fsdp_time_now();
    return FSDP_OK;
}

int fsdp_lane_stamp(struct fsdp_lane *lane, double *to, struct fsdp_err *err)
{
    const struct fsdp_device_ops *ops = lane->device->ops;
    return ops->lane_stamp ? ops->lane_stamp(lane->state, to, err)
                           : ops->lane_call(lane->state, take_time, &to, sizeof to, err);
}

bool fsdp_device_is_profiled(const struct fsdp_device *device)
{
    return device->ops->is_profiled && device->ops->is_profiled();
}

void fsdp_range_push(const struct fsdp_device *device, const char *name)
{
    device->ops->range_push(name);
}

void fsdp_range_pop(const struct fsdp_device *device)
{
    device->ops->range_pop();
}

static int event_create(struct fsdp_event **out, struct fsdp_device *device, bool timed,
                        struct fsdp_err *err)
{
    struct fsdp_event *event = fsdp_alloc(1, sizeof *event, "event", err);
    if (!event)
        return FSDP_ENOMEM;
    event->device = device;
    int rc = device->ops->event_create(&event->state, device->state, timed, err);
    if (rc) {
        fsdp_free(event);
        return rc;
    }
    *out = event;
    return FSDP_OK;
}

int fsdp_event_create(struct fsdp_event **out, struct fsdp_device *device, struct fsdp_err *err)
{
    return event_create(out, device, false, err);
}

int fsdp_event_create_timed(struct fsdp_event **out, struct fsdp_device *device,
                            struct fsdp_err *err)
{
    return event_create(out, device, true, err);
}

void fsdp_event_destroy(struct fsdp_event *event)
{
    if (event) {
        event->device->ops->event_destroy(event->state);
        fsdp_free(event);
    }
}

int fsdp_event_record(struct fsdp_event *event, struct fsdp_lane *lane, struct fsdp_err *err)
{
    return lane->device->ops->event_record(event->state, lane->state, err);
}

int fsdp_event_wait(struct fsdp_event *event, struct fsdp_lane *lane, struct fsdp_err *err)
{
    return lane->device->ops->event_wait(event->state, lane->state, err);
}

int fsdp_event_done(struct fsdp_event *event, bool *done, struct fsdp_err *err)
{
    return event->device->ops->event_done(event->state, done, err);
}

int fsdp_event_seconds(struct fsdp_event *from, struct fsdp_event *to, double *seconds,
                       struct fsdp_err *err)
{
    return from->device->ops->event_seconds(from->state, to->state, seconds, err);
}

int fsdp_lane_call(struct fsdp_lane *lane, fsdp_lane_f *fn, const void *arg, size_t arg_nbytes,
                   struct fsdp_err *err)
{
    FSDP_TRY(lane_failure(lane, err));
    if (arg_nbytes > FSDP_LANE_ARG_NBYTES)
        return fsdp_err_set(err, FSDP_EINVAL, "lane %s: argument of %zu bytes (at most %d)",
                            lane->name, arg_nbytes, FSDP_LANE_ARG_NBYTES);
    return lane->device->ops->lane_call(lane->state, fn, arg, arg_nbytes, err);
}

int fsdp_copy(struct fsdp_lane *lane, void *dst, const void *src, size_t nbytes,
              struct fsdp_err *err)
{
    if (!nbytes || dst == src)
        return FSDP_OK;
    return lane->device->ops->copy(lane->state, dst, src, nbytes, err);
}

int fsdp_copy_pieces(struct fsdp_lane *lane, void *dst, const void *src, size_t nbytes,
                     const struct fsdp_pieces *pieces, struct fsdp_err *err)
{
    if (!nbytes || !pieces->count)
        return FSDP_OK;
    return lane->device->ops->copy_pieces(lane->state, dst, src, nbytes, pieces, err);
}

int fsdp_zero(struct fsdp_lane *lane, void *dst, size_t nbytes, struct fsdp_err *err)
{
    return nbytes ? lane->device->ops->zero(lane->state, dst, nbytes, err) : FSDP_OK;
}

static int check_float(struct fsdp_lane *lane, enum fsdp_dtype dtype, const char *what,
                       struct fsdp_err *err)
{
    if (dtype == FSDP_F32 || dtype == FSDP_BF16 || dtype == FSDP_F16)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL, "lane %s: %s takes F32, BF16 or F16, not %s", lane->name,
                        what, fsdp_dtype_name(dtype));
}

int fsdp_cast(struct fsdp_lane *lane, void *dst, enum fsdp_dtype dst_dtype, const void *src,
              enum fsdp_dtype src_dtype, size_t nelem, struct fsdp_err *err)
{
    FSDP_TRY(check_float(lane, dst_dtype, "cast", err));
    FSDP_TRY(check_float(lane, src_dtype, "cast", err));
    if (dst_dtype == src_dtype)
        return fsdp_copy(lane, dst, src, nelem * fsdp_dtype_nbytes(dst_dtype), err);
    if (!nelem)
        return FSDP_OK;
    return lane->device->ops->cast(lane->state, dst, dst_dtype, src, src_dtype, nelem, err);
}

int fsdp_accumulate(struct fsdp_lane *lane, float *dst, const void *src, enum fsdp_dtype src_dtype,
                    size_t nelem, struct fsdp_err *err)
{
    return fsdp_accumulate_to(lane, dst, FSDP_F32, src, src_dtype, nelem, err);
}

int fsdp_accumulate_to(struct fsdp_lane *lane, void *dst, enum fsdp_dtype dst_dtype,
                       const void *src, enum fsdp_dtype src_dtype, size_t nelem,
                       struct fsdp_err *err)
{
    FSDP_TRY(check_float(lane, dst_dtype, "accumulate", err));
    FSDP_TRY(check_float(lane, src_dtype, "accumulate", err));
    if (!nelem)
        return FSDP_OK;
    return lane->device->ops->accumulate(lane->state, dst, dst_dtype, src, src_dtype, nelem, err);
}

int fsdp_sumsq(struct fsdp_lane *lane, double *out, const float *x, size_t nelem,
               struct fsdp_err *err)
{
    return fsdp_sumsq_of(lane, out, x, FSDP_F32, nelem, err);
}

int fsdp_sumsq_of(struct fsdp_lane *lane, double *out, const void *x, enum fsdp_dtype dtype,
                  size_t nelem, struct fsdp_err *err)
{
    FSDP_TRY(check_float(lane, dtype, "sumsq", err));
    return lane->device->ops->sumsq(lane->state, out, x, dtype, nelem, err);
}

int fsdp_absmax(struct fsdp_lane *lane, double *out, const float *x, size_t nelem,
                struct fsdp_err *err)
{
    return fsdp_absmax_of(lane, out, x, FSDP_F32, nelem, err);
}

int fsdp_absmax_of(struct fsdp_lane *lane, double *out, const void *x, enum fsdp_dtype dtype,
                   size_t nelem, struct fsdp_err *err)
{
    FSDP_TRY(check_float(lane, dtype, "absmax", err));
    return nelem ? lane->device->ops->absmax(lane->state, out, x, dtype, nelem, err) : FSDP_OK;
}

int fsdp_max_rows(struct fsdp_lane *lane, double *out, const double *in, size_t nrows, size_t ncols,
                  struct fsdp_err *err)
{
    if (!nrows || !ncols)
        return FSDP_OK;
    return lane->device->ops->max_rows(lane->state, out, in, nrows, ncols, err);
}

static int check_narrow(struct fsdp_lane *lane, enum fsdp_dtype narrow, struct fsdp_err *err)
{
    if (narrow == FSDP_F8_E4M3)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL, "lane %s: quantize takes F8_E4M3, not %s", lane->name,
                        fsdp_dtype_name(narrow));
}

int fsdp_quantize(struct fsdp_lane *lane, void *dst, enum fsdp_dtype narrow, const float *src,
                  size_t nelem, const double *amax, struct fsdp_err *err)
{
    FSDP_TRY(check_narrow(lane, narrow, err));
    if (!nelem)
        return FSDP_OK;
    return lane->device->ops->quantize(lane->state, dst, narrow, src, nelem, amax, err);
}

int fsdp_dequantize(struct fsdp_lane *lane, const struct fsdp_dequantize_args *args,
                    struct fsdp_err *err)
{
    FSDP_TRY(check_narrow(lane, args->src_dtype, err));
    FSDP_TRY(check_float(lane, args->dst_dtype, "dequantize", err));
    return args->nelem ? lane->device->ops->dequantize(lane->state, args, err) : FSDP_OK;
}

int fsdp_nf4_decode(struct fsdp_lane *lane, const struct fsdp_nf4_args *args, struct fsdp_err *err)
{
    FSDP_TRY(check_float(lane, args->dst_dtype, "nf4_decode", err));
    if (args->pieces.count > 1 && args->nelem % FSDP_NF4_BLOCK)
        return fsdp_err_set(err, FSDP_EINVAL, "nf4_decode: pieces of %zu elements are no blocks",
                            args->nelem);
    return args->nelem ? lane->device->ops->nf4_decode(lane->state, args, err) : FSDP_OK;
}

int fsdp_clip_coef(struct fsdp_lane *lane, const struct fsdp_clip_args *args, struct fsdp_err *err)
{
    return lane->device->ops->clip_coef(lane->state, args, err);
}

int fsdp_loss_scale_update(struct fsdp_lane *lane, struct fsdp_loss_scale *scale, const float *norm,
                           struct fsdp_loss_scale_rule rule, struct fsdp_err *err)
{
    return lane->device->ops->loss_scale_update(lane->state, scale, norm, rule, err);
}

int fsdp_adamw(struct fsdp_lane *lane, const struct fsdp_adamw_args *args, struct fsdp_err *err)
{
    const bool narrow = !args->master;
    if (args->param)
        FSDP_TRY(check_float(lane, args->param_dtype, "adamw", err));
    if (args->moment_dtype != FSDP_F32 && args->moment_dtype != FSDP_BF16)
        return fsdp_err_set(err, FSDP_EINVAL, "lane %s: adamw keeps moments in F32 or BF16, not %s",
                            lane->name, fsdp_dtype_name(args->moment_dtype));
    if (args->grad_dtype != FSDP_F32 && args->grad_dtype != FSDP_BF16)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "lane %s: adamw takes gradients in F32 or BF16, not %s", lane->name,
                            fsdp_dtype_name(args->grad_dtype));
    if (narrow && (!args->param || args->param_dtype != FSDP_BF16))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "lane %s: adamw without a whole master needs the parameter in BF16",
                            lane->name);
    return args->nelem ? lane->device->ops->adamw(lane->state, args, err) : FSDP_OK;
}

int fsdp_split(struct fsdp_lane *lane, void *param, uint16_t *rest, const float *x, size_t nelem,
               struct fsdp_err *err)
{
    return nelem ? lane->device->ops->split(lane->state, param, rest, x, nelem, err) : FSDP_OK;
}

int fsdp_join(struct fsdp_lane *lane, float *x, const void *param, const uint16_t *rest,
              size_t nelem, struct fsdp_err *err)
{
    return nelem ? lane->device->ops->join(lane->state, x, param, rest, nelem, err) : FSDP_OK;
}

int fsdp_narrow(struct fsdp_lane *lane, void *dst, const float *src, size_t nelem,
                const struct fsdp_rounding *rounding, struct fsdp_err *err)
{
    return nelem ? lane->device->ops->narrow(lane->state, dst, src, nelem, rounding, err) : FSDP_OK;
}

int fsdp_sgd(struct fsdp_lane *lane, const struct fsdp_sgd_args *args, struct fsdp_err *err)
{
    return args->nelem ? lane->device->ops->sgd(lane->state, args, err) : FSDP_OK;
}

int fsdp_lion(struct fsdp_lane *lane, const struct fsdp_lion_args *args, struct fsdp_err *err)
{
    return args->nelem ? lane->device->ops->lion(lane->state, args, err) : FSDP_OK;
}

int fsdp_adamw8bit(struct fsdp_lane *lane, const struct fsdp_adamw8bit_args *args,
                   struct fsdp_err *err)
{
    return args->nelem ? lane->device->ops->adamw8bit(lane->state, args, err) : FSDP_OK;
}

int fsdp_adafactor(struct fsdp_lane *lane, const struct fsdp_adafactor_args *args,
                   struct fsdp_err *err)
{
    return lane->device->ops->adafactor(lane->state, args, err);
}

int fsdp_muon_begin(struct fsdp_lane *lane, const struct fsdp_muon_args *args, struct fsdp_err *err)
{
    return args->nelem ? lane->device->ops->muon_begin(lane->state, args, err) : FSDP_OK;
}

int fsdp_muon_end(struct fsdp_lane *lane, const struct fsdp_muon_args *args, struct fsdp_err *err)
{
    return args->nelem ? lane->device->ops->muon_end(lane->state, args, err) : FSDP_OK;
}

int fsdp_muon_unit(struct fsdp_lane *lane, const struct fsdp_muon_matrix *args,
                   struct fsdp_err *err)
{
    return args->rows && args->cols ? lane->device->ops->muon_unit(lane->state, args, err)
                                    : FSDP_OK;
}

int fsdp_muon_back(struct fsdp_lane *lane, const struct fsdp_muon_matrix *args,
                   struct fsdp_err *err)
{
    return args->rows && args->cols ? lane->device->ops->muon_back(lane->state, args, err)
                                    : FSDP_OK;
}

int fsdp_matmul(struct fsdp_lane *lane, const struct fsdp_matmul_args *args, struct fsdp_err *err)
{
    return args->rows && args->cols ? lane->device->ops->matmul(lane->state, args, err) : FSDP_OK;
}

int fsdp_schedulefree(struct fsdp_lane *lane, const struct fsdp_schedulefree_args *args,
                      struct fsdp_err *err)
{
    FSDP_TRY(check_float(lane, args->y_dtype, "schedulefree", err));
    return args->nelem ? lane->device->ops->schedulefree(lane->state, args, err) : FSDP_OK;
}

int fsdp_schedulefree_y(struct fsdp_lane *lane, void *y, enum fsdp_dtype y_dtype, const float *x,
                        const float *z, size_t nelem, double beta1, struct fsdp_err *err)
{
    FSDP_TRY(check_float(lane, y_dtype, "schedulefree", err));
    return nelem
               ? lane->device->ops->schedulefree_y(lane->state, y, y_dtype, x, z, nelem, beta1, err)
               : FSDP_OK;
}

int fsdp_ema(struct fsdp_lane *lane, float *average, const float *x, size_t nelem, double decay,
             struct fsdp_err *err)
{
    return nelem ? lane->device->ops->ema(lane->state, average, x, nelem, decay, err) : FSDP_OK;
}

int fsdp_init_fill(struct fsdp_lane *lane, float *dst, uint64_t first, size_t nelem,
                   struct fsdp_init init, uint64_t seed, uint64_t stream, struct fsdp_err *err)
{
    if (!nelem)
        return FSDP_OK;
    return lane->device->ops->init_fill(lane->state, dst, first, nelem, init, seed, stream, err);
}
