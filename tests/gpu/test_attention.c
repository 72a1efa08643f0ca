/* SPDX-License-Identifier: Apache-2.0 */
/* The suite of attention on a GPU: the plain kernels, in fp32. */
/* run: timeout=400 */
#include "../models/suite_attention.h"

#include "gpu.h"

int main(void)
{
    if (use_gpu()) {
        run_attention();
        run_traits();
    }
    return tap_done();
}
