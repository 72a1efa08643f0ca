/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn_attention.h: attention by cuDNN, for attention.c. */
#ifndef NN_CUDA_CUDNN_ATTENTION_H
#define NN_CUDA_CUDNN_ATTENTION_H

#include "nn_cuda.h"

/* Attention here is causal, of whole sequences or packed documents, as nn_cuda_beyond_cudnn takes
 * it (attention.c asks for no other). */

/* Makes the plans for a shape, on the thread's GPU, and with `packed` those for its documents; says
 * in the log which there are not. Elements of work that they take; 0: none were made. */
size_t cudnn_attention_plan(const struct nn_attention *shape, bool packed);
/* Were plans made for this shape, and is its memory aligned as they need it? */
bool cudnn_attention_can(const struct fsdp_lane *lane, const struct nn_attention *args);
int cudnn_attention_forward(struct fsdp_lane *lane, const struct nn_attention *args,
                            struct fsdp_err *err);
int cudnn_attention_backward(struct fsdp_lane *lane, const struct nn_attention *args,
                             struct fsdp_err *err);

#endif
