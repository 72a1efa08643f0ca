/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's operators but attention. */
#include "suite_nn.h"

int main(void)
{
    ok(nn->abi == NN_OPS_ABI && !strcmp(nn->name, "cpu"), "the table is the CPU's");
    diag("BLAS kernels: %s", nn_blas_kernels());
    run_operators();
    nn_set_threads(3);
    run_operators();
    return tap_done();
}
