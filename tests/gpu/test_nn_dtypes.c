/* SPDX-License-Identifier: Apache-2.0 */
/* The operators' suite in 16-bit types on a GPU, and attention of shapes that cuDNN takes, held to
 * the plain kernels in fp32. */
/* run: timeout=400 */
#include "../models/suite_attention_left.h"

#include "../models/suite_activated.h"
#include "gpu.h"

static bool by_cudnn;

static void listen(void *ctx, enum fsdp_log_level level, const char *text)
{
    (void)ctx;
    by_cudnn |= !strcmp(text, "attention: cuDNN's kernels");
    if (level <= FSDP_LOG_WARN || strstr(text, "attention: "))
        diag("%s", text);
}

/* Packed ones, which cuDNN takes from compute capability 9.0 on. */
static void test_documents(void)
{
    static const int two[] = {1, 2, 100, 129, 256, 40, 168, 256};
    static const int three[] = {199, 200, 200, 1, 70, 200};
    struct nn_attention a = documents(heads(2, 256, 8, 2, 128), two);

    test_attention(a);
    a.window = 50;
    test_attention(a);
    free((void *)(uintptr_t)a.starts);
    a = documents(heads(3, 200, 4, 4, 64), three);
    test_attention(a);
    free((void *)(uintptr_t)a.starts);
    test_attention(heads(2, 256, 4, 2, 256));
}

static void test_windows(void)
{
    struct nn_attention a = heads(1, 512, 8, 2, 128);
    a.window = 128;
    test_attention(a);
    a = heads(2, 300, 4, 4, 64);
    a.window = 33;
    test_attention(a);
    a.window = 299;
    test_attention(a);
}

int main(void)
{
    static const enum fsdp_dtype types[] = {FSDP_BF16, FSDP_F16};

    fsdp_log_set(listen, NULL, FSDP_LOG_INFO);
    if (!use_gpu())
        return tap_done();
    suite_unit_slack = 1.5;
    suite_bias_apart = true; /* cuBLASLt adds a bias to alpha AB + beta C in the type of C */
    suite_bf16_attention_slack = suite_f16_attention_slack = 4;
    run_types();
    run_traits();
    type = FSDP_BF16; /* the library's tanh is approximate */
    activated_may_lack = true;
    run_activations();
    for (int t = 0; t < 2; t++) {
        type = types[t];
        test_attention(heads(2, 256, 4, 4, 64));
        diag("gradients stay in work memory: %d", left_in_work(heads(2, 256, 4, 2, 64)));
        test_attention(heads(1, 512, 8, 2, 128));
        test_attention(heads(3, 200, 6, 2, 32));
        test_windows();
        test_documents();
    }
    ok(by_cudnn, "cuDNN was among those that computed attention");
    return tap_done();
}
