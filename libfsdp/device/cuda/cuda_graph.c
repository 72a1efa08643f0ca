/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA graphs of a lane's work. The capture is the calling thread's alone: other threads may
 * allocate and ask for events meanwhile.
 *
 * A capture that fails leaves the stream as it was before it, and nothing has run. Hence its errors
 * are not the lane's, and the caller can enqueue the same work without a graph.
 */
#include "cuda_lane.h"

struct graph {
    cudaGraphExec_t exec;
    int ordinal;
};

int device_cuda_capture_begin(void *lane, struct fsdp_err *err)
{
    struct cuda_lane *l = lane;

    FSDP_TRY(cuda_lane_refuse(l, "another graph", err));
    FSDP_TRY(device_cuda_enter(l, err));
    FSDP_TRY(
        fsdp_cuda_check((int)cudaStreamBeginCapture(l->stream, cudaStreamCaptureModeThreadLocal),
                        err, "lane %s: beginning a graph", l->name));
    l->captures = true;
    return FSDP_OK;
}

static int instantiate(void **out, const struct cuda_lane *l, cudaGraph_t captured,
                       struct fsdp_err *err)
{
    struct graph *g = fsdp_alloc(1, sizeof *g, "cuda graph", err);

    if (!g)
        return FSDP_ENOMEM;
    g->ordinal = l->device->ordinal;
    const int rc = fsdp_cuda_check((int)cudaGraphInstantiateWithFlags(&g->exec, captured, 0), err,
                                   "lane %s: making a graph", l->name);
    if (rc) {
        fsdp_free(g);
        return rc;
    }
    *out = g;
    return FSDP_OK;
}

int device_cuda_capture_end(void **out, void *lane, struct fsdp_err *err)
{
    struct cuda_lane *l = lane;
    cudaGraph_t captured = NULL;

    *out = NULL;
    l->captures = false;
    int rc = fsdp_cuda_check((int)cudaStreamEndCapture(l->stream, &captured), err,
                             "lane %s: capturing a graph", l->name);
    if (!rc)
        rc = instantiate(out, l, captured, err);
    if (captured)
        cudaGraphDestroy(captured);
    return rc;
}

int device_cuda_graph_launch(void *graph, void *lane, struct fsdp_err *err)
{
    const struct graph *g = graph;
    struct cuda_lane *l = lane;

    FSDP_TRY(cuda_lane_refuse(l, "another graph", err));
    FSDP_TRY(device_cuda_enter(l, err));
    return cuda_lane_check(l, cudaGraphLaunch(g->exec, l->stream), "launching a graph", err);
}

void device_cuda_graph_destroy(void *graph)
{
    struct graph *g = graph;

    cudaSetDevice(g->ordinal);
    cudaGraphExecDestroy(g->exec);
    fsdp_free(g);
}
