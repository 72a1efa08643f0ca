/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's attention. */
#include "suite_attention.h"

int main(void)
{
    run_attention();
    nn_set_threads(3);
    run_attention();
    return tap_done();
}
