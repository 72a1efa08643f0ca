/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of operations, as cuDNN's backend API takes them, without its C++ frontend. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "cudnn_graph.h"

/* ---- the library ----------------------------------------------------------------------------- */

static struct cudnn_api api;
static struct fsdp_err failure = FSDP_ERR_INIT;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found && !failure.status)
        fsdp_err_set(&failure, FSDP_EUNSUPPORTED, "libcudnn.so.9 has no %s", name);
    return found;
}

static void open_library(void)
{
    void *library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fsdp_err_set(&failure, FSDP_EUNSUPPORTED, "cuDNN 9 cannot be opened: %s", dlerror());
        return;
    }
    api.get_version = symbol(library, "cudnnGetVersion");
    api.error_string = symbol(library, "cudnnGetErrorString");
    api.last_error = symbol(library, "cudnnGetLastErrorString");
    api.create = symbol(library, "cudnnCreate");
    api.set_stream = symbol(library, "cudnnSetStream");
    api.create_descriptor = symbol(library, "cudnnBackendCreateDescriptor");
    api.destroy_descriptor = symbol(library, "cudnnBackendDestroyDescriptor");
    api.set = symbol(library, "cudnnBackendSetAttribute");
    api.get = symbol(library, "cudnnBackendGetAttribute");
    api.finalize = symbol(library, "cudnnBackendFinalize");
    api.execute = symbol(library, "cudnnBackendExecute");
    if (failure.status)
        return;
    const size_t version = api.get_version();
    if (version < 90600 || version == 91000 || version == 91001)
        fsdp_err_set(&failure, FSDP_EUNSUPPORTED,
                     "cuDNN %zu: its attention is not used before 9.6, nor of 9.10.0 and 9.10.1",
                     version);
}

int cudnn_open(const struct cudnn_api **out, struct fsdp_err *err)
{
    pthread_once(&once, open_library);
    if (failure.status) {
        if (err)
            *err = failure;
        return failure.status;
    }
    *out = &api;
    return FSDP_OK;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static void note_status(struct graph *g, cudnnStatus_t status, const char *what)
{
    char why[160] = "";
    if (g->status || !status)
        return;
    g->status = status;
    g->api->last_error(why, sizeof why);
    why[sizeof why - 1] = 0;
    snprintf(g->text, sizeof g->text, "cuDNN, %s: %s %s", what, g->api->error_string(status), why);
}

static cudnnBackendDescriptor_t create(struct graph *g, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t desc = NULL;
    if (g->status)
        return NULL;
    note_status(g, g->api->create_descriptor(type, &desc), "descriptor");
    if (desc)
        g->desc[g->ndescs++] = desc;
    return desc;
}

static void set_attribute(struct graph *g, cudnnBackendDescriptor_t desc,
                          cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                          int64_t count, const void *values)
{
    if (!g->status)
        note_status(g, g->api->set(desc, name, type, count, values), "attribute");
}

static void set_desc(struct graph *g, cudnnBackendDescriptor_t desc,
                     cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value)
{
    set_attribute(g, desc, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void set_type(struct graph *g, cudnnBackendDescriptor_t desc,
                     cudnnBackendAttributeName_t name, cudnnDataType_t type)
{
    set_attribute(g, desc, name, CUDNN_TYPE_DATA_TYPE, 1, &type);
}

static void finalize(struct graph *g, cudnnBackendDescriptor_t desc, const char *what)
{
    if (!g->status)
        note_status(g, g->api->finalize(desc), what);
}

static void finalize_op(struct graph *g, cudnnBackendDescriptor_t op, const char *what)
{
    finalize(g, op, what);
    if (!g->status)
        g->op[g->nops++] = op;
}

graph_tensor graph_tensor_new(struct graph *g, enum graph_kind kind, int64_t uid,
                              cudnnDataType_t type, struct graph_shape shape)
{
    const int64_t alignment = 16, own = kind == GRAPH_VIRTUAL ? ++g->next_uid + 1000 : uid;
    const bool yes = true;
    cudnnBackendDescriptor_t t = create(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);

    set_type(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    set_attribute(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape.dim);
    set_attribute(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, shape.stride);
    set_attribute(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &own);
    set_attribute(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    if (shape.ragged)
        set_desc(g, t, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, shape.ragged);
    if (kind == GRAPH_VIRTUAL)
        set_attribute(g, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (kind == GRAPH_VALUE)
        set_attribute(g, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    finalize(g, t, "tensor");
    return t;
}

void graph_matmul(struct graph *g, graph_tensor a, graph_tensor b, graph_tensor c,
                  struct graph_sizes sizes)
{
    cudnnBackendDescriptor_t matmul = create(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set_type(g, matmul, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    finalize(g, matmul, "product");
    cudnnBackendDescriptor_t op = create(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, matmul);
    if (sizes.m)
        set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, sizes.m);
    if (sizes.n)
        set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, sizes.n);
    if (sizes.k)
        set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, sizes.k);
    finalize_op(g, op, "operation of a product");
}

void graph_pointwise(struct graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t math, int64_t axis,
                     graph_tensor x, graph_tensor b, graph_tensor t, graph_tensor y)
{
    cudnnBackendDescriptor_t how = create(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set_attribute(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_type(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, math);
    if (axis >= 0)
        set_attribute(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finalize(g, how, "pointwise");
    cudnnBackendDescriptor_t op = create(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b)
        set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (t)
        set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    finalize_op(g, op, "pointwise operation");
}

void graph_reduce(struct graph *g, cudnnReduceTensorOp_t how, graph_tensor x, graph_tensor y)
{
    cudnnBackendDescriptor_t reduction = create(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set_attribute(g, reduction, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
                  1, &how);
    set_type(g, reduction, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    finalize(g, reduction, "reduction");
    cudnnBackendDescriptor_t op = create(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction);
    finalize_op(g, op, "operation of a reduction");
}

void graph_bernoulli(struct graph *g, graph_tensor seed, graph_tensor offset, double probability,
                     graph_tensor y)
{
    const cudnnRngDistribution_t distribution = CUDNN_RNG_DISTRIBUTION_BERNOULLI;
    cudnnBackendDescriptor_t rng = create(g, CUDNN_BACKEND_RNG_DESCRIPTOR);
    set_attribute(g, rng, CUDNN_ATTR_RNG_DISTRIBUTION, CUDNN_TYPE_RNG_DISTRIBUTION, 1,
                  &distribution);
    set_attribute(g, rng, CUDNN_ATTR_RNG_BERNOULLI_DIST_PROBABILITY, CUDNN_TYPE_DOUBLE, 1,
                  &probability);
    finalize(g, rng, "random numbers");
    cudnnBackendDescriptor_t op = create(g, CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RNG_YDESC, y);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RNG_DESC, rng);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RNG_SEED, seed);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RNG_OFFSET_DESC, offset);
    finalize_op(g, op, "operation of random numbers");
}

void graph_reshape(struct graph *g, graph_tensor x, graph_tensor y)
{
    cudnnBackendDescriptor_t op = create(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    finalize_op(g, op, "reshape");
}

/* ---- plans ----------------------------------------------------------------------------------- */

enum { MOST_CONFIGS = 8 };

static int failed(const struct graph *g, struct fsdp_err *err)
{
    return g->status ? fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s", g->text) : FSDP_OK;
}

static int configs(cudnnBackendDescriptor_t out[MOST_CONFIGS], int64_t *nfound, struct graph *g,
                   cudnnHandle_t handle, cudnnBackendDescriptor_t deviceprop)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    cudnnBackendDescriptor_t all = create(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set_attribute(g, all, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->nops,
                  g->op);
    if (handle)
        set_attribute(g, all, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finalize(g, all, "graph");
    cudnnBackendDescriptor_t heur = create(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_desc(g, heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, all);
    set_attribute(g, heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (deviceprop)
        set_desc(g, heur, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, deviceprop);
    finalize(g, heur, "heuristics");
    for (int i = 0; i < MOST_CONFIGS; i++)
        out[i] = create(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!g->status)
        note_status(g,
                    g->api->get(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                MOST_CONFIGS, nfound, out),
                    "asking heuristics");
    if (!g->status && !*nfound)
        note_status(g, CUDNN_STATUS_NOT_SUPPORTED, "no engine for this graph");
    return g->status ? -1 : 0;
}

static cudnnStatus_t make(cudnnBackendDescriptor_t plan, struct graph *g, cudnnHandle_t handle,
                          cudnnBackendDescriptor_t config, cudnnBackendDescriptor_t deviceprop)
{
    cudnnStatus_t s = CUDNN_STATUS_SUCCESS;
    if (handle)
        s = g->api->set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    s = s ? s
          : g->api->set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                        CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
    if (!s && deviceprop)
        s = g->api->set(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                        1, &deviceprop);
    return s ? s : g->api->finalize(plan);
}

int graph_plan(cudnnBackendDescriptor_t *plan, int64_t *workspace_nbytes, struct graph *g,
               cudnnHandle_t handle, cudnnBackendDescriptor_t deviceprop, struct fsdp_err *err)
{
    cudnnBackendDescriptor_t config[MOST_CONFIGS];
    int64_t nfound = 0, count;

    *plan = NULL;
    if (configs(config, &nfound, g, handle, deviceprop))
        return failed(g, err);
    for (int64_t i = 0; i < nfound; i++) {
        g->status = CUDNN_STATUS_SUCCESS;
        note_status(g, g->api->create_descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, plan),
                    "plan");
        if (g->status)
            break;
        note_status(g, make(*plan, g, handle, config[i], deviceprop), "making a plan");
        if (!g->status)
            note_status(g,
                        g->api->get(*plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                    CUDNN_TYPE_INT64, 1, &count, workspace_nbytes),
                        "workspace");
        if (!g->status)
            return FSDP_OK;
        g->api->destroy_descriptor(*plan);
        *plan = NULL;
    }
    return failed(g, err);
}

void graph_close(struct graph *g)
{
    for (int i = 0; i < g->ndescs; i++)
        g->api->destroy_descriptor(g->desc[i]);
    g->ndescs = g->nops = 0;
}
