/* SPDX-License-Identifier: Apache-2.0 */
/* nn_ref.h: what tests of operators share: seeded values, a lane, comparison with fp64. */
#ifndef NN_REF_H
#define NN_REF_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fsdp/sys/cpu.h"
#include "nn/nn.h"
#include "tap.h"

static uint64_t ref_state = 1;

/* Uniform in [-1, 1). */
static inline double ref_random(void)
{
    ref_state = ref_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(ref_state >> 11) / (double)(UINT64_C(1) << 52) - 1.0;
}

/* Memory of exactly nelem values, so that a sanitizer sees the first one past it. */
static inline float *ref_values(size_t nelem, double scale)
{
    float *x = malloc(nelem * sizeof *x);
    for (size_t i = 0; i < nelem; i++)
        x[i] = (float)(scale * ref_random());
    return x;
}

static inline float *ref_copy(const float *x, size_t nelem)
{
    float *y = malloc(nelem * sizeof *y);
    memcpy(y, x, nelem * sizeof *y);
    return y;
}

/* Output memory holds NaN where beta is 0, so that reading it shows. */
static inline float *ref_output(size_t nelem, float beta)
{
    float *x = ref_values(nelem, 1);
    for (size_t i = 0; i < nelem && beta == 0.0f; i++)
        x[i] = NAN;
    return x;
}

static inline double *ref_wide(size_t nelem)
{
    return calloc(nelem ? nelem : 1, sizeof(double));
}

/* ||got - want|| / ||want||, in the 2-norm; huge where something is not finite. */
static inline double ref_error(const float *got, const double *want, size_t nelem)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < nelem; i++) {
        diff += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
    }
    double error = norm > 0 ? sqrt(diff / norm) : sqrt(diff);
    return isfinite(error) ? error : 1e30;
}

#endif
