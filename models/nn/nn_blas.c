/* SPDX-License-Identifier: Apache-2.0 */
#include "fsdp/sys/cpu.h"
#include "nn/nn.h"

/* Other CBLAS libraries lack it. */
extern char *openblas_get_corename(void) __attribute__((weak));
extern void openblas_set_num_threads(int nthreads) __attribute__((weak));

const char *nn_blas_kernels(void)
{
    return openblas_get_corename ? openblas_get_corename() : "unknown";
}

/* Products are divided here, so that one set of threads does everything. */
void nn_set_threads(int nthreads)
{
    if (openblas_set_num_threads)
        openblas_set_num_threads(1);
    fsdp_cpu_set_threads(nthreads);
}
