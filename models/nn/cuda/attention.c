/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who computes attention: cuDNN where plans were made for the shape, else the plain kernels. Plans
 * are made when a model asks how much work memory it must plan, so that the first step finds them.
 *
 * FSDP_CUDA_ATTENTION=cudnn (the default) | deterministic (cuDNN, and gradients that are the same
 * bits in every run) | plain
 *
 * Each way that is taken, and why it is not cuDNN's, is logged once.
 */
#include <pthread.h>

#include "nn_cuda.h"
#if HAVE_CUDNN
#include "cudnn_attention.h"
#endif

enum { MOST_REASONS = 16 };

/* Reasons are constants, so that their addresses tell them apart. */
static void tell_reason(const char *why)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const char *told[MOST_REASONS];
    static int ntold;
    bool is_new = true;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < ntold; i++)
        is_new &= told[i] != why;
    is_new &= ntold < MOST_REASONS;
    if (is_new)
        told[ntold++] = why;
    pthread_mutex_unlock(&lock);
    if (is_new && why)
        fsdp_log(FSDP_LOG_INFO,
                 "attention: plain kernels, without tensor cores and slow, because of: %s", why);
    else if (is_new)
        fsdp_log(FSDP_LOG_INFO, "attention: cuDNN's kernels");
}

static bool takes_cudnn(const struct fsdp_lane *lane, const struct nn_attention *a)
{
    const char *why = nn_cuda_beyond_cudnn(a);
#if HAVE_CUDNN
    if (!why && nn_cuda_attention_chosen() == NN_CUDA_PLAIN)
        why = "FSDP_CUDA_ATTENTION=plain";
    else if (!why && !cudnn_attention_can(lane, a))
        why = "a batch of another shape than planned, or no plan of cuDNN for it";
#else
    (void)lane;
    why = why ? why : "a build without cuDNN";
#endif
    tell_reason(why);
    return !why;
}

size_t nn_cuda_attention_work_nelem(const struct nn_attention *shape)
{
    const size_t plain = nn_cuda_plain_attention_work_nelem(shape);
#if HAVE_CUDNN
    const enum nn_cuda_attention chosen = nn_cuda_attention_chosen();
    const size_t planned = chosen == NN_CUDA_PLAIN || nn_cuda_beyond_cudnn(shape)
                               ? 0
                               : cudnn_attention_plan(shape, chosen == NN_CUDA_DETERMINISTIC);
    return planned > plain ? planned : plain;
#else
    return plain;
#endif
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
