/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who computes attention: cuDNN where plans were made for the shape, else the plain kernels. Plans
 * are made when a model asks how much work memory it must plan, so that the first step finds them.
 *
 * FSDP_CUDA_ATTENTION=cudnn (the default) | deterministic (cuDNN, and gradients that are the same
 * bits in every run) | plain
 */
#include <stdlib.h>
#include <string.h>

#include "nn_cuda.h"
#if HAVE_CUDNN
#include "cudnn_attention.h"

static bool chosen(const char *word)
{
    const char *text = getenv("FSDP_CUDA_ATTENTION");
    return text && !strcmp(text, word);
}
#endif

size_t nn_cuda_attention_work_nelem(const struct nn_attention *shape)
{
    const size_t plain = nn_cuda_plain_attention_work_nelem(shape);
#if HAVE_CUDNN
    const size_t planned =
        chosen("plain") ? 0 : cudnn_attention_plan(shape, chosen("deterministic"));
    return planned > plain ? planned : plain;
#else
    return plain;
#endif
}

int nn_cuda_attention_forward(struct fsdp_lane *lane, const struct nn_attention *args,
                              struct fsdp_err *err)
{
#if HAVE_CUDNN
    if (cudnn_attention_can(lane, args))
        return cudnn_attention_forward(lane, args, err);
#endif
    return nn_cuda_plain_attention_forward(lane, args, err);
}

int nn_cuda_attention_backward(struct fsdp_lane *lane, const struct nn_attention *args,
                               struct fsdp_err *err)
{
#if HAVE_CUDNN
    if (cudnn_attention_can(lane, args))
        return cudnn_attention_backward(lane, args, err);
#endif
    return nn_cuda_plain_attention_backward(lane, args, err);
}
