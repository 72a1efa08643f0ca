/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nn/nn.h"

/* Other CBLAS libraries lack it. */
extern char *openblas_get_corename(void) __attribute__((weak));

const char *nn_blas_kernels(void)
{
    return openblas_get_corename ? openblas_get_corename() : "unknown";
}

#if defined(__x86_64__)
static const char *better_kernels(void)
{
    const char *now = nn_blas_kernels();
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    bool avx2_only = !strcasecmp(now, "Haswell") || !strcasecmp(now, "Zen");
    return avx512 && avx2_only ? "SkylakeX" : NULL;
}
#else
static const char *better_kernels(void)
{
    return NULL;
}
#endif

void nn_blas_tune(char **argv)
{
    const char *better = getenv("OPENBLAS_CORETYPE") ? NULL : better_kernels();
    if (better && setenv("OPENBLAS_CORETYPE", better, 1) == 0)
        execv("/proc/self/exe", argv);
}
