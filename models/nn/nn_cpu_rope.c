/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding: Su et al., arXiv 2104.09864, with Hugging Face's pairing (i, i + D/2).
 */
#include <math.h>

#include "nn/nn_cpu.h"

static void rope_table(const struct nn_rope_table *a)
{
    for (int t = 0; t < a->T; t++)
        for (int i = 0; i < a->half; i++) {
            double angle = (double)(a->first + t) * a->inv_freq[i], s, c;
            sincos(angle, &s, &c);
            a->cos[(size_t)t * (size_t)a->half + (size_t)i] = (float)c;
            a->sin[(size_t)t * (size_t)a->half + (size_t)i] = (float)s;
        }
}

static void rotate(float *restrict lo, float *restrict hi, const float *restrict c,
                   const float *restrict s, int half, float sign)
{
    for (int i = 0; i < half; i++) {
        float x = lo[i], y = hi[i], sine = sign * s[i];
        lo[i] = x * c[i] - y * sine;
        hi[i] = y * c[i] + x * sine;
    }
}

static void rope(const struct nn_rope *a)
{
    const int half = a->D / 2;
    const float sign = a->inverse ? -1.0f : 1.0f;
    float *x = a->x;
    for (int b = 0; b < a->B; b++)
        for (int t = 0; t < a->T; t++) {
            const int position =
                a->positions ? a->positions[(size_t)b * (size_t)a->T + (size_t)t] : t;
            const size_t at = (size_t)position * (size_t)half;
            for (int h = 0; h < a->heads; h++, x += a->D)
                rotate(x, x + half, a->cos + at, a->sin + at, half, sign);
        }
}

NN_CPU_ENQUEUE(rope_table, nn_rope_table)
NN_CPU_ENQUEUE(rope, nn_rope)
