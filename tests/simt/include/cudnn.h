/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn.h: of cuDNN's backend API what this project calls, on the CPU (tests/simt/cudnn/standin.c):
 * a graph of operations is what its descriptors say, taken literally. */
#ifndef SIMT_CUDNN_H
#define SIMT_CUDNN_H

#include <stddef.h>
#include <stdint.h>

#include "cuda_runtime_api.h"

typedef enum {
    CUDNN_STATUS_SUCCESS,
    CUDNN_STATUS_BAD_PARAM,
    CUDNN_STATUS_NOT_SUPPORTED
} cudnnStatus_t;
typedef enum {
    CUDNN_DATA_FLOAT,
    CUDNN_DATA_HALF,
    CUDNN_DATA_BFLOAT16,
    CUDNN_DATA_INT32,
    CUDNN_DATA_INT64,
    CUDNN_DATA_BOOLEAN
} cudnnDataType_t;
typedef enum {
    CUDNN_POINTWISE_ADD,
    CUDNN_POINTWISE_SUB,
    CUDNN_POINTWISE_MUL,
    CUDNN_POINTWISE_DIV,
    CUDNN_POINTWISE_EXP,
    CUDNN_POINTWISE_LOG,
    CUDNN_POINTWISE_IDENTITY,
    CUDNN_POINTWISE_GEN_INDEX,
    CUDNN_POINTWISE_CMP_GE,
    CUDNN_POINTWISE_CMP_GT,
    CUDNN_POINTWISE_CMP_LT,
    CUDNN_POINTWISE_LOGICAL_AND,
    CUDNN_POINTWISE_BINARY_SELECT
} cudnnPointwiseMode_t;
typedef enum { CUDNN_REDUCE_TENSOR_ADD, CUDNN_REDUCE_TENSOR_MAX } cudnnReduceTensorOp_t;
typedef enum { CUDNN_RNG_DISTRIBUTION_BERNOULLI } cudnnRngDistribution_t;
typedef enum { CUDNN_HEUR_MODE_A } cudnnBackendHeurMode_t;
typedef enum {
    CUDNN_BACKEND_TENSOR_DESCRIPTOR,
    CUDNN_BACKEND_MATMUL_DESCRIPTOR,
    CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
    CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
    CUDNN_BACKEND_RNG_DESCRIPTOR,
    CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
    CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
    CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
    CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
    CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR,
    CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
    CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
    CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
    CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
    CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR
} cudnnBackendDescriptorType_t;
typedef enum {
    CUDNN_TYPE_BACKEND_DESCRIPTOR,
    CUDNN_TYPE_HANDLE,
    CUDNN_TYPE_VOID_PTR,
    CUDNN_TYPE_INT64,
    CUDNN_TYPE_DOUBLE,
    CUDNN_TYPE_DATA_TYPE,
    CUDNN_TYPE_POINTWISE_MODE,
    CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
    CUDNN_TYPE_RNG_DISTRIBUTION,
    CUDNN_TYPE_HEUR_MODE,
    CUDNN_TYPE_BOOLEAN
} cudnnBackendAttributeType_t;
typedef enum {
    CUDNN_ATTR_TENSOR_DATA_TYPE,
    CUDNN_ATTR_TENSOR_DIMENSIONS,
    CUDNN_ATTR_TENSOR_STRIDES,
    CUDNN_ATTR_TENSOR_UNIQUE_ID,
    CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT,
    CUDNN_ATTR_TENSOR_IS_VIRTUAL,
    CUDNN_ATTR_TENSOR_IS_BY_VALUE,
    CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC,
    CUDNN_ATTR_MATMUL_COMP_TYPE,
    CUDNN_ATTR_OPERATION_MATMUL_ADESC,
    CUDNN_ATTR_OPERATION_MATMUL_BDESC,
    CUDNN_ATTR_OPERATION_MATMUL_CDESC,
    CUDNN_ATTR_OPERATION_MATMUL_DESC,
    CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC,
    CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC,
    CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC,
    CUDNN_ATTR_POINTWISE_MODE,
    CUDNN_ATTR_POINTWISE_MATH_PREC,
    CUDNN_ATTR_POINTWISE_AXIS,
    CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
    CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
    CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
    CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
    CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
    CUDNN_ATTR_REDUCTION_OPERATOR,
    CUDNN_ATTR_REDUCTION_COMP_TYPE,
    CUDNN_ATTR_OPERATION_REDUCTION_XDESC,
    CUDNN_ATTR_OPERATION_REDUCTION_YDESC,
    CUDNN_ATTR_OPERATION_REDUCTION_DESC,
    CUDNN_ATTR_OPERATION_RESHAPE_XDESC,
    CUDNN_ATTR_OPERATION_RESHAPE_YDESC,
    CUDNN_ATTR_RNG_DISTRIBUTION,
    CUDNN_ATTR_RNG_BERNOULLI_DIST_PROBABILITY,
    CUDNN_ATTR_OPERATION_RNG_YDESC,
    CUDNN_ATTR_OPERATION_RNG_DESC,
    CUDNN_ATTR_OPERATION_RNG_SEED,
    CUDNN_ATTR_OPERATION_RNG_OFFSET_DESC,
    CUDNN_ATTR_OPERATIONGRAPH_OPS,
    CUDNN_ATTR_OPERATIONGRAPH_HANDLE,
    CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
    CUDNN_ATTR_ENGINEHEUR_MODE,
    CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
    CUDNN_ATTR_ENGINEHEUR_RESULTS,
    CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
    CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
    CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
    CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
    CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
    CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
    CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
    SIMT_CUDNN_NATTRS
} cudnnBackendAttributeName_t;

typedef struct simt_cudnn_handle *cudnnHandle_t;
typedef struct simt_cudnn_desc *cudnnBackendDescriptor_t;

size_t cudnnGetVersion(void);
const char *cudnnGetErrorString(cudnnStatus_t status);
void cudnnGetLastErrorString(char *text, size_t most);
cudnnStatus_t cudnnCreate(cudnnHandle_t *handle);
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream);
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *desc);
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t desc);
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t desc,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values);
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t desc,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t most,
                                       int64_t *count, void *values);
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t desc);
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack);

/* ---- beyond cuDNN ---------------------------------------------------------------------------- */

/* dlopen and dlsym of cudnn_graph.c are these. */
void *simt_cudnn_open(const char *name, int flags);
void *simt_cudnn_symbol(void *library, const char *name);
/* What the library is from here on: its version, the GPU's compute capability. At first 91900, 90.
 */
void simt_cudnn_set(size_t version, int capability);
/* Plans that were made, and those that were run. */
int simt_cudnn_nmade(void), simt_cudnn_nrun(void);

#endif
