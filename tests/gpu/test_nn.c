/* SPDX-License-Identifier: Apache-2.0 */
/* The operators' suite on a GPU. */
/* run: timeout=400 */
#include "../models/suite_nn.h"

#include "gpu.h"

int main(void)
{
    if (use_gpu())
        run_operators();
    return tap_done();
}
