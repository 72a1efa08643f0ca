/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who computes attention: cuDNN where plans were made for the shape, else the plain kernels. Plans
 * are made when a model asks how much work memory it must plan, so that the first step finds them.
 *
 * FSDP_CUDA_ATTENTION=cudnn (the default) | deterministic (cuDNN, and gradients that are the same
 * bits in every run) | plain
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "nn_cuda.h"
#if HAVE_CUDNN
#include "cudnn_attention.h"

enum choice { CUDNN, DETERMINISTIC, PLAIN };

static enum choice chosen;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void choose(void)
{
    static const char *const words[] = {"cudnn", "deterministic", "plain"};
    const char *text = getenv("FSDP_CUDA_ATTENTION");

    if (!text || !*text)
        return;
    for (int i = 0; i < 3; i++)
        if (!strcmp(text, words[i])) {
            chosen = (enum choice)i;
            return;
        }
    fsdp_log(FSDP_LOG_WARN,
             "FSDP_CUDA_ATTENTION=%s: takes cudnn, deterministic or plain; cudnn is used", text);
}
#endif

size_t nn_cuda_attention_work_nelem(const struct nn_attention *shape)
{
    const size_t plain = nn_cuda_plain_attention_work_nelem(shape);
#if HAVE_CUDNN
    pthread_once(&once, choose);
    const size_t planned =
        chosen == PLAIN ? 0 : cudnn_attention_plan(shape, chosen == DETERMINISTIC);
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
