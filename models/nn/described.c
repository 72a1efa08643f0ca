/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of a GPU that is described: what plans of memory ask of them. The rest is the CPU's,
 * and is not called. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

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

static size_t attention_work_hopper(const struct nn_attention *shape)
{
    return attention_work(shape, 90);
}

static size_t attention_work_ampere(const struct nn_attention *shape)
{
    return attention_work(shape, 80);
}

static size_t attention_work_blackwell(const struct nn_attention *shape)
{
    return attention_work(shape, 100);
}

/* Those that are described, by compute capability. */
enum { AMPERE, HOPPER, BLACKWELL, NDESCRIBED };
static const struct {
    int capability;
    size_t (*attention_work)(const struct nn_attention *shape);
} gpus[NDESCRIBED] = {[AMPERE] = {80, attention_work_ampere},
                      [HOPPER] = {90, attention_work_hopper},
                      [BLACKWELL] = {100, attention_work_blackwell}};

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

double nn_cuda_slowness(const struct nn_ops *ops, const struct nn_attention *shape)
{
    const bool packed = shape->documents > 0;
    bool is_described = false;
    int capability = 90; /* of a GPU that is here, whose own kernels say what they do */

    if (strcmp(ops->name, "cuda") != 0 || shape->dtype == FSDP_F32)
        return 1;
    for (int i = 0; i < NDESCRIBED; i++)
        if (ops == &described[i]) {
            is_described = true;
            capability = gpus[i].capability;
        }
    const char *why = nn_cuda_beyond_cudnn(shape, packed, capability);
    if (!why && nn_cuda_attention_chosen() == NN_CUDA_PLAIN)
        why = "FSDP_CUDA_ATTENTION=plain";
    if (why && is_described)
        warn_once(why);
    return why ? PLAIN_TIMES : 1;
}

static bool gpu_takes_scales(int capability, enum nn_f8_scale kind)
{
    return kind == NN_F8_BLOCK ? capability >= 100 : capability >= 90 && capability < 100;
}

bool nn_cuda_takes_scales(const struct nn_ops *ops, enum nn_f8_scale kind)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;

    if (strcmp(ops->name, "cuda") != 0 || kind == NN_F8_TENSOR)
        return true;
    for (int i = 0; i < NDESCRIBED; i++) {
        if (ops != &described[i])
            continue;
        const bool takes = gpu_takes_scales(gpus[i].capability, kind);
        if (!takes && !atomic_flag_test_and_set(&told))
            fsdp_log(
                FSDP_LOG_WARN,
                "products in 8 bits with scales of %s: this GPU has none, and computes them in "
                "bf16, which takes longer than without model.linear_dtype%s",
                kind == NN_F8_BLOCK ? "blocks" : "rows",
                gpus[i].capability >= 100  ? "; it has model.linear_scales=block"
                : gpus[i].capability >= 90 ? "; it has model.linear_scales=row"
                                           : "");
        return takes;
    }
    return kind == NN_F8_ROW; /* of a GPU that is here */
}

bool nn_cuda_experts_take_codes(const struct nn_ops *ops, double nplaces, int experts)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    const bool takes =
        strcmp(ops->name, "cuda") != 0 || nplaces > (double)NN_CUDA_SMALL_GROUP * experts;

    for (int i = 0; i < NDESCRIBED && !takes; i++)
        if (ops == &described[i] && !atomic_flag_test_and_set(&told))
            fsdp_log(
                FSDP_LOG_WARN,
                "experts in 8 bits: products of %.0f rows for %d experts are computed in bf16, "
                "which takes longer than without; those of more than %d rows an expert, on "
                "average, are in 8 bits (train.micro_batch_size)",
                nplaces, experts, NN_CUDA_SMALL_GROUP);
    return takes;
}
