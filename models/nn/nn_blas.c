/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/nn.h"

/* Other CBLAS libraries lack it. */
extern char *openblas_get_corename(void) __attribute__((weak));

const char *nn_blas_kernels(void)
{
    return openblas_get_corename ? openblas_get_corename() : "unknown";
}
