/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's operators in 16-bit types. */
#include "nn/cpu/cpu.h"
#include "suite_nn_dtypes.h"

int main(void)
{
    if (nn_tile_has(FSDP_BF16))
        suite_bf16_attention_slack = 1.5;
    run_types();
    run_traits();
    nn_set_threads(3);
    run_types();
    run_traits();
    return tap_done();
}
