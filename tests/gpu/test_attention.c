/* SPDX-License-Identifier: Apache-2.0 */
/* The suite of attention on a GPU: the plain kernels, in fp32; and cuDNN's dropout. */
/* run: timeout=400 */
#include "../models/suite_attention.h"

#include "../models/suite_fast_dropout.h"

#include "gpu.h"

int main(void)
{
    if (use_gpu()) {
        run_attention();
        run_traits();
        test_fast_dropout((struct shape){2, 128, 128, 4, 2, 128, .starts = NULL}, 0.1f, 1.6e-2);
        test_fast_dropout((struct shape){2, 128, 128, 4, 4, 128, .window = 40}, 0.5f, 1.6e-2);
    }
    return tap_done();
}
