/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuDNN on the CPU: a plan executes its graph operation by operation, with sums in fp64, and rounds
 * each tensor to its type. It is stricter than the library: what a packed document has past its
 * positions is NaN, and so is what a product was told not to compute, so that a mask that is
 * missing shows; work memory is NaN before a run.
 *
 * What cuDNN 9.19 refuses (tests/simt/cudnn_plans.sh asks the real one) is refused when a plan is
 * made. A tensor of more heads that is summed into one with the same begins begins where that one
 * does, times the heads of a group, as in NVIDIA's frontend.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cudnn.h"
#include "fsdp/base.h"

enum { MOST_OPS = 64, MOST_VALUES = 64, MOST_TENSORS = 256, WORKSPACE_NBYTES = 512 };

struct simt_cudnn_handle {
    cudaStream_t stream;
};

/* Attributes as they were set. */
struct simt_cudnn_desc {
    cudnnBackendDescriptorType_t type;
    bool is_final;
    struct {
        int64_t count;
        void *values;
    } attr[SIMT_CUDNN_NATTRS];
    struct graph *graph; /* of a plan */
};
typedef const struct simt_cudnn_desc *desc_t;

/* A copy that outlives the descriptors. */
struct tensor {
    desc_t from;
    int64_t dim[4], stride[4], uid;
    cudnnDataType_t type;
    bool is_virtual, is_value;
    int ragged;     /* a tensor, -1: none */
    int64_t factor; /* of its begins */
};
struct op {
    cudnnBackendDescriptorType_t type;
    cudnnPointwiseMode_t mode;
    cudnnReduceTensorOp_t reduce;
    int64_t axis;
    double probability;      /* of a random 1 */
    int in[3], out, size[3]; /* tensors, -1: none; size: m, n, k of a product */
};
struct graph {
    struct tensor tensor[MOST_TENSORS];
    struct op op[MOST_OPS];
    int ntensors, nops, references;
};

static size_t version = 91900;
static int capability = 90, nmade, nrun;
static char problem[120];

void simt_cudnn_set(size_t v, int c)
{
    version = v;
    capability = c;
}

int simt_cudnn_nmade(void)
{
    return nmade;
}

int simt_cudnn_nrun(void)
{
    return nrun;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

size_t cudnnGetVersion(void)
{
    return version;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
           : status                             ? "CUDNN_STATUS_BAD_PARAM"
                                                : "CUDNN_STATUS_SUCCESS";
}

void cudnnGetLastErrorString(char *text, size_t most)
{
    snprintf(text, most, "%s", problem);
}

static cudnnStatus_t refuse(cudnnStatus_t status, const char *why)
{
    snprintf(problem, sizeof problem, "%s", why);
    return status;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    static struct simt_cudnn_handle one;
    *handle = &one;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *desc)
{
    if (!(*desc = calloc(1, sizeof **desc)))
        abort();
    (*desc)->type = type;
    return CUDNN_STATUS_SUCCESS;
}

static void let_go(struct graph *g)
{
    if (g && --g->references == 0)
        free(g);
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t desc)
{
    for (int i = 0; i < SIMT_CUDNN_NATTRS; i++)
        free(desc->attr[i].values);
    let_go(desc->graph);
    free(desc);
    return CUDNN_STATUS_SUCCESS;
}

static size_t nbytes_of(cudnnBackendAttributeType_t type)
{
    return type == CUDNN_TYPE_BOOLEAN ? sizeof(bool) : type <= CUDNN_TYPE_DOUBLE ? 8 : sizeof(int);
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t desc,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values)
{
    if (!desc || desc->is_final || count < 1 || count > MOST_VALUES)
        return refuse(CUDNN_STATUS_BAD_PARAM, "an attribute of a final descriptor, or too many");
    free(desc->attr[name].values);
    if (!(desc->attr[name].values = malloc((size_t)count * nbytes_of(type))))
        abort();
    memcpy(desc->attr[name].values, values, (size_t)count * nbytes_of(type));
    desc->attr[name].count = count;
    return CUDNN_STATUS_SUCCESS;
}

static desc_t child(desc_t d, cudnnBackendAttributeName_t name)
{
    return d->attr[name].values ? *(desc_t *)d->attr[name].values : NULL;
}

static int word(desc_t d, cudnnBackendAttributeName_t name)
{
    return d->attr[name].values ? *(int *)d->attr[name].values : 0;
}

static int64_t number(desc_t d, cudnnBackendAttributeName_t name, int64_t otherwise)
{
    return d->attr[name].values ? *(int64_t *)d->attr[name].values : otherwise;
}

static bool flag(desc_t d, cudnnBackendAttributeName_t name)
{
    return d->attr[name].values && *(bool *)d->attr[name].values;
}

/* ---- a graph --------------------------------------------------------------------------------- */

static int tensor_of(struct graph *g, desc_t d)
{
    if (!d)
        return -1;
    for (int i = 0; i < g->ntensors; i++)
        if (g->tensor[i].from == d)
            return i;
    if (g->ntensors == MOST_TENSORS)
        abort();
    const int ragged = tensor_of(g, child(d, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC));
    struct tensor *t = &g->tensor[g->ntensors];
    *t = (struct tensor){.from = d,
                         .uid = number(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0),
                         .type = (cudnnDataType_t)word(d, CUDNN_ATTR_TENSOR_DATA_TYPE),
                         .is_virtual = flag(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL),
                         .is_value = flag(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE),
                         .ragged = ragged,
                         .factor = 1};
    memcpy(t->dim, d->attr[CUDNN_ATTR_TENSOR_DIMENSIONS].values, sizeof t->dim);
    memcpy(t->stride, d->attr[CUDNN_ATTR_TENSOR_STRIDES].values, sizeof t->stride);
    return g->ntensors++;
}

static struct op op_of(struct graph *g, desc_t d)
{
    struct op op = {.type = d->type, .in = {-1, -1, -1}, .out = -1, .size = {-1, -1, -1}};
    const cudnnBackendAttributeName_t in[][3] = {
        {CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC, 0},
        {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
         CUDNN_ATTR_OPERATION_POINTWISE_TDESC},
        {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, 0, 0},
        {CUDNN_ATTR_OPERATION_RESHAPE_XDESC, 0, 0},
        {CUDNN_ATTR_OPERATION_RNG_SEED, CUDNN_ATTR_OPERATION_RNG_OFFSET_DESC, 0}};
    const cudnnBackendAttributeName_t out[] = {
        CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
        CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_ATTR_OPERATION_RESHAPE_YDESC,
        CUDNN_ATTR_OPERATION_RNG_YDESC};
    const int kind = (int)d->type - CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR;
    desc_t how = child(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);

    for (int i = 0; i < 3; i++)
        op.in[i] = in[kind][i] ? tensor_of(g, child(d, in[kind][i])) : -1;
    op.out = tensor_of(g, child(d, out[kind]));
    for (int i = 0; i < 3; i++)
        op.size[i] = tensor_of(g, child(d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC +
                                               (cudnnBackendAttributeName_t)i));
    if (how) {
        op.mode = (cudnnPointwiseMode_t)word(how, CUDNN_ATTR_POINTWISE_MODE);
        op.axis = number(how, CUDNN_ATTR_POINTWISE_AXIS, -1);
    }
    if ((how = child(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC)))
        op.reduce = (cudnnReduceTensorOp_t)word(how, CUDNN_ATTR_REDUCTION_OPERATOR);
    if ((how = child(d, CUDNN_ATTR_OPERATION_RNG_DESC)))
        op.probability = *(double *)how->attr[CUDNN_ATTR_RNG_BERNOULLI_DIST_PROBABILITY].values;
    return op;
}

static struct graph *graph_of(desc_t d)
{
    struct graph *g = calloc(1, sizeof *g);
    const int64_t nops = d->attr[CUDNN_ATTR_OPERATIONGRAPH_OPS].count;
    desc_t *ops = d->attr[CUDNN_ATTR_OPERATIONGRAPH_OPS].values;

    if (!g || nops > MOST_OPS)
        abort();
    g->references = 1;
    for (int i = 0; i < nops; i++)
        g->op[g->nops++] = op_of(g, ops[i]);
    for (int i = 0; i < g->nops; i++)
        if (g->op[i].type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) {
            struct tensor *x = &g->tensor[g->op[i].in[0]], *y = &g->tensor[g->op[i].out];
            if (x->ragged >= 0 && x->ragged == y->ragged)
                x->factor = x->stride[2] / y->stride[2];
        }
    return g;
}

/* ---- what cuDNN refuses ---------------------------------------------------------------------- */

static bool is_matmul(const struct op *op)
{
    return op->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR;
}

static cudnnStatus_t check_graph(const struct graph *g)
{
    int nmatmuls = 0, nmemory = 0, nragged = 0;
    bool accumulates = false, has_lengths = true;
    int64_t D = 0;

    for (int i = 0; i < g->nops; i++)
        if (is_matmul(&g->op[i])) {
            nmatmuls++;
            D = g->tensor[g->op[i].out].dim[3]; /* the last one gives o, or the gradient of q */
            has_lengths &=
                g->op[i].size[0] >= 0 && (g->op[i].size[1] >= 0 || g->op[i].size[2] >= 0);
        }
    for (int i = 0; i < g->ntensors; i++) {
        const struct tensor *t = &g->tensor[i];
        const bool narrow = t->type == CUDNN_DATA_BFLOAT16 || t->type == CUDNN_DATA_HALF;
        nmemory += narrow && !t->is_virtual;
        nragged += narrow && !t->is_virtual && t->ragged >= 0;
        accumulates |= t->type == CUDNN_DATA_FLOAT && !t->is_virtual && t->dim[3] > 1;
    }
    const bool backward = nmatmuls > 2;
    if (D % 8)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "heads of no multiple of 8");
    if (D > (backward && capability / 10 != 9 ? 128 : 256))
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "heads too long");
    if (nragged && nragged != nmemory)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "some tensors are ragged, others are not");
    if (nragged && !has_lengths)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "ragged without lengths");
    if (nragged && backward && !accumulates && capability < 90)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "deterministic and ragged before 9.0");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d)
{
    if (!d || d->is_final)
        return refuse(CUDNN_STATUS_BAD_PARAM, "a descriptor that is final");
    d->is_final = true;
    if (d->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
        return CUDNN_STATUS_SUCCESS;
    d->graph = graph_of(child(child(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG),
                              CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
    const cudnnStatus_t s = check_graph(d->graph);
    nmade += !s;
    return s;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t most,
                                       int64_t *count, void *values)
{
    (void)type;
    if (!d->is_final || most < 1)
        return refuse(CUDNN_STATUS_BAD_PARAM, "asked before it is final");
    *count = 1;
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
        *(int64_t *)values = WORKSPACE_NBYTES;
        return CUDNN_STATUS_SUCCESS;
    }
    if (name != CUDNN_ATTR_ENGINEHEUR_RESULTS)
        return refuse(CUDNN_STATUS_BAD_PARAM, "an unknown attribute");
    desc_t graph = child(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    return cudnnBackendSetAttribute(*(cudnnBackendDescriptor_t *)values,
                                    CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Values of tensors, dense in the order of their dimensions. */
struct run {
    struct graph *g;
    const void *at[MOST_TENSORS]; /* in memory */
    float scalar[MOST_TENSORS];
    float *value[MOST_TENSORS];
    void *workspace;
};

static size_t nelem_of(const struct tensor *t)
{
    return (size_t)(t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3]);
}

static float rounded(float x, cudnnDataType_t type)
{
    return type == CUDNN_DATA_BFLOAT16 ? fsdp_bf16_to_f32(fsdp_f32_to_bf16(x))
           : type == CUDNN_DATA_HALF   ? fsdp_f16_to_f32(fsdp_f32_to_f16(x))
                                       : x;
}

static float load(const void *at, cudnnDataType_t type, int64_t i)
{
    const uint16_t *narrow = at;
    return type == CUDNN_DATA_FLOAT      ? ((const float *)at)[i]
           : type == CUDNN_DATA_INT32    ? (float)((const int32_t *)at)[i]
           : type == CUDNN_DATA_BFLOAT16 ? fsdp_bf16_to_f32(narrow[i])
                                         : fsdp_f16_to_f32(narrow[i]);
}

static void store(void *at, cudnnDataType_t type, int64_t i, float x)
{
    if (type == CUDNN_DATA_FLOAT)
        ((float *)at)[i] = x;
    else
        ((uint16_t *)at)[i] =
            type == CUDNN_DATA_BFLOAT16 ? fsdp_f32_to_bf16(x) : fsdp_f32_to_f16(x);
}

/* The dimension of positions. */
static int positions_of(const struct tensor *t)
{
    return t->stride[3] > t->stride[2] ? 3 : 2;
}

/* Calls fn for each element that is in memory: its place there, and its index. */
static void each_in_memory(const struct run *r, int i,
                           void (*fn)(const struct run *, int, int64_t, size_t))
{
    const struct tensor *t = &r->g->tensor[i];
    const int32_t *begins = t->ragged >= 0 ? r->at[t->ragged] : NULL;
    const int axis = positions_of(t);
    size_t index = 0;

    for (int64_t b = 0; b < t->dim[0]; b++) {
        const int64_t begin = begins ? begins[b] * t->factor : b * t->stride[0];
        const int64_t length =
            begins ? (begins[b + 1] - begins[b]) * t->factor / t->stride[axis] : t->dim[axis];
        for (int64_t h = 0; h < t->dim[1]; h++)
            for (int64_t x = 0; x < t->dim[2]; x++)
                for (int64_t y = 0; y < t->dim[3]; y++, index++)
                    if ((axis == 2 ? x : y) < length)
                        fn(r, i, begin + h * t->stride[1] + x * t->stride[2] + y * t->stride[3],
                           index);
    }
}

static void load_one(const struct run *r, int i, int64_t place, size_t index)
{
    r->value[i][index] = load(r->at[i], r->g->tensor[i].type, place);
}

static void store_one(const struct run *r, int i, int64_t place, size_t index)
{
    store((void *)(uintptr_t)r->at[i], r->g->tensor[i].type, place, r->value[i][index]);
}

static float *new_value(struct run *r, int i)
{
    const size_t nelem = nelem_of(&r->g->tensor[i]);
    float *x = r->value[i] = malloc(nelem * sizeof *x + 1);

    if (!x)
        abort();
    for (size_t k = 0; k < nelem; k++)
        x[k] = NAN;
    return x;
}

static const float *value_of(struct run *r, int i)
{
    if (i < 0 || r->value[i])
        return i < 0 ? NULL : r->value[i];
    if (r->g->tensor[i].is_virtual)
        abort(); /* it is read before it is made */
    float *x = new_value(r, i);
    if (r->g->tensor[i].is_value)
        x[0] = r->scalar[i];
    else
        each_in_memory(r, i, load_one);
    return x;
}

static void keep(struct run *r, int i)
{
    const struct tensor *t = &r->g->tensor[i];

    for (size_t k = 0; k < nelem_of(t); k++)
        r->value[i][k] = rounded(r->value[i][k], t->type);
    if (!t->is_virtual)
        each_in_memory(r, i, store_one);
}

/* The index of a tensor's element, of which dimensions may have fewer, at these of a larger one. */
static size_t index_at(const struct tensor *t, const int64_t at[4], const int64_t dim[4])
{
    int64_t index = 0;
    for (int d = 0; d < 4; d++)
        index = index * t->dim[d] + at[d] / (dim[d] / t->dim[d]);
    return (size_t)index;
}

static void run_matmul(struct run *r, const struct op *op)
{
    const struct tensor *a = &r->g->tensor[op->in[0]], *b = &r->g->tensor[op->in[1]];
    const struct tensor *c = &r->g->tensor[op->out];
    const float *x = value_of(r, op->in[0]), *y = value_of(r, op->in[1]);
    const float *size[3];
    float *z = new_value(r, op->out);

    for (int i = 0; i < 3; i++)
        size[i] = value_of(r, op->size[i]);
    for (int64_t n = 0; n < c->dim[0] * c->dim[1]; n++) {
        const int64_t batch = n / c->dim[1], head = n % c->dim[1];
        const float *xn =
            x + (batch * a->dim[1] + head * a->dim[1] / c->dim[1]) * a->dim[2] * a->dim[3];
        const float *yn =
            y + (batch * b->dim[1] + head * b->dim[1] / c->dim[1]) * b->dim[2] * b->dim[3];
        const int64_t m = size[0] ? (int64_t)size[0][batch] : c->dim[2];
        const int64_t cols = size[1] ? (int64_t)size[1][batch] : c->dim[3];
        const int64_t k = size[2] ? (int64_t)size[2][batch] : a->dim[3];
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < cols; j++) {
                double sum = 0;
                for (int64_t l = 0; l < k; l++)
                    sum += (double)xn[i * a->dim[3] + l] * (double)yn[l * b->dim[3] + j];
                z[(n * c->dim[2] + i) * c->dim[3] + j] = (float)sum;
            }
    }
    keep(r, op->out);
}

static float apply(const struct op *op, float x, float b, float t)
{
    switch (op->mode) {
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_EXP:
        return expf(x);
    case CUDNN_POINTWISE_LOG:
        return logf(x);
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b;
    case CUDNN_POINTWISE_CMP_GT:
        return x > b;
    case CUDNN_POINTWISE_CMP_LT:
        return x < b;
    case CUDNN_POINTWISE_LOGICAL_AND:
        return x != 0 && b != 0;
    case CUDNN_POINTWISE_BINARY_SELECT:
        return t != 0 ? x : b;
    default:
        return x;
    }
}

static void run_pointwise(struct run *r, const struct op *op)
{
    const struct tensor *out = &r->g->tensor[op->out];
    const bool counts = op->mode == CUDNN_POINTWISE_GEN_INDEX;
    const float *in[3];
    float *y;
    int64_t at[4];
    size_t index = 0;

    for (int i = 0; i < 3; i++)
        in[i] = counts ? NULL : value_of(r, op->in[i]);
    y = new_value(r, op->out);
    for (at[0] = 0; at[0] < out->dim[0]; at[0]++)
        for (at[1] = 0; at[1] < out->dim[1]; at[1]++)
            for (at[2] = 0; at[2] < out->dim[2]; at[2]++)
                for (at[3] = 0; at[3] < out->dim[3]; at[3]++, index++) {
                    float x[3] = {0};
                    for (int i = 0; i < 3; i++)
                        if (in[i])
                            x[i] = in[i][index_at(&r->g->tensor[op->in[i]], at, out->dim)];
                    y[index] = counts ? (float)at[op->axis] : apply(op, x[0], x[1], x[2]);
                }
    keep(r, op->out);
}

static void run_reduce(struct run *r, const struct op *op)
{
    const struct tensor *in = &r->g->tensor[op->in[0]], *out = &r->g->tensor[op->out];
    const float *x = value_of(r, op->in[0]);
    float *y = new_value(r, op->out);
    int64_t at[4];
    size_t index = 0;
    bool *seen = calloc(nelem_of(out) + 1, sizeof *seen);

    if (!seen)
        abort();
    for (at[0] = 0; at[0] < in->dim[0]; at[0]++)
        for (at[1] = 0; at[1] < in->dim[1]; at[1]++)
            for (at[2] = 0; at[2] < in->dim[2]; at[2]++)
                for (at[3] = 0; at[3] < in->dim[3]; at[3]++, index++) {
                    const size_t to = index_at(out, at, in->dim);
                    y[to] = !seen[to]                               ? x[index]
                            : op->reduce == CUDNN_REDUCE_TENSOR_ADD ? y[to] + x[index]
                            : x[index] > y[to] || isnan(x[index])   ? x[index]
                                                                    : y[to];
                    seen[to] = true;
                }
    free(seen);
    keep(r, op->out);
}

/* The last two dimensions change places. */
static void run_reshape(struct run *r, const struct op *op)
{
    const struct tensor *in = &r->g->tensor[op->in[0]], *out = &r->g->tensor[op->out];
    const float *x = value_of(r, op->in[0]);
    float *y = new_value(r, op->out);

    if (in->dim[2] != out->dim[3] || in->dim[3] != out->dim[2] || in->ragged != out->ragged)
        abort();
    for (int64_t n = 0; n < in->dim[0] * in->dim[1]; n++)
        for (int64_t i = 0; i < in->dim[2]; i++)
            for (int64_t j = 0; j < in->dim[3]; j++)
                y[(n * in->dim[3] + j) * in->dim[2] + i] = x[(n * in->dim[2] + i) * in->dim[3] + j];
    keep(r, op->out);
}

/* A bit of a hash of seed, offset and place. */
static void run_rng(struct run *r, const struct op *op)
{
    const uint64_t seed = *(const uint64_t *)r->at[op->in[0]];
    const uint64_t offset = *(const uint64_t *)r->at[op->in[1]];
    float *y = new_value(r, op->out);

    for (uint64_t i = 0; i < nelem_of(&r->g->tensor[op->out]); i++) {
        const uint64_t place[] = {seed, offset, i};
        const uint64_t x = fsdp_hash(~FSDP_HASH_SEED, place, sizeof place) * 0x9e3779b97f4a7c15;
        y[i] = (double)(x >> 11) * 0x1p-53 < op->probability;
    }
    keep(r, op->out);
}

static void run_op(struct run *r, const struct op *op)
{
    switch (op->type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        run_matmul(r, op);
        return;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        run_pointwise(r, op);
        return;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        run_reduce(r, op);
        return;
    case CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR:
        run_rng(r, op);
        return;
    default:
        run_reshape(r, op);
    }
}

static void run_graph(void *arg)
{
    struct run *r = *(struct run **)arg;

    memset(r->workspace, 0xff, WORKSPACE_NBYTES);
    for (int i = 0; i < r->g->nops; i++)
        run_op(r, &r->g->op[i]);
    for (int i = 0; i < r->g->ntensors; i++)
        free(r->value[i]);
    let_go(r->g);
    free(r);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    const int64_t n = pack->attr[CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS].count;
    const int64_t *uid = pack->attr[CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS].values;
    void *const *at = pack->attr[CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS].values;
    struct run *r = calloc(1, sizeof *r);

    if (!r)
        abort();
    r->g = plan->graph;
    r->workspace = *(void **)pack->attr[CUDNN_ATTR_VARIANT_PACK_WORKSPACE].values;
    for (int i = 0; i < r->g->ntensors; i++) {
        const struct tensor *t = &r->g->tensor[i];
        for (int k = 0; k < n; k++)
            if (!t->is_virtual && uid[k] == t->uid)
                r->at[i] = at[k];
        if (t->is_virtual)
            continue;
        if (!r->at[i] || (!t->is_value && (uintptr_t)r->at[i] % 16)) {
            free(r);
            return refuse(CUDNN_STATUS_BAD_PARAM, "a tensor without memory, or badly aligned");
        }
        if (t->is_value) /* the host's memory, as it is now */
            r->scalar[i] = load(r->at[i], t->type, 0);
        else
            simt_check_pointer(r->at[i], "cuDNN");
    }
    plan->graph->references++;
    nrun++;
    simt_call(handle->stream, run_graph, &r, sizeof r);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- the library ----------------------------------------------------------------------------- */

void *simt_cudnn_open(const char *name, int flags)
{
    (void)flags;
    return strcmp(name, "libcudnn.so.9") ? NULL : &version;
}

void *simt_cudnn_symbol(void *library, const char *name)
{
    static const struct {
        const char *name;
        void *at;
    } symbols[] = {{"cudnnGetVersion", (void *)cudnnGetVersion},
                   {"cudnnGetErrorString", (void *)cudnnGetErrorString},
                   {"cudnnGetLastErrorString", (void *)cudnnGetLastErrorString},
                   {"cudnnCreate", (void *)cudnnCreate},
                   {"cudnnSetStream", (void *)cudnnSetStream},
                   {"cudnnBackendCreateDescriptor", (void *)cudnnBackendCreateDescriptor},
                   {"cudnnBackendDestroyDescriptor", (void *)cudnnBackendDestroyDescriptor},
                   {"cudnnBackendSetAttribute", (void *)cudnnBackendSetAttribute},
                   {"cudnnBackendGetAttribute", (void *)cudnnBackendGetAttribute},
                   {"cudnnBackendFinalize", (void *)cudnnBackendFinalize},
                   {"cudnnBackendExecute", (void *)cudnnBackendExecute}};

    (void)library;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (!strcmp(symbols[i].name, name))
            return symbols[i].at;
    return NULL;
}
