/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's operators in 16-bit types. */
#include "suite_nn_dtypes.h"

int main(void)
{
    run_types();
    run_traits();
    nn_set_threads(3);
    run_types();
    run_traits();
    return tap_done();
}
