/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of a GPU that is described: what plans of memory ask of them. The rest is the CPU's,
 * and is not called. */
#include <pthread.h>
#include <stdatomic.h>

#include "cuda_sizes.h"
#include "described.h"

static size_t work_of(const struct nn_attention *shape, struct nn_cuda_way way, int capability)
{
    return nn_cuda_cudnn_work_nelem(shape, way,
                                    nn_cuda_cudnn_workspace(shape, way, false, capability),
                                    nn_cuda_cudnn_workspace(shape, way, true, capability));
}

/* Of the plans of a shape. */
static size_t work_of_plans(const struct nn_attention *shape, int capability)
{
    struct nn_cuda_way way = {.deterministic = nn_cuda_attention_chosen() == NN_CUDA_DETERMINISTIC,
                              .drops = shape->drop.p > 0};
    size_t most = 0;

    if (!nn_cuda_beyond_cudnn(shape, false, capability))
        most = work_of(shape, way, capability);
    /* More documents take more. */
    if (shape->documents && !nn_cuda_beyond_cudnn(shape, true, capability)) {
        way.documents = nn_cuda_documents_step(shape->documents);
        const size_t nelem = work_of(shape, way, capability);
        most = nelem > most ? nelem : most;
    }
    return most;
}

static size_t attention_work(const struct nn_attention *shape, int capability)
{
    struct nn_attention whole = *shape; /* evaluation drops nothing */
    size_t most = nn_cuda_plain_attention_work_nelem(shape);

    if (nn_cuda_attention_chosen() == NN_CUDA_PLAIN)
        return most;
    whole.drop.p = 0;
    const size_t nelem = work_of_plans(&whole, capability);
    const size_t dropped = shape->drop.p > 0 ? work_of_plans(shape, capability) : 0;
    most = nelem > most ? nelem : most;
    return dropped > most ? dropped : most;
}

/* A block of 128 threads multiplies in fp32 what it reads from shared memory: some 15 TFLOP/s of an
 * H100's, where cuDNN's backward and forward passes take 450 to 590. */
enum { PLAIN_TIMES = 40 };

static void warn_once(const char *why)
{
    static struct nn_cuda_reasons told;

    if (nn_cuda_add_reason(&told, why))
        fsdp_log(FSDP_LOG_WARN, "attention: " NN_CUDA_SLOW ", because of: %s", why);
}

/* Those that are described, by compute capability. */
#define DESCRIBED(X) X(80) X(90) X(100)

#define OPERATORS_OF(of)                                                                           \
    static int capability_##of(void)                                                               \
    {                                                                                              \
        return of;                                                                                 \
    }                                                                                              \
    static size_t attention_work_##of(const struct nn_attention *shape)                            \
    {                                                                                              \
        return attention_work(shape, of);                                                          \
    }
DESCRIBED(OPERATORS_OF)

#define ROW(of) {of, capability_##of, attention_work_##of},
static const struct {
    int capability;
    int (*say)(void);
    size_t (*attention_work)(const struct nn_attention *shape);
} gpus[] = {DESCRIBED(ROW)};
enum { NDESCRIBED = sizeof gpus / sizeof gpus[0] };

/* Is there, as on GPUs that make activations in products; plans ask for no more. */
static int activated(struct fsdp_lane *lane, const struct nn_activated *args, bool *done,
                     struct fsdp_err *err)
{
    (void)lane, (void)args, (void)err;
    *done = false;
    return FSDP_OK;
}

static struct nn_ops described[NDESCRIBED];
static pthread_once_t described_once = PTHREAD_ONCE_INIT;

static void fill_tables(void)
{
    for (int i = 0; i < NDESCRIBED; i++) {
        described[i] = nn_cpu_ops;
        described[i].name = "cuda";
        described[i].capability = gpus[i].say;
        described[i].logits_nelem = NN_CUDA_LOGITS_NELEM;
        described[i].logits_align = NN_CUDA_LOGITS_ALIGN;
        described[i].linear_work_nelem = nn_cuda_linear_work_nelem;
        described[i].grouped_work_nelem = nn_cuda_grouped_work_nelem;
        described[i].activated_forward = described[i].activated_backward_input =
            i ? activated : NULL;
        described[i].attention_work_nelem = gpus[i].attention_work;
    }
}

const struct nn_ops *nn_cuda_described_ops(int capability)
{
    int last = 0;

    pthread_once(&described_once, fill_tables);
    while (last + 1 < NDESCRIBED && gpus[last + 1].capability <= capability)
        last++;
    return &described[last];
}

static bool is_described(const struct nn_ops *ops)
{
    for (int i = 0; i < NDESCRIBED; i++)
        if (ops == &described[i])
            return true;
    return false; /* it is here, and its own kernels say what they do */
}

double nn_cuda_slowness(const struct nn_ops *ops, const struct nn_attention *shape)
{
    if (!ops->capability || shape->dtype == FSDP_F32)
        return 1;
    const char *why = nn_cuda_beyond_cudnn(shape, shape->documents > 0, ops->capability());
    if (!why && nn_cuda_attention_chosen() == NN_CUDA_PLAIN)
        why = "FSDP_CUDA_ATTENTION=plain";
    if (why && is_described(ops))
        warn_once(why);
    return why ? PLAIN_TIMES : 1;
}

static void warn_scales(enum nn_f8_scale kind, int capability)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;

    if (!atomic_flag_test_and_set(&told))
        fsdp_log(FSDP_LOG_WARN,
                 "products in 8 bits with scales of %s: this GPU has none, and computes them in "
                 "bf16, which takes longer than without model.linear_dtype%s",
                 kind == NN_F8_BLOCK ? "blocks" : "rows",
                 capability >= 100  ? "; it has model.linear_scales=block"
                 : capability >= 90 ? "; it has model.linear_scales=row"
                                    : "");
}

bool nn_cuda_takes_scales(const struct nn_ops *ops, enum nn_f8_scale kind)
{
    if (!ops->capability || kind == NN_F8_TENSOR)
        return true;
    const int capability = ops->capability();
    const bool takes =
        kind == NN_F8_BLOCK ? capability >= 100 : capability >= 90 && capability < 100;
    if (!takes && is_described(ops))
        warn_scales(kind, capability);
    return takes;
}

bool nn_cuda_experts_take_codes(const struct nn_ops *ops, double nplaces, int experts)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    const bool takes = !ops->capability || nplaces > (double)NN_CUDA_SMALL_GROUP * experts;
    const bool has_any = takes || ops->capability() >= 89; /* else nothing helps */

    if (!takes && has_any && is_described(ops) && !atomic_flag_test_and_set(&told))
        fsdp_log(FSDP_LOG_WARN,
                 "experts: %.0f rows for %d experts are too few for products in 8 bits, which need "
                 "more than %d rows an expert on average: they are computed in bf16, which takes "
                 "longer than without 8 bits; raise train.micro_batch_size",
                 nplaces, experts, NN_CUDA_SMALL_GROUP);
    return takes;
}
