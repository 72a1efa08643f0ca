/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's dropout. */
#include "suite_dropout.h"

int main(void)
{
    run_dropout();
    return tap_done();
}
