/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/nn_cpu.h"

const struct nn_ops nn_cpu_ops = {
    .abi = NN_OPS_ABI,
    .name = "cpu",
    .linear_forward = nn_cpu_linear_forward,
    .linear_backward_input = nn_cpu_linear_backward_input,
    .linear_backward_weight = nn_cpu_linear_backward_weight,
    .embedding_forward = nn_cpu_embedding_forward,
    .embedding_backward = nn_cpu_embedding_backward,
    .rmsnorm_forward = nn_cpu_rmsnorm_forward,
    .rmsnorm_backward = nn_cpu_rmsnorm_backward,
    .rope_table = nn_cpu_rope_table,
    .rope = nn_cpu_rope,
    .attention_work_nelem = nn_cpu_attention_work_nelem,
    .attention_forward = nn_cpu_attention_forward,
    .attention_backward = nn_cpu_attention_backward,
    .swiglu_forward = nn_cpu_swiglu_forward,
    .swiglu_backward = nn_cpu_swiglu_backward,
    .cross_entropy = nn_cpu_cross_entropy,
    .split_tokens = nn_cpu_split_tokens,
};
