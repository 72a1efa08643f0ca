/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention's dropout by cuDNN on the emulated GPU: a stand-in executes the graphs, with random
 * numbers of its own. Its plans, and what stays with the plain kernels.
 */
/* run: timeout=300 */
#include "../models/suite_fast_dropout.h"

#include "../models/nn_mirror.h"
#include "fsdp/sys/cuda.h"
#include "fsdp/sys/device_ops.h"
#include "nn/cuda_sizes.h"
#include "nn/described.h"
#include <cudnn.h>

extern const struct nn_ops nn_cuda_ops;

static char said[4096];

static void listen(void *ctx, enum fsdp_log_level level, const char *text)
{
    (void)ctx;
    (void)level;
    if (strlen(said) + strlen(text) + 2 < sizeof said)
        strcat(strcat(said, text), "\n");
}

/* A mask is shown four times, and then there is one run in each direction. */
static void by_cudnn(struct shape s, float p)
{
    const int before = simt_cudnn_nrun();
    test_fast_dropout(s, p, 1e-2);
    ok(simt_cudnn_nrun() - before == 6, "by 6 runs of cuDNN (%d)", simt_cudnn_nrun() - before);
}

static void test_documents(void)
{
    int32_t starts[2 * 32];
    struct shape s = {2, 32, 32, 4, 2, 32, .starts = starts};

    for (int i = 0; i < 64; i++)
        starts[i] = i % 32 < 10 ? 0 : 10;
    /* Their number is told as the most that there may be. */
    by_cudnn(s, 0.2f);
}

/* Evaluation of a model with dropout takes plans without it. */
static void test_evaluation(void)
{
    const struct shape s = {2, 32, 32, 4, 4, 32, .starts = NULL};
    struct nn_attention a = fast_args(s, (struct nn_drop){.p = 0.3f});
    struct narrow x = narrow_random(nq(s));
    float *lse = ref_output((size_t)s.B * s.NH * s.Tq, 0);
    float *work = ref_output(nn->attention_work_nelem(&a), 0);
    const int made = simt_cudnn_nmade(), before = simt_cudnn_nrun();

    a.q = a.k = a.v = x.bits, a.lse = lse, a.work = work;
    struct narrow o = narrow_random(nq(s));
    a.o = o.bits;
    a.drop = no_drop;
    const int rc = nn->attention_forward(ref_lane(), &a, &err);
    ok(!rc && simt_cudnn_nrun() == before + 1 && simt_cudnn_nmade() == made,
       "evaluation is cuDNN's, too, by a plan that was there");
    narrow_free(x), narrow_free(o), free(lse), free(work);
}

static void test_refusals(void)
{
    struct nn_attention a =
        fast_args((struct shape){2, 32, 32, 4, 2, 32, .starts = NULL}, (struct nn_drop){.p = 0.1f});

    ok(!nn_cuda_beyond_cudnn(&a, false, 100) && !nn_cuda_beyond_cudnn(&a, true, 90) &&
           strstr(nn_cuda_beyond_cudnn(&a, true, 100), "several documents"),
       "from compute capability 10.0 on rows of several documents are plain kernels'");
    a.drop_fast = false;
    ok(strstr(nn_cuda_beyond_cudnn(&a, false, 90), "model.attention_dropout"),
       "so is dropout that is the same everywhere, and the setting is named");
}

static void test_described(void)
{
    struct nn_attention a = fast_args((struct shape){2, 512, 512, 8, 8, 64, .starts = NULL},
                                      (struct nn_drop){.p = 0.1f});
    const struct nn_ops *hopper = nn_cuda_described_ops(90), *ampere = nn_cuda_described_ops(80);
    const struct nn_ops *blackwell = nn_cuda_described_ops(120);
    const struct nn_attention rows = a;
    const size_t mask = (size_t)2 * 8 * 512 * 512 / 8;

    ok(nn_cuda_slowness(hopper, &a) == 1 && nn_cuda_slowness(ampere, &a) == 1 &&
           nn_cuda_slowness(blackwell, &a) == 1,
       "plans take dropout for as fast as none");
    ok(blackwell->attention_work_nelem(&a) ==
               hopper->attention_work_nelem(&a) + mask / sizeof(float) &&
           nn_cuda_described_ops(103) == blackwell,
       "from 10.0 on with a bit for each probability");
    a.documents = 20;
    ok(nn_cuda_slowness(hopper, &a) == 1 && nn_cuda_slowness(blackwell, &a) > 1 &&
           strstr(said, "from compute capability 10.0 on"),
       "documents with dropout are slow there, which is said");
    struct nn_attention whole = a;
    whole.drop = no_drop;
    ok(blackwell->attention_work_nelem(&a) >= blackwell->attention_work_nelem(&whole) &&
           blackwell->attention_work_nelem(&whole) > hopper->attention_work_nelem(&rows),
       "but not in evaluation, which has its plans");
}

int main(void)
{
    struct fsdp_device *device;

    fsdp_log_set(listen, NULL, FSDP_LOG_INFO);
    if (fsdp_device_open_ops(&device, &fsdp_device_cuda_ops, 0, 0, &err))
        return 1;
    mirror_use(&nn_cuda_ops, device);
    by_cudnn((struct shape){2, 64, 64, 4, 4, 64, .starts = NULL}, 0.1f);
    by_cudnn((struct shape){1, 64, 64, 4, 2, 64, .starts = NULL}, 0.5f);
    by_cudnn((struct shape){2, 64, 64, 2, 2, 64, .window = 20}, 0.25f);
    test_documents();
    test_evaluation();
    test_refusals();
    test_described();
    return tap_done();
}
