/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by cuDNN on the emulated GPU, where a stand-in executes the graphs: rows that are
 * sequences, rows of several documents, batches of fewer rows than planned. Held to the plain
 * kernels in fp32, which the suite of attention holds to fp64.
 */
/* run: timeout=300 */
#include "../models/ref_run.h"

#include "../models/suite_attention_left.h"
#include "../models/nn_mirror.h"
#include "fsdp/sys/cuda.h"
#include "fsdp/sys/device_ops.h"
#include "family/stack.h"
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

/* By cuDNN, `runs` times in both directions. */
static void by_cudnn(struct nn_attention a, int runs)
{
    const int before = simt_cudnn_nrun();

    test_attention(a);
    ok(simt_cudnn_nrun() - before == runs, "by %d runs of cuDNN (%d)", runs,
       simt_cudnn_nrun() - before);
}

static void with_documents(struct nn_attention a, const int *ends, int runs)
{
    a = documents(a, ends);
    by_cudnn(a, runs);
    free((void *)(uintptr_t)a.starts);
}

static void test_documents(void)
{
    static const int two[] = {1, 2, 34, 35, 64, 20, 64};
    static const int three[] = {63, 64, 64, 1, 63, 64};
    static const int many[] = {1,  2,  3,  5,  7,  8,  9,  10, 11, 12, 13,
                               14, 15, 16, 17, 18, 19, 20, 21, 22, 40};
    struct nn_attention a = heads(2, 64, 4, 4, 16);

    with_documents(a, two, 2);
    a = heads(2, 64, 4, 2, 32);
    with_documents(a, two, 2);
    a = heads(3, 64, 6, 1, 16);
    with_documents(a, three, 2);
    a.window = 17;
    with_documents(a, three, 2);
    with_documents(heads(1, 40, 2, 1, 16), many, 2);
    with_documents(heads(1, 40, 1, 1, 256), many, 2);
}

/* Batches of fewer rows than planned, as the last one of an evaluation: no plan is made for them.
 * Their rows go one by one, and backwards through the plain kernels; or as documents. */
static size_t planned;

static size_t as_planned(const struct nn_attention *shape)
{
    (void)shape;
    return planned;
}

static void test_short_batches(struct fsdp_device *device)
{
    static const int ends[] = {10, 32, 5, 32, 31, 32};
    struct nn_ops ops = nn_cuda_ops;
    struct nn_attention whole = heads(4, 32, 4, 2, 48), fewer = heads(3, 32, 4, 2, 48);

    whole.dtype = type;
    planned = nn_cuda_ops.attention_work_nelem(&whole);
    ops.attention_work_nelem = as_planned;
    mirror_use(&ops, device);
    int made = simt_cudnn_nmade();
    by_cudnn(fewer, 3);
    whole.documents = 8;
    planned = nn_cuda_ops.attention_work_nelem(&whole);
    ok(simt_cudnn_nmade() == made + 2, "plans for 8 documents are made, too");
    made += 2;
    by_cudnn(fewer, 2);
    with_documents(fewer, ends, 2);
    ok(simt_cudnn_nmade() == made, "none was made after that");
    mirror_use(&nn_cuda_ops, device);
}

/* The rotation reads gradients where cuDNN wrote them; those of several pieces are copied. */
static void test_left(struct fsdp_device *device)
{
    static const int ends[] = {10, 32, 5, 32};
    struct nn_ops ops = nn_cuda_ops;
    struct nn_attention whole = heads(4, 32, 4, 2, 64), a = documents(heads(2, 32, 4, 2, 32), ends);

    ok(left_in_work(whole) && left_in_work(a), "gradients stay where cuDNN wrote them");
    free((void *)(uintptr_t)a.starts);
    whole.dtype = type;
    planned = nn_cuda_ops.attention_work_nelem(&whole);
    ops.attention_work_nelem = as_planned;
    mirror_use(&ops, device);
    ok(!left_in_work(heads(3, 32, 4, 2, 64)), "but not in several pieces");
    mirror_use(&nn_cuda_ops, device);
}

/* What makes the plain kernels compute, and what is said about it. */
static void stays_plain(struct nn_attention a, const char *why)
{
    const int before = simt_cudnn_nrun();

    said[0] = 0;
    test_attention(a);
    ok(simt_cudnn_nrun() == before && strstr(said, why), "plain kernels because of: %s", why);
    if (!strstr(said, why))
        diag("%s", said);
}

static void test_refusals(void)
{
    static const int ends[] = {10, 32, 5, 32};
    struct nn_attention a = documents(heads(2, 32, 4, 2, 24), ends);

    stays_plain(a, "several documents in a row with heads that are no multiple of 16 elements");
    a.D = 64;
    a.documents = 0;
    stays_plain(a, "documents of which there are more than planned");
    a.documents = 4;
    simt_set_capability(80), simt_cudnn_set(91900, 80);
    stays_plain(a, "several documents in a row on a GPU before compute capability 9.0");
    by_cudnn(heads(2, 32, 4, 2, 64), 2);
    stays_plain(heads(1, 32, 2, 2, 136), "heads of this size on this GPU");
    simt_set_capability(90), simt_cudnn_set(91002, 90);
    a.D = 80;
    stays_plain(a, "cuDNN 91002 is older than 9.11");
    stays_plain(heads(1, 100, 2, 2, 64),
                "rows of 100 positions: cuDNN 91002 takes multiples of 128");
    simt_cudnn_set(91900, 90);
    free((void *)(uintptr_t)a.starts);
}

/* What plans for a GPU that is described count on: memory of packed plans; and where it has slow
 * kernels, that attention takes as long as more rows would. */
static void test_described(void)
{
    struct nn_attention a = heads(2, 512, 8, 8, 64);
    const struct nn_ops *hopper = nn_cuda_described_ops(90), *ampere = nn_cuda_described_ops(80);
    const struct nn_cuda_way packed = {.documents = 32};

    a.dtype = FSDP_BF16;
    ok(nn_cuda_slowness(hopper, &a) == 1 && nn_cuda_slowness(ampere, &a) == 1 &&
           nn_cuda_slowness(&nn_cpu_ops, &a) == 1,
       "attention of rows is cuDNN's");
    said[0] = 0;
    a.documents = 20;
    ok(nn_cuda_slowness(hopper, &a) == 1 && !said[0] && nn_cuda_slowness(ampere, &a) > 1 &&
           strstr(said, "before compute capability 9.0"),
       "that of documents from 9.0 on, which is said");
    ok(hopper->attention_work_nelem(&a) ==
           nn_cuda_cudnn_work_nelem(&a, packed, nn_cuda_cudnn_workspace(&a, packed, false, 90),
                                    nn_cuda_cudnn_workspace(&a, packed, true, 90)),
       "so is its work memory");
    a.drop.p = 0.1f;
    ok(nn_cuda_slowness(hopper, &a) > 1 && strstr(said, "because of: dropout"),
       "dropout is the plain kernels'");
    a.dtype = FSDP_F32;
    ok(nn_cuda_slowness(hopper, &a) == 1, "fp32 is modelled by its type");
}

/* ---- training ------------------------------------------------------------------------------ */

enum { STEPS = 2, B = 2, T = 32, VOCAB = 256 };

static void use_cuda(struct model *m)
{
    m->nn = &nn_cuda_ops;
}

/* Steps on packed rows; the plans that were made during them. */
static int steps(double loss[STEPS], const struct ref_setup *setup, const int32_t *tokens)
{
    static const int node_of[1];
    const struct fsdp_node_map nodes = {.nranks = 1, .nnodes = 1, .node_of = node_of};
    struct fsdp_oob *oob = NULL;
    struct ref_rank r = {0};
    double norm;
    int rc = fsdp_oob_self_create(&oob, &err);

    rc = rc ? rc : ref_rank_open(&r, setup, oob, &nodes, &err);
    const int made = simt_cudnn_nmade();
    for (int s = 0; s < STEPS && !rc; s++)
        rc = ref_rank_step(&r, setup, tokens + s * B * (T + 1), B,
                           (struct fsdp_step_args){.step = s, .lr = 1e-3}, &loss[s], &norm, &err);
    if (rc)
        diag("%s", err.text);
    ref_rank_close(&r);
    if (oob)
        oob->close(oob);
    return rc ? -1 : simt_cudnn_nmade() - made;
}

static void test_training(void)
{
    static const int ends[] = {3, 4, 20, 32, 17, 32};
    int32_t tokens[STEPS * B * (T + 1)];
    const struct nn_attention rows = documents(heads(B, T, 4, 2, 16), ends);
    struct ref_setup setup = {
        .folder = "llama-tiny", .B = B, .T = T, .starts = rows.starts, .opts = FSDP_OPTS_INIT};
    double loss[2][STEPS];

    for (int i = 0; i < STEPS * B * (T + 1); i++)
        tokens[i] = (int32_t)((unsigned)i * 2654435761u >> 8) % VOCAB;
    setup.opts.param_dtype = FSDP_BF16;
    steps(loss[0], &setup, tokens);
    setup.device_ops = &fsdp_device_cuda_ops;
    setup.use_ops = use_cuda;
    const int before = simt_cudnn_nrun(), made = steps(loss[1], &setup, tokens);
    double worst = 0;
    for (int s = 0; s < STEPS; s++)
        worst = fmax(worst, fabs(loss[1][s] / loss[0][s] - 1));
    ok(worst < 5e-3, "losses of packed rows in bf16 are those of the CPU (%.1e)", worst);
    ok(made == 0 && simt_cudnn_nrun() > before,
       "no plan was made during the steps (%d), which ran %d", made, simt_cudnn_nrun() - before);
    free((void *)(uintptr_t)rows.starts);
}

int main(void)
{
    static const enum fsdp_dtype types[] = {FSDP_BF16, FSDP_F16};
    struct fsdp_device *device;

    fsdp_log_set(listen, NULL, FSDP_LOG_INFO);
    if (fsdp_device_open_ops(&device, &fsdp_device_cuda_ops, 0, 0, &err))
        return 1;
    mirror_use(&nn_cuda_ops, device);
    suite_bf16_attention_slack = suite_f16_attention_slack = 4;
    for (int t = 0; t < 2; t++) {
        type = types[t];
        by_cudnn(heads(2, 64, 4, 4, 16), 2);
        by_cudnn(heads(1, 64, 4, 2, 64), 2);
        if (type == FSDP_BF16)
            test_documents();
    }
    type = FSDP_BF16;
    struct nn_attention a = heads(2, 64, 4, 2, 128);
    a.window = 20;
    by_cudnn(a, 2);
    by_cudnn(heads(1, 40, 2, 1, 256), 2);
    test_short_batches(device);
    test_left(device);
    test_refusals();
    test_described();
    if (!getenv("SIMT_PTX")) /* which has operators alone */
        test_training();
    return tap_done();
}
