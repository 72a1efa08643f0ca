// SPDX-License-Identifier: Apache-2.0
// cuBLASLt on the CPU: column-major, as its documentation has it, with sums in fp64. The algorithm
// carries what it was chosen for, so that one for another product, or for better aligned pointers,
// is refused, as the library may refuse it or read past an end.
#include <cmath>
#include <cstring>
#include <vector>

#include "cublasLt.h"
#include "fsdp/base.h"

struct simt_lt_handle {
    int unused;
};
struct simt_lt_desc {
    cublasOperation_t op_a, op_b;
    cublasLtEpilogue_t epilogue;
    void *bias, *aux; // bias: also the gradient of one
    int64_t aux_ld, bias_stride;
    const void *a_scale, *b_scale; // of 8-bit operands
    int32_t a_mode, b_mode;        // cublasLtMatmulMatrixScale_t
};
struct simt_lt_layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
    int32_t batch;
    int64_t stride;
};
struct simt_lt_preference {
    uint64_t workspace;
    uint32_t reduction, alignment[4];
};

namespace
{

struct call {
    simt_lt_desc desc;
    simt_lt_layout a, b, d;
    const void *a_at, *b_at;
    void *d_at;
    float alpha, beta;
    double seconds; // that the algorithm takes
    bool coarse;    // its parts of a sum are added in the type of the output
};

int last, eights, refused, batched;
int scaled[4]; // products with scales of each mode
size_t version = 130000;
int epilogues[1024]; // calls with each
double epilogue_seconds;
// Of the proposals, in the library's order: its first guess is not the best one.
const double proposal_seconds[] = {0.1, 0.01, 0.05};
enum { PROPOSALS = 3 };

float load(const void *at, cudaDataType_t type, uint64_t i)
{
    const uint16_t *narrow = (const uint16_t *)at;
    const uint8_t *code = (const uint8_t *)at;
    if (type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2)
        return type == CUDA_R_8F_E4M3 ? fsdp_f8_e4m3_to_f32(code[i]) : fsdp_f8_e5m2_to_f32(code[i]);
    return type == CUDA_R_32F    ? ((const float *)at)[i]
           : type == CUDA_R_16BF ? fsdp_bf16_to_f32(narrow[i])
                                 : fsdp_f16_to_f32(narrow[i]);
}

void store(void *at, cudaDataType_t type, uint64_t i, float x)
{
    if (type == CUDA_R_32F)
        ((float *)at)[i] = x;
    else
        ((uint16_t *)at)[i] = type == CUDA_R_16BF ? fsdp_f32_to_bf16(x) : fsdp_f32_to_f16(x);
}

float rounded(cudaDataType_t type, float x)
{
    store(&x, type, 0, x);
    return load(&x, type, 0);
}

// Element (row, col) of op(x).
uint64_t place(const simt_lt_layout &x, cublasOperation_t op, uint64_t row, uint64_t col)
{
    return op == CUBLAS_OP_N ? col * (uint64_t)x.ld + row : row * (uint64_t)x.ld + col;
}

bool has_bias(cublasLtEpilogue_t e)
{
    return e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

bool has_aux(cublasLtEpilogue_t e)
{
    return e == CUBLASLT_EPILOGUE_GELU_AUX || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           e == CUBLASLT_EPILOGUE_DGELU;
}

bool has_sums(cublasLtEpilogue_t e)
{
    return e == CUBLASLT_EPILOGUE_BGRADA || e == CUBLASLT_EPILOGUE_BGRADB;
}

// GELU by its tanh approximation, and its slope.
double gelu(double x, double *slope)
{
    const double scale = 0.7978845608028654, cube = 0.044715;
    const double t = tanh(scale * (x + cube * x * x * x));
    *slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * scale * (1 + 3 * cube * x * x);
    return 0.5 * x * (1 + t);
}

// The sum for element (i, j) of d, beyond the bias; aux is stored before it is rounded.
double finish(const call &c, uint64_t i, uint64_t j, double sum)
{
    const uint64_t at = j * (uint64_t)c.desc.aux_ld + i;
    double slope;
    if (c.desc.epilogue == CUBLASLT_EPILOGUE_DGELU) {
        gelu(load(c.desc.aux, c.d.type, at), &slope);
        return sum * slope;
    }
    if (!has_aux(c.desc.epilogue))
        return sum;
    store(c.desc.aux, c.d.type, at, (float)sum);
    return gelu(sum, &slope);
}

// The gradient of a bias: sums of the rows of op(a), or of the columns of op(b).
void sum_operand(const call &c, uint64_t k)
{
    const bool of_a = c.desc.epilogue == CUBLASLT_EPILOGUE_BGRADA;
    for (uint64_t i = 0; i < (of_a ? c.d.rows : c.d.cols); i++) {
        double sum = 0;
        for (uint64_t l = 0; l < k; l++)
            sum += of_a ? load(c.a_at, c.a.type, place(c.a, c.desc.op_a, i, l))
                        : load(c.b_at, c.b.type, place(c.b, c.desc.op_b, l, i));
        store(c.desc.bias, c.d.type, i, (float)sum);
    }
}

// What an element of an operand of 8 bits is multiplied by: `line` is its row of op(a), or its
// column of op(b), and `at` its place in the sum of k. Scales of blocks are exponents, in tiles of
// 128 lines by 4 blocks of 32, of 512 bytes: 16 for each of 32 lines, 4 bytes for each line of the
// four that are 32 apart.
double scale_of(const void *scales, int32_t mode, uint64_t line, uint64_t at, uint64_t k)
{
    const uint64_t block = at / 32, tiles = (k + 127) / 128;
    if (!scales)
        return 1;
    if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F)
        return *(const float *)scales;
    if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F)
        return ((const float *)scales)[line];
    const uint8_t *tile = (const uint8_t *)scales + (line / 128 * tiles + block / 4) * 512;
    return ldexp(1, tile[(line % 32) * 16 + (line / 32 % 4) * 4 + block % 4] - 127);
}

// One of a batch.
void multiply_one(const call &c)
{
    const uint64_t k = c.desc.op_a == CUBLAS_OP_N ? c.a.cols : c.a.rows;
    std::vector<double> row(k);
    for (uint64_t i = 0; i < c.d.rows; i++) {
        for (uint64_t l = 0; l < k; l++)
            row[l] = scale_of(c.desc.a_scale, c.desc.a_mode, i, l, k) *
                     load(c.a_at, c.a.type, place(c.a, c.desc.op_a, i, l));
        for (uint64_t j = 0; j < c.d.cols; j++) {
            const uint64_t to = j * (uint64_t)c.d.ld + i;
            double sum = 0;
            for (uint64_t l = 0; l < k; l++) {
                sum += row[l] * load(c.b_at, c.b.type, place(c.b, c.desc.op_b, l, j)) *
                       scale_of(c.desc.b_scale, c.desc.b_mode, j, l, k);
                if (c.coarse && l == k / 2)
                    sum = rounded(c.d.type, (float)sum);
            }
            sum *= c.alpha;
            if (has_bias(c.desc.epilogue))
                sum += load(c.desc.bias, c.d.type, i);
            if (c.beta != 0)
                sum += (double)c.beta * load(c.d_at, c.d.type, to);
            store(c.d_at, c.d.type, to, (float)finish(c, i, j, sum));
        }
    }
    if (has_sums(c.desc.epilogue))
        sum_operand(c, k);
}

size_t elem_nbytes(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2 ? 1 : 2;
}

void multiply(void *arg)
{
    call c = *(const call *)arg;
    const bool more = c.d.batch > 1 || has_aux(c.desc.epilogue) || has_sums(c.desc.epilogue);
    simt_spend(c.seconds + (more ? epilogue_seconds : 0));
    for (int i = 0; i < c.d.batch; i++) {
        multiply_one(c);
        c.a_at = (const char *)c.a_at + (size_t)c.a.stride * elem_nbytes(c.a.type);
        c.b_at = (const char *)c.b_at + (size_t)c.b.stride * elem_nbytes(c.b.type);
        c.d_at = (char *)c.d_at + (size_t)c.d.stride * elem_nbytes(c.d.type);
        if (c.desc.bias)
            c.desc.bias = (char *)c.desc.bias + (size_t)c.desc.bias_stride * elem_nbytes(c.d.type);
    }
}

bool fits(const simt_lt_layout &x)
{
    return x.rows && x.cols && x.ld >= (int64_t)x.rows;
}

bool is_eight(cudaDataType_t type)
{
    return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

// Scales of rows are of compute capability 9.0 alone; those of blocks of 10.0 and later.
bool supported_scales(const simt_lt_desc &desc, const simt_lt_layout &a)
{
    const bool blocks = desc.a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    int capability = 0;
    cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, 0);
    return desc.a_mode == desc.b_mode && desc.a_scale && desc.b_scale &&
           (desc.a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F ||
            (blocks ? capability >= 10 && a.rows % 32 == 0 : capability == 9));
}

// Of 8-bit operands, before Blackwell: both lie along what is summed, at multiples of 16 bytes; the
// bias is in 16 bits, and here of the type of the output.
bool supported_eight(const simt_lt_desc &desc, const simt_lt_layout &a, const simt_lt_layout &b,
                     const simt_lt_layout &d)
{
    const uint64_t out = d.type == CUDA_R_32F ? 4 : 2;
    const bool biased = desc.epilogue == CUBLASLT_EPILOGUE_BIAS;
    return is_eight(b.type) && (a.type == CUDA_R_8F_E4M3 || b.type == CUDA_R_8F_E4M3) &&
           desc.op_a == CUBLAS_OP_T && desc.op_b == CUBLAS_OP_N && supported_scales(desc, a) &&
           a.rows % 16 == 0 && a.cols % 16 == 0 && b.cols % 16 == 0 && a.ld % 16 == 0 &&
           b.ld % 16 == 0 && (uint64_t)d.ld * out % 16 == 0 && !(biased && d.type == CUDA_R_32F);
}

// Beyond the bias: its aux lies at multiples of 16 bytes, in rows of multiples of 8 elements.
bool supported_epilogue(const simt_lt_desc &desc, const simt_lt_layout &a, const simt_lt_layout &d)
{
    const bool plain = desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT || has_bias(desc.epilogue);
    if (has_aux(desc.epilogue) &&
        (!desc.aux || (uintptr_t)desc.aux % 16 || desc.aux_ld % 8 ||
         desc.aux_ld < (int64_t)d.rows || d.type != a.type || is_eight(a.type)))
        return false;
    if (has_sums(desc.epilogue) && (!desc.bias || is_eight(a.type)))
        return false;
    return (plain && !has_aux(desc.epilogue)) || !refused;
}

bool supported(const simt_lt_desc &desc, const simt_lt_layout &a, const simt_lt_layout &b,
               const simt_lt_layout &d)
{
    const bool na = desc.op_a == CUBLAS_OP_N, nb = desc.op_b == CUBLAS_OP_N;
    const bool types = is_eight(a.type)
                           ? supported_eight(desc, a, b, d)
                           : a.type == b.type && (d.type == a.type || d.type == CUDA_R_32F);
    const bool batches = a.batch == d.batch && b.batch == d.batch && d.batch >= 1 &&
                         (d.batch == 1 || (!refused && !has_aux(desc.epilogue)));
    return batches && fits(a) && fits(b) && fits(d) && types && supported_epilogue(desc, a, d) &&
           (na ? a.rows : a.cols) == d.rows && (nb ? b.cols : b.rows) == d.cols &&
           (na ? a.cols : a.rows) == (nb ? b.rows : b.cols);
}

uint64_t checksum(const simt_lt_desc &desc, const simt_lt_layout &a, const simt_lt_layout &b,
                  const simt_lt_layout &d)
{
    const uint64_t all[] = {(uint64_t)desc.op_a,
                            (uint64_t)desc.op_b,
                            (uint64_t)desc.epilogue,
                            (uint64_t)desc.a_mode,
                            (uint64_t)a.type,
                            a.rows,
                            a.cols,
                            (uint64_t)a.ld,
                            (uint64_t)b.type,
                            b.rows,
                            b.cols,
                            (uint64_t)b.ld,
                            (uint64_t)d.type,
                            d.rows,
                            d.cols,
                            (uint64_t)d.ld,
                            (uint64_t)d.batch,
                            (uint64_t)a.stride,
                            (uint64_t)b.stride,
                            (uint64_t)d.stride,
                            (uint64_t)desc.bias_stride};
    return fsdp_hash(FSDP_HASH_SEED, all, sizeof all);
}

} // namespace

extern "C" {

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED   ? "CUBLAS_STATUS_NOT_SUPPORTED"
           : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
                                                   : "CUBLAS_STATUS_SUCCESS";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = new simt_lt_handle();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return CUBLAS_STATUS_INVALID_VALUE;
    *desc = new simt_lt_desc{CUBLAS_OP_N,
                             CUBLAS_OP_N,
                             CUBLASLT_EPILOGUE_DEFAULT,
                             nullptr,
                             nullptr,
                             0,
                             0,
                             nullptr,
                             nullptr,
                             0,
                             0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    delete desc;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t nbytes)
{
    void *to = what == CUBLASLT_MATMUL_DESC_TRANSA                 ? (void *)&desc->op_a
               : what == CUBLASLT_MATMUL_DESC_TRANSB               ? (void *)&desc->op_b
               : what == CUBLASLT_MATMUL_DESC_EPILOGUE             ? (void *)&desc->epilogue
               : what == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER ? (void *)&desc->aux
               : what == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD      ? (void *)&desc->aux_ld
               : what == CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE    ? (void *)&desc->bias_stride
               : what == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER      ? (void *)&desc->a_scale
               : what == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER      ? (void *)&desc->b_scale
               : what == CUBLASLT_MATMUL_DESC_A_SCALE_MODE         ? (void *)&desc->a_mode
               : what == CUBLASLT_MATMUL_DESC_B_SCALE_MODE         ? (void *)&desc->b_mode
                                                                   : (void *)&desc->bias;
    const bool mode =
        what == CUBLASLT_MATMUL_DESC_A_SCALE_MODE || what == CUBLASLT_MATMUL_DESC_B_SCALE_MODE;
    if (nbytes != (what >= CUBLASLT_MATMUL_DESC_BIAS_POINTER && !mode ? sizeof(void *) : 4))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, nbytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    *layout = new simt_lt_layout{type, rows, cols, ld, 1, 0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t what,
                                                const void *value, size_t nbytes)
{
    const bool count = what == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
    if (nbytes != (count ? sizeof layout->batch : sizeof layout->stride))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(count ? (void *)&layout->batch : (void *)&layout->stride, value, nbytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref)
{
    *pref = new simt_lt_preference{0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref)
{
    delete pref;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void *value, size_t nbytes)
{
    const bool workspace = what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    if (nbytes != (workspace ? sizeof(uint64_t) : sizeof(uint32_t)))
        return CUBLAS_STATUS_INVALID_VALUE;
    void *to = workspace ? (void *)&pref->workspace
               : what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK
                   ? &pref->reduction
                   : &pref->alignment[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES];
    memcpy(to, value, nbytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t pref, int most,
                                              cublasLtMatmulHeuristicResult_t *out, int *nout)
{
    (void)handle;
    *nout = 0;
    if (most < 1 || c->ld != d->ld || c->type != d->type)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!supported(*desc, *a, *b, *d))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    // What cannot run may stand between what can.
    for (int n = 0; n < most && n <= PROPOSALS; n++) {
        out[n] = cublasLtMatmulHeuristicResult_t{};
        const int proposal = n == 0 ? 0 : n - 1;
        out[n].state = n == 1 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
        *nout = n + 1;
        if (n == 1)
            continue;
        out[n].algo.data[0] = checksum(*desc, *a, *b, *d);
        for (int i = 0; i < 4; i++)
            out[n].algo.data[1 + i] = pref->alignment[i];
        out[n].workspaceSize = out[n].algo.data[5] = pref->workspace;
        out[n].algo.data[6] = (uint64_t)proposal;
        out[n].algo.data[7] = pref->reduction != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    (void)handle;
    (void)c;
    result->workspaceSize = algo->data[5];
    return algo->data[0] == checksum(*desc, *a, *b, *d) && algo->data[6] < PROPOSALS
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_INVALID_VALUE;
}

size_t cublasLtGetVersion(void)
{
    return version;
}

void simt_lt_set_version(size_t value)
{
    version = value;
}

int simt_lt_scaled(cublasLtMatmulMatrixScale_t mode)
{
    return scaled[mode];
}

int simt_lt_eights(void)
{
    return eights;
}

int simt_lt_batched(void)
{
    return batched;
}

int simt_lt_epilogues(cublasLtEpilogue_t epilogue)
{
    return epilogues[epilogue];
}

void simt_lt_refuse_epilogues(int yes)
{
    refused = yes;
}

void simt_lt_slow_epilogues(double seconds)
{
    epilogue_seconds = seconds;
}

int simt_lt_last(void)
{
    return last;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_nbytes, cudaStream_t stream)
{
    const void *const at[] = {a, b, c, d};
    const call args = {*desc,
                       *a_layout,
                       *b_layout,
                       *d_layout,
                       a,
                       b,
                       d,
                       *(const float *)alpha,
                       *(const float *)beta,
                       proposal_seconds[algo->data[6] % PROPOSALS],
                       algo->data[7] != 0};
    if (!handle || c != d || c_layout->ld != d_layout->ld || (uintptr_t)workspace % 16 ||
        workspace_nbytes < algo->data[5] || algo->data[6] >= PROPOSALS ||
        algo->data[0] != checksum(*desc, *a_layout, *b_layout, *d_layout) ||
        (has_bias(desc->epilogue) || has_sums(desc->epilogue)) != (desc->bias != nullptr) ||
        has_aux(desc->epilogue) != (desc->aux != nullptr) ||
        !supported(*desc, *a_layout, *b_layout, *d_layout) ||
        (has_aux(desc->epilogue) && desc->aux == d))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (desc->a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 &&
        ((uintptr_t)desc->a_scale % 16 || (uintptr_t)desc->b_scale % 16))
        return CUBLAS_STATUS_INVALID_VALUE;
    for (int i = 0; i < 4; i++)
        if ((uintptr_t)at[i] % algo->data[1 + i])
            return CUBLAS_STATUS_INVALID_VALUE;
    for (const void *x :
         {a, b, (const void *)d, (const void *)desc->bias, (const void *)desc->aux,
          (const void *)workspace, (const void *)desc->a_scale, (const void *)desc->b_scale})
        simt_check_pointer(x, "a product");
    last = (int)algo->data[6];
    eights += is_eight(a_layout->type);
    scaled[desc->a_mode] += is_eight(a_layout->type);
    epilogues[desc->epilogue]++;
    batched += d_layout->batch > 1 ? d_layout->batch : 0;
    simt_call(stream, multiply, &args, sizeof args);
    return CUBLAS_STATUS_SUCCESS;
}

} // extern "C"
