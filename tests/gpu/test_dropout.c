/* SPDX-License-Identifier: Apache-2.0 */
/* The suite of dropout on a GPU. */
/* run: timeout=400 */
#include "../models/suite_dropout.h"

#include "gpu.h"

int main(void)
{
    if (use_gpu())
        run_dropout();
    return tap_done();
}
