/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn_graph.h: cuDNN's backend API, opened at run time, and graphs of operations made with it.
 * Private to models/nn/cuda. */
#ifndef NN_CUDA_CUDNN_GRAPH_H
#define NN_CUDA_CUDNN_GRAPH_H

#include <cudnn.h>

#include "nn_cuda.h"

enum { GRAPH_MOST_OPS = 64, GRAPH_MOST_DESCS = 256 };

/* The library's functions. */
struct cudnn_api {
    __typeof__(cudnnGetVersion) *get_version;
    __typeof__(cudnnGetErrorString) *error_string;
    __typeof__(cudnnGetLastErrorString) *last_error;
    __typeof__(cudnnCreate) *create;
    __typeof__(cudnnSetStream) *set_stream;
    __typeof__(cudnnBackendCreateDescriptor) *create_descriptor;
    __typeof__(cudnnBackendDestroyDescriptor) *destroy_descriptor;
    __typeof__(cudnnBackendSetAttribute) *set;
    __typeof__(cudnnBackendGetAttribute) *get;
    __typeof__(cudnnBackendFinalize) *finalize;
    __typeof__(cudnnBackendExecute) *execute;
};
/* FSDP_EUNSUPPORTED: there is no cuDNN 9, or one with known faults; that is found out once. */
int cudnn_open(const struct cudnn_api **out, struct fsdp_err *err);

/* Fails once: after the first error nothing is done, and the error stays. */
struct graph {
    const struct cudnn_api *api;
    cudnnBackendDescriptor_t op[GRAPH_MOST_OPS], desc[GRAPH_MOST_DESCS];
    int nops, ndescs;
    cudnnStatus_t status;
    char text[256];
    int64_t next_uid; /* of tensors that are in no memory */
};

typedef cudnnBackendDescriptor_t graph_tensor;

/* What a tensor is to the outside. */
enum graph_kind { GRAPH_MEMORY, GRAPH_VIRTUAL, GRAPH_VALUE };
/* ragged: NULL, or where each index of the first dimension begins, in elements. */
struct graph_shape {
    int64_t dim[4], stride[4];
    graph_tensor ragged;
};
/* uid: of MEMORY and VALUE, by which graph_pack's callers name it. */
graph_tensor graph_tensor_new(struct graph *g, enum graph_kind kind, int64_t uid,
                              cudnnDataType_t type, struct graph_shape shape);
/* c (m, n) = a (m, k) b (k, n); what is past these sizes of each index of the first dimension is
 * not read. NULL: sizes are those of the tensors. */
struct graph_sizes {
    graph_tensor m, n, k;
};
void graph_matmul(struct graph *g, graph_tensor a, graph_tensor b, graph_tensor c,
                  struct graph_sizes sizes);
/* b, t: NULL where the mode takes fewer; axis: of GEN_INDEX, else -1. `math`: the type it computes
 * in. */
void graph_pointwise(struct graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t math, int64_t axis,
                     graph_tensor x, graph_tensor b, graph_tensor t, graph_tensor y);
void graph_reduce(struct graph *g, cudnnReduceTensorOp_t op, graph_tensor x, graph_tensor y);
/* y: 1 with this probability, else 0; seed, offset: int64 in memory. */
void graph_bernoulli(struct graph *g, graph_tensor seed, graph_tensor offset, double probability,
                     graph_tensor y);
void graph_reshape(struct graph *g, graph_tensor x, graph_tensor y);

/* The first plan that cuDNN's heuristics name and that can be made; deviceprop: NULL, or what to
 * make it for in place of the handle's GPU. The plan is the caller's. */
int graph_plan(cudnnBackendDescriptor_t *plan, int64_t *workspace_nbytes, struct graph *g,
               cudnnHandle_t handle, cudnnBackendDescriptor_t deviceprop, struct fsdp_err *err);
void graph_close(struct graph *g);

#endif
