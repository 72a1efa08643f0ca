/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of enqueued work. */
#include "device_handles.h"

struct fsdp_graph {
    const struct fsdp_device_ops *ops;
    void *state;
    const void *scratch; /* the lane's, when it was recorded */
};

bool fsdp_lane_captures(const struct fsdp_lane *lane)
{
    return !lane->device->described && lane->device->ops->capture_begin;
}

int fsdp_capture_begin(struct fsdp_lane *lane, struct fsdp_err *err)
{
    if (!fsdp_lane_captures(lane))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "lane %s: its device has no graphs",
                            lane->name);
    return lane->device->ops->capture_begin(lane->state, err);
}

int fsdp_capture_end(struct fsdp_graph **out, struct fsdp_lane *lane, struct fsdp_err *err)
{
    const struct fsdp_device_ops *ops = lane->device->ops;
    void *state = NULL;

    *out = NULL;
    FSDP_TRY(ops->capture_end(&state, lane->state, err));
    struct fsdp_graph *graph = fsdp_alloc(1, sizeof *graph, "graph", err);
    if (!graph) {
        ops->graph_destroy(state);
        return FSDP_ENOMEM;
    }
    *graph = (struct fsdp_graph){ops, state, lane->scratch};
    *out = graph;
    return FSDP_OK;
}

bool fsdp_graph_fits(const struct fsdp_graph *graph, const struct fsdp_lane *lane)
{
    return graph->scratch == lane->scratch;
}

int fsdp_graph_launch(struct fsdp_graph *graph, struct fsdp_lane *lane, struct fsdp_err *err)
{
    return graph->ops->graph_launch(graph->state, lane->state, err);
}

void fsdp_graph_destroy(struct fsdp_graph *graph)
{
    if (graph) {
        graph->ops->graph_destroy(graph->state);
        fsdp_free(graph);
    }
}
