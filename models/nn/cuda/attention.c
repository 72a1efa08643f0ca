/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who computes attention: cuDNN where plans were made for the shape, else the plain kernels. Plans
 * are made when a model asks how much work memory it must plan, so that the first step finds them.
 *
 * FSDP_CUDA_ATTENTION=cudnn (the default) | deterministic (cuDNN, and gradients that are the same
 * bits in every run) | plain
 *
 * Each way that is taken, and why it is not cuDNN's, is logged once. A row of several documents is
 * cuDNN's only where the caller says how many there are: its statistics lie otherwise, and forward
 * and backward choose by what both are told.
 */
#include <cuda_runtime_api.h>

#include "nn_cuda.h"
#if HAVE_CUDNN
#include "cudnn_attention.h"
#endif

static void tell_reason(const char *why, bool fp32)
{
    static struct nn_cuda_reasons told;

    if (!nn_cuda_add_reason(&told, why))
        return;
    if (why)
        fsdp_log(fp32 ? FSDP_LOG_INFO : FSDP_LOG_WARN,
                 "attention: " NN_CUDA_SLOW ", because of: %s", why);
    else
        fsdp_log(FSDP_LOG_INFO, "attention: cuDNN's kernels");
}

/* 0 where CUDA does not say. */
static int capability_of(int ordinal)
{
    int capability;
    return nn_cuda_capability(&capability, ordinal, NULL) ? 0 : capability;
}

static bool takes_cudnn(const struct fsdp_lane *lane, const struct nn_attention *a)
{
    const bool packed = a->starts && a->documents != a->B;
    const char *why = nn_cuda_beyond_cudnn(a, packed, capability_of(fsdp_cuda_ordinal(lane)));
#if HAVE_CUDNN
    if (!why && nn_cuda_attention_chosen() == NN_CUDA_PLAIN)
        why = "FSDP_CUDA_ATTENTION=plain";
    else if (!why && !cudnn_attention_can(lane, a))
        why = packed
                  ? "documents of which there are more than planned, or no plan of cuDNN for them"
                  : "a batch of another shape than planned, or no plan of cuDNN for it";
#else
    why = why ? why : "a build without cuDNN";
#endif
    tell_reason(why, a->dtype == FSDP_F32);
    return !why;
}

#if HAVE_CUDNN
/* Makes the plans of a shape; 0: there are none. */
static size_t plan_shape(const struct nn_attention *shape, int capability)
{
    if (nn_cuda_attention_chosen() == NN_CUDA_PLAIN ||
        nn_cuda_beyond_cudnn(shape, false, capability))
        return 0;
    return cudnn_attention_plan(shape,
                                shape->documents && !nn_cuda_beyond_cudnn(shape, true, capability));
}
#endif

size_t nn_cuda_attention_work_nelem(const struct nn_attention *shape)
{
    size_t most = nn_cuda_plain_attention_work_nelem(shape);
#if HAVE_CUDNN
    struct nn_attention whole = *shape; /* evaluation drops nothing */
    const int capability = nn_cuda_current_capability();

    whole.drop.p = 0;
    const size_t nelem = plan_shape(&whole, capability);
    most = nelem > most ? nelem : most;
    if (shape->drop.p > 0) {
        const size_t dropped = plan_shape(shape, capability);
        most = dropped > most ? dropped : most;
    }
#endif
    return most;
}

int nn_cuda_attention_forward(struct fsdp_lane *lane, const struct nn_attention *args,
                              struct fsdp_err *err)
{
    const bool cudnn = takes_cudnn(lane, args);
#if HAVE_CUDNN
    if (cudnn)
        return cudnn_attention_forward(lane, args, err);
#else
    (void)cudnn;
#endif
    return nn_cuda_plain_attention_forward(lane, args, err);
}

int nn_cuda_attention_backward(struct fsdp_lane *lane, const struct nn_attention *args,
                               struct fsdp_err *err)
{
    const bool cudnn = takes_cudnn(lane, args);
#if HAVE_CUDNN
    if (cudnn)
        return cudnn_attention_backward(lane, args, err);
#else
    (void)cudnn;
#endif
    return nn_cuda_plain_attention_backward(lane, args, err);
}
