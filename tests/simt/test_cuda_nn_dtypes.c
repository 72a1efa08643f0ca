/* SPDX-License-Identifier: Apache-2.0 */
/* The suite of tests/models on CUDA's operators, emulated on the CPU. */
/* run: timeout=300 */
#include "../models/suite_nn_dtypes.h"

#include "../models/nn_mirror.h"
#include "epilogues.h"
#include "fsdp/sys/cuda.h"
#include "fsdp/sys/device_ops.h"

/* The gradient of fp32 logits is split once for both products behind it: the second one takes the
 * halves from the work memory and does not read the gradient. */
static void test_split_once(void)
{
    enum { ROWS = 33, NIN = 50, NOUT = 603 };
    struct nn_linear a = {.rows = ROWS, .nin = NIN, .nout = NOUT};
    int rc = 0;

    type = FSDP_BF16;
    a.dtype = a.w_dtype = type;
    struct pair x = pair(ROWS * NIN, 1), w = pair(NOUT * NIN, 1), dx[2];
    float *dy = ref_values(ROWS * NOUT, 1), *dw = room(NOUT * NIN);
    float *work = room(nn->linear_work_nelem(&a));
    for (int i = 0; i < 2; i++) {
        dx[i] = pair(x.nelem, 9);
        a.x = x.narrow, a.w = w.narrow, a.dy = dy, a.work = work;
        a.out = dw;
        a.after_weight = i;
        rc |= nn->linear_backward_weight(ref_lane(), &a, &err);
        if (i)
            memset(dy, 0, ROWS * NOUT * sizeof *dy);
        a.out = dx[i].narrow;
        rc |= nn->linear_backward_input(ref_lane(), &a, &err);
    }
    ok(!rc && !memcmp(dx[0].narrow, dx[1].narrow, x.nelem * 2), "logit gradients are split once");
    drop(x), drop(w), drop(dx[0]), drop(dx[1]), free(dy), free(dw), free(work);
}

int main(void)
{
    struct fsdp_device *device;

    if (fsdp_device_open_ops(&device, &fsdp_device_cuda_ops, 0, 0, &err))
        return 1;
    mirror_use(&nn_cuda_ops, device);
    run_types();
    run_traits();
    test_split_once();
    run_epilogues();
    return tap_done();
}
