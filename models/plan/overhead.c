/* SPDX-License-Identifier: Apache-2.0 */
#include "overhead.h"
#include "nn/cuda_sizes.h"

/* As fsdp_mesh_create makes them: of all ranks; gathers and reductions; between replicas; in
 * backward; over the nodes. Those of one rank are not NCCL's. */
static uint64_t communicators(struct fsdp_mesh_shape s)
{
    const bool sharded = s.shard_size > 1, replicated = s.replicate_size > 1;
    return (uint64_t)(sharded || replicated) + (sharded ? 2 : 0) + replicated +
           (s.regather_size > 1) + (s.inner_size ? 2 : 0);
}

int plan_overhead(struct plan_overhead *rows, int max, struct fsdp_mesh_shape shape)
{
    const struct plan_overhead all[] = {
        {"scratch of the lane that computes", NN_CUDA_SCRATCH_NBYTES, "in the code"},
        {"CUDA's context, code and handles", 580000000, "measured on one H200, without NCCL"},
        {"NCCL's buffers", communicators(shape) * ((uint64_t)384 << 20),
         "assumed: 384 MiB a communicator"}};
    const int n = communicators(shape) ? 3 : 2;

    for (int i = 0; i < n && i < max; i++)
        rows[i] = all[i];
    return n;
}
